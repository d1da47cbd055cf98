"""The client library's promises about queues, topics and transactions, with a real server that is killed at times."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

import fairlead
from fairlead import sync
from fairlead.errors import BadSelector, Blocked, FairleadError, NoDestination, Stale, TransactionAborted, WrongKind
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=2, **NEVER_FROZEN) as one:
        yield one


@pytest.fixture
def name() -> str:
    return f"test.{uuid4().hex[:12]}"


async def drain(queue: fairlead.Queue, *, timeout: float = 0.5) -> list[fairlead.Delivery]:
    found = []
    async with queue.consume() as consumer:
        while batch := await consumer.receive_many(1000, timeout=timeout):
            found += batch
            await consumer.ack_many(batch, confirm=True)
    return found


@pytest.mark.requirement("CLU-18")
async def test_every_kind_of_body_and_property_comes_back(server: Server, name: str) -> None:
    bodies = [b"\x00bytes", "text ☃", {"a": 1, "b": [b"\xff", None, 2.5]}, [1, "two", {"three": True}]]
    properties = {"yes": True, "int": -(2**62), "float": 1e300, "text": "ü", "raw": b"\x00"}
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        receipts = [await queue.send(body, properties=properties, type="t", correlation_id="c") for body in bodies]
        found = await drain(queue)
        assert [found[0].body, found[1].text(), found[2].data(), found[3].data()] == bodies
        assert [message.body_kind for message in found] == ["bytes", "text", "map", "list"]
        for message, receipt in zip(found, receipts, strict=True):
            assert dict(message.properties) == properties
            assert (message.type, message.correlation_id) == ("t", "c")
            assert (message.id, message.order) == (receipt.id, receipt.order)


@pytest.mark.requirement("CLU-92")
async def test_a_thousand_sends_cost_no_request_for_ids(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        receipts = await queue.send_many([b"x"] * 1000)
        assert len({receipt.id for receipt in receipts}) == 1000
        assert {message.id for message in await drain(queue)} == {receipt.id for receipt in receipts}


@pytest.mark.requirement("CLU-111")
async def test_a_window_of_one_with_a_slow_consumer(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        await queue.send_many([b"%d" % n for n in range(20)])
        async with queue.consume(prefetch=1) as slow, queue.consume(prefetch=1) as quick:
            held = await slow.receive(timeout=15)
            assert held is not None
            taken = 0
            while taken < 19:
                message = await quick.receive(timeout=15)
                assert message is not None
                await message.ack(confirm=True)
                taken += 1
            assert await quick.receive(timeout=0.3) is None
            held.ack()


@pytest.mark.requirement("CLU-20")
@pytest.mark.parametrize(("mode", "left"), [("individual", 10), ("auto", 5), ("client", 10), ("dups-ok", 10)])
async def test_what_a_killed_consumer_leaves(server: Server, name: str, mode: str, left: int) -> None:
    async with fairlead.connect(server.url) as connection:
        await connection.queue(name).send_many([b"%d" % n for n in range(10)])
        other = await fairlead.connect(server.url, reconnect=False)
        consumer = other.queue(name).consume(ack=mode)  # type: ignore[arg-type]
        await consumer.start()
        for _ in range(5):
            assert await consumer.receive(timeout=15)
        while mode == "auto" and not consumer.machine.is_settled:
            await asyncio.sleep(0.01)
        other._carrier._line.transport.abort()  # type: ignore[union-attr]
        found = await drain(connection.queue(name))
        assert len(found) == left if mode != "dups-ok" else len(found) >= 5
        assert all(message.redelivered for message in found if message.order <= 5)


@pytest.mark.requirement("CLU-25")
async def test_prefetched_messages_go_back_uncounted_and_seen_ones_counted(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        await queue.send_many([b"%d" % n for n in range(10)])
        async with queue.consume(prefetch=10) as consumer:
            for _ in range(3):
                await consumer.receive(timeout=15)
        assert [message.delivery_count for message in await drain(queue)] == [2] * 3 + [1] * 7


@pytest.mark.requirement("CLU-28")
async def test_keys_are_worked_off_in_order_by_several_consumers(server: Server, name: str) -> None:
    chance = Random(7)
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        async with queue.sender() as sender:
            for n in range(600):
                await sender.send(b"%d" % n, key=f"k{n % 10}")
        done: dict[str, list[int]] = {f"k{n}": [] for n in range(10)}
        holders: Counter[str] = Counter()

        async def work() -> None:
            async for message in queue.consume(prefetch=20):
                key = message.key or ""
                holders[key] += 1
                assert holders[key] == 1, "two of one key at the same time"
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                holders[key] -= 1
                if chance.random() < 0.05 and message.delivery_count < 8:
                    message.retry()
                else:
                    done[key].append(int(message.body))
                    message.ack()

        tasks = [asyncio.create_task(work()) for _ in range(4)]
        while sum(map(len, done.values())) < 600:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for numbers in done.values():
            assert numbers == sorted(set(numbers))


@pytest.mark.requirement("CLU-17", "CLU-29")
async def test_durable_subscriptions_and_temporary_queues(server: Server, name: str) -> None:
    async with fairlead.connect(server.url, name="auditor") as connection:
        topic = connection.topic(name)
        async with topic.subscribe("audit", selector="n >= 50"):
            pass
        await topic.send_many([b"early"] * 3)
        for n in range(100):
            topic.try_send(b"%d" % n, properties={"n": n})
        await topic.flush()
        async with fairlead.connect(server.url, name="auditor") as later:
            async with later.topic(name).subscribe("audit", selector="n >= 50") as audit:
                found = [await audit.receive(timeout=15) for _ in range(50)]
                assert [int(message.body) for message in found if message] == list(range(50, 100))
                await audit.ack_many([message for message in found if message], confirm=True)
            await later.topic(name).unsubscribe("audit")
        temporary = await connection.temporary_queue()
        async with fairlead.connect(server.url) as other:
            await other.queue(temporary.name, create=False).send(b"answer")
            with pytest.raises(FairleadError):
                await other.queue(temporary.name, create=False).consume().start()
        async with temporary.consume() as consumer:
            assert (await consumer.receive(timeout=15)).body == b"answer"  # type: ignore[union-attr]


@pytest.mark.requirement("CLU-19", "CLU-29")
async def test_selectors_browsing_and_refusals(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        for n in range(6):
            await queue.send(b"%d" % n, properties={"even": n % 2 == 0})
        assert [m.body async for m in queue.browse("even = TRUE")] == [b"0", b"2", b"4"]
        assert [m.body async for m in queue.browse()] == [b"%d" % n for n in range(6)]
        async with queue.consume("even = FALSE") as consumer:
            odd = await consumer.receive_many(10, timeout=2)
            assert [m.body for m in odd] == [b"1", b"3", b"5"]
            await consumer.ack_many(odd, confirm=True)
        with pytest.raises(BadSelector):
            await queue.consume("even = ").start()
        with pytest.raises(WrongKind):
            await connection.topic(name).send(b"x")
        with pytest.raises(NoDestination):
            await connection.queue(f"{name}.none", create=False).send(b"x")


@pytest.mark.requirement("CLU-108")
async def test_a_full_queue_blocks_its_producers_and_lets_them_go_on(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name, parameters={"max_messages": 50})
        await queue.send_many([b"x"] * 60)
        while not queue.is_blocked:
            await asyncio.sleep(0.01)
        assert not queue.try_send(b"no")
        with pytest.raises(Blocked):
            await queue.send(b"no", on_blocked="raise")
        waiting = asyncio.create_task(queue.send(b"last"))
        found = await drain(queue)
        await asyncio.wait_for(waiting, 5)
        found += await drain(queue)
        assert [message.body for message in found] == [b"x"] * 60 + [b"last"]


@pytest.mark.requirement("CLU-26", "CLU-25")
async def test_a_message_that_always_fails_dies(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name, parameters={"delivery_limit": 3, "dead_queue": f"{name}.dead"})
        await queue.send_many([b"bad", b"good"])
        counts = []
        async with queue.consume() as consumer:
            while (message := await consumer.receive(timeout=1)) is not None:
                if message.body == b"bad":
                    counts.append(message.delivery_count)
                    message.retry()
                else:
                    message.ack()
        assert counts == [1, 2, 3]


@pytest.mark.requirement("CLU-93", "CLU-99", "CLU-100")
async def test_very_large_messages_of_every_kind_of_source(server: Server, name: str, tmp_path: Path) -> None:
    data = Random(1).randbytes(6_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 777_777):
            yield data[at : at + 777_777]

    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        for body in (data, io.BytesIO(data), pieces()):
            await queue.send(body)  # type: ignore[arg-type]
        first = asyncio.create_task(queue.send(io.BytesIO(data)))
        await asyncio.sleep(0.01)
        await queue.send(b"behind it")
        await first
        async with queue.consume() as consumer:
            for _ in range(2):
                message = await consumer.receive(timeout=5)
                assert message is not None
                assert hashlib.sha256(await message.read()).digest() == hashlib.sha256(data).digest()
                message.ack()
            third = await consumer.receive(timeout=5)
            assert third is not None
            assert await third.save(tmp_path / "copy") == len(data)
            assert (tmp_path / "copy").read_bytes() == data
            third.ack()
            fourth, last = await consumer.receive(timeout=5), await consumer.receive(timeout=5)
            assert fourth is not None
            assert last is not None
            assert fourth.is_large
            assert last.body == b"behind it"
            async with fourth.stream() as stream:
                assert await stream.read(1000) == data[:1000]
            await consumer.ack_many([fourth, last], confirm=True)


@pytest.mark.requirement("CLU-158", "CLU-159", "CLU-160")
async def test_what_a_commit_and_a_rollback_leave(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        await queue.send_many([b"%d" % n for n in range(10)])
        async with connection.session(ack="transacted") as session, session.queue(name).consume(prefetch=10) as taker:
            for _ in range(3):
                await taker.receive(timeout=15)
            await session.rollback()
            again = [await taker.receive(timeout=15) for _ in range(10)]
            assert [m.body for m in again if m] == [b"%d" % n for n in range(10)]
            assert [m.delivery_count for m in again if m] == [2] * 3 + [1] * 7
            await session.rollback()
            for _ in range(3):
                await taker.receive(timeout=15)
            await session.commit()
        assert [message.body for message in await drain(queue)] == [b"%d" % n for n in range(3, 10)]


async def test_the_synchronous_face(server: Server, name: str) -> None:
    def work() -> list[bytes]:
        with sync.connect(server.url) as connection:
            queue = connection.queue(name)
            queue.send_many([b"%d" % n for n in range(100)])
            with connection.transaction() as transaction:
                transaction.send(name, b"last")
            found = []
            for message in queue.consume(ack="auto"):
                found.append(message.body)
                if message.body == b"last":
                    break
            return found

    assert await asyncio.to_thread(work) == [*(b"%d" % n for n in range(100)), b"last"]


# --- Losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("CLU-118", "CLU-119", "CLU-121", "CLU-122", "CLU-123")
@pytest.mark.parametrize("role", ["message-manager", "manager"])
async def test_kills_are_a_delay_for_senders_and_consumers(server: Server, name: str, role: str) -> None:
    """Nothing confirmed is lost or doubled; what comes twice says so; each producer's order is kept."""
    async with fairlead.connect(server.url) as sending, fairlead.connect(server.url) as receiving:
        queue = sending.queue(name)
        seen: list[tuple[int, bool]] = []

        async def read() -> None:
            async for message in receiving.queue(name).consume(prefetch=200):
                seen.append((int(message.body), message.redelivered))
                message.ack()

        reader = asyncio.create_task(read())
        sent = 0
        async with queue.sender(window=200) as sender:
            for kill in range(2):
                for _ in range(1500):
                    await sender.send(b"%d" % sent)
                    sent += 1
                while not (pids := server.pids(role)):
                    await asyncio.sleep(0.02)
                server.kill(role, kill % len(pids))
        while len({number for number, _ in seen}) < sent:
            await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert {number for number, _ in seen} == set(range(sent))
        new = [number for number, again in seen if not again]
        assert new == sorted(new)
        assert len(new) == len(set(new)), "a second delivery without its mark"
        left = [int(message.body) for message in await drain(queue)]
        assert set(left) <= {number for number, _ in seen}


async def test_a_rolling_update_of_the_managers_is_not_noticed(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as sending, fairlead.connect(server.url) as receiving:
        seen: list[tuple[int, bool]] = []

        async def read() -> None:
            async for message in receiving.queue(name).consume():
                seen.append((int(message.body), message.redelivered))
                message.ack()

        reader = asyncio.create_task(read())
        update = asyncio.create_task(asyncio.to_thread(server.update, "managers"))
        sent = 0
        async with sending.queue(name).sender(window=100) as sender:
            while not update.done():
                await sender.send(b"%d" % sent)
                sent += 1
                if sent % 50 == 0:
                    await asyncio.sleep(0.005)
        assert (await update)["ok"]
        while len({number for number, _ in seen}) < sent:
            await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        new = [number for number, again in seen if not again]
        assert new == sorted(set(new))


@pytest.mark.requirement("CLU-127", "CLU-155", "CLU-123")
async def test_transfers_while_the_message_manager_is_killed(server: Server, name: str) -> None:
    """Coins are moved from queue to queue: none is lost, none is doubled, and what was told is true."""
    first, second = f"{name}.a", f"{name}.b"
    async with fairlead.connect(server.url) as connection:
        await connection.queue(first).send_many([b"%d" % n for n in range(40)])
        await connection.queue(second).send(b"begin")
        moved: list[bytes] = []

        async def move(transaction: fairlead.Transaction) -> bytes | None:
            coin = await transaction.receive(first, timeout=3)
            if coin is None:
                return None
            await transaction.send(second, coin.body)
            return coin.body

        async def work() -> None:
            while True:
                try:
                    coin = await connection.run_transaction(move)
                except TransactionAborted as error:
                    assert not error.retryable, "attempts ran out"
                    raise
                if coin is None:
                    return
                moved.append(coin)

        async def kill() -> None:
            for _ in range(2):
                await asyncio.sleep(0.3)
                while not server.pids("message-manager"):
                    await asyncio.sleep(0.02)
                server.kill("message-manager")

        await asyncio.gather(work(), work(), kill())
        assert sorted(moved) == sorted(b"%d" % n for n in range(40))
        found = Counter(message.body for message in await drain(connection.queue(second)) if message.body != b"begin")
        assert found == Counter(moved)


@pytest.mark.requirement("CLU-98", "CLU-123")
async def test_a_very_large_message_goes_on_after_a_kill(server: Server, name: str) -> None:
    data = Random(2).randbytes(12_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 1_000_000):
            if at == 6_000_000:
                server.kill("message-manager")
            yield data[at : at + 1_000_000]
            await asyncio.sleep(0.01)

    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        await queue.send(b"before")
        await queue.send(pieces())
        async with queue.consume() as consumer:
            small = await consumer.receive(timeout=5)
            large = await consumer.receive(timeout=5)
            assert small is not None
            assert large is not None
            assert await large.read() == data
            await consumer.ack_many([small, large], confirm=True)


@pytest.mark.requirement("CLU-126", "CLU-125")
async def test_after_a_loss_old_acknowledgements_are_stale_or_settle_what_came_again(server: Server, name: str) -> None:
    async with fairlead.connect(server.url) as connection, fairlead.connect(server.url) as other:
        queue = connection.queue(name)
        await queue.send(b"x")
        async with queue.consume() as consumer:
            message = await consumer.receive(timeout=15)
            assert message is not None
            async with other.queue(name).consume() as rival:
                connection._carrier._line.transport.abort()  # type: ignore[union-attr]
                second = await rival.receive(timeout=5)
                assert second is not None
                assert second.redelivered
                with pytest.raises(Stale):
                    await message.ack(confirm=True)
                await second.ack(confirm=True)
