"""One receiver's book of numbered messages: which came, which twice, which late, how fast, and the longest silence.

Numbers count from 0. A message that comes again is a fault unless it says that it does (`again`): a queue may deliver
twice what was not acknowledged in time, and marks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from fairlead.demo.findings import Count, Curve, Pause

__all__ = ["BIN_S", "Book", "percentiles"]

BIN_S: Final = 0.05
RANKS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
DELAYS_MAX: Final = 200_000
SILENCE_S: Final = 0.001
SILENCES_MAX: Final = 100_000


class Book:
    """`ordered`: a number below one that came before is a fault."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._seen: set[int] = set()
        self._highest = -1
        self._bins: Counter[int] = Counter()
        self._began_s: float | None = None
        self._last_s = 0.0
        self._silences: list[tuple[float, float]] = []  # length, beginning
        self.delays_s: list[float] = []
        self.doubled = self.disordered = self.again = 0

    def begin(self, now_s: float) -> None:
        """Times are counted from here."""
        self._began_s = self._last_s = now_s

    def enter(self, number: int, now_s: float, *, sent_s: float | None = None, again: bool = False) -> None:
        """A message came."""
        if self._began_s is None:
            self.begin(now_s)
        if number in self._seen:
            if again:
                self.again += 1
            else:
                self.doubled += 1
            return
        self._seen.add(number)
        if number < self._highest:
            self.disordered += 1
        else:
            self._highest = number
        if sent_s is not None and len(self.delays_s) < DELAYS_MAX:
            self.delays_s.append(now_s - sent_s)
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Something came, whatever its number: it ends a silence and counts for the rate."""
        began_s = self._began_s if self._began_s is not None else now_s
        self._began_s = began_s
        self._bins[int((now_s - began_s) / BIN_S)] += 1
        if now_s - self._last_s >= SILENCE_S and len(self._silences) < SILENCES_MAX:
            self._silences.append((now_s - self._last_s, self._last_s - began_s))
        self._last_s = now_s

    @property
    def received(self) -> int:
        """Different ones."""
        return len(self._seen)

    def has_all(self, sent: int) -> bool:
        return self.received >= sent

    def missing(self, sent: int) -> list[int]:
        return sorted(set(range(sent)) - self._seen)

    def count(self, what: str, sent: int, disconnected: int | None = None) -> Count:
        """The books closed: what became of the numbers 0 to `sent` - 1."""
        return Count(
            what=what,
            sent=sent,
            received=self.received,
            lost=len(self.missing(sent)),
            doubled=self.doubled,
            disordered=self.disordered if self._ordered else None,
            again=self.again,
            disconnected=disconnected,
        )

    def curve(self, name: str) -> Curve:
        last = max(self._bins, default=-1)
        return Curve(name, BIN_S, [self._bins[place] / BIN_S for place in range(last + 1)])

    def pause(self, since_s: float, until_s: float, text: str = "pause") -> Pause:
        """The longest silence between two messages that was not over at one time, and had begun by the other."""
        within = [one for one in self._silences if one[0] + one[1] >= since_s and one[1] <= until_s]
        length_s, at_s = max(within, default=(0.0, since_s))
        return Pause(at_s, length_s, text)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Of what was measured, and the longest; empty if nothing was."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {name: ordered[min(len(ordered) - 1, int(rank * len(ordered)))] for name, rank in RANKS.items()}
    return {**found, "longest": ordered[-1]}
