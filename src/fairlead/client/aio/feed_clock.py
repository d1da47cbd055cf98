"""Time as a stream sees it: it goes on only while its lines are listened to.

A program that works for a second without a pause, or takes nothing for a minute, has not heard its adapters in that
time. That is no silence of theirs, and no reason to give up a gap that they are filling.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FeedClock"]


class FeedClock:
    """`longest_s` is how far it goes on between two looks at most."""

    def __init__(self, time: Callable[[], float], longest_s: float) -> None:
        self.longest_s = longest_s
        self._time = time
        self._seen_s = time()
        self._now_s = 0.0
        self._stands = False

    def now_s(self) -> float:
        seen_s = self._time()
        step_s, self._seen_s = seen_s - self._seen_s, seen_s
        if not self._stands:
            self._now_s += min(step_s, self.longest_s)
        return self._now_s

    def stop(self) -> None:
        self.now_s()
        self._stands = True

    def go_on(self) -> None:
        self.now_s()
        self._stands = False
