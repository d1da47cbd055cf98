"""What all tunnels of a link write through: one write per turn, bounded, and nobody is starved by a busy neighbour."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Outlet", "Waiting"]

SHARE_BYTES = 256 << 10
"""What one tunnel may give at a time."""
LIMIT_BYTES = 4 << 20
"""What may wait for the network in all."""


class Waiting(Protocol):
    """A tunnel that found no room."""

    def on_room(self) -> None: ...


class Outlet:
    """Those who found no room wait in a line; as room comes, the first of it are called, a share each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._soon: list[bytes] = []
        self._soon_bytes = 0
        self._line: dict[Waiting, None] = {}
        self._called: set[Waiting] = set()

    def open(self, transport: asyncio.WriteTransport) -> None:
        # Whenever the line is left waiting, more than `high` waits for the network: `resume_writing` will come.
        transport.set_write_buffer_limits(high=LIMIT_BYTES // 2, low=LIMIT_BYTES // 4)
        self._transport = transport
        self.call_next()

    def close(self) -> None:
        """What waits is lost; the ends send it again."""
        self._transport = None
        self._soon.clear()
        self._soon_bytes = 0
        self._called.clear()

    def forget(self, who: Waiting) -> None:
        self._line.pop(who, None)
        self._called.discard(who)

    def room(self, who: Waiting) -> int:
        free = self._free()
        if free > 0 and (not self._line or who in self._called):
            return min(free, SHARE_BYTES)
        self._line[who] = None
        return 0

    def send(self, who: Waiting | None, packets: list[bytes]) -> None:
        """At once in order, in one piece with what others send in this turn.

        `who` None is the link itself: it asks for no room, and what does not fit is lost.
        """
        if self._transport is None or (who is None and self._free() <= 0):
            return
        if not self._soon:
            self._loop.call_soon(self._write)
        self._soon += packets
        self._soon_bytes += sum(map(len, packets))
        if who is not None:
            self._called.discard(who)

    def call_next(self) -> None:
        """To be called when the network has taken something."""
        shares = self._free() // SHARE_BYTES
        if not self._line or shares <= 0:
            return
        for who in list(self._line)[:shares]:
            del self._line[who]
            self._called.add(who)
            who.on_room()
        # Somebody who was called may have had nothing after all: the next in line must not wait for another event.
        self._loop.call_soon(self.call_next)

    async def drained(self, timeout_s: float) -> None:
        """Waits until the network has taken everything, if it does in time."""
        until_s = self._loop.time() + timeout_s
        while self._transport is not None and self._transport.get_write_buffer_size() and self._loop.time() < until_s:
            await asyncio.sleep(0.01)

    def waiting_bytes(self) -> int:
        return self._soon_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def _free(self) -> int:
        return 0 if self._transport is None else LIMIT_BYTES - self.waiting_bytes()

    def _write(self) -> None:
        packets, self._soon = self._soon, []
        self._soon_bytes = 0
        if self._transport is not None and packets:
            self._transport.writelines(packets)
            self.call_next()
