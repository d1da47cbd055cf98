"""One line to a feed adapter: bytes of a TCP connection as frames, words as bytes. What they mean is its owner's."""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import Final, NamedTuple, Protocol, cast

from msgspec import Struct

from fairlead.errors import ConfigError, RemoteProtocolError
from fairlead.feeds.frames import ACCEPTED_BYTES_MAX, Frame, FrameParser, word_frame

__all__ = ["FeedLine", "LineAddress", "LineOwner", "dial", "read_address"]

TLS: Final = "fairleads://"
PLAIN: Final = "fairlead://"
UNSENT_BYTES_MAX: Final = 4 << 20
"""An adapter that lets so much of what is said to it lie is as good as gone."""


class LineAddress(NamedTuple):
    host: str
    port: int
    tls: bool


def read_address(text: str) -> LineAddress:
    """`HOST:PORT`, with `fairleads://` before it if the adapter speaks TLS; ConfigError if it is none."""
    tls = text.startswith(TLS)
    rest = text.removeprefix(TLS if tls else PLAIN).rstrip("/")
    host, colon, port = rest.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"An adapter's address is HOST:PORT or {TLS}HOST:PORT, not {text!r}.")
    return LineAddress(host.removeprefix("[").removesuffix("]"), int(port), tls)


class LineOwner(Protocol):
    """Who hears of it."""

    def on_frames(self, line: FeedLine, frames: list[Frame]) -> None: ...

    def on_line_lost(self, line: FeedLine, why: str) -> None:
        """It broke, was dropped, or could not be made."""


class FeedLine(asyncio.Protocol):
    """`adapter` is who was dialled. After `on_line_lost` nothing more is heard of it, also when it was dropped here."""

    def __init__(self, owner: LineOwner, adapter: str, incarnation: int, hello: Struct) -> None:
        self.adapter = adapter
        self.incarnation = incarnation
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is welcomed, or lost before that."""
        self.is_up = False
        self.is_paused = False
        self.blocks = 0
        self._owner: LineOwner | None = owner
        self._hello = hello
        self._parser = FrameParser(ACCEPTED_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    # What the loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if self._owner is None:
            self._transport.abort()
        else:
            self.say(self._hello)

    def data_received(self, data: bytes) -> None:
        owner = self._owner
        if owner is None:
            return
        try:
            owner.on_frames(self, self._parser.feed(data))
        except RemoteProtocolError as error:
            self.drop(f"{self.adapter} does not keep to the rules: {error}")

    def pause_writing(self) -> None:
        self.drop(f"{self.adapter} takes nothing in any more.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(f"The line to {self.adapter} broke: {exc}." if exc else f"{self.adapter} closed the line.")

    # What its owner says.

    def accepted(self) -> None:
        """The adapter said welcome."""
        self.is_up = True
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def say(self, word: Struct) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(word_frame(word))

    def pause(self) -> None:
        """Read no more until `resume`: the adapter keeps what is to come."""
        if self._transport is not None and not self.is_paused and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_paused:
            self.is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def drop(self, why: str) -> None:
        """Leave it at once; the owner is told, so that all lines end the same way."""
        if self._transport is not None:
            self._transport.abort()
        self._lost(why)

    def _lost(self, why: str) -> None:
        owner, self._owner = self._owner, None
        if not self.welcomed.done():
            self.welcomed.set_result(None)
        if owner is not None:
            owner.on_line_lost(self, why)


@cache
def _trusting_the_system() -> ssl.SSLContext:
    return ssl.create_default_context()


async def dial(line: FeedLine, address: LineAddress, tls: ssl.SSLContext | None, timeout_s: float) -> None:
    """Connect it; OSError or TimeoutError. The rest comes by the line itself."""
    context = (tls or _trusting_the_system()) if address.tls else None
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().create_connection(lambda: line, address.host, address.port, ssl=context)
