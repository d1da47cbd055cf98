"""uvicorn's protocols with an end to their patience: requests that do not arrive, answers that are not read.

Without it a client that sends one byte a minute, or never reads, keeps its connection and what waits for it for ever;
and one that sends trailers, pipelined requests, pings or empty fragments without end makes our memory grow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from fairlead.tunnel.edge.gateway.pieces import Pieces
from fairlead.tunnel.edge.gateway.replies import Gathered
from fairlead.tunnel.edge.gateway.requests import is_loopback
from fairlead.tunnel.gateway.limits import neighbourhood

__all__ = ["PatientHttp", "PatientWebSocket"]

HEADER_BYTES_MAX = 64 << 10
FRAMING = 8
"""Bytes on the line for one of a body, at most: in the smallest chunks it is six."""
PIPELINED_MAX = 16
"""Requests that wait for the answer to one before them. Our clients, and proxies, send none."""
FRAGMENTS_MAX = 1024
LARGE = 16 << 10


class TooManyAtOnce(Exception):
    """Ends the reading of a connection."""


class PatientHttp(HttpToolsProtocol):
    """What is no method and public is set by a subclass made for the server."""

    patience_s = 30.0
    connections_max = 8192
    connections_per_address = 4096
    addresses: ClassVar[Counter[str]] = Counter()
    """How many connections each has; those of this host, where a proxy may speak for many, are not counted."""
    _address = ""
    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _loose_bytes = 0
    """What came and is no body: headers, trailers, the framing of chunks."""
    _is_websocket = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._replies = Gathered(transport, self.loop)
        self._await_headers()
        address = self.client[0] if self.client else ""
        self._address = "" if is_loopback(address) else neighbourhood(address)
        self.addresses[self._address] += 1
        too_many = self._address and self.addresses[self._address] > self.connections_per_address
        if too_many or len(self.connections) > self.connections_max:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._loose_bytes += len(data)
        super().data_received(data)
        # What came behind the headers in one piece was counted too; only headers that never end are too long.
        if self._loose_bytes > HEADER_BYTES_MAX:
            self.transport.abort()
        elif self._is_idle():
            self._await_headers()  # it was no request, but it has stopped the clock of idle connections

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._loose_bytes = 0
        self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is not None:  # else it is a trailer, and nobody reads those
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._arriving = cancelled(self._arriving)
        if len(self.pipeline) >= PIPELINED_MAX:
            raise TooManyAtOnce  # the parser turns it into a 400, and reads no further
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = self._replies  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._loose_bytes -= FRAMING * len(body)
        if len(body) >= LARGE and not self.cycle.body:
            self.cycle.body = Pieces()  # type: ignore[assignment]
        super().on_body(body)

    def handle_websocket_upgrade(self) -> None:
        self._is_websocket = True
        self._uncount()  # there are no more of them than tunnels
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = cancelled(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._uncount()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # also after an error

    def _uncount(self) -> None:
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]

    def _is_idle(self) -> bool:
        """Nothing is being asked, and no clock runs."""
        if self._is_websocket or self._arriving is not None or self.timeout_keep_alive_task is not None:
            return False
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _await_headers(self) -> None:
        self._arriving = self._arriving or self.loop.call_later(self.patience_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._arriving, self._unread = cancelled(self._arriving), cancelled(self._unread)


class PatientWebSocket(WebSocketsSansIOProtocol):
    patience_s = 30.0
    _unread: asyncio.TimerHandle | None = None

    def handle_ping(self) -> None:
        """Whoever does not read the answers to its pings gets none, instead of filling our memory with them."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        """Empty fragments count nothing against the size of a message, and would have no end."""
        if len(self.frames) >= FRAGMENTS_MAX:
            self.transport.abort()
        else:
            super().handle_cont(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = cancelled(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread = cancelled(self._unread)
        super().connection_lost(exc)


def cancelled(timer: asyncio.TimerHandle | None) -> Any:
    if timer is not None:
        timer.cancel()
    return None
