"""How fast counters grow: differences of two samples over the time between them.

A counter that is smaller than before began anew, since its process did: then nothing is known until the next sample.
"""

from __future__ import annotations

from collections.abc import Mapping


def rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """Per second; None where it is not known."""
    if before is None or now is None or seconds <= 0 or now < before:
        return None
    return round((now - before) / seconds, 3)


class Rates:
    """The rates of many counters, by name. Told a sample, it knows the rates since the one before."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._before: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def sample(self, now_s: float, counters: Mapping[str, int]) -> None:
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        found = {name: rate(self._before.get(name), value, seconds) for name, value in counters.items()}
        self._rates = {name: value for name, value in found.items() if value is not None}
        self._before, self._at_s = dict(counters), now_s

    def __getitem__(self, name: str) -> float | None:
        return self._rates.get(name)

    def total(self, names: list[str]) -> float | None:
        """Of several together; None if none of them is known."""
        known = [self._rates[name] for name in names if name in self._rates]
        return round(sum(known), 3) if known else None
