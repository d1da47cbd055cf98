"""Which of several directory servers to ask next, and how quickly they answer (DIR-37, DIR-55).

The one that answered last is asked first. One that failed is asked last for a while, longer each time: it is still
asked when no other one answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

__all__ = ["Servers"]

COOL_FIRST_S = 1.0
COOL_MAX_S = 5.0
TIMES_MAX = 9


class Server:
    """What is known of one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers = 0
        self.failures = 0
        self.failed_in_a_row = 0
        self.cool_until_s = 0.0
        self.reason = ""  # why it failed last


class Servers:
    """In the order they are written; times are seconds of one steady clock."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = [Server(url) for url in urls]
        self._first = 0
        self._asked_s: dict[int, float] = {}
        self._times_s: deque[float] = deque(maxlen=TIMES_MAX)
        self._number = 0

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def first(self) -> str:
        """The one to ask first: it answered last."""
        return self._servers[self._first].url

    def round(self, now_s: float) -> list[int]:
        """All of them in the order to ask, those that failed a moment ago at the end."""
        count = len(self._servers)
        order = [(self._first + step) % count for step in range(count)]
        return sorted(order, key=lambda number: self._servers[number].cool_until_s > now_s)

    def is_cooling(self, number: int, now_s: float) -> bool:
        return self._servers[number].cool_until_s > now_s

    # What happens.

    def asked(self, now_s: float) -> int:
        """A question goes out; the number it gets is told to `answered` or `failed`."""
        self._number += 1
        self._asked_s[self._number] = now_s
        return self._number

    def sent(self, question: int, now_s: float) -> None:
        """It is on its way only now: opening a connection is no part of how long an answer takes."""
        self._asked_s[question] = now_s

    def answered(self, server: int, question: int, now_s: float) -> None:
        """Any answer shows that it is there, also a no."""
        self._times_s.append(now_s - self._asked_s.pop(question, now_s))
        known = self._servers[server]
        known.answers += 1
        known.failed_in_a_row, known.cool_until_s, known.reason = 0, 0.0, ""

    def settled(self, server: int) -> None:
        """It gave an answer one can use: it is asked first from now on."""
        self._first = server

    def failed(self, server: int, question: int, now_s: float, reason: str) -> None:
        """It did not answer, or cannot answer at the moment; the time it took counts as a slow answer."""
        took_s = now_s - self._asked_s.pop(question, now_s)
        if took_s > self._middle_s():
            self._times_s.append(took_s)
        known = self._servers[server]
        known.failures += 1
        known.failed_in_a_row += 1
        known.cool_until_s = now_s + min(COOL_FIRST_S * 2 ** (known.failed_in_a_row - 1), COOL_MAX_S)
        known.reason = reason

    def given_up(self, question: int) -> None:
        """Whoever asked does not want to know any more."""
        self._asked_s.pop(question, None)

    # What is known.

    def latency_s(self, now_s: float) -> float | None:
        """How long answers take: the middle of the last ones, or what the oldest open question has waited."""
        waited_s = now_s - min(self._asked_s.values(), default=now_s)
        if not self._times_s and not waited_s:
            return None
        return max(self._middle_s(), waited_s)

    def _middle_s(self) -> float:
        return median(self._times_s) if self._times_s else 0.0

    def facts(self, now_s: float) -> list[dict[str, Any]]:
        """For a status call (DIR-81)."""
        return [
            {
                "url": server.url,
                "in_use": number == self._first,
                "answers": server.answers,
                "failures": server.failures,
                "cooling_s": round(max(0.0, server.cool_until_s - now_s), 3),
                "reason": server.reason,
            }
            for number, server in enumerate(self._servers)
        ]
