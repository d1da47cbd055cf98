"""From order numbers to places: against a dumb list, and with ten million records in little memory."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.journal import index as module
from fairlead.journal.edge.spill import Spill
from fairlead.journal.index import BLOCK_BYTES, Entry, Index, Pool


class Memory:
    """A `Storage` for tests without a disk."""

    def __init__(self) -> None:
        self.slots: dict[int, bytes] = {}
        self._next = 0

    def put(self, data: bytes) -> int:
        self._next += 1
        self.slots[self._next] = data
        return self._next

    def get(self, slot: int) -> bytes:
        return self.slots[slot]

    def free(self, slot: int) -> None:
        del self.slots[slot]


def entry(base: int, count: int, place: int) -> Entry:
    return Entry(base, count, place, count * 100, base % 64, 1000 + base * 10, base % 3)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 250), st.integers(1, 8)), max_size=25),
    st.integers(0, 250),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_it_finds_what_a_dumb_list_finds(
    counts: list[int], moves: list[tuple[int, int]], floor: int, put_away: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 4)
        storage = Memory()
        index = Index(Pool(storage if put_away else None, bytes_max=1))
        where: dict[int, Entry] = {}
        base = 1
        for number, count in enumerate(counts):
            one = entry(base, count, number)
            index.add(*one)
            where |= dict.fromkeys(range(base, base + count), one)
            base += count
        for number, (first, count) in enumerate(moves, 1000):
            if 1 <= first < base:
                one = entry(first, min(count, base - first), number)
                index.replace(*one)
                where |= dict.fromkeys(range(first, first + one.count), one)
        index.drop_below(floor)
        for order in range(base + 3):
            wanted = where.get(order) if order >= floor else None
            assert index.find(order) == wanted, order
        assert index.beyond == max(base, floor)
        ends = [one.base + one.count for one in index.following(floor)]
        assert ends == sorted(set(ends))
        if base > max(floor, 1):
            assert ends[-1] == base
        index.close()
        assert not storage.slots


def test_times_lead_to_order_numbers() -> None:
    index = Index()
    assert index.at_time(5) == 0
    for number in range(5000):
        index.add(1 + number * 2, 2, number, 50, 0, number * 10)
    assert index.at_time(0) == 1
    assert index.at_time(20_000) == 1 + 2000 * 2
    assert index.at_time(20_001) == 1 + 2001 * 2
    assert index.at_time(10**9) == index.beyond == 10_001
    index.drop_below(4000)
    assert index.at_time(0) == 4000
    assert index.first == 4000


def test_a_long_backlog_takes_little_memory(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    assert not list(tmp_path.iterdir())  # the file has no name
    tracemalloc.start()
    index = Index(Pool(spill, bytes_max=20 * BLOCK_BYTES))
    records = 80_000
    for order in range(1, records + 1):
        index.add(order, 1, order << 8, 100, 0, order)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    blocks = records / 1024
    # What stays for each block, for ten million records, and the pool of a server.
    assert (held - 21 * BLOCK_BYTES) / blocks * (10_000_000 / 1024) + (16 << 20) < 64 << 20
    chance = random.Random(3)
    for _ in range(300):
        order = chance.randrange(1, records + 1)
        assert index.find(order) == Entry(order, 1, order << 8, 100, 0, order, 0)
    index.drop_below(records)
    assert index.find(records) is not None
    assert index.find(records - 1) is None
    assert len(index) <= 1024
    spill.close()


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(0, 220),
    st.integers(0, 220),
    st.integers(0, 220),
)
@settings(max_examples=150, deadline=None)
def test_whole_records_of_a_range(records: list[tuple[int, int]], low: int, high: int, floor: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 4)
        index = Index(Pool(Memory(), bytes_max=1))
        added, base = list[Entry](), 1
        for number, (count, hole) in enumerate(records):
            added.append(entry(base + hole, count, number))
            index.add(*added[-1])
            base += hole + count
        index.drop_below(floor)
        first, beyond, total = index.whole(low, high)
        inside = [one for one in added if max(low, floor) <= one.base and one.base + one.count <= high]
        assert all(low <= one.base and one.base + one.count <= high for one in added if first <= one.base < beyond)
        assert total == sum(one.size for one in added if first <= one.base < beyond)
        # A record before a hole that reaches over the end may be left out.
        assert sum(one.size for one in inside) - total in (0, *(one.size for one in inside[-1:]))
        index.replace(added[0].base, 1, 99, 5, 0, 0)
        if added[0].count > 1 and floor <= added[0].base:
            assert index.whole(low, high)[2] == 0, "copied in part"
