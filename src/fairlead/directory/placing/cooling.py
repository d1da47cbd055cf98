"""Brokers that failed are left alone for a while, longer each time: 10 s, 20 s … two minutes (DIR-64)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Cooling"]

FIRST_S: Final = 10.0
LONGEST_S: Final = 120.0
BROKERS_MAX: Final = 10_000


class Failed(NamedTuple):
    until_s: float
    turn_s: float  # of this cool-down
    reason: str


class Cooling:
    def __init__(self, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failed: dict[str, Failed] = {}

    def fail(self, broker: str, reason: str, now_s: float) -> None:
        before = self._failed.pop(broker, None)
        turn_s = self._first_s if before is None else min(before.turn_s * 2, self._longest_s)
        if len(self._failed) >= BROKERS_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[broker] = Failed(now_s + turn_s, turn_s, reason)

    def reached(self, broker: str) -> None:
        """It accepted: its failures are forgotten."""
        self._failed.pop(broker, None)

    def is_cooling(self, broker: str, now_s: float) -> bool:
        failed = self._failed.get(broker)
        return failed is not None and now_s < failed.until_s

    def names(self, now_s: float) -> set[str]:
        return {broker for broker, failed in self._failed.items() if now_s < failed.until_s}

    def facts(self, now_s: float) -> list[dict[str, str | float]]:
        return [
            {"broker": broker, "left_s": round(failed.until_s - now_s, 3), "reason": failed.reason}
            for broker, failed in self._failed.items()
            if now_s < failed.until_s
        ]
