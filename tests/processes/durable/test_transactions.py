"""Transactions as their users see them: what others see of them, what they leave, and what they say at their end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, LocalProtocolError, TransactionAborted
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.durable.steps import (
    PATIENCE_S,
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
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes


# --- What others see ------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-154")
async def test_two_sessions_interleave_freely(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(4)])
        a, b = connection.session("transacted"), connection.session("transacted")
        from_a = await a.queue(name).consume(prefetch=1).start()
        from_b = await b.queue(name).consume(prefetch=1).start()
        assert {(await one(from_a)).text(), (await one(from_b)).text()} == {"0", "1"}
        await a.queue(f"{name}.out").send("of a")
        await b.queue(f"{name}.out").send("of b")
        await b.commit()
        assert [m.text() async for m in connection.queue(f"{name}.out").browse()] == ["of b"]
        await b.queue(f"{name}.out").send("of b again")  # the next one has begun at once
        await a.rollback()
        await b.commit()
        await a.close()
        await b.close()
        assert [m.text() for m in await drained(connection.queue(f"{name}.out"), 2)] == ["of b", "of b again"]
        assert len(await drained(queue, 3)) == 3


@pytest.mark.requirement("CLU-155")
async def test_everything_of_a_commit_is_there_at_the_same_time(join: Join, name: str) -> None:
    """Whoever sees the last effect of a commit sees all others of it."""
    names = [f"{name}.{number}" for number in range(5)]
    async with join() as connection, join("observer") as observer:
        for each in names:
            await connection.queue(each).send("first")
            await drained(connection.queue(each), 1)
        async with observer.queue(names[-1]).consume() as last:
            for _ in range(5):
                async with connection.transaction() as transaction:
                    for each in names:
                        await transaction.send(each, "x")
                await texts(last, 1)
                depths = [await depth(observer, each) for each in names[:-1]]
                assert len(set(depths)) == 1


@pytest.mark.requirement("CLU-156")
async def test_sending_in_a_transaction_waits_for_nothing(join: Join, name: str) -> None:
    async with join() as connection, join("boss") as boss:
        await connection.queue(name, parameters={"max_messages": 1}).send("full")
        await becomes(lambda: _is_blocked(boss, name))
        async with connection.transaction() as transaction:
            began_s = time.monotonic()
            for number in range(500):
                await transaction.send(name, str(number))
            assert time.monotonic() - began_s < 15
            await becomes(lambda: _has_transaction(boss, name))
            assert await depth(boss, name) == 1
            assert [message.text() async for message in boss.queue(name).browse()] == ["full"]
            open_ones = (await boss.admin.execute("transactions"))["transactions"]
            assert any(name in str(found) for found in open_ones)
            await transaction.rollback()
        assert await depth(boss, name) == 1


async def _is_blocked(connection: Any, name: str) -> bool:
    return bool((await facts(connection, name))["blocked"])


async def _has_transaction(connection: Any, name: str) -> bool:
    return bool((await facts(connection, name))["transactions"])


@pytest.mark.requirement("CLU-157")
async def test_what_a_transaction_took_is_nobody_elses(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send("one")
        async with connection.transaction() as transaction:
            assert (await transaction.receive(name, timeout=PATIENCE_S)).text() == "one"
            other = await queue.consume().start()
            assert await is_silent(other)
            await transaction.rollback()
            again = await one(other)
            assert (again.text(), again.redelivered) == ("one", True)
            await again.ack(confirm=True)
            await other.close()


@pytest.mark.requirement("CLU-154", "CLU-21")
async def test_a_session_keeps_its_order_over_many_commits(join: Join, name: str) -> None:
    async with join() as connection:
        async with connection.session("transacted") as session:
            queue = session.queue(name)
            for number in range(0, 60, 3):
                for more in range(3):
                    await queue.send(str(number + more))
                await (session.rollback() if number % 4 == 1 else session.commit())
        found = [int(message.text()) for message in await drained(connection.queue(name), 45)]
        assert found == [n for n in range(60) if (n // 3 * 3) % 4 != 1]


# --- Topics ---------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-160")
@pytest.mark.parametrize(
    ("durable", "parameters", "expected"),
    [
        (None, {}, ["b"]),
        (None, {"rollback_redelivers": True}, ["a", "b"]),
        ("lasting", {}, ["a", "b"]),
    ],
    ids=["discarded", "by the setting", "durable"],
)
async def test_rolled_back_receipts_of_a_topic(
    join: Join, name: str, durable: str | None, parameters: dict[str, Any], expected: list[str]
) -> None:
    async with join("subscriber") as connection:
        topic = connection.topic(name, parameters=parameters)
        session = connection.session("transacted")
        async with session.topic(name, parameters=parameters).subscribe(durable) as consumer:
            await topic.send("a")
            assert (await one(consumer)).text() == "a"
            await session.rollback()
            await topic.send("b")
            found = [await one(consumer) for _ in expected]
            assert [message.text() for message in found] == expected
            assert found[0].redelivered == (expected[0] == "a")
            await session.commit()
            assert await is_silent(consumer)
        await session.close()


@pytest.mark.requirement("CLU-160", "CLU-155")
async def test_from_a_topic_to_a_queue_and_back(join: Join, name: str) -> None:
    async with join() as connection:
        source, target = connection.topic(f"{name}.t"), connection.topic(f"{name}.u")
        async with (
            connection.session("transacted") as session,
            target.subscribe() as seen,
            session.topic(f"{name}.t").subscribe("work") as work,
        ):
            await source.send("job")
            message = await one(work)
            await session.topic(f"{name}.u").send(f"{message.text()} done")
            await session.queue(f"{name}.q").send("and counted")
            assert await is_silent(seen)
            await session.commit()
            assert await texts(seen, 1) == ["job done"]
            assert await is_silent(work)
        assert [m.text() for m in await drained(connection.queue(f"{name}.q"), 1)] == ["and counted"]


# --- How they end ---------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-158")
async def test_prefetched_messages_stay_for_the_next_transaction(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name).send_many([str(number) for number in range(10)])
        async with connection.session("transacted") as session:
            consumer = await session.queue(name).consume(prefetch=10).start()
            for number in range(3):
                assert (await one(consumer)).text() == str(number)
            await session.commit()
            assert (await one(consumer)).text() == "3"
            await session.commit()
            assert (await one(consumer)).text() == "4"
        left = await drained(connection.queue(name), 6)
        assert [int(message.text()) for message in left] == list(range(4, 10))
        assert [message.delivery_count for message in left] == [2, *[1] * 5]


@pytest.mark.requirement("CLU-159")
async def test_a_rollback_makes_everything_available_also_to_others(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name).send_many([str(number) for number in range(10)])
        async with connection.session("transacted") as session:
            consumer = await session.queue(name).consume(prefetch=10).start()
            for _ in range(3):
                await one(consumer)
            await session.rollback()
            await consumer.close()
            found = await drained(connection.queue(name), 10)
        assert [int(message.text()) for message in found] == list(range(10))
        assert [message.delivery_count for message in found] == [2] * 3 + [1] * 7


@pytest.mark.requirement("CLU-26", "CLU-160")
async def test_what_is_always_rolled_back_dies_and_the_rest_goes_on(join: Join, name: str) -> None:
    async with join() as connection:
        dead = connection.queue(f"{name}.dead")
        await dead.send("first of all")
        queue = connection.queue(name, parameters={"delivery_limit": 3, "dead_queue": f"{name}.dead"})
        await queue.send_many(["poison", "good"])
        done = []
        while len(done) < 1:
            async with connection.transaction() as transaction:
                message = await transaction.receive(name, timeout=PATIENCE_S)
                if message.text() == "poison":
                    await transaction.rollback()
                else:
                    done.append(message.text())
        found = await drained(dead, 2)
        assert [(m.text(), m.dead.get("count")) for m in found] == [("first of all", None), ("poison", 3)]


@pytest.mark.requirement("CLU-155")
async def test_a_transaction_whose_send_is_refused_did_not_happen(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.topic(f"{name}.topic").send("it is a topic")
        await connection.queue(name).send("coin")
        with pytest.raises(FairleadError):
            async with connection.transaction() as transaction:
                await transaction.receive(name, timeout=PATIENCE_S)
                await transaction.send(f"{name}.other", "coin")
                await transaction.queue(f"{name}.topic").send("it is no queue")
        assert [message.text() for message in await drained(connection.queue(name), 1)] == ["coin"]
        assert [message async for message in connection.queue(f"{name}.other").browse()] == []


@pytest.mark.requirement("CLU-155", "CLU-88")
async def test_a_transaction_into_a_deleted_queue_did_not_happen(join: Join, name: str) -> None:
    async with join() as connection, join("boss") as boss:
        for each in (name, f"{name}.to"):
            await connection.queue(each).send("coin")
        with pytest.raises(TransactionAborted):
            async with connection.transaction() as transaction:
                await transaction.receive(name, timeout=PATIENCE_S)
                await transaction.send(f"{name}.to", "coin")
                await becomes(lambda: _has_transaction(boss, f"{name}.to"))
                await boss.admin.execute("delete", destination=f"{name}.to")
        assert [message.text() for message in await drained(connection.queue(name), 1)] == ["coin"]


async def test_what_cannot_be_done_in_a_transaction(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(name).send("x")
        async with connection.session("transacted") as session:
            with pytest.raises(LocalProtocolError):
                session.queue(name).sender()
            consumer = await session.queue(name).consume().start()
            message = await one(consumer)
            with pytest.raises(LocalProtocolError):
                message.retry()
            await session.commit()
            await session.commit()  # of nothing: nothing happens
            await session.rollback()
        async with connection.transaction() as transaction:
            await transaction.commit()
        assert await depth(connection, name) == 0


@pytest.mark.requirement("CLU-155", "CLU-125")
async def test_a_program_that_dies_in_a_transaction_leaves_nothing_of_it(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join() as connection:
        await connection.queue(name).send_many(["a", "b"])
        async with doomed(durable_server) as lost:
            transaction = lost.transaction()
            await transaction.receive(name, timeout=PATIENCE_S)
            await transaction.send(f"{name}.to", "never")
            await becomes(lambda: _some(connection, f"{name}.to"))
            cut(lost)
            found = await drained(connection.queue(name), 2)
            assert sorted(m.text() for m in found) == ["a", "b"]
            assert Counter(m.delivery_count for m in found) == {1: 1, 2: 1}
        assert await depth(connection, f"{name}.to") == 0
        await becomes(lambda: _no_transaction(connection, f"{name}.to"))


async def _some(connection: Any, name: str) -> bool:
    try:
        return await _has_transaction(connection, name)
    except FairleadError:
        return False


async def _no_transaction(connection: Any, name: str) -> bool:
    return not await _has_transaction(connection, name)


@pytest.mark.requirement("CLU-123", "CLU-118", "CLU-155")
async def test_a_transaction_that_only_sends_survives_the_loss_of_its_line(join: Join, name: str) -> None:
    async with join() as connection:
        async with connection.session("transacted") as session:
            queue = session.queue(name)
            for number in range(30):
                await queue.send(str(number))
                if number % 7 == 3:
                    cut(connection)
                if number % 10 == 9:
                    await session.commit()
        assert [int(m.text()) for m in await drained(connection.queue(name), 30)] == list(range(30))


@pytest.mark.requirement("CLU-155", "CLU-127")
async def test_a_transaction_that_received_says_that_it_has_to_be_done_again(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send("coin")
        with pytest.raises(TransactionAborted) as caught:
            async with connection.transaction() as transaction:
                await transaction.receive(name, timeout=PATIENCE_S)
                await transaction.send(f"{name}.to", "coin")
                lost = asyncio.Event()
                connection.on_event(lambda event: lost.set() if event.name == "lost" else None)
                cut(connection)
                await lost.wait()
        assert caught.value.retryable

        async def move(again: fairlead.Transaction) -> str:
            coin = await again.receive(name, timeout=PATIENCE_S)
            await again.send(f"{name}.to", coin.body)
            return coin.text()

        assert await connection.run_transaction(move) == "coin"
        assert [m.text() for m in await drained(connection.queue(f"{name}.to"), 1)] == ["coin"]
        assert await depth(connection, name) == 0


@pytest.mark.requirement("CLU-170", state="half", note="what it received is available from the failed commit on")
async def test_a_transaction_in_which_nothing_happens_is_rolled_back_in_the_end(name: str) -> None:
    with Server(managers=1, **NEVER_FROZEN) as server:
        async with fairlead.connect(server.url) as connection, fairlead.connect(server.url) as boss:
            await boss.admin.execute("set", parameters={"transaction_idle_s": 0.3})
            await connection.queue(name).send("coin")
            async with connection.session("transacted") as session:
                consumer = await session.queue(name).consume().start()
                await one(consumer)
                await session.queue(f"{name}.to").send("coin")
                await becomes(lambda: _some(boss, f"{name}.to"))
                await becomes(lambda: _no_transaction(boss, f"{name}.to"))
                await session.queue(f"{name}.to").send("too late")
                with pytest.raises(TransactionAborted):
                    await session.commit()
                again = await one(consumer)
                assert (again.text(), again.delivery_count) == ("coin", 2)
                await session.queue(f"{name}.to").send("in time")
                await session.commit()
            assert [message.text() for message in await drained(boss.queue(f"{name}.to"), 1)] == ["in time"]
            assert await depth(boss, name) == 0


# --- Money ----------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-155", state="scaled", note="200 transfers, lost lines; kills are in test_resume")
async def test_no_coin_is_lost_or_made(join: Join, name: str) -> None:
    """Three workers move coins round three queues, some give up half way, and lines break."""
    queues = [f"{name}.{number}" for number in range(3)]
    async with join("boss") as boss:
        await boss.queue(queues[0]).send_many([f"coin {number}" for number in range(30)])
        moved = 0

        async def work(number: int) -> None:
            nonlocal moved
            async with join(f"w{number}") as connection:
                attempts = 0

                async def move(transaction: fairlead.Transaction) -> bool:
                    nonlocal attempts
                    attempts += 1
                    at = attempts % 3
                    coin = await transaction.receive(queues[at], timeout=0.05)
                    if coin is None:
                        return False
                    await transaction.send(queues[(at + 1) % 3], coin.body)
                    if attempts % 11 == 5:
                        cut(connection)
                    return True

                while moved < 200:
                    try:
                        moved += await connection.run_transaction(move)
                    except TransactionAborted as error:
                        assert error.retryable
                    if attempts % 13 == 7:
                        with pytest.raises(ZeroDivisionError):
                            async with connection.transaction() as transaction:
                                await move(transaction)
                                raise ZeroDivisionError

        await asyncio.gather(*(work(number) for number in range(3)))
        found: Counter[str] = Counter()
        for each in queues:
            if await _exists(boss, each):
                found.update([message.text() for message in await drained(boss.queue(each))])
        assert found == Counter(f"coin {number}" for number in range(30))


async def _exists(connection: Any, name: str) -> bool:
    try:
        return bool(await facts(connection, name))
    except FairleadError:
        return False


@pytest.mark.requirement("CLU-161", state="half", note="seen at the client: one commit, one answer")
async def test_a_commit_costs_one_question(join: Join, name: str) -> None:
    async with join() as connection:
        async with connection.session("transacted") as session:
            queue = session.queue(name)
            await queue.send("warm up")
            await session.commit()
            road = session.courier.road
            asked: list[str] = []
            ask = road.ask
            road.ask = lambda command: (asked.append(command.do), ask(command))[1]  # type: ignore[method-assign]
            for _ in range(3):
                await queue.send("x")
                await queue.send("y")
                await session.commit()
            assert asked == ["commit"] * 3
            del road.ask  # type: ignore[method-assign]
        async with connection.queue(name).consume() as consumer:
            assert len(await take(consumer, 7)) == 7
