"""Loss within one stream, found by its message numbers (STR-25): blocks of a line in the order of their numbers.

Numbers of different lines are never compared, nor those of different incarnations of one adapter (STR-26).
"""

from __future__ import annotations

from bisect import insort

from fairlead.feeds.blocks import Block

__all__ = ["LineOrder"]


class LineOrder:
    def __init__(self, hold_messages: int) -> None:
        self.expected = 0  # the number that comes next; 0: any
        self.since_s = 0.0  # how long there has been a hole, or how long nothing has come
        self._held: list[tuple[int, int, Block]] = []
        self._held_messages = 0
        self._held_messages_max = hold_messages
        self._arrivals = 0

    @property
    def hole(self) -> tuple[int, int] | None:
        """The numbers that are missing before what is held."""
        return (self.expected, self._held[0][0] - 1) if self._held else None

    def take(self, block: Block, now_s: float) -> list[Block]:
        """What can be judged now."""
        if self.expected and block.first > self.expected:
            if not self._held:
                self.since_s = now_s
            self._arrivals += 1
            insort(self._held, (block.first, self._arrivals, block))
            self._held_messages += block.count
            return self.give_up(now_s) if self._held_messages > self._held_messages_max else []
        self.expected = max(self.expected, block.last + 1)
        self.since_s = now_s
        return [block, *self._released()] if self._held else [block]

    def give_up(self, now_s: float) -> list[Block]:
        """The hole stays; judge what is behind it."""
        if not self._held:
            return []
        self.expected, self.since_s = self._held[0][0], now_s
        return self._released()

    def skip(self, last: int, now_s: float) -> list[Block]:
        """Numbers up to `last` will not come."""
        self.expected, self.since_s = max(self.expected, last + 1), now_s
        return self._released()

    def reset(self, now_s: float) -> list[Block]:
        """Numbering begins anew; what was held is handed out."""
        held = [block for _first, _arrival, block in self._held]
        self._held, self._held_messages, self.expected, self.since_s = [], 0, 0, now_s
        return held

    def _released(self) -> list[Block]:
        ready = []
        while self._held and self._held[0][0] <= self.expected:
            block = self._held.pop(0)[2]
            self._held_messages -= block.count
            self.expected = max(self.expected, block.last + 1)
            ready.append(block)
        return ready
