"""A set of whole numbers, kept as ranges: which order numbers of a destination have their messages in one segment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Ranges that touch become one."""

    __slots__ = ("_beyond", "_first")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._beyond: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._first, self._beyond, strict=True))

    def __len__(self) -> int:
        return len(self._first)

    def copy(self) -> Ranges:
        other = Ranges()
        other._first, other._beyond = self._first[:], self._beyond[:]
        return other

    def add(self, first: int, beyond: int) -> None:
        if first >= beyond:
            return
        if self._beyond and self._beyond[-1] == first:  # nearly always
            self._beyond[-1] = beyond
            return
        low = bisect_left(self._beyond, first)
        high = bisect_right(self._first, beyond)
        if low < high:
            first = min(first, self._first[low])
            beyond = max(beyond, self._beyond[high - 1])
        self._first[low:high] = [first]
        self._beyond[low:high] = [beyond]

    def remove(self, first: int, beyond: int) -> None:
        low = bisect_right(self._beyond, first)
        high = bisect_left(self._first, beyond)
        if first >= beyond or low >= high:
            return
        firsts, beyonds = [], []
        if self._first[low] < first:
            firsts.append(self._first[low])
            beyonds.append(first)
        if self._beyond[high - 1] > beyond:
            firsts.append(beyond)
            beyonds.append(self._beyond[high - 1])
        self._first[low:high] = firsts
        self._beyond[low:high] = beyonds
