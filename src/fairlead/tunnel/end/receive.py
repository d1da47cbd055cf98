"""The receiving half: everything once and in order, in a buffer of N packets (TUN-66, 69 … 74, 80 … 82, 89).

R counts what came without a gap, C what was consumed; what lies beyond a gap waits, inside the same N. A close waits
too, and is not counted, until all before it has been read.
"""

from __future__ import annotations

from collections import deque

from fairlead.tunnel.end.acks import Acks
from fairlead.tunnel.end.outbox import OPTION
from fairlead.tunnel.packets import Kind
from fairlead.tunnel.rules import Rules
from fairlead.tunnel.serial import HALF, MASK

__all__ = ["Receive"]

WINDOW_MAX = 0xFFFF


class Receive:
    def __init__(self, rules: Rules) -> None:
        self.capacity = min(rules.capacity, WINDOW_MAX)
        self.received = rules.first_sequence - 1
        self.consumed = self.received
        self.readable = 0
        self.is_closed = False
        """The other end's close took effect: all of its data have been read."""
        self.options: list[tuple[int, int]] = []
        """Options that came, for the end to act on."""
        self.duplicates = 0
        self.dropped = 0
        self.acks = Acks(rules, self.edge)
        self._ready: deque[bytes] = deque()
        self._read_of_first = 0
        self._held: dict[int, tuple[int, bytes]] = {}

    @property
    def edge(self) -> int:
        return self.consumed + self.capacity

    @property
    def window(self) -> int:
        return self.consumed + self.capacity - self.received

    def on_sequenced(self, kind: int, sequence: int, payload: bytes, now_s: float) -> bool:
        """Was it new?"""
        ahead = (sequence - self.received) & MASK
        if ahead == 0 or ahead >= HALF:
            self.duplicates += 1
            self.acks.at_once()
            return False
        if self.is_closed or ahead > self.window:
            self.dropped += 1
            self.acks.at_once()
            return False
        if ahead == 1 and kind == Kind.DATA and not self._held:
            self.received += 1
            self._deliver(kind, payload)
            self.acks.received(self.received, now_s)
            return True
        number = self.received + ahead
        if number in self._held:
            self.duplicates += 1
            self.acks.at_once()
            return False
        # Held for a moment at least: it fills a gap, lies beyond one, or is no data.
        is_gap = bool(self._held) or ahead > 1
        self._held[number] = kind, payload
        self._advance()
        self.acks.received(self.received, now_s)
        if is_gap:
            self.acks.at_once()
        return True

    def read(self, limit: int, now_s: float) -> bytes:
        ready, consumed = self._ready, 0
        parts: list[bytes | memoryview] = []
        while ready and limit > 0:
            piece = ready[0]
            left = len(piece) - self._read_of_first
            if left > limit:
                parts.append(memoryview(piece)[self._read_of_first : self._read_of_first + limit])
                self._read_of_first += limit
                self.readable -= limit
                break
            ready.popleft()
            parts.append(memoryview(piece)[self._read_of_first :] if self._read_of_first else piece)
            self._read_of_first = 0
            self.readable -= left
            limit -= left
            consumed += 1
        if consumed:
            self.consumed += consumed
            self.acks.consumed(self.edge, self.received, self.capacity)
            if self._held:
                self._after_reading(now_s)
        return b"".join(parts)

    def is_close_held(self) -> bool:
        """Has the other end closed, with data before that which nobody has read yet?"""
        return self._held.get(self.received + 1, (0, b""))[0] == Kind.CONN_CLOSE

    def forget_gaps(self) -> None:
        """No more will come; what came in order stays readable (TUN-98)."""
        self._held.clear()

    def held(self) -> int:
        """Packets in the buffer."""
        return len(self._ready) + len(self._held)

    def _after_reading(self, now_s: float) -> None:
        if self.is_close_held():
            # The closer watches for progress, and sends no more data that would show it (TUN-93).
            self.acks.soon(now_s)
        self._advance()

    def _advance(self) -> None:
        """Take from what is held all that is in order now."""
        held = self._held
        while (entry := held.get(self.received + 1)) is not None:
            if entry[0] == Kind.CONN_CLOSE:
                if not self._ready:
                    self._close()
                return
            self.received += 1
            del held[self.received]
            self._deliver(*entry)

    def _deliver(self, kind: int, payload: bytes) -> None:
        if kind == Kind.DATA and payload:
            self._ready.append(payload)
            self.readable += len(payload)
            return
        # Acted on is consumed; so is data without a byte, which no reader would ever ask for.
        self.consumed += 1
        self.acks.consumed(self.edge, self.received, self.capacity)
        if kind == Kind.CONN_OPTION and len(payload) == OPTION.size:
            self.options.append(OPTION.unpack(payload))

    def _close(self) -> None:
        self.received += 1
        self.consumed += 1
        self.is_closed = True
        self._held.clear()
        self.acks.at_once()
