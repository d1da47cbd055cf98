"""A tunnel as an asyncio transport: what an `asyncio.Protocol` gets in place of a TCP connection.

An orderly close of the other end is `eof_received` and, at last, `connection_lost(None)`; an abort is
`connection_lost` with the reason. While reading is paused nothing is consumed, so the window closes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from fairlead.errors import ConnectionLost
from fairlead.tunnel.edge.pump import Pump, lost
from fairlead.tunnel.end import State
from fairlead.tunnel.packets import AbortCode

__all__ = ["TunnelTransport"]

CHUNK_BYTES = 1 << 20
TURN_BYTES = 4 << 20
HIGH_BYTES = 1 << 16


class TunnelTransport(asyncio.Transport):
    """Calls `protocol.connection_made` in the next turn of the loop; the pump's end must be open by then."""

    def __init__(self, pump: Pump, protocol: asyncio.BaseProtocol, extra: dict[str, Any] | None = None) -> None:
        super().__init__(extra)
        self.pump = pump
        self._protocol: Any = protocol
        self._waiting: deque[memoryview] = deque()  # what the end has no room for yet
        self._waiting_bytes = 0
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._paused_reading = False
        self._paused_writing = False
        self._eof_told = False
        self._eof_wanted = False
        self._closing = False
        self._lost = False
        self._given_up = False
        pump.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._protocol.connection_made(self)
        self.pump.set_owner(self._on_change)
        self.pump.when_done(self._on_done)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost or not data:
            return
        if self._eof_wanted:
            raise RuntimeError("Cannot write after write_eof().")
        if not isinstance(data, bytes):
            data = bytes(data)  # it must not change under us
        taken = 0 if self._waiting else self.pump.write(data)
        if taken < len(data):
            self._waiting.append(memoryview(data)[taken:])
            self._waiting_bytes += len(data) - taken
            self._maybe_pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """The orderly close begins; tunnels have no half-closed state in which one writes on (TUN-90)."""
        if not self._eof_wanted:
            self._eof_wanted = True
            if not self._waiting:
                self.pump.close()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._maybe_pause_writing()

    def _maybe_pause_writing(self) -> None:
        if self._waiting_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def _write_on(self) -> None:
        while self._waiting and (room := self.pump.end.room()):
            data = self._waiting[0]
            taken = self.pump.write(data[:room])
            self._waiting_bytes -= taken
            if taken < len(data):
                self._waiting[0] = data[taken:]
                break
            self._waiting.popleft()
        if self._paused_writing and self._waiting_bytes <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()
        if self._eof_wanted and not self._waiting:
            self.pump.close()

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self._wake()

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    def _read_on(self) -> None:
        left = TURN_BYTES
        while not self._paused_reading and not self._lost:
            data = self.pump.read(min(left, CHUNK_BYTES))
            if not data:
                return
            if not self._closing:
                # After `close` the other end's rest is consumed unseen, or its close would never be reached.
                self._protocol.data_received(data)
            left -= len(data)
            if left <= 0:
                self.pump.loop.call_soon(self._wake)  # the rest after others had their turn
                return

    # ── The end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Orderly: everything written is sent first."""
        if not self._closing and not self._lost:
            self._closing = True
            self._paused_reading = False
            self.write_eof()
            self._wake()

    def abort(self) -> None:
        self.abort_with(AbortCode.PROGRAM, "given up by the program")

    def abort_with(self, code: int, text: str) -> None:
        if not self._lost:
            self._closing = self._given_up = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self.pump.abort(code, text)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "tunnel":
            return self.pump.status()
        return super().get_extra_info(name, default)

    def _on_change(self) -> None:
        if self._lost:
            return
        if self._waiting:
            self._write_on()
        self._read_on()
        end = self.pump.end
        if end.state is State.ABORTED and (not end.readable() or self._closing):
            self._lose()
            return
        if end.is_eof() and not self._eof_told and not self._paused_reading:
            self._eof_told = True
            if not self._closing:
                # What was written goes out before our own close, whatever the protocol answers: the other end takes
                # it until then.
                self._protocol.eof_received()
                self.close()
        if end.state is State.CLOSED and (self._eof_told or self._closing):
            self._lose()

    def _wake(self) -> None:
        if self.pump.stopped:
            self.pump.loop.call_soon(self._on_change)  # there are no rounds any more, but there may be bytes to read
        else:
            self.pump.wake()

    def _on_done(self) -> None:
        self._on_change()
        if not self._lost and self.pump.end.state is not State.ABORTED:
            self._lose()  # stopped from elsewhere

    def _lose(self) -> None:
        self._lost = True
        end = self.pump.end
        error = None if end.state is State.CLOSED or self._given_up else lost(end)
        if error is None and self._waiting_bytes:
            # An end takes nothing more once the other has closed (TUN-90); whoever wrote it must know.
            error = ConnectionLost(f"The other end closed the tunnel; {self._waiting_bytes} bytes were not sent.")
        self._waiting.clear()
        self._waiting_bytes = 0
        self.pump.loop.call_soon(self._protocol.connection_lost, error)
