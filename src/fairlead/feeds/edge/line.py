"""One connection at an adapter's port, as its transport sees it: frames in, buffers out, as much as the socket takes.

Nothing is queued for a line: a program's place is a cursor into the retained buffer, and its answers are read from
there when the socket has room.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from fairlead.errors import RemoteProtocolError
from fairlead.feeds.frames import WORD, FrameParser, word_frame
from fairlead.feeds.words import Closing, Refusal

if TYPE_CHECKING:
    from msgspec import Struct

    from fairlead.feeds.edge.answering import Piece
    from fairlead.feeds.edge.line_server import LineServer

__all__ = ["Line"]

ABORT_S: Final = 1.0
"""A line that is over has so long to take in why."""


class Line(asyncio.Protocol):
    """Waits for its first word; then a program's line, or a link of another adapter."""

    def __init__(self, server: LineServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = FrameParser()
        self.token = ""
        self.who = ""  # the client or adapter, once it was let in
        self.is_link = False
        self.is_over = False
        self.cursor: int | None = None  # the next number to be sent; None: heartbeats only
        self.stop_after: int | None = None  # the last number to be sent
        self.answers: deque[Iterator[Piece]] = deque()
        self.paused_s: float | None = None  # since when the socket has had no room
        self.sent_s = 0.0

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        made = transport.get_extra_info("socket")
        if made is not None:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Whoever is gone without a word, or takes nothing in, does not keep its place for ever.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._server.stalled_s * 1000))
        high = self._server.send_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        self._server.on_arrival(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._parser.feed(data):
                if self.is_over:
                    return
                if frame.kind != WORD:
                    raise RemoteProtocolError("Whoever dials an adapter says words only.")
                self._server.on_word(self, frame.payload)
        except RemoteProtocolError as error:
            self.refuse("bad-request", str(error))

    def pause_writing(self) -> None:
        self.paused_s = self._server.now_s()

    def resume_writing(self) -> None:
        self.paused_s = None
        self._server.on_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._transport = None
        self.answers.clear()
        self._server.on_lost(self)

    # What the server does.

    def accept(self, who: str, token: str, *, is_link: bool) -> None:
        """It is somebody we know."""
        self.who, self.token, self.is_link = who, token, is_link
        self._parser.set_limit()

    def say(self, word: Struct) -> None:
        self.write(word_frame(word))

    def _open_transport(self) -> asyncio.Transport | None:
        """None while it is closing too: uvloop raises when something is written then."""
        is_open = self._transport is not None and not self.is_over and not self._transport.is_closing()
        return self._transport if is_open else None

    def write(self, data: bytes) -> None:
        if (transport := self._open_transport()) is not None:
            transport.write(data)
            self.sent_s = self._server.now_s()

    def write_all(self, buffers: Piece) -> None:
        if (transport := self._open_transport()) is not None:
            transport.writelines(cast("Any", buffers))
            self.sent_s = self._server.now_s()

    @property
    def has_room(self) -> bool:
        """Does its socket take more?"""
        return self.paused_s is None and not self.is_over

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def refuse(self, code: str, why: str) -> None:
        """Say why it is not let in, or not any more, and end it."""
        self.end(Refusal(code=code, why=why[:4096]))

    def close(self, why: str) -> None:
        self.end(Closing(why=why[:4096]))

    def end(self, word: Struct | None = None) -> None:
        if self.is_over or self._transport is None:
            return
        if word is not None:
            self.say(word)
        self.is_over = True
        self.cursor = None
        self.answers.clear()
        self._transport.close()
        asyncio.get_running_loop().call_later(ABORT_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
