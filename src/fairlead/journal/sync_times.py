"""How long flushes to stable storage took: how many, together, and sorted into spans of time.

The thread that flushes keeps them, so that they cost the loop nothing; whoever reports asks now and then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

SPANS_US: Final = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
"""Ends of the spans in microseconds, as in `_writer.pyx`; one more has no end."""


class SyncTimes:
    """One journal's."""

    __slots__ = ("count", "last_ns", "spans", "total_ns")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """As a writer told them, or none yet."""
        self.count, self.last_ns, self.total_ns, *self.spans = list(numbers) or [0] * (4 + len(SPANS_US))

    def took(self, ns: int) -> None:
        self.count += 1
        self.last_ns = ns
        self.total_ns += ns
        self.spans[bisect_left(SPANS_US, ns / 1000)] += 1

    def numbers(self) -> list[int]:
        return [self.count, self.last_ns, self.total_ns, *self.spans]

    def at_most(self) -> list[int]:
        """For each span with an end: how many took no longer."""
        return list(accumulate(self.spans[:-1]))
