"""What is due when. Most deadlines are moved on long before they come, so moving one costs a dictionary entry."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A place in the heap may be earlier than what is wanted: `next_at` is too early then, and `due` sets it right."""

    def __init__(self) -> None:
        self._wanted: dict[K, float] = {}
        self._places: dict[K, list[float | int | K | None]] = {}
        self._heap: list[list[float | int | K | None]] = []
        """Time, turn, key; the key is None where the place is not needed any more."""
        self._turn = count()

    def __len__(self) -> int:
        return len(self._wanted)

    def set(self, key: K, at_s: float) -> None:
        self._wanted[key] = at_s
        place = self._places.get(key)
        if place is None:
            self._queue(key, at_s)
        elif at_s < place[0]:  # type: ignore[operator]
            place[2] = None
            self._queue(key, at_s)

    def clear(self, key: K) -> None:
        if self._wanted.pop(key, None) is None:
            return
        if (place := self._places.pop(key, None)) is not None:
            place[2] = None
        if len(self._heap) > 2 * len(self._wanted) + 64:
            self._heap = [place for place in self._heap if place[2] is not None]
            heapify(self._heap)

    def next_at(self) -> float:
        while self._heap and self._heap[0][2] is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf  # type: ignore[return-value]

    def due(self, now_s: float) -> Iterator[K]:
        """One at a time: what is cleared meanwhile does not come."""
        while self.next_at() <= now_s:
            key: K = heappop(self._heap)[2]  # type: ignore[assignment]
            del self._places[key]
            wanted_s = self._wanted[key]
            if wanted_s <= now_s:
                del self._wanted[key]
                yield key
            else:
                self._queue(key, wanted_s)

    def _queue(self, key: K, at_s: float) -> None:
        place: list[float | int | K | None] = [at_s, next(self._turn), key]
        self._places[key] = place
        heappush(self._heap, place)
