"""Rows of an index in bulk: both twins do the same, and a selection is what a dumb list says."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.journal import codec, records, rows
from fairlead.journal import index as module
from fairlead.journal.index import COLUMNS, Entry, Group, Index, Pool
from fairlead.journal.layout import ITEM_BYTES, place_of
from tests.journal.test_index import Memory

TWINS: list[ModuleType] = [rows]
CHECKS: list[ModuleType] = [records]
try:
    from fairlead.journal import _records, _rows

    TWINS.append(_rows)
    CHECKS.append(_records)
except ImportError:
    pass

RANGES = st.lists(st.integers(0, 12), max_size=20)


def rising(steps: list[int], start: int = 1) -> array[int]:
    """Pairs from gaps and lengths."""
    found, at = array("Q"), start
    for gap, length in zip(steps[::2], steps[1::2], strict=False):
        low = at + gap
        at = low + length + 1
        found.extend((low, at))
    return found


def table(shapes: list[tuple[int, int, int]]) -> array[int]:
    """Rows with gaps between them: gap, count, size."""
    found, base = array("Q"), 1
    for number, (gap, count, size) in enumerate(shapes):
        base += gap
        found.extend((base, place_of(number // 7, 1000 * number + 40), size | count << 32, 5, 0))
        base += count
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 900)), max_size=30),
    RANGES,
    st.integers(1, 60),
    st.integers(1, 5000),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_the_twins_choose_the_same_rows(
    shapes: list[tuple[int, int, int]], steps: list[int], messages: int, size: int, start: int
) -> None:
    given_rows, ranges = table(shapes), rising(steps)
    answers = []
    for twin in TWINS:
        out = array("Q", [7])
        if ranges:
            found = twin.choose(given_rows, min(start, len(shapes)), len(shapes), ranges, 0, messages, size, out)
            answers.append((found, out))
        answers.append((twin.segments(given_rows), twin.spans(given_rows, 500, 3000)))
    assert answers[: len(answers) // len(TWINS)] == answers[len(answers) - len(answers) // len(TWINS) :]


@pytest.mark.parametrize("twin", TWINS)
def test_neighbours_are_read_together_and_others_are_not(twin: ModuleType) -> None:
    def row(segment: int, offset: int, size: int) -> tuple[int, ...]:
        return (1, place_of(segment, offset), size | 1 << 32, 0, 0)

    def read(*rows_: tuple[int, ...], gap: int = 100, most: int = 10_000) -> list[tuple[int, int, int, int]]:
        found: list[tuple[int, int, int, int]] = twin.spans(array("Q", [n for one in rows_ for n in one]), gap, most)
        return found

    assert read() == []
    near = [row(1, 1000, 60), row(1, 1100, 60), row(1, 1300, 60)]
    begin = place_of(1, 1000 - ITEM_BYTES)
    assert read(*near) == [(0, 3, begin, 400)]
    assert read(*near, gap=50) == [(0, 2, begin, 200), (2, 3, place_of(1, 1260), 100)]
    assert read(*near, most=250) == [(0, 2, begin, 200), (2, 3, place_of(1, 1260), 100)]
    assert [one[:2] for one in read(row(1, 1000, 60), row(2, 1100, 60))] == [(0, 1), (1, 2)]
    assert [one[:2] for one in read(row(1, 5000, 60), row(1, 1100, 60))] == [(0, 1), (1, 2)]
    assert read(row(1, 1000, 50_000)) == [(0, 1, begin, 50_040)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 150), st.integers(1, 8)), max_size=12),
    RANGES,
    st.integers(0, 80),
    st.integers(1, 100),
    st.integers(1, 5000),
)
@example(
    [(0, 2)], [(2, 1)], [0, 0, 0, 0], 0, 2, 101
)  # two ranges that touch, the second copied out of the first's record
@settings(max_examples=300, deadline=None)
def test_a_selection_goes_on_until_everything_wanted_was_found_once(
    counts: list[tuple[int, int]],
    moves: list[tuple[int, int]],
    steps: list[int],
    floor: int,
    messages: int,
    size: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 4)
        patch.setattr(module, "SELECT_ROWS", 6)
        patch.setattr(module, "SELECT_COPIED", 5)
        index = Index(Pool(Memory(), bytes_max=1))
        newest: dict[int, int] = {}
        base = 1
        for number, (gap, count) in enumerate(counts, 1):
            base += gap
            index.add(base, count, number, count * 100, 0, 0)
            newest |= dict.fromkeys(range(base, base + count), number)
            base += count
        for number, (first, count) in enumerate(moves, 1000):
            if all(order in newest for order in range(first, first + count)):
                index.replace(first, count, number, count * 100, 0, 0)
                newest |= dict.fromkeys(range(first, first + count), number)
        index.drop_below(floor)
        wanted = rising(steps)
        expected = [
            order
            for low, high in zip(wanted[::2], wanted[1::2], strict=True)
            for order in range(max(low, floor), high)
            if order in newest
        ]
        found: list[int] = []
        while wanted:
            groups, end, left = index.select(wanted, messages, size)
            some = [order for group in groups for order in orders_of(group, wanted, newest)]
            assert len(some) <= messages
            assert all(order < end for order in some)
            assert bool(groups) or left == size
            found += some
            rest = array("Q")
            for low, high in zip(wanted[::2], wanted[1::2], strict=True):
                if max(low, end) < high:
                    rest.extend((max(low, end), high))
            assert rest != wanted
            wanted = rest
        assert found == expected


def orders_of(group: Group, wanted: array[int], newest: dict[int, int]) -> list[int]:
    """What is read of a group; each record begins with a message of which it is the last copy."""
    found = []
    for at in range(0, len(group.rows), COLUMNS):
        base, place, both, _, _ = group.rows[at : at + COLUMNS]
        mine = [
            order
            for order in range(max(base, group.first), min(base + (both >> 32), group.beyond))
            if any(low <= order < high for low, high in zip(wanted[::2], wanted[1::2], strict=True))
        ]
        if mine:
            assert newest[mine[0]] == place
        found += mine
    return found


def test_a_selection_of_single_messages_is_cheap_in_steps() -> None:
    index = Index()
    for order in range(1, 200_001):
        index.add(order, 1, order << 8, 100, 0, 0)
    (group,), end, left = index.select(array("Q", (500, 10**9)), 10_000, 1 << 40)
    assert (len(group.rows) // COLUMNS, end, left) == (10_000, 10_500, (1 << 40) - 1_000_000)
    (group,), end, _ = index.select(array("Q", (500, 10**9)), 1 << 40, 1 << 40)
    assert module.SELECT_ROWS <= len(group.rows) // COLUMNS == end - 500 <= module.SELECT_ROWS + 1024


@pytest.mark.parametrize("twin", CHECKS)
def test_every_changed_bit_of_a_record_is_noticed(twin: ModuleType) -> None:
    origin, seed = place_of(3, 4096), 77
    batch = twin.Batch(seed, origin, 5)
    bodies = [b"first", b"", b"third" * 30]
    places = [batch.add(8, body[:3], body[3:], 1, 1) for body in bodies]
    data = bytes(batch.finish(0, 0))
    given_rows = array("Q")
    for place, body in zip(places, bodies, strict=True):
        given_rows.extend((1, place, len(body) | 1 << 32, 0, 0))
    assert twin.check_rows(data, origin, seed, given_rows, 0, 3) == -1
    assert twin.check_rows(data, origin, seed + 1, given_rows, 0, 3) == 0
    assert twin.check_rows(data, origin + 8, seed, given_rows, 0, 3) == 0
    assert twin.check_rows(data[:-16], origin, seed, given_rows, 0, 3) == 2
    assert twin.check_rows(b"", origin, seed, given_rows, 1, 3) == 1
    for bit in range(8 * (places[1] - origin - ITEM_BYTES), 8 * (places[1] - origin)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert twin.check_rows(changed, origin, seed, given_rows, 0, 3) == 1
    for byte in range(places[2] - origin, places[2] - origin + len(bodies[2])):
        changed = bytearray(data)
        changed[byte] ^= 0x10
        assert twin.check_rows(changed, origin, seed, given_rows, 0, 3) == 2
    longer = array("Q", given_rows)
    longer[2] += 1  # the index and the file do not agree about the length
    assert twin.check_rows(data, origin, seed, longer, 0, 3) == 0
    with pytest.raises(ValueError, match="no such rows"):
        twin.check_rows(data, origin, seed, given_rows, 0, 4)


def test_the_chosen_twin_is_complete() -> None:
    assert codec.check_rows is CHECKS[-1 if codec.COMPILED else 0].check_rows
    assert Entry._fields[0] == "base"
