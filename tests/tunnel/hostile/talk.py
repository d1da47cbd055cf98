"""What the two programs at the ends of a tunnel say to each other, written against streams only.

The client says in its first bytes what it wants: numbered bytes in both directions, an echo, a flood, or a deaf ear.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

from tests.tunnel.hostile.numbered import Check, digest, numbered

WISH = struct.Struct(">4sBQQQ")
VERDICT = struct.Struct(">4s32s200s")
PIECE = 256 << 10


class Mode(IntEnum):
    TRANSFER = 1
    ECHO = 2
    FLOOD = 3
    DEAF = 4


class Stream(Protocol):
    async def read(self, limit: int = ..., timeout_s: float | None = ...) -> bytes: ...
    async def readexactly(self, count: int, timeout_s: float | None = ...) -> bytes: ...
    async def write(self, data: bytes, timeout_s: float | None = ...) -> None: ...
    async def close(self) -> bool: ...


class Wish(NamedTuple):
    mode: Mode
    up: int = 0
    down: int = 0
    stream: int = 0

    def encode(self) -> bytes:
        return WISH.pack(b"TALK", self.mode, self.up, self.down, self.stream)


class Result(NamedTuple):
    """Of a transfer, as its client knows it; `fault` is empty when every byte was right in both directions."""

    fault: str
    up: int
    down: int


async def send_numbered(stream: Stream, number: int, size: int) -> None:
    for at in range(0, size, PIECE):
        await stream.write(numbered(number, at, min(PIECE, size - at)))


async def take_numbered(stream: Stream, number: int, size: int, took: Callable[[int], None] = lambda _: None) -> Check:
    check = Check(number)
    while check.position < size:
        data = await stream.read(min(PIECE, size - check.position))
        if not data:
            check.fault = check.fault or f"the stream ended at byte {check.position} of {size}"
            break
        check.take(data)
        took(len(data))
    return check


async def transfer(stream: Stream, up: int, down: int, number: int, took: Callable[[int], None]) -> Result:
    """Both ways at once; then the server's verdict about what it got."""
    await stream.write(Wish(Mode.TRANSFER, up, down, number).encode())
    sending = asyncio.ensure_future(send_numbered(stream, number, up))
    try:
        check = await take_numbered(stream, number + 1, down, took)
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    if check.fault:
        return Result(f"down: {check.fault}", up, check.position)
    mark, total, fault = VERDICT.unpack(await stream.readexactly(VERDICT.size))
    text = fault.rstrip(b"\0").decode()
    if mark != b"DONE" or text or total != digest(number, up):
        return Result(f"up: {text or 'the sums differ'}", up, down)
    return Result("", up, down)


async def serve_one(stream: Stream) -> None:
    """The server's part, for one tunnel."""
    mark, mode, up, down, number = WISH.unpack(await stream.readexactly(WISH.size))
    assert mark == b"TALK"
    if mode == Mode.ECHO:
        while data := await stream.read(PIECE):
            await stream.write(data)
    elif mode == Mode.FLOOD:
        at = 0
        while True:
            await stream.write(numbered(number, at, PIECE))
            at += PIECE
    elif mode == Mode.DEAF:
        await asyncio.Event().wait()
    else:
        sending = asyncio.ensure_future(send_numbered(stream, number + 1, down))
        try:
            check = await take_numbered(stream, number, up)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await stream.write(VERDICT.pack(b"DONE", check.sum.digest(), check.fault.encode()[:200]))
        await stream.read()  # the client's end of stream
    await stream.close()
