"""Deduplication ids: which were seen of late, and what became of the message that brought them."""

from __future__ import annotations


class Dedup:
    """The newest ids of one destination, the oldest first, bounded by age and number."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # id -> order, when

    def find(self, identity: str, now_ms: int, seconds: float) -> int | None:
        """The order number of the message that had this id; None: it is new."""
        found = self._seen.get(identity)
        return found[0] if found is not None and found[1] + seconds * 1000 > now_ms else None

    def remember(self, identity: str, order: int, now_ms: int) -> None:
        self._seen.pop(identity, None)
        self._seen[identity] = (order, now_ms)

    def trim(self, now_ms: int, seconds: float, most: int) -> None:
        late = now_ms - seconds * 1000
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= most and self._seen[oldest][1] > late:
                return
            del self._seen[oldest]

    def __len__(self) -> int:
        return len(self._seen)

    def snapshot(self) -> list[tuple[str, int, int]]:
        return [(identity, order, when) for identity, (order, when) in self._seen.items()]

    def restore(self, state: list[tuple[str, int, int]]) -> None:
        self._seen = {identity: (order, when) for identity, order, when in state}
