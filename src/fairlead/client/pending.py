"""Requests that wait for their answers, and when they have waited long enough.

Most requests are answered long before their deadline, so there is no timer per request: the earliest
deadline is known, and only when it passes are the open ones looked through.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from fairlead.message import Message

__all__ = ["Pending", "PendingTable"]

SWEEP_PAUSE_S = 0.005
"""Deadlines are kept to this precision, so that many different ones do not cost a look each."""


class Pending(Protocol):
    """Who waits. `on_message` and `on_lost` answer whether that was all."""

    deadline_s: float

    def on_message(self, message: Message) -> bool: ...

    def on_asked(self, count: int) -> bool: ...

    def on_receiver_lost(self) -> bool: ...

    def fail(self, error: Exception) -> None: ...

    def on_timeout(self) -> None: ...


class PendingTable:
    """Open requests by correlation."""

    def __init__(self) -> None:
        self.open: dict[int, Pending] = {}
        self.next_s = inf
        """Nothing expires before this."""

    def add(self, correlation: int, pending: Pending) -> bool:
        """Remember it; True when `next_s` has become earlier."""
        self.open[correlation] = pending
        if pending.deadline_s < self.next_s:
            self.next_s = pending.deadline_s
            return True
        return False

    def expire(self, now_s: float) -> list[tuple[int, Pending]]:
        """Take out those whose time is up."""
        due = [(key, pending) for key, pending in self.open.items() if pending.deadline_s <= now_s]
        for key, _ in due:
            del self.open[key]
        earliest_s = min((pending.deadline_s for pending in self.open.values()), default=inf)
        self.next_s = max(earliest_s, now_s + SWEEP_PAUSE_S)
        return due

    def take_all(self) -> list[Pending]:
        everything = list(self.open.values())
        self.open.clear()
        return everything
