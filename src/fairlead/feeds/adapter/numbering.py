"""Numbering: converted batches become blocks with numbers and previous links; administrative records get their places.

A *slot* is a number that is reserved for an administrative record (or its void). The invariant that everything else
rests on: the next number is never a reserved one, since whatever is reserved there is put in place at once. So deciding
about a place and reserving it is one step (STR-59), and a batch is split exactly at the places reserved in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.feeds.adapter.retained import Retained
from fairlead.feeds.block_codec import RECORD_BYTES, pack, pack_columns
from fairlead.feeds.made import Made
from fairlead.feeds.records import PART_MAX, SOURCE_GAP, START, VOID, Place, Record

__all__ = ["Landed", "Numbering", "Slot"]

BLOCK_ROWS = 4096  # so that what is repeated for a small gap is not much more than the gap
BLOCK_BYTES = 1 << 20


class Slot(NamedTuple):
    """What is to be put at a reserved number."""

    id: str  # the administrative id
    kind: int  # records.ADMIN or ADMIN_VOID
    body: bytes


class Landed(NamedTuple):
    """A slot that is in the stream now, and the source position before it."""

    slot: Slot
    number: int
    source: str
    place: Place


class Numbering:
    """The order of the output stream. `default_source` names what comes before the first message of any source."""

    def __init__(self, retained: Retained, *, default_source: str) -> None:
        self.retained = retained
        self.positions: dict[str, Place] = {}  # of the newest record of each source
        self.processed: dict[str, int] = {}  # how far each source was looked at, sequences that gave nothing included
        self._current = default_source  # the source of the newest record that is not administrative
        self._gaps: dict[str, Place] = {}  # the newest source gap of each
        self.source_number = 0  # number of the newest record that is not administrative; 0: there is none
        self._slots: dict[int, Slot] = {}
        self._reserved: list[int] = []  # the same numbers, in order
        self._landed: list[Landed] = []
        self.on_landed: Callable[[Landed], None] = lambda landed: None
        """Told at once, before anything else can be numbered."""

    @property
    def last(self) -> int:
        return self.retained.last

    @property
    def newest(self) -> tuple[str, Place]:
        """Source and place of the newest record that is not administrative."""
        return self._current, self.positions.get(self._current, START)

    @property
    def covered(self) -> dict[str, Place]:
        """The positions of a state: after a source gap all parts of its last one, however many that may have had."""
        behind = {source: gap for source, gap in self._gaps.items() if self.positions[source] == gap}
        return self.positions | {source: Place(gap.sequence, PART_MAX, PART_MAX) for source, gap in behind.items()}

    def is_reserved(self, number: int) -> bool:
        return number in self._slots

    def free_from(self, number: int) -> int:
        """The first number at or beyond this one that is neither used nor reserved."""
        number = max(number, self.last + 1)
        index = bisect_left(self._reserved, number)
        while index < len(self._reserved) and self._reserved[index] == number:
            number += 1
            index += 1
        return number

    def landed(self) -> list[Landed]:
        """The slots that came into the stream since this was last asked."""
        landed, self._landed = self._landed, []
        return landed

    def reserve(self, number: int, slot: Slot, now_s: float) -> None:
        """Put the slot at this number, at once if it is the next one."""
        assert number > self.last, "the place is used"
        assert number not in self._slots, "the place is reserved"
        self._slots[number] = slot
        insort(self._reserved, number)
        self._land(now_s)

    def release(self, number: int) -> None:
        """Nothing will be at this number but what comes along."""
        del self._slots[number]
        del self._reserved[bisect_left(self._reserved, number)]

    def put(self, slot: Slot, now_s: float) -> int:
        """Put the slot at the next number; others that are reserved right behind it follow."""
        number = self.last + 1
        self.reserve(number, slot, now_s)
        return number

    def renumber(self, shift: int, now_s: float) -> None:
        """Move the numbers of all records. Reserved numbers stay: their owner released those that it uses up."""
        self.retained.renumber(shift)
        self.source_number += shift if self.source_number else 0
        assert not self._reserved or self._reserved[0] > self.last, "a reserved place was used up"
        self._land(now_s)

    def take(self, made: Made, now_s: float) -> int:
        """Number a batch. What this source had already given is dropped: so many rows, at the beginning."""
        before = self.positions.get(made.source)
        # Before the first batch of a source nobody here knows what gave output: the link names the sequence before it.
        link = made.first - 1 if before is None else before.sequence
        begin = 0
        if before is not None and made.count and made.sequences[0] <= before.sequence:
            begin = int(np.searchsorted(made.sequences, np.uint64(before.sequence), "right"))
        self.processed[made.source] = max(made.through, self.processed.get(made.source, 0))
        if begin == made.count:
            return begin
        previous = _previous_links(made.sequences[begin:], max(link, 0))
        row, count = begin, made.count
        while row < count:
            end = min(count, row + BLOCK_ROWS)
            if self._reserved:
                end = min(end, row + self._reserved[0] - self.last - 1)
            end = _fitting(made.ends, row, end)
            self._append(made, previous, begin, row, end, now_s)
            self._land(now_s)
            row = end
        return begin

    def source_gap(self, source: str, first: int, last: int, now_s: float) -> bool:
        """These sequences are lost for good: said by a record at their place (STR-15). False: nothing new in that."""
        before = self.positions.get(source, START).sequence
        first = max(first, before + 1)
        if last < first:
            return False
        if source in self.positions and first - 1 > before:
            # Sequences between gave no output; a void closes the chain, so that the gap's own link can be exact.
            self._single(VOID, source, Place(first - 1), before, now_s)
        self._single(SOURCE_GAP, source, Place(last), first - 1, now_s)
        self.processed[source] = max(last, self.processed.get(source, 0))
        return True

    def _single(self, kind: int, source: str, place: Place, previous: int, now_s: float) -> None:
        self._append_record(Record(0, kind, source, place.sequence, 1, 1, previous, b""), now_s)
        self.positions[source] = place
        self._current, self.source_number = source, self.last
        if kind == SOURCE_GAP:
            self._gaps[source] = place
        self._land(now_s)

    def _append_record(self, record: Record, now_s: float) -> None:
        point = (record.sequence, record.part)
        block = pack(record.source, self.last + 1, [record])
        self.retained.append(block, 1, record.source, point, point, record.previous, now_s)

    def _append(self, made: Made, previous: NDArray[np.uint64], begin: int, row: int, end: int, now_s: float) -> None:
        base = int(made.ends[row - 1]) if row else 0
        ends = made.ends[row:end]
        block = pack_columns(
            made.source,
            self.last + 1,
            made.kinds[row:end],
            made.sequences[row:end],
            previous[row - begin : end - begin],
            made.part[row:end],
            made.parts[row:end],
            memoryview(made.data)[base : int(ends[-1])],
            ends - np.uint64(base) if base else ends,
        )
        first = (int(made.sequences[row]), int(made.part[row]))
        last = Place(int(made.sequences[end - 1]), int(made.part[end - 1]), int(made.parts[end - 1]))
        self.retained.append(
            block, end - row, made.source, first, (last.sequence, last.part), int(previous[row - begin]), now_s
        )
        self.positions[made.source] = last
        self._current, self.source_number = made.source, self.last

    def _land(self, now_s: float) -> None:
        while self._reserved and self._reserved[0] == self.last + 1:
            number = self._reserved.pop(0)
            slot = self._slots.pop(number)
            source, place = self.newest
            self._append_record(
                Record(number, slot.kind, source, place.sequence, place.part, place.parts, place.sequence, slot.body),
                now_s,
            )
            landed = Landed(slot, number, source, place)
            self._landed.append(landed)
            self.on_landed(landed)


def _previous_links(sequences: NDArray[np.uint64], link: int) -> NDArray[np.uint64]:
    """For each row the sequence of the source message before its own (STR-21); all parts of a message have the same."""
    is_start = sequences[1:] != sequences[:-1]
    if is_start.all():
        previous = np.empty_like(sequences)
        previous[0] = link
        previous[1:] = sequences[:-1]
        return previous
    starts = np.flatnonzero(is_start) + 1
    bounds = np.concatenate(([0], starts, [len(sequences)]))
    links = np.concatenate((np.array([link], np.uint64), sequences[starts - 1]))
    return np.repeat(links, np.diff(bounds))


def _fitting(ends: NDArray[np.uint64], row: int, end: int) -> int:
    """As many rows as fit in a block, and one at least."""
    base = int(ends[row - 1]) if row else 0
    if int(ends[end - 1]) - base + (end - row) * RECORD_BYTES <= BLOCK_BYTES:
        return end
    sizes = ends[row:end] + np.arange(1, end - row + 1, dtype=np.uint64) * np.uint64(RECORD_BYTES)
    return row + max(1, int(np.searchsorted(sizes, np.uint64(base + BLOCK_BYTES), "right")))
