"""Traces through a cluster: spans over two nodes, and the life of a message told by a primary and by its successor."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import fairlead
from fairlead.errors import Unavailable
from fairlead.testing.cluster import Cluster
from tests.spans import Tracer, is_child

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(240), pytest.mark.long]

PATIENCE_S = 60.0


async def until(client: Any, id_: str, *wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Unavailable):  # while a group changes its primary nobody answers for it
                story: dict[str, Any] = await client.admin.trace(id_)
                if set(wanted) <= {event["what"] for event in story["events"]}:
                    return story
            await asyncio.sleep(0.2)


async def test_spans_over_two_nodes_have_the_right_parents(cluster: Cluster, name: str) -> None:
    tracer = Tracer()
    one, two, *_ = cluster.urls()
    async with (
        fairlead.connect(one, tracing=tracer.provider) as here,
        fairlead.connect(two, tracing=tracer.provider) as there,
    ):
        await here.queue(name).send(b"order")
        async for message in there.queue(name).consume():
            async with message.process():
                await there.queue(f"{name}.out").send(b"invoice")
            break
        async for message in here.queue(f"{name}.out").consume():
            async with message.process():
                pass
            break
    process = tracer.one(f"process {name}")
    assert is_child(process, tracer.one(f"send {name}"))
    assert is_child(tracer.one(f"send {name}.out"), process)
    assert is_child(tracer.one(f"process {name}.out"), tracer.one(f"send {name}.out"))


async def test_the_successor_of_a_primary_tells_the_same_story(cluster: Cluster, name: str) -> None:
    async with fairlead.connect(cluster.urls(), name="tracer") as client:
        queue = client.queue(name)
        await asyncio.to_thread(cluster.wait_in_sync, "a", 2)
        await asyncio.to_thread(cluster.wait_in_sync, "b", 2)
        receipt = await queue.send(b"x")
        async with queue.consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            message.retry()
            again = await consumer.receive(timeout=PATIENCE_S)
            assert again is not None
            await again.ack(confirm=True)
        story = await until(client, receipt.id, "acknowledged", "delivered")
        group, node = story["events"][0]["group"], story["events"][0]["node"]
        (copy,) = story["copies"]
        assert copy["confirmed"]
        assert len(copy["nodes"]) == 2
        assert all(one["synced"] and one["in_sync"] for one in copy["nodes"])
        primary = cluster.primary(group)
        await asyncio.to_thread(cluster.kill, primary)
        after = await until(client, receipt.id, "acknowledged")
    assert after["events"][0]["node"] != node
    kept = ("received", "stored", "returned", "acknowledged")
    for one, other in zip(*([e for e in s["events"] if e["what"] in kept] for s in (story, after)), strict=True):
        assert (one["what"], one.get("index"), one.get("order")) == (
            other["what"],
            other.get("index"),
            other.get("order"),
        )
    assert "delivered" not in {event["what"] for event in after["events"]}
    assert any("delivered earlier" in sentence for sentence in after["unknown"])
    assert after["events"][0]["ms"] == story["events"][0]["ms"], "when it was received is in the record itself"
