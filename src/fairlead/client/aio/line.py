"""One transport: bytes between a socket and the carrier, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from fairlead.client.aio.access import refused_certificate
from fairlead.client.link import Link
from fairlead.errors import ConnectionLost

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["Line"]

WRITE_HIGH_BYTES = 1 << 20


class Line(asyncio.Protocol):
    """`ready` is done when the link is the session's, or fails with the reason why it never will be."""

    def __init__(self, carrier: Carrier, resume: str | None) -> None:
        self._carrier = carrier
        self._resume = resume
        self.ready: asyncio.Future[None] = carrier.loop.create_future()
        self.gone: asyncio.Future[None] = carrier.loop.create_future()
        self.paused = False
        self.transport: asyncio.Transport
        self.link: Link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.link = self._carrier.session.open_link(self._carrier.loop.time(), self._resume)
        self._carrier.add_line(self)

    def data_received(self, data: bytes) -> None:
        self._carrier.on_data(self, data)

    def pause_writing(self) -> None:
        self.paused = True
        self._carrier.set_brake()

    def resume_writing(self) -> None:
        self.paused = False
        self._carrier.set_brake()

    def connection_lost(self, exc: Exception | None) -> None:
        error = (
            exc if exc is None or isinstance(exc, ConnectionLost) else ConnectionLost(f"The connection broke: {exc}.")
        )
        self.link.reason = self.link.reason or refused_certificate(exc)
        self.fail(self.link.reason or error or ConnectionLost("The server closed the connection."))
        if not self.gone.done():
            self.gone.set_result(None)
        self._carrier.on_lost(self, error)

    def fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # whoever waits is told; nobody need be

    def write(self, frames: list[bytes]) -> None:
        if not self.transport.is_closing():
            self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
