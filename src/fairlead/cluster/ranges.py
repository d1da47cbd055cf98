"""A set of order numbers, kept as ranges: what is settled, available, locked.

The boundaries of all ranges stand in one rising row: first, beyond, first, beyond … A number is in the set if an odd
number of boundaries are not above it; adding and removing replace the boundaries in between. The row is cut into
blocks, so that a change in the midst of very many ranges moves a few kilobytes and not all of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

__all__ = ["Ranges"]

BLOCK_MAX: Final = 1024  # boundaries of one block; a multiple of 4, so that halves have whole ranges
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


class Ranges:
    """Disjoint half-open ranges of u64, in rising order; neighbours that touch are one range."""

    __slots__ = ("_blocks", "_firsts", "total")

    total: int  # how many numbers are in it

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._blocks: list[array[int]] = []
        self._firsts: list[int] = []  # of each block
        self.total = 0
        for lo, hi in ranges:
            self.add(lo, hi)

    @classmethod
    def from_flat(cls, flat: Sequence[int]) -> Ranges:
        """What `flat()` gave; ValueError if it cannot have been that."""
        made = cls()
        if len(flat) % 2 or any(a >= b for a, b in pairwise(flat)):
            raise ValueError("ranges are pairs of rising numbers")
        if flat and not (flat[0] >= 0 and flat[-1] <= U64_MAX):
            raise ValueError("ranges are of numbers of 64 bits")
        for at in range(0, len(flat), BLOCK_MAX // 2):
            made._blocks.append(array("Q", flat[at : at + BLOCK_MAX // 2]))
            made._firsts.append(flat[at])
        made.total = sum(flat[1::2]) - sum(flat[0::2])
        return made

    def flat(self) -> list[int]:
        """All boundaries, for a snapshot."""
        return [boundary for block in self._blocks for boundary in block]

    def copy(self) -> Ranges:
        """Another one with the same numbers."""
        made = Ranges()
        made._blocks = [block[:] for block in self._blocks]
        made._firsts = self._firsts[:]
        made.total = self.total
        return made

    def add(self, lo: int, hi: int) -> int:
        """Put lo … hi-1 in; how many of them were not there yet."""
        if lo >= hi:
            return 0
        blocks = self._blocks
        if blocks and lo == blocks[-1][-1]:
            blocks[-1][-1] = hi  # the next numbers of the last range: by far the most common case
            self.total += hi - lo
            return hi - lo
        if not blocks:
            blocks.append(array("Q", (lo, hi)))
            self._firsts.append(lo)
            self.total = hi - lo
            return hi - lo
        new = hi - lo - self._splice(lo, hi, 0)
        self.total += new
        return new

    def remove(self, lo: int, hi: int) -> int:
        """Take lo … hi-1 out; how many of them were there."""
        if lo >= hi or not self._blocks:
            return 0
        block = self._blocks[0]
        if lo == block[0] and hi <= block[1]:  # the first numbers of the first range: the most common case
            if hi < block[1]:
                block[0] = self._firsts[0] = hi
            else:
                del block[:2]
                self._put(0, 0, block)
            self.total -= hi - lo
            return hi - lo
        gone = self._splice(lo, hi, 1)
        self.total -= gone
        return gone

    def _splice(self, lo: int, hi: int, odd: int) -> int:
        """Replace the boundaries from lo to hi; those of them stay that stand outside (add) or inside (remove)."""
        k = max(bisect_right(self._firsts, lo) - 1, 0)
        m = max(bisect_right(self._firsts, hi, k) - 1, k)
        left, right = self._blocks[k], self._blocks[m]
        i = bisect_left(left, lo)
        j = bisect_right(right, hi)
        new = array("Q")
        if i % 2 == odd:
            new.append(lo)
        if j % 2 == odd:
            new.append(hi)
        if k == m:
            before = _covered(left[i:j], i % 2, lo, hi)
            left[i:j] = new
            changed = left
        else:
            between = left[i:]
            for block in self._blocks[k + 1 : m]:
                between += block
            between += right[:j]
            before = _covered(between, i % 2, lo, hi)
            changed = left[:i] + new + right[j:]
        self._put(k, m, changed)
        return before

    def _put(self, k: int, m: int, changed: array[int]) -> None:
        """The blocks k to m are this one now, which may be empty, or too long."""
        if not changed:
            del self._blocks[k : m + 1], self._firsts[k : m + 1]
        elif len(changed) <= BLOCK_MAX:
            self._blocks[k : m + 1] = [changed]
            self._firsts[k : m + 1] = [changed[0]]
        else:
            half = BLOCK_MAX // 2
            self._blocks[k : m + 1] = [changed[:half], changed[half:]]
            self._firsts[k : m + 1] = [changed[0], changed[half]]

    def __contains__(self, number: int) -> bool:
        k = bisect_right(self._firsts, number) - 1
        return k >= 0 and bisect_right(self._blocks[k], number) % 2 == 1

    def contains(self, number: int) -> bool:
        """Is it in the set?"""
        return number in self

    def covered(self, lo: int, hi: int) -> bool:
        """Are all of lo … hi-1 in the set? Of an empty range they are."""
        if lo >= hi:
            return True
        k = bisect_right(self._firsts, lo) - 1
        if k < 0:
            return False
        block = self._blocks[k]
        i = bisect_right(block, lo)
        return i % 2 == 1 and hi <= block[i]

    def count(self, lo: int, hi: int) -> int:
        """How many of lo … hi-1 are in the set."""
        return sum(b - a for a, b in self.intersect(lo, hi))

    def intersect(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of lo … hi-1 that are in the set."""
        found: list[tuple[int, int]] = []
        for a, b in self.since(lo):
            if a >= hi:
                break
            found.append((a, min(b, hi)))
        return found

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of lo … hi-1 that are not in the set."""
        found: list[tuple[int, int]] = []
        for a, b in self.intersect(lo, hi):
            if lo < a:
                found.append((lo, a))
            lo = b
        if lo < hi:
            found.append((lo, hi))
        return found

    def since(self, number: int) -> Iterator[tuple[int, int]]:
        """The ranges from this number on; the first may begin with it. Not to be changed meanwhile."""
        k = max(bisect_right(self._firsts, number) - 1, 0)
        for block in self._blocks[k:]:
            i = bisect_right(block, number)
            if i % 2:
                yield number, block[i]
                i += 1
            for at in range(i, len(block), 2):
                yield block[at], block[at + 1]

    def first(self) -> int | None:
        """The lowest number; None: it is empty."""
        return self._firsts[0] if self._firsts else None

    def last(self) -> int | None:
        """The highest number; None: it is empty."""
        return self._blocks[-1][-1] - 1 if self._blocks else None

    def first_range(self) -> tuple[int, int] | None:
        """The lowest range; None: it is empty."""
        return (self._firsts[0], self._blocks[0][1]) if self._firsts else None

    def peek(self, count: int) -> list[tuple[int, int]]:
        """The lowest `count` numbers, or as many as there are, as ranges; they stay in it."""
        found: list[tuple[int, int]] = []
        for lo, hi in self:
            if count <= 0:
                break
            hi = min(hi, lo + count)
            found.append((lo, hi))
            count -= hi - lo
        return found

    def pop_first(self, count: int) -> list[tuple[int, int]]:
        """Take the lowest `count` numbers out, or as many as there are."""
        if count > 0 and self._blocks:
            block = self._blocks[0]
            lo = block[0]
            if count < block[1] - lo:  # the most common case: the beginning of a long range
                block[0] = self._firsts[0] = lo + count
                self.total -= count
                return [(lo, lo + count)]
        taken = self.peek(count)
        if taken:
            self.remove(taken[0][0], taken[-1][1])
        return taken

    take = pop_first

    def clear(self) -> None:
        """Take everything out."""
        self._blocks.clear()
        self._firsts.clear()
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for block in self._blocks:
            for at in range(0, len(block), 2):
                yield block[at], block[at + 1]

    def __len__(self) -> int:
        """How many ranges; `total` is how many numbers."""
        return sum(len(block) for block in self._blocks) // 2

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self.total == other.total and self.flat() == other.flat()

    def __repr__(self) -> str:
        shown = ", ".join(f"{lo}…{hi - 1}" for lo, hi in self.peek(self.total)[:8])
        return f"<Ranges {shown}{' …' if len(self) > 8 else ''}>"


def _covered(boundaries: array[int], inside: int, lo: int, hi: int) -> int:
    """How many of lo … hi-1 the set has, of which these are the boundaries between."""
    total = 0
    at = lo
    for boundary in boundaries:
        if inside:
            total += boundary - at
        at = boundary
        inside ^= 1
    return total + hi - at if inside else total
