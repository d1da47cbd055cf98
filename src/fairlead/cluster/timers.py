"""One heap for everything that is to happen at a time of the calendar clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable


class Timers:
    """Actions by time. With a key only the earliest time asked for counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable | None, Callable[[], None]]] = []
        self._earliest: dict[Hashable, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When something is due."""
        return self._heap[0][0] if self._heap else None

    def at(self, ms: int, action: Callable[[], None], key: Hashable | None = None) -> None:
        if key is not None:
            known = self._earliest.get(key)
            if known is not None and known <= ms:
                return
            self._earliest[key] = ms
        self._number += 1
        heapq.heappush(self._heap, (ms, self._number, key, action))

    def forget(self, key: Hashable) -> None:
        """What was asked for under this key does not happen."""
        self._earliest.pop(key, None)

    def due(self, now_ms: int, most: int = 1024) -> list[Callable[[], None]]:
        """What is due, earliest first; no more than `most` at once."""
        found: list[Callable[[], None]] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(found) < most:
            ms, _, key, action = heapq.heappop(heap)
            if key is not None:
                if self._earliest.get(key) != ms:
                    continue  # an earlier call did it, or it was forgotten
                del self._earliest[key]
            found.append(action)
        return found
