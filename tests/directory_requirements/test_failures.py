"""What goes on when brokers and directory servers are lost, cut off and come back; three directory servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fairlead.errors import NoDirectory
from fairlead.testing.directory_world import World
from tests.directory_requirements.tools import Stage, evenness, off, spread

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(300)]

LEASE_S = 3.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three directory servers with short leases, so that a broker's loss need not be waited for long."""
    with World("ABC", servers=3, directory={"directory.lease_s": LEASE_S}) as made:
        yield made


async def all_available(world: World, count: int = 3) -> bool:
    async with world.open() as directory:
        return sum(row.available for row in (await directory.list_brokers()).brokers) == count


@pytest.mark.requirement("DIR-22")
@pytest.mark.requirement("DIR-66")
@pytest.mark.requirement("DIR-52", state="half", note="100 connections of 5 clients are in another test")
async def test_a_broker_is_lost_under_its_connections(world: World, stage: Stage, app: str) -> None:
    client = stage.client(1, placement="centralised", reconnect=True)
    opened = [await client.open(app) for _ in range(9)]
    before = await world.labelled(app, 9)
    assert spread(before) == {"A": 3, "B": 3, "C": 3}
    await off(world.kill, "B")

    async def replaced() -> tuple[Any, ...] | None:
        rows = await world.rows(app)
        return rows if len(rows) == 9 and "B" not in spread(rows) else None

    rows = await world.until(replaced, "nine rows, none of them at B")
    old = {row.label for row in before}
    assert sorted(row.label for row in rows if row.label not in old) == [f"{app}-{n}" for n in (10, 11, 12)]
    assert {row.label for row in rows if row.label in old} == {row.label for row in before if row.broker != "B"}
    assert evenness(rows, "AC") <= 1
    assert {connection.broker for connection in opened} == {"A", "C"}
    async with world.open() as directory:
        await world.until(lambda: all_available(world, 2), "B is not available")
        picked = [await directory.pick_broker(app=f"{app}.x", cluster="cluster-A") for _ in range(6)]
        assert {one.broker.name for one in picked} == {"A", "C"}
    await off(world.start_again, "B")
    await world.until(lambda: all_available(world), "B is available")
    async with world.open() as directory:
        picked = [await directory.pick_broker(app=f"{app}.y", cluster="cluster-A") for _ in range(3)]
        assert {one.broker.name for one in picked} == {"A", "B", "C"}
        row = next(one for one in (await directory.list_brokers()).brokers if one.name == "B")
        assert row.port == world.brokers["B"].port


@pytest.mark.long  # a shorter one is among the tests of the directory client
@pytest.mark.requirement("DIR-37")
@pytest.mark.requirement("DIR-49", state="half", note="nine requests are in other tests")
async def test_a_directory_server_is_lost_in_a_run_of_requests(world: World, stage: Stage, app: str) -> None:
    assert world.directories is not None
    clients = [stage.client(n, placement="centralised") for n in (1, 2, 3)]
    for client in clients:
        client.anywhere = True

    async def run(client: Any) -> None:
        for _ in range(10):
            await client.open(app)
            await asyncio.sleep(0.05)

    running = asyncio.gather(*(run(client) for client in clients))
    await world.until(lambda: enough(world, app, 6), "a few are open")
    lost = world.directories.names[0]
    await off(world.directories.kill, lost)
    await running
    try:
        rows = await world.labelled(app, 30)
        assert [row.label for row in rows] == [f"{app}-{n}" for n in range(1, 31)]
        assert spread(rows) == {"A": 10, "B": 10, "C": 10}
    finally:
        await off(world.directories.start, lost)
    await world.until(lambda: same_everywhere(world), "all servers have the same tables")


async def enough(world: World, app: str, count: int) -> bool:
    return len(await world.rows(app)) >= count


async def same_everywhere(world: World) -> bool:
    first, *others = [await world.tables(server) for server in (1, 2, 3)]
    return all(one == first for one in others)


@pytest.mark.long  # a shorter one is among the tests of the servers
@pytest.mark.requirement("DIR-38")
@pytest.mark.requirement("DIR-39", state="half", note="it was cut off, not stopped")
async def test_a_server_that_is_cut_off_is_stale_and_catches_up(world: World, stage: Stage, app: str) -> None:
    assert world.directories is not None
    await (await stage.client(1).open(app)).labelled()
    world.directories.cut(world.directories.names[2])
    try:
        async with world.open(3) as lonely:

            async def stale() -> bool:
                return bool((await lonely.list_brokers(timeout=3)).stale)

            await world.until(stale, "reads at the lonely server are stale")
            with pytest.raises(NoDirectory):
                await lonely.join_cluster(cluster=app, broker="A", timeout=2)
            with pytest.raises(NoDirectory):
                await lonely.pick_broker(app=app, cluster="cluster-A", timeout=2)
        async with world.open(1) as directory:

            async def changed() -> bool:
                await directory.join_cluster(cluster=f"{app}.new", broker="A")
                return True

            await world.until(changed, "the other two go on")
            for n in range(20):
                await directory.join_cluster(cluster=f"{app}.{n}", broker="B")
        await (await stage.client(2).open(app)).labelled(40)
    finally:
        world.directories.heal()
    made = {f"{app}.{n}" for n in range(20)}
    async with world.open(3) as healed:

        async def current() -> bool:
            found = await healed.list_clusters()
            assert found.stale or made <= {one.name for one in found.clusters}, "it is current, and has not caught up"
            return not found.stale

        await world.until(current, "it answers as current again")
    await world.until(lambda: same_everywhere(world), "all servers have the same tables")


@pytest.mark.requirement("DIR-21")
async def test_all_directory_servers_lose_power(world: World, stage: Stage, app: str) -> None:
    assert world.directories is not None
    client = stage.client(1, placement="decentralised")
    await (await client.open(f"{app}.AZ", "only-C", kind="static")).labelled()
    opened = [await client.open(app) for _ in range(5)]
    before = await world.labelled(app, 5)
    clusters = (await world.tables())[1]
    await off(world.directories.kill)
    opened += [await client.open(app) for _ in range(2)]
    await off(partial(world.directories.start, "d1", wait=False))
    async with world.open(1) as alone:

        async def stale() -> Any:
            return await alone.get_cluster(cluster="cluster-A", timeout=3)

        view = await world.until(stale, "the one that is back can be read")
        assert (view.stale, [row.name for row in view.brokers]) == (True, ["A", "B", "C"])
    await off(world.directories.start)

    async def answered() -> Any:
        return await world.tables()

    brokers, again, _ = await world.until(answered, "the directory answers")
    assert [row.name for row in brokers] == ["A", "B", "C"]
    assert again == clusters
    rows = await world.labelled(app, 7)
    assert rows[:5] == before
    assert [row.label for row in rows] == [f"{app}-{n}" for n in range(1, 8)]
    assert [await connection.labelled() for connection in opened[:5]] == [row.label for row in before]


@pytest.mark.requirement("DIR-59", state="half", note="an own broker that stands still, not a fake one")
async def test_a_broker_that_stands_still_is_passed_over(world: World, stage: Stage, app: str) -> None:
    client = stage.client(1, placement="decentralised", attempt_timeout_s=1.0)
    await stage.leave(await client.open(f"{app}.warm"))
    await off(world.freeze, "A")
    try:
        connection = await client.open(app)
        assert connection.broker == "B"
    finally:
        await off(world.thaw, "A")
    await world.until(lambda: all_available(world), "A is available")
