"""The client library before a real cluster of processes: primaries and client managers are killed under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.testing.cluster import Cluster

NAMES = [f"flow-{number}" for number in range(8)]
"""Enough that both groups have some."""
LIMIT_S = 60

pytestmark = [pytest.mark.processes, pytest.mark.nodes]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cms=2, groups=2, backups=1) as made:
        yield made


def play(cluster: Cluster, story: Callable[[Connection], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), fairlead.connect(cluster.url, name="test") as connection:
            await story(connection)

    asyncio.run(main())


async def names_by_group(connection: Connection) -> dict[str, list[str]]:
    """The queues, made, by the group that has them."""
    found: dict[str, list[str]] = {}
    for name in NAMES:
        await connection.queue(name).send(b"made")
        async with connection.queue(name).consume() as consumer:
            while message := await consumer.receive(timeout=0.2):
                await message.ack(confirm=True)
        found.setdefault(str(connection.courier.road.places.get(name)), []).append(name)
    assert sorted(found) == ["a", "b"]
    return found


async def sending(connection: Connection, name: str, count: int) -> None:
    for number in range(count):
        await connection.queue(name).send(b"%d" % number)


async def taken(connection: Connection, name: str) -> list[int]:
    got: list[int] = []
    async with connection.queue(name).consume() as consumer:
        while message := await consumer.receive(timeout=1):
            got.append(int(message.body))
            message.ack()
    return got


@pytest.mark.requirement("CLU-142", "CLU-117")
@pytest.mark.requirement("CLU-41", state="half", note="clients name destinations only; nothing changes for them")
def test_a_killed_primary_is_a_delay_for_its_group(cluster: Cluster) -> None:
    async def story(connection: Connection) -> None:
        events: list[str] = []
        connection.on_event(lambda event: events.append(event.name))
        names = [group[0] for group in (await names_by_group(connection)).values()]
        work = [asyncio.ensure_future(sending(connection, name, 150)) for name in names]
        await asyncio.sleep(0.2)
        victim = cluster.primary("b")
        await asyncio.to_thread(cluster.kill, victim)
        await asyncio.gather(*work)
        for name in names:
            assert await taken(connection, name) == list(range(150))
        assert not events, "the connection itself was never lost"
        await asyncio.to_thread(cluster.start, victim)

    play(cluster, story)


@pytest.mark.requirement("CLU-121", "CLU-123", "CLU-127", "CLU-155", state="scaled", note="40 commits, one kill")
def test_a_killed_client_manager_is_left_for_the_other(cluster: Cluster) -> None:
    async def story(connection: Connection) -> None:
        names = [group[-1] for group in (await names_by_group(connection)).values()]
        moved = asyncio.Event()
        connection.on_event(lambda event: moved.set() if event.name == "reconnected" else None)

        async def both(number: int) -> None:
            async def work(transaction: fairlead.Transaction) -> None:
                for name in names:
                    await transaction.send(name, b"%d" % number)

            await connection.run_transaction(work)

        async def all_of_them() -> None:
            for number in range(40):
                await both(number)

        work = asyncio.ensure_future(all_of_them())
        await asyncio.sleep(0.2)
        for node in ("cm1", "cm2"):  # whichever we are at
            await asyncio.to_thread(cluster.kill, node)
            if await _set(moved, 3):
                await work
                await asyncio.to_thread(cluster.start, node)
                break
            await asyncio.to_thread(cluster.start, node)
        for name in names:
            assert await taken(connection, name) == list(range(40)), "each transaction once, in both groups"

    play(cluster, story)


async def _set(event: asyncio.Event, timeout: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except TimeoutError:
        return False
    return True


@pytest.mark.requirement("CLU-171", "CLU-173")
def test_a_pattern_sees_the_topics_of_both_groups(cluster: Cluster) -> None:
    async def story(connection: Connection) -> None:
        async with connection.topic("news.*").subscribe("reader") as news:
            sent = {f"news.{number}": b"%d" % number for number in range(8)}
            for name, body in sent.items():
                await connection.topic(name).send(body)
            got: dict[str, bytes] = {}
            while len(got) < len(sent) and (message := await news.receive(timeout=5)):
                got[message.destination] = message.body
                await message.ack(confirm=True)
            assert got == sent
            groups = {connection.courier.road.places.get(name) for name in sent}
            assert groups == {"a", "b"}
        await connection.topic("news.*").unsubscribe("reader")

    play(cluster, story)
