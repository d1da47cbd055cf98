"""The newest message of each key, for topics that keep no other (last_value)."""

from __future__ import annotations

from fairlead.cluster.ranges import Ranges


class LastValues:
    """Which order number is the newest of its key."""

    __slots__ = ("_latest", "orders")

    def __init__(self) -> None:
        self._latest: dict[bytes, int] = {}
        self.orders = Ranges()

    def put(self, key: bytes, order: int) -> int | None:
        """A newer value; the order number of the one it replaces."""
        before = self._latest.get(key)
        if before is not None:
            self.orders.remove(before, before + 1)
        self._latest[key] = order
        self.orders.add(order, order + 1)
        return before

    def drop(self, low: int, high: int) -> None:
        """These are gone: dropped or expired."""
        if self.orders.remove(low, high):
            self._latest = {key: order for key, order in self._latest.items() if not low <= order < high}

    def snapshot(self) -> list[tuple[bytes, int]]:
        return list(self._latest.items())

    def restore(self, state: list[tuple[bytes, int]]) -> None:
        for key, order in state:
            self.put(key, order)
