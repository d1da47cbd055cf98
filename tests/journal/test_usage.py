"""Which segments are still needed: ranges against a plain set, transactions, compaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import records
from fairlead.cluster.describe import Describer
from fairlead.journal.facts import WAITING, Facts
from fairlead.journal.layout import place_of
from fairlead.journal.ranges import Ranges
from fairlead.journal.usage import Row, Usage

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(steps)
def test_ranges_are_a_set(todo: list[tuple[bool, int, int]]) -> None:
    ranges, dumb = Ranges(), set[int]()
    for add, first, size in todo:
        if add:
            ranges.add(first, first + size)
            dumb |= set(range(first, first + size))
        else:
            ranges.remove(first, first + size)
            dumb -= set(range(first, first + size))
        flat = [number for low, high in ranges for number in range(low, high)]
        assert flat == sorted(dumb)
        edges = [edge for pair in ranges for edge in pair]
        assert edges == sorted(set(edges))  # neighbours are one


def row(kind: int, index: int, segment: int, *facts: int) -> Row:
    return Row(kind, index, place_of(segment, 64), Facts(*facts))


def held(usage: Usage, segment: int) -> list[tuple[int, int, int]]:
    return list(usage.held(segment))


def test_messages_of_one_destination_become_one_range() -> None:
    usage = Usage(Describer())
    for number in range(10):
        usage.note(row(records.STORE, number + 1, 1, 7, 100 + number * 5, 5, 50))
    assert held(usage, 1) == [(7, 100, 150)]
    assert usage.is_needed(1, lambda destination, first, beyond: beyond > 149)
    assert not usage.is_needed(1, lambda destination, first, beyond: beyond > 150)


def test_messages_of_a_transaction_count_where_they_lie() -> None:
    usage = Usage(Describer())
    waiting = Row(records.HIDDEN, 5, place_of(1, 64), Facts(7, 0, 3, 90, 2, 11, 0, WAITING))
    assert usage.note(waiting) == waiting
    assert held(usage, 1) == []
    counted = usage.note(Row(records.COMMIT, 9, place_of(3, 200), Facts(7, 40, 3, 0, 0, 12, 0, 5)))
    assert counted is not None
    assert counted.place == waiting.place
    assert counted.facts == Facts(7, 40, 3, 90, 2, 12)
    assert held(usage, 1) == [(7, 40, 43)]
    assert usage.note(Row(records.COMMIT, 9, place_of(3, 200), Facts(7, 40, 3, 0, 0, 12, 0, 6))) is None


def test_what_compaction_copied_is_not_needed_in_its_old_place() -> None:
    usage = Usage(Describer())
    usage.note(row(records.STORE, 1, 1, 7, 1, 100, 5000))
    usage.note(row(records.PLACE, 2, 4, 7, 10, 5, 400))
    assert held(usage, 1) == [(7, 1, 10), (7, 15, 101)]
    assert held(usage, 4) == [(7, 10, 15)]
    assert not usage.is_needed(1, lambda destination, first, beyond: first <= 12 < beyond)
    usage.note(row(records.STORE, 3, 4, 7, 101, 1, 9))
    assert held(usage, 4) == [(7, 10, 15), (7, 101, 102)]
    usage.forget(4)
    assert held(usage, 4) == []


def test_the_records_of_a_message_manager_are_described() -> None:
    describe = Describer()
    head = records.STORE_RECORD.pack(7, 3, 500, 4, b"s" * 20, 1, 0, 4, 4, 111, 222, b"i" * 20, 10)
    body = memoryview(head + b"0123456789")
    assert describe(records.STORE, body) == [Facts(7, 500, 4, len(body), 3, 222)]
    assert describe(records.STORE, head, len(body)) == describe(records.STORE, body)
    assert describe(records.HIDDEN, body)[0].source == WAITING
    commit = records.COMMIT_RECORD.pack(b"s" * 20, 9, 2, 0)
    commit += records.COMMIT_STORED.pack(7, 4, 600, 33, 444) + records.COMMIT_STORED.pack(8, 1, 2, 34, 444)
    assert describe(records.COMMIT, memoryview(commit)) == [
        Facts(7, 600, 4, 0, 0, 444, 0, 33),
        Facts(8, 2, 1, 0, 0, 444, 0, 34),
    ]
    assert describe(records.SETTLE, body) == []


@given(st.integers(0, 30), st.binary(max_size=200))
def test_no_body_makes_the_describer_stumble(kind: int, body: bytes) -> None:
    Describer()(kind, memoryview(body))
