"""What a queue does with messages, as its producers and consumers see it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

import fairlead
from fairlead.errors import BadParameter, DestinationDeleted, FairleadError, NoDestination, RequestTimeout
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.durable.steps import (
    PATIENCE_S,
    SOON_S,
    becomes,
    cut,
    depth,
    doomed,
    drained,
    facts,
    is_silent,
    one,
    take,
    texts,
)
from tests.processes.tools import NEVER_FROZEN, placed

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """One whose processes may be killed."""
    with Server(managers=2, **NEVER_FROZEN) as server:
        yield server


# --- One server -----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-1", "CLU-86", state="half", note="two managers and one message manager")
async def test_sender_and_receiver_need_not_be_at_the_same_manager(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1) as (here, there):
        await here.queue(name).send("over there")
        async with there.queue(name, create=False).consume() as consumer:
            assert await texts(consumer, 1) == ["over there"]
            await here.queue(name).send("again")
            assert await texts(consumer, 1) == ["again"]


@pytest.mark.requirement("CLU-2", "CLU-3", note="without a message manager")
async def test_managers_alone_let_clients_in_and_say_what_is_missing() -> None:
    with Server(managers=1, **{"messages.enabled": "false"}) as server:
        async with fairlead.connect(server.url, reconnect_limit_s=1) as connection:
            async with connection.subscribe("a.>") as everything:
                await connection.publish("a.b", b"transient")
                assert (await everything.next(timeout=PATIENCE_S)).body == b"transient"
            with pytest.raises(FairleadError) as caught:
                await connection.queue("q").send(b"x")
            assert caught.value.code == "no-message-manager"
            assert caught.value.retryable


@pytest.mark.requirement("CLU-3", "CLU-14")
async def test_what_is_known_of_connections_sessions_and_destinations(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join("shown") as connection:
        await connection.queue(name).send("x")
        report = durable_server.status()
        assert connection.uid in [found["uid"] for found in report["connections"]]
        sessions = (await connection.admin.execute("sessions", count=1000))["sessions"]
        assert any(session["producers"] for session in sessions)
        known = (await connection.admin.execute("destinations", pattern=name))["destinations"]
        assert [(found["name"], found["kind"], len(bytes.fromhex(found["id"]))) for found in known] == [
            (name, "queue", 20)
        ]
        assert known[0]["group"] == "a"


# --- Sharing the load -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-15", "CLU-106", "CLU-111")
async def test_a_consumer_that_does_not_take_gets_no_more_than_its_window(join: Join, name: str) -> None:
    async with join("lazy") as lazy, join("busy") as busy:
        queue = busy.queue(name)
        async with lazy.queue(name).consume(prefetch=5), queue.consume(prefetch=20) as working:
            await queue.send_many([str(number) for number in range(200)])
            found = await take(working, 195)
            assert await is_silent(working)
        left = await drained(queue, 5)
        assert len(left) == 5
        assert {message.delivery_count for message in left} == {1}  # nobody ever saw them
        assert sorted(int(message.text()) for message in [*found, *left]) == list(range(200))


@pytest.mark.requirement("CLU-111")
async def test_the_window_counts_bytes_too(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([bytes(1000)] * 50)
        async with queue.consume(prefetch=50, prefetch_bytes=5000) as first, queue.consume(prefetch=50) as second:
            assert len(await take(second, 44)) == 44  # five or six are with the other
            await one(first)
            locked = (await facts(connection, name))["locked"]
            assert 4 <= locked <= 6


@pytest.mark.requirement("CLU-21")
async def test_several_consumers_each_see_every_producers_order(join: Join, name: str) -> None:
    chance = Random(3)
    async with join() as connection:
        queue = connection.queue(name)
        last: list[dict[str, int]] = [{} for _ in range(4)]
        left = 20 * 50

        async def produce(number: int) -> None:
            async with join(f"p{number}") as own:
                for count in range(0, 50, 10):
                    await own.queue(name).send_many([f"{number} {count + more}" for more in range(10)])
                    if chance.random() < 0.1:
                        cut(own)

        async def consume(mine: dict[str, int]) -> None:
            nonlocal left
            async with queue.consume(prefetch=7) as consumer:
                while left > 0:
                    message = await consumer.receive(timeout=SOON_S)
                    if message is not None:
                        source, _, count = message.text().partition(" ")
                        assert int(count) > mine.get(source, -1)
                        mine[source] = int(count)
                        message.ack()
                        left -= 1

        await asyncio.gather(*(produce(number) for number in range(20)), *map(consume, last))
        assert left == 0


@pytest.mark.requirement("CLU-28")
async def test_a_key_stays_with_its_consumer_and_goes_on_when_that_is_lost(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        async with doomed(durable_server) as lost:
            holder = await lost.queue(name).consume(prefetch=10).start()
            async with queue.consume(prefetch=10) as other:
                for number in range(6):
                    await queue.send(str(number), key="k")
                taker, idle = (holder, other) if await holder.receive(timeout=SOON_S) else (other, holder)
                if taker is holder:
                    assert await is_silent(idle)  # all of the key are with one, though the other is free
                    cut(lost)
                else:
                    await one(other)
                    assert await is_silent(holder)
                    await other.close()
        async with queue.consume() as again:
            assert await texts(again, 6) == [str(number) for number in range(6)]


@pytest.mark.requirement("CLU-28")
async def test_a_returned_message_blocks_its_own_key_only(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        for text, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
            await queue.send(text, key=key)
        async with queue.consume() as consumer:
            first = await one(consumer)
            assert first.text() == "a1"
            first.retry(delay=1.0)
            order = [first.text()]
            while len(order) < 5:
                message = await one(consumer)
                order.append(message.text())
                message.ack()
        assert order == ["a1", "b1", "b2", "a1", "a2"]


@pytest.mark.requirement("CLU-28", state="scaled", note="40 keys, 6 consumers, 800 messages")
async def test_keys_among_consumers_that_fail_and_die(join: Join, durable_server: Server, name: str) -> None:
    chance = Random(5)
    async with join() as connection:
        queue = connection.queue(name, parameters={"delivery_limit": 0})
        async with queue.sender() as sender:
            for number in range(800):
                await sender.send(str(number), key=f"k{number % 40}")
        done: dict[str, list[int]] = {}
        holders: dict[str, tuple[int, int]] = {}
        left = 800

        async def work(number: int) -> None:
            nonlocal left
            life = 0
            while left:
                life += 1
                async with doomed(durable_server, f"w{number}") as own:
                    consumer = await own.queue(name).consume(prefetch=20).start()
                    while left:
                        message = await consumer.receive(timeout=SOON_S)
                        if message is None:
                            continue
                        key = message.key or ""
                        holder = holders.setdefault(key, (number, life))
                        assert holder == (number, life), f"{key} is with {holder}, and with {number}"
                        await asyncio.sleep(0)
                        del holders[key]
                        fate = chance.random()
                        if fate < 0.05:
                            message.retry()
                        elif fate < 0.06:
                            break  # dies with what it holds
                        else:
                            done.setdefault(key, []).append(int(message.text()))
                            left -= 1
                            await message.ack(confirm=True)

        await asyncio.gather(*(work(number) for number in range(6)))
        assert sum(map(len, done.values())) == 800
        for numbers in done.values():
            assert numbers == sorted(set(numbers))


async def test_an_exclusive_consumer_works_alone_and_another_takes_over(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        queue = a.queue(name, parameters={"exclusive": True})
        first, second = await queue.consume().start(), await b.queue(name).consume().start()
        await queue.send_many(["1", "2", "3"])
        assert await texts(first, 3) == ["1", "2", "3"]
        assert await is_silent(second)
        await first.close()
        await queue.send("4")
        assert await texts(second, 1) == ["4"]


async def test_a_consumer_can_ask_to_be_alone(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b:
        queue = a.queue(name)
        alone = await queue.consume(exclusive=True).start()
        with pytest.raises(FairleadError):
            await (await b.queue(name).consume(exclusive=True).start(timeout=PATIENCE_S)).receive(timeout=SOON_S)
            await queue.send("mine")
            assert await texts(alone, 1) == ["mine"]
            raise NoDestination("it waits, which is as good")
        await alone.close()


# --- What a message says --------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-18")
async def test_everything_about_a_message_arrives(join: Join, name: str) -> None:
    integers = [0, -1, 127, -(2**31), 2**63 - 1, -(2**63)]
    properties: dict[str, Any] = {f"i{at}": value for at, value in enumerate(integers)}
    properties |= {"t": True, "f": False, "r": -0.5, "tiny": 5e-324, "huge": 1.7e308, "s": "ŝ\n", "empty": "", "y": b""}
    async with join() as connection:
        queue = connection.queue(name)
        due = datetime.now(UTC) + timedelta(milliseconds=200)
        await queue.send("x", properties=properties, at=due, ttl=100, correlation_id="ç", reply_to=queue, type="t" * 99)
        await queue.send("y", persistent=False)
        async with queue.consume() as consumer:
            plain = await one(consumer)
            message = await one(consumer)
        assert (plain.text(), plain.persistent, message.persistent) == ("y", False, True)
        assert plain.expiration is None
        assert (plain.correlation_id, plain.reply_to, plain.type, plain.key, plain.priority) == (None,) * 4 + (4,)
        assert dict(message.properties) == properties
        assert [type(value) for value in message.properties.values()] == [type(v) for v in properties.values()]
        assert (message.correlation_id, message.reply_to, message.type) == ("ç", name, "t" * 99)
        assert abs((message.delivery_time - due).total_seconds()) < 0.01
        assert 99 < (message.expiration - message.delivery_time).total_seconds() < 101


@pytest.mark.requirement("CLU-18")
@pytest.mark.parametrize("bad", [{"x": 2**63}, {"x": None}, {"x": []}, {"": 1}, {":own": 1}], ids=repr)
async def test_properties_that_are_none_are_refused_before_anything_is_sent(
    join: Join, name: str, bad: dict[str, Any]
) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        with pytest.raises((FairleadError, TypeError, ValueError)):
            await queue.send(b"x", properties=bad, timeout=5)
        await queue.send(b"y")
        assert await depth(connection, name) == 1


@pytest.mark.requirement("CLU-29")
async def test_question_and_answer_by_a_temporary_queue(join: Join, name: str) -> None:
    async with join("asker") as asker, join("answerer") as answerer:

        async def answer() -> None:
            async with answerer.queue(name).consume() as questions:
                question = await one(questions)
                back = answerer.queue(question.reply_to, create=False)
                await back.send(question.text() + "!", correlation_id=question.correlation_id)
                await question.ack(confirm=True)

        task = asyncio.create_task(answer())
        mine = await asker.temporary_queue()
        await asker.queue(name).send("well", reply_to=mine, correlation_id="7")
        async with mine.consume() as answers:
            message = await one(answers)
            assert (message.text(), message.correlation_id) == ("well!", "7")
            cut(asker)  # it belongs to the session, which is resumed
            await answerer.queue(mine.name, create=False).send("still there")
            assert (await one(answers)).text() in ("well!", "still there")
        await task


@pytest.mark.requirement("CLU-29")
async def test_a_temporary_topic_is_gone_with_its_connection(join: Join) -> None:
    async with join("other") as other:
        async with join("owner") as owner:
            topic = await owner.temporary_topic()
            async with topic.subscribe() as mine:
                await other.topic(topic.name, create=False).send("to the owner")
                assert await texts(mine, 1) == ["to the owner"]
                with pytest.raises(FairleadError):
                    await other.topic(topic.name, create=False).subscribe().start()
        with pytest.raises(FairleadError):
            await other.topic(topic.name, create=False).send("too late", timeout=5)
        names = (await other.admin.execute("destinations", pattern=topic.name))["destinations"]
        assert names == []


@pytest.mark.requirement("CLU-89", "CLU-90", "CLU-91", "CLU-92", state="scaled", note="thousands of ids, one restart")
async def test_ids_are_of_one_length_and_never_repeat(own_server: Server, name: str) -> None:
    found: list[str] = []
    for _ in range(2):
        async with fairlead.connect(own_server.url) as a, fairlead.connect(own_server.url) as b:
            for connection in (a, b):
                sent = await connection.queue(name).send_many([b"x"] * 1000)
                found += [receipt.id for receipt in sent]
                found += [(await facts(connection, name))["id"]] if connection is b and len(found) < 3000 else []
        own_server.stop()
        own_server.start()
    assert {len(id_) for id_ in found} == {40}
    assert len(set(found)) == len(found) == 4001


# --- Priorities and time --------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-22")
async def test_a_late_urgent_message_overtakes_all_that_was_not_handed_out(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(5)])
        async with queue.consume(prefetch=1) as consumer:
            first = await one(consumer)
            await queue.send("low", priority=0)
            await queue.send("urgent", priority=9)
            await first.ack(confirm=True)
            assert await texts(consumer, 6) == ["urgent", "1", "2", "3", "4", "low"]


@pytest.mark.requirement("CLU-23")
async def test_what_expires_while_it_waits_or_is_locked(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, parameters={"ttl_s": 0.5})
        await queue.send("by the queue's own limit")
        await queue.send("has one of its own", ttl=60)
        await queue.send("is being worked on", ttl=0.6)
        async with queue.consume("JMSXDeliveryCount > 0 AND JMSPriority = 4", prefetch=1) as consumer:
            held = None
            if (found := await one(consumer)).text() == "by the queue's own limit":
                held = found
            await becomes(lambda: _depth_is(connection, name, 2 if held else 1))
            if held is not None:
                await held.ack(confirm=True)  # what was handed out in time is its consumer's
            assert await texts(consumer, 1) == ["has one of its own"]
            assert await is_silent(consumer)
        assert await depth(connection, name) == 0


async def _depth_is(connection: Any, name: str, wanted: int) -> bool:
    return await depth(connection, name) == wanted


@pytest.mark.requirement("CLU-23", "CLU-27")
async def test_time_to_live_begins_when_a_delayed_message_is_due(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send("late", delay=2.5, ttl=2.4)  # counted from now it would be dead before it is due
        async with queue.consume() as consumer:
            began_s = time.monotonic()
            assert await texts(consumer, 1) == ["late"]
            assert 1.0 < time.monotonic() - began_s < 15


@pytest.mark.requirement("CLU-27")
async def test_delays_of_every_kind_in_the_order_they_are_due(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        began_s = time.monotonic()
        await queue.send("third", delay=1.1)
        await queue.send("second", at=datetime.now(UTC) + timedelta(seconds=0.7))
        await queue.send("at once", at=datetime.now(UTC) - timedelta(hours=1))
        await queue.send("also at once", delay=0)
        figures = await facts(connection, name)
        assert figures["delayed"] == 2
        async with queue.consume() as consumer:
            assert await texts(consumer, 4) == ["at once", "also at once", "second", "third"]
            assert time.monotonic() - began_s > 1.0


async def test_a_schedule_repeats_until_it_is_cancelled(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send("tick", cron="@every 300ms")
        await queue.send("never", cron="0 3 * * *")
        await queue.send("once", delay=3600)
        schedules = await queue.schedules()
        assert {found.get("cron") or "" for found in schedules} >= {"@every 300ms", "0 3 * * *"}
        async with queue.consume() as consumer:
            ticks = await take(consumer, 3)
            assert [message.text() for message in ticks] == ["tick"] * 3
            assert len({message.order for message in ticks}) == 3
            for found in await queue.schedules():
                await queue.cancel(found["order"])
            while await consumer.receive(timeout=0.7) is not None:
                pass
            assert await queue.schedules() == []
        with pytest.raises(NoDestination):
            await queue.cancel(1)


@pytest.mark.parametrize("bad", ["* * *", "61 * * * *", "@every", "never"])
async def test_a_schedule_that_is_none_is_refused(join: Join, name: str, bad: str) -> None:
    async with join() as connection:
        with pytest.raises(FairleadError):
            await connection.queue(name).send("x", cron=bad, timeout=PATIENCE_S)


# --- Redelivery -----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-26")
async def test_the_pause_before_the_next_delivery_grows(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(
            name,
            parameters={"redelivery_delay_s": 0.2, "redelivery_factor": 3.0, "redelivery_delay_max_s": 0.9},
        )
        await queue.send("again")
        await queue.send("not held up")
        pauses, last_s = [], 0.0
        async with queue.consume() as consumer:
            for count in (1, 2, 3, 4):
                message = await one(consumer)
                while message.text() != "again":
                    assert count == 2, "it came before the pause was over"
                    message.ack()
                    message = await one(consumer)
                assert message.delivery_count == count
                pauses.append(time.monotonic() - last_s)
                last_s = time.monotonic()
                message.retry()
        for pause_s, least_s in zip(pauses[1:], (0.2, 0.6, 0.9), strict=True):
            assert least_s - 0.05 < pause_s < least_s + 2


@pytest.mark.requirement("CLU-26")
async def test_a_rejected_message_is_dead_at_once(join: Join, name: str) -> None:
    async with join() as connection:
        dead = connection.queue(f"{name}.dead")
        await dead.send("first of all")
        queue = connection.queue(name, parameters={"dead_queue": f"{name}.dead"})
        await queue.send_many(["bad", "good"])
        async with queue.consume() as consumer:
            await (await one(consumer)).reject(confirm=True)
            assert await texts(consumer, 1) == ["good"]
        found = await drained(dead, 2)
        assert [message.text() for message in found] == ["first of all", "bad"]
        assert found[1].dead["reason"] == "rejected"


# --- Browsing, replay, retention ------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-29")
async def test_browsing_shows_what_waits_and_what_others_hold_and_ends(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(300)])
        async with queue.consume(prefetch=10) as consumer:
            await take(consumer, 5)
            shown = [int(message.text()) async for message in queue.browse()]
            assert shown in (list(range(5, 300)), list(range(15, 300)))
            chosen = [message.text() async for message in queue.browse("JMSXDeliveryCount = 1 AND priority = 4")]
            assert len(chosen) == len(shown)
        assert await depth(connection, name) == 295


async def test_what_was_consumed_can_be_read_again(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name, parameters={"retain_messages": 10})
        early = await queue.send_many([str(number) for number in range(20)])
        middle = datetime.now(UTC)
        await asyncio.sleep(0.02)
        await queue.send_many([str(number) for number in range(20, 25)])
        async with queue.consume() as consumer:
            await take(consumer, 25)
        assert (await facts(connection, name))["kept"] == 10
        again = [int(message.text()) async for message in queue.replay()]
        assert again == list(range(15, 25))
        assert [int(message.text()) async for message in queue.replay(early[18].order)] == list(range(18, 25))
        assert [int(message.text()) async for message in queue.replay(middle)] == list(range(20, 25))
        async with queue.replay(early[19].order, follow=True) as following:
            for expected in range(19, 25):
                assert (await one(following)).text() == str(expected)
            await queue.send("new")
            assert (await one(following)).text() == "new"
        assert [message.text() for message in await drained(queue, 1)] == ["new"]


# --- Many at once ---------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-117")
async def test_receipts_come_in_the_order_of_sending(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        done: list[int] = []
        async with queue.sender(window=50, on_receipt=lambda receipt: done.append(receipt.order)) as sender:
            for number in range(500):
                await sender.send(str(number))
        assert len(done) == 500
        assert done == sorted(done)
        async with queue.consume() as consumer:
            batches = []
            async for batch in consumer.batches(limit=64):
                batches.append([message.text() for message in batch])
                await consumer.ack_many(batch, confirm=True)
                if sum(map(len, batches)) == 500:
                    break
        assert [text for batch in batches for text in batch] == [str(number) for number in range(500)]
        assert len(batches) < 500


@pytest.mark.requirement("CLU-117")
async def test_closing_leaves_no_send_open(durable_server: Server, name: str) -> None:
    connection = await fairlead.connect(durable_server.url)
    queue = connection.queue(name)
    await queue.send("first")
    tasks = [asyncio.create_task(queue.send(str(number))) for number in range(500)]
    await asyncio.sleep(0)
    await connection.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
    confirmed = sum(isinstance(outcome, fairlead.Receipt) for outcome in outcomes)
    assert all(isinstance(outcome, fairlead.Receipt | FairleadError) for outcome in outcomes)
    async with fairlead.connect(durable_server.url) as other:
        assert await depth(other, name) >= confirmed + 1


# --- Being made, and being deleted ----------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-86", "CLU-87", state="scaled", note="8 clients of two managers, one group")
async def test_a_name_made_by_many_at_once_exists_once(join: Join, name: str) -> None:
    async def use(number: int) -> None:
        async with join(f"u{number}") as connection:
            await asyncio.gather(*(connection.queue(f"{name}.{each}").send(str(number)) for each in range(10)))

    await asyncio.gather(*(use(number) for number in range(8)))
    async with join() as connection:
        found = (await connection.admin.execute("destinations", pattern=f"{name}.*"))["destinations"]
        assert sorted(one["name"] for one in found) == sorted(f"{name}.{each}" for each in range(10))
        assert {one["depth"] for one in found} == {8}
        assert len({one["id"] for one in found}) == 10


@pytest.mark.requirement("CLU-88")
async def test_deleted_and_made_again_under_load(join: Join, name: str) -> None:
    async with join("sender") as sender, join("boss") as boss:
        ended: list[str] = []
        generation = 0

        async def produce() -> None:
            while generation < 4:
                said = generation
                try:
                    await sender.queue(name).send(f"{said}", timeout=PATIENCE_S)
                except (DestinationDeleted, NoDestination) as error:
                    ended.append(error.code)

        task = asyncio.create_task(produce())
        ids = []
        for _ in range(4):
            await becomes(lambda: _exists(boss, name))
            ids.append((await facts(boss, name))["id"])
            async with boss.queue(name, create=False).consume() as consumer:
                await one(consumer)
                await boss.admin.execute("delete", destination=name)
                generation += 1
                with pytest.raises(FairleadError) as caught:
                    while await consumer.receive(timeout=PATIENCE_S) is not None:
                        pass
                assert caught.value.code == "destination-deleted"
        await task
        assert len(set(ids)) == 4
        assert ended
        await sender.queue(name).send("end")
        assert {message.text() for message in await drained(sender.queue(name), 1)} <= {"end", "3", "4"}


async def _exists(connection: Any, name: str) -> bool:
    try:
        return bool(await facts(connection, name))
    except FairleadError:
        return False


@pytest.mark.requirement("CLU-86")
async def test_who_does_not_want_to_make_it_is_told_that_there_is_none(join: Join, name: str) -> None:
    async with join() as connection:
        with pytest.raises(NoDestination):
            await connection.queue(name, create=False).send("x")
        with pytest.raises(NoDestination):
            await connection.queue(name, create=False).consume().start()
        with pytest.raises(BadParameter):
            await connection.queue(name, parameters={"no_such": 1}).send("x")
        await connection.queue(name).send("now it is there")
        await connection.queue(name, create=False).send("and found")
        assert await depth(connection, name) == 2


# --- Blocked --------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-105", "CLU-108")
async def test_who_is_likely_to_send_is_told_and_who_only_consumes_is_not(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b, join("c") as c:
        queue = a.queue(name, parameters={"max_messages": 20})
        standing, once = queue, b.queue(name)
        await standing.send("x")
        await once.send("x")
        async with c.queue(name).consume(prefetch=1) as consumer:
            await a.queue(name).send_many([b"x"] * 19)
            await becomes(lambda: _both(standing, once))
            assert standing.try_send(b"no") is False
            with pytest.raises(RequestTimeout):
                await once.send(b"no", timeout=0.3)
            patient = asyncio.create_task(standing.send("patient"))
            assert not (await asyncio.wait([patient], timeout=SOON_S))[0]
            stored = await depth(a, name)
            assert stored in (20, 21)
            found = Counter(message.text() for message in await take(consumer, stored))
            await asyncio.wait_for(patient, PATIENCE_S)
            await becomes(lambda: _neither(standing, once))
        assert found["no"] == 0 or found["no"] == 1  # the one that timed out was never refused


async def _both(*queues: Any) -> bool:
    return all(queue.is_blocked for queue in queues)


async def _neither(*queues: Any) -> bool:
    return not any(queue.is_blocked for queue in queues)
