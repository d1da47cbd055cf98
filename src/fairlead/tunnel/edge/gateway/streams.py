"""A WebSocket of a tunnel (TUN-39): packets leave in frames as fast as it takes them; what it does not take is lost."""

from __future__ import annotations

import asyncio

__all__ = ["Shared", "Stream"]

FRAME_BYTES = 256 << 10


class Shared:
    """The room all streams of a gateway have together."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self.limit = limit


class Stream:
    """What waits for one WebSocket. Packets that find no room are dropped, and the broker's end sends them again."""

    def __init__(self, key: int, shared: Shared, limit: int) -> None:
        self.key = key
        self.dropped = 0
        self.end: tuple[int, str] | None = None
        self._shared = shared
        self._limit = limit
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()

    def send(self, packets: list[bytes]) -> None:
        for packet in packets:
            if self._bytes + len(packet) > self._limit or self._shared.bytes + len(packet) > self._shared.limit:
                self.dropped += 1
                continue
            self._waiting.append(packet)
            self._count(len(packet))
        self._wake.set()

    def close(self, code: int, reason: str) -> None:
        if self.end is None:
            self.end = code, reason
        self._wake.set()

    async def frame(self) -> bytes:
        """The next frame; empty when the stream is over."""
        while not self._waiting:
            if self.end is not None:
                return b""
            self._wake.clear()
            await self._wake.wait()
        size, taken = 0, 0
        for packet in self._waiting:
            if taken and size + len(packet) > FRAME_BYTES:
                break
            size, taken = size + len(packet), taken + 1
        frame = b"".join(self._waiting[:taken])
        del self._waiting[:taken]
        self._count(-size)
        return frame

    def discard(self) -> None:
        """Nobody reads it any more."""
        self._waiting.clear()
        self._count(-self._bytes)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._shared.bytes += size
