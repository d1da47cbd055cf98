"""Small steps the stories about queues and topics are made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import fairlead
from fairlead.testing import Server

PATIENCE_S = 15.0
SOON_S = 0.3
"""Long enough to see that nothing comes."""


async def take(consumer: Any, count: int) -> list[Any]:
    """So many messages, acknowledged for certain."""
    found: list[Any] = []
    while len(found) < count:
        batch = await consumer.receive_many(count - len(found), timeout=PATIENCE_S)
        assert batch, f"only {len(found)} of {count} came"
        await consumer.ack_many(batch, confirm=True)
        found += batch
    return found


async def texts(consumer: Any, count: int) -> list[str]:
    return [message.text() for message in await take(consumer, count)]


async def one(consumer: Any) -> Any:
    """The next message, not settled."""
    message = await consumer.receive(timeout=PATIENCE_S)
    assert message is not None, "nothing came"
    return message


async def is_silent(consumer: Any) -> bool:
    return await consumer.receive(timeout=SOON_S) is None


async def drained(queue: Any, count: int = 0) -> list[Any]:
    """At least `count` messages, and whatever else there is; acknowledged."""
    async with queue.consume(prefetch=1000) as consumer:
        found = await take(consumer, count)
        while batch := await consumer.receive_many(1000, timeout=SOON_S):
            await consumer.ack_many(batch, confirm=True)
            found += batch
    return found


async def facts(connection: Any, name: str) -> dict[str, Any]:
    """The figures administration has of a destination."""
    found: dict[str, Any] = await connection.admin.execute("destination", destination=name)
    return found


async def depth(connection: Any, name: str) -> int:
    found: int = (await facts(connection, name))["depth"]
    return found


async def becomes(condition: Callable[[], Awaitable[Any]], timeout_s: float = PATIENCE_S) -> None:
    """Ask again until it is so."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not await condition():
        assert loop.time() < deadline_s, "it did not come about in time"
        await asyncio.sleep(0.02)


def cut(connection: Any) -> None:
    """The line breaks without a word."""
    line = connection._carrier._line
    if line is not None:
        line.transport.abort()


@asynccontextmanager
async def doomed(server: Server, client: str = "doomed", **options: Any) -> AsyncIterator[fairlead.Connection]:
    """A connection of a program that will be killed: it does not come back, and nothing of it is said at its end."""
    connection = await fairlead.connect(server.url, name=client, reconnect=False, **options)
    try:
        yield connection
    finally:
        cut(connection)
        await connection.close()
