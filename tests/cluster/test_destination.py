"""Queues: storing, handing out, settling, redelivery; repeats; credit; selectors; what a restart leaves."""

from __future__ import annotations

import pytest

from fairlead.wire.durable import (
    ENTRY_DEDUP,
    ENTRY_VOLATILE,
    STORED_AGAIN,
    STORED_NEW,
    STORED_REFUSED,
    STORED_VOLATILE,
)
from fairlead.wire.entry_codec import Delivered, encode
from fairlead.wire.properties import encode_properties

from .rig import Rig, text, texts


def numbers(messages: list[Delivered]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.requirement("CLU-14")
def test_messages_wait_in_a_queue_until_they_are_consumed(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(5)))
    rig = rig.crash()
    queue = rig.destinations["q"]
    assert queue.depth == 5
    consumer = rig.consumer(queue)
    rig.run()
    found = rig.take(consumer)
    assert numbers(found) == [0, 1, 2, 3, 4]
    rig.ack(consumer, found)
    assert queue.depth == 0
    assert queue.bytes == 0
    assert rig.crash().destinations["q"].depth == 0


@pytest.mark.requirement("CLU-118")
def test_nothing_is_confirmed_or_shown_before_it_is_safe(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), texts(range(3)), run=False)
    rig.turn()
    assert rig.receipts == []
    assert rig.take(consumer) == []
    rig.flush()
    assert rig.receipts == [(2, 1, 3, STORED_NEW, 1)]
    rig.turn()
    assert numbers(rig.take(consumer)) == [0, 1, 2], "the mark was written together with the messages"


@pytest.mark.requirement("CLU-15")
def test_consumers_share_without_doubles(rig: Rig) -> None:
    queue = rig.make("q")
    consumers = [rig.consumer(queue, 100) for _ in range(10)]
    producer = rig.producer(queue)
    got: list[int] = []
    for batch in range(20):
        rig.send(producer, texts(range(batch * 100, batch * 100 + 100)))
        for consumer in consumers:
            found = rig.take(consumer)
            got += numbers(found)
            rig.ack(consumer, found)
            rig.want(consumer, len(found))
            more = rig.take(consumer)
            got += numbers(more)
            rig.ack(consumer, more)
            rig.want(consumer, len(more))
    assert sorted(got) == list(range(2000))
    assert queue.depth == 0


def test_a_few_messages_are_spread_over_all_who_wait(rig: Rig) -> None:
    queue = rig.make("q")
    consumers = [rig.consumer(queue, 100) for _ in range(5)]
    rig.send(rig.producer(queue), texts(range(10)))
    assert [len(rig.take(consumer)) for consumer in consumers] == [2] * 5


@pytest.mark.requirement("CLU-21")
def test_each_consumer_gets_each_producers_messages_in_order(rig: Rig) -> None:
    queue = rig.make("q")
    producers = [rig.producer(queue) for _ in range(4)]
    consumers = [rig.consumer(queue, 7) for _ in range(3)]
    seen: dict[int, list[int]] = {consumer.handle: [] for consumer in consumers}
    for step in range(30):
        for at, producer in enumerate(producers):
            rig.send(producer, texts(range(at * 1000 + step * 3, at * 1000 + step * 3 + 3)))
        for consumer in consumers:
            found = rig.take(consumer)
            seen[consumer.handle] += numbers(found)
            rig.ack(consumer, found)
            rig.want(consumer, len(found))
    for values in seen.values():
        for at in range(4):
            own = [value for value in values if value // 1000 == at]
            assert own == sorted(own)


@pytest.mark.requirement("CLU-22")
def test_higher_priorities_first_and_each_in_order(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    mixed = [(priority * 7 + 3) % 10 for priority in range(40)]
    rig.send(producer, *(text(at, priority=priority) for at, priority in enumerate(mixed)))
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["q"], 100)
    rig.run()
    want = sorted(range(40), key=lambda at: (-mixed[at], at))
    assert numbers(rig.take(consumer)) == want


@pytest.mark.requirement("CLU-25")
def test_what_comes_again_says_so_and_counts(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), text(1))
    consumer = rig.consumer(queue, 10)
    rig.run()
    for count in (1, 2, 3):
        (message,) = rig.take(consumer)
        assert message.delivery_count == count
        assert message.redelivered is (count > 1)
        rig.retry(consumer, [message])
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["q"])
    rig.run()
    (message,) = rig.take(consumer)
    assert message.delivery_count == 4


@pytest.mark.requirement("CLU-25")
def test_what_was_only_prefetched_does_not_count_when_it_is_released(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(10)))
    consumer = rig.consumer(queue, 10)
    rig.run()
    found = rig.take(consumer)
    rig.release(consumer, found[3:])
    queue.detach(consumer, orderly=True)
    other = rig.consumer(queue)
    rig.run()
    assert [(int(m.body), m.delivery_count) for m in rig.take(other)] == [(n, 2 if n < 3 else 1) for n in range(10)]


@pytest.mark.requirement("CLU-25", "CLU-125")
def test_a_message_that_may_have_been_delivered_before_a_crash_is_marked(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    consumer = rig.consumer(queue, 5)
    rig.send(producer, texts(range(5)))
    assert len(rig.take(consumer)) == 5
    rig.send(producer, texts(range(5, 200)), run=False)
    rig.flush()
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["q"])
    rig.run()
    found = rig.take(consumer)
    assert all(message.redelivered for message in found[:5])
    assert not found[-1].redelivered, "marks are not taken for what nobody has credit for"


@pytest.mark.requirement("CLU-125")
def test_the_messages_of_a_lost_consumer_go_to_others_in_order(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(10)))
    first = rig.consumer(queue, 6)
    rig.run()
    assert len(rig.take(first)) == 6
    queue.lost(first)
    assert queue.facts()["locked"] == 0
    second = rig.consumer(queue)
    rig.run()
    found = rig.take(second)
    assert numbers(found) == list(range(10))
    assert [message.redelivered for message in found] == [True] * 6 + [False] * 4
    rig.settle(first, [1], tag=5)
    assert rig.answers == [(first.handle, 5, [(1, 2)])]


@pytest.mark.requirement("CLU-126")
def test_a_session_that_comes_back_in_time_keeps_its_messages(rig: Rig) -> None:
    queue = rig.make("q", hold_s=5)
    rig.send(rig.producer(queue), texts(range(4)))
    session = rig.session()
    first = rig.consumer(queue, 4, session=session)
    rig.run()
    found = rig.take(first)
    queue.lost(first)
    other = rig.consumer(queue)
    rig.wait(2000)
    assert rig.take(other) == []
    again = rig.consumer(queue, 0, session=rig.session(session.id))
    rig.ack(again, found[:2], tag=1)
    assert rig.answers[-1] == (again.handle, 1, [])
    rig.wait(10_000)
    assert rig.take(other) == []
    queue.lost(again)
    rig.wait(4999)
    assert rig.take(other) == []
    rig.wait(2)
    assert [(m.order, m.delivery_count) for m in rig.take(other)] == [(3, 2), (4, 2)]


@pytest.mark.requirement("CLU-126")
def test_what_a_resumed_session_does_not_have_comes_again(rig: Rig) -> None:
    queue = rig.make("q", hold_s=5)
    rig.send(rig.producer(queue), texts(range(6)))
    session = rig.session()
    consumers = [rig.consumer(queue, 3, session=session) for _ in range(2)]
    rig.run()
    found = [rig.take(one) for one in consumers]
    for one in consumers:
        queue.lost(one)
    session = rig.session(session.id)
    again = [
        rig.consumer(queue, 0, session=session, holds=[(mine[0].order, mine[0].order + 1)]) for mine in reversed(found)
    ]
    for one, mine in zip(again, reversed(found), strict=True):
        rig.ack(one, mine[:1], tag=1)
        assert rig.answers[-1] == (one.handle, 1, [])
    rig.want(again[0], 10, 1 << 20)
    left = sorted(message.order for mine in found for message in mine[1:])
    assert [(m.order, m.delivery_count) for m in rig.take(again[0])] == [(order, 2) for order in left]


@pytest.mark.requirement("CLU-126")
def test_each_consumer_of_a_resumed_session_gets_its_own_back(rig: Rig) -> None:
    queue = rig.make("q", hold_s=5)
    rig.send(rig.producer(queue), texts(range(6)))
    session = rig.session()
    consumers = [rig.consumer(queue, 3, session=session, own=own) for own in (1, 2)]
    rig.run()
    found = [rig.take(one) for one in consumers]
    for one in consumers:
        queue.lost(one)
    session = rig.session(session.id)
    theirs = [(message.order, message.order + 1) for message in found[1]]
    # the first still has to say something of what has gone to the second meanwhile
    first = rig.consumer(queue, 0, session=session, own=1, holds=theirs[:2])
    third = rig.consumer(queue, 0, session=session, own=3, holds=[])
    second = rig.consumer(queue, 0, session=session, own=2, holds=theirs)
    rig.ack(second, found[1], tag=1)
    assert rig.answers[-1] == (second.handle, 1, [])
    rig.want(first, 10)
    assert [message.order for message in rig.take(first)] == [message.order for message in found[0]]
    assert rig.take(third) == []


@pytest.mark.requirement("CLU-111")
def test_a_window_of_one_gives_strict_one_by_one(rig: Rig) -> None:
    queue = rig.make("q")
    slow, quick = rig.consumer(queue, 1), rig.consumer(queue, 1)
    rig.send(rig.producer(queue), texts(range(50)))
    taken = rig.take(quick)
    while taken:
        assert len(taken) == 1
        rig.ack(quick, taken)
        rig.want(quick, 1)
        taken = rig.take(quick)
    assert len(rig.take(slow)) == 1
    assert slow.held == 1


@pytest.mark.requirement("CLU-111")
def test_bytes_are_credit_too(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue, 100, 10_000)
    rig.send(rig.producer(queue), *(encode(b"x" * 1000) for _ in range(50)))
    got = len(rig.take(consumer))
    assert 8 <= got <= 11
    rig.want(consumer, 0, 5000)
    assert 3 <= len(rig.take(consumer)) <= 6


@pytest.mark.requirement("CLU-106")
def test_a_blocked_consumer_is_passed_over(rig: Rig) -> None:
    queue = rig.make("q")
    one, two = rig.consumer(queue, 10), rig.consumer(queue, 1000)
    producer = rig.producer(queue)
    rig.send(producer, texts(range(20)))
    rig.send(producer, texts(range(20, 100)))
    first, second = len(rig.take(one)), len(rig.take(two))
    assert first <= 10
    assert first + second == 100
    two.paused = True
    rig.send(producer, texts(range(5)))
    assert rig.take(two) == []
    two.paused = False
    rig.ready(queue)
    rig.run()
    assert len(rig.take(two)) + len(rig.take(one)) == 5


def test_an_exclusive_consumer_has_the_queue_and_another_stands_by(rig: Rig) -> None:
    queue = rig.make("q", exclusive=True)
    one, two = rig.consumer(queue), rig.consumer(queue)
    producer = rig.producer(queue)
    rig.send(producer, texts(range(10)))
    assert (len(rig.take(one)), rig.take(two)) == (10, [])
    queue.lost(one)
    rig.run()
    assert numbers(rig.take(two)) == list(range(10))
    assert queue.facts()["consumers"] == 1


def test_a_paused_queue_takes_in_and_gives_nothing_out(rig: Rig) -> None:
    queue = rig.make("q", paused=True)
    consumer = rig.consumer(queue)
    rig.send(rig.producer(queue), text(1))
    assert rig.take(consumer) == []
    queue.change(type(queue.parameters)())
    rig.run()
    assert len(rig.take(consumer)) == 1
    assert rig.crash().destinations["q"].parameters.paused is False


@pytest.mark.requirement("CLU-118")
def test_repeats_are_stored_once_and_answered_like_the_first(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    for _ in range(3):
        rig.send(producer, texts(range(3)), first=1)
    rig.send(producer, texts(range(1, 6)), first=2)
    assert queue.depth == 6
    assert rig.receipts == [
        (1, 1, 3, STORED_NEW, 1),
        (1, 1, 3, STORED_AGAIN, 1),
        (1, 1, 3, STORED_AGAIN, 1),
        (1, 2, 2, STORED_AGAIN, 2),
        (1, 4, 3, STORED_NEW, 4),
    ]
    rig = rig.crash()
    session = rig.session(producer.session.id)
    again = rig.producer(rig.destinations["q"], session)
    rig.send(again, texts(range(6)), first=1)
    assert rig.destinations["q"].depth == 6
    assert [receipt[1:] for receipt in rig.receipts] == [(1, 3, STORED_AGAIN, 1), (4, 3, STORED_AGAIN, 4)]


@pytest.mark.requirement("CLU-118")
def test_a_repeat_is_not_confirmed_before_the_original_is_safe(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, text(1), run=False)
    rig.send(producer, text(1), first=1, run=False)
    rig.turn()
    assert rig.receipts == []
    rig.flush()
    assert [receipt[3] for receipt in rig.receipts] == [STORED_NEW, STORED_AGAIN]


@pytest.mark.requirement("CLU-118")
def test_a_send_number_beyond_the_next_is_not_stored(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, text(1), first=5)
    assert queue.depth == 0
    ((_, facts),) = rig.notices
    assert (facts["event"], facts["code"], facts["first"]) == ("refused", "out-of-order", 5)
    assert rig.receipts == []


def dedup(number: int, identity: str) -> bytes:
    return text(number, headers=encode_properties({}, {":dedup": identity}), flags=ENTRY_DEDUP)


def test_a_deduplication_id_is_stored_once(rig: Rig) -> None:
    queue = rig.make("q", dedup_s=60)
    producer = rig.producer(queue)
    rig.send(producer, dedup(0, "a"), dedup(1, "b"), dedup(2, "a"), text(3), dedup(4, "c"))
    assert queue.depth == 4
    assert [receipt[1:] for receipt in rig.receipts] == [
        (1, 2, STORED_NEW, 1),
        (3, 1, STORED_AGAIN, 1),
        (4, 2, STORED_NEW, 3),
    ]
    rig = rig.crash()
    queue = rig.destinations["q"]
    other = rig.producer(queue)
    rig.send(other, dedup(5, "c"))
    assert rig.receipts == [(other.handle, 1, 1, STORED_AGAIN, 4)]
    assert other.session.accepted[queue.number] == 1
    rig = rig.crash()
    assert rig.sessions[other.session.id].accepted[queue.number] == 1, "the send number is used up for good"
    rig.wait(61_000)
    rig.send(rig.producer(rig.destinations["q"]), dedup(6, "c"))
    assert rig.destinations["q"].depth == 5
    consumer = rig.consumer(rig.destinations["q"])
    rig.run()
    assert numbers(rig.take(consumer)) == [0, 1, 3, 4, 6]


def test_only_so_many_deduplication_ids_are_remembered(rig: Rig) -> None:
    queue = rig.make("q", dedup_max=10)
    producer = rig.producer(queue)
    for at in range(100):
        rig.send(producer, dedup(at, str(at)))
    assert len(queue.dedup) <= 11


@pytest.mark.requirement("CLU-24")
def test_volatile_messages_are_confirmed_at_once_and_say_so(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3), flags=ENTRY_VOLATILE), run=False)
    assert rig.receipts == [(1, 1, 3, STORED_VOLATILE, 1)]
    assert rig.crash().destinations["q"].depth == 0, "and may be lost"
    rig.run()
    assert rig.crash().destinations["q"].depth == 3


def test_hostile_batches_are_refused_and_change_nothing(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    for junk in (b"", b"x", b"\xff" * 40, text(1)[:-1], text(1) + b"\0"):
        rig.send(producer, junk, first=1)
    assert queue.depth == 0
    assert len(rig.notices) == 5
    forged = encode(b"", headers=encode_properties({}, {":dead-reason": "none"}))
    rig.send(producer, forged)
    producer.session.id_last = 3
    rig.send(producer, texts(range(5)))
    assert [receipt[1:] for receipt in rig.receipts] == [(1, 1, STORED_REFUSED, 0), (2, 5, STORED_REFUSED, 0)]
    producer.session.id_last = 1 << 50
    rig.send(producer, text(1))
    assert queue.depth == 1, "what comes after is taken"


def test_hostile_settlements_are_stale_and_change_nothing(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(5)))
    consumer = rig.consumer(queue, 2)
    rig.run()
    items = [(0, 1 << 64, 9, 5), (3, 2, 0, 0), (4, 6, 0, 0), (1 << 63, (1 << 64) - 1, 3, 0)]
    queue.on_settle(consumer, items, 0, 1)
    rig.run()
    assert (queue.depth, queue.facts()["locked"]) == (5, 2)
    assert rig.answers == [(consumer.handle, 1, [(0, 1 << 64), (4, 6), (1 << 63, (1 << 64) - 1)])]


@pytest.mark.requirement("CLU-19")
def test_a_selector_gets_what_it_matches_and_leaves_the_rest_to_others(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, *(text(at, headers=encode_properties({"n": at})) for at in range(600)))
    odd = rig.consumer(queue, 1000, selector_text="n > 10 AND n < 500")
    rig.run()
    assert numbers(rig.take(odd)) == list(range(11, 500))
    rest = rig.consumer(queue, 1000)
    rig.run()
    assert numbers(rig.take(rest)) == [*range(11), *range(500, 600)]
    queue.lost(odd)
    rig.run()
    assert numbers(rig.take(rest)) == list(range(11, 500))


@pytest.mark.requirement("CLU-19")
def test_a_selector_sees_again_what_comes_back(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), *(text(at, headers=encode_properties({"n": at})) for at in range(10)))
    consumer = rig.consumer(queue, 3, selector_text="n >= 4")
    rig.run()
    found = rig.take(consumer)
    rig.retry(consumer, found[1:2])
    rig.want(consumer, 10)
    assert [(int(m.body), m.delivery_count) for m in rig.take(consumer)] == [(5, 2), (7, 1), (8, 1), (9, 1)]


@pytest.mark.requirement("CLU-29")
def test_a_browser_sees_everything_and_changes_nothing(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), *(text(at, headers=encode_properties({"n": at})) for at in range(10)))
    consumer = rig.consumer(queue, 3)
    rig.run()
    rig.ack(consumer, rig.take(consumer)[:1])
    before = queue.facts()
    browser = rig.consumer(queue, 4, browse=True)
    rig.run()
    assert numbers(rig.take(browser)) == [1, 2, 3, 4]
    rig.send(rig.producer(queue), text(99))
    rig.want(browser, 100)
    assert numbers(rig.take(browser)) == [5, 6, 7, 8, 9], "not what came later"
    assert rig.notices[-1][1] == {"event": "caught-up", "consumer": browser.handle}
    chosen = rig.consumer(queue, 100, browse=True, selector_text="n > 7")
    rig.run()
    assert numbers(rig.take(chosen)) == [8, 9]
    queue.detach(browser)
    queue.detach(chosen)
    changed = dict.fromkeys(("depth", "bytes", "next", "ready", "kept", "kept_bytes", "stored"), 0)
    assert queue.facts() | changed == before | changed


def test_messages_that_have_to_come_from_disk_are_waited_for(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3)))
    rig.send(producer, texts(range(3, 6)))
    rig.cold = set(rig.bodies)
    consumer = rig.consumer(queue)
    rig.run()
    assert rig.take(consumer) == []
    rig.load()
    rig.run()
    assert numbers(rig.take(consumer)) == [0, 1, 2]
    rig.load()
    rig.run()
    assert numbers(rig.take(consumer)) == [3, 4, 5]


@pytest.mark.requirement("CLU-36")
def test_the_order_is_the_same_after_a_restart(rig: Rig) -> None:
    queue = rig.make("q")
    producers = [rig.producer(queue) for _ in range(10)]
    for step in range(5):
        for at, producer in enumerate(producers):
            rig.send(producer, text(at * 100 + step), run=False)
    rig.run()
    before = [(m.order, m.body) for m in queue.browse(count=1000).messages]
    after = [(m.order, m.body) for m in rig.crash().destinations["q"].browse(count=1000).messages]
    assert len(before) == 50
    assert before == after


def test_lost_records_are_reported_and_do_not_stop_the_rest(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3)))
    rig.send(producer, texts(range(3, 6)))
    rig.log[0] = (0, *rig.log[0][1:])
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["q"])
    rig.run()
    assert numbers(rig.take(consumer)) == [3, 4, 5]
    assert ("error", "messages-lost") in rig.events
