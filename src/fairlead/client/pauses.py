"""How long to wait before the next attempt to connect: growing pauses, a little different for every client.

Without the difference, thousands of clients cut off together would come back together.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Pauses"]

FIRST_S = 0.05
LONGEST_S = 2.0


class Pauses:
    """`random` gives a number from 0 to 1; each pause is between half and all of its turn."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._turn_s = FIRST_S

    def next_s(self) -> float:
        turn_s = self._turn_s
        self._turn_s = min(turn_s * 2, LONGEST_S)
        return turn_s * (0.5 + self._random() / 2)
