"""What clients see when a group changes its primary: a pause, and everything as it was."""

from __future__ import annotations

import asyncio
import time

import pytest

import fairlead
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import Join
from tests.cluster_requirements.tools import (
    PATIENCE_S,
    Traffic,
    bodies,
    browsed,
    fail_over,
    name_in,
    off,
    take,
    until,
)

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]


@pytest.mark.requirement("CLU-17")
async def test_a_durable_subscription_outlives_the_primary(cluster: Cluster, join: Join) -> None:
    name = name_in("a", "audited")
    async with join("publisher") as publisher:
        topic = publisher.topic(name, create=True)
        async with join("reader") as reader, reader.topic(name).subscribe(durable="audit"):
            pass
        await topic.send_many([str(number) for number in range(100)])
        await fail_over(cluster, "a")
        async with join("reader") as reader, reader.topic(name).subscribe(durable="audit", ack="individual") as again:
            assert await bodies(again, 100) == [str(number) for number in range(100)]
            assert await again.receive(timeout=0.3) is None


@pytest.mark.requirement("CLU-25")
async def test_how_often_a_message_was_delivered_is_known_to_the_next_primary(cluster: Cluster, join: Join) -> None:
    name = name_in("b", "counted")
    async with join() as connection:
        await connection.queue(name, create=True).send("again and again")
        for count in (1, 2, 3):
            async with connection.transaction() as transaction:
                message = await transaction.receive(name, timeout=PATIENCE_S)
                assert (message.delivery_count, message.redelivered) == (count, count > 1)
                await transaction.rollback()
        await fail_over(cluster, "b")
        async with connection.queue(name).consume() as consumer:
            (message,) = await take(consumer, 1)
        assert (message.delivery_count, message.redelivered) == (4, True)


@pytest.mark.requirement("CLU-27")
@pytest.mark.requirement("CLU-23", state="half", note="with the clocks of one host")
async def test_delays_and_lifetimes_go_on_with_the_next_primary(cluster: Cluster, join: Join) -> None:
    name = name_in("a", "timed")
    async with join() as connection:
        queue = connection.queue(name, create=True)
        began_s = time.monotonic()
        await queue.send("later", delay=6.0)
        await queue.send("short-lived", ttl=5.0)
        sent_s = time.monotonic()
        await queue.send("lasting", ttl=60.0)
        assert time.monotonic() - began_s < 5.0, "stored at once"
        assert [text for _, text in await browsed(connection, name)][-2:] == ["short-lived", "lasting"]
        await fail_over(cluster, "a")
        await until(lambda: time.monotonic() > sent_s + 5.0, "its life is over")
        async with queue.consume() as consumer:
            found = await consumer.receive(timeout=PATIENCE_S)
            while found is not None and found.text() != "later":
                assert found.text() == "lasting"
                found.ack()
                found = await consumer.receive(timeout=PATIENCE_S)
            assert found is not None
            assert 6.0 <= time.monotonic() - began_s < PATIENCE_S + 6
            await found.ack(confirm=True)
        await queue.send("gone soon", ttl=0.3)
        await until(lambda: _is_empty(connection, name), "expired on the new primary")


async def _is_empty(connection: fairlead.Connection, name: str) -> bool:
    return not await browsed(connection, name)


@pytest.mark.requirement("CLU-36")
async def test_the_next_primary_has_the_same_messages_in_the_same_order(cluster: Cluster, join: Join) -> None:
    name = name_in("b", "raced")

    async def race(number: int) -> None:
        async with join(f"racer-{number}") as connection, connection.queue(name).sender(window=16) as sender:
            for count in range(20):
                await sender.send(f"{number} {count}")

    async with join() as connection:
        await connection.queue(name, create=True).send("start")
        await asyncio.gather(*(race(number) for number in range(10)))
        before = await browsed(connection, name)
        assert len(before) == 201
        await fail_over(cluster, "b")
        assert await browsed(connection, name) == before


@pytest.mark.requirement("CLU-32")
@pytest.mark.requirement("CLU-33")
async def test_a_group_moves_as_one_and_the_other_group_of_the_process_stays(cluster: Cluster, join: Join) -> None:
    names = [name_in("a", "moved") for _ in range(50)]
    async with join() as connection:
        for name in names:
            await connection.queue(name, create=True).send(name)
        for group, node in (("a", "mm1"), ("b", "mm2"), ("a", "mm1")):
            await off(cluster.wait_in_sync, group, 2)
            await off(cluster.move_primary, group, node)
        for group in "ab":
            await off(cluster.wait_in_sync, group, 2)
        roles = {node: {group: cluster.facts(node, group)["role"] for group in "ab"} for node in ("mm1", "mm2")}
        assert roles == {"mm1": {"a": "primary", "b": "in-sync"}, "mm2": {"a": "in-sync", "b": "primary"}}
        epoch = cluster.facts("mm2", "b")["epoch"]
        await off(cluster.move_primary, "a", "mm2")
        await off(cluster.wait_in_sync, "a", 2)
        assert cluster.facts("mm2", "b")["epoch"] == epoch, "the other group had no part in it"
        await off(cluster.move_primary, "a", "mm1")
        await off(cluster.wait_in_sync, "a", 2)
        await off(cluster.kill_process, "mm1")
        await off(cluster.wait_until, lambda: cluster.primary("a") == "mm2", "mm2 leads a")
        assert cluster.primary("b") == "mm2"
        assert cluster.facts("mm2", "b")["epoch"] == epoch
        found = (await connection.admin.destinations(pattern="moved.*"))["destinations"]
        assert {one["name"]: one["depth"] for one in found if one["name"] in names} == dict.fromkeys(names, 1)
        assert (await connection.admin.status())["groups"]["a"]["node"] == "mm2"
        for name in names:
            async with connection.queue(name).consume() as consumer:
                assert await bodies(consumer, 1) == [name]


@pytest.mark.requirement("CLU-34", state="scaled", note="4 times, not 20")
async def test_the_role_is_handed_over_under_load_and_nothing_comes_twice(cluster: Cluster) -> None:
    name = name_in("b", "handed")
    async with Traffic(cluster.urls(), [name], producers=4) as traffic:
        for _ in range(4):
            await off(cluster.wait_in_sync, "b", 2)
            other = next(node for node in ("mm1", "mm2") if node != cluster.primary("b"))
            await off(cluster.move_primary, "b", other)
            await traffic.progress()
    assert traffic.doubles == 0


@pytest.mark.requirement("CLU-10")
@pytest.mark.requirement("CLU-21", state="scaled", note="10 producers")
@pytest.mark.requirement("CLU-119", "CLU-121", "CLU-123", state="scaled", note="each of five nodes once")
@pytest.mark.slow
async def test_any_node_may_die_and_the_load_goes_on(cluster: Cluster) -> None:
    names = [name_in("a", "load"), name_in("b", "load")]
    async with Traffic(cluster.urls(), names, producers=10) as traffic:
        for node in cluster.nodes:
            await off(cluster.kill, node)
            await traffic.progress()
            await off(cluster.start, node)
            await off(cluster.wait_serving)
            for group in "ab":
                await off(cluster.wait_in_sync, group, 2)
            await traffic.progress()
