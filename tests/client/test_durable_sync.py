"""Queues and topics without an event loop: the same names, on a thread of their own."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import sync
from fairlead.errors import NoDestination, TransactionAborted
from tests.client.test_durable import Server


@pytest.fixture
def server() -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    one = Server()
    asyncio.run_coroutine_threadsafe(one.start(), loop).result()
    yield one
    asyncio.run_coroutine_threadsafe(one.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_send_and_receive(server: Server, tmp_path: Path) -> None:
    with sync.connect(server.url) as connection:
        orders = connection.queue("orders")
        receipt = orders.send({"id": 1}, key="k", properties={"a": 1})
        assert receipt.order == 1
        assert [one.order for one in orders.send_many([b"2", b"3"])] == [2, 3]
        assert orders.try_send(b"4")
        orders.flush()
        assert not orders.is_blocked
        with orders.sender(window=10) as sender:
            futures = [sender.send(b"%d" % n) for n in range(20)]
        assert [future.result().order for future in futures] == list(range(5, 25))
        assert len([message.body for message in orders.browse()]) == 24
        with orders.consume() as consumer:
            first = consumer.receive(timeout=15)
            assert first is not None
            assert (first.data(), first.key, first.id) == ({"id": 1}, "k", receipt.id)
            first.ack(confirm=True)
            with consumer.receive(timeout=15).process():  # type: ignore[union-attr]
                pass
            batch = consumer.receive_many(5, timeout=1)
            consumer.ack_many(batch, confirm=True)
            assert consumer.receive_nowait() is not None
        assert orders.send(io.BytesIO(b"x" * 3_000_000)).order == 25
        for message in orders.consume(ack="auto"):
            if message.is_large:
                assert message.save(tmp_path / "large") == 3_000_000
                break
        with orders.consume() as consumer:
            last = consumer.receive(timeout=15)
            assert last is not None
            assert last.is_large
            assert b"".join(last.stream()) == b"x" * 3_000_000
            last.ack()
        assert server.bodies("orders") == []


def test_topics_sessions_and_transactions(server: Server) -> None:
    with sync.connect(server.url) as connection:
        prices = connection.topic("prices")
        with prices.subscribe("audit") as audit:
            prices.send(b"1")
            assert audit.receive(timeout=15).body == b"1"  # type: ignore[union-attr]
        prices.unsubscribe("audit")
        with connection.transaction() as transaction:
            transaction.send("invoices", b"1")
        with connection.transaction() as transaction:
            assert transaction.receive("invoices", timeout=15).body == b"1"  # type: ignore[union-attr]
            transaction.rollback()
        assert connection.run_transaction(lambda one: one.receive("invoices", timeout=15).body) == b"1"  # type: ignore[union-attr]
        assert server.bodies("invoices") == []
        with pytest.raises(TransactionAborted), connection.transaction() as transaction:
            transaction.queue("nowhere", create=False).send(b"x")
        with connection.session(ack="client") as session:
            queue = session.queue("q")
            queue.send_many([b"1", b"2"])
            with queue.consume() as consumer:
                consumer.receive_many(2, timeout=1)
                session.acknowledge()
        assert server.bodies("q") == []
        with pytest.raises(NoDestination):
            connection.queue("nowhere", create=False).send(b"x")


def test_a_listener_on_a_thread(server: Server) -> None:
    with sync.connect(server.url) as connection:
        queue = connection.queue("q")
        done, seen = threading.Event(), []

        def listen(message: sync.Delivery) -> None:
            seen.append(message.body)
            message.ack(confirm=True)  # may block: it runs on a thread
            if len(seen) == 3:
                done.set()

        consumer = queue.consume()
        consumer.listen(listen)
        queue.send_many([b"1", b"2", b"3"])
        assert done.wait(5)
        consumer.close()
        assert seen == [b"1", b"2", b"3"]
        assert server.bodies("q") == []
