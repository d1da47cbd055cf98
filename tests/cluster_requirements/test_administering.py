"""Administration of a cluster by ordinary messages and by local sockets: who answers, how many, and who is missing."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import pytest

import fairlead
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.conftest import Join
from tests.cluster_requirements.tools import PATIENCE_S, browsed, fail_over, name_in, off, until

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240)]

NODES = ["cm1", "cm2", "cm3", "mm1", "mm2"]


async def plain(connection: Any, command: str, **args: Any) -> Any:
    """A command with nothing but publish, subscribe and docs/administration.md."""
    topic = f"replies.{secrets.token_hex(6)}"
    async with connection.subscribe(topic) as replies:
        request = {"id": secrets.token_hex(6), "command": command, "args": args, "reply": topic}
        await connection.publish("_ADMIN", json.dumps(request).encode())
        answer = json.loads((await replies.next(timeout=PATIENCE_S)).body)
        assert answer["id"] == request["id"]
        assert "ok" in answer, answer
        return answer["ok"]


@pytest.mark.requirement("CLU-182", state="scaled", note="5 nodes")
@pytest.mark.requirement("CLU-180", "CLU-181", state="half", note="all, some, one; by name of the node, not by role")
@pytest.mark.requirement("CLU-75", state="half", note="both kinds of nodes answer")
async def test_all_some_or_one_node_answers_an_ordinary_message(cluster: Cluster, join: Join) -> None:
    name = name_in("b", "administered")
    async with join() as connection:
        began_s = time.monotonic()
        found = await plain(connection, "cluster", do="status")
        assert time.monotonic() - began_s < 10.0, "nobody ran into a time limit"
        assert sorted(found["nodes"]) == NODES
        assert (found["expected"], found["missing"]) == (5, [])
        assert {answer["status"]["kind"] for answer in found["nodes"].values()} == {"cm", "mm"}
        assert {answer["status"]["carrier"] for answer in found["nodes"].values()} == {"tcp"}
        for some in (["mm1"], ["cm1", "cm3"], ["mm1", "mm2"]):
            found = await plain(connection, "cluster", do="status", nodes=some)
            assert sorted(found["nodes"]) == some
            assert found["expected"] == len(some)
        await plain(connection, "create", destination=name)
        await connection.queue(name).send_many(["keep", "delete", "keep too"])
        seen = (await plain(connection, "browse", destination=name))["messages"]
        await plain(connection, "drop", destination=name, orders=[seen[1]["order"]])
        listed = (await plain(connection, "destinations", count=1000))["destinations"]
        assert {one["group"] for one in listed} == {"a", "b"}, "all groups answered"
        await fail_over(cluster, "b")
        assert [text for _, text in await browsed(connection, name)] == ["keep", "keep too"]


@pytest.mark.requirement("CLU-183", state="half", note="a frozen node, not a killed one")
async def test_a_node_that_does_not_answer_is_named(cluster: Cluster) -> None:
    await off(cluster.freeze, "cm3")
    began_s = time.monotonic()
    try:
        async with fairlead.connect(cluster.urls()[0]) as connection:
            found = await connection.admin.execute("cluster", do="status")
    finally:
        await off(cluster.thaw, "cm3")
    assert time.monotonic() - began_s < PATIENCE_S
    assert "cm3" not in found["nodes"]
    assert found["missing"] == ["cm3"]
    assert found["expected"] == 5
    await until(lambda: asyncio.to_thread(lambda: not cluster.ask("status")["missing"]), "it answers again")


@pytest.mark.requirement("CLU-178")
@pytest.mark.requirement("CLU-176", state="half", note="further groups have a _DMQ.GROUP and a _LOG.GROUP besides")
async def test_well_known_destinations_live_where_a_backup_follows(cluster: Cluster, join: Join) -> None:
    async with join() as connection:
        listed = (await connection.admin.destinations(count=1000))["destinations"]
        known = {
            one["name"]: (one["kind"], one["group"], int(one["id"], 16))
            for one in listed
            if one["name"].startswith("_")
        }
        assert known == {
            "_ADMIN": ("topic", "a", 1),
            "_LOG": ("topic", "a", 2),
            "_DMQ": ("queue", "a", 3),
            "_LOG.b": ("topic", "b", 0x01000002),
            "_DMQ.b": ("queue", "b", 0x01000003),
        }
        await off(cluster.wait_in_sync, "a", 2)
        assert (await plain(connection, "status"))["groups"]["a"]["protected"] is True
        before = await fail_over(cluster, "a")
        found = await plain(connection, "status")
        assert found["groups"]["a"]["node"] != before


@pytest.mark.requirement("CLU-196", state="half", note="records of the group itself; others are in the nodes' files")
@pytest.mark.requirement("CLU-195", state="half", note="no further place is added")
async def test_the_log_topic_tells_of_a_new_primary(cluster: Cluster, join: Join) -> None:
    async with join() as connection, connection.topic("_LOG").subscribe(durable="watch", ack="individual") as log:
        before = await fail_over(cluster, "a")
        await connection.queue(name_in("a", "logged"), create=True).send("x")
        seen: list[dict[str, Any]] = []

        async def told() -> bool:
            while message := await log.receive(timeout=0.1):
                seen.append(json.loads(message.body))
                message.ack()
            return any(record["code"] == "destination-created" for record in seen)

        await until(told, "the new primary's records")
        assert {record["node"] for record in seen} - {before}
        assert all({"ms", "node", "module", "level", "code", "text"} <= set(record) for record in seen), seen[0]
        assert [record["ms"] for record in seen] == sorted(record["ms"] for record in seen)
    async with join() as connection:
        await connection.topic("_LOG").unsubscribe("watch")
    for node in cluster.nodes:
        assert (cluster.data(node) / "log").is_dir(), node


@pytest.mark.requirement("CLU-184", state="scaled", note="some seconds; one node restarts")
@pytest.mark.requirement("CLU-188", "CLU-191", "CLU-192", state="half", note="one node was away; nobody is killed")
async def test_two_administrators_leave_all_nodes_equal(cluster: Cluster) -> None:
    over = False
    done = {"cm1": 0, "mm1": 0}

    async def administrate(node: str) -> None:
        while not over:
            try:
                await off(lambda: cluster.change(node, removal_s=2.0 + done[node] % 7))
                done[node] += 1
            except fairlead.Unavailable:  # the other one was quicker, or a voter was away
                await asyncio.sleep(0.05)

    administrators = [asyncio.create_task(administrate(node)) for node in done]
    await until(lambda: all(done.values()), "both changed something")
    await off(cluster.stop, "cm3")
    changed = dict(done)
    await until(lambda: all(done[node] > changed[node] for node in done), "both go on")
    await off(cluster.start, "cm3")
    await off(cluster.wait_serving)
    over = True
    await asyncio.gather(*administrators)
    await off(lambda: cluster.change("cm1", removal_s=2.0))

    def equal() -> bool:
        files = {(cluster.directory / node / "settings.toml").read_bytes() for node in cluster.nodes}
        shown = {(node["revision"], node["settings"], node["essential"]) for node in cluster.status()["nodes"]}
        return len(files) == len(shown) == 1

    await off(cluster.wait_until, equal, "all files and all nodes agree")
    assert len({(cluster.directory / node / "cluster.toml").read_bytes() for node in cluster.nodes}) == 1
    with pytest.raises(fairlead.Unavailable, match=r"cluster\.toml"):
        await off(lambda: cluster.change("cm1", lease_s=1.0))
