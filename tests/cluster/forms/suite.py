"""What every form and carrier of a cluster must do for clients, in a few seconds (CLU-46)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.testing.cluster import Cluster

QUEUES = [f"flow-{number}" for number in range(8)]
"""Enough that both groups have some."""
COUNT = 30
LIMIT_S = 90


async def connections(stack: AsyncExitStack, cluster: Cluster) -> list[Connection]:
    """One at each client manager."""
    return [
        await stack.enter_async_context(fairlead.connect(url, name=f"at-{number}"))
        for number, url in enumerate(cluster.urls())
    ]


async def queues_by_group(connection: Connection) -> dict[str, str]:
    """One queue of each group, empty."""
    found: dict[str, str] = {}
    for name in QUEUES:
        await connection.queue(name).send(b"made")
        async with connection.queue(name).consume() as consumer:
            body = b""
            while body != b"made":  # behind whatever was left in it
                message = await consumer.receive(timeout=10)
                assert message is not None
                body = message.body
                await message.ack(confirm=True)
        found.setdefault(str(connection.courier.road.places.get(name)), name)
        if len(found) == 2:
            break
    return found


async def send_numbers(connection: Connection, queue: str, count: int = COUNT) -> None:
    for number in range(count):
        await connection.queue(queue).send(b"%d" % number)


async def taken(connection: Connection, queue: str, count: int = COUNT) -> list[int]:
    """What comes until there are so many, and a moment longer."""
    got: list[int] = []
    async with connection.queue(queue).consume() as consumer:
        while message := await consumer.receive(timeout=10 if len(got) < count else 0.2):
            got.append(int(message.body))
            await message.ack(confirm=True)
    return got


def check_all(cluster: Cluster, group: str = "b") -> None:
    """Queues, topics, a transaction across groups; then the primary of `group` is killed under load."""
    run(_check_all(cluster, group))


def run(story: object) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await story  # type: ignore[misc]

    asyncio.run(limited())


async def _check_all(cluster: Cluster, group: str) -> None:
    async with AsyncExitStack() as stack:
        first, *_, last = await connections(stack, cluster)
        queues = await queues_by_group(first)
        assert sorted(queues) == cluster.local.groups()
        for queue in queues.values():
            await send_numbers(first, queue)
            assert await taken(last, queue) == list(range(COUNT)), "sent at one client manager, taken at the other"
        await check_pattern(first, last)
        await check_transactions(first, last, list(queues.values()))
        await check_failover(cluster, first, last, group, queues[group])


async def check_pattern(first: Connection, last: Connection) -> None:
    """Durable and transient topics, made after their pattern was asked for at the other end (CLU-50)."""
    topics = {f"news.{number}": b"%d" % number for number in range(8)}
    async with last.topic("news.*").subscribe("reader") as kept:
        for name, body in topics.items():
            await first.topic(name).send(body)
        got: dict[str, bytes] = {}
        while len(got) < len(topics) and (message := await kept.receive(timeout=10)):
            got[message.destination] = message.body
            await message.ack(confirm=True)
        assert got == topics
        places = first.courier.road.places
        assert len({places.get(name) for name in topics}) == 2, "topics of both groups"
    await last.topic("news.*").unsubscribe("reader")


async def check_transactions(first: Connection, last: Connection, queues: list[str]) -> None:
    for number in range(20):
        async with first.transaction() as transaction:
            for queue in queues:
                await transaction.send(queue, b"%d" % number)
    for queue in queues:
        assert await taken(last, queue, 20) == list(range(20)), "each transaction once, in every group"


async def check_failover(cluster: Cluster, first: Connection, last: Connection, group: str, queue: str) -> None:
    events: list[str] = []
    for connection in (first, last):
        connection.on_event(lambda event: events.append(event.name))
    victim = cluster.primary(group)
    sending = asyncio.ensure_future(send_numbers(first, queue, 80))
    await asyncio.to_thread(cluster.kill, victim)
    await sending
    assert await taken(last, queue, 80) == list(range(80))
    assert not events, "the connections themselves were never lost"
    await asyncio.to_thread(cluster.start, victim)
    await asyncio.to_thread(cluster.wait_in_sync, group, 2)
