"""Which messages of a destination have another priority than the default; of the others nothing is kept (CLU-22)."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.cluster.ranges import Ranges
from fairlead.wire.durable import PRIORITY_DEFAULT


class Priorities:
    """Ranges of order numbers by priority."""

    __slots__ = ("_special",)

    def __init__(self) -> None:
        self._special: dict[int, Ranges] = {}

    def set(self, low: int, high: int, priority: int) -> None:
        if priority != PRIORITY_DEFAULT:
            self._special.setdefault(priority, Ranges()).add(low, high)

    def runs(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """The same range in parts of one priority each: priority, first, one beyond."""
        if not self._special:
            yield PRIORITY_DEFAULT, low, high
            return
        found = [
            (first, beyond, priority)
            for priority, ranges in self._special.items()
            for first, beyond in ranges.intersect(low, high)
        ]
        for first, beyond, priority in sorted(found):
            if low < first:
                yield PRIORITY_DEFAULT, low, first
            yield priority, first, beyond
            low = beyond
        if low < high:
            yield PRIORITY_DEFAULT, low, high

    def drop_below(self, order: int) -> None:
        for priority in list(self._special):
            ranges = self._special[priority]
            ranges.remove(0, order)
            if not ranges:
                del self._special[priority]

    def snapshot(self) -> list[tuple[int, list[int]]]:
        return [(priority, ranges.flat()) for priority, ranges in self._special.items()]

    def restore(self, state: list[tuple[int, list[int]]]) -> None:
        self._special = {priority: Ranges.from_flat(flat) for priority, flat in state}
