"""The stream to a topic of a server as well, while this adapter is active, for whoever reads plain messages.

At most once: what was not published when the active adapter changes is not published later, and what the server or this
output could not keep up with is left out and counted. `connection.stream()` is the way without loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from fairlead.client.aio import Connection
from fairlead.errors import FairleadError
from fairlead.feeds.adapter.retained import Read
from fairlead.feeds.block_codec import Block
from fairlead.feeds.records import ADMIN, MESSAGE, Record

__all__ = ["TopicOutput", "identity"]

log = logging.getLogger("fairlead.feeds.output")

READ_BYTES: Final = 256 << 10
RETRY_S: Final = 1.0


class Readable(Protocol):
    """Where blocks are read from."""

    def read(self, cursor: int, max_bytes: int) -> Read: ...


class TopicOutput:
    """A reader of the retained buffer like any line, which publishes what it reads."""

    def __init__(self, dial: Callable[[], Connection], topic: str, stream: str, readable: Readable) -> None:
        self._dial = dial
        self._topic = topic
        self._stream = stream
        self._readable = readable
        self._cursor: int | None = None
        self._news = asyncio.Event()
        self._told = ""
        self.counters = {"topic_published": 0, "topic_missed": 0}

    def begin(self, cursor: int) -> None:
        """This adapter is active from here on."""
        if self._cursor is None:
            self._cursor = cursor
            self._news.set()

    def stop(self) -> None:
        self._cursor = None

    def wake(self) -> None:
        if self._cursor is not None:
            self._news.set()

    async def run(self) -> None:
        """Until it is cancelled; the server may come and go."""
        while True:
            try:
                async with self._dial() as connection:
                    self._told = ""
                    await self._publish_all(connection)
            except (FairleadError, OSError) as error:
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning("nothing is published to %s for now: %s", self._topic, error)
            await asyncio.sleep(RETRY_S)

    async def _publish_all(self, connection: Connection) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._cursor is not None:
                found = self._readable.read(self._cursor, READ_BYTES)
                self._cursor = found.cursor
                if found.missed is not None:
                    self.counters["topic_missed"] += found.missed[1] - found.missed[0] + 1
                if not found.blocks:
                    break
                for data in found.blocks:
                    await self._publish(connection, Block.parse(data))

    async def _publish(self, connection: Connection, block: Block) -> None:
        for index in range(block.count):
            record = block.record(index)
            if record.kind in (MESSAGE, ADMIN):
                await connection.publish(self._topic, record.body, headers=identity(record, self._stream))
                self.counters["topic_published"] += 1


def identity(record: Record, stream: str) -> dict[str, str]:
    """The identity of a record as headers of a message."""
    return {
        "feed-stream": stream,
        "feed-source": record.source,
        "feed-sequence": str(record.sequence),
        "feed-part": f"{record.part}/{record.parts}",
        "feed-previous": str(record.previous),
        "feed-number": str(record.number),
        "feed-kind": "admin" if record.kind == ADMIN else "message",
    }
