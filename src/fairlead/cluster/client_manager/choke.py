"""When managers are not read because a group's node does not keep up: what cannot be sent stays with its sender."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HIGH_BYTES: Final = 32 << 20  # wait for one node; at twice as much the bus gives that node up
LOW_BYTES: Final = 8 << 20


class Choke:
    """Closed above the high mark, open again below the low one."""

    def __init__(self, high: int = HIGH_BYTES, low: int = LOW_BYTES) -> None:
        self._high, self._low = high, low
        self.closed = False
        self.times = 0

    def look(self, backlogs: Iterable[int]) -> bool:
        """Bytes that wait for each node. True: it closed or opened."""
        closed = max(backlogs, default=0) > (self._low if self.closed else self._high)
        if closed == self.closed:
            return False
        self.closed = closed
        self.times += closed
        return True
