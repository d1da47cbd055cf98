"""uvicorn's protocols with an end to their patience: requests that do not arrive, answers that are not read.

Without it a client that sends one byte a minute, or never reads, keeps its connection and what waits for it for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

__all__ = ["PatientHttp", "PatientWebSocket"]

HEADER_BYTES_MAX = 64 << 10


class PatientHttp(HttpToolsProtocol):
    """`patience_s` and `connections_max` are set by a subclass made for the server."""

    patience_s = 30.0
    connections_max = 8192
    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if len(self.connections) > self.connections_max:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._arriving is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        # What came behind the headers in one piece was counted too; only headers that never end are too long.
        if self._arriving is not None and self._header_bytes > HEADER_BYTES_MAX:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._arriving = cancelled(self._arriving)
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
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
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # also after an error

    def _await_headers(self) -> None:
        self._header_bytes = 0
        self._arriving = self._arriving or self.loop.call_later(self.patience_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._arriving, self._unread = cancelled(self._arriving), cancelled(self._unread)


class PatientWebSocket(WebSocketsSansIOProtocol):
    patience_s = 30.0
    _unread: asyncio.TimerHandle | None = None

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
