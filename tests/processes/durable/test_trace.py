"""`fairlead trace`: the life of one message, told from what is on record and from nothing else."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fairlead
from fairlead.cli.trace import trace
from fairlead.errors import BadParameter, FairleadError
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes

PATIENCE_S = 30.0
MM = "message-manager"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=2, **NEVER_FROZEN) as one:
        yield one
        assert one.stop() == 0


def connect(server: Server, **options: Any) -> Any:
    return fairlead.connect(server.url, name="tracer", **options)


async def fairlead_trace(server: Server, *arguments: str) -> Result:
    """The command, in a thread: a process of its own takes longer to start than to answer."""
    return await asyncio.to_thread(CliRunner().invoke, trace, ["--server", server.url, *arguments])


def whats(story: dict[str, Any]) -> list[str]:
    """What happened, without what is only noted on the way."""
    return [event["what"] for event in story["events"] if event["what"] not in ("synced", "offered")]


async def until(client: Any, id_: str, *wanted: str) -> dict[str, Any]:
    """Its story, as soon as these events are in it: the journal is written a moment after it was said."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            story: dict[str, Any] = await client.admin.trace(id_)
            if set(wanted) <= {event["what"] for event in story["events"]}:
                return story
            await asyncio.sleep(0.05)


async def test_one_that_waits_is_received_and_stored(server: Server) -> None:
    async with connect(server) as client:
        receipts = await client.queue("life.waits").send_many([b"a", b"bb", b"ccc"], key="k", type="order")
        await client.queue("life.waits").send(b"another batch, which says that the first is safe")
        story = await until(client, receipts[1].id, "stored", "synced")
    assert story["found"]
    assert whats(story) == ["received", "stored"]
    received, stored = story["events"][:2]
    assert received["client"].startswith("tracer/")
    assert received["destination"] == stored["destination"] == "life.waits"
    assert stored["order"] == receipts[1].order
    assert stored["batch"] == 3
    assert stored["segment"] >= 1
    assert stored["index"] > 0
    assert received["ms"] <= stored["ms"] <= next(one["ms"] for one in story["events"] if one["what"] == "synced")
    assert story["message"]["bytes"] == 2
    assert story["message"]["key"] == "k"
    assert story["message"]["type"] == "order"
    assert [now["state"] for now in story["now"]] == ["ready"]
    assert [copy["confirmed"] for copy in story["copies"]] == [True]
    assert story["unknown"] == []


async def test_one_that_is_held_says_by_whom(server: Server) -> None:
    async with connect(server) as client, connect(server) as other:
        receipt = await client.queue("life.held").send(b"x")
        async with other.queue("life.held").consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            story = await until(client, message.id, "delivered")
            assert [now["state"] for now in story["now"]] == ["locked"]
            assert story["now"][0]["held_by"][0]["client"] == other.address
            delivered = next(one for one in story["events"] if one["what"] == "delivered")
            assert (delivered["client"], delivered["count"]) == (other.address, 1)
            await message.ack(confirm=True)
        story = await until(client, receipt.id, "acknowledged")
    assert whats(story) == ["received", "stored", "delivered", "acknowledged"]
    assert [now["state"] for now in story["now"]] in (["gone"], ["consumed"])


async def test_returned_dead_redriven_and_moved_it_is_one_story(server: Server) -> None:
    async with connect(server) as client:
        orders = client.queue("life.mortal")
        receipt = await orders.send(b"x")
        async with orders.consume() as consumer:
            (await consumer.receive(timeout=PATIENCE_S)).retry()
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message.delivery_count == 2
            await message.reject(confirm=True)
        story = await until(client, receipt.id, "dead")
        dead = next(one for one in story["events"] if one["what"] == "dead")
        assert (dead["destination"], dead["to"], dead["reason"], dead["count"]) == (
            "life.mortal",
            "_DMQ",
            "rejected",
            2,
        )
        assert [now["destination"] for now in story["now"]] == ["_DMQ"]
        assert (await client.admin.redrive(origin="life.mortal"))["moved"] == 1
        await client.admin.create(destination="life.elsewhere")
        await until(client, receipt.id, "redriven")
        assert (await client.admin.move(destination="life.mortal", to="life.elsewhere"))["messages"] == 1
        story = await until(client, receipt.id, "moved")
        assert [now["destination"] for now in story["now"]] == ["life.elsewhere"]
        assert (await client.admin.purge(destination="life.elsewhere"))["messages"] == 1
        story = await until(client, receipt.id, "dropped")
    happened = whats(story)
    assert [what for what in happened if what != "delivered"] == [
        *("received", "stored", "returned", "dead", "redriven", "moved", "dropped"),
    ]
    assert happened.count("delivered") == 2
    assert next(one for one in story["events"] if one["what"] == "returned")["count"] == 1
    assert {"redrive", "move", "purge"} <= {line.get("command") for line in story["log"]}


async def test_expired_browsed_and_replayed(server: Server) -> None:
    async with connect(server) as client:
        queue = client.queue("life.short")
        receipt = await queue.send(b"x", ttl=1.0)
        assert [one.id async for one in queue.browse()] == [receipt.id]
        assert [one.id async for one in queue.replay()] == [receipt.id]
        story = await until(client, receipt.id, "browsed", "replayed")
        async with asyncio.timeout(PATIENCE_S):
            while not set(whats(story)) & {"expired", "dead"}:
                story = await client.admin.trace(receipt.id)
                await asyncio.sleep(0.1)
    end = next(one for one in story["events"] if one["what"] in ("expired", "dead"))
    assert end["what"] == "expired" or end["reason"] == "expired"


async def test_in_a_transaction_it_is_visible_with_the_commit(server: Server) -> None:
    async with connect(server) as client:
        first = await client.queue("life.tx-in").send(b"x")
        async with client.transaction() as transaction:
            message = await transaction.receive("life.tx-in", timeout=PATIENCE_S)
            assert message is not None
            await transaction.send("life.tx-out", b"y")
        story = await until(client, first.id, "acknowledged")
        ended = next(one for one in story["events"] if one["what"] == "acknowledged")
        assert ended["transaction"]
        (out,) = [one async for one in client.queue("life.tx-out").browse()]
        story = await until(client, out.id, "committed")
    assert whats(story)[:2] == ["received", "committed"]
    assert next(one for one in story["events"] if one["what"] == "committed")["order"] == out.order


async def test_a_very_large_one_in_a_queue_that_is_deleted(server: Server) -> None:
    async with connect(server) as client:
        receipt = await client.queue("life.deleted").send(io.BytesIO(b"x" * 3_000_000))
        story = await until(client, receipt.id, "stored")
        assert story["message"]["bytes"] == 3_000_000
        await client.admin.delete(destination="life.deleted")
        story = await client.admin.trace(receipt.id)
    assert set(whats(story)) & {"deleted", "dead"}
    assert story["events"][0]["destination"] == "life.deleted", "the name is that of its making"


async def test_each_subscription_of_a_topic_has_its_own_end(server: Server) -> None:
    async with connect(server) as client:
        topic = client.topic("life.topic")
        async with topic.subscribe("quick") as quick, topic.subscribe("slow"):
            receipt = await topic.send(b"x")
            await (await quick.receive(timeout=PATIENCE_S)).ack(confirm=True)
            story = await until(client, receipt.id, "acknowledged")
            ended = [one["subscription"] for one in story["events"] if one["what"] == "acknowledged"]
            assert ended == ["quick"]
        for name in ("quick", "slow"):
            await topic.unsubscribe(name)


async def test_the_messages_of_a_trace_are_found(server: Server) -> None:
    given = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    async with connect(server) as client:
        first = await client.queue("life.trace-a").send(b"1", properties=given)
        await client.queue("life.trace-a").send(b"not of it")
        others = await client.queue("life.trace-b").send_many([b"2", b"3"], properties=given)
        story = await until(client, others[1].id, "stored")
        assert story["message"]["traceparent"] == given["traceparent"]
        found = await client.admin.trace(trace=TRACE)
    assert [one["id"] for one in found["messages"]] == [one.id for one in (first, *others)]
    assert [one["destination"] for one in found["messages"]] == ["life.trace-a", "life.trace-b", "life.trace-b"]
    shown = await fairlead_trace(server, "--trace-id", TRACE)
    assert shown.exit_code == 0, shown.output
    assert all(one.id in shown.stdout for one in (first, *others))


async def test_the_command_line_tells_it(server: Server) -> None:
    async with connect(server) as client:
        receipt = await client.queue("life.shown").send(b"x")
        async with client.queue("life.shown").consume() as consumer:
            await (await consumer.receive(timeout=PATIENCE_S)).ack(confirm=True)
        await until(client, receipt.id, "acknowledged")
        shown = await fairlead_trace(server, receipt.id)
        as_json = await fairlead_trace(server, "--json", receipt.id)
        beside = await fairlead_trace(server, "--data", str(server.data), receipt.id)
    assert shown.exit_code == 0, shown.output
    for word in ("received", "stored", "delivered", "acknowledged", "life.shown", "tracer/", "+0.000 s"):
        assert word in shown.stdout
    assert beside.output == shown.output, "by its socket the server says the same"
    assert whats(json.loads(as_json.stdout)) == ["received", "stored", "delivered", "acknowledged"]


async def test_an_unknown_one_says_where_it_was_looked_for(server: Server) -> None:
    async with connect(server) as client:
        story = await client.admin.trace("00" * 20)
        assert not story["found"]
        assert story["looked"][0]["node"] == "mm-0"
        for wrong in ("", "abc", "zz" * 20, "00" * 2000):
            with pytest.raises((BadParameter, FairleadError)):
                await client.admin.trace(wrong)
    shown = await fairlead_trace(server, "00" * 20)
    assert shown.exit_code == 1
    assert "group a at mm-0" in shown.output
    assert (await fairlead_trace(server)).exit_code == 2
    for wrong in (["nonsense"], ["--trace-id", "nonsense"]):
        assert (await fairlead_trace(server, *wrong)).exit_code == 1


async def test_after_a_kill_what_was_only_in_memory_is_said_to_be_unknown(server: Server) -> None:
    async with connect(server) as client:
        orders = client.queue("life.killed")
        receipt = await orders.send(b"x")
        async with orders.consume() as consumer:
            (await consumer.receive(timeout=PATIENCE_S)).retry()
            await (await consumer.receive(timeout=PATIENCE_S)).ack(confirm=True)
        before = await until(client, receipt.id, "acknowledged")
        assert before["unknown"] == []
        old = server.kill(MM)
        await asyncio.to_thread(server.wait_until, lambda _: server.pids(MM) not in ([], [old]), PATIENCE_S)
        after = await client.admin.trace(receipt.id)
    on_disk = [event for event in before["events"] if "index" in event and event["what"] != "synced"]
    assert [event for event in after["events"] if "index" in event and event["what"] != "synced"] == on_disk
    assert "delivered" not in whats(after)
    assert any("delivered earlier" in sentence for sentence in after["unknown"])
