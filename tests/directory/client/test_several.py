"""One client and several directory servers, real ones: the same everywhere, and nobody notices when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead.directory import DirectoryClient, open_directory
from fairlead.directory.rows import Broker
from fairlead.errors import NoDirectory
from fairlead.testing.directory import DirectorySet

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def three() -> Iterator[DirectorySet]:
    settings: dict[str, Any] = {"directory.lease_s": 600}
    with DirectorySet(servers=3, **settings) as found:
        found.wait_serving()
        yield found


async def put(directory: DirectoryClient, *names: str, cluster: str) -> None:
    for name in names:
        await directory.put_broker(Broker(name=name, ip="127.0.0.1", port=7400, identity=f"id-{name}"))
        await directory.join_cluster(cluster, name)


def in_use(three: DirectorySet, directory: DirectoryClient) -> str:
    """Name of the server that is asked first."""
    return next(name for name in three.names if three.url_of(name) == directory.server)


@pytest.mark.requirement("DIR-11", state="half", note="at all servers; what clients keep is shown with placing")
@pytest.mark.requirement("DIR-35", state="half", note="reads and changes at each server; no brokers here")
async def test_every_server_tells_the_same_order(three: DirectorySet) -> None:
    first, second, third = (open_directory(url) for url in three.urls)
    async with first, second, third:
        await put(first, "C", "A", cluster="order")
        await put(second, "B", cluster="order")
        await third.put_broker(Broker(name="D", ip="127.0.0.1", port=7400, identity="id-D"))
        await third.join_cluster("order", "D", position=1)
        told = [await directory.get_cluster("order") for directory in (first, second, third)]
        assert [[broker.name for broker in view.brokers] for view in told] == [["C", "D", "A", "B"]] * 3
        assert len({view.revision for view in told}) == 1


@pytest.mark.requirement("DIR-37")
async def test_a_server_is_killed_in_the_middle_and_no_request_fails(three: DirectorySet) -> None:
    async with AsyncExitStack() as stack:
        directory = await stack.enter_async_context(open_directory(three.url, deadline_s=100))
        await put(directory, "A", "B", "C", cluster="killed")
        victim = in_use(three, directory)
        faithful = await stack.enter_async_context(open_directory(three.url_of(victim), deadline_s=100))
        await faithful.list_brokers()
        done: list[str] = []

        async def requests(number: int) -> None:
            for _ in range(40):
                picked = await directory.pick_broker(app=f"app-{number}", cluster="killed")
                await directory.report_failure(
                    app=f"app-{number}",
                    broker=picked.broker.name,
                    client=f"client/{number}",
                    reason="only a test",
                    reservation=picked.reservation,
                )
                done.append(picked.broker.name)

        async def kill() -> None:
            while len(done) < 30 and not requesting.done():
                await asyncio.sleep(0.005)
            await asyncio.to_thread(three.kill, victim)

        requesting = asyncio.gather(*(requests(number) for number in range(4)))
        await kill()
        try:
            await requesting
            assert len(done) == 160
            assert directory.server != three.url_of(victim)
            servers = {one["url"]: one for one in directory.facts()["servers"]}
            assert servers[three.url_of(victim)]["failures"] > 0
        finally:
            waiting = asyncio.create_task(faithful.totals("app-1"))
            await asyncio.to_thread(three.start, victim)
            await asyncio.to_thread(three.wait_serving)
        assert (await waiting).total == 0, "a server that comes back is found again by who knows only that one"


@pytest.mark.requirement("DIR-37", state="half", note="a server that is silent, not gone")
async def test_a_server_that_falls_silent_is_left_for_the_next(three: DirectorySet) -> None:
    async with open_directory(three.url, timeout_s=1, deadline_s=90) as directory:
        await put(directory, "A", cluster="silent")
        victim = in_use(three, directory)
        three.pause(victim)
        try:
            for number in range(5):
                await directory.set_cluster("silent", rule="least_connections" if number % 2 else "rotation")
                assert [broker.name for broker in (await directory.get_cluster("silent")).brokers] == ["A"]
            assert directory.server != three.url_of(victim)
            reasons = {one["url"]: one["reason"] for one in directory.facts()["servers"]}
            assert reasons[three.url_of(victim)].startswith("no answer within")
        finally:
            three.resume(victim)
            await asyncio.to_thread(three.wait_serving)


@pytest.mark.requirement(
    "DIR-38", state="half", note="what a client sees; the tables after healing are compared elsewhere"
)
async def test_a_server_that_is_cut_off_is_stale_alone_and_left_for_others(three: DirectorySet) -> None:
    lone = three.names[2]
    async with open_directory(three.url_of(lone), deadline_s=60) as alone:
        await put(alone, "A", cluster="cut")
        for _ in range(3):  # so that every server has heard that what came before is safe
            await alone.set_cluster("cut", rule="least_connections")
            await alone.set_cluster("cut", rule="default")
        three.cut(lone)
        try:
            while not (view := await alone.get_cluster("cut")).stale:
                await asyncio.sleep(0.05)
            assert [broker.name for broker in view.brokers] == ["A"], "old is better than nothing"
            with pytest.raises(NoDirectory, match="directory unreachable"):
                await alone.join_cluster("cut-2", "A", timeout=1)
            async with open_directory([three.url_of(lone), *three.urls[:2]], deadline_s=60) as everywhere:
                await everywhere.join_cluster("cut-2", "A")
                while (await everywhere.get_cluster("cut")).stale:
                    await asyncio.sleep(0.05)
                assert everywhere.server != three.url_of(lone)
        finally:
            three.heal()
        while (view := await alone.get_cluster("cut")).stale:
            await asyncio.sleep(0.05)
        assert [broker.name for broker in (await alone.get_cluster("cut-2")).brokers] == ["A"]
