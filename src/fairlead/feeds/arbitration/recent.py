"""What was delivered last, by source: repeats of it are compared by checksum (STR-50)."""

from __future__ import annotations

from bisect import bisect_left

from fairlead.feeds.blocks import Block

__all__ = ["Recent"]

MESSAGES_MAX = 10_000
BYTES_MAX = 16 << 20


class Recent:
    """Parts of blocks in the order of the source; the blocks stay where they are."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the source sequence of the last record of each
        self._parts: list[tuple[Block, int, int, int]] = []
        self._messages = 0
        self._bytes = 0

    def add(self, block: Block, begin: int, end: int, offset: int, sequence: int) -> None:
        self._ends.append(sequence)
        self._parts.append((block, begin, end, offset))
        self._messages += end - begin
        self._bytes += len(block.data)
        if self._messages > 2 * MESSAGES_MAX or self._bytes > 2 * BYTES_MAX:
            self._forget()

    def _forget(self) -> None:
        gone = 0
        while gone < len(self._parts) - 1 and (self._messages > MESSAGES_MAX or self._bytes > BYTES_MAX):
            block, begin, end, _offset = self._parts[gone]
            self._messages -= end - begin
            self._bytes -= len(block.data)
            gone += 1
        del self._parts[:gone], self._ends[:gone]

    def diverging(self, block: Block, begin: int, end: int, offset: int) -> tuple[int, int]:
        """How many of these repeats are not as they were delivered, and the index of the first."""
        if begin >= end or not self._parts:
            return 0, -1
        low, high = block.place(begin).sequence + offset, block.place(end - 1).sequence + offset
        count, found = 0, -1
        for index in range(bisect_left(self._ends, low), len(self._parts)):
            other, a, b, other_offset = self._parts[index]
            if other.place(a).sequence + other_offset > high:
                break
            more, first = block.diverging(begin, end, other, a, b, offset, other_offset)
            if more and not count:
                found = first
            count += more
        return count, found
