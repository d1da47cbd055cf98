"""Whatever dies, a client goes on or is told: nothing confirmed is lost, nothing comes twice without its mark."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.testing import Server
from tests.processes.durable.hurting import MM, WHOLE_S, hurt, whole
from tests.processes.durable.steps import (
    PATIENCE_S,
    SOON_S,
    becomes,
    cut,
    drained,
    facts,
    is_silent,
    one,
    take,
    texts,
)
from tests.processes.tools import NEVER_FROZEN, manager_of, placed, suspended

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """On a port of its own choice, so that clients find it again when all of it was killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Server(managers=2, listen=f"127.0.0.1:{port}", **NEVER_FROZEN) as one_server:
        yield one_server


# --- Sending ----------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-118", "CLU-121", "CLU-123", state="scaled", note="some kills of each kind")
@pytest.mark.parametrize("what", ["manager", MM, "everything"])
async def test_sends_in_flight_are_stored_once_and_in_order(server: Server, name: str, what: str) -> None:
    async with fairlead.connect(server.url) as connection:
        queue, single = connection.queue(name), connection.queue(f"{name}.single")
        ids: list[str] = []
        confirmed: list[str] = []
        stop = False

        async def one_by_one() -> None:
            while not stop:
                receipt = await single.send(str(len(confirmed)))
                confirmed.append(receipt.id)

        task = asyncio.create_task(one_by_one())
        sent = 0
        async with queue.sender(window=300, on_receipt=lambda receipt: ids.append(receipt.id)) as sender:
            for index in range(2 if what != "everything" else 1):
                for _ in range(1000):
                    await sender.send(str(sent))
                    sent += 1
                await hurt(server, what, index)
            for _ in range(1000):
                await sender.send(str(sent))
                sent += 1
        stop = True
        await task
        found = await drained(queue, sent)
        assert [int(message.text()) for message in found] == list(range(sent))
        assert [message.id for message in found] == ids
        found = await drained(single, len(confirmed))
        assert [int(message.text()) for message in found] == list(range(len(confirmed)))
        assert [message.id for message in found] == confirmed


@pytest.mark.requirement("CLU-119", "CLU-121", state="scaled", note="40 clients")
async def test_many_busy_clients_go_on_when_their_manager_is_killed(server: Server, name: str) -> None:
    await whole(server)
    total = 0

    async def work(number: int) -> None:
        nonlocal total
        async with fairlead.connect(server.url, name=f"busy{number}") as connection:
            queue = connection.queue(f"{name}.{number % 4}")
            for count in range(10):
                await queue.send(f"{number} {count}")
                total += 1

    tasks = [asyncio.create_task(work(number)) for number in range(40)]

    async def begun() -> bool:
        return total > 40

    await becomes(begun)
    server.kill("manager", 0)
    await asyncio.wait_for(asyncio.gather(*tasks), WHOLE_S)  # without an exception
    async with fairlead.connect(server.url) as connection:
        found = [m.text() for each in range(4) for m in await drained(connection.queue(f"{name}.{each}"), 100)]
    assert Counter(found) == Counter(f"{number} {count}" for number in range(40) for count in range(10))
    await whole(server)


# --- Receiving --------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-24", "CLU-25", "CLU-119", "CLU-125")
@pytest.mark.parametrize("mode", ["individual", "client"])
async def test_consumers_get_everything_and_a_second_time_with_the_mark(server: Server, name: str, mode: Any) -> None:
    async with fairlead.connect(server.url) as sending, fairlead.connect(server.url) as receiving:
        queue = sending.queue(name, parameters={"delivery_limit": 0})
        seen: list[tuple[int, bool]] = []

        async def read() -> None:
            session = receiving.session(ack=mode)
            async with session.queue(name).consume(prefetch=40) as consumer:
                while True:
                    message = await consumer.receive()
                    assert message is not None
                    seen.append((int(message.text()), message.redelivered))
                    if mode == "individual":
                        message.ack()
                    elif mode == "client" and len(seen) % 20 == 0:
                        session.acknowledge()
                    await asyncio.sleep(0.0005)

        reader = asyncio.create_task(read())
        for index, what in enumerate(("manager", MM)):
            await queue.send_many([str(index * 300 + number) for number in range(300)])

            async def some(wanted: int = index * 300 + 100) -> bool:
                return len(seen) > wanted

            await becomes(some, WHOLE_S)
            await hurt(server, what, index)

        async def complete() -> bool:
            return {number for number, _ in seen} == set(range(600))

        await becomes(complete, WHOLE_S)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        first = [number for number, again in seen if not again]
        assert len(first) == len(set(first)), "a second delivery without its mark"


@pytest.mark.requirement("CLU-125")
async def test_what_a_killed_manager_leaves_at_the_destinations(server: Server, name: str) -> None:
    await whole(server)
    async with placed(server, 0, 1) as (lost, other):
        queue = other.queue(name)
        await queue.send_many([str(number) for number in range(10)])
        holder = await lost.queue(name).consume(prefetch=10).start()
        for _ in range(3):
            await one(holder)
        assert (await facts(other, name))["locked"] == 10
        pid = server.pids("manager")[0]
        lost._carrier.keeper._limit_s = 0.0  # this client does not come back
        os.kill(pid, 9)

        async def released() -> bool:
            figures = await facts(other, name)
            return bool(figures["locked"] == figures["consumers"] == 0)

        await becomes(released)
        found = await drained(queue, 10)
        assert [int(message.text()) for message in found] == list(range(10))
        assert all(message.redelivered for message in found[:3])
    await whole(server)


async def hears(topic: Any, consumer: Any) -> bool:
    """What comes while nobody is there is not for those without a name; then it is said again."""
    await topic.send("probe")
    message = await consumer.receive(timeout=SOON_S)
    if message is not None:
        message.ack()
    return message is not None


@pytest.mark.requirement("CLU-122", "CLU-29", "CLU-17")
async def test_everything_a_client_had_is_back_without_its_doing(server: Server, name: str) -> None:
    async with fairlead.connect(server.url, name="whole") as connection, fairlead.connect(server.url) as other:
        temporary = await connection.temporary_queue()
        async with (
            temporary.consume() as answers,
            connection.topic(name).subscribe("lasting", selector="n > 0") as lasting,
            connection.topic(f"{name}.t").subscribe() as passing,
            connection.topic(f"{name}.p.*").subscribe() as by_pattern,
            connection.subscribe(f"{name}.x") as transient,
        ):
            for index, what in enumerate(("manager", MM, "manager", "everything")):
                await hurt(server, what, index // 2)
                await other.queue(temporary.name, create=False).send(f"answer {index}")
                await other.topic(name).send(f"lasting {index}", properties={"n": index + 1})
                assert await texts(answers, 1) == [f"answer {index}"]
                assert await texts(lasting, 1) == [f"lasting {index}"]
                await becomes(lambda: hears(other.topic(f"{name}.t"), passing))
                await becomes(lambda: hears(other.topic(f"{name}.p.x"), by_pattern))
                await other.publish(f"{name}.x", b"transient")
                assert (await transient.next(timeout=PATIENCE_S)).body == b"transient"


@pytest.mark.requirement("CLU-7", "CLU-121", note="two managers, killed in turn")
async def test_a_client_moved_by_force_sees_the_same_everywhere(server: Server, name: str) -> None:
    await whole(server)
    seen = []
    async with fairlead.connect(server.url, name="wanderer") as connection:
        queue, topic = connection.queue(name), connection.topic(f"{name}.t")
        async with topic.subscribe("mine") as mine:
            for step in range(3):
                await queue.send(str(step))
                await topic.send(str(step))
                assert await texts(mine, 1) == [str(step)]
                with pytest.raises(NotAllowed):
                    await connection.queue("_no").send(b"")
                manager = manager_of(server.status(), connection.uid)
                seen.append(manager)
                await whole(server)
                server.kill("manager", manager)
                await queue.flush()

                async def back() -> bool:
                    return connection.connected

                await becomes(back)
            assert await is_silent(mine)
        assert [message.text() for message in await drained(queue, 3)] == ["0", "1", "2"]
    assert len(set(seen)) == 2
    await whole(server)


# --- Frozen -----------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-124", state="half", note="one message manager: nothing fails over")
async def test_late_words_of_a_frozen_manager_change_nothing(server: Server, name: str) -> None:
    await whole(server)
    async with placed(server, 0, 0, 0, 1, options={"connect_timeout_s": 1}) as (mine, *_, rival):
        queue = mine.queue(name, parameters={"delivery_limit": 0})
        await queue.send_many([str(number) for number in range(3)])
        holder = await mine.queue(name).consume(prefetch=1).start()
        held = await one(holder)
        assert held.text() == "0"
        with suspended(server.pids("manager")[0]):
            waiting = [asyncio.create_task(queue.send(f"late {number}")) for number in range(5)]
            held.ack()
            await asyncio.sleep(0.05)  # it is said, into the socket of the one that stands still
            line = mine._carrier._line
            kept = os.dup(line.transport.get_extra_info("socket").fileno())  # type: ignore[union-attr]
            cut(mine)
            receipts = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
            assert manager_of(server.status(), mine.uid) == 1
            async with rival.queue(name).consume() as other:
                await holder.close()
                got = [message.text() for message in await take(other, 7)]
            assert Counter(got) == Counter(["1", "2", *(f"late {number}" for number in range(5))])
            await queue.send("after all")
        # Now the old manager says what it was told before it stood still.
        await asyncio.sleep(SOON_S)
        os.close(kept)
        assert [message.text() for message in await drained(rival.queue(name), 1)] == ["after all"]
        assert len({receipt.id for receipt in receipts}) == 5
    await whole(server)


@pytest.mark.requirement("CLU-121", "CLU-117")
async def test_a_message_manager_that_stands_still_is_a_delay(server: Server, name: str) -> None:
    await whole(server)
    async with fairlead.connect(server.url) as connection:
        queue = connection.queue(name)
        await queue.send("first")
        with suspended(server.pids(MM)[0]):
            waiting = [asyncio.create_task(queue.send(str(number))) for number in range(10)]
            await asyncio.sleep(0)
            with pytest.raises(FairleadError):
                await queue.send("limited", timeout=0.2)
            assert not any(task.done() for task in waiting)
        await asyncio.wait_for(asyncio.gather(*waiting), WHOLE_S)
        found = [message.text() for message in await drained(queue, 12)]
        assert found == ["first", *(str(number) for number in range(10)), "limited"]  # it was only not waited for


# --- Told, and not for ever -------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-121", "CLU-117")
async def test_when_nobody_comes_back_everybody_is_told() -> None:
    with Server(managers=1, **NEVER_FROZEN) as gone:
        connection = await fairlead.connect(gone.url, reconnect_limit_s=1.0)
        queue = connection.queue("q")
        await queue.send("x")
        consumer = await queue.consume().start()
        message = await one(consumer)
        receiving = asyncio.create_task(consumer.receive())
        transaction = connection.transaction()
        await transaction.send("q", "never")
        gone.kill_everything()
        began_s = time.monotonic()
        calls = [
            receiving,
            asyncio.create_task(queue.send("y")),
            asyncio.create_task(queue.send_many(["y"] * 100)),
            asyncio.create_task(queue.flush()),
            asyncio.ensure_future(message.ack(confirm=True)),
            asyncio.create_task(transaction.commit()),
            asyncio.create_task(connection.queue("other").send("z")),
            asyncio.create_task(connection.queue("other").consume().start()),
            asyncio.create_task(connection.temporary_queue()),
        ]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
        assert time.monotonic() - began_s < 10
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, FairleadError) or (number == 3 and outcome is None), (number, outcome)
        with pytest.raises(FairleadError):
            await asyncio.wait_for(queue.send("too late"), PATIENCE_S)
        await asyncio.wait_for(connection.close(), PATIENCE_S)
