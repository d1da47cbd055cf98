"""Calls that wait for their answers, by correlation; and the turn of a synchronous connection.

An answer is for the call that has its correlation, and for no other: what comes after its call was given up is dropped
and counted (DIR-71). A synchronous connection has one call outstanding and is busy until then (DIR-68).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from fairlead.errors import Busy

__all__ = ["Calls", "Turn"]

T = TypeVar("T")


class Calls(Generic[T]):
    """`T` is whatever waits."""

    def __init__(self) -> None:
        self._open: dict[str, T] = {}
        self.late = 0

    def open(self, correlation: str, waiter: T) -> None:
        assert correlation not in self._open
        self._open[correlation] = waiter

    def answered(self, correlation: str) -> T | None:
        """Who waits for this one; None: nobody, any more."""
        waiter = self._open.pop(correlation, None)
        self.late += waiter is None
        return waiter

    def give_up(self, correlation: str) -> None:
        self._open.pop(correlation, None)

    def lose_all(self) -> list[T]:
        """Answers can no longer come: everybody who waits."""
        waiters, self._open = list(self._open.values()), {}
        return waiters

    def __len__(self) -> int:
        return len(self._open)


class Turn(Generic[T]):
    """Who may use a synchronous connection. `T` stands for somebody who waits for it."""

    def __init__(self) -> None:
        self.is_taken = False
        self._waiting: deque[T] = deque()

    def take(self) -> bool:
        """Take it if it is free."""
        if self.is_taken:
            return False
        self.is_taken = True
        return True

    def refuse(self) -> Busy:
        return Busy("This synchronous connection waits for an answer: wait for it, or use another connection (a pool).")

    def wait(self, waiter: T) -> None:
        self._waiting.append(waiter)

    def leave(self, waiter: T) -> None:
        """It does not want to wait any more."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def release(self) -> T | None:
        """The answer came, or is not waited for any more. Whose turn it is now: it stays taken, by that one."""
        if self._waiting:
            return self._waiting.popleft()
        self.is_taken = False
        return None

    @property
    def waiting(self) -> int:
        return len(self._waiting)
