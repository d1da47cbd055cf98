"""Client managers: one is as good as another, each can be lost, and all of them tell the same."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import Join
from tests.cluster_requirements.tools import (
    PATIENCE_S,
    Tapped,
    bodies,
    connections,
    facts,
    fail_over,
    group_of,
    name_in,
    off,
    take,
    until,
)

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


async def at(cluster: Cluster) -> str:
    """The only client manager with a client."""

    def only() -> str:
        found = [node for node, count in connections(cluster).items() if count]
        return found[0] if len(found) == 1 else ""

    return str(await until(lambda: asyncio.to_thread(only), "the client is at one of them"))


def forget(cluster: Cluster, node: str) -> None:
    """Take everything from a client manager's node that is not its vote or its configuration."""
    for path in cluster.data(node).iterdir():
        if path.is_dir() and path.name not in ("votes", "run"):
            shutil.rmtree(path)
        elif path.name == "names.json":
            path.unlink()


@pytest.mark.requirement("CLU-7", state="scaled", note="three moves among three, at random")
@pytest.mark.requirement("CLU-4", "CLU-120", note="no message from one client manager to another: see the tapped test")
async def test_a_client_moved_through_all_client_managers_sees_the_same(cluster: Cluster) -> None:
    queue, topic = name_in("a", "moved-client"), name_in("b", "moved-client")
    async with fairlead.connect(cluster.url, name="nomad") as connection:
        seen = []
        await connection.queue(queue, create=True).send("0")
        async with (
            connection.topic(topic, create=True).subscribe(durable="steady", ack="individual") as news,
            connection.queue(queue).consume() as consumer,
        ):
            for number in (1, 2, 3):
                here = await at(cluster)
                seen.append(here)
                await connection.topic(topic).send(str(number))
                await off(cluster.kill, here)
                await off(forget, cluster, here)
                await connection.queue(queue).send(str(number))
                assert await bodies(consumer, 1) == [str(number - 1)]
                assert await bodies(news, 1) == [str(number)]
                with pytest.raises(NotAllowed):
                    await connection.queue("_DMQ").send("x", timeout=PATIENCE_S)
                if len(seen) > 1:
                    await off(cluster.start, seen[-2])
            assert await bodies(consumer, 1) == ["3"]
            await off(cluster.start, seen[-1])
        await connection.topic(topic).unsubscribe("steady")
        assert len(set(seen)) >= 2


@pytest.mark.requirement("CLU-13", state="half", note="90 clients; no redirect of a full client manager")
async def test_clients_spread_over_the_client_managers(cluster: Cluster, name: str) -> None:
    async with AsyncExitStack() as stack:
        before = await off(connections, cluster)
        new = [fairlead.connect(cluster.url) for _ in range(90)]
        for some in (new[:30], new[30:60], new[60:]):
            await asyncio.gather(*(stack.enter_async_context(one) for one in some))
            await asyncio.gather(*(one.queue(name, create=True).send(b"here") for one in some))
        counts = await off(connections, cluster)
        assert sum(counts.values()) - sum(before.values()) == 90
        assert all(12 <= count <= 48 for count in counts.values()), counts  # four standard deviations around 30


@pytest.mark.requirement("CLU-125")
@pytest.mark.requirement("CLU-62", state="half", note="a client manager is lost; one client: processes/durable")
async def test_a_lost_client_manager_takes_only_its_own_consumers_along(cluster: Cluster) -> None:
    name, other = name_in("a", "lost"), name_in("b", "lost")
    doomed, *living = cluster.nodes[:3]
    urls = dict(zip(cluster.nodes[:3], cluster.urls(), strict=True))
    async with fairlead.connect(urls[living[0]]) as keeper, fairlead.connect(urls[living[1]]) as watcher:
        await keeper.queue(name, create=True).send_many([str(number) for number in range(6)])
        await keeper.queue(other, create=True).send("mine")
        connection = fairlead.connect(urls[doomed], reconnect_limit_s=0)
        await connection
        for one in (name, other):
            held = connection.queue(one).consume(prefetch=10)
            await held.start()
            assert await held.receive(timeout=PATIENCE_S)
        async with keeper.queue(other).consume() as mine:
            assert ((await facts(watcher, other))["consumers"], (await facts(watcher, name))["locked"]) == (2, 6)
            lost_s = time.monotonic()
            await off(cluster.kill, doomed)

            async def gone() -> bool:
                left = [await facts(watcher, one) for one in (name, other)]
                return [(one["consumers"], one["locked"]) for one in left] in ([(0, 0), (1, 1)], [(0, 0), (1, 0)])

            await until(gone, "its consumers and locks are gone")
            assert time.monotonic() - lost_s < 10
            (message,) = await take(mine, 1)
            assert message.redelivered
        async with keeper.queue(name).consume() as consumer:
            found = await take(consumer, 6)
        assert (found[0].text(), found[0].redelivered) == ("0", True)
        with pytest.raises(FairleadError):
            await connection.queue(name).send("x", timeout=5)
        await connection.close()


@pytest.mark.requirement("CLU-124")
@pytest.mark.slow
async def test_a_client_manager_that_wakes_up_late_changes_nothing(cluster: Cluster) -> None:
    name = name_in("a", "late")
    async with fairlead.connect(cluster.url, name="sleeper", keep_alive_s=1.0) as connection:
        await connection.queue(name, create=True).send("first")
        here = await at(cluster)
        await off(cluster.freeze, here)
        sends = [asyncio.create_task(connection.queue(name).send(f"{number}")) for number in range(20)]
        await asyncio.gather(*sends)
        await fail_over(cluster, "a")
        await off(cluster.thaw, here)
        async with connection.queue(name).consume() as consumer:
            assert await bodies(consumer, 21) == ["first", *map(str, range(20))]
            assert await consumer.receive(timeout=1.0) is None
        await off(cluster.wait_until, lambda: connections(cluster).get(here) == 0, "its stale clients are gone")


@pytest.mark.requirement("CLU-86")
@pytest.mark.requirement("CLU-87", state="scaled", note="12 clients of 3 client managers, one hand-over")
@pytest.mark.requirement("CLU-14", "CLU-85", state="half", note="names, ids, kinds and groups")
async def test_names_made_by_everybody_at_once_exist_once(cluster: Cluster, join: Join) -> None:
    names = [name_in(group, "once") for _ in range(25) for group in "ab"]

    async def make(number: int) -> None:
        async with join(f"maker-{number}") as connection:
            for name in names[number:] + names[:number]:
                await connection.queue(name, create=True).send(f"{number}")

    makers = [asyncio.create_task(make(number)) for number in range(12)]
    await off(cluster.wait_in_sync, "a", 2)
    await off(cluster.move_primary, "a", next(node for node in ("mm1", "mm2") if node != cluster.primary("a")))
    await asyncio.gather(*makers)
    shown = []
    for url in cluster.urls():
        async with fairlead.connect(url) as connection:
            found = (await connection.admin.destinations(pattern="once.*", count=1000))["destinations"]
            shown.append({(one["name"], one["id"], one["kind"], one["group"]) for one in found})
            assert Counter(one["name"] for one in found) == Counter(names)
            assert {one["name"]: one["group"] for one in found} == {name: group_of(name) for name in names}
            assert {one["depth"] for one in found} == {12}
    assert shown[0] == shown[1] == shown[2]
    assert len({one[1] for one in shown[0]}) == len(names)


@pytest.mark.requirement("CLU-72", "CLU-88")
async def test_a_deleted_destination_is_gone_everywhere_and_its_name_is_another_one(
    cluster: Cluster, join: Join
) -> None:
    async with join() as one, join() as two, join() as three:
        took_s = []
        for number in range(3):
            name = name_in("a", f"deleted{number}")
            await one.queue(name, create=True).send("old")
            before = (await facts(three, name))["id"]
            consumers = [connection.queue(name, create=False).consume(prefetch=1) for connection in (one, two)]
            for consumer in consumers:
                await consumer.start()
            began_s = time.monotonic()
            await three.admin.delete(destination=name)
            for consumer in consumers:
                with pytest.raises(FairleadError) as ended:
                    while await consumer.receive(timeout=5):
                        pass
                assert ended.value.code == "destination-deleted"
            took_s.append(time.monotonic() - began_s)
        assert min(took_s) < 1.0, f"a busy machine may be late once, not every time: {took_s}"
        for connection in (one, two, three):
            with pytest.raises(FairleadError):
                await connection.queue(name, create=False).send("late", timeout=5)
        await fail_over(cluster, "a")
        with pytest.raises(FairleadError):
            await two.queue(name, create=False).send("late", timeout=PATIENCE_S)
        await two.queue(name, create=True).send("new")
        assert (await facts(one, name))["id"] != before
        async with one.queue(name).consume() as consumer:
            assert await bodies(consumer, 1) == ["new"]


@pytest.mark.requirement("CLU-171", "CLU-173")
@pytest.mark.requirement("CLU-174", state="scaled", note="60 rounds; 30 in each group")
@pytest.mark.requirement("CLU-172", state="half", note="one pattern consumer per group, opened by the client library")
async def test_the_first_message_of_a_new_topic_reaches_a_pattern_elsewhere(cluster: Cluster, join: Join) -> None:
    names = [name_in(group, "fresh") for _ in range(30) for group in "ab"]
    async with (
        join() as reader,
        join() as one,
        join() as two,
        reader.topic("fresh.*").subscribe(ack="individual") as news,
    ):
        for number, name in enumerate(names):
            await (one, two)[number % 2].topic(name, create=True).send(name)
        assert sorted(await bodies(news, len(names))) == sorted(names)
        assert await news.receive(timeout=0.3) is None


@pytest.mark.requirement("CLU-177")
async def test_reserved_names_are_refused_at_every_client_manager(cluster: Cluster) -> None:
    for url in cluster.urls():
        async with fairlead.connect(url) as connection:
            for bad in ("_x", "with space", "x" * 256):
                with pytest.raises(FairleadError):
                    await connection.queue(bad, create=True).send(b"x", timeout=5)
            await connection.queue("x_", create=True).send(b"x")


@pytest.mark.requirement("CLU-35")
@pytest.mark.requirement("CLU-31", state="half", note="with one backup; with none: test_lone_groups.py")
@pytest.mark.requirement("CLU-5", state="half", note="commands go to the primary, and from there to its backups")
async def test_backups_say_nothing_to_client_managers(cluster: Cluster, join: Join) -> None:
    names = [name_in(group, "tapped") for group in "ab"]
    for group in "ab":
        await off(cluster.wait_in_sync, group, 2)
    groups = {group["group"]: group for group in cluster.status()["groups"]}
    assert all(len([row for row in group["members"] if row["serving"]]) == 1 for group in groups.values())
    primaries = {name: group["primary"] for name, group in groups.items()}
    async with Tapped(cluster) as tap, join() as one, join() as two:
        for name in names:
            async with two.queue(name, create=True).consume() as consumer:
                await one.queue(name).send_many(["x"] * 50)
                await bodies(consumer, 50)

        def all_seen() -> bool:
            found = {(sender, port) for sender, receiver, port in tap.heads if receiver.startswith("cm")}
            return {(primaries[group], f"link:{group}") for group in "ab"} <= found

        await until(all_seen, "the primaries' answers")
    answers = {(sender, port) for sender, _, port in tap.heads if port.startswith("link:") and sender.startswith("mm")}
    assert answers == {(primaries[group], f"link:{group}") for group in "ab"}, "deliveries, confirms: primaries only"
    between = {port for sender, receiver, port in tap.heads if sender.startswith("cm") and receiver.startswith("cm")}
    assert not {port for port in between if port.startswith(("link:", "member:", "state:", "side:"))}
