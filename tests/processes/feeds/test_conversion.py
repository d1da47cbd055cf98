"""Two adapters as processes convert the same day: equal numbers and content, malformed messages included (STR-11)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

import pytest

from fairlead.feeds import words
from fairlead.feeds.records import MESSAGE, VOID
from fairlead.testing.feed_source import FeedSource
from fairlead.testing.feeds import FeedWorld
from tests.processes.feeds.test_adapter import program

MESSAGES = 100_000
RATE = 25_000.0


@pytest.fixture(scope="module")
def world() -> Iterator[FeedWorld]:
    with FeedSource(seed=5, malformed=100) as source:

        def tables(name: str) -> list[dict[str, object]]:
            return [source.add(name).table(id="exchange")]

        adapter = {"convert.converter": "itch"}
        with FeedWorld("ab", relays=False, source=source, tables=tables, adapter=adapter) as one:  # type: ignore[arg-type]
            yield one


@pytest.mark.requirement("STR-9", half="no client: the lines are read directly")
@pytest.mark.requirement("STR-11")
def test_a_hundred_thousand_messages_give_equal_streams(world: FeedWorld) -> None:
    async def read(one: object, adapter: str) -> tuple[int, dict[int, int], int]:
        """A checksum over numbers and contents, how many records of each kind there are, and the first number."""
        digest, kinds, first, last = 0, {MESSAGE: 0, VOID: 0}, 0, 0
        async with one.line(adapter) as (line, _):  # type: ignore[attr-defined]
            line.say(words.Start(at="oldest"))
            while last < MESSAGES:
                for record in await line.records(1):
                    first = first or record.number
                    digest = zlib.crc32(record.body, zlib.crc32(repr(record._replace(body=b"")).encode(), digest))
                    kinds[record.kind] += 1
                    last = record.sequence
        return digest, kinds, first

    async def work() -> None:
        async with program(world) as one:
            reading = [asyncio.create_task(read(one, name)) for name in (one.active, one.backup)]
            world.source.send(MESSAGES, RATE)
            active, backup = await asyncio.gather(*reading)
            assert active == backup
            assert active[1][VOID] > 800
            assert active[1][MESSAGE] > MESSAGES

    asyncio.run(work())
