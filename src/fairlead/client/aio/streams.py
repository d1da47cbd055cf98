"""Bodies that need not fit in memory: read from a message piece by piece, or read from a source to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from io import UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard, cast

from fairlead.errors import BadParameter

if TYPE_CHECKING:
    from fairlead.client.aio.consuming import Consumer
    from fairlead.client.durable.downloads import Download
    from fairlead.wire.entry_codec import Delivered

__all__ = ["Readable", "Source", "Stream", "is_stream"]


class Readable(Protocol):
    """A file, as far as it is needed here."""

    def read(self, size: int = ..., /) -> Any: ...


def is_stream(body: object) -> TypeGuard[Readable | AsyncIterable[bytes]]:
    """Something to be read piece by piece."""
    return hasattr(body, "read") or hasattr(body, "__aiter__")


class Stream:
    """The body of a received message: iterate, `read`, or `save`. Closing early tells the server to stop sending."""

    def __init__(self, consumer: Consumer, delivered: Delivered, epoch: int) -> None:
        self._consumer = consumer
        self._delivered = delivered
        self._epoch = epoch
        self._rest = b""
        self._download: Download | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._whole: bytes | None = None if delivered.large else delivered.body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._next():
            yield piece

    async def piece(self) -> bytes:
        """The next piece as it came; empty at the end."""
        return await self._next()

    async def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, empty at the end; all that are left without `size`."""
        pieces: list[bytes] = []
        left = size
        while left:
            piece = await self._next()
            if not piece:
                break
            if 0 <= left < len(piece):
                piece, self._rest = piece[:left], piece[left:]
            pieces.append(piece)
            if left > 0:
                left -= len(piece)
        return b"".join(pieces)

    async def save(self, path: str | Path) -> int:
        """Write what is left to a file; how many bytes that are."""
        written = 0
        with await asyncio.to_thread(Path(path).open, "wb") as file:
            async for piece in self:
                await asyncio.to_thread(file.write, piece)
                written += len(piece)
        return written

    async def close(self) -> None:
        if self._download is not None:
            self._download.close()
        self._rest, self._whole = b"", b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _next(self) -> bytes:
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        if self._whole is not None:
            piece, self._whole = self._whole, b""
            return piece
        if self._download is None:
            self._download = self._consumer.machine.download(self._delivered, self._epoch, self._wake)
        while (found := self._download.take()) is None:
            if self._download.is_read:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return found

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Source:
    """What is sent as a very large message: bytes, a file, or an asynchronous iterator of bytes.

    One whose `length` is known can be read again from any offset, should the server have lost what it had of it.
    """

    def __init__(self, body: bytes | Readable | AsyncIterable[bytes]) -> None:
        self._rest = memoryview(b"")
        self._file: Readable | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._start = 0  # of a file: where it stood
        self._whole = b""
        self.length: int | None = None
        self.position = 0
        if isinstance(body, bytes):
            self._whole, self._rest, self.length = body, memoryview(body), len(body)
        elif isinstance(body, AsyncIterable):
            self._pieces = aiter(body)
        else:
            self._file = body

    async def measure(self) -> None:
        """Learn how long it is, where that can be known."""
        if self._file is not None:
            self._start, self.length = await asyncio.to_thread(_left, self._file)

    async def seek(self, position: int) -> None:
        """Read on from there, counted from where it began."""
        if self._file is None:
            self._rest = memoryview(self._whole)[position:]
        else:
            self._rest = memoryview(b"")
            await asyncio.to_thread(cast("Any", self._file).seek, self._start + position)
        self.position = position

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end."""
        while not self._rest:
            piece = await self._more(size)
            if piece is None:
                return b""
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                raise BadParameter("A stream gives bytes: open the file in binary mode.")
            self._rest = memoryview(piece)
        found, self._rest = bytes(self._rest[:size]), self._rest[size:]
        self.position += len(found)
        return found

    async def _more(self, size: int) -> Any:
        """The next piece of the source; None at its end."""
        if self._file is not None:
            return await asyncio.to_thread(self._file.read, size) or None
        return None if self._pieces is None else await anext(self._pieces, None)


def _left(file: Any) -> tuple[int, int | None]:
    """Where it stands, and how much follows, where that can be known."""
    try:
        at = file.tell()
        end = file.seek(0, 2)
        file.seek(at)
    except (AttributeError, OSError, UnsupportedOperation, ValueError):
        return 0, None
    return int(at), int(end) - int(at)
