"""Rings: first in first out, bounds kept, nothing seen before it is published, nothing gone before it is given back."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.store import layout
from tests.store.twins import TWINS, both_twins, new_ring

COUNTED = layout.FLAG_COUNTED


def payload_of(entry: tuple[int, int, bytes] | None, length: int) -> bytes:
    assert entry is not None
    return bytes(entry[2][:length])


@both_twins
@pytest.mark.requirement("SRV-19")
def test_entries_come_out_as_they_went_in(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    for text in (b"one", b"", b"three" * 20):
        assert producer.push(7, COUNTED, text)
    producer.publish()
    for text in (b"one", b"", b"three" * 20):
        entry = consumer.next()
        assert entry is not None
        assert entry[:2] == (7, COUNTED)
        assert payload_of(entry, len(text)) == text
        consumer.advance()
    assert consumer.next() is None


@both_twins
def test_nothing_is_seen_before_it_is_published(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    producer.push(1, 0, b"hidden")
    assert consumer.next() is None
    producer.publish()
    assert consumer.next() is not None


@both_twins
@pytest.mark.requirement("SRV-19")
def test_entries_outlive_both_ends_until_they_are_given_back(twin: Any) -> None:
    buffer = new_ring()
    producer = twin.Producer(buffer)
    for number in range(5):
        producer.push(1, COUNTED, bytes([number]))
    producer.publish()
    producer.push(1, COUNTED, b"never published: its writer dies here")
    reader = twin.Consumer(buffer)
    for _ in range(3):
        reader.advance()
    reader.publish()
    reader.advance()  # looked at, not given back: its reader dies here
    producer, reader = twin.Producer(buffer), twin.Consumer(buffer)
    assert producer.waiting() == 2
    assert [payload_of(e, 1) for e in drain(reader)] == [b"\x03", b"\x04"]


def drain(consumer: Any) -> list[tuple[int, int, bytes]]:
    found = []
    while (entry := consumer.next()) is not None:
        found.append(entry)
        consumer.advance()
    return found


@both_twins
def test_a_full_ring_refuses_and_takes_again_after_room_was_given_back(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    pushed = 0
    while producer.push(1, COUNTED, bytes(100)):
        pushed += 1
    assert pushed == 4096 // layout.round_up(116, 8)
    producer.publish()
    consumer.advance()
    assert not producer.push(1, COUNTED, bytes(100)), "looking is not giving back"
    consumer.publish()
    assert producer.push(1, COUNTED, bytes(100))


@both_twins
def test_the_reserve_is_kept_for_those_who_may_use_it(twin: Any) -> None:
    producer = twin.Producer(new_ring())
    while producer.push(1, COUNTED, bytes(100), 1024):
        pass
    assert producer.room() >= 1024
    assert producer.push(1, 0, bytes(100), 0)


@both_twins
@pytest.mark.requirement("SRV-21")
def test_who_publishes_to_a_sleeper_is_told_to_wake_it_once(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    producer.push(1, 0, b"a")
    assert producer.publish() is False, "nobody sleeps"
    consumer.advance()
    assert consumer.sleep() is True
    producer.push(1, 0, b"b")
    assert producer.publish() is True
    producer.push(1, 0, b"c")
    assert producer.publish() is False, "it was woken already"


@both_twins
def test_who_goes_to_sleep_looks_once_more(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    producer.push(1, 0, b"a")
    producer.publish()
    assert consumer.sleep() is False


@both_twins
@pytest.mark.requirement("SRV-102")
def test_a_producer_that_wants_room_is_woken_at_the_low_mark(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    for _ in range(10):
        producer.push(1, COUNTED, b"")
    producer.publish()
    producer.want()
    told = []
    for _ in range(10):
        consumer.advance()
        told.append(consumer.publish(3))
    assert told == [False] * 6 + [True] + [False] * 3


@both_twins
@pytest.mark.requirement("SRV-105")
def test_only_counted_entries_count(twin: Any) -> None:
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    for flags in (COUNTED, 0, COUNTED, 0, 0):
        producer.push(1, flags, b"")
    producer.publish()
    assert producer.waiting() == 2
    consumer.advance()
    consumer.publish()
    assert producer.waiting() == 1
    assert twin.Producer(buffer).waiting() == 1, "a successor counts the same"


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 600), st.booleans()),
            st.tuples(st.sampled_from(["publish", "advance", "give back", "new producer", "new consumer"])),
        ),
        max_size=80,
    )
)
@settings(max_examples=150, deadline=None)
def test_law_a_ring_is_a_queue_through_any_death(twin: Any, steps: list[tuple[Any, ...]]) -> None:
    """Against a deque: published entries come once and in order, whoever dies in between."""
    buffer = new_ring()
    producer, consumer = twin.Producer(buffer), twin.Consumer(buffer)
    unpublished: list[tuple[int, bytes]] = []
    waiting: deque[tuple[int, bytes]] = deque()  # published, not given back
    looked_at, number, counted_published = 0, 0, 0
    for step in steps:
        match step:
            case ("push", length, counted):
                number += 1
                body = number.to_bytes(4, "little") * (length // 4 + 1)
                if producer.push(1, COUNTED if counted else 0, body):
                    unpublished.append((int(counted), body))
            case ("publish",):
                producer.publish()
                waiting.extend(unpublished)
                unpublished.clear()
            case ("advance",):
                entry = consumer.next()
                if looked_at == len(waiting):
                    assert entry is None
                else:
                    assert payload_of(entry, len(waiting[looked_at][1])) == waiting[looked_at][1]
                    consumer.advance()
                    looked_at += 1
            case ("give back",):
                consumer.publish()
                for _ in range(looked_at):
                    waiting.popleft()
                looked_at = 0
            case ("new producer",):
                producer = twin.Producer(buffer)
                unpublished.clear()
            case ("new consumer",):
                consumer = twin.Consumer(buffer)
                looked_at = 0
        counted_published = sum(counted for counted, _ in waiting) + sum(counted for counted, _ in unpublished)
        assert producer.waiting() == counted_published


@pytest.mark.skipif(len(TWINS) < 2, reason="the extension is not built")
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.integers(0, 3)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_compiled_ring_writes_the_same_bytes_as_its_twin(steps: list[tuple[int, bool, int]]) -> None:
    buffers = [new_ring(), new_ring()]
    ends = [(twin.Producer(b), twin.Consumer(b)) for twin, b in zip(TWINS, buffers, strict=True)]
    for length, counted, reads in steps:
        for producer, consumer in ends:
            producer.push(3, int(counted), b"x" * length)
            producer.publish()
            for _ in range(reads):
                consumer.advance()
            consumer.publish()
    assert buffers[0] == buffers[1]
