"""Queues and topics as an application uses them, against a small server in memory that can be lost at will."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.errors import (
    BadParameter,
    Blocked,
    ConnectionLost,
    LocalProtocolError,
    NoDestination,
    RequestTimeout,
    Stale,
    TransactionAborted,
    TransferFailed,
)
from fairlead.wire import durable
from fairlead.wire.frames import Message
from tests.client.conftest import FakeServer, Peer, loops
from tests.client.durable_server import DurableServer, Line


class Server(FakeServer):
    """The scripted peer of the other tests, with a message manager behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = DurableServer()
        self.lines: dict[int, Line] = {}
        self.drop_at: Callable[[Message], bool] = lambda message: False

    def take(self, peer: Peer, message: Message) -> None:
        if not durable.KIND_DURABLE_FIRST <= message.kind <= durable.KIND_DURABLE_LAST:
            super().take(peer, message)
            return
        if self.drop_at(message):
            peer.transport.abort()
            return
        if peer.uid not in self.lines:
            self.lines[peer.uid] = Line(self.manager, lambda frame: self.say(peer, frame))
        self.lines[peer.uid].take(message)

    def say(self, peer: Peer, frame: bytes) -> None:
        if not peer.transport.is_closing():
            peer.transport.write(frame)

    def forget(self, peer: Peer) -> None:
        super().forget(peer)
        if line := self.lines.pop(peer.uid, None):
            line.lost()

    def cut(self) -> None:
        for peer in list(self.peers.values()):
            peer.transport.abort()

    def bodies(self, name: str) -> list[bytes]:
        return self.manager.destinations[name].bodies


Story = Callable[[Server, Connection], Awaitable[None]]


@pytest.fixture(params=loops(), ids=lambda factory: factory.__module__.partition(".")[0])
def play(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def main() -> None:
            server = Server()
            await server.start()
            try:
                async with asyncio.timeout(10), fairlead.connect(server.url, name="test") as connection:
                    await story(server, connection)
            finally:
                await server.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


Play = Callable[[Story], None]


@pytest.mark.requirement("CLU-117", "CLU-18")
def test_send_and_receive(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        orders = connection.queue("orders")
        receipt = await orders.send(
            {"id": 7, "raw": b"\x00"}, key="c1", priority=7, ttl=60, properties={"region": "eu", "n": 1.5, "ok": True},
            correlation_id="c", reply_to=connection.queue("answers"), type="order", dedup="d1",
        )  # fmt: skip
        assert receipt.order == 1
        assert receipt.destination == "orders"
        await orders.send("text")
        async with orders.consume() as consumer:
            message = await consumer.receive(timeout=1)
            assert message is not None
            assert message.data() == {"id": 7, "raw": b"\x00"}
            assert (message.key, message.priority, message.correlation_id) == ("c1", 7, "c")
            assert (message.reply_to, message.type, message.destination) == ("answers", "order", "orders")
            assert dict(message.properties) == {"region": "eu", "n": 1.5, "ok": True}
            assert message.id == receipt.id
            assert message.expiration is not None
            assert (message.redelivered, message.delivery_count) == (False, 1)
            assert abs((datetime.now(UTC) - message.timestamp).total_seconds()) < 60
            with pytest.raises(TypeError):
                message.properties["region"] = "us"  # type: ignore[index]
            await message.ack(confirm=True)
            second = await consumer.receive(timeout=1)
            assert second is not None
            assert second.text() == "text"
            second.ack()
        assert server.bodies("orders") == []

    play(story)


@pytest.mark.requirement("CLU-30")
def test_ways_to_receive(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"%d" % n for n in range(20)])
        async with queue.consume() as consumer:
            assert (await consumer.receive()).body == b"0"  # type: ignore[union-attr]
            assert consumer.receive_nowait().body == b"1"  # type: ignore[union-attr]
            batch = await consumer.receive_many(3, timeout=1)
            assert [message.body for message in batch] == [b"2", b"3", b"4"]
            consumer.ack_many(batch)
            async for batch in consumer.batches(limit=5):
                assert len(batch) <= 5
                await batch[-1].ack_through(confirm=True)
                if batch[-1].body == b"19":
                    break
            assert consumer.receive_nowait() is None
            assert await consumer.receive(timeout=0.01) is None
            assert await consumer.receive_many(3, timeout=0.01) == []
        assert server.bodies("q") == []

    play(story)


@pytest.mark.requirement("CLU-20")
@pytest.mark.parametrize(("mode", "left"), [("individual", 10), ("auto", 6), ("client", 10), ("dups-ok", 5)])
def test_what_a_lost_consumer_leaves_unacknowledged(play: Play, mode: Any, left: int) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"%d" % n for n in range(10)])
        consumer = queue.consume(ack=mode)
        taken = 0
        async for _ in consumer:
            taken += 1
            if taken == 5:
                break
        while len(server.bodies("q")) > left:
            await asyncio.sleep(0.001)
        server.cut()
        await asyncio.sleep(0.01)
        assert len(server.bodies("q")) == left

    play(story)


@pytest.mark.requirement("CLU-20")
def test_client_mode_acknowledges_everything_so_far(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        session = connection.session(ack="client")
        one, two = session.queue("one"), session.queue("two")
        await one.send_many([b"1", b"2"])
        await two.send_many([b"3", b"4"])
        async with one.consume() as first, two.consume() as second:
            await first.receive()
            await second.receive()
            last = await second.receive()
            assert last is not None
            await last.ack(confirm=True)
            session.acknowledge()
        assert server.bodies("one") == [b"2"]
        assert server.bodies("two") == []
        await session.close()

    play(story)


def test_recover_gives_back_what_was_not_acknowledged(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        session = connection.session(ack="client")
        queue = session.queue("q")
        await queue.send_many([b"1", b"2", b"3"])
        async with queue.consume() as consumer:
            await consumer.receive_many(2)
            await session.recover()
            found = [await consumer.receive(timeout=1) for _ in range(3)]
            assert [(m.body, m.delivery_count) for m in found if m] == [(b"1", 2), (b"2", 2), (b"3", 1)]

    play(story)


@pytest.mark.requirement("CLU-30", "CLU-20")
def test_listeners_run_one_at_a_time_and_stop_waits_for_them(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        session = connection.session(ack="auto")
        running, most, seen = 0, 0, []

        async def listen(message: fairlead.Delivery) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            seen.append(message.body)
            running -= 1

        queues = [session.queue(name) for name in ("a", "b")]
        consumers = [queue.consume() for queue in queues]
        for queue, consumer in zip(queues, consumers, strict=True):
            await queue.send_many([b"x"] * 10)
            consumer.listen(listen)
        while len(seen) < 5:
            await asyncio.sleep(0.001)
        await session.stop()
        assert running == 0
        count = len(seen)
        await asyncio.sleep(0.02)
        assert len(seen) == count
        await session.start()
        while len(seen) < 20:
            await asyncio.sleep(0.001)
        assert most == 1
        for consumer in consumers:
            await consumer.close()
        assert server.bodies("a") == server.bodies("b") == []

    play(story)


@pytest.mark.requirement("CLU-126")
def test_a_message_that_waits_for_its_listener_is_nothing_the_application_has(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        session = connection.session(ack="auto")
        free = asyncio.Event()
        seen: list[bytes] = []

        async def listen(message: fairlead.Delivery) -> None:
            seen.append(message.body)
            await free.wait()

        consumers = [session.queue(name).consume() for name in ("a", "b")]
        for consumer in consumers:
            await session.queue(consumer.destination).send(consumer.destination.encode())
            consumer.listen(listen)
            while not (seen and (consumer is consumers[0] or consumer._handed)):
                await asyncio.sleep(0.001)
        server.manager.commands.clear()
        server.cut()
        asked = server.manager.commands
        while sum(one["do"] == "consume" for one in asked) < 2:
            await asyncio.sleep(0.001)
        assert {one["destination"]: one["holds"] for one in asked if one["do"] == "consume"} == {"a": [[1, 2]], "b": []}
        free.set()
        while server.bodies("a") or server.bodies("b"):
            await asyncio.sleep(0.001)
        assert seen == [b"a", b"b"]

    play(story)


def test_a_listener_that_fails_gives_its_message_back(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"x")
        counts: list[int] = []

        def listen(message: fairlead.Delivery) -> None:
            counts.append(message.delivery_count)
            if len(counts) < 3:
                raise RuntimeError("not yet")

        consumer = queue.consume(ack="auto")
        consumer.listen(listen)
        while len(counts) < 3:
            await asyncio.sleep(0.001)
        await consumer.close()
        assert counts == [1, 2, 3]
        assert server.bodies("q") == []

    play(story)


def test_process_acknowledges_or_gives_back(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"good", b"bad"])
        async with queue.consume() as consumer:
            for _ in range(3):
                message = await consumer.receive(timeout=1)
                assert message is not None
                try:
                    async with message.process():
                        if message.body == b"bad" and not message.redelivered:
                            raise ValueError
                except ValueError:
                    pass
        assert server.bodies("q") == []

    play(story)


def test_a_consumer_is_closed_at_the_server_though_its_acknowledgements_are_not_answered_in_time(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it holds messages, or a durable subscription, for as long as the session lasts."""
    monkeypatch.setattr("fairlead.client.aio.consuming.CLOSE_S", 0.1)

    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("orders", create=True)
        await queue.send(b"one")
        async with queue.consume() as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            server.manager.on_settle = lambda line, message: None  # type: ignore[method-assign]
            message.ack()
        while server.manager.consumers():
            await asyncio.sleep(0.01)

    play(story)


@pytest.mark.requirement("CLU-25")
def test_closing_gives_back_what_was_not_seen(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"%d" % n for n in range(30)])
        async for message in queue.consume():
            if message.body == b"2":
                break
            message.ack()
        for _ in range(20):
            await asyncio.sleep(0.005)
        destination = server.manager.destinations["q"]
        assert destination.bodies == [b"%d" % n for n in range(2, 30)]
        assert not destination.cursors[""].locks
        assert destination.cursors[""].counts[3] == 2
        assert set(destination.cursors[""].counts.values()) == {1, 2}
        assert sum(count == 2 for count in destination.cursors[""].counts.values()) == 1

    play(story)


def test_pause_and_resume(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"1", b"2"])
        async with queue.consume() as consumer:
            assert await consumer.receive(timeout=1)
            await consumer.pause()
            assert await consumer.receive(timeout=0.02) is None
            await consumer.resume()
            assert await consumer.receive(timeout=1)

    play(story)


@pytest.mark.requirement("CLU-117")
def test_a_sender_has_many_under_way_and_gives_receipts_in_order(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        told: list[int | None] = []
        async with queue.sender(window=64, on_receipt=lambda receipt: told.append(receipt.order)) as sender:
            futures = [await sender.send(b"%d" % n) for n in range(1000)]
        assert [future.result().order for future in futures] == list(range(1, 1001))
        await asyncio.sleep(0)
        assert told == list(range(1, 1001))
        assert server.manager.stores < 200
        assert server.bodies("q") == [b"%d" % n for n in range(1000)]

    play(story)


def test_a_sender_raises_what_nobody_looked_at(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        with pytest.raises(BadParameter, match="it says so"):
            async with connection.queue("q").sender() as sender:
                await sender.send(b"refuse this")
                await sender.send(b"but not this")
        assert server.bodies("q") == [b"but not this"]

    play(story)


def test_send_many_says_what_failed(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        assert await queue.send_many([]) == []
        assert [r.order for r in await queue.send_many([b"x"] * 5000)] == list(range(1, 5001))
        with pytest.raises(BadParameter):
            await queue.send_many([b"1", b"refuse", b"3"])

    play(story)


@pytest.mark.requirement("CLU-121", "CLU-122", "CLU-123", "CLU-118")
def test_losses_are_a_delay_and_nothing_else(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"first")
        seen: list[bytes] = []

        async def read() -> None:
            async for message in queue.consume(prefetch=20):
                seen.append(message.body)
                message.ack()

        reader = asyncio.create_task(read())
        async with queue.sender(window=50) as sender:
            for n in range(600):
                if n % 150 == 75:
                    await asyncio.sleep(0.005)
                    server.cut()
                await sender.send(b"%d" % n)
        while len(set(seen)) < 601:
            await asyncio.sleep(0.005)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert list(dict.fromkeys(seen)) == [b"first", *(b"%d" % n for n in range(600))]
        assert len(server.manager.destinations["q"].messages) == 601

    play(story)


@pytest.mark.requirement("CLU-117")
def test_when_reconnecting_is_given_up_everybody_is_told(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        other = await fairlead.connect(server.url, reconnect_limit_s=0.05)
        queue = other.queue("q")
        await queue.send(b"x")
        server.manager.confirming = False
        sends = [asyncio.create_task(queue.send(b"y")) for _ in range(3)]
        consumer = await queue.consume().start()
        seen = 0
        while seen < 4:
            seen += len(await consumer.receive_many(10, timeout=5))
        waiting = asyncio.create_task(consumer.receive_many(10))
        await server.stop()
        results = await asyncio.gather(*sends, waiting, return_exceptions=True)
        assert all(isinstance(result, ConnectionLost) for result in results)
        with pytest.raises(ConnectionLost):
            await queue.send(b"z")
        await other.close()

    play(story)


@pytest.mark.requirement("CLU-117")
def test_closing_resolves_every_send(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        other = await fairlead.connect(server.url)
        queue = other.queue("q")
        sender = queue.sender()
        futures = [await sender.send(b"%d" % n) for n in range(100)]
        await other.close()
        assert [future.result().order for future in futures] == list(range(1, 101))
        with pytest.raises(ConnectionLost):
            await queue.send(b"late")

    play(story)


@pytest.mark.requirement("CLU-108", "CLU-104")
def test_blocked(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"x")
        assert not queue.is_blocked
        destination = server.manager.destinations["q"]

        def tell(event: str) -> None:
            destination.blocked = event == "blocked"
            for line in server.lines.values():
                line.notice(event=event, destination="q", producer=1)

        tell("blocked")
        while not queue.is_blocked:
            await asyncio.sleep(0.001)
        assert not queue.try_send(b"y")
        with pytest.raises(Blocked):
            await queue.send(b"y", on_blocked="raise")
        with pytest.raises(RequestTimeout):
            await queue.send(b"y", timeout=0.02)
        waiting = asyncio.create_task(queue.send(b"z"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        tell("unblocked")
        await waiting
        assert queue.try_send(b"last")
        await queue.flush()
        assert server.bodies("q") == [b"x", b"z", b"last"]

    play(story)


def test_a_send_that_times_out_may_still_be_stored(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"x")
        server.manager.confirming = False
        with pytest.raises(RequestTimeout):
            await queue.send(b"y", timeout=0.02)
        assert server.bodies("q") == [b"x", b"y"]
        server.manager.confirming = True
        server.cut()

    play(story)


def test_what_is_wrong_is_said(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        with pytest.raises(NoDestination):
            await connection.queue("nowhere", create=False).send(b"x")
        with pytest.raises(NoDestination):
            async with connection.queue("nowhere", create=False).consume():
                pass
        with pytest.raises(BadParameter):
            await connection.queue("q").send(object())  # type: ignore[arg-type]
        with pytest.raises(BadParameter):
            connection.queue("q").consume(ack="sometimes")  # type: ignore[arg-type]
        with pytest.raises(BadParameter):
            connection.queue("q").consume(prefetch=0)
        with pytest.raises(LocalProtocolError):
            await connection.session().commit()

    play(story)


@pytest.mark.requirement("CLU-17", "CLU-29")
def test_topics_and_their_subscriptions(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        prices = connection.topic("prices")
        async with prices.subscribe() as live, prices.subscribe("audit"):
            await prices.send(b"1")
            message = await live.receive(timeout=1)
            assert message is not None
            assert message.body == b"1"
            message.ack()
        await prices.send(b"2")
        async with prices.subscribe("audit") as audit:
            found = [await audit.receive(timeout=1) for _ in range(2)]
            assert [message.body for message in found if message] == [b"1", b"2"]
            audit.ack_many(message for message in found if message)
        await prices.unsubscribe("audit")
        assert "audit" not in server.manager.destinations["prices"].cursors
        assert [m.body async for m in prices.replay("first")] == [b"1", b"2"]
        assert [m.body async for m in prices.browse()] == [b"1", b"2"]

    play(story)


@pytest.mark.requirement("CLU-29")
def test_browsing_temporary_queues_and_schedules(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"1", b"2", b"3"])
        assert [m.body async for m in queue.browse()] == [b"1", b"2", b"3"]
        assert [m.body async for m in queue.browse()] == [b"1", b"2", b"3"]
        temporary = await connection.temporary_queue()
        await temporary.send(b"x")
        async for message in temporary.consume():
            assert message.destination == temporary.name
            break
        assert (await connection.temporary_topic()).kind == "topic"
        assert (await queue.schedules())[0]["cron"] == "@hourly"
        await queue.cancel(1)

    play(story)


@pytest.mark.requirement("CLU-154", "CLU-155", "CLU-156")
def test_transactions(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        await connection.queue("orders").send_many([b"1", b"2"])
        async with connection.transaction() as transaction:
            message = await transaction.receive("orders", timeout=1)
            assert message is not None
            await transaction.send("invoices", b"for " + message.body)
            assert transaction.id
            await asyncio.sleep(0.01)
            assert server.bodies("invoices") == []
        assert server.bodies("invoices") == [b"for 1"]
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction() as transaction:
                await transaction.receive("orders", timeout=1)
                await transaction.send("invoices", b"never")
                raise ZeroDivisionError
        assert server.bodies("invoices") == [b"for 1"]
        assert server.bodies("orders") == [b"2"]
        assert server.manager.destinations["orders"].cursors[""].counts[2] == 2

    play(story)


def test_a_transacted_session_goes_from_one_transaction_to_the_next(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        await connection.queue("in").send_many([b"%d" % n for n in range(10)])
        async with connection.session(ack="transacted") as session:
            target = session.queue("out")
            async with session.queue("in").consume() as consumer:
                for n in range(10):
                    message = await consumer.receive(timeout=1)
                    assert message is not None
                    with pytest.raises(LocalProtocolError):
                        message.retry()
                    await target.send(message.body)
                    await (session.rollback() if n == 4 else session.commit())
        assert server.bodies("out") == [b"%d" % n for n in (0, 1, 2, 3, 4, 5, 6, 7, 8)]

    play(story)


@pytest.mark.requirement("CLU-123", "CLU-127")
def test_a_transaction_cut_off_is_undone_or_done_again(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        await connection.queue("orders").send(b"1")
        with pytest.raises(TransactionAborted) as caught:
            async with connection.transaction() as transaction:
                await transaction.receive("orders", timeout=1)
                server.cut()
                await asyncio.sleep(0.1)
                await transaction.send("invoices", b"x")
        assert caught.value.retryable
        attempts = 0

        async def move(transaction: fairlead.Transaction) -> bytes:
            nonlocal attempts
            attempts += 1
            message = await transaction.receive("orders", timeout=1)
            assert message is not None
            await transaction.send("invoices", message.body)
            if attempts == 1:
                server.cut()
                await asyncio.sleep(0.1)
            return message.body

        assert await connection.run_transaction(move) == b"1"
        assert attempts == 2
        assert server.bodies("invoices") == [b"1"]
        assert server.bodies("orders") == []

    play(story)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


@pytest.mark.requirement("CLU-93", "CLU-100", "CLU-99")
def test_very_large_messages(play: Play, tmp_path: Path) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        data = bytes(range(256)) * 8192
        sends = [
            asyncio.create_task(queue.send(body))
            for body in (data, io.BytesIO(data), pieces(data), b"small")  # type: ignore[arg-type]
        ]
        receipts = await asyncio.gather(*sends)
        assert sorted(receipt.order for receipt in receipts if receipt.order) == [1, 2, 3, 4]
        async with queue.consume() as consumer:
            found = [m for _ in range(4) if (m := await consumer.receive(timeout=1)) is not None]
            large = [message for message in found if message.is_large]
            assert [message.size for message in large] == [len(data)] * 3
            with pytest.raises(LocalProtocolError):
                assert large[0].body
            assert await large[0].read(1000) == data[:1000]
            assert await large[0].read() == data[1000:]
            assert await large[1].save(tmp_path / "body") == len(data)
            assert (tmp_path / "body").read_bytes() == data
            async with large[2].stream() as stream:
                async for piece in stream:
                    assert data.startswith(piece)
                    break
            consumer.ack_many(found)

    play(story)


def test_a_source_that_fails_fails_its_message_alone(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"x"
            raise OSError("the disk is gone")

        queue = connection.queue("q")
        with pytest.raises(OSError, match="the disk is gone"):
            await queue.send(broken())
        with pytest.raises(BadParameter):
            await queue.send(io.StringIO("text"))  # type: ignore[arg-type]
        assert (await queue.send(b"next")).order == 1
        assert TransferFailed.code == "transfer-failed"

    play(story)


@pytest.mark.requirement("CLU-25", "CLU-125")
def test_what_a_loop_had_not_shown_when_the_line_was_lost_comes_again_marked(play: Play) -> None:
    """Somebody else may have got it meanwhile: shown from the old line, it would be a repeat without the mark."""

    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send_many([b"%d" % n for n in range(10)])
        seen: list[tuple[int, bool]] = []
        async for message in queue.consume(prefetch=10):  # half of it is taken in one go
            seen.append((message.order, message.redelivered))
            if len(seen) == 1:
                server.cut()
                await queue.send(b"last")  # over the next line
            message.ack()
            if message.order == 11:
                break
        assert seen[0] == (1, False)
        assert seen[1:] == [*((order, True) for order in range(2, 11)), (11, False)]

    play(story)


@pytest.mark.requirement("CLU-126")
def test_stale_acknowledgements_are_told(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"x")
        async with queue.consume() as consumer:
            message = await consumer.receive(timeout=1)
            assert message is not None
            cursor = server.manager.destinations["q"].cursors[""]
            del cursor.locks[1]
            with pytest.raises(Stale):
                await message.ack(confirm=True)
            assert consumer.stale == 1

    play(story)


def test_the_message_manager_may_go_and_come_back(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        queue = connection.queue("q")
        await queue.send(b"1")
        (line,) = server.lines.values()
        line.notice(event="interrupted")
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(queue.send(b"2"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        line.lost()
        line.notice(event="back")
        assert (await waiting).order == 2

    play(story)


def test_administration_collects_as_many_answers_as_there_are_to_be(play: Play) -> None:
    async def story(server: Server, connection: Connection) -> None:
        import json

        async def answer(nodes: int) -> None:
            async with connection.subscribe("_ADMIN") as asked:
                ready.set()
                async for message in asked:
                    request = json.loads(message.body)
                    for node in range(nodes):
                        reply = {"id": request["id"], "node": f"mm-{node}", "expected": nodes}
                        facts = {"ok": {"args": request["args"]}} if request["command"] == "destinations" else {
                            "error": {"code": "no-destination", "text": "there is none"}}  # fmt: skip
                        await connection.publish(request["reply"], json.dumps(reply | facts))

        for nodes in (1, 2):
            ready = asyncio.Event()
            task = asyncio.create_task(answer(nodes))
            await ready.wait()
            facts = await connection.admin.destinations(pattern="a*")
            if nodes == 1:
                assert facts == {"args": {"pattern": "a*"}}
            else:
                assert set(facts["nodes"]) == {"mm-0", "mm-1"}
            with pytest.raises(NoDestination, match="there is none"):
                await connection.admin.execute("delete", name="x")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    play(story)
