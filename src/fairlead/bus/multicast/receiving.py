"""Another node's stream, as it comes: put in order, gaps asked for, blocks made whole.

A request waits a random moment; if another node is heard asking for the same, ours waits for that repair. Pauses grow
with each try, and a gap that stays for too long is `lost`: order from that node begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead.bus.frames import BLOCK_BYTES_MAX
from fairlead.bus.multicast.packets import FIRST, LAST, RANGES_MAX

FIRST_ASK_S: Final = 0.01
ASK_S: Final = 0.02
ASK_LAST_S: Final = 0.08
REPORT_BYTES: Final = 32 << 10
REPORT_S: Final = 0.005
AHEAD_MAX: Final = 65_536  # packets; beyond it the sender has not kept to the window
AHEAD_BYTES_MAX: Final = 16 << 20


class Receiver:
    """`lost` and `report_due` are looked at by the edge after every call."""

    def __init__(self, position: int, patience_s: float, draw: Callable[[], float]) -> None:
        self.wanted = position  # the number that comes next
        self.lost = ""
        self.asks = 0
        self.doubles = 0
        self._patience_s = patience_s
        self._draw = draw
        self._ahead: dict[int, tuple[int, bytes]] = {}
        self._ahead_bytes = 0
        self._highest = position - 1
        self._gap_s = -1.0  # since when something is missing
        self._gap_at = 0
        self._ask_s = 0.0
        self._pause_s = ASK_S
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._unreported = 0
        self._reported = position
        self._report_s = 0.0

    def on_data(self, number: int, flags: int, content: memoryview, now_s: float) -> list[tuple[int, bytes]]:
        """Blocks that are whole with this packet, in order, each with the number of its last packet."""
        if number < self.wanted or number in self._ahead:
            self.doubles += 1
            return []
        if number - self.wanted > AHEAD_MAX or self._ahead_bytes > AHEAD_BYTES_MAX:
            self.lost = "it is too far ahead"
            return []
        self._highest = max(self._highest, number)
        blocks: list[tuple[int, bytes]] = []
        if number != self.wanted:
            self._ahead[number] = flags, bytes(content)
            self._ahead_bytes += len(content)
        else:
            self._append(flags, bytes(content), blocks)
            while (found := self._ahead.pop(self.wanted, None)) is not None:
                self._ahead_bytes -= len(found[1])
                self._append(*found, blocks)
        self._look(now_s)
        return blocks

    def on_beat(self, highest: int, now_s: float) -> None:
        """The sender says how far it is."""
        if highest - self.wanted > AHEAD_MAX:
            self.lost = "it is too far ahead"
        elif highest > self._highest:
            self._highest = highest
            self._look(now_s)

    def on_others_ask(self, ranges: list[tuple[int, int]], now_s: float) -> None:
        """Another node has asked the same sender; what it asked for comes to us too."""
        if self._gap_s >= 0 and any(first <= self.wanted <= last for first, last in ranges):
            self._ask_s = max(self._ask_s, now_s + self._pause_s * (0.5 + self._draw()))

    def ask(self, now_s: float) -> list[tuple[int, int]]:
        """What to ask for now; mostly nothing."""
        if self._gap_s < 0:
            return []
        if now_s - self._gap_s > self._patience_s:
            self.lost = f"packet {self.wanted} did not come"
        if self.lost or now_s < self._ask_s:
            return []
        self._ask_s = now_s + self._pause_s * (0.5 + self._draw())
        self._pause_s = min(ASK_LAST_S, self._pause_s * 2)
        self.asks += 1
        return self.missing()

    def missing(self) -> list[tuple[int, int]]:
        """The first gaps, as first and last number."""
        gaps: list[tuple[int, int]] = []
        at = self.wanted
        for number in [*sorted(self._ahead), self._highest + 1]:
            if number > at:
                gaps.append((at, number - 1))
            if len(gaps) == RANGES_MAX:
                break
            at = max(at, number + 1)
        return gaps

    def report(self, now_s: float) -> int | None:
        """The number wanted next, when it is time to say so: after some bytes, or some time."""
        if self.wanted == self._reported:
            return None
        if self._unreported < REPORT_BYTES and now_s < self._report_s:
            return None
        self._reported, self._unreported = self.wanted, 0
        self._report_s = now_s + REPORT_S
        return self.wanted

    def next_s(self) -> float:
        """When to look again if nothing happens."""
        next_s = self._ask_s if self._gap_s >= 0 else float("inf")
        return min(next_s, self._report_s) if self.wanted != self._reported else next_s

    def _append(self, flags: int, content: bytes, blocks: list[tuple[int, bytes]]) -> None:
        self.wanted += 1
        self._unreported += len(content)
        if bool(flags & FIRST) == bool(self._parts):
            self.lost = "a block that does not begin, or does not end"
            return
        self._parts.append(content)
        self._parts_bytes += len(content)
        if self._parts_bytes > BLOCK_BYTES_MAX:
            self.lost = "a block that is too long"
        elif flags & LAST:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            blocks.append((self.wanted - 1, body))
            self._parts, self._parts_bytes = [], 0

    def _look(self, now_s: float) -> None:
        """Is there a gap, and is it a new one?"""
        if self._highest < self.wanted:
            self._gap_s = -1.0
        elif self._gap_s < 0 or self._gap_at != self.wanted:
            if self._gap_s < 0:
                self._ask_s = now_s + FIRST_ASK_S * self._draw()
            self._gap_s, self._gap_at = now_s, self.wanted
            self._pause_s = ASK_S
