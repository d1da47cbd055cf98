"""What time does: expiry, delays, schedules; and dead messages, wherever they come from."""

from __future__ import annotations

import pytest

from fairlead.cluster import records
from fairlead.wire.durable import ENTRY_CRON, REJECT, STORED_REFUSED
from fairlead.wire.entry_codec import Delivered, encode
from fairlead.wire.properties import encode_properties

from .rig import Rig, text, texts


def numbers(messages: list[Delivered]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.requirement("CLU-23")
def test_expired_messages_are_never_delivered_and_go(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1, ttl_ms=2000), text(2), text(3, ttl_ms=5000))
    rig.wait(1000)
    browser = rig.consumer(queue, browse=True)
    rig.run()
    assert numbers(rig.take(browser)) == [1, 2, 3]
    rig.now_ms += 1500  # nobody has ticked yet
    consumer = rig.consumer(queue, 1)
    rig.run()
    assert numbers(rig.take(consumer)) == [2]
    rig.wait(4000)
    assert queue.depth == 1
    rig.want(consumer, 10)
    assert rig.take(consumer) == []


@pytest.mark.requirement("CLU-23")
def test_a_restart_does_not_give_expired_messages_a_second_life(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1, ttl_ms=2000), text(2, ttl_ms=60_000))
    for checkpoint in (None, rig.snapshots()):
        new = rig.crash(checkpoint)
        new.wait(3000)
        assert new.destinations["q"].depth == 1
        consumer = new.consumer(new.destinations["q"])
        new.run()
        assert numbers(new.take(consumer)) == [2]


@pytest.mark.requirement("CLU-23")
def test_a_destination_has_a_time_to_live_of_its_own(rig: Rig) -> None:
    queue = rig.make("q", ttl_s=10)
    rig.send(rig.producer(queue), texts(range(5)))
    rig.send(rig.producer(queue), text(5, ttl_ms=60_000))
    rig.wait(9000)
    assert queue.depth == 6
    rig.wait(2000)
    assert queue.depth == 1
    queue.change(type(queue.parameters)(ttl_s=1))
    rig.send(rig.producer(queue), text(6))
    rig.wait(2000)
    assert queue.depth == 1


def test_a_message_somebody_holds_does_not_expire_but_does_not_come_again(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1, ttl_ms=1000))
    consumer = rig.consumer(queue)
    rig.run()
    found = rig.take(consumer)
    rig.wait(5000)
    assert queue.depth == 1
    rig.retry(consumer, found)
    assert rig.take(consumer) == []
    assert queue.depth == 0


@pytest.mark.requirement("CLU-27")
def test_a_delayed_message_is_confirmed_at_once_and_comes_when_it_is_due(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), text(1, delay_ms=3000, ttl_ms=1000), text(2))
    assert len(rig.receipts) == 1
    assert numbers(rig.take(consumer)) == [2], "it holds up nobody"
    rig.wait(1000)
    for checkpoint in (None, rig.snapshots()):
        new = rig.crash(checkpoint)
        other = new.consumer(new.destinations["q"], selector_text="priority = 4 AND delivery_count = 1")
        new.wait(1900)
        assert new.take(other) == []
        new.wait(200)
        assert numbers(new.take(other)) == [1]
    rig.wait(2000)
    assert numbers(rig.take(consumer)) == [1]


def test_a_time_to_live_counts_from_when_the_message_is_available(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1, delay_ms=3000, ttl_ms=1000))
    rig.wait(3500)
    assert queue.depth == 1
    rig.wait(1000)
    assert queue.depth == 0


def test_a_message_may_be_due_at_a_point_in_time(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    headers = encode_properties({}, {":due": rig.now_ms + 5000})
    rig.send(rig.producer(queue), text(1, headers=headers, delay_ms=1))
    rig.wait(4000)
    assert rig.take(consumer) == []
    rig.wait(1001)
    assert len(rig.take(consumer)) == 1


def schedule(number: int, cron: str) -> bytes:
    return text(number, headers=encode_properties({"a": 1}, {":cron": cron}), flags=ENTRY_CRON)


def test_a_schedule_makes_messages_until_it_is_cancelled(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), schedule(7, "@every 10s"))
    assert queue.depth == 0
    (known,) = queue.schedules()
    assert (known["order"], known["cron"], known["due_ms"]) == (1, "@every 10s", rig.now_ms + 10_000)
    rig.wait(35_000)
    found = rig.take(consumer)
    assert numbers(found) == [7, 7, 7]
    assert found[0].properties == {"a": 1}
    assert len({message.id for message in found}) == 3
    rig.ack(consumer, found)
    checkpoint = rig.snapshots()
    rig.wait(10_000)
    for kept in (None, checkpoint):
        new = rig.crash(kept)
        other = new.consumer(new.destinations["q"])
        new.run()
        assert numbers(new.take(other)) == [7], "the one that was not settled"
        new.wait(10_000)
        assert numbers(new.take(other)) == [7]
    assert queue.cancel(1)
    assert not queue.cancel(1)
    rig.take(consumer)
    rig.wait(60_000)
    assert rig.take(consumer) == []
    assert rig.crash().destinations["q"].schedules() == []


def test_what_was_missed_while_nothing_ran_is_made_up_for_once(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), schedule(7, "* * * * *"))
    rig.now_ms += 3_600_000
    rig = rig.crash()
    rig.run()
    assert rig.destinations["q"].depth == 1


def test_a_schedule_nobody_can_read_is_refused_and_the_rest_stored(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1), schedule(2, "every now and then"), text(3))
    assert queue.depth == 2
    assert [(r[1], r[2], r[3] == STORED_REFUSED) for r in rig.receipts] == [
        (1, 1, False), (2, 1, True), (3, 1, False),
    ]  # fmt: skip
    assert rig.notices[0][1]["code"] == "bad-parameter"


@pytest.mark.requirement("CLU-26")
def test_redelivery_is_delayed_and_grows(rig: Rig) -> None:
    queue = rig.make("q", redelivery_delay_s=1, redelivery_factor=2, redelivery_delay_max_s=3)
    consumer = rig.consumer(queue, 100)
    rig.send(rig.producer(queue), texts(range(2)))
    for delay in (1000, 2000, 3000, 3000):
        found = rig.take(consumer)
        assert len(found) == 2
        rig.retry(consumer, found)
        assert rig.take(consumer) == []
        rig.wait(delay - 1)
        assert rig.take(consumer) == []
        rig.wait(1)
    rig.retry(consumer, rig.take(consumer), delay=10_000)
    rig.wait(9999)
    rig = rig.crash()
    other = rig.consumer(rig.destinations["q"])
    rig.run()
    assert rig.take(other) == []
    rig.wait(1)
    assert [message.delivery_count for message in rig.take(other)] == [6, 6]


@pytest.mark.requirement("CLU-26", "CLU-199", "CLU-200")
def test_over_the_limit_a_message_is_dead_and_others_go_on(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ"), rig.make("q", delivery_limit=3)
    consumer = rig.consumer(queue, 1000)
    headers = encode_properties({"color": "red"}, {":type": "order"})
    rig.send(rig.producer(queue), text(1, headers=headers, key=b"k", priority=7, ttl_ms=100_000), text(2))
    first = rig.take(consumer)
    identity = first[0].id
    rig.ack(consumer, first[1:])
    rig.retry(consumer, first[:1])
    rig.retry(consumer, rig.take(consumer))
    rig.retry(consumer, rig.take(consumer))
    assert rig.take(consumer) == []
    assert (queue.depth, queue.bytes, dead.depth) == (0, 0, 1)
    rig = rig.crash()
    assert rig.destinations["q"].depth == 0
    reader = rig.consumer(rig.destinations["_DMQ"], selector_text="color = 'red'")
    rig.run()
    (message,) = rig.take(reader)
    assert (message.body, message.properties, message.type, message.key) == (b"1", {"color": "red"}, "order", "k")
    assert (message.priority, message.ttl_ms, message.delivery_count) == (7, 0, 1)
    assert message.own(":dead-destination") == "q"
    assert message.own(":dead-reason") == "delivery-limit"
    assert message.own(":dead-count") == 3
    assert message.own(":dead-ms") == rig.now_ms
    assert message.own(":dead-id") == identity.hex()
    assert message.id == identity


@pytest.mark.requirement("CLU-199")
def test_rejected_and_expired_messages_can_be_dead_too(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ"), rig.make("q", expired="dead")
    consumer = rig.consumer(queue, 1)
    rig.send(rig.producer(queue), text(1), text(2, ttl_ms=1000), text(3))
    rig.reject(consumer, rig.take(consumer), tag=9)
    assert rig.answers == [(consumer.handle, 9, [])]
    rig.wait(2000)
    reasons = [dict(m.entry._asdict()) for m in dead.browse().messages]
    assert len(reasons) == 2
    reader = rig.consumer(dead)
    rig.run()
    found = [(m.own(":dead-reason"), m.own(":dead-count")) for m in rig.take(reader)]
    assert found == [("rejected", 1), ("expired", 0)]  # how often each had been delivered
    assert queue.depth == 1
    assert queue.bury_all() == 1
    rig.run()
    assert [m.own(":dead-reason") for m in rig.take(reader)] == ["deleted"]


@pytest.mark.requirement("CLU-201")
def test_a_dead_message_never_dies_again(rig: Rig) -> None:
    dead, queue = (
        rig.make("own-dead", delivery_limit=1, ttl_s=1),
        rig.make("q", delivery_limit=1, dead_queue="own-dead"),
    )
    consumer, reader = rig.consumer(queue), rig.consumer(dead)
    rig.send(rig.producer(queue), text(1))
    rig.retry(consumer, rig.take(consumer))
    for _ in range(20):
        found = rig.take(reader)
        assert len(found) == 1
        rig.retry(reader, found)
    rig.take(reader)
    rig.reject(reader, [type("M", (), {"order": 1})()])
    rig.wait(10_000)
    assert dead.depth == 1


@pytest.mark.requirement("CLU-202")
def test_a_dead_message_waits_aside_until_it_can_be_moved(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), texts(range(3)))
    rig.reject(consumer, rig.take(consumer))
    assert (queue.depth, queue.facts()["aside"]) == (3, 3)
    assert rig.take(consumer) == [], "out of distribution"
    dead = rig.make("_DMQ")
    rig.wait(1500)
    assert (queue.depth, dead.depth) == (0, 3)


@pytest.mark.requirement("CLU-202")
def test_a_full_dead_queue_blocks_moves(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ", max_messages=2), rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), texts(range(2)), texts(range(2)))
    found = rig.take(consumer)
    rig.reject(consumer, found[:2])
    rig.reject(consumer, found[2:])
    assert (dead.depth, queue.depth) == (2, 2)
    reader = rig.consumer(dead)
    rig.run()
    rig.ack(reader, rig.take(reader))
    rig.wait(2000)
    assert (dead.depth, queue.depth) == (2, 0)


@pytest.mark.requirement("CLU-202")
def test_a_move_is_whole_or_not_at_all(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ"), rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), texts(range(10)))
    rig.settle(consumer, [m.order for m in rig.take(consumer)], REJECT, run=False)
    for safe in range(rig.safe, len(rig.log) + 1):
        rig.safe = safe
        new = rig.crash()
        assert new.destinations["q"].depth + new.destinations["_DMQ"].depth == 10
    assert new.destinations["_DMQ"].depth == dead.depth == 10
    assert all(kind == records.MOVE for kind, _, _ in rig.log[-10:])


def test_moving_back_takes_the_headers_off(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ"), rig.make("q")
    consumer = rig.consumer(queue)
    body = encode(b"x" * 100, headers=encode_properties({"a": 1}))
    rig.send(rig.producer(queue), body, body)
    rig.reject(consumer, rig.take(consumer))
    assert dead.depth == 2
    assert dead.move([1, 2, 77], queue) == 2
    rig.run()
    found = rig.take(consumer)
    assert [(m.properties, m.own(":dead-reason"), m.delivery_count) for m in found] == [({"a": 1}, None, 1)] * 2
    assert not queue.takes_dead


def test_dead_messages_that_are_on_disk_are_fetched_first(rig: Rig) -> None:
    dead, queue = rig.make("_DMQ"), rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), texts(range(3)))
    found = rig.take(consumer)
    rig.cold = set(rig.bodies)
    rig.reject(consumer, found)
    assert dead.depth == 0
    rig.load()
    rig.wait(2000)
    assert (dead.depth, queue.depth) == (3, 0)
