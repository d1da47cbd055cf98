"""What the member machine asks of its log. A journal with a core behind it is one; so is a list in the simulation.

Records are numbered from 1 without a gap. `last` may be ahead of `durable`; what is beyond `safe` may still be cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Records on their way to another log. The machine looks at indexes and epochs; the log reads the data."""

    first: int  # index of the first
    previous: int  # epoch of the record before the first; 0 if there is none
    epochs: tuple[tuple[int, int], ...]  # runs: count, epoch
    data: bytes | memoryview  # a view is good until the call that brought it returns

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.epochs)

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def epoch_at(self, index: int) -> int:
        """Epoch of one of them, or of the record before the first."""
        if index == self.first - 1:
            return self.previous
        at = self.first
        for count, epoch in self.epochs:
            at += count
            if index < at:
                return epoch
        raise IndexError(index)


class Log(Protocol):
    """One store's log."""

    @property
    def first(self) -> int:
        """The oldest index whose record can be read and sent; what is before it is only in the state."""

    @property
    def last(self) -> int: ...

    @property
    def synced(self) -> int:
        """Records up to here are on stable storage."""

    @property
    def durable(self) -> int:
        """Everything up to here is on stable storage: the records and whatever they refer to. At most `synced`."""

    def epoch_at(self, index: int) -> int:
        """Epoch of that record; 0 for index 0; -1 if that is no longer known (before `first` - 1) or beyond `last`."""

    def take(self, batch: Batch, skip: int = 0) -> None:
        """Append these records, all but the first `skip`; the first one taken stands right behind `last`."""

    def read(self, first: int, most_bytes: int) -> Batch | None:
        """Records from that index on, at least one, about so many bytes; None: fetched from disk, ask again soon."""

    def cut(self, last: int) -> None:
        """Undo everything behind that index, which is never below `safe`; what is undone is set aside (CLU-152)."""

    def settle(self, safe: int) -> None:
        """Everything up to this index is safe and will never be cut. Only grows within one life."""
