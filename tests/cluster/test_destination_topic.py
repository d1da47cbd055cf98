"""Topics: subscriptions of every kind, selectors, slow subscribers, replay, retention, last values."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.cluster.destination import Destination
from fairlead.errors import DuplicateSubscription
from fairlead.wire.durable import ENTRY_CRON
from fairlead.wire.entry_codec import Delivered
from fairlead.wire.properties import encode_properties

from .rig import Rig, text, texts


def numbers(messages: list[Delivered]) -> list[int]:
    return [int(message.body) for message in messages]


def durable(
    topic: Destination, name: str = "s", *, selector: str = "", shared: bool = False, start: Any = "new"
) -> int:
    return topic.subscribe(name=name, client="me", selector=selector, shared=shared, start=start)[0]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def topic(rig: Rig) -> Destination:
    return rig.make("t", "topic")


@pytest.mark.requirement("CLU-16")
def test_every_subscription_of_the_time_gets_what_it_selects(rig: Rig, topic: Destination) -> None:
    one = rig.consumer(topic)
    none = rig.consumer(topic, selector_text="n < 0")
    producer = rig.producer(topic)
    rig.send(producer, *(text(n, headers=encode_properties({"n": n})) for n in range(5)))
    late = rig.consumer(topic)
    rig.send(producer, *(text(n, headers=encode_properties({"n": n})) for n in range(5, 8)))
    assert numbers(rig.take(one)) == list(range(8))
    assert rig.take(none) == []
    assert numbers(rig.take(late)) == [5, 6, 7]


@pytest.mark.requirement("CLU-16")
def test_each_subscription_has_its_own_position_and_nothing_stays_behind(rig: Rig, topic: Destination) -> None:
    one, two = rig.consumer(topic), rig.consumer(topic)
    rig.send(rig.producer(topic), texts(range(5)))
    rig.ack(one, rig.take(one))
    assert topic.depth == 5
    rig.ack(two, rig.take(two)[:2])
    assert topic.depth == 3
    topic.lost(two)
    rig.run()
    assert (topic.depth, topic.bytes, len(topic.cursors)) == (0, 0, 1)
    topic.detach(one)
    rig.run()
    assert not topic.cursors


@pytest.mark.requirement("CLU-17")
def test_a_durable_subscription_collects_while_nobody_is_there(rig: Rig, topic: Destination) -> None:
    cursor = durable(topic)
    rig.send(rig.producer(topic), texts(range(100)))
    rig = rig.crash()
    topic = rig.destinations["t"]
    (known,) = topic.subscriptions()
    assert (known.cursor, known.name, known.client, known.depth) == (cursor, "s", "me", 100)
    consumer = rig.consumer(topic, cursor=cursor)
    rig.run()
    found = rig.take(consumer)
    assert numbers(found) == list(range(100))
    rig.ack(consumer, found[:50])
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["t"], cursor=cursor)
    rig.run()
    assert numbers(rig.take(consumer)) == list(range(50, 100))


@pytest.mark.requirement("CLU-17")
def test_one_consumer_at_a_time_unless_it_is_shared(rig: Rig, topic: Destination) -> None:
    cursor = durable(topic)
    rig.consumer(topic, cursor=cursor)
    with pytest.raises(DuplicateSubscription):
        rig.consumer(topic, cursor=cursor)
    shared = durable(topic, "shared", shared=True)
    both = [rig.consumer(topic, cursor=shared) for _ in range(2)]
    rig.send(rig.producer(topic), texts(range(10)))
    assert [len(rig.take(one)) for one in both] == [5, 5]


@pytest.mark.requirement("CLU-17")
def test_unsubscribing_lets_go(rig: Rig, topic: Destination) -> None:
    cursor = durable(topic)
    rig.send(rig.producer(topic), texts(range(5)))
    assert topic.depth == 5
    topic.unsubscribe(cursor)
    rig.run()
    assert topic.depth == 0
    assert not topic.is_live(1, 6)
    assert rig.crash().destinations["t"].subscriptions() == []


@pytest.mark.requirement("CLU-19")
def test_what_a_durable_subscription_does_not_select_is_settled_again_at_recovery(rig: Rig, topic: Destination) -> None:
    cursor = durable(topic, selector="n = 1")
    producer = rig.producer(topic)
    rig.send(producer, *(text(n, headers=encode_properties({"n": n % 3})) for n in range(9)))
    assert topic.subscriptions()[0].depth == 3
    for checkpoint in (None, rig.snapshots()):
        new = rig.crash(checkpoint)
        assert new.destinations["t"].subscriptions()[0].depth == 3
        consumer = new.consumer(new.destinations["t"], cursor=cursor)
        new.run()
        found = new.take(consumer)
        assert numbers(found) == [1, 4, 7]
        new.ack(consumer, found)
        assert new.destinations["t"].depth == 0


def test_a_checkpoint_before_messages_are_safe_knows_whom_they_are_for(rig: Rig, topic: Destination) -> None:
    cursor = durable(topic, selector="n = 1")
    rig.run()
    cron = encode_properties({"n": 1}, {":cron": "@every 1h"})
    entries = [text(n, headers=encode_properties({"n": n})) for n in range(3)]
    rig.send(rig.producer(topic), *entries, text(9, headers=cron, flags=ENTRY_CRON), run=False)
    checkpoint = rig.snapshots()
    rig.run()
    rig = rig.crash(checkpoint)
    consumer = rig.consumer(rig.destinations["t"], cursor=cursor)
    rig.run()
    assert numbers(rig.take(consumer)) == [1]
    assert len(rig.destinations["t"].schedules()) == 1


def test_a_schedule_is_no_message_for_late_comers_either(rig: Rig) -> None:
    topic = rig.make("t", "topic", retain_messages=-1)
    headers = encode_properties({}, {":cron": "@every 1h"})
    rig.send(rig.producer(topic), text(1), text(2, headers=headers, flags=ENTRY_CRON), text(3))
    late, replay = rig.consumer(topic, start="first"), rig.consumer(topic, replay=True, start="first")
    rig.run()
    assert numbers(rig.take(late)) == numbers(rig.take(replay)) == [1, 3]


def test_a_subscription_may_begin_in_the_past_and_still_selects(rig: Rig, topic: Destination) -> None:
    durable(topic, "keeper")
    producer = rig.producer(topic)
    for n in range(10):
        rig.send(producer, text(n, headers=encode_properties({"n": n})))
        rig.wait(1000)
    first = rig.consumer(topic, start="first", selector_text="n > 6")
    fifth = rig.consumer(topic, start=5)
    timed = rig.consumer(topic, start={"ms": rig.now_ms - 3000})
    rig.run()
    assert numbers(rig.take(first)) == [7, 8, 9]
    assert numbers(rig.take(fifth)) == [4, 5, 6, 7, 8, 9]
    assert numbers(rig.take(timed)) == [7, 8, 9]
    cursor = durable(topic, "past", selector="n > 7", start="first")
    rig.run()
    rig = rig.crash()
    past = rig.consumer(rig.destinations["t"], cursor=cursor)
    rig.run()
    assert numbers(rig.take(past)) == [8, 9]


@pytest.mark.requirement("CLU-29")
def test_ones_own_messages_are_left_out_if_asked(rig: Rig, topic: Destination) -> None:
    session = rig.session()
    deaf = rig.consumer(topic, session=session, no_local=True)
    cursor = durable(topic)
    deaf_durable = rig.consumer(topic, session=session, no_local=True, cursor=cursor)
    rig.send(rig.producer(topic, session), text(1))
    rig.send(rig.producer(topic), text(2))
    assert numbers(rig.take(deaf)) == [2]
    assert numbers(rig.take(deaf_durable)) == [2]
    assert rig.crash().destinations["t"].subscriptions()[0].depth == 1


def test_transient_subscribers_hear_of_what_is_safe(rig: Rig, topic: Destination) -> None:
    rig.send(rig.producer(topic), texts(range(3)), run=False)
    assert rig.broadcasts == []
    rig.run()
    assert rig.broadcasts == [("t", texts(range(3)))]
    rig.send(rig.producer(topic), text(3, delay_ms=1000), text(4))
    assert rig.broadcasts[-1] == ("t", text(4))


@pytest.mark.requirement("CLU-107")
def test_hold_lets_the_slowest_set_the_pace(rig: Rig) -> None:
    topic = rig.make("t", "topic", slow_subscriber="hold")
    slow, *others = rig.consumer(topic, 3), rig.consumer(topic), rig.consumer(topic)
    producer = rig.producer(topic)
    for n in range(10):
        rig.send(producer, text(n))
    assert [len(rig.take(one)) for one in (slow, *others)] == [3, 3, 3] or len(rig.got[others[0].handle]) <= 4
    rig.want(slow, 100)
    assert numbers(rig.take(slow))[-1] == 9
    assert numbers(rig.take(others[0]))[-1] == 9


@pytest.mark.requirement("CLU-107")
def test_buffer_keeps_for_the_slow_one_up_to_a_limit(rig: Rig) -> None:
    topic = rig.make("t", "topic", subscriber_buffer=5)
    slow, quick = rig.consumer(topic, 0), rig.consumer(topic)
    producer = rig.producer(topic)
    rig.send(producer, texts(range(4)))
    assert not topic.facts()["blocked"]
    rig.send(producer, texts(range(4, 6)))
    assert topic.facts()["blocked"]
    assert numbers(rig.take(quick)) == list(range(6))
    rig.want(slow, 100)
    rig.ack(slow, rig.take(slow))
    assert not topic.facts()["blocked"]
    assert [facts["event"] for _, facts in rig.notices] == ["blocked", "unblocked"]


@pytest.mark.requirement("CLU-107")
def test_drop_oldest_drops_from_non_durable_ones_only_and_counts(rig: Rig) -> None:
    topic = rig.make("t", "topic", slow_subscriber="drop-oldest", subscriber_buffer=5)
    cursor = durable(topic)
    slow = rig.consumer(topic, 0)
    rig.send(rig.producer(topic), texts(range(20)))
    rig.send(rig.producer(topic), texts(range(20, 23)))
    rig.want(slow, 100)
    assert numbers(rig.take(slow)) == list(range(18, 23))
    assert topic.facts()["dropped"] == 18
    keeper = rig.consumer(topic, cursor=cursor)
    rig.run()
    assert numbers(rig.take(keeper)) == list(range(23))


def test_consumed_messages_stay_readable_while_they_are_retained(rig: Rig) -> None:
    queue = rig.make("q", retain_messages=5)
    producer = rig.producer(queue)
    consumer = rig.consumer(queue)
    rig.send(producer, texts(range(12)))
    rig.ack(consumer, rig.take(consumer))
    rig.send(producer, texts(range(12, 15)))
    rig.ack(consumer, rig.take(consumer))
    assert (queue.depth, queue.first, queue.next) == (0, 11, 16)
    replay = rig.consumer(queue, replay=True, start="first")
    rig.run()
    assert numbers(rig.take(replay)) == [10, 11, 12, 13, 14]
    assert rig.notices[-1][1]["event"] == "caught-up"
    rig.send(producer, text(15))
    assert numbers(rig.take(replay)) == [15], "and goes on with what comes"
    rig.settle(replay, [16], tag=3)
    assert rig.answers[-1] == (replay.handle, 3, [])
    assert queue.depth == 1
    rig = rig.crash(rig.snapshots())
    again = rig.consumer(rig.destinations["q"], replay=True, start="first")
    rig.run()
    assert numbers(rig.take(again))[-5:] == [11, 12, 13, 14, 15]


def test_retention_by_time_counts_from_consumption(rig: Rig) -> None:
    queue = rig.make("q", retain_s=60)
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3)))
    rig.wait(100_000)
    assert queue.first == 1, "what is not consumed stays"
    consumer = rig.consumer(queue)
    rig.run()
    rig.ack(consumer, rig.take(consumer))
    rig.wait(50_000)
    assert queue.first == 1
    assert queue.is_live(1, 4)
    rig.wait(20_000)
    assert queue.first == 4
    assert not queue.is_live(1, 4)
    assert queue.kept_bytes == 0


def test_retention_by_bytes(rig: Rig) -> None:
    queue = rig.make("q", retain_bytes=2000)
    producer = rig.producer(queue)
    consumer = rig.consumer(queue)
    for n in range(20):
        rig.send(producer, text(n) + b"")
        rig.ack(consumer, rig.take(consumer))
    assert 1500 < queue.kept_bytes <= 2000
    assert queue.bytes == 0


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_last_value_topic_keeps_the_newest_of_each_key(rig: Rig, checkpointed: bool) -> None:
    topic = rig.make("t", "topic", last_value=True)
    producer = rig.producer(topic)
    slow = rig.consumer(topic, 0)
    for n in range(20):
        rig.send(producer, text(n, key=b"k%d" % (n % 3)))
    rig.want(slow, 100)
    assert numbers(rig.take(slow)) == [17, 18, 19], "a slow subscriber gets the newest only"
    topic.detach(slow)
    rig.run()
    rig = rig.crash(rig.snapshots() if checkpointed else None)
    topic = rig.destinations["t"]
    late = rig.consumer(topic, start="first")
    rig.run()
    found = rig.take(late)
    assert numbers(found) == [17, 18, 19]
    rig.ack(late, found)
    assert topic.is_live(18, 21)
    assert not topic.is_live(1, 17)
    rig.send(rig.producer(topic), text(99, key=b"k0"))
    assert numbers(rig.take(late)) == [99]
