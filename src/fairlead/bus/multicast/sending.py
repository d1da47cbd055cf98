"""A node's own stream: what may go now, what goes again, what can be forgotten, who is too slow.

Packets are kept until every listener has reported them. How much may be under way grows with reports and is halved
when somebody had to ask, so that a slow listener slows the stream; one that is `repair_bytes_max` behind is excluded.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from fairlead.bus.multicast.packets import FIRST, LAST

WINDOW_FIRST: Final = 128 << 10
WINDOW_LEAST: Final = 16 << 10
WINDOW_MOST: Final = 1 << 20
BEAT_FIRST_S: Final = 0.02
BEAT_LAST_S: Final = 0.5
AGAIN_S: Final = 0.01  # a packet is not repeated sooner, however many ask
REPAIR_SHARE: Final = 64  # packets repeated at most in one turn
HALVE_S: Final = 0.05  # the window is halved once in this time


class Out(NamedTuple):
    """A packet to be sent."""

    number: int
    flags: int
    content: bytes


class Sender:
    """Numbers begin at 1. `slow` are listeners that should be excluded; the edge empties it."""

    def __init__(self, content_bytes: int, repair_bytes_max: int) -> None:
        self.slow: list[str] = []
        self.next = 1  # number of the next packet that is cut
        self.repeats = 0
        self._content_bytes = content_bytes
        self._kept_max = repair_bytes_max
        self._kept: dict[int, Out] = {}
        self._kept_bytes = 0
        self._unsent: deque[int] = deque()
        self._lowest = 1  # of those kept
        self._flying = 0  # bytes sent and not reported by all
        self._window = WINDOW_FIRST
        self._halved_s = 0.0
        self._reported: dict[str, int] = {}  # by listener: the number it wants next
        self._again: dict[int, float] = {}
        self._wanted: deque[int] = deque()
        self._beat_s = 0.0
        self._beat_pause_s = BEAT_FIRST_S

    @property
    def waiting(self) -> int:
        """Bytes that somebody has not reported, sent or not."""
        return self._kept_bytes

    @property
    def sent(self) -> int:
        """Number of the last packet that went out."""
        return (self._unsent[0] if self._unsent else self.next) - 1

    def add(self, listener: str) -> int:
        """From which number on that listener is one."""
        self._reported[listener] = self.next
        return self.next

    def remove(self, listener: str, notice: bytes) -> None:
        """It is one no more, and must not take what it hears from now on for what follows.

        The others are sent the notice, a block that says so. If there are none, a number is left out: casts go on when
        somebody listens again, and whoever was removed without knowing finds a gap that nobody fills.
        """
        self._reported.pop(listener, None)
        self._forget()
        if self._reported:
            self.push(notice)
        else:
            self.next += 1
            self._lowest = self.next

    def behind(self, listener: str) -> int:
        """Bytes it has not reported, at most."""
        return (self.next - self._reported.get(listener, self.next)) * self._content_bytes

    def push(self, body: bytes) -> None:
        """A block, cut into packets. Without listeners there is nobody to send it to."""
        if not self._reported:
            return
        for at in range(0, len(body), self._content_bytes):
            flags = (FIRST if at == 0 else 0) | (LAST if at + self._content_bytes >= len(body) else 0)
            content = body[at : at + self._content_bytes]
            self._kept[self.next] = Out(self.next, flags, content)
            self._kept_bytes += len(content)
            self._unsent.append(self.next)
            self.next += 1
        while self._kept_bytes > self._kept_max and self._reported:
            last = min(self._reported.values())
            late = [name for name, wanted in self._reported.items() if wanted == last]
            self.slow += late
            for name in late:
                del self._reported[name]
            self._forget()

    def due(self, now_s: float) -> list[Out]:
        """What goes now: repeats first, then as much new as the window allows."""
        out = []
        for _ in range(min(len(self._wanted), REPAIR_SHARE)):
            number = self._wanted.popleft()
            if number in self._kept:
                out.append(self._kept[number])
                self._again[number] = now_s
                self.repeats += 1
        while self._unsent and (self._flying < self._window or not self._flying):
            packet = self._kept[self._unsent.popleft()]
            self._flying += len(packet.content)
            out.append(packet)
        if out:
            self._beat_pause_s = BEAT_FIRST_S
            self._beat_s = now_s + self._beat_pause_s
        return out

    def beat(self, now_s: float) -> int | None:
        """The number to tell in a heartbeat, if one is due: soon after data, then seldom, and never to nobody."""
        if now_s < self._beat_s or not self._reported:
            return None
        if all(wanted > self.sent for wanted in self._reported.values()):
            self._beat_pause_s = BEAT_LAST_S
        self._beat_s = now_s + self._beat_pause_s
        self._beat_pause_s = min(BEAT_LAST_S, self._beat_pause_s * 2)
        return self.sent

    def next_s(self) -> float:
        """When to look again if nothing happens."""
        return self._beat_s if self._reported else float("inf")

    @property
    def has_due(self) -> bool:
        return bool(self._wanted) or bool(self._unsent and (self._flying < self._window or not self._flying))

    def on_report(self, listener: str, wanted: int) -> None:
        """It has everything below this number. A report of the impossible is ignored."""
        known = self._reported.get(listener)
        if known is None or not known < wanted <= self.next:
            return
        self._reported[listener] = wanted
        self._window = min(WINDOW_MOST, self._window + self._content_bytes)
        self._forget()

    def on_ask(self, ranges: list[tuple[int, int]], now_s: float) -> None:
        """Somebody misses these. What was just repeated, or never sent, is not sent for it."""
        queued = set(self._wanted)
        sent = self.sent
        found = False
        for first, last in ranges:
            for number in range(max(first, self._lowest), min(last, sent) + 1):
                if number not in queued and now_s - self._again.get(number, -1.0) >= AGAIN_S:
                    self._wanted.append(number)
                    queued.add(number)
                    found = True
        if found and now_s - self._halved_s >= HALVE_S:
            self._halved_s = now_s
            self._window = max(WINDOW_LEAST, self._content_bytes, self._window // 2)

    def _forget(self) -> None:
        """What all have is not kept; what nobody waits for any more is not even sent."""
        upto = min(self._reported.values(), default=self.next)
        while self._unsent and self._unsent[0] < upto:
            self._unsent.popleft()
        sent = self.sent
        for number in range(self._lowest, upto):
            packet = self._kept.pop(number)
            self._kept_bytes -= len(packet.content)
            self._again.pop(number, None)
            if number <= sent:
                self._flying -= len(packet.content)
        self._lowest = max(self._lowest, upto)
