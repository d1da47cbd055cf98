"""One handle of a consumer: its credit and its settlements. A consumer by pattern has one for each topic it matches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.client.durable.settlement import Settlements

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer

__all__ = ["Channel"]


class Channel:
    """Messages are owed to the credit when the application is done with them, bytes when a whole DELIVER is."""

    __slots__ = ("_frames", "_taken", "destination_id", "in_hand", "name", "owed", "owed_bytes", "settlements")

    def __init__(self, consumer: DurableConsumer, name: str, *, answered: bool) -> None:
        self.name = name
        self.destination_id = ""  # in hexadecimal digits, once it is known
        self.settlements = Settlements(consumer, answered=answered)
        self.in_hand = 0  # taken when the application last came
        self.owed = 0
        self.owed_bytes = 0
        self._frames: deque[tuple[int, int]] = deque()  # messages and bytes of each DELIVER not wholly taken
        self._taken = 0

    @property
    def handle(self) -> int:
        return self.settlements.handle

    def came(self, count: int, size: int) -> None:
        self._frames.append((count, size))

    def came_back(self, count: int) -> None:
        """Into the buffer, after `left` had counted them."""
        self._frames.appendleft((count, 0))

    def left(self, count: int) -> None:
        """So many have left the buffer."""
        self._taken += count
        frames = self._frames
        while frames and self._taken >= frames[0][0]:
            counted, size = frames.popleft()
            self._taken -= counted
            self.owed_bytes += size

    def asked(self) -> None:
        """The application came for more: what it took last counts as consumed."""
        self.owed += self.in_hand
        self.in_hand = 0

    def want(self) -> tuple[int, int]:
        """What to give back now."""
        owed, size = self.owed, self.owed_bytes
        self.owed = self.owed_bytes = 0
        return owed, size

    def on_lost(self, held: Iterable[int]) -> set[int]:
        self._frames.clear()
        self._taken = self.in_hand = self.owed = self.owed_bytes = 0
        return self.settlements.on_lost(held)
