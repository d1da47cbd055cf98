"""Messages between applications while brokers, registrars and directory servers are lost: all arrive, none twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.errors import FairleadError, Stale
from fairlead.testing.directory_world import World
from tests.directory_requirements.test_failures import LEASE_S, all_available
from tests.directory_requirements.test_upheaval import LOSSES
from tests.directory_requirements.tools import Stage

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("ABC", servers=3, directory={"directory.lease_s": LEASE_S}) as made:
        yield made


class Numbered:
    """Senders that number what they send, and receivers that write down what they got."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.confirmed: set[str] = set()
        self.doubtful: set[str] = set()  # the sender was told of an error: it may have arrived, or not
        self.got: Counter[str] = Counter()
        self.unmarked: set[str] = set()
        self.over = False

    async def send(self, connection: Any, number: int) -> None:
        count = 0
        while not self.over:
            count += 1
            text = f"{number} {count}"
            try:
                await connection.send_to(f"{self.app}.AZ", text, timeout=60)
                self.confirmed.add(text)
            except FairleadError:
                self.doubtful.add(text)
            await asyncio.sleep(0.02)

    async def receive(self, connection: Any) -> None:
        async with connection.application(window=4) as inbox:
            while True:
                message = await inbox.receive()
                if message is None:
                    continue
                self.got[message.text()] += 1
                if self.got[message.text()] > 1 and not message.redelivered:
                    self.unmarked.add(message.text())
                try:
                    await message.ack()
                except (Stale, FairleadError):
                    pass  # it comes again, marked


@pytest.mark.requirement("DIR-73", "DIR-75", "DIR-78")
@pytest.mark.parametrize("seed", range(3))
async def test_numbered_messages_survive_losses(world: World, stage: Stage, app: str, seed: int) -> None:
    chance, traffic = random.Random(seed), Numbered(app)
    client = stage.client(1, placement="centralised")
    client.anywhere = True
    receivers = [await client.open(f"{app}.AZ", kind="static") for _ in range(3)]
    senders = [await client.open(app) for _ in range(3)]
    receiving = [asyncio.create_task(traffic.receive(one)) for one in receivers]
    sending = [asyncio.create_task(traffic.send(one, number)) for number, one in enumerate(senders)]
    history = []
    try:
        for _ in range(3):
            at = len(traffic.confirmed)
            history.append(await chance.choice(LOSSES)(world, chance))
            await world.until(lambda: all_available(world), f"all brokers are back after {history}", 90)
            await world.until(lambda at=at: len(traffic.confirmed) > at + 30, f"traffic goes on after {history}", 90)
        traffic.over = True
        await asyncio.gather(*sending)
        await world.until(lambda: traffic.confirmed <= set(traffic.got), f"all have arrived after {history}", 90)
    finally:
        traffic.over = True
        for task in (*sending, *receiving):
            task.cancel()
        await asyncio.gather(*sending, *receiving, return_exceptions=True)
        missing = sorted(traffic.confirmed - set(traffic.got))
        print(
            f"{history}: {len(traffic.confirmed)} confirmed, {len(traffic.doubtful)} in doubt, missing {missing[:20]}"
        )
    assert set(traffic.got) <= traffic.confirmed | traffic.doubtful
    assert not traffic.unmarked, f"twice and not marked: {sorted(traffic.unmarked)[:20]} after {history}"
    assert len(traffic.confirmed) > 90
    async with world.open() as directory:
        for one in (*receivers, *senders):
            await stage.leave(one)
        await directory.deregister_app(app=f"{app}.AZ", links="close")
