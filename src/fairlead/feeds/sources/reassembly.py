"""One session of a numbered source: what comes next, and what is held beyond a hole until it is filled or given up."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from fairlead.feeds.sources.runs import Run

__all__ = ["Hole", "Reassembly"]


class Hole(NamedTuple):
    """Sequences that are known to exist and have not come."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Reassembly:
    """Runs in any order and number in, runs in order and once each out.

    `next` is the sequence that is wanted; `highest` the highest that is known to exist.
    """

    def __init__(self, next_sequence: int) -> None:
        self.next = next_sequence
        self.highest = next_sequence - 1
        self.held_messages = 0
        self.held_bytes = 0
        self._held: list[Run] = []  # sorted, apart from each other, all beyond `next`

    def heard(self, highest: int) -> None:
        """Messages up to this one exist."""
        self.highest = max(self.highest, highest)

    def add(self, run: Run) -> list[Run]:
        """What is in order now. What is known already is left out."""
        last = run.last
        self.highest = max(self.highest, last)
        if last < self.next:
            return []
        if run.first <= self.next and not self._held:
            run = run.cut(self.next, last)
            self.next = last + 1
            return [run]
        self._hold(run.cut(self.next, last))
        return self._release()

    @property
    def hole(self) -> Hole | None:
        """The first one."""
        if self._held:
            return Hole(self.next, self._held[0].first - 1)
        return Hole(self.next, self.highest) if self.highest >= self.next else None

    def give_up(self) -> tuple[Hole, list[Run]]:
        """The first hole is lost: it, and what is in order behind it."""
        hole = self.hole
        assert hole is not None, "there is a hole"
        self.next = hole.last + 1
        return hole, self._release()

    def _hold(self, run: Run) -> None:
        """Keep the pieces of it that are not held yet."""
        place = bisect_left(self._held, run.first, key=lambda held: held.last)
        first, pieces = run.first, []
        end = place
        while end < len(self._held) and self._held[end].first <= run.last:
            if first < self._held[end].first:
                pieces.append(run.cut(first, self._held[end].first - 1))
            first = self._held[end].last + 1
            pieces.append(self._held[end])
            end += 1
        if first <= run.last:
            pieces.append(run.cut(first, run.last))
        before = self._held[place:end]
        self._held[place:end] = pieces
        self.held_messages += sum(piece.size for piece in pieces) - sum(piece.size for piece in before)
        self.held_bytes += sum(len(piece.data) for piece in pieces) - sum(len(piece.data) for piece in before)

    def _release(self) -> list[Run]:
        count = 0
        while count < len(self._held) and self._held[count].first == self.next:
            run = self._held[count]
            self.next = run.last + 1
            self.held_messages -= run.size
            self.held_bytes -= len(run.data)
            count += 1
        released, self._held = self._held[:count], self._held[count:]
        return released
