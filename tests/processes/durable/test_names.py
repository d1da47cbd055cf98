"""One name space: a name is a transient topic until a queue or a topic is made of it, and everybody sees the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import fairlead
from fairlead.errors import BadName, FairleadError, NotAllowed, WrongKind
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.durable.steps import (
    PATIENCE_S,
    SOON_S,
    becomes,
    depth,
    drained,
    facts,
    is_silent,
    one,
    take,
    texts,
)
from tests.processes.tools import placed

pytestmark = pytest.mark.processes


class Heard:
    """What a transient subscription got, read by a task of its own."""

    def __init__(self, subscription: Any) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._task = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: Any) -> None:
        async for message in subscription:
            self.messages.append((message.topic, message.body))

    async def until(self, count: int) -> list[tuple[str, bytes]]:
        async def enough() -> bool:
            return len(self.messages) >= count

        await becomes(enough)
        return self.messages

    def close(self) -> None:
        self._task.cancel()


# --- The two roads --------------------------------------------------------------------------------------------------
async def test_a_durable_topic_is_heard_by_transient_subscribers_too(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1) as (here, there):
        topic = here.topic(name)
        await topic.send("before anybody")
        async with (
            there.subscribe(name) as exactly,
            there.subscribe(f"{name}.>") as nothing,
            here.subscribe(">") as all_,
        ):
            headers: dict[str, Any] = {"text": "ü", "whole": 7, "yes": True}
            await topic.send("sent", properties=headers, reply_to="answers")
            await there.topic(name).send("sent over there")
            await here.publish(name, b"published", headers={"h": "v"})
            await there.publish(name, b"published over there")
            mine = [await exactly.next(timeout=PATIENCE_S) for _ in range(4)]
            assert Counter(message.body for message in mine) == Counter(
                [b"sent", b"sent over there", b"published", b"published over there"]
            )
            first = next(message for message in mine if message.body == b"sent")
            assert first.topic == name
            assert dict(first.headers) == {"text": "ü".encode(), "whole": b"7", "yes": b"True"}
            assert first.reply_to == "answers"
            others = [await all_.next(timeout=PATIENCE_S) for _ in range(4)]
            assert [m.body for m in others if m.topic == name]
            with pytest.raises(FairleadError):
                await nothing.next(timeout=SOON_S)


async def test_what_is_published_to_a_durable_topic_is_kept(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1) as (here, there), fairlead.connect(durable_server.url, name="r") as reader:
        topic = here.topic(name)
        async with reader.topic(name).subscribe("kept"):
            pass
        await here.publish(name, b"1", headers={"colour": "red", "raw": b"\xff"}, reply_to="back")
        await here.flush()
        await topic.send("2")
        await here.publish_many(name, [b"3", b"4"])
        await here.flush()
        await there.publish(name, b"5")
        async with reader.topic(name).subscribe("kept") as consumer:
            found = await take(consumer, 5)
        assert sorted(message.body for message in found) == [b"1", b"2", b"3", b"4", b"5"]
        assert [m.body for m in found if m.body != b"5"] == [b"1", b"2", b"3", b"4"]
        assert dict(found[0].properties) == {"colour": "red", "raw": b"\xff"}
        assert found[0].reply_to == "back"


async def test_a_queue_is_not_for_publishing(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1) as (here, there):
        await here.queue(name).send("x")
        for connection in (here, there):
            undelivered: list[Any] = []
            connection.on_event(undelivered.append)
            await connection.publish(name, b"lost?")
            await connection.flush()

            async def told(seen: list[Any] = undelivered) -> bool:
                return any(event.name == "undelivered" for event in seen)

            await becomes(told)
            (event,) = (event for event in undelivered if event.name == "undelivered")
            assert event.error.code == "wrong-kind"
            assert name in str(event.error)
        with pytest.raises(WrongKind):
            await here.topic(name).send("x")
        with pytest.raises(WrongKind):
            await there.topic(name).subscribe().start()
        with pytest.raises(WrongKind):
            await there.queue(name).session.queue(name).consume().session.topic(name).subscribe("d").start()
        assert [message.text() for message in await drained(here.queue(name), 1)] == ["x"]


async def test_deleted_a_name_is_a_transient_topic_again(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1) as (here, there):
        await here.queue(name).send("x")
        await here.admin.execute("delete", destination=name)
        async with there.subscribe(name) as subscriber:

            async def heard() -> bool:
                await here.publish(name, b"transient")
                try:
                    return bool((await subscriber.next(timeout=0.1)).body == b"transient")
                except FairleadError:
                    return False

            await becomes(heard)
        topic = here.topic(name)  # and may be something else now
        async with there.topic(name).subscribe() as now:
            await topic.send("durable")
            assert await texts(now, 1) == ["durable"]


# --- The moment of change -------------------------------------------------------------------------------------------
async def test_a_topic_made_durable_while_it_is_published_to(durable_server: Server, name: str) -> None:
    """Transient subscribers notice nothing: nothing is lost, doubled or out of order."""
    async with (
        placed(durable_server, 0, 1, 0, 1) as (first, second, listener, boss),
        listener.subscribe(name) as near,
        boss.subscribe(f"{name.partition('.')[0]}.*") as wide,
    ):
        heard = [Heard(near), Heard(wide)]
        counts = {"a": 0, "b": 0}
        stop = False

        async def publish(connection: Any, who: str) -> None:
            while not stop:
                for _ in range(20):
                    await connection.publish(name, f"{who} {counts[who]}".encode())
                    counts[who] += 1
                await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(publish(first, "a")), asyncio.create_task(publish(second, "b"))]
        await heard[0].until(400)
        async with boss.topic(name).subscribe("all") as lasting:
            at = sum(counts.values())

            async def more() -> bool:
                return sum(counts.values()) > at + 400

            await becomes(more)
            stop = True
            await asyncio.gather(*tasks)
            await first.flush()
            await second.flush()
            for one_heard in heard:
                found = await one_heard.until(sum(counts.values()))
                for who, count in counts.items():
                    numbers = [int(body.split()[1]) for _, body in found if body.startswith(who.encode())]
                    assert numbers == list(range(count)), f"{who}: {len(numbers)} of {count}"
                one_heard.close()
            kept: dict[str, list[int]] = {"a": [], "b": []}
            while any(not numbers or numbers[-1] < counts[who] - 1 for who, numbers in kept.items()):
                for message in await lasting.receive_many(1000, timeout=PATIENCE_S):
                    who, _, number = message.body.decode().partition(" ")
                    kept[who].append(int(number))
                    message.ack()
            for numbers in kept.values():
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert await is_silent(lasting)


@pytest.mark.requirement("CLU-173", "CLU-174", state="scaled", note="200 rounds, two managers")
async def test_the_first_message_of_a_new_topic_reaches_a_standing_pattern(durable_server: Server, name: str) -> None:
    async with (
        placed(durable_server, 0, 1, 0) as (subscriber, maker, other),
        subscriber.topic(f"{name}.*").subscribe() as standing,
        subscriber.topic(f"{name}.*").subscribe("lasting") as lasting,
        other.subscribe(f"{name}.*") as transient,
    ):
        heard = Heard(transient)
        for number in range(200):
            topic = (maker if number % 2 else other).topic(f"{name}.{number}")
            if number % 3:
                await topic.send(f"first of {number}")
            else:  # at once: nobody waits for anything
                topic.try_send(f"first of {number}")
                await topic.flush()
        expected = Counter(f"first of {number}" for number in range(200))
        assert Counter(await texts(standing, 200)) == expected
        assert Counter(await texts(lasting, 200)) == expected
        assert Counter(body.decode() for _, body in await heard.until(200)) == expected
        heard.close()
        assert await is_silent(standing)


@pytest.mark.requirement("CLU-174")
async def test_one_subscriber_with_two_patterns_gets_a_message_once_by_each(join: Join, name: str) -> None:
    async with (
        join() as connection,
        connection.topic(f"{name}.*").subscribe() as wide,
        connection.topic(f"{name}.a?").subscribe() as narrow,
    ):
        await connection.topic(f"{name}.ab").send("x")
        assert await texts(wide, 1) == ["x"]
        assert await texts(narrow, 1) == ["x"]
        assert await is_silent(wide)
        assert await is_silent(narrow)


# --- What a name may be ---------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-177")
@pytest.mark.parametrize("good", ["x_", "a", "Z-9/x:y.z_", "n" * 200])
async def test_names_that_are_allowed(join: Join, name: str, good: str) -> None:
    async with join() as connection:
        queue = connection.queue(f"{good}{name[-4:]}"[:255])
        await queue.send("x")
        assert [message.text() for message in await drained(queue, 1)] == ["x"]


@pytest.mark.requirement("CLU-177")
@pytest.mark.parametrize("bad", ["a b", "ü", "a*", "a>", "a\n", "n" * 256])
async def test_names_that_are_none(join: Join, bad: str) -> None:
    async with join() as connection:
        with pytest.raises(FairleadError):
            await connection.queue(bad).send("x", timeout=PATIENCE_S)
        with pytest.raises(FairleadError):
            await connection.queue(bad).consume().start(timeout=PATIENCE_S)


@pytest.mark.requirement("CLU-177")
@pytest.mark.parametrize("bad", ["a b", "_mine", "ü", "n" * 256])
async def test_names_no_durable_subscription_has(join: Join, name: str, bad: str) -> None:
    async with join() as connection:
        with pytest.raises((BadName, NotAllowed, FairleadError)):
            await connection.topic(name).subscribe(bad).start(timeout=PATIENCE_S)
        subscriptions = (await connection.admin.execute("subscriptions"))["subscriptions"]
        assert bad not in [found["name"] for found in subscriptions]


@pytest.mark.requirement("CLU-177", "CLU-201")
async def test_reserved_names_on_every_manager(durable_server: Server) -> None:
    async with placed(durable_server, 0, 1) as connections:
        for connection in connections:
            for attempt in (
                connection.queue("_x").send("x", timeout=PATIENCE_S),
                connection.topic("_x").send("x", timeout=PATIENCE_S),
                connection.topic("_x").subscribe().start(timeout=PATIENCE_S),
                connection.queue("_DMQ").send("x", timeout=PATIENCE_S),
                connection.topic("_LOG").send("x", timeout=PATIENCE_S),
                connection.queue("temporary:0:1").send("x", timeout=PATIENCE_S),
            ):
                with pytest.raises(FairleadError) as caught:
                    await attempt
                assert not caught.value.retryable


async def test_a_name_is_compared_exactly(join: Join, name: str) -> None:
    async with join() as connection:
        await connection.queue(f"{name}.A").send("upper")
        await connection.queue(f"{name}.a").send("lower")
        assert [m.text() for m in await drained(connection.queue(f"{name}.A"), 1)] == ["upper"]
        assert await depth(connection, f"{name}.a") == 1
        assert (await facts(connection, f"{name}.a"))["id"] != (await facts(connection, f"{name}.A"))["id"]
        async with connection.queue(f"{name}.a").consume() as consumer:
            assert (await one(consumer)).text() == "lower"
