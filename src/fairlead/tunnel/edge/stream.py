"""A tunnel as a program sees it: read, write, flush, close, with time limits. Nothing of the carrier shows (TUN-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fairlead.errors import ConnectionLost, RequestTimeout
from fairlead.tunnel.edge.pump import Pump, TunnelStatus, lost
from fairlead.tunnel.end import State
from fairlead.tunnel.packets import AbortCode
from fairlead.tunnel.rules import Option

__all__ = ["TunnelStream"]

DISCARD_BYTES = 1 << 20


class TunnelStream:
    """One tunnel; `async with` closes it in the orderly way, or aborts it when the block failed."""

    def __init__(self, pump: Pump) -> None:
        self.pump = pump
        self._waiters: list[asyncio.Future[None]] = []
        self._discarding = False
        pump.set_owner(self._on_change)
        pump.when_done(self._on_change)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()

    async def opened(self, timeout_s: float | None = None) -> None:
        """Waits until both ends may send."""
        await self._until(lambda: self.pump.end.state is not State.OPENING, timeout_s, "The tunnel did not open")
        if self.pump.end.state is State.ABORTED:
            raise lost(self.pump.end)

    async def read(self, limit: int = 1 << 16, timeout_s: float | None = None) -> bytes:
        """What is there, up to `limit` bytes; waits for the first of them.

        Empty: the other end has closed in the orderly way, and everything was read.
        """
        pump, end = self.pump, self.pump.end
        if limit <= 0:
            return b""
        while True:
            if data := pump.read(limit):
                return data
            if end.is_eof() or self._discarding:
                return b""
            self._check_running()
            await self._until(
                lambda: bool(end.readable()) or end.is_eof() or self._has_ended(), timeout_s, "Nothing to read came"
            )

    async def readexactly(self, count: int, timeout_s: float | None = None) -> bytes:
        """IncompleteReadError when the stream ends before; the time limit is for each part that comes."""
        parts: list[bytes] = []
        left = count
        while left:
            data = await self.read(left, timeout_s)
            if not data:
                raise asyncio.IncompleteReadError(b"".join(parts), count)
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    async def write(self, data: bytes | bytearray | memoryview, timeout_s: float | None = None) -> None:
        """Returns when all of it is in the transmit buffer; waits while that is full (TUN-65).

        After a RequestTimeout the connection is of no more use to write to: nobody knows how much was taken.
        """
        pump, end = self.pump, self.pump.end
        left = memoryview(data)
        while left:
            self._check_writable()
            left = left[pump.write(bytes(left[: end.room()])) :]
            if left:
                await self._until(lambda: end.room() > 0 or not self._is_writable(), timeout_s, "There was no room")

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the other end has acknowledged everything written."""
        await self._until(lambda: self._has_ended() or self._is_flushed(), timeout_s, "Not everything was acknowledged")
        if self.pump.end.state is State.ABORTED or not self._is_flushed():
            raise lost(self.pump.end)

    def write_eof(self) -> None:
        """Nothing more will be written; what the other end has written can still be read (TUN-90)."""
        self.pump.close()

    async def close(self) -> bool:
        """Orderly. Returns when both ends have finished, or when the linger time has passed without progress.

        Did the other end take everything? What it still sends is thrown away: read to the end before, if it matters.
        """
        self.pump.close()
        self._discarding = True
        self.pump.wake()
        await self._until(self._has_ended, None, "")
        return self.pump.end.state is State.CLOSED

    def abort(self, code: int = AbortCode.PROGRAM, text: str = "given up by the program") -> None:
        self.pump.abort(code, text)

    def set_option(self, option: Option, value: int) -> None:
        self.pump.set_option(option, value)

    def status(self) -> TunnelStatus:
        return self.pump.status()

    def release(self) -> None:
        """Forgets the tunnel at once. An end that has closed otherwise stays to repeat its last ACK (TUN-92)."""
        self.pump.stop()

    # ── Waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_change(self) -> None:
        while self._discarding and self.pump.read(DISCARD_BYTES):
            pass
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def _until(self, ready: Callable[[], bool], timeout_s: float | None, text: str) -> None:
        if ready():
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    waiter = self.pump.loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise RequestTimeout(f"{text} within {timeout_s:g} s.") from None

    def _has_ended(self) -> bool:
        return self.pump.stopped or self.pump.end.state in (State.CLOSED, State.ABORTED)

    def _is_flushed(self) -> bool:
        status = self.pump.end.status(self.pump.loop.time())
        return not status.unacknowledged and not status.waiting_bytes

    def _is_writable(self) -> bool:
        return not self.pump.stopped and self.pump.end.state in (State.OPENING, State.OPEN)

    def _check_running(self) -> None:
        if self._has_ended():
            raise lost(self.pump.end)

    def _check_writable(self) -> None:
        self._check_running()
        if not self._is_writable():
            raise ConnectionLost("The tunnel is closed for writing.")
