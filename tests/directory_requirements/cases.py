"""The acceptance cases of the specification (section 4) as stories; which processes there are is their caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.errors import NoDirectory
from fairlead.testing.directory_world import SCHEME, View
from tests.directory_requirements.tools import Stage, evenness, picks, spread

CASE_1 = "ABCAABCAB"
CASE_2 = "ABCABCABC"


async def nine(stage: Stage, app: str, scheme: str = SCHEME, **options: Any) -> list[Any]:
    """Four requests of client 1, then five of client 2; each row is there before the next request."""
    one, two = stage.client(1, **options), stage.client(2, **options)
    one.scheme = two.scheme = scheme
    opened = []
    for client in (one, one, one, one, two, two, two, two, two):
        opened.append(await client.open(app))
        await stage.world.labelled(app, len(opened))
    return opened


async def are(world: View, app: str, brokers: str) -> None:
    """The rows are AX-1, AX-2 … at these brokers."""
    rows = [(row.label, row.broker) for row in await world.rows(app)]
    assert rows == [(f"{app}-{n}", at) for n, at in enumerate(brokers, 1)]


async def case_1(world: View, stage: Stage, app: str) -> None:
    before = await picks(world)
    opened = await nine(stage, app, placement="decentralised")
    await are(world, app, CASE_1)
    assert [connection.broker for connection in opened] == list(CASE_1)
    assert [await connection.labelled() for connection in opened] == [f"{app}-{n}" for n in range(1, 10)]
    async with world.open() as directory:
        totals = await directory.totals(app=app, cluster="cluster-A")
    assert (totals.total, dict(totals.brokers)) == (9, {"A": 4, "B": 3, "C": 2})
    assert await picks(world) == before


async def case_2(world: View, stage: Stage, app: str, scheme: str = SCHEME) -> None:
    before = await picks(world)
    await nine(stage, app, placement="centralised", scheme=scheme)
    await are(world, app, CASE_2)
    assert await picks(world) == before + 9


async def case_3(world: View, stage: Stage, app: str) -> None:
    """B refuses connections already."""
    opened = await nine(stage, app, placement="centralised")
    rows = await world.labelled(app, 9)
    assert sorted(spread(rows).items()) in ([("A", 4), ("C", 5)], [("A", 5), ("C", 4)])
    assert evenness(opened, "AC") == 1
    assert [row.label for row in rows] == [f"{app}-{n}" for n in range(1, 10)]


async def case_4(world: View, stage: Stage, app: str) -> None:
    slow, fast = await stage.client(1).open(f"{app}.AZ", "only-C"), await stage.client(2).open(f"{app}.AY", "only-B")
    opened = await nine(stage, app, placement="decentralised", mode="synchronous")
    first, second = opened[0], opened[1]
    assert (slow.broker, fast.broker, first.broker, second.broker) == ("C", "B", "A", "B")
    async with slow.application() as at_slow, fast.application() as at_fast:
        one = asyncio.create_task(first.call(f"{app}.AZ", b"to AZ", timeout=60))
        asked = await at_slow.receive(40)
        two = asyncio.create_task(second.call(f"{app}.AY", b"to AY", timeout=60))
        heard = await at_fast.receive(40)
        await heard.answer(b"from AY")
        assert (await two).body == b"from AY"
        assert not one.done()
        await asked.answer(b"from AZ")
        assert (await one).body == b"from AZ"
        assert (bytes(asked.body), asked.sender, asked.label) == (b"to AZ", app, f"{app}-1")
        assert (bytes(heard.body), heard.sender, heard.label) == (b"to AY", app, f"{app}-2")


Act = Callable[[], Awaitable[Any]]


async def case_5(world: View, stage: Stage, app: str, stop: Act, start: Act) -> None:
    """`stop` and `start` are for all directory servers."""
    away = await stage.client(1).open(f"{app}.AZ", "only-C")
    opened = await nine(stage, app, placement="decentralised")
    fixed = stage.client(3, placement="centralised", connect_timeout_s=20, directory_timeout_s=2)
    await (await fixed.open(f"{app}.fixed")).labelled()
    async with away.application() as inbox:
        await opened[0].send_to(f"{app}.AZ", b"looked up")
        await (await inbox.receive(40)).ack()
        await stop()
        try:
            more = [await stage.client(1, placement="decentralised").open(app) for _ in range(3)]
            assert sorted(connection.broker for connection in more) == ["A", "B", "C"]
            with pytest.raises(NoDirectory, match="directory unreachable"):
                await fixed.open(f"{app}.fixed")
            await opened[0].send_to(f"{app}.AZ", b"goes on")
            message = await inbox.receive(40)
            assert bytes(message.body) == b"goes on"
            await message.ack()
        finally:
            await start()
        rows = await world.labelled(app, 12)
        assert [row.label for row in rows] == [f"{app}-{n}" for n in range(1, 13)]
        assert [row.broker for row in rows[:9]] == list(CASE_1)
