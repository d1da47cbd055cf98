"""Who has a message, and until when: the modes of acknowledgement, returns, and what a lost consumer leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.client.aio.consuming import AckMode
from fairlead.errors import BadParameter, LocalProtocolError, Stale
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

pytestmark = pytest.mark.processes


async def _is(value: Any) -> Any:
    return value


# --- Modes ----------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-20")
@pytest.mark.parametrize(
    ("mode", "seen", "left"),
    [
        ("individual", 6, [0, 1, 3, 4, 5, 6, 7]),  # it acknowledges number 2 only
        ("auto", 6, [6, 7]),
        ("client", 6, [4, 5, 6, 7]),  # it acknowledges after four
        ("transacted", 6, [4, 5, 6, 7]),  # it commits after four
    ],
)
async def test_what_a_killed_consumer_leaves_in_each_mode(
    join: Join, durable_server: Server, name: str, mode: AckMode, seen: int, left: list[int]
) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(8)])
        async with doomed(durable_server) as lost:
            session = lost.session(ack=mode)
            consumer = await session.queue(name).consume(prefetch=8).start()
            for number in range(seen):
                message = await one(consumer)
                assert message.text() == str(number)
                if mode == "individual" and number == 2:
                    await message.ack(confirm=True)
                if mode == "client" and number == 3:
                    await message.ack(confirm=True)
                if mode == "transacted" and number == 3:
                    await session.commit()
            await becomes(lambda: _depth_is(connection, name, len(left)))  # that an acknowledgement has come
        found = await drained(queue, len(left))
        assert [int(message.text()) for message in found] == left
        assert all(message.redelivered for message in found if int(message.text()) < seen)


async def _depth_is(connection: Any, name: str, wanted: int) -> bool:
    return await depth(connection, name) == wanted


@pytest.mark.requirement("CLU-20")
async def test_what_a_killed_consumer_leaves_in_the_lazy_mode(join: Join, durable_server: Server, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(200)])
        async with doomed(durable_server) as lost:
            consumer = await lost.queue(name).consume(ack="dups-ok").start()
            for _ in range(150):
                await one(consumer)
            await becomes(lambda: _less(connection, name, 200))
        found = [int(message.text()) for message in await drained(queue, 50)]
        assert found == sorted(found)
        assert set(range(150, 200)) <= set(found)


async def _less(connection: Any, name: str, than: int) -> bool:
    return await depth(connection, name) < than


@pytest.mark.requirement("CLU-20")
async def test_the_lazy_mode_says_everything_in_the_end(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([b"x"] * 30)
        async with queue.consume(ack="dups-ok") as consumer:
            for _ in range(20):
                await one(consumer)
        assert await depth(connection, name) == 10


@pytest.mark.requirement("CLU-20")
async def test_auto_mode_with_a_loop_acknowledges_when_the_next_is_asked_for(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(5)])
        async with doomed(durable_server) as lost:
            async for message in lost.queue(name).consume(ack="auto"):
                if message.text() == "3":
                    await becomes(lambda: _depth_is(connection, name, 2))
                    cut(lost)
                    break
        assert [message.text() for message in await drained(queue, 2)] == ["3", "4"]


@pytest.mark.requirement("CLU-20", "CLU-30")
async def test_a_listener_in_auto_mode_acknowledges_when_it_has_finished(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        tries: list[tuple[str, int]] = []
        done = asyncio.Event()

        async def listen(message: Any) -> None:
            tries.append((message.text(), message.delivery_count))
            if message.text() == "bad" and message.delivery_count < 3:
                raise ValueError("not yet")
            if message.text() == "end":
                done.set()

        consumer = queue.consume(ack="auto", prefetch=1)
        consumer.listen(listen)
        await queue.send_many(["good", "bad", "end"])
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        await becomes(lambda: _depth_is(connection, name, 0))
        await consumer.close()
        assert [count for text, count in tries if text == "bad"] == [1, 2, 3]
        assert [count for text, count in tries if text == "good"] == [1]


@pytest.mark.requirement("CLU-30")
async def test_plain_functions_listen_too_and_stop_waits_for_them(join: Join, name: str) -> None:
    async with join() as connection:
        session = connection.session(ack="auto")
        queue = session.queue(name)
        seen: list[str] = []
        running = asyncio.Event()
        finish = asyncio.Event()

        async def slow(message: Any) -> None:
            running.set()
            await finish.wait()
            seen.append(message.text())

        queue.consume().listen(slow)
        await queue.send("first")
        await asyncio.wait_for(running.wait(), PATIENCE_S)
        stopping = asyncio.create_task(session.stop())
        assert not (await asyncio.wait([stopping], timeout=SOON_S))[0], "it did not wait for the listener"
        await queue.send("second")
        finish.set()
        await asyncio.wait_for(stopping, PATIENCE_S)
        await asyncio.sleep(SOON_S)
        assert seen == ["first"]
        await session.start()
        await becomes(lambda: _is(seen == ["first", "second"]))
        await session.close()

        plain: list[str] = []
        consumer = connection.queue(f"{name}.plain").consume(ack="auto")
        consumer.listen(lambda message: plain.append(message.text()))
        await connection.queue(f"{name}.plain").send("by a function")
        await becomes(lambda: _is(plain == ["by a function"]))
        await consumer.close()


@pytest.mark.requirement("CLU-30")
async def test_nothing_is_delivered_while_the_connection_is_stopped(join: Join, name: str) -> None:
    async with join() as connection, join("sender") as sender:
        await connection.stop()
        async with connection.queue(name).consume() as consumer:
            await sender.queue(name).send_many(["a", "b"])
            assert await is_silent(consumer)
            assert consumer.receive_nowait() is None
            await connection.start()
            assert await texts(consumer, 2) == ["a", "b"]
            await consumer.pause()
            await sender.queue(name).send("c")
            assert await is_silent(consumer)
            await consumer.resume()
            assert await texts(consumer, 1) == ["c"]


@pytest.mark.requirement("CLU-20")
async def test_client_mode_covers_all_consumers_of_the_session(join: Join, name: str) -> None:
    async with join() as connection:
        a, b = f"{name}.a", f"{name}.b"
        for each in (a, b):
            await connection.queue(each).send_many(["1", "2"])
        session = connection.session(ack="client")
        async with session.queue(a).consume() as first, session.queue(b).consume() as second:
            await one(first)
            message = await one(second)
            await message.ack(confirm=True)
            await becomes(lambda: _depth_is(connection, a, 1))
            assert await depth(connection, b) == 1
            assert (await one(first)).text() == "2"
            await session.recover()
            again = await one(first)
            assert (again.text(), again.delivery_count) == ("2", 2)
            await again.ack(confirm=True)
        await session.close()
        assert await depth(connection, a) == 0
        assert await depth(connection, b) == 1


async def test_a_mode_that_is_none(join: Join, name: str) -> None:
    async with join() as connection:
        with pytest.raises(BadParameter):
            connection.queue(name).consume(ack="perhaps")  # type: ignore[arg-type]
        with pytest.raises(BadParameter):
            connection.session(ack="perhaps")  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError):
            await connection.session(ack="individual").commit()


# --- Single messages ------------------------------------------------------------------------------------------------
async def test_acknowledging_up_to_a_message(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(10)])
        async with queue.consume() as consumer:
            messages = [await one(consumer) for _ in range(6)]
            await messages[1].retry(confirm=True)
            await messages[3].ack_through(confirm=True)
        found = await drained(queue, 7)
        assert [int(message.text()) for message in found] == [1, 4, 5, 6, 7, 8, 9]


@pytest.mark.requirement("CLU-25")
async def test_any_order_of_acknowledgements(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(50)])
        async with queue.consume() as consumer:
            messages = [await one(consumer) for _ in range(50)]
            for message in messages[::-2]:
                message.ack()
            await messages[0].ack(confirm=True)
        found = await drained(queue, 24)
        assert [int(message.text()) for message in found] == list(range(2, 50, 2))
        assert {message.delivery_count for message in found} == {2}


async def test_a_message_that_is_given_back_for_a_while(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many(["a", "b"])
        async with queue.consume() as consumer:
            first = await one(consumer)
            await first.retry(delay=0.6, confirm=True)
            assert (await facts(connection, name))["delayed"] == 1
            assert await texts(consumer, 1) == ["b"]
            assert await is_silent(consumer)
            again = await one(consumer)
            assert (again.text(), again.delivery_count) == ("a", 2)
            await again.ack(confirm=True)


async def test_a_block_that_fails_gives_its_message_back(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send("x")
        async with queue.consume() as consumer:
            with pytest.raises(ZeroDivisionError):
                async with (await one(consumer)).process():
                    raise ZeroDivisionError
            async with (await one(consumer)).process() as again:
                assert again.delivery_count == 2
        assert await depth(connection, name) == 0


async def test_to_settle_twice_changes_nothing(join: Join, name: str) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many(["a", "b"])
        async with queue.consume(prefetch=1) as consumer:
            message = await one(consumer)
            await message.ack(confirm=True)
            message.retry()
            message.ack()
            assert await texts(consumer, 1) == ["b"]
            assert await is_silent(consumer)


# --- Lost consumers -------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-125", state="half", note="a lost connection; a lost manager is in test_resume")
async def test_what_a_lost_consumer_held_goes_to_the_others_marked(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join() as connection:
        queue = connection.queue(name)
        await queue.send_many([str(number) for number in range(10)])
        async with doomed(durable_server) as lost:
            consumer = await lost.queue(name).consume(prefetch=10).start()
            for _ in range(4):
                await one(consumer)
            assert (await facts(connection, name))["locked"] == 10
            async with queue.consume() as other:
                assert await is_silent(other)
                cut(lost)
                found = await take(other, 10)
                assert [int(message.text()) for message in found] == list(range(10))
                assert all(message.redelivered for message in found[:4])
        figures = await facts(connection, name)
        assert (figures["consumers"], figures["locked"], figures["depth"]) == (0, 0, 0)


@pytest.mark.requirement("CLU-126")
async def test_held_for_a_session_that_comes_back_in_time(join: Join, name: str) -> None:
    async with join("holder") as connection, join("rival") as rival:
        queue = connection.queue(name, parameters={"hold_s": 20.0})
        await queue.send_many([str(number) for number in range(6)])
        async with queue.consume(prefetch=6) as consumer:
            messages = [await one(consumer) for _ in range(3)]
            async with rival.queue(name).consume() as other:
                cut(connection)
                for message in messages:
                    await message.ack(confirm=True)  # nothing is stale
                rest = []  # what nobody had seen is anybody's
                while len(rest) < 3:
                    for each in (consumer, other):
                        if (message := await each.receive(timeout=SOON_S)) is not None:
                            await message.ack(confirm=True)
                            rest.append(int(message.text()))
                assert sorted(rest) == [3, 4, 5]
                assert await is_silent(consumer)
                assert await is_silent(other)
        assert await depth(connection, name) == 0


@pytest.mark.requirement("CLU-126")
async def test_held_for_a_session_that_does_not_come_back_in_time(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join() as connection:
        queue = connection.queue(name, parameters={"hold_s": 1.0})
        await queue.send("x")
        async with doomed(durable_server) as lost:
            await one(await lost.queue(name).consume().start())
            async with queue.consume() as other:
                cut(lost)
                assert await is_silent(other)
                (message,) = await take(other, 1)
                assert message.redelivered


@pytest.mark.requirement("CLU-126")
async def test_an_acknowledgement_that_comes_too_late_says_so(join: Join, name: str) -> None:
    async with join() as connection, join("rival") as rival:
        queue = connection.queue(name)
        await queue.send("x")
        async with queue.consume(prefetch=1) as consumer:
            message = await one(consumer)
            async with rival.queue(name).consume() as other:
                cut(connection)
                second = await one(other)
                assert second.redelivered
                with pytest.raises(Stale):
                    await message.ack(confirm=True)
                assert consumer.stale == 1
                await second.ack(confirm=True)
