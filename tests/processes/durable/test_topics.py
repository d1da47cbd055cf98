"""Durable topics: who gets what, from where on, and what is kept for those who are away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import fairlead
from fairlead.errors import BadParameter, BadPattern, DuplicateSubscription, FairleadError, NoDestination
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.durable.steps import (
    PATIENCE_S,
    becomes,
    cut,
    doomed,
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


async def listed(connection: Any, name: str) -> list[dict[str, Any]]:
    """Durable subscriptions of this name."""
    found = (await connection.admin.execute("subscriptions"))["subscriptions"]
    return [subscription for subscription in found if subscription["name"] == name]


# --- Who gets what --------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-16", "CLU-1")
async def test_subscribers_of_all_kinds_on_both_managers(durable_server: Server, name: str) -> None:
    async with placed(durable_server, 0, 1, 0) as (here, there, third):
        topic = here.topic(name)
        await topic.send("before anybody")
        async with (
            here.topic(name).subscribe() as near,
            there.topic(name).subscribe() as far,
            third.topic(name).subscribe(selector="n > 7") as choosy,
            third.topic(name).subscribe(selector="n > 100") as hopeless,
        ):
            for number in range(10):
                await topic.send(str(number), properties={"n": number})
            async with there.topic(name).subscribe() as late:
                await topic.send("last")
                expected = [*map(str, range(10)), "last"]
                assert await texts(near, 11) == expected
                assert await texts(far, 11) == expected
                assert await texts(choosy, 2) == ["8", "9"]
                assert await texts(late, 1) == ["last"]
                assert await is_silent(hopeless)
        figures = await facts(here, name)
        assert (figures["depth"], figures["consumers"], figures["subscriptions"]) == (0, 0, [])  # nobody needs it


@pytest.mark.requirement("CLU-16")
async def test_each_subscription_acknowledges_for_itself(join: Join, name: str) -> None:
    async with join() as connection:
        topic = connection.topic(name)
        async with topic.subscribe("a") as a, topic.subscribe("b") as b:
            await topic.send_many(["1", "2", "3"])
            assert await texts(a, 3) == ["1", "2", "3"]
            assert (await facts(connection, name))["depth"] == 3
            (await one(b)).retry()
            again = await take(b, 3)
            assert sorted((m.text(), m.delivery_count) for m in again) == [("1", 2), ("2", 1), ("3", 1)]
            await becomes(lambda: _empty(connection, name))


async def _empty(connection: Any, name: str) -> bool:
    return (await facts(connection, name))["depth"] == 0


@pytest.mark.requirement("CLU-29")
async def test_no_local_is_about_the_connection(join: Join, name: str) -> None:
    async with join() as mine, join() as other:
        topic = mine.topic(name)
        async with topic.subscribe(no_local=True) as strict, topic.subscribe() as all_of_it:
            await mine.session().topic(name).send("of another session of mine")
            await other.topic(name).send("another's")
            await topic.send("my own")
            assert await texts(all_of_it, 3) == ["of another session of mine", "another's", "my own"]
            assert await texts(strict, 1) == ["another's"]
            assert await is_silent(strict)
        async with topic.subscribe("lasting", no_local=True) as lasting:
            await topic.send("my own")
            await other.topic(name).send("another's")
            assert await texts(lasting, 1) == ["another's"]
            assert await is_silent(lasting)


@pytest.mark.requirement("CLU-22")
async def test_priorities_within_a_subscription(join: Join, name: str) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name)
        async with topic.subscribe("s"):
            pass
        for number, priority in enumerate([4, 0, 9, 4, 9, 0]):
            await topic.send(str(number), priority=priority)
        async with topic.subscribe("s", prefetch=1) as consumer:
            assert await texts(consumer, 6) == ["2", "4", "0", "3", "1", "5"]


@pytest.mark.requirement("CLU-23", "CLU-27")
async def test_times_on_topics(join: Join, name: str) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name)
        async with topic.subscribe("s"):
            pass
        await topic.send("too short", ttl=0.2)
        await topic.send("late", delay=0.8)
        await topic.send("now")
        await asyncio.sleep(0.3)
        async with topic.subscribe("s") as consumer:
            assert await texts(consumer, 2) == ["now", "late"]
            assert await is_silent(consumer)


# --- Durable ones ---------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-17")
async def test_a_durable_subscription_survives_everything_but_its_end(own_server: Server, name: str) -> None:
    server = own_server
    async with (
        fairlead.connect(server.url, name="reader") as reader,
        reader.topic(name).subscribe("s", selector="n < 100"),
    ):
        pass
    async with fairlead.connect(server.url, name="publisher") as publisher:
        topic = publisher.topic(name)
        async with topic.sender() as sender:
            for number in range(120):
                await sender.send(str(number), properties={"n": number})
        server.kill("message-manager")
        async with fairlead.connect(server.url, name="reader") as reader:
            async with reader.topic(name).subscribe("s", selector="n < 100") as again:
                assert await texts(again, 60) == [str(number) for number in range(60)]
            server.kill_everything()
            server.start()
        async with fairlead.connect(server.url, name="reader") as reader:
            async with reader.topic(name).subscribe("s", selector="n < 100") as again:
                assert await texts(again, 40) == [str(number) for number in range(60, 100)]
                assert await is_silent(again)
            (known,) = await listed(reader, "s")
            assert (known["client"], known["selector"], known["topics"]) == ("/reader", "n < 100", [name])
            await reader.topic(name).unsubscribe("s")
            assert await listed(reader, "s") == []
            with pytest.raises(NoDestination):
                await reader.topic(name).unsubscribe("s")


@pytest.mark.requirement("CLU-17")
async def test_one_consumer_at_a_time_and_the_next_when_it_is_lost(
    join: Join, durable_server: Server, name: str
) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name)
        async with doomed(durable_server, "reader") as lost:
            holder = await lost.topic(name).subscribe("alone").start()
            await topic.send_many(["1", "2"])
            assert (await one(holder)).text() == "1"
            with pytest.raises(DuplicateSubscription):
                await topic.subscribe("alone").start()
            with pytest.raises(DuplicateSubscription):
                await topic.subscribe("alone", selector="n = 1").start()
            with pytest.raises(DuplicateSubscription):
                await topic.unsubscribe("alone")
            cut(lost)
            await becomes(lambda: _can(topic, "alone"))
        async with topic.subscribe("alone") as again:
            found = await take(again, 2)
            assert found[0].redelivered
            assert [m.text() for m in found] == ["1", "2"]


async def _can(topic: Any, durable: str) -> bool:
    try:
        async with topic.subscribe(durable):
            return True
    except DuplicateSubscription:
        return False


@pytest.mark.requirement("CLU-17")
async def test_another_topic_replaces_a_durable_subscription(join: Join, name: str) -> None:
    async with join("reader") as connection:
        first, second = connection.topic(f"{name}.1"), connection.topic(f"{name}.2")
        async with first.subscribe("moving"):
            pass
        await first.send("forgotten")
        async with second.subscribe("moving") as moved:
            await second.send("new")
            assert await texts(moved, 1) == ["new"]
            assert [found["topics"] for found in await listed(connection, "moving") if name in str(found)] == [
                [f"{name}.2"]
            ]
        await becomes(lambda: _empty(connection, f"{name}.1"))


@pytest.mark.requirement("CLU-17")
async def test_a_shared_subscription_is_worked_off_like_a_queue(join: Join, durable_server: Server, name: str) -> None:
    async with join("team") as connection:
        topic = connection.topic(name)
        async with (
            topic.subscribe("work", shared=True, prefetch=5) as a,
            topic.subscribe("work", shared=True, prefetch=5) as b,
        ):
            await topic.send_many([str(number) for number in range(100)])
            seen: list[int] = []

            async def work(consumer: Any) -> None:
                while len(seen) < 100:
                    message = await consumer.receive(timeout=0.1)
                    if message is not None:
                        seen.append(int(message.text()))
                        await message.ack(confirm=True)

            await asyncio.wait_for(asyncio.gather(work(a), work(b)), PATIENCE_S)
            assert sorted(seen) == list(range(100))
        await topic.send_many(["later 1", "later 2"])
        async with doomed(durable_server, "team") as lost:
            await one(await lost.topic(name).subscribe("work", shared=True).start())
        async with topic.subscribe("work", shared=True) as again:
            found = await take(again, 2)
            assert [m.text() for m in found] == ["later 1", "later 2"]
            assert found[0].redelivered
        with pytest.raises(FairleadError):
            async with topic.subscribe("work", shared=True), topic.subscribe("work"):
                pass


# --- From where on --------------------------------------------------------------------------------------------------
async def test_starts_of_every_kind(join: Join, name: str) -> None:
    async with join("reader") as connection:
        topic = connection.topic(name, parameters={"retain_messages": 6})
        early = await topic.send_many([str(number) for number in range(5)])
        await asyncio.sleep(0.02)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.02)
        await topic.send_many([str(number) for number in range(5, 8)])
        assert (await facts(connection, name))["kept"] == 6
        for start, expected in (
            ("first", range(2, 8)),
            (early[3].order, range(3, 8)),
            (1, range(2, 8)),  # what is gone is gone
            (middle, range(5, 8)),
            (10**9, range(0)),
            ("new", range(0)),
        ):
            async with topic.subscribe(start=start) as subscriber:  # type: ignore[arg-type]
                assert await texts(subscriber, len(expected)) == [str(number) for number in expected]
                assert await is_silent(subscriber)
        async with topic.subscribe("lasting", start="first") as lasting:
            assert await texts(lasting, 6) == [str(number) for number in range(2, 8)]
        async with topic.subscribe("lasting", start="first") as lasting:  # it has its own position now
            assert await is_silent(lasting)
        assert [int(m.text()) async for m in topic.replay(early[4].order)] == [4, 5, 6, 7]
        with pytest.raises(BadParameter):
            topic.subscribe(start="sometime")  # type: ignore[arg-type]


async def test_retention_by_bytes_and_by_time(join: Join, name: str) -> None:
    async with join() as connection:
        by_bytes = connection.topic(f"{name}.bytes", parameters={"retain_bytes": 10_000})
        for _ in range(30):
            await by_bytes.send(bytes(1000))
        kept = (await facts(connection, f"{name}.bytes"))["kept"]
        assert 5 <= kept <= 12
        by_time = connection.topic(f"{name}.time", parameters={"retain_s": 0.5})
        await by_time.send("soon gone")
        assert [m.text() async for m in by_time.replay()] == ["soon gone"]
        await becomes(lambda: _kept_is(connection, f"{name}.time", 0))
        assert [m async for m in by_time.replay()] == []


async def _kept_is(connection: Any, name: str, wanted: int) -> bool:
    return (await facts(connection, name))["kept"] == wanted


async def test_a_topic_of_last_values(own_server: Server, name: str) -> None:
    server = own_server
    async with fairlead.connect(server.url, name="reader") as connection:
        topic = connection.topic(name, parameters={"last_value": True})
        async with topic.subscribe() as watching:
            for number in range(30):
                await topic.send(str(number), key=f"k{number % 3}")
            await becomes(lambda: _latest(watching, "29"))
        for restart in (False, True):
            if restart:
                server.kill("message-manager")
            async with topic.subscribe(start="first") as late:
                assert await texts(late, 3) == ["27", "28", "29"]
                assert await is_silent(late)
        async with topic.subscribe(start="first") as late:
            await topic.send("30", key="k0")
            assert [text for text in await texts(late, 4) if text != "27"] == ["28", "29", "30"]


async def _latest(consumer: Any, wanted: str) -> bool:
    message = await consumer.receive(timeout=PATIENCE_S)
    assert message is not None
    message.ack()
    return bool(message.text() == wanted)


# --- Slow subscribers -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-107")
async def test_a_slow_subscriber_is_buffered_for(join: Join, name: str) -> None:
    async with join() as connection:
        topic = connection.topic(name)
        async with topic.subscribe() as a, topic.subscribe() as b, topic.subscribe(prefetch=1) as slow:
            await topic.send_many([str(number) for number in range(300)])
            assert len(await texts(a, 300)) == len(await texts(b, 300)) == 300
            assert (await facts(connection, name))["depth"] == 300
            assert await texts(slow, 300) == [str(number) for number in range(300)]


@pytest.mark.requirement("CLU-107")
async def test_a_slow_subscriber_loses_the_oldest_and_the_counter_says_how_many(join: Join, name: str) -> None:
    async with join() as connection:
        parameters = {"slow_subscriber": "drop-oldest", "subscriber_buffer": 20}
        topic = connection.topic(name, parameters=parameters)
        async with (
            topic.subscribe() as a,
            topic.subscribe("durable") as durable,
            topic.subscribe(prefetch=1) as slow,
        ):
            for first in range(0, 100, 10):
                await topic.send_many([str(first + number) for number in range(10)])
                await take(a, 10)
            assert await texts(durable, 100) == [str(number) for number in range(100)]
            found = []
            while (message := await slow.receive(timeout=0.5)) is not None:
                found.append(int(message.text()))
                await message.ack(confirm=True)
            assert found[-1] == 99
            assert found == sorted(set(found))
            dropped = (await facts(connection, name))["dropped"]
            assert dropped == 100 - len(found)
            assert dropped >= 60


@pytest.mark.requirement("CLU-107")
async def test_a_topic_that_goes_at_the_pace_of_the_slowest(join: Join, name: str) -> None:
    async with join() as connection:
        topic = connection.topic(name, parameters={"slow_subscriber": "hold"})
        async with topic.subscribe(prefetch=100) as quick, topic.subscribe(prefetch=10) as slow:
            for first in range(0, 300, 10):
                await topic.send_many([str(first + number) for number in range(10)])
            quickly = 0
            while (message := await quick.receive(timeout=0.5)) is not None:
                message.ack()
                quickly += 1
            assert 10 <= quickly < 100, "the quick one was not held"
            both = asyncio.gather(texts(slow, 300), texts(quick, 300 - quickly))
            assert len((await asyncio.wait_for(both, PATIENCE_S))[0]) == 300


# --- Patterns -------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-171", "CLU-172", "CLU-173")
async def test_patterns_of_every_style_over_durable_topics(join: Join, name: str) -> None:
    stem = name.replace("_", "-")
    async with join() as connection:
        for each in ("a.x", "a.y.z", "ab", "b.x"):
            await connection.topic(f"{stem}.{each}").send("before")
        for pattern, expected in (
            (f"{stem}.a.*", {"a.x"}),
            (f"{stem}.a.>", {"a.x", "a.y.z"}),
            (f"glob:{stem}.a.*", {"a.x", "a.y.z"}),
            (f"regex:{stem}.a.*", {"a.x", "a.y.z", "ab"}),
            (f"{stem}.?.x", {"a.x", "b.x"}),
        ):
            async with connection.topic(pattern).subscribe() as subscriber:
                for each in ("a.x", "a.y.z", "ab", "b.x"):
                    await connection.topic(f"{stem}.{each}").send(each)
                found = await take(subscriber, len(expected))
                assert {message.text() for message in found} == expected, pattern
                assert {message.destination for message in found} == {f"{stem}.{each}" for each in expected}
                assert await is_silent(subscriber)
        async with connection.topic(f"{stem}.a.>").subscribe():
            consumers = (await connection.admin.execute("consumers", destination=f"{stem}.a.x"))["consumers"]
            assert len(consumers) == 1  # an ordinary one


@pytest.mark.requirement("CLU-173", "CLU-175")
async def test_a_durable_pattern_collects_from_topics_made_while_nobody_was_there(own_server: Server) -> None:
    server = own_server
    async with fairlead.connect(server.url, name="reader") as connection:
        async with connection.topic("news.*").subscribe("all"):
            pass
        for number in range(3):
            await connection.topic(f"news.{number}").send(f"first of {number}")
        server.kill("message-manager")
        await connection.topic("news.3").send("first of 3")
        async with connection.topic("news.*").subscribe("all") as again:
            assert sorted(await texts(again, 4)) == [f"first of {number}" for number in range(4)]
            await connection.topic("news.4").send("first of 4")
            assert await texts(again, 1) == ["first of 4"]
        (known,) = await listed(connection, "all")
        assert known["pattern"] == "news.*"
        assert len(known["topics"]) == 5
        await connection.topic("news.*").unsubscribe("all")
        assert (await facts(connection, "news.0"))["subscriptions"] == []


@pytest.mark.requirement("CLU-175")
async def test_patterns_that_cost_too_much_or_are_none(join: Join, name: str) -> None:
    async with join() as connection:
        for bad in ("regex:(", "a..>", ">.a"):
            with pytest.raises(BadPattern):
                await connection.topic(bad).subscribe().start()
        began_s = asyncio.get_running_loop().time()
        stem = "a" * 200
        await connection.topic(f"{name}.{stem}").send("x")
        try:
            async with connection.topic("regex:(a+)+$|(a|aa)+b" + "a?" * 40).subscribe():
                await connection.topic(f"{name}.{stem}b").send("x")
        except BadPattern:
            pass
        await connection.queue(name).send("others are served")
        assert asyncio.get_running_loop().time() - began_s < 3


@pytest.mark.requirement("CLU-175", "CLU-176")
async def test_a_pattern_does_not_bring_the_servers_own_topics(join: Join, name: str) -> None:
    async with (
        join() as connection,
        connection.topic(">").subscribe() as everything,
        connection.subscribe(">") as transient,
    ):
        await connection.queue(f"{name}.new").send("makes a log line")
        await connection.topic(name).send("mine")
        assert (await one(everything)).destination == name
        found = await transient.next(timeout=PATIENCE_S)
        assert found.topic == name


@pytest.mark.requirement("CLU-176")
async def test_a_fresh_server_has_its_three_destinations_and_no_others() -> None:
    with Server(managers=1) as server:
        async with (
            fairlead.connect(server.url) as connection,
            connection.topic("_LOG", create=False).subscribe() as log,
        ):
            known = (await connection.admin.execute("destinations"))["destinations"]
            assert {(found["name"], found["kind"]) for found in known} == {
                ("_ADMIN", "topic"),
                ("_LOG", "topic"),
                ("_DMQ", "queue"),
            }
            await connection.queue("made").send("x")
            while "destination-created" not in (await one(log)).text():
                pass
