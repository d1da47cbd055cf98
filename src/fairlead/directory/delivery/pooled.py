"""Which connection of a pool is handed out, and whether another one may be opened (DIR-70)."""

from __future__ import annotations

from collections import deque
from typing import Generic, Literal, TypeVar

from fairlead.errors import BadParameter

__all__ = ["Pooled"]

T = TypeVar("T")
W = TypeVar("W")


class Pooled(Generic[T, W]):
    """`T` are connections, `W` those who wait for one.

    The connection used last is handed out first, so that those over the minimum are the ones that stay idle.
    """

    def __init__(self, minimum: int, maximum: int) -> None:
        if not 0 <= minimum <= maximum or maximum < 1:
            raise BadParameter(f"A pool has 0 <= minimum <= maximum, and not {minimum} and {maximum}.")
        self.minimum = minimum
        self.maximum = maximum
        self.opening = 0
        self._idle: list[T] = []
        self._used: list[T] = []
        self._waiting: deque[W] = deque()

    @property
    def size(self) -> int:
        """Open and being opened."""
        return len(self._idle) + len(self._used) + self.opening

    @property
    def missing(self) -> int:
        """How many to open for the minimum."""
        return max(self.minimum - self.size, 0)

    def ask(self) -> T | Literal["open", "wait"]:
        """An idle one; else open one (it counts from now on), or wait."""
        if self._idle:
            found = self._idle.pop()
            self._used.append(found)
            return found
        if self.size < self.maximum:
            self.opening += 1
            return "open"
        return "wait"

    def begin_opening(self) -> None:
        """One more is being opened for the minimum."""
        self.opening += 1

    def opened(self, one: T, *, used: bool) -> None:
        self.opening -= 1
        (self._used if used else self._idle).append(one)

    def failed(self) -> None:
        """It could not be opened."""
        self.opening -= 1

    def wait(self, waiter: W) -> None:
        self._waiting.append(waiter)

    def leave(self, waiter: W) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def give_back(self, one: T, *, broken: bool) -> None:
        """It is not used any more; a broken one is dropped."""
        self._used.remove(one)
        if not broken:
            self._idle.append(one)

    def drop_idle(self, one: T) -> None:
        """It broke while nobody used it."""
        if one in self._idle:
            self._idle.remove(one)

    def next_waiter(self, *, everybody: bool = False) -> W | None:
        """Who may ask again now: there is an idle one, or room for a new one; or nobody need wait any longer."""
        if self._waiting and (everybody or self._idle or self.size < self.maximum):
            return self._waiting.popleft()
        return None

    def everything(self) -> list[T]:
        return [*self._idle, *self._used]

    def facts(self) -> dict[str, int]:
        return {
            "idle": len(self._idle),
            "used": len(self._used),
            "opening": self.opening,
            "waiting": len(self._waiting),
        }
