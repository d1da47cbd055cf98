"""What a client is told of its transactions stays true, whatever is killed while they are committed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

import fairlead
from fairlead.errors import TransactionAborted
from fairlead.testing import Server
from tests.processes.durable.hurting import MM, WHOLE_S, killing, whole
from tests.processes.durable.steps import drained
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=2, **NEVER_FROZEN) as one_server:
        yield one_server


@pytest.mark.requirement("CLU-123", "CLU-127", "CLU-155", state="scaled", note="kills during some seconds; one group")
async def test_what_is_said_of_a_commit_is_true(server: Server, name: str) -> None:
    """Kills all the while: each transaction is there once in both queues or in none, as its client was told."""
    left, right = f"{name}.l", f"{name}.r"
    await whole(server)
    async with fairlead.connect(server.url) as boss:
        for each in (left, right):
            await boss.queue(each).send("first")
            await drained(boss.queue(each), 1)
        told: dict[str, str] = {}

        async def work(number: int, until_s: float) -> None:
            count = committed = 0
            async with fairlead.connect(server.url, name=f"w{number}") as connection:
                while time.monotonic() < until_s or committed < 6:
                    body = f"{number} {count}"
                    count += 1
                    try:
                        async with connection.transaction() as transaction:
                            await transaction.send(left, body)
                            await transaction.send(right, body)
                        told[body] = "committed"
                        committed += 1
                    except TransactionAborted as error:
                        told[body] = "rolled back" if error.retryable else "unknown"

        async with killing(server, MM, "manager") as kills:
            until_s = time.monotonic() + 3
            await asyncio.wait_for(asyncio.gather(*(work(number, until_s) for number in range(4))), WHOLE_S)
        assert sum(kills.values()) >= 2
        assert Counter(told.values())["unknown"] == 0
        wanted = Counter(body for body, outcome in told.items() if outcome == "committed")
        assert len(wanted) > 20
        for each in (left, right):
            assert Counter(m.text() for m in await drained(boss.queue(each), len(wanted))) == wanted


@pytest.mark.requirement("CLU-123", "CLU-155", state="scaled", note="some kills of each kind")
async def test_coins_moved_while_managers_are_killed(server: Server, name: str) -> None:
    chance = Random(9)
    queues = [f"{name}.{number}" for number in range(3)]
    await whole(server)
    async with fairlead.connect(server.url) as boss:
        for each in queues:
            await boss.queue(each, parameters={"delivery_limit": 0}).send_many([f"{each} {n}" for n in range(20)])
        moved = 0

        async def work(number: int, until_s: float) -> None:
            nonlocal moved
            async with fairlead.connect(server.url, name=f"m{number}") as connection:

                async def move(transaction: fairlead.Transaction) -> bool:
                    source, target = chance.sample(queues, 2)
                    coin = await transaction.receive(source, timeout=0.5)
                    if coin is None:
                        return False
                    await transaction.send(target, coin.body)
                    return True

                while time.monotonic() < until_s:
                    moved += await connection.run_transaction(move, attempts=100)

        async with killing(server, "manager", MM, pause_s=0.4):
            until_s = time.monotonic() + 3
            await asyncio.wait_for(asyncio.gather(*(work(number, until_s) for number in range(3))), WHOLE_S)
        assert moved > 10
        found: Counter[str] = Counter()
        for each in queues:
            found.update([message.text() for message in await drained(boss.queue(each))])
        assert found == Counter(f"{each} {number}" for each in queues for number in range(20))
