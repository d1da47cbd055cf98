"""Which broker a request gets: what the Observe lines of sections 3.1, 3.2 and 3.6 to 3.9 need a whole world for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.rows import Broker, Link
from fairlead.errors import AllBrokersFailed, NoneAvailable, UnknownCluster
from fairlead.testing.directory_world import World
from tests.directory_requirements.tools import Stage, evenness, picks, spread

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


@pytest.mark.requirement("DIR-3")
@pytest.mark.requirement("DIR-10")
async def test_a_request_ends_at_a_broker_of_the_named_cluster(world: World, stage: Stage, app: str) -> None:
    for placement in ("centralised", "decentralised"):
        client = stage.client(1, placement=placement)
        name = f"{app}.{placement}"
        first = [await client.open(name, "cluster-A") for _ in range(6)]
        second = [await client.open(name, "cluster-B") for _ in range(4)]
        assert spread(first) == {"A": 2, "B": 2, "C": 2}
        assert spread(second) == {"A": 2, "D": 2}
    brokers, clusters, _ = await world.tables()
    assert [row.name for row in brokers] == ["A", "B", "C", "D"]
    assert {row.name: row.brokers for row in clusters}["cluster-B"] == ("A", "D")


@pytest.mark.requirement("DIR-2")
async def test_only_the_centralised_heuristic_asks_the_directory(world: World, stage: Stage, app: str) -> None:
    before = await picks(world)
    for number in range(1, 4):
        await stage.client(1, placement="centralised").open(app)
        assert await picks(world) == before + number
    for _ in range(3):
        await stage.client(1, placement="decentralised").open(app)
    assert await picks(world) == before + 3


@pytest.mark.requirement("DIR-4", state="half", note="the error; that nobody is dialled is shown by the machine")
@pytest.mark.parametrize("placement", ["centralised", "decentralised"])
async def test_an_unknown_cluster_is_named_in_the_error(world: World, stage: Stage, app: str, placement: str) -> None:
    client = stage.client(1, placement=placement)
    began_s = time.monotonic()
    with pytest.raises(UnknownCluster, match=f"no-such-{app}"):
        await client.open(app, f"no-such-{app}")
    assert time.monotonic() - began_s < 10  # not the 60 s of a request that is tried again
    async with world.open() as directory:
        await directory.join_cluster(cluster=f"no-such-{app}", broker="D")
        assert (await client.open(app, f"no-such-{app}")).broker == "D"
        await directory.leave_cluster(cluster=f"no-such-{app}", broker="D")


@pytest.mark.requirement("DIR-49", state="scaled", note="5 repetitions")
async def test_nine_at_once_over_two_clients_and_servers(world: World, stage: Stage, app: str) -> None:
    for again in range(5):
        name = f"{app}.{again}"
        wanted = [(name, n) for n in (1, 2) for _ in range(5)][:9] + [(f"{name}.AY", 1), (f"{name}.AZ", 2)] * 3
        random.Random(again).shuffle(wanted)
        await asyncio.gather(*(stage.client(n, placement="centralised").open(one) for one, n in wanted))
        assert spread(await world.labelled(name, 9)) == {"A": 3, "B": 3, "C": 3}
        assert spread(await world.labelled(f"{name}.AY", 3)) == {"A": 1, "B": 1, "C": 1}


@pytest.mark.requirement("DIR-13")
@pytest.mark.requirement("DIR-35")
async def test_labels_have_no_holes_and_both_servers_list_all(world: World, stage: Stage, app: str) -> None:
    one, two = stage.client(1, placement="decentralised"), stage.client(2, placement="decentralised")
    await asyncio.gather(one.open_many(app, 12), two.open_many(app, 12))
    for server in (1, 2):
        rows = await world.labelled(app, 24, server)
        assert [row.label for row in rows] == [f"{app}-{n}" for n in range(1, 25)]


@asynccontextmanager
async def rows_only(world: World, limits: dict[str, int], *clusters: str) -> AsyncIterator[DirectoryClient]:
    """Brokers that are only rows, for picks that are never dialled; all of them in each of the clusters."""
    async with world.open() as directory:
        try:
            for name, limit in limits.items():
                row = Broker(name=name, ip="127.0.0.1", port=9, identity=name, limit=limit)
                await directory.put_broker(broker=row, clusters=clusters)
            yield directory
        finally:
            for name in limits:
                await directory.remove_broker(name=name)


@pytest.mark.requirement("DIR-50", half="connections are reports, not dialled; full by real ones: DIR-65")
async def test_capacity_is_counted_over_all_clusters(world: World, app: str) -> None:
    small, big, one, two = (f"{app}.{word}" for word in ("small", "big", "one", "two"))
    async with rows_only(world, {small: 2, big: 2000}, one, two) as directory:

        async def pick(cluster: str) -> str:
            return (await directory.pick_broker(app=app, cluster=cluster)).broker.name

        held = [await directory.pick_broker(app=app, cluster=cluster) for cluster in (one, two)]
        assert {picked.broker.name for picked in held} == {small}
        for number, picked in enumerate(held):
            link = Link(identity=f"{number:032x}", broker=small)
            await directory.connection_opened(app=app, link=link, reservation=picked.reservation)
        assert {await pick(cluster) for cluster in (one, two) * 3} == {big}
        await directory.connection_closed(app=app, identity=f"{0:032x}", broker=small)
        assert small in [await pick(one) for _ in range(2)]


@pytest.mark.requirement("DIR-51", state="half", note="that it succeeds after 10 s is in a long test")
async def test_picks_that_come_to_nothing_hold_their_place(world: World, app: str) -> None:
    limits = {f"{app}.{letter}": 1 for letter in "abc"}
    async with rows_only(world, limits, app) as directory:
        picked = [await directory.pick_broker(app=app, cluster=app) for _ in range(3)]
        assert {one.broker.name for one in picked} == set(limits)
        with pytest.raises(NoneAvailable):
            await directory.pick_broker(app=app, cluster=app)


@pytest.mark.long
@pytest.mark.requirement("DIR-51")
async def test_a_pick_is_given_back_after_ten_seconds(world: World, app: str) -> None:
    limits = {f"{app}.{letter}": 1 for letter in "abc"}
    async with rows_only(world, limits, app) as directory:

        async def another() -> bool:
            for name in limits:
                await directory.renew(name=name, identity=name)
            await directory.pick_broker(app=app, cluster=app)
            return True

        began_s = time.monotonic()
        for _ in limits:
            await another()
        with pytest.raises(NoneAvailable):
            await another()
        await world.until(another, "a fourth pick")
        assert 9 < time.monotonic() - began_s < 25


@pytest.mark.requirement(
    "DIR-64", state="half", note="the directory's part; a client's own cool-down is shown elsewhere"
)
async def test_two_clients_make_the_directory_skip_a_broker(world: World, app: str) -> None:
    names = [f"{app}.{letter}" for letter in "abc"]
    async with rows_only(world, dict.fromkeys(names, 100), app) as directory:

        async def picked() -> set[str]:
            return {(await directory.pick_broker(app=app, cluster=app)).broker.name for _ in range(6)}

        async def failed(broker: str, client: str) -> None:
            await directory.report_failure(app=app, broker=broker, client=client, reason="refused")

        await failed(names[1], "one")
        await failed(names[1], "one")
        assert await picked() == set(names)
        await failed(names[1], "two")
        assert await picked() == {names[0], names[2]}
        for name in names:
            for client in ("one", "two"):
                await failed(name, client)
        assert await picked() == set(names)  # all of them are suspects, so none is


@pytest.mark.requirement("DIR-52")
async def test_a_hundred_connections_of_five_clients_are_even_at_every_instant(
    world: World, stage: Stage, app: str
) -> None:
    async with world.open() as directory:

        async def counts() -> list[int]:
            """Open and reserved, of all applications."""
            rows = {row.name: row for row in (await directory.list_brokers()).brokers}
            return [rows[name].connections + rows[name].reserved for name in "ABC"]

        async def nobody() -> bool:
            return not any(await counts())

        await world.until(nobody, "nothing is left of other tests")
        clients = [stage.client(n, placement="centralised") for n in range(1, 6)]
        opening = asyncio.gather(*(client.open_many(app, 20) for client in clients))
        seen = []
        while not opening.done() or sum(seen[-1]) < 100:
            seen.append(await counts())
        await opening
    assert sorted(spread(await world.labelled(app, 100)).values()) == [33, 33, 34]
    assert max(max(one) - min(one) for one in seen) <= 1, seen


@pytest.mark.requirement("DIR-53")
@pytest.mark.parametrize("placement", ["centralised", "decentralised"])
async def test_least_connections_repairs_what_closings_left(
    world: World, stage: Stage, app: str, placement: str
) -> None:
    client = stage.client(1, placement=placement, rule="least_connections", refresh_s=0.2)
    opened = [await client.open(app) for _ in range(9)]
    assert evenness(await world.labelled(app, 9)) == 0
    for connection in opened:
        if connection.broker == "C":
            await stage.leave(connection)
    await world.labelled(app, 6)
    for _ in range(3):
        await client.open(app)
    assert spread(await world.labelled(app, 9)) == {"A": 3, "B": 3, "C": 3}


@pytest.mark.requirement("DIR-54")
@pytest.mark.requirement("DIR-57")
async def test_the_heuristic_of_a_cluster_applies_to_the_next_request(world: World, stage: Stage, app: str) -> None:
    async with world.open() as directory:
        await directory.set_cluster(cluster="cluster-A", heuristic="centralised")
        await directory.set_cluster(cluster="cluster-B", heuristic="decentralised")
        client, before = stage.client(1, refresh_s=0.2), await picks(world)
        away = await client.open(f"{app}.AZ", "only-C", placement="decentralised")
        carrying = [await client.open(app) for _ in range(10)]
        assert await picks(world) == before + 10
        carrying += [await client.open(app, "cluster-B") for _ in range(10)]
        assert await picks(world) == before + 10
        async with away.application() as inbox:
            sending = asyncio.gather(*(one.send_to(f"{app}.AZ", str(n)) for n, one in enumerate(carrying)))
            await directory.set_cluster(cluster="cluster-A", heuristic="decentralised")
            await sending
            await world.until(lambda: turned(client, world, app), "a request follows the new rule")
            await asyncio.gather(*(one.send_to(f"{app}.AZ", str(20 + n)) for n, one in enumerate(carrying)))
            got = set()
            for _ in range(40):
                message = await inbox.receive(40)
                got.add(message.text())
                await message.ack()
            assert got == {str(n) for n in range(40)}
        assert [one.broker for one in carrying[:9]] == list("ABCABCABC")
        await directory.set_cluster(cluster="cluster-A", heuristic="default")
        await directory.set_cluster(cluster="cluster-B", heuristic="default")


async def turned(client: Any, world: World, app: str) -> bool:
    before = await picks(world)
    await client.open(f"{app}.more")
    return await picks(world) == before


@pytest.mark.requirement("DIR-60")
@pytest.mark.parametrize("placement", ["centralised", "decentralised"])
async def test_one_request_goes_on_until_a_broker_accepts(world: World, stage: Stage, app: str, placement: str) -> None:
    """Where the first two brokers of the cluster should be, nobody listens."""
    dead = [f"{app}.a", f"{app}.b"]
    async with rows_only(world, dict.fromkeys(dead, 100), app) as directory:
        await directory.join_cluster(cluster=app, broker="C")
        connection = await stage.client(1, placement=placement).open(app, app)
        assert connection.broker == "C"
        attempts = [one for one in connection.directory_status()["attempts"] if one["application"] == app]
        assert [one["broker"] for one in attempts] == [*dead, "C"]
        assert [one["result"] == "accepted" for one in attempts] == [False, False, True]
        assert spread(await world.labelled(app, 1)) == {"C": 1}
        await directory.leave_cluster(cluster=app, broker="C")


@pytest.mark.requirement("DIR-64")
@pytest.mark.parametrize("placement", ["centralised", "decentralised"])
async def test_a_broker_that_failed_is_left_alone_for_a_while(
    world: World, stage: Stage, app: str, placement: str
) -> None:
    dead, client = f"{app}.dead", stage.client(1, placement=placement)
    async with rows_only(world, {dead: 100}, app, f"{app}.only") as directory:
        await directory.join_cluster(cluster=app, broker="C")
        opened = [await client.open(app, app) for _ in range(4)]
        assert spread(opened) == {"C": 4}
        assert opened[-1].directory_status()["attempted"][dead] == 1
        with pytest.raises(AllBrokersFailed, match=dead):
            await client.open(app, f"{app}.only", connect_timeout_s=0.5)
        assert opened[-1].directory_status()["attempted"][dead] > 1  # it is the only one
        await directory.leave_cluster(cluster=app, broker="C")


@pytest.mark.requirement("DIR-19")
async def test_a_broker_and_a_client_look_up_the_same(world: World, stage: Stage, app: str) -> None:
    await (await stage.client(1).open(app, "only-C")).labelled()
    async with world.open(1) as one, world.open(2) as two:
        first, second = await one.lookup_app(app=app), await two.lookup_app(app=app)
    assert first.app == second.app
    assert [(row.name, row.ip, row.port) for row in first.brokers] == [("C", "127.0.0.1", world.brokers["C"].port)]
    assert first.brokers == second.brokers


@pytest.mark.requirement("DIR-46")
async def test_clients_that_begin_at_random_spread(world: World, stage: Stage, app: str) -> None:
    """300 fresh clients with one connection each; case 1 is in another file."""
    limit = asyncio.Semaphore(30)

    async def one(number: int) -> Any:
        async with limit:
            return await stage.client(number, placement="decentralised", start="random").open(app)

    opened = await asyncio.gather(*(one(number) for number in range(1, 301)))
    assert min(spread(opened).get(name, 0) for name in "ABC") >= 60, spread(opened)


@pytest.mark.requirement("DIR-32", state="half", note="joining; leaving is shown elsewhere")
async def test_connections_move_to_brokers_that_joined_when_asked_to(world: World, stage: Stage, app: str) -> None:
    async with world.open() as directory:
        await directory.join_cluster(cluster=app, broker="A")
        opened = [await stage.client(1, placement="centralised").open(app, app) for _ in range(9)]
        assert spread(await world.labelled(app, 9)) == {"A": 9}
        for name in "BC":
            await directory.join_cluster(cluster=app, broker=name)
        assert (await directory.rebalance(cluster=app)).moves == {"A": 6}

        async def even() -> bool:
            return spread(await world.rows(app)) == spread(opened) == {"A": 3, "B": 3, "C": 3}

        await world.until(even, "they have moved")
        for name in "ABC":
            await directory.leave_cluster(cluster=app, broker=name)


async def test_what_comes_and_goes_leaves_nothing_behind(world: World, stage: Stage, app: str) -> None:
    """200 applications, each for a moment: tables and status are as before."""
    names = [f"{app}.{number}" for number in range(200)]
    limit = asyncio.Semaphore(20)

    async def visit(number: int) -> None:
        async with limit:
            connection = await stage.client(number % 4 + 1, placement="centralised").open(names[number])
            await stage.leave(connection)

    await asyncio.gather(*(visit(number) for number in range(200)))

    async def gone() -> bool:
        return not {one.name for one in (await world.tables())[2]} & set(names)

    await world.until(gone, "all of them are gone")
    reservations = (await world.status()).facts["reservations"]
    assert not [one for one in reservations if one["app"] in names]
