"""The rules of Jakarta Messaging as a client sees them on a real server. docs/conformance.md lists them by name."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, TransactionAborted
from fairlead.testing import Server
from tests.processes.durable.conftest import Join

pytestmark = pytest.mark.processes

PATIENCE_S = 10.0
SOON_S = 0.4  # long enough to see that nothing comes


async def take(consumer: Any, count: int) -> list[Any]:
    """So many messages, acknowledged."""
    found = []
    for _ in range(count):
        message = await consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"only {len(found)} of {count} came"
        await message.ack(confirm=True)
        found.append(message)
    return found


async def texts(consumer: Any, count: int) -> list[str]:
    return [message.text() for message in await take(consumer, count)]


async def is_silent(consumer: Any) -> bool:
    return await consumer.receive(timeout=SOON_S) is None


async def depth(connection: Any, name: str) -> int:
    found: int = (await connection.admin.execute("destination", destination=name))["depth"]
    return found


# --- Queues and topics ------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-14")
async def test_a_message_stays_until_it_is_consumed_also_when_everything_is_started_anew() -> None:
    with Server() as server:
        async with fairlead.connect(server.url) as connection:
            await connection.queue("kept", create=True).send("still here")
        server.stop()
        server.start()
        async with fairlead.connect(server.url) as connection:
            async with connection.queue("kept").consume() as consumer:
                assert await texts(consumer, 1) == ["still here"]
            assert await depth(connection, "kept") == 0


@pytest.mark.requirement("CLU-15")
async def test_a_queue_message_goes_to_one_consumer(join: Join, name: str) -> None:
    async with join() as sender:
        await sender.queue(name, create=True).send_many([str(number) for number in range(10_000)])
        found: Counter[int] = Counter()

        async def consume(number: int) -> None:
            async with join(f"c{number}") as connection, connection.queue(name).consume(prefetch=50) as consumer:
                while (message := await consumer.receive(timeout=SOON_S)) is not None:
                    found[int(message.body)] += 1
                    await message.ack()

        await asyncio.gather(*(consume(number) for number in range(10)))
        assert found == Counter(range(10_000))
        assert await depth(sender, name) == 0


@pytest.mark.requirement("CLU-15")
async def test_a_message_with_one_consumer_is_locked_for_the_others(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        await a.queue(name, create=True).send("one")
        async with b.queue(name).consume() as second, a.queue(name).consume() as first:
            holder, other = first, second
            message = await first.receive(timeout=SOON_S)
            if message is None:
                holder, other = second, first
                message = await second.receive(timeout=PATIENCE_S)
            assert message is not None
            assert holder is not other
            assert await is_silent(other)
            await message.ack(confirm=True)
            assert await is_silent(other)


@pytest.mark.requirement("CLU-16")
async def test_every_subscription_gets_what_came_after_it_began(join: Join, name: str) -> None:
    async with join("publisher") as publisher, join("a") as a, join("b") as b, join("c") as c:
        topic = publisher.topic(name, create=True)
        await topic.send("before anybody")
        async with (
            a.topic(name).subscribe(ack="individual") as everything,
            b.topic(name).subscribe(selector="kind = 'x'", ack="individual") as nothing,
        ):
            await topic.send_many(["1", "2"])
            async with c.topic(name).subscribe(ack="individual") as late:
                await topic.send("3")
                assert await texts(everything, 3) == ["1", "2", "3"]
                assert await texts(late, 1) == ["3"]
                assert await is_silent(nothing)


@pytest.mark.requirement("CLU-17")
async def test_a_durable_subscription_collects_while_nobody_is_attached(join: Join, name: str) -> None:
    async with join("publisher") as publisher:
        topic = publisher.topic(name, create=True)
        async with join("reader") as reader, reader.topic(name).subscribe(durable="audit"):
            pass
        await topic.send_many([str(number) for number in range(100)])
        async with join("stranger") as stranger, stranger.topic(name).subscribe(durable="audit") as other:
            assert await is_silent(other)  # the same name of another client is another subscription
        async with join("reader") as reader, reader.topic(name).subscribe(durable="audit", ack="individual") as again:
            assert await texts(again, 100) == [str(number) for number in range(100)]
            await again.close()
            await reader.topic(name).unsubscribe("audit")
            await topic.send("nobody wants this")
            async with reader.topic(name).subscribe(durable="audit") as fresh:
                assert await is_silent(fresh)


@pytest.mark.requirement("CLU-17")
async def test_another_selector_replaces_a_durable_subscription(join: Join, name: str) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name, create=True)
        async with topic.subscribe(durable="s", selector="n = 1"):
            await topic.send("one", properties={"n": 1})
        async with topic.subscribe(durable="s", selector="n = 2", ack="individual") as replaced:
            await topic.send("two", properties={"n": 2})
            assert await texts(replaced, 1) == ["two"]


@pytest.mark.requirement("CLU-17")
async def test_a_durable_subscription_has_one_consumer_unless_it_is_shared(join: Join, name: str) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name, create=True)
        async with topic.subscribe(durable="alone"):
            with pytest.raises(FairleadError):
                async with topic.subscribe(durable="alone") as second:
                    await second.receive(timeout=SOON_S)
        async with (
            topic.subscribe(durable="shared", shared=True, ack="individual", prefetch=1) as one,
            topic.subscribe(durable="shared", shared=True, ack="individual", prefetch=1) as two,
        ):
            await topic.send_many(["a", "b"])
            found = [await consumer.receive(timeout=PATIENCE_S) for consumer in (one, two)]
            assert sorted(message.text() for message in found) == ["a", "b"]


# --- The message ------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-18")
@pytest.mark.parametrize(
    "body", [b"\x00\xff", "text ü", {"a": 1, "b": [True, None, 2.5]}, [1, "two", b"three"], b"", ""], ids=repr
)
async def test_bodies_and_properties_arrive_as_they_were(join: Join, name: str, body: Any) -> None:
    properties = {"flag": True, "small": -5, "big": 2**62, "real": 1.5, "text": "ü"}
    async with join("sender") as connection:
        queue = connection.queue(name, create=True)
        before_s = time.time()
        receipt = await queue.send(
            body,
            properties=properties,
            correlation_id="c",
            reply_to="answers",
            type="kind",
            priority=7,
            key="k",
            ttl=60,
        )
        async with queue.consume() as consumer:
            (message,) = await take(consumer, 1)
    assert dict(message.properties) == properties
    assert {name: type(value) for name, value in message.properties.items()} == {
        name: type(value) for name, value in properties.items()
    }
    if isinstance(body, bytes):
        assert message.body == body
    else:
        assert (message.text() if isinstance(body, str) else message.data()) == body
    assert (message.id, message.order, message.destination) == (receipt.id, receipt.order, name)
    assert (message.correlation_id, message.reply_to, message.type) == ("c", "answers", "kind")
    assert (message.priority, message.key, message.redelivered, message.delivery_count) == (7, "k", False, 1)
    assert abs(message.timestamp.timestamp() - before_s) < 5
    assert 55 < message.expiration.timestamp() - before_s < 70
    with pytest.raises(TypeError):
        message.properties["flag"] = False


@pytest.mark.requirement("CLU-18")
async def test_message_ids_are_unique(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        receipts = await a.queue(name, create=True).send_many([b"x"] * 500)
        receipts += await b.queue(name).send_many([b"x"] * 500)
    assert len({receipt.id for receipt in receipts}) == 1000


@pytest.mark.requirement("CLU-19")
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("n > 1", ["b", "c"]),
        ("n BETWEEN 1 AND 2 AND colour IN ('red', 'blue')", ["a", "b"]),
        ("colour LIKE 'gr%'", ["c"]),
        ("absent IS NULL AND n <> 2", ["a", "c"]),
        ("absent = 1 OR NOT (absent = 1)", []),
        ("JMSPriority = 9", ["c"]),
        ("  ", ["a", "b", "c"]),
    ],
)
async def test_selectors(join: Join, name: str, selector: str, expected: list[str]) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        for text, n, colour, priority in (("a", 1, "red", 4), ("b", 2, "blue", 4), ("c", 3, "green", 9)):
            await queue.send(text, properties={"n": n, "colour": colour}, priority=priority)
        async with queue.consume(selector=selector) as consumer:
            assert sorted(await texts(consumer, len(expected))) == expected
            assert await is_silent(consumer)
        assert await depth(connection, name) == 3 - len(expected)


@pytest.mark.requirement("CLU-19")
async def test_a_faulty_selector_is_refused_when_the_consumer_is_made(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send("x")
        with pytest.raises(FairleadError) as caught:
            async with queue.consume(selector="n >") as consumer:
                await consumer.receive(timeout=SOON_S)
        assert caught.value.code == "bad-selector"


# --- Acknowledgement --------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-20")
async def test_auto_mode_acknowledges_what_receive_returned(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send_many(["a", "b", "c"])
        async with queue.consume(ack="auto") as consumer:
            for expected in ("a", "b"):
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message.text() == expected
        async with queue.consume() as again:
            assert await texts(again, 1) == ["c"]
            assert await is_silent(again)


@pytest.mark.requirement("CLU-20")
async def test_client_mode_acknowledges_everything_the_session_delivered(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send_many(["a", "b", "c"])
        session = connection.session(ack="client")
        async with session.queue(name).consume() as consumer:
            for _ in range(2):
                await consumer.receive(timeout=PATIENCE_S)
            session.acknowledge()
            assert (await consumer.receive(timeout=PATIENCE_S)).text() == "c"
        async with connection.queue(name).consume() as again:
            assert await texts(again, 1) == ["c"]
            assert await is_silent(again)


@pytest.mark.requirement("CLU-21")
async def test_messages_of_one_session_stay_in_order(join: Join, name: str) -> None:
    async with join("setup") as setup:
        queue = setup.queue(name, create=True)
        await queue.send("first of all")

        async def produce(number: int) -> None:
            async with join(f"producer-{number}") as connection, connection.queue(name).sender(window=32) as sender:
                for count in range(100):
                    await sender.send(f"{number} {count}")

        await asyncio.gather(*(produce(number) for number in range(20)))
        last: dict[str, int] = {}
        async with queue.consume() as consumer:
            for text in (await texts(consumer, 2001))[1:]:
                source, _, count = text.partition(" ")
                assert int(count) == last.get(source, -1) + 1
                last[source] = int(count)
        assert len(last) == 20


@pytest.mark.requirement("CLU-22")
async def test_higher_priorities_first_and_in_order_within_one(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        sent = [(priority * 7 % 10, number) for number, priority in enumerate(list(range(10)) * 3)]
        for priority, number in sent:
            await queue.send(str(number), priority=priority)
        async with queue.consume(prefetch=1) as consumer:
            found = [(message.priority, int(message.text())) for message in await take(consumer, 30)]
        assert found == sorted(sent, key=lambda one: (-one[0], one[1]))


@pytest.mark.requirement("CLU-23")
async def test_an_expired_message_is_never_delivered(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send("short", ttl=0.3)
        await queue.send("long", ttl=60)
        await asyncio.sleep(0.6)
        async with queue.consume() as consumer:
            assert await texts(consumer, 1) == ["long"]
            assert await is_silent(consumer)
        kept = connection.queue(f"{name}.dead", create=True, parameters={"expired": "dead"})
        await kept.send("to the dead", ttl=0.2, properties={"of": name})
        await asyncio.sleep(0.6)
        async with connection.queue("_DMQ").consume(selector=f"of = '{name}'") as dead:
            (message,) = await take(dead, 1)
            assert message.text() == "to the dead"


@pytest.mark.requirement("CLU-24")
async def test_a_message_that_need_not_be_kept_arrives_too(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send("quick", persistent=False)
        await queue.send("in memory", confirm="memory")
        async with queue.consume() as consumer:
            assert await texts(consumer, 2) == ["quick", "in memory"]


@pytest.mark.requirement("CLU-25")
async def test_redelivery_is_marked_and_counted_and_survives_a_crash(name: str) -> None:
    with Server() as server:
        async with fairlead.connect(server.url) as connection:
            queue = connection.queue(name, create=True)
            await queue.send("again and again")
            for count in (1, 2, 3):
                async with connection.transaction() as transaction:
                    message = await transaction.receive(name, timeout=PATIENCE_S)
                    assert (message.delivery_count, message.redelivered) == (count, count > 1)
                    await transaction.rollback()
            server.kill("message-manager")
            async with queue.consume() as consumer:
                (message,) = await take(consumer, 1)
            assert (message.delivery_count, message.redelivered) == (4, True)


@pytest.mark.requirement("CLU-25")
async def test_what_the_application_never_saw_is_not_counted(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send_many([b"x"] * 10)
        async with queue.consume(prefetch=10) as consumer:
            await (await consumer.receive(timeout=PATIENCE_S)).ack(confirm=True)
        async with queue.consume() as again:
            assert [message.delivery_count for message in await take(again, 9)] == [1] * 9


@pytest.mark.requirement("CLU-26", "CLU-200")
async def test_after_the_last_delivery_a_message_is_dead_and_says_why(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True, parameters={"delivery_limit": 3})
        receipt = await queue.send("poison", properties={"of": name})
        await queue.send("wholesome", properties={"of": name})
        async with queue.consume(prefetch=1) as consumer:
            tries = 0
            while (message := await consumer.receive(timeout=PATIENCE_S)).text() == "poison":
                tries += 1
                await message.retry()
            await message.ack()
        assert tries == 3
        async with connection.queue("_DMQ").consume(selector=f"of = '{name}'") as dead:
            (message,) = await take(dead, 1)
        assert (message.text(), message.properties["of"]) == ("poison", name)
        assert message.dead["reason"] == "delivery-limit"
        assert message.dead["destination"] == name
        assert message.dead["count"] == 3
        assert message.dead["id"] == receipt.id


@pytest.mark.requirement("CLU-27")
async def test_a_delayed_message_is_stored_at_once_and_delivered_when_it_is_due(name: str) -> None:
    with Server() as server:
        async with fairlead.connect(server.url) as connection:
            queue = connection.queue(name, create=True)
            began_s = time.time()
            await queue.send("later", delay=4.0)
            assert time.time() - began_s < 3.5
            await queue.send("now")
            async with queue.consume() as consumer:
                assert await texts(consumer, 1) == ["now"]
                server.kill("message-manager")
                assert await texts(consumer, 1) == ["later"]
            assert time.time() - began_s >= 4.0


@pytest.mark.requirement("CLU-28")
async def test_messages_of_one_key_are_never_with_two_consumers(join: Join, name: str) -> None:
    async with join("sender") as sender:
        queue = sender.queue(name, create=True)
        for number in range(400):
            await queue.send(str(number), key=f"k{number % 20}")
        holders: dict[str, int] = {}
        last: dict[str, int] = {}
        left = 400

        async def consume(number: int) -> None:
            nonlocal left
            async with join(f"c{number}") as connection, connection.queue(name).consume(prefetch=20) as consumer:
                while left:
                    message = await consumer.receive(timeout=SOON_S)
                    if message is None:
                        continue
                    assert holders.setdefault(message.key, number) == number
                    await asyncio.sleep(0)
                    assert int(message.text()) > last.get(message.key, -1)
                    if int(message.text()) % 37 == 5 and not message.redelivered:
                        del holders[message.key]
                        await message.retry()
                        continue
                    last[message.key] = int(message.text())
                    left -= 1
                    del holders[message.key]
                    await message.ack()

        await asyncio.gather(*(consume(number) for number in range(4)))


# --- Browsing, temporary destinations, ways to receive ------------------------------------------------------------
@pytest.mark.requirement("CLU-29")
async def test_browsing_takes_nothing(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        await queue.send_many(["a", "b", "c"])
        assert [message.text() async for message in queue.browse()] == ["a", "b", "c"]
        assert await depth(connection, name) == 3
        async with queue.consume() as consumer:
            assert [message.delivery_count for message in await take(consumer, 3)] == [1, 1, 1]


@pytest.mark.requirement("CLU-29")
async def test_a_temporary_queue_belongs_to_its_connection(join: Join) -> None:
    async with join("other") as other:
        async with join("owner") as owner:
            queue = await owner.temporary_queue()
            await other.queue(queue.name).send("answer")
            with pytest.raises(FairleadError):
                async with other.queue(queue.name).consume() as consumer:
                    await consumer.receive(timeout=SOON_S)
            async with queue.consume() as consumer:
                assert await texts(consumer, 1) == ["answer"]
        with pytest.raises(FairleadError):
            await other.queue(queue.name).send("too late", timeout=5)


@pytest.mark.requirement("CLU-29")
async def test_a_subscriber_can_leave_out_what_its_own_connection_sent(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        topic = a.topic(name, create=True)
        async with topic.subscribe(no_local=True, ack="individual") as others:
            await topic.send("my own")
            await b.topic(name).send("another's")
            assert await texts(others, 1) == ["another's"]


@pytest.mark.requirement("CLU-30")
async def test_ways_to_receive(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        async with queue.consume() as consumer:
            assert consumer.receive_nowait() is None
            began_s = time.monotonic()
            assert await consumer.receive(timeout=0.2) is None
            assert 0.15 < time.monotonic() - began_s < 5
            await queue.send_many(["a", "b", "c"])
            first = await consumer.receive()
            await first.ack()
            consumer.pause()
            await asyncio.sleep(0.1)
            consumer.resume()
            async for message in consumer:
                await message.ack()
                if message.text() == "c":
                    break


@pytest.mark.requirement("CLU-30")
async def test_listeners_of_one_session_never_overlap(join: Join, name: str) -> None:
    async with join() as connection:
        session = connection.session(ack="individual")
        running, most, done = 0, 0, 0

        async def listen(message: Any) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1
            done += 1
            await message.ack()

        for suffix in ("a", "b"):
            queue = session.queue(f"{name}.{suffix}", create=True)
            await queue.send_many([b"x"] * 10)
            queue.consume().listen(listen)
        async with asyncio.timeout(PATIENCE_S):
            while done < 20:
                await asyncio.sleep(0.01)
        assert most == 1


# --- Transactions -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-154", "CLU-156")
async def test_sends_of_a_transaction_are_hidden_until_it_commits(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        await a.queue(name, create=True).send("before")
        async with b.queue(name).consume() as consumer:
            assert await texts(consumer, 1) == ["before"]
            async with a.transaction() as transaction:
                await transaction.send(name, "hidden")
                assert await is_silent(consumer)
                assert [message async for message in b.queue(name).browse()] == []
            assert await texts(consumer, 1) == ["hidden"]


@pytest.mark.requirement("CLU-155", "CLU-157", "CLU-160")
async def test_a_rollback_undoes_sends_and_receipts(join: Join, name: str) -> None:
    async with join() as connection:
        source, target = connection.queue(name, create=True), connection.queue(f"{name}.to", create=True)
        await source.send("coin")
        await target.send("first")
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction() as transaction:
                message = await transaction.receive(name, timeout=PATIENCE_S)
                await transaction.send(f"{name}.to", message.body)
                raise ZeroDivisionError
        async with source.consume() as consumer:
            (message,) = await take(consumer, 1)
            assert (message.text(), message.redelivered) == ("coin", True)
        async with target.consume() as consumer:
            assert await texts(consumer, 1) == ["first"]
            assert await is_silent(consumer)


@pytest.mark.requirement("CLU-155")
async def test_many_transactions_at_once_double_and_lose_nothing(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send_many([str(number) for number in range(120)])

        async def move() -> None:
            async with join("mover") as mover:
                for _ in range(30):
                    async with mover.transaction() as transaction:
                        message = await transaction.receive(name, timeout=PATIENCE_S)
                        await transaction.send(f"{name}.to", message.body)

        await asyncio.gather(*(move() for _ in range(4)))
        assert await depth(connection, name) == 0
        moved = [int(message.body) async for message in connection.queue(f"{name}.to").browse()]
        assert sorted(moved) == list(range(120))


@pytest.mark.requirement("CLU-158")
async def test_a_commit_counts_what_the_application_took(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send_many([str(number) for number in range(10)])
        async with connection.transaction() as transaction:
            for number in range(3):
                assert (await transaction.receive(name, timeout=PATIENCE_S)).text() == str(number)
        async with connection.queue(name).consume() as consumer:
            assert await texts(consumer, 7) == [str(number) for number in range(3, 10)]
            assert await is_silent(consumer)


@pytest.mark.requirement("CLU-159")
async def test_after_a_rollback_all_are_there_again_in_order(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send_many([str(number) for number in range(10)])
        async with connection.transaction() as transaction:
            for _ in range(3):
                await transaction.receive(name, timeout=PATIENCE_S)
            await transaction.rollback()
        async with connection.queue(name).consume() as consumer:
            found = await take(consumer, 10)
        assert [message.text() for message in found] == [str(number) for number in range(10)]
        assert [message.delivery_count for message in found] == [2, 2, 2, *[1] * 7]


@pytest.mark.requirement("CLU-155", "CLU-127")
async def test_a_transaction_cut_off_by_a_crash_never_happened(name: str) -> None:
    with Server() as server:
        async with fairlead.connect(server.url) as connection:
            await connection.queue(name, create=True).send("coin")
            with pytest.raises(TransactionAborted):
                async with connection.transaction() as transaction:
                    assert await transaction.receive(name, timeout=PATIENCE_S) is not None
                    await transaction.send(name, "second coin")
                    server.kill("message-manager")
                    server.wait_until(lambda status: bool(server.pids("message-manager")))
                    await asyncio.sleep(0.2)
            async with connection.queue(name).consume() as consumer:
                assert await texts(consumer, 1) == ["coin"]
                assert await is_silent(consumer)


# --- Sending ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-118")
async def test_a_message_with_the_same_id_is_stored_once(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, create=True)
        first = await queue.send("once", dedup="7")
        again = await queue.send("twice", dedup="7")
        assert (again.duplicate, again.order) == (True, first.order)
        assert await depth(connection, name) == 1


@pytest.mark.requirement("CLU-108", "CLU-105")
async def test_a_full_queue_blocks_its_producers_and_lets_them_know(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        queue = a.queue(name, create=True, parameters={"max_messages": 100})
        await queue.send_many([b"x"] * 99)
        await b.queue(name).send("x")
        async with asyncio.timeout(PATIENCE_S):
            while not (queue.is_blocked and b.queue(name).is_blocked):
                await asyncio.sleep(0.01)
        assert queue.try_send(b"no room") is False
        with pytest.raises(FairleadError) as caught:
            await queue.send(b"x", on_blocked="raise")
        assert caught.value.code == "blocked"
        with pytest.raises(FairleadError):
            await queue.send(b"x", timeout=0.2)
        waiting = asyncio.create_task(queue.send(b"patient"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        async with b.queue(name).consume() as consumer:
            await take(consumer, 80)
            await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.requirement("CLU-177", "CLU-201")
@pytest.mark.parametrize("bad", ["_mine", "with space", "x" * 256, ""])
async def test_names_that_are_refused(join: Join, bad: str) -> None:
    async with join() as connection:
        with pytest.raises(FairleadError):
            await connection.queue(bad, create=True).send(b"x", timeout=5)


@pytest.mark.requirement("CLU-201")
async def test_nobody_sends_to_the_dead_message_queue(join: Join) -> None:
    async with join() as connection:
        with pytest.raises(FairleadError) as caught:
            await connection.queue("_DMQ").send(b"x", timeout=5)
        assert caught.value.code == "not-allowed"


async def test_a_queue_is_no_topic(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name, create=True).send(b"x")
        with pytest.raises(FairleadError) as caught:
            await connection.topic(name).send(b"x", timeout=5)
        assert caught.value.code == "wrong-kind"
