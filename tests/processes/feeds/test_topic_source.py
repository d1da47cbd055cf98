"""Topics of a real server as sources of a feed: stored ones by their order numbers, plain ones by a header."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.feeds.sources.events import SourceDown, SourceGap, SourceTrouble, SourceUp
from fairlead.testing.server import Server
from tests.feeds.sources.listening import listening


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=1) as one:
        yield one


def table(server: Server, topic: str, **more: Any) -> dict[str, Any]:
    return {"kind": "topic", "id": "t", "topic": topic, "server": server.url} | more


def test_two_adapters_read_the_same_numbers_of_a_stored_topic(server: Server) -> None:
    async def scene() -> None:
        async with fairlead.connect(server.url) as connection:
            topic = connection.topic("stored.prices", parameters={"retain_messages": -1})
            for n in range(50):
                await topic.send(b"%d" % n)
            async with listening(table(server, "stored.prices", start="first")) as one:
                await one.until(lambda: len(one.bodies.get("t", ())) >= 50)
                async with listening(table(server, "stored.prices", start="first")) as two:
                    for n in range(50, 100):
                        await topic.send(b"%d" % n)
                    for ear in (one, two):
                        await ear.until(lambda ear=ear: len(ear.bodies.get("t", ())) >= 100)  # type: ignore[misc]
                    assert one.bodies["t"] == two.bodies["t"] == [b"%d" % n for n in range(100)]
                    assert one.heard == two.heard
                    assert one.heard["t"] == sorted(set(one.heard["t"]))
                    assert one.of(SourceUp)
            middle = one.heard["t"][60]
            async with listening(table(server, "stored.prices", start=middle)) as ear:
                await ear.until(lambda: len(ear.bodies.get("t", ())) >= 40)
                assert ear.heard["t"] == one.heard["t"][60:]

    asyncio.run(scene())


def test_a_plain_topic_is_numbered_by_a_header(server: Server) -> None:
    async def scene() -> None:
        async with fairlead.connect(server.url) as connection:

            async def send(number: int, day: str = "one") -> None:
                await connection.publish("plain.prices", b"%d" % number, headers={"n": str(number), "day": day})

            async with listening(
                table(server, "plain.prices", start="first", sequence_header="n", session_header="day")
            ) as ear:
                await ear.until(lambda: bool(ear.of(SourceUp)))
                await connection.publish("plain.prices", b"no number")
                for number in (1, 2, 3, 3, 2, 7, 8):
                    await send(number)
                await ear.until(lambda: ear.heard.get("t:one") == [1, 2, 3, -4, -5, -6, 7, 8])
                assert ear.of(SourceGap) == [SourceGap("t:one", 4, 6)]
                for number in range(1, 6):
                    await send(number, "two")
                await ear.until(lambda: ear.heard.get("t:two") == [1, 2, 3, 4, 5])
                assert ear.declared["t:two"] == ("successor t:one",)
                await ear.until(lambda: bool(ear.of(SourceTrouble)))

    asyncio.run(scene())


def test_a_server_that_is_not_there_is_told_once() -> None:
    async def scene() -> None:
        async with listening({"kind": "topic", "id": "t", "topic": "x", "server": "fairlead://127.0.0.1:1"}) as ear:
            await ear.until(lambda: bool(ear.of(SourceDown)))
            assert not ear.of(SourceUp)

    asyncio.run(scene())
