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
    """The heap may hold earlier times than are wanted: `next_at` comes too early then, and `due` sets them right."""

    def __init__(self) -> None:
        self._wanted: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._turn = count()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, key: K, at_s: float) -> None:
        self._wanted[key] = at_s
        if at_s < self._queued.get(key, inf):
            self._push(key, at_s)

    def clear(self, key: K) -> None:
        if self._wanted.pop(key, None) is not None and len(self._heap) > 2 * len(self._wanted) + 64:
            self._heap = [(at_s, next(self._turn), key) for key, at_s in self._wanted.items() if at_s < inf]
            self._queued = {key: at_s for at_s, _, key in self._heap}
            heapify(self._heap)

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def due(self, now_s: float) -> Iterator[K]:
        """One at a time: what is cleared meanwhile does not come."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, key = heappop(self._heap)
            if self._queued.get(key) != at_s:
                continue  # an earlier one took its place
            del self._queued[key]
            wanted_s = self._wanted.get(key, inf)
            if wanted_s <= now_s:
                del self._wanted[key]
                yield key
            elif wanted_s < inf:
                self._push(key, wanted_s)

    def _push(self, key: K, at_s: float) -> None:
        self._queued[key] = at_s
        heappush(self._heap, (at_s, next(self._turn), key))
