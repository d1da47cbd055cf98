"""The retained buffer: the adapter's newest blocks, to be read by lines and asked for again (STR-14).

Kept are at least `messages_max` records and all of the last `seconds_max`, whichever is more; `bytes_max` wins over
both.

Inside, records have a *serial* that never changes; a message number is serial + `base`. So a backup that finds its
place is renumbered by one addition, cursors of lines (which are serials) stay valid, and a block gets its number when
it is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from fairlead.feeds.block_codec import Block, pack, with_first
from fairlead.feeds.records import ADMIN, ADMIN_VOID, Place

__all__ = ["BYTES_MAX", "MESSAGES_MAX", "SECONDS_MAX", "Filled", "Read", "Retained"]

MESSAGES_MAX = 100_000
SECONDS_MAX = 60.0
BYTES_MAX = 256 * 1024 * 1024
SPARE_MAX = 1024  # forgotten entries at the front of a list before it is cut
PART_MAX = 1 << 16  # beyond every part
INTERLEAVED_MAX = 64  # by so many numbers two adapters may differ, in a stream that is merged from several sources

Point = tuple[int, int]
"""Source sequence and part: what can be compared."""


class Read(NamedTuple):
    """What a line is to be sent. `missed`: numbers that had left the buffer before the line read them."""

    blocks: list[bytes]
    cursor: int
    missed: tuple[int, int] | None = None


class Filled(NamedTuple):
    """The blocks of a range. Whole blocks: there may be more at both ends than was asked for."""

    blocks: list[bytes]
    is_complete: bool
    why: str = ""
    oldest: int = 0  # the oldest number there is


class _Entry:
    """One block of the buffer."""

    __slots__ = ("base", "count", "data", "first", "first_point", "previous", "serial", "source", "time_s")

    def __init__(
        self, serial: int, count: int, data: bytes, source: str, first: Point, previous: int, base: int, now_s: float
    ) -> None:
        self.serial = serial
        self.count = count
        self.data = data
        self.source = source
        self.first_point = first
        self.previous = previous  # previous link of its first record
        self.base = base  # under which `data` has its number
        self.time_s = now_s


class _SourceIndex:
    """The blocks of one source, by the place of their last record."""

    __slots__ = ("head", "lasts", "ordinals")

    def __init__(self) -> None:
        self.lasts: list[Point] = []
        self.ordinals: list[int] = []
        self.head = 0

    def forget(self, ordinal: int) -> None:
        """Everything up to this block is gone."""
        while self.head < len(self.ordinals) and self.ordinals[self.head] <= ordinal:
            self.head += 1
        if self.head > SPARE_MAX:
            del self.lasts[: self.head], self.ordinals[: self.head]
            self.head = 0

    @property
    def is_empty(self) -> bool:
        return self.head == len(self.ordinals)

    def at_or_after(self, point: Point) -> int:
        """Index of the first block whose last record is at this place or beyond."""
        return bisect_left(self.lasts, point, self.head)


class Retained:
    """Blocks in the order of their numbers, without a hole. Look-ups take the logarithm of the number of blocks."""

    def __init__(
        self,
        *,
        messages_max: int = MESSAGES_MAX,
        seconds_max: float = SECONDS_MAX,
        bytes_max: int = BYTES_MAX,
        first: int = 1,
    ) -> None:
        self._messages_max = messages_max
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max
        self._entries: list[_Entry] = []
        self._serials: list[int] = []  # of the first record of each entry
        self._head = 0  # entries before this one are forgotten
        self._dropped = 0  # entries cut from the lists: ordinal = index + dropped
        self._next_serial = 0
        self._base = first
        self._sources: dict[str, _SourceIndex] = {}
        self.bytes = 0

    @property
    def count(self) -> int:
        """Records in the buffer."""
        return self._next_serial - self._oldest_serial

    @property
    def first(self) -> int:
        """Oldest number in the buffer; that of the next record if there is none."""
        return self._oldest_serial + self._base

    @property
    def last(self) -> int:
        """Number of the newest record; one less than the first if there was none yet."""
        return self._next_serial + self._base - 1

    @property
    def end(self) -> int:
        """Cursor of somebody who wants only what is new."""
        return self._next_serial

    @property
    def oldest(self) -> int:
        """Cursor of somebody who wants all there is."""
        return self._oldest_serial

    @property
    def _oldest_serial(self) -> int:
        return self._serials[self._head] if self._head < len(self._serials) else self._next_serial

    def append(
        self, data: bytes, count: int, source: str, first: Point, last: Point, previous: int, now_s: float
    ) -> None:
        """Keep a block that was packed with number `self.last + 1`."""
        ordinal = len(self._entries) + self._dropped
        self._entries.append(_Entry(self._next_serial, count, data, source, first, previous, self._base, now_s))
        self._serials.append(self._next_serial)
        self._next_serial += count
        self.bytes += len(data)
        index = self._sources.get(source)
        if index is None:
            index = self._sources[source] = _SourceIndex()
        index.lasts.append(last)
        index.ordinals.append(ordinal)
        self.expire(now_s)

    def expire(self, now_s: float) -> None:
        """Forget what is beyond the bounds; the newest block always stays."""
        entries, head, final = self._entries, self._head, len(self._entries) - 1
        while head < final:
            entry = entries[head]
            if self.bytes <= self._bytes_max and (
                self._next_serial - entry.serial - entry.count < self._messages_max
                or now_s - entry.time_s <= self._seconds_max
            ):
                break
            self._forget(head)
            head += 1
        self._head = head
        if head > SPARE_MAX:
            del entries[:head], self._serials[:head]
            self._dropped += head
            self._head = 0

    def _forget(self, index: int) -> None:
        entry = self._entries[index]
        self.bytes -= len(entry.data)
        of_source = self._sources[entry.source]
        of_source.forget(index + self._dropped)
        if of_source.is_empty:
            del self._sources[entry.source]
        entry.data = b""

    def renumber(self, shift: int) -> None:
        """Move all numbers. Records that would be before number 1 are forgotten."""
        assert self.last + shift >= 0, "numbers count from 1"
        self._base += shift
        while self._head < len(self._entries):
            entry = self._entries[self._head]
            before = 1 - self._base - entry.serial  # so many of its records
            if before < entry.count:
                if before > 0:
                    self._behead(entry, before)
                break
            self._forget(self._head)
            self._head += 1

    def _behead(self, entry: _Entry, rows: int) -> None:
        """Forget the first records of the oldest block."""
        block = Block.parse(entry.data)
        records = [block.record(row) for row in range(rows, block.count)]
        self.bytes -= len(entry.data)
        entry.data = pack(entry.source, 1, records)
        self.bytes += len(entry.data)
        entry.serial += rows
        entry.count -= rows
        entry.base = self._base
        entry.first_point = (records[0].sequence, records[0].part)
        entry.previous = records[0].previous
        self._serials[self._head] = entry.serial

    def read(self, cursor: int, bytes_max: int) -> Read:
        """The blocks from this cursor on: at least one if there is any, then as many as fit."""
        missed = None
        oldest = self._oldest_serial
        if cursor < oldest:
            missed = (max(1, cursor + self._base), max(1, oldest + self._base - 1))
            cursor = oldest
        if cursor >= self._next_serial:
            return Read([], self._next_serial, missed)
        blocks: list[bytes] = []
        size = 0
        index = self._index_of(cursor)
        while index < len(self._entries):
            data = self._data(index)
            if blocks and size + len(data) > bytes_max:
                break
            blocks.append(data)
            size += len(data)
            index += 1
        return Read(blocks, self._serials[index] if index < len(self._serials) else self._next_serial, missed)

    def by_number(self, first: int, last: int) -> Filled:
        """The blocks with these numbers."""
        low, high = max(first, self.first), min(last, self.last)
        if first < 1 or last < first or low > high:
            return Filled([], False, f"numbers {first} to {last} are not retained", self.first)
        blocks = [
            self._data(index)
            for index in range(self._index_of(low - self._base), self._index_of(high - self._base) + 1)
        ]
        is_complete = low == first and high == last
        why = "" if is_complete else f"only numbers {low} to {high} of {first} to {last} are retained"
        return Filled(blocks, is_complete, why, self.first)

    def by_position(self, source: str, after: Point, to: int, processed: int) -> Filled:
        """The source's blocks beyond `after`, up to all parts of `to`. `processed`: how far the source was read."""
        of_source = self._sources.get(source)
        if of_source is None:
            return Filled([], False, f"nothing of source {source} is retained", self.first)
        low, high = of_source.at_or_after(after), of_source.at_or_after((to, PART_MAX))
        if high < len(of_source.lasts):
            entry = self._at(of_source.ordinals[high])
            if entry.first_point[0] <= to or entry.previous < to:
                high += 1  # `to` is in this block, or in the source gap or the link with which it begins
        blocks = [self._data(of_source.ordinals[index] - self._dropped) for index in range(low, high)]
        oldest = self._at(of_source.ordinals[of_source.head])
        if oldest.previous > after[0] or (oldest.first_point[0] == after[0] and oldest.first_point[1] > after[1] + 1):
            why = f"source {source} is retained from sequence {oldest.first_point[0]} on"
            return Filled(blocks, False, why, self.first)
        if processed < to:
            return Filled(blocks, False, f"source {source} was processed up to sequence {processed}", self.first)
        return Filled(blocks, True, "", self.first)

    def reaches_to(self, source: str, sequence: int) -> bool:
        """Could somebody who has the source up to this sequence go on from here without a gap?"""
        of_source = self._sources.get(source)
        return of_source is not None and self._at(of_source.ordinals[of_source.head]).previous <= sequence

    def cursor_after(self, positions: dict[str, Place]) -> int:
        """Where to begin for somebody who has these positions, so that no record beyond them is left out.

        Administrative ones included: they stand behind the newest of these places, or, where sources interleave
        differently at each adapter, a little before it. A source that is not named is sent from its oldest block on.
        """
        after = newest = self._next_serial
        reached: list[int] = []
        for source, of_source in self._sources.items():
            position = positions.get(source)
            if position is None:
                after = min(after, self._serial_at(of_source, of_source.head))
            else:
                point = (position.sequence, position.part)
                after = min(after, self._serial_at(of_source, bisect_right(of_source.lasts, point, of_source.head)))
                # One that is ahead of us has not had what stands behind the newest record we have of this source.
                at = of_source.at_or_after(min(point, of_source.lasts[-1]))
                reached.append(self._serial_at(of_source, at))
        if reached:
            newest = max(reached) - (INTERLEAVED_MAX if len(reached) > 1 else 0)
        return max(min(after, newest), self._oldest_serial)

    def _serial_at(self, of_source: _SourceIndex, index: int) -> int:
        """Of the first record of the source's block with this index; that of the next record if there is none."""
        return self._at(of_source.ordinals[index]).serial if index < len(of_source.ordinals) else self._next_serial

    def cursor_at(self, number: int) -> int:
        """Where to begin for somebody who wants this number first."""
        return min(max(number - self._base, 0), self._next_serial)

    def number_of(self, source: str, place: Place) -> int:
        """The number of the message (or void, or source gap) at this place; 0 if it is not retained."""
        of_source = self._sources.get(source)
        if of_source is None:
            return 0
        point = (place.sequence, place.part)
        index = of_source.at_or_after(point)
        if index == len(of_source.lasts):
            return 0
        entry = self._at(of_source.ordinals[index])
        if entry.first_point > point:
            return 0
        block = Block.parse(entry.data)
        row = block.find(place.sequence, place.part - 1)  # part counts from 1: the first record at this very place
        if row >= block.count or block.place(row)[:2] != point or block.kind(row) in (ADMIN, ADMIN_VOID):
            return 0
        return entry.serial + row + self._base

    def _index_of(self, serial: int) -> int:
        return bisect_right(self._serials, serial, self._head) - 1

    def _at(self, ordinal: int) -> _Entry:
        return self._entries[ordinal - self._dropped]

    def _data(self, index: int) -> bytes:
        entry = self._entries[index]
        if entry.base != self._base:
            entry.data = with_first(entry.data, entry.serial + self._base)
            entry.base = self._base
        return entry.data
