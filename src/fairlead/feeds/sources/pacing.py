"""How many messages of a paced source are due by now: a rate, counted from a start that several adapters may share."""

from __future__ import annotations

from typing import Final

__all__ = ["Pacing"]

FLAT_OUT: Final = 8192  # messages at a time, where there is no rate


class Pacing:
    """`rate` messages a second from `start_s` on; a rate of 0 is as fast as they are taken."""

    def __init__(self, rate: float, start_s: float) -> None:
        self.rate = rate
        self.start_s = start_s
        self._given = 0

    def due(self, now_s: float) -> int:
        """How many to give now, of those not given yet; a late beginner catches up in batches."""
        if now_s < self.start_s:
            return 0
        due = FLAT_OUT if not self.rate else min(FLAT_OUT, int((now_s - self.start_s) * self.rate) - self._given)
        self._given += max(due, 0)
        return max(due, 0)

    def wait_s(self, now_s: float) -> float:
        """How long until there is something due; no shorter than a millisecond, so that batches are worth it."""
        if now_s < self.start_s:
            return self.start_s - now_s
        if not self.rate:
            return 0.0
        return max(self.start_s + (self._given + 1) / self.rate - now_s, 0.001)
