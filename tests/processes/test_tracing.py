"""Spans through a real server: who is the parent of whom, by the conventions for messaging."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

import fairlead
from fairlead.client.durable.content import BODY_BYTES_MAX, PLAIN
from fairlead.testing import Server
from tests.spans import Tracer, is_child, is_linked

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=2) as one:
        yield one


@pytest.fixture
def tracer() -> Tracer:
    return Tracer()


def connection(server: Server, tracer: Tracer | None) -> Any:
    return fairlead.connect(server.url, name="traced", tracing=False if tracer is None else tracer.provider)


async def test_what_is_processed_is_a_child_of_what_sent_it(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        orders = client.queue("trace.single")
        with tracer.tracer.start_as_current_span("shop"):
            receipt = await orders.send(b"lamp", properties={"region": "eu"}, correlation_id="c-1")
        async for message in orders.consume():
            assert message.properties["region"] == "eu"
            assert message.trace is not None
            async with message.process():
                await client.queue("trace.invoices").send(b"invoice")
            break
    shop, send, process = tracer.one("shop"), tracer.one("send trace.single"), tracer.one("process trace.single")
    assert is_child(send, shop)
    assert is_child(process, send)
    assert is_linked(process, send)
    assert is_child(tracer.one("send trace.invoices"), process)
    assert is_child(tracer.one("ack trace.single"), process)
    assert is_linked(tracer.one("ack trace.single"), send)
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert tracer.one("ack trace.single").kind is SpanKind.CLIENT
    assert send.attributes is not None
    assert process.attributes is not None
    assert dict(send.attributes) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "trace.single",
        "messaging.message.body.size": 4,
        "messaging.message.id": receipt.id,
    }
    assert dict(process.attributes) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "trace.single",
        "messaging.message.id": receipt.id,
        "messaging.message.body.size": 4,
        "messaging.message.conversation_id": "c-1",
        "messaging.fairlead.order": receipt.order,
        "messaging.fairlead.delivery_count": 1,
    }
    assert send.context is not None
    assert message.trace is not None
    assert message.trace.trace_id == format_trace_id(send.context.trace_id)
    assert message.trace.span_id == format_span_id(send.context.span_id)


async def test_a_redelivery_is_another_process_span_of_the_same_message(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        orders = client.queue("trace.again")
        await orders.send(b"lamp")
        async for message in orders.consume():
            try:
                async with message.process():
                    if message.delivery_count == 1:
                        raise RuntimeError("not now")
                break
            except RuntimeError:
                pass
    send = tracer.one("send trace.again")
    first, second = tracer.spans("process trace.again")
    assert is_child(first, send)
    assert is_child(second, send)
    assert [span.attributes["messaging.fairlead.delivery_count"] for span in (first, second) if span.attributes] == [
        1,
        2,
    ]
    assert first.status.status_code is StatusCode.ERROR
    assert second.status.is_ok
    assert first.attributes is not None
    assert first.attributes["error.type"] == "RuntimeError"
    assert is_child(tracer.one("retry trace.again"), first)
    assert is_child(tracer.one("ack trace.again"), second)


async def test_a_batch_is_one_span_with_a_link_to_each_message(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        orders = client.queue("trace.batch")
        for body in (b"1", b"2"):
            await orders.send(body)
        await orders.send_many([b"3", {"n": 4}, "5"])
        found: list[fairlead.Delivery] = []
        async with orders.consume() as consumer:
            while len(found) < 5:
                found += await consumer.receive_many(10, timeout=30)
            async with consumer.process_many(found):
                await client.queue("trace.batched").send(b"all of them")
    one, two, many = tracer.spans("send trace.batch")
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 3
    process = tracer.one("process trace.batch")
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 5
    assert process.parent is None
    assert len(process.links) == 5
    assert all(is_linked(process, span) for span in (one, two, many))
    assert is_child(tracer.one("send trace.batched"), process)
    settle = tracer.one("ack trace.batch")
    assert is_child(settle, process)
    assert len(settle.links) == 5
    received = tracer.spans("receive trace.batch")
    assert sum(len(span.links) for span in received) == 5
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    assert {message.trace for message in found[2:]} == {found[2].trace}, "messages sent together were made together"


async def test_a_batch_that_fails_comes_again(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client, client.queue("trace.batch-fails").consume() as consumer:
        await client.queue("trace.batch-fails").send_many([b"1", b"2"])
        found = []
        while len(found) < 2:
            found += await consumer.receive_many(10, timeout=30)
        with pytest.raises(RuntimeError):
            async with consumer.process_many(found):
                raise RuntimeError("not now")
        again = []
        while len(again) < 2:
            again += await consumer.receive_many(10, timeout=30)
        assert [message.delivery_count for message in again] == [2, 2]
        consumer.ack_many(again)
    assert tracer.one("process trace.batch-fails").status.status_code is StatusCode.ERROR


async def test_dead_and_redriven_it_keeps_its_trace(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        orders = client.queue("trace.mortal")
        await orders.send(b"bad")
        async for message in orders.consume():
            message.reject()
            break
        async with client.queue("_DMQ", create=False).consume() as dead:
            found = await dead.receive(timeout=30)
            assert found is not None
            assert found.dead["destination"] == "trace.mortal"
            with fairlead.tracing.process(found, tracing=tracer.provider):
                pass
            found.retry()
        answer = await client.admin.redrive(origin="trace.mortal")
        assert answer["moved"] == 1
        async for message in orders.consume():
            async with message.process():
                break
    send = tracer.one("send trace.mortal")
    buried, back = tracer.one("process _DMQ"), tracer.one("process trace.mortal")
    assert is_child(buried, send)
    assert is_child(back, send)
    assert buried.attributes is not None
    assert buried.attributes["messaging.fairlead.dead_reason"] == "rejected"
    assert is_linked(tracer.one("reject trace.mortal"), send)


async def test_a_delayed_message_and_one_of_a_topic_keep_it(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        prices = client.topic("trace.prices")
        async with prices.subscribe("audit") as audit:
            await prices.send(b"1.08", delay=0.05)
            message = await audit.receive(timeout=30)
            async with message.process():
                pass
        async for again in prices.replay():
            assert again.trace == message.trace
        await prices.unsubscribe("audit")
    assert is_child(tracer.one("process trace.prices"), tracer.one("send trace.prices"))


async def test_what_a_schedule_makes_is_of_the_trace_that_set_it(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        ticks = client.queue("trace.ticks")
        receipt = await ticks.send(b"tick", cron="@every 1s")
        async with ticks.consume() as consumer:
            for _ in range(2):
                message = await consumer.receive(timeout=30)
                async with message.process():
                    pass
        await ticks.cancel(receipt.order)
    assert len(tracer.spans("process trace.ticks")) == 2
    for process in tracer.spans("process trace.ticks"):
        assert is_child(process, tracer.one("send trace.ticks"))


async def test_a_transaction_sends_and_commits_in_spans(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        await client.queue("trace.in").send(b"order")
        with tracer.tracer.start_as_current_span("work"):
            async with client.transaction() as transaction:
                message = await transaction.receive("trace.in", timeout=30)
                assert message is not None
                with fairlead.tracing.process(message, tracing=tracer.provider):
                    await transaction.send("trace.out", b"invoice")
        async for message in client.queue("trace.out").consume():
            async with message.process():
                break
    work, process = tracer.one("work"), tracer.one("process trace.in")
    assert is_child(process, tracer.one("send trace.in"))
    assert is_child(tracer.one("send trace.out"), process)
    assert is_child(tracer.one("process trace.out"), tracer.one("send trace.out"))
    assert is_child(tracer.one("commit"), work)
    assert is_child(tracer.one("receive trace.in"), work)


async def test_the_sender_and_try_send_have_spans(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        orders = client.queue("trace.sender")
        async with orders.sender() as sender:
            for n in range(3):
                await sender.send(b"%d" % n)
        assert orders.try_send(b"never waits")
        await orders.flush()
        found = []
        async with orders.consume() as consumer:
            while len(found) < 4:
                found += await consumer.receive_many(10, timeout=30)
            consumer.ack_many(found)
    sent = await tracer.wait_for("send trace.sender", 4)
    assert len({message.trace for message in found}) == 4
    ids = [span.attributes.get("messaging.message.id") for span in sent if span.attributes]
    assert ids[:3] == [message.id for message in found[:3]]


async def test_a_listener_works_inside_a_span(server: Server, tracer: Tracer) -> None:
    done = asyncio.Event()
    async with connection(server, tracer) as client:

        async def callback(message: fairlead.Delivery) -> None:
            async with message.process():
                await client.publish("trace.heard", b"x")
            done.set()

        async with client.queue("trace.listen").consume() as consumer:
            consumer.listen(callback)
            await client.queue("trace.listen").send(b"order")
            await asyncio.wait_for(done.wait(), 30)
    process = (await tracer.wait_for("process trace.listen"))[0]
    assert is_child(process, tracer.one("send trace.listen"))
    assert is_child(tracer.one("publish trace.heard"), process)


async def test_broadcasts_carry_it_too(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client, client.subscribe("trace.news") as news:
        await client.publish("trace.news", b"one", headers={"kind": "flash"})
        await client.publish_many("trace.news", [b"two", b"three"])
        one, two, three = [await news.next(timeout=30) for _ in range(3)]
        assert one.headers["kind"] == b"flash"
        with fairlead.tracing.process(one, tracing=tracer.provider):
            pass
        with fairlead.tracing.process([two, three], tracing=tracer.provider):
            pass
    single, many = tracer.spans("publish trace.news")
    first, batch = tracer.spans("process trace.news")
    assert is_child(first, single)
    assert two.trace == three.trace
    assert batch.parent is None
    assert is_linked(batch, many)
    assert len(batch.links) == 2
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 2


async def test_a_request_is_a_client_span_with_the_servers_as_its_child(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client, connection(server, tracer) as other:

        async def slowly(request: fairlead.Request) -> bytes:
            await asyncio.sleep(0)
            await other.publish("trace.inside", b"x")
            return request.body + b"!"

        def failing(request: fairlead.Request) -> bytes:
            raise ValueError("no")

        for topic, handler in (("trace.now", lambda request: b"now"), ("trace.slow", slowly), ("trace.bad", failing)):
            await other.respond(topic, handler)
        assert (await client.request("trace.now", b"?", timeout=30)).body == b"now"
        assert (await client.request("trace.slow", b"hi", timeout=30)).body == b"hi!"
        with pytest.raises(fairlead.FairleadError):
            await client.request("trace.bad", timeout=30)
        assert [message.body async for message in client.request_stream("trace.now", timeout=30)] == [b"now"]
        await tracer.wait_for("respond trace.now", 2)
        await tracer.wait_for("respond trace.slow")
    for topic in ("trace.now", "trace.slow", "trace.bad"):
        asked, answered = tracer.spans(f"request {topic}")[0], tracer.spans(f"respond {topic}")[0]
        assert is_child(answered, asked)
        assert (asked.kind, answered.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
        is_fine = topic != "trace.bad"
        assert asked.status.is_ok is is_fine
        assert answered.status.is_ok is is_fine
    assert is_child(tracer.spans("respond trace.now")[1], tracer.spans("request trace.now")[1])
    assert is_child(tracer.one("publish trace.inside"), tracer.one("respond trace.slow"))


async def test_a_request_taken_from_a_loop_has_a_span_when_it_is_processed(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client, connection(server, tracer) as other:

        async def serve() -> None:
            async with other.serve("trace.loop") as requests:
                ready.set()
                async for request in requests:
                    with fairlead.tracing.process(request, tracing=tracer.provider):
                        await request.reply(b"done")
                    return

        ready = asyncio.Event()
        task = asyncio.create_task(serve())
        await ready.wait()
        assert (await client.request("trace.loop", timeout=30)).body == b"done"
        await task
    assert is_child(tracer.one("respond trace.loop"), tracer.one("request trace.loop"))


async def test_a_context_of_ones_own_is_kept(server: Server, tracer: Tracer) -> None:
    given = fairlead.tracing.TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True, "vendor=1")
    async with connection(server, tracer) as client, client.subscribe("trace.own-news") as news:
        orders = client.queue("trace.own")
        await orders.send(b"x", properties=given.headers())
        await client.publish("trace.own-news", b"x", headers=given.headers())
        assert (await news.next(timeout=30)).trace == given
        async for message in orders.consume():
            assert message.trace == given
            async with message.process():
                break
    process, send = tracer.one("process trace.own"), tracer.one("send trace.own")
    assert process.parent is not None
    assert process.context is not None
    assert process.parent.span_id == 0x00F067AA0BA902B7
    assert process.parent.trace_state["vendor"] == "1"
    assert process.context.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
    assert send.kind is SpanKind.CLIENT, "it made nothing, it only sends"
    assert len(send.links) == 1


@pytest.mark.parametrize("parent", ["garbage", "x" * 60_000, 7, b"\xff" * 55])
async def test_a_hostile_context_is_ignored(server: Server, tracer: Tracer, parent: Any) -> None:
    async with connection(server, None) as stranger, connection(server, tracer) as client:
        orders = client.queue("trace.hostile")
        await stranger.queue("trace.hostile").send(b"x", properties={"traceparent": parent, "tracestate": "y" * 2000})
        async for message in orders.consume():
            assert message.trace is None
            async with message.process():
                break
    process = tracer.one("process trace.hostile")
    assert process.parent is None
    assert not process.links


async def test_what_leaves_no_room_for_a_context_goes_without(server: Server, tracer: Tracer) -> None:
    nearly = BODY_BYTES_MAX - PLAIN.overhead
    full = {"full": b"x" * 65_500}
    async with connection(server, tracer) as client, client.subscribe("trace.full-news") as news:
        queue = client.queue("trace.full")
        assert queue.try_send(b"x" * nearly)
        await queue.send_many([b"x" * nearly, b"small"])
        async with queue.sender() as sender:
            await sender.send(b"x" * nearly)
        await queue.send(b"x", properties=full)
        await client.publish("trace.full-news", b"x", headers={"full": b"x" * 64_000})
        assert (await news.next(timeout=30)).trace is None
        await client.respond("trace.full-ask", lambda request: b"%d" % len(request.headers["full"]))
        assert (await client.request("trace.full-ask", headers={"full": b"x" * 64_000}, timeout=30)).body == b"64000"
        found: list[fairlead.Delivery] = []
        async with queue.consume(prefetch_bytes=1 << 24) as consumer:
            while len(found) < 5:
                found += await consumer.receive_many(10, timeout=30)
            assert [message.trace for message in found] == [None] * 5
            consumer.ack_many(found)
    assert len(tracer.spans("send trace.full")) == 4, "there are spans all the same"


async def test_without_opentelemetry_it_can_be_read_and_set(server: Server) -> None:
    given = fairlead.tracing.TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    async with connection(server, None) as client:
        orders = client.queue("trace.plain")
        await orders.send(b"x", properties=given.headers())
        await orders.send(b"y")
        seen = []
        async for message in orders.consume():
            async with message.process():
                seen.append(message.trace)
            if len(seen) == 2:
                break
    assert seen == [given, None]


async def test_tracing_is_off_unless_a_provider_is_set(server: Server) -> None:
    async with fairlead.connect(server.url) as client:
        assert client._tracing is None
        assert client.queue("trace.off").tracing is None
        await client.queue("trace.off").send(b"x")
        async for message in client.queue("trace.off").consume():
            assert message.trace is None
            async with message.process():
                break
    with pytest.raises(fairlead.FairleadError, match="tracing"):
        fairlead.connect(server.url, tracing="yes")  # type: ignore[arg-type]


def test_the_synchronous_face_has_the_same_spans(server: Server, tracer: Tracer) -> None:
    with fairlead.sync.connect(server.url, tracing=tracer.provider) as client:
        orders = client.queue("trace.sync")
        with tracer.tracer.start_as_current_span("shop"):
            orders.send(b"lamp")
        for message in orders.consume():
            with message.process():
                client.queue("trace.sync-out").send(b"x")
            break

        def handler(request: Any) -> bytes:
            client.publish("trace.sync-inside", b"x")
            return b"ok"

        client.respond("trace.sync-ask", handler)
        assert client.request("trace.sync-ask", b"?", timeout=30).body == b"ok"
        with client.queue("trace.sync").consume() as consumer:
            orders.send_many([b"1", b"2"])
            found: list[Any] = []
            while len(found) < 2:
                found += consumer.receive_many(10, timeout=30)
            with consumer.process_many(found):
                pass
    send, process = tracer.spans("send trace.sync")[0], tracer.spans("process trace.sync")[0]
    assert is_child(send, tracer.one("shop"))
    assert is_child(process, send)
    assert is_child(tracer.one("send trace.sync-out"), process)
    assert is_child(tracer.spans("ack trace.sync")[0], process)
    assert is_child(tracer.one("respond trace.sync-ask"), tracer.one("request trace.sync-ask"))
    assert is_child(tracer.one("publish trace.sync-inside"), tracer.one("respond trace.sync-ask"))
    assert len(tracer.spans("process trace.sync")[1].links) == 2


async def test_a_send_that_fails_says_so(server: Server, tracer: Tracer) -> None:
    async with connection(server, tracer) as client:
        with pytest.raises(fairlead.FairleadError):
            await client.queue("trace.none", create=False).send(b"x")
    send = tracer.one("send trace.none")
    assert send.status.status_code is StatusCode.ERROR
    assert send.attributes is not None
    assert send.attributes["error.type"] == "no-destination"


async def test_through_a_tunnel_it_is_the_same(server: Server, tracer: Tracer) -> None:
    async with (
        fairlead.connect(f"http://127.0.0.1:{server.port}", tracing=tracer.provider) as outside,
        connection(server, tracer) as inside,
    ):
        await outside.queue("trace.tunnel").send(b"from outside")
        async for message in inside.queue("trace.tunnel").consume():
            async with message.process():
                break
        await inside.respond("trace.tunnel-ask", lambda request: b"ok")
        assert (await outside.request("trace.tunnel-ask", timeout=30)).body == b"ok"
        await tracer.wait_for("respond trace.tunnel-ask")
    assert is_child(tracer.one("process trace.tunnel"), tracer.one("send trace.tunnel"))
    assert is_child(tracer.one("respond trace.tunnel-ask"), tracer.one("request trace.tunnel-ask"))


PROGRAM = """
import asyncio, sys
import fairlead

async def main(url):
    async with fairlead.connect(url) as client:
        await client.queue("trace.program").send(b"x")
        await client.publish("trace.program-news", b"x")
        async for message in client.queue("trace.program").consume():
            async with message.process():
                print(message.trace is not None)
            break
        if client._tracing is None:
            assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""
NOT_INSTALLED = """
sys.modules["opentelemetry"] = None
try:
    fairlead.connect(tracing=True)
except fairlead.errors.ConfigError as error:
    assert "fairlead[tracing]" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize(("before", "after", "said"), [("", NOT_INSTALLED, "False"), (PROVIDER, "", "True")])
def test_a_program_is_traced_when_it_has_set_a_provider(server: Server, before: str, after: str, said: str) -> None:
    program = f"{before}{PROGRAM}asyncio.run(main(sys.argv[1]))\n{after}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said
