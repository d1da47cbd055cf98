"""What a job has done so far, and the line that says so: rows, rate, lag."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from rich.console import Console
from rich.status import Status

__all__ = ["Progress", "Ranges", "Tally", "sentence"]

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""By destination: the first that was read and one beyond the last."""

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 60.0


@dataclass
class Tally:
    """Counts of one run of a job. A row that was done again after a failure is counted once."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    lag: int | None = None
    last_batch: int | None = None
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def add(
        self,
        *,
        rows: int,
        size: int = 0,
        batch: int | None = None,
        ranges: Ranges | None = None,
        lag: int | None = None,
    ) -> None:
        """One batch is done; `lag` is how many rows wait now, None if nobody knows."""
        self.rows += rows
        self.bytes += size
        self.batches += 1
        self.last_batch = self.last_batch if batch is None else batch
        self.lag = lag
        for name, (first, beyond) in (ranges or {}).items():
            before = self.ranges.get(name, (first, beyond))
            self.ranges[name] = (min(before[0], first), max(before[1], beyond))
        now_s = time.monotonic()
        self._marks = [mark for mark in self._marks if mark[0] > now_s - RATE_OVER_S] + [(now_s, rows)]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def rate(self) -> float:
        """Rows a second over the last minute, or since the beginning if that is shorter ago."""
        since_s = time.monotonic() - RATE_OVER_S
        recent = sum(rows for at_s, rows in self._marks if at_s > since_s)
        return recent / min(RATE_OVER_S, max(self.seconds, 0.001))

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rows": self.rows,
            "bytes": self.bytes,
            "batches": self.batches,
            "last_batch": self.last_batch,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 1),
            "lag": self.lag,
            "ranges": {name: list(span) for name, span in sorted(self.ranges.items())},
        }


def sentence(facts: Mapping[str, Any]) -> str:
    """Of a tally's facts, one line for people."""
    lag = "unknown" if facts.get("lag") is None else f"{facts['lag']:,}"
    return f"{facts['rows']:,} rows, {facts['rate']:,.0f}/s, lag {lag}, {facts['batches']:,} batches"


class Progress:
    """Shows a tally: a living line on a terminal, a plain line now and then elsewhere."""

    def __init__(self, name: str, out: IO[str] | None = None) -> None:
        self._name = name
        self._console = Console(file=out or sys.stderr, highlight=False)
        self._line: Status | None = None
        self._said: tuple[str, int] | None = None
        self._due_s = 0.0
        if self._console.is_terminal:
            self._line = self._console.status(f"{name}: starting")
            self._line.start()

    def show(self, tally: Tally, state: str) -> None:
        """Now and then, as often as one likes."""
        text = f"{self._name}: {state}, {sentence(tally.facts())}"
        if self._line is not None:
            self._line.update(text)
        elif time.monotonic() >= self._due_s and (state, tally.batches) != self._said:
            self._due_s = time.monotonic() + PLAIN_EVERY_S
            self._said = (state, tally.batches)
            self._console.print(text, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Something worth a line of its own."""
        self._console.print(f"{self._name}: {text}", markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None
