"""What administrators do: browse, purge, drop, move, compact; very large messages and their files."""

from __future__ import annotations

import pytest

from fairlead.cluster import records
from fairlead.errors import WrongKind
from fairlead.wire.durable import ENTRY_LARGE, LARGE
from fairlead.wire.entry_codec import encode
from fairlead.wire.properties import encode_properties

from .rig import Rig, text, texts


@pytest.fixture
def rig() -> Rig:
    return Rig()


def numbered(numbers: range) -> bytes:
    return b"".join(text(n, headers=encode_properties({"n": n})) for n in numbers)


def test_browsing_is_paged_and_tells_the_state_of_each(rig: Rig) -> None:
    queue = rig.make("q", retain_messages=-1)
    producer = rig.producer(queue)
    rig.send(producer, numbered(range(10)), text(10, delay_ms=5000))
    consumer = rig.consumer(queue, 3)
    rig.run()
    found = rig.take(consumer)
    rig.ack(consumer, found[:1])
    rig.retry(consumer, found[1:2], delay=1000)
    page = queue.browse(count=4)
    assert [(m.order, m.state, m.deliveries) for m in page.messages] == [
        (2, "delayed", 1), (3, "locked", 0), (4, "ready", 0), (5, "ready", 0),
    ]  # fmt: skip
    assert page.messages[1].body == b"2"
    rest = queue.browse(start=page.next or 0, count=100)
    assert [m.order for m in rest.messages] == [6, 7, 8, 9, 10, 11]
    assert (rest.next, rest.messages[-1].state) == (None, "delayed")
    assert [m.order for m in queue.browse(selector="n > 7").messages] == [9, 10]
    assert queue.browse(count=1, kept=True).messages[0].state == "consumed"
    rig.cold = set(rig.bodies)
    waiting = queue.browse()
    assert (waiting.messages, waiting.next, waiting.waits) == ([], 2, True)


def test_purging_leaves_what_somebody_holds(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), numbered(range(10)))
    consumer = rig.consumer(queue, 2)
    rig.run()
    found = rig.take(consumer)
    rig.ack(consumer, found[:1], transaction=4)
    assert queue.purge("n > 7") == (2, None)
    assert queue.purge("n = 1") == (0, None), "locked"
    assert queue.drop([1, 4, 5, 99]) == 2
    assert queue.depth == 6
    assert queue.purge() == (4, None)
    rig.run()
    rig.commit(consumer.session, 4, queue)
    rig.ack(consumer, found[1:])
    assert (queue.depth, queue.bytes) == (0, 0)
    assert rig.crash().destinations["q"].depth == 0


def test_purging_with_a_selector_is_paged(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    for at in range(10):
        rig.send(producer, numbered(range(at * 10, at * 10 + 10)))
    total, at, steps = 0, 0, 0
    while True:
        count, following = queue.purge("n BETWEEN 5 AND 94", at, 30)
        total += count
        steps += 1
        if following is None:
            break
        at = following
    assert (total, steps) == (90, 4)
    assert queue.depth == 10


def test_moving_is_from_queues_and_atomic(rig: Rig) -> None:
    one, two, topic = rig.make("one"), rig.make("two"), rig.make("t", "topic")
    rig.send(rig.producer(one), numbered(range(5)))
    assert one.move([2, 3], two) == 2
    assert (one.depth, two.depth) == (3, 2)
    rig.run()
    new = rig.crash()
    assert (new.destinations["one"].depth, new.destinations["two"].depth) == (3, 2)
    with pytest.raises(WrongKind):
        topic.move([1], one)
    with pytest.raises(WrongKind):
        one.move([1], one)


def test_compaction_keeps_what_is_needed_and_nothing_else(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(
        rig.producer(queue), *(text(n, headers=encode_properties({"n": n}), priority=n % 2 + 4) for n in range(10))
    )
    consumer = rig.consumer(queue)
    rig.run()
    found = rig.take(consumer)
    ids = {m.order: m.id for m in found}
    rig.ack(consumer, [m for m in found if m.order in (1, 2, 5, 6, 9)])
    queue.lost(consumer)
    old = next(iter(queue.index.following(1))).place
    assert queue.is_live(1, 11)
    assert queue.compact(1, 11) == 5
    rig.run()
    del rig.bodies[old]
    rig.log[0] = (0, old, b"")  # from here on only a checkpoint knows of it
    new = rig.crash(rig.snapshots())
    for one in (rig, new):
        other = one.consumer(one.destinations["q"], selector_text="n > -1")
        one.run()
        again = one.take(other)
        assert sorted(int(m.body) for m in again) == [2, 3, 6, 7, 9]
        assert all(ids[m.order] == m.id and m.redelivered for m in again)
        one.ack(other, again)
        assert (one.destinations["q"].depth, one.destinations["q"].bytes) == (0, 0)
    assert [kind for kind, _, _ in rig.log if kind == records.PLACE] == [records.PLACE] * 3


def test_compaction_waits_for_what_is_on_disk(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(3)))
    rig.cold = set(rig.bodies)
    assert queue.compact(1, 4) == 0
    rig.load()
    assert queue.compact(1, 4) == 3


def test_the_file_of_a_very_large_message_is_kept_as_long_as_somebody_needs_it(rig: Rig) -> None:
    def large(number: int) -> bytes:
        return encode(LARGE.pack(number, 1 << 30, bytes(32)), flags=ENTRY_LARGE)

    dead, queue, topic = rig.make("_DMQ"), rig.make("q"), rig.make("t", "topic")
    consumer = rig.consumer(queue)
    subscribers = [rig.consumer(topic) for _ in range(2)]
    rig.send(rig.producer(queue), large(5), large(6))
    rig.send(rig.producer(topic), large(7))
    assert rig.files == {5: 1, 6: 1, 7: 1}
    found = rig.take(consumer)
    rig.ack(consumer, found[:1])
    rig.reject(consumer, found[1:])
    rig.ack(subscribers[0], rig.take(subscribers[0]))
    assert rig.files == {5: 0, 6: 1, 7: 1}
    rig.ack(subscribers[1], rig.take(subscribers[1]))
    assert rig.files == {5: 0, 6: 1, 7: 0}
    assert dead.purge() == (1, None)
    assert rig.files[6] == 0
    rig.run()
    assert set(rig.crash().files.values()) <= {0}
