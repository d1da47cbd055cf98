"""Where the messages of one destination are: from order number to the place of the record that holds it.

Forty bytes a record, in blocks. The blocks of all indexes share a `Pool`: those not looked at for long are put away
into a `Storage` (a file without a name), so that a backlog of any length takes bounded memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from fairlead.journal.row_codec import choose

__all__ = ["Entry", "Group", "Index", "Pool", "Storage"]

COLUMNS: Final = 5  # base; place; size, count; arrival; flags, skip
BLOCK_ROWS: Final = 1024
BLOCK_BYTES: Final = BLOCK_ROWS * COLUMNS * 8
LOW: Final = 0xFFFF_FFFF
SELECT_ROWS: Final = 65_536  # gone through in one `select`, or a block more
SELECT_COPIED: Final = 1024  # the same where rows have to be looked for one by one


class Entry(NamedTuple):
    """One record of messages."""

    base: int  # order number of its first message
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    place: int
    size: int
    flags: int
    arrival_ms: int
    skip: int


class Group(NamedTuple):
    """Rows that do not overlap, and the order numbers that are to be read from them."""

    rows: array[int]
    first: int
    beyond: int


class Storage(Protocol):
    """Where blocks are put away."""

    def put(self, data: bytes) -> int:
        """Keep it: the slot under which it is found again."""

    def get(self, slot: int) -> bytes: ...

    def free(self, slot: int) -> None: ...


class Block:
    """Rows of an index, in the order of their bases."""

    __slots__ = ("arrival", "first", "length", "reach", "rows", "slot")

    def __init__(self) -> None:
        self.first = 0  # base of the first row
        self.reach = 0  # one beyond the highest order number in it
        self.arrival = 0  # of the first row
        self.length = 0  # rows
        self.rows: array[int] | None = array("Q")
        self.slot = -1


class Pool:
    """The memory all indexes of a journal share for their full blocks."""

    def __init__(self, storage: Storage | None = None, bytes_max: int = 16 << 20) -> None:
        self._storage = storage
        self._blocks_max = max(1, bytes_max // BLOCK_BYTES)
        self._resident: OrderedDict[Block, None] = OrderedDict()

    def rows(self, block: Block) -> array[int]:
        """To be read."""
        rows = block.rows
        if rows is None:
            assert self._storage is not None
            rows = block.rows = array("Q")
            rows.frombytes(self._storage.get(block.slot))
            self._resident[block] = None
            self._put_away()
        elif block in self._resident:
            self._resident.move_to_end(block)
        return rows

    def changed(self, block: Block) -> array[int]:
        """To be changed: what was put away of it no longer counts."""
        rows = self.rows(block)
        if block.slot >= 0:
            assert self._storage is not None
            self._storage.free(block.slot)
            block.slot = -1
        return rows

    def full(self, block: Block) -> None:
        """The block is not going to be added to: it may be put away."""
        if self._storage is not None:
            self._resident[block] = None
            self._put_away()

    def drop(self, block: Block) -> None:
        self._resident.pop(block, None)
        if block.slot >= 0:
            assert self._storage is not None
            self._storage.free(block.slot)
        block.rows, block.slot = array("Q"), -1

    def _put_away(self) -> None:
        while len(self._resident) > self._blocks_max:
            block, _ = self._resident.popitem(last=False)
            if block.slot < 0:
                assert self._storage is not None
                assert block.rows is not None
                block.slot = self._storage.put(block.rows.tobytes())
            block.rows = None


class Index:
    """The records of one destination. Order numbers are added in rising order; compaction replaces some."""

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool or Pool()
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._floor = 0
        self._length = 0
        self._overlaps = False  # records were copied in part
        self._count_max = 0  # messages of one record
        self._block_span = 0  # how many order numbers a block can reach over

    def __len__(self) -> int:
        """How many records."""
        return self._length

    @property
    def first(self) -> int:
        """The lowest order number that can be found; one beyond the highest if there is none."""
        return max(self._floor, self._firsts[0]) if self._firsts else self._floor

    @property
    def beyond(self) -> int:
        """One beyond the highest order number."""
        return max(self._blocks[-1].reach, self._floor) if self._blocks else self._floor

    def add(self, base: int, count: int, place: int, size: int, flags: int, arrival_ms: int, skip: int = 0) -> None:
        """A record behind all others."""
        block = self._blocks[-1] if self._blocks else None
        if block is not None and base < block.reach:
            self.replace(base, count, place, size, flags, arrival_ms, skip)
            return
        if block is None or block.length >= BLOCK_ROWS:
            if block is not None:
                self._pool.full(block)
            block = Block()
            block.first, block.arrival = base, arrival_ms
            self._blocks.append(block)
            self._firsts.append(base)
        rows = block.rows if block.rows is not None and block.slot < 0 else self._pool.changed(block)
        rows.extend((base, place, size | count << 32, arrival_ms, flags | skip << 32))
        block.reach = base + count
        block.length += 1
        self._length += 1
        if count > self._count_max:
            self._count_max = count
        if block.reach - block.first > self._block_span:
            self._block_span = block.reach - block.first

    def find(self, order: int) -> Entry | None:
        """The record that holds this order number; the newest, if it was copied."""
        if order < self._floor:
            return None
        last = self._blocks[-1].rows if self._blocks else None
        if last and not self._overlaps and order >= last[-COLUMNS]:  # the newest record: whoever keeps up asks for it
            return _entry(last, self._blocks[-1].length - 1) if order < self._blocks[-1].reach else None
        at = bisect_right(self._firsts, order) - 1
        best: Entry | None = None
        while at >= 0 and self._firsts[at] + self._block_span > order:
            block = self._blocks[at]
            if block.reach > order:
                rows = self._pool.rows(block)
                row = _last_not_above(rows, block.length, order)
                while row >= 0 and rows[row * COLUMNS] + self._count_max > order:
                    if rows[row * COLUMNS] + (rows[row * COLUMNS + 2] >> 32) > order:
                        found = _entry(rows, row)
                        if not self._overlaps:
                            return found
                        # Places only grow: the highest is the last copy.
                        if best is None or found.place > best.place:
                            best = found
                    row -= 1
            at -= 1
        return best

    def following(self, order: int) -> Iterator[Entry]:
        """Records that hold this order number or higher ones; no order number twice as an end."""
        beyond = max(order, self._floor)
        at = max(0, bisect_right(self._firsts, beyond) - 1)
        while at > 0 and self._firsts[at - 1] + self._block_span > beyond:
            at -= 1
        while at < len(self._blocks):
            block = self._blocks[at]
            if block.reach > beyond:
                for entry in _entries(self._pool.rows(block), block.length):
                    if entry.base + entry.count > beyond:
                        beyond = entry.base + entry.count
                        yield entry
            at += 1
            if at < len(self._blocks) and self._blocks[at - 1] is not block:
                # Blocks were dropped while somebody was reading: find the way again.
                at = max(0, bisect_right(self._firsts, beyond) - 1)

    def all(self, order: int) -> Iterator[Entry]:
        """Every record that holds this order number or higher ones, copies too: added in this order they are it."""
        for block in self._blocks:
            if block.reach > order:
                for entry in _entries(self._pool.rows(block), block.length):
                    if entry.base + entry.count > order:
                        yield entry

    def select(self, ranges: array[int], messages: int, size: int) -> tuple[list[Group], int, int]:
        """Records that hold these order numbers (pairs, rising), in their order, within the limits and a bound of work.

        Then the order number up to which they do (what is wanted before it and in no group is in no record), and what
        is left of `size`, which the last record may go over.
        """
        end = ranges[-1] if ranges else 0
        if not ranges or ranges[-1] <= self._floor or not self._blocks:
            return [], end, size
        if self._overlaps:
            return self._select_singly(ranges, messages, size)
        out = array("Q")
        at = 0
        number = max(0, bisect_right(self._firsts, ranges[0]) - 1)
        while number < len(self._blocks) and at < len(ranges) // 2:
            block = self._blocks[number]
            if block.reach > ranges[2 * at]:
                if block.first >= ranges[-1]:
                    break
                rows = self._pool.rows(block)
                row = max(0, _last_not_above(rows, block.length, ranges[2 * at]))
                _, at, messages, size, reached = choose(rows, row, block.length, ranges, at, messages, size, out)
                if messages <= 0 or size <= 0:
                    end = reached
                    break
                if len(out) >= SELECT_ROWS * COLUMNS:
                    end = min(end, max(block.reach, ranges[0]))
                    break
            number += 1
        return [Group(out, max(ranges[0], self._floor), end)] if out else [], end, size

    def _select_singly(self, ranges: array[int], messages: int, size: int) -> tuple[list[Group], int, int]:
        """Where records were copied in part, each order number has to be looked for: the last copy counts."""
        groups: list[Group] = []
        left = SELECT_COPIED
        covered = 0
        for low, beyond in zip(ranges[::2], ranges[1::2], strict=True):
            at = max(low, self._floor)
            while at < beyond:
                entry = self.find(at)
                if entry is None:
                    following = next(self.following(at), None)
                    if following is None:
                        break
                    at = following.base  # of which there may be a later copy
                    continue
                high = min(beyond, entry.base + entry.count, at + messages)
                row = (entry.base, entry.place, entry.size | entry.count << 32, entry.arrival_ms)
                group = groups[-1] if groups else None
                if group is not None and entry.place == group.rows[1 - COLUMNS]:
                    groups[-1] = group._replace(beyond=high)
                else:
                    if group is None or entry.base < group.rows[-COLUMNS] + (group.rows[2 - COLUMNS] >> 32):
                        group = Group(array("Q"), at, high)
                        groups.append(group)
                    group.rows.extend((*row, entry.flags | entry.skip << 32))
                    groups[-1] = group._replace(beyond=high)
                messages -= high - at
                size -= entry.size * (high - at) // entry.count
                left -= 1
                at = covered = high
                if messages <= 0 or size <= 0 or not left:
                    return groups, covered, size
        return groups, ranges[-1], size

    def whole(self, low: int, high: int) -> tuple[int, int, int]:
        """Records that lie wholly in this range: the first order number of them, one beyond the last, and their bytes.

        Nothing (`low`, `low`, 0) where there are none, or records were copied in part.
        """
        low = max(low, self._floor)
        first = beyond = low
        total = 0
        at = max(0, bisect_right(self._firsts, low) - 1)
        while not self._overlaps and at < len(self._blocks) and self._firsts[at] < high:
            block = self._blocks[at]
            at += 1
            if block.reach <= low:
                continue
            rows = self._pool.rows(block)
            start = 0 if block.first >= low else _last_not_above(rows, block.length, low - 1) + 1
            end = block.length if block.reach <= high else _last_not_above(rows, block.length, high)
            if start >= end:
                continue
            if first == beyond:
                first = rows[start * COLUMNS]
            beyond = rows[(end - 1) * COLUMNS] + (rows[(end - 1) * COLUMNS + 2] >> 32)
            total += sum(rows[start * COLUMNS + 2 : end * COLUMNS : COLUMNS]) & LOW  # counts stand above the sizes
        return first, beyond, total

    def at_time(self, arrival_ms: int) -> int:
        """Order number of the first message that arrived then or later; one beyond the highest if none did."""
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].arrival < arrival_ms:
                low = middle + 1
            else:
                high = middle
        for block in self._blocks[max(0, low - 1) :]:
            rows = self._pool.rows(block)
            for row, arrived_ms in enumerate(rows[3::COLUMNS]):
                if arrived_ms >= arrival_ms and (found := _entry(rows, row)).base + found.count > self._floor:
                    return max(found.base, self._floor)
        return self.beyond

    def replace(self, base: int, count: int, place: int, size: int, flags: int, arrival_ms: int, skip: int = 0) -> None:
        """These order numbers are in another record now. Records that held nothing else are forgotten."""
        if base + count <= self._floor:
            return
        if not self._blocks or base >= self._blocks[-1].reach:
            self.add(base, count, place, size, flags, arrival_ms, skip)
            return
        at = max(0, bisect_right(self._firsts, base) - 1)
        self._forget(at, base, base + count)
        at = max(0, min(bisect_right(self._firsts, base) - 1, len(self._blocks) - 1))
        if not self._blocks:
            self.add(base, count, place, size, flags, arrival_ms, skip)
            return
        block = self._blocks[at]
        rows = self._pool.changed(block)
        row = _last_not_above(rows, block.length, base) + 1
        rows[row * COLUMNS : row * COLUMNS] = array(
            "Q", (base, place, size | count << 32, arrival_ms, flags | skip << 32)
        )
        block.length += 1
        self._length += 1
        self._count_max = max(self._count_max, count)
        self._overlaps = True
        self._summarise(at)
        if block.length > BLOCK_ROWS * 2:
            self._split(at)

    def drop_below(self, order: int) -> None:
        """Nobody asks for lower order numbers any more."""
        if order <= self._floor:
            return
        self._floor = order
        count = 0
        while count < len(self._blocks) and self._blocks[count].reach <= order:
            self._length -= self._blocks[count].length
            self._pool.drop(self._blocks[count])
            count += 1
        del self._blocks[:count], self._firsts[:count]

    def close(self) -> None:
        """Give all memory back."""
        for block in self._blocks:
            self._pool.drop(block)
        self._blocks.clear()
        self._firsts.clear()
        self._length = 0

    def _forget(self, at: int, base: int, beyond: int) -> None:
        """Take out the rows that lie wholly in this range."""
        while at < len(self._blocks) and self._firsts[at] < beyond:
            block = self._blocks[at]
            rows = self._pool.rows(block)
            low = row = max(0, _last_not_above(rows, block.length, base - 1) + 1 if base else 0)
            kept = array("Q")
            while row < block.length and rows[row * COLUMNS] < beyond:
                if rows[row * COLUMNS] + (rows[row * COLUMNS + 2] >> 32) > beyond:
                    kept.extend(rows[row * COLUMNS : (row + 1) * COLUMNS])
                row += 1
            gone = row - low - len(kept) // COLUMNS
            if gone:
                rows = self._pool.changed(block)
                rows[low * COLUMNS : row * COLUMNS] = kept
                block.length -= gone
                self._length -= gone
                if not block.length and len(self._blocks) > 1:
                    self._pool.drop(block)
                    del self._blocks[at], self._firsts[at]
                    continue
                self._summarise(at)
            at += 1

    def _summarise(self, at: int) -> None:
        block = self._blocks[at]
        rows = self._pool.rows(block)
        if block.length:
            block.first, block.arrival = rows[0], rows[3]
            bases, counts = rows[0::COLUMNS], rows[2::COLUMNS]
            block.reach = max(base + (count >> 32) for base, count in zip(bases, counts, strict=True))
            self._block_span = max(self._block_span, block.reach - block.first)
        self._firsts[at] = block.first

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        rows = self._pool.changed(block)
        half = block.length // 2
        other = Block()
        other.rows = rows[half * COLUMNS :]
        other.length = block.length - half
        del rows[half * COLUMNS :]
        block.length = half
        self._blocks.insert(at + 1, other)
        self._firsts.insert(at + 1, 0)
        self._summarise(at)
        self._summarise(at + 1)
        self._pool.full(block if at + 2 == len(self._blocks) else other)


def _last_not_above(rows: array[int], length: int, order: int) -> int:
    """The last row whose base is not above the order number, or -1."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if rows[middle * COLUMNS] <= order:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _entry(rows: array[int], row: int) -> Entry:
    base, place, size, arrival_ms, flags = rows[row * COLUMNS : (row + 1) * COLUMNS]
    return Entry(base, size >> 32, place, size & LOW, flags & LOW, arrival_ms, flags >> 32)


def _entries(rows: array[int], length: int) -> list[Entry]:
    return [_entry(rows, row) for row in range(length)]
