"""Joins one end, its driver and the loop's clock; whoever owns it reads and writes through it.

However much happens in one turn of the loop, there is one round at its end: the owner is told once, then what there is
to send goes to the driver in one batch. The owner comes first, so that what it reads and writes travels along.

The pump is the driver's `Sink`: make the driver, make the pump, `driver.start(pump)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from fairlead.errors import ConnectionLost
from fairlead.tunnel.end import End, EndStatus, State
from fairlead.tunnel.packets import AbortCode, Packet
from fairlead.tunnel.port import Driver
from fairlead.tunnel.rules import Option

__all__ = ["Pump", "TunnelStatus", "lost"]

TIMER_MIN_S = 0.001


class TunnelStatus(NamedTuple):
    """One tunnel, for people (TUN-102)."""

    end: EndStatus
    carrier: str


class Pump:
    """`on_change` is called once per turn in which anything may have changed: something to read, room, the end."""

    def __init__(
        self, end: End, driver: Driver, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None] | None = None
    ) -> None:
        self.end = end
        self.driver = driver
        self.loop = loop
        self.stopped = False
        self._on_change = on_change
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._period = (end.rules.pull_period_s, end.rules.hold_s)
        self._done: list[Callable[[], None]] = []
        driver.set_period(*self._period)
        self.wake()

    # ── What the owner does ──────────────────────────────────────────────────────────────────────────────────────

    def set_owner(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.wake()

    def when_done(self, call: Callable[[], None]) -> None:
        """Called when nobody has to remember the tunnel any more and its driver is closed; soon, if that is past."""
        if self.stopped:
            self.loop.call_soon(call)
        else:
            self._done.append(call)
            self.wake()

    def read(self, limit: int) -> bytes:
        data = self.end.read(limit, self.loop.time())
        if data:
            self.wake()
        return data

    def write(self, data: bytes | memoryview) -> int:
        """Bytes taken, which must not change any more; what is left has to wait for room."""
        taken = self.end.write(data, self.loop.time())
        self.wake()
        return taken

    def close(self) -> None:
        self.end.close(self.loop.time())
        self.wake()

    def abort(self, code: int, text: str) -> None:
        self.end.abort(code, text, self.loop.time())
        self.wake()

    def set_option(self, option: Option, value: int) -> None:
        self.end.set_option(option, value, self.loop.time())
        self.wake()

    def status(self) -> TunnelStatus:
        return TunnelStatus(self.end.status(self.loop.time()), self.driver.carrier)

    def stop(self) -> None:
        """At once and for good, without a word to the other end; an end that still runs does not end by it."""
        if self.stopped:
            return
        self.stopped = True
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.driver.close()
        for call in self._done:
            call()
        self._done.clear()

    # ── What the driver says (Sink) ──────────────────────────────────────────────────────────────────────────────

    def on_packets(self, packets: list[Packet]) -> None:
        self.end.on_packets(packets, self.loop.time())
        self.wake()

    def on_damaged(self, count: int) -> None:
        self.end.on_damaged(count)

    def on_room(self) -> None:
        self.wake()

    def on_restored(self) -> None:
        self.end.on_restored(self.loop.time())
        self.wake()

    def on_gone(self, code: int, text: str) -> None:
        self.end.on_gone(code, text, self.loop.time())
        self.wake()

    # ── One round per turn ───────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        if not self._scheduled and not self.stopped:
            self._scheduled = True
            self.loop.call_soon(self._round)

    def _round(self) -> None:
        if not self.stopped:
            self.end.on_time(self.loop.time())
            self._tell()
        if not self.stopped:  # nor by its owner
            self._move()

    def _tell(self) -> None:
        if self._on_change:
            try:
                self._on_change()
            except Exception as error:
                self.loop.call_exception_handler({"message": "Failed in the owner of a tunnel", "exception": error})
                self.end.abort(AbortCode.PROGRAM, "the program failed", self.loop.time())

    def _move(self) -> None:
        end, told = self.end, self.end.state
        sent = self._send()
        if end.state is not told:
            self._tell()  # time has passed, and a limit with it
        period = (end.rules.pull_period_s, end.rules.hold_s)
        if period != self._period:
            self._period = period
            self.driver.set_period(*period)
        self._scheduled = False
        if end.is_done():
            self.stop()
        elif sent and end.has_packets(self.loop.time()):
            self.wake()
        else:
            self._set_timer()

    def _send(self) -> bool:
        # Only those who have something ask for room: a shared carrier keeps a queue of those who were told to wait.
        now_s = self.loop.time()
        if not self.end.has_packets(now_s):
            return False
        room = self.driver.room()
        if room <= 0:
            return False
        packets = self.end.take_packets(room, now_s)
        if packets:
            self.driver.send(packets)
        return bool(packets)

    def _set_timer(self) -> None:
        # A timer that is early does no harm, and moving it with every packet would cost more than its call.
        at = max(self.end.next_at(), self.loop.time() + TIMER_MIN_S)
        if at >= self._timer_at:
            return
        if self._timer:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = inf
        self.wake()


def lost(end: End) -> ConnectionLost:
    """Why an aborted end has ended, as an error."""
    if end.state is not State.ABORTED or end.reason is None:
        return ConnectionLost("The tunnel is closed.")
    return ConnectionLost(f"The tunnel broke off: {end.reason.text or f'code {end.reason.code}'}.")
