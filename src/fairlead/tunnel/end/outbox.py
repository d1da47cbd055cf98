"""What was written and is in no packet yet: it becomes packets as late as possible, so small writes travel together.

Options go before bytes that still wait, the close behind all of them.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

from fairlead.tunnel.packets import Kind

__all__ = ["OPTION", "Outbox"]

OPTION = Struct(">ii")
SMALL = 4096
"""Writes shorter than this are gathered in one piece; longer ones are kept as they came."""


class Outbox:
    def __init__(self, payload_max: int) -> None:
        self.payload_max = payload_max
        self.bytes = 0
        self.options: dict[int, int] = {}
        self.is_closing = False
        self._pieces: deque[memoryview] = deque()
        self._tail = bytearray()

    def __bool__(self) -> bool:
        return self.bytes > 0 or self.is_closing or bool(self.options)

    def packets(self) -> int:
        """How many the bytes will make at least."""
        return -(-self.bytes // self.payload_max)

    def write(self, data: bytes | memoryview) -> None:
        size = len(data)
        self.bytes += size
        if size < SMALL:
            self._tail += data
            if len(self._tail) >= self.payload_max:
                self._end_tail()
            return
        self._end_tail()
        self._pieces.append(memoryview(data))

    def next_size(self, limit: int) -> int:
        """Bytes of payload the next packet will have."""
        if self.options:
            return OPTION.size
        return min(self.bytes, limit)

    def take(self, limit: int) -> tuple[Kind, bytes]:
        """The next packet; of data at most `limit` bytes."""
        if self.options:
            option = next(iter(self.options))
            return Kind.CONN_OPTION, OPTION.pack(option, self.options.pop(option))
        if self.bytes:
            return Kind.DATA, self._take_bytes(min(self.bytes, limit))
        assert self.is_closing
        self.is_closing = False
        return Kind.CONN_CLOSE, b""

    def clear(self) -> None:
        self.bytes, self.is_closing = 0, False
        self.options.clear()
        self._pieces.clear()
        self._tail = bytearray()

    def _take_bytes(self, size: int) -> bytes:
        self.bytes -= size
        pieces, parts = self._pieces, []
        while size:
            if not pieces:
                self._end_tail()
            piece = pieces[0]
            if len(piece) > size:
                parts.append(piece[:size])
                pieces[0] = piece[size:]
                break
            parts.append(pieces.popleft())
            size -= len(piece)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _end_tail(self) -> None:
        if self._tail:
            self._pieces.append(memoryview(self._tail))
            self._tail = bytearray()
