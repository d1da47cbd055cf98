"""One accepted tunnel, joined to a connection of its own to the Fairlead server: bytes both ways, and nothing else.

Each side pauses the other's reading while it cannot write. An orderly end of one side becomes an orderly end of the
other after everything was passed on; a broken one breaks the other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from fairlead.errors import ConfigError
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.transport import TunnelTransport
from fairlead.tunnel.packets import AbortCode

__all__ = ["Relay", "ServerAddress"]

log = logging.getLogger(__name__)

HIGH_BYTES = 1 << 20
PATIENCE_S = 10.0
"""For the server to take a connection, and to hang up after the client has."""
RESET = struct.pack("ii", 1, 0)


class ServerAddress(NamedTuple):
    """Where the Fairlead server listens: `unix` is a path, otherwise host and port."""

    host: str = ""
    port: int = 0
    unix: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """`HOST:PORT`, `[V6]:PORT` or `unix:PATH`."""
        if text.startswith("unix:"):
            return cls(unix=text.removeprefix("unix:"))
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"{text!r} is not the address of a server: write HOST:PORT, or unix:PATH.")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"unix:{self.unix}" if self.unix else f"{self.host}:{self.port}"


class Side(asyncio.Protocol):
    """One of the two; `other` is where its bytes go."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.transport: asyncio.Transport
        self.other: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def eof_received(self) -> bool:
        return False  # the transport closes when everything is written; `connection_lost` then ends the other


class TunnelSide(Side):
    def connection_lost(self, exc: Exception | None) -> None:
        self.relay.on_tunnel_lost(exc)

    def eof_received(self) -> bool:
        self.relay.on_tunnel_eof()
        return False


class ServerSide(Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()  # until there is somebody to pass it to

    def connection_lost(self, exc: Exception | None) -> None:
        self.relay.on_server_lost(exc)


class Relay:
    """`on_end` is called once, when both sides are gone."""

    def __init__(self, pump: Pump, address: ServerAddress, on_end: Callable[[Relay], None]) -> None:
        self.pump = pump
        self._address = address
        self._on_end = on_end
        self._tunnel: TunnelTransport | None = None
        self._server: asyncio.Transport | None = None
        self._sides = 2
        self._patience: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Reading of the tunnel begins when the server is there; until then its bytes wait in the end."""
        loop = self.pump.loop
        server_side = ServerSide(self)
        try:
            connected: tuple[Any, Any]
            async with asyncio.timeout(PATIENCE_S):
                if self._address.unix:
                    connected = await loop.create_unix_connection(lambda: server_side, self._address.unix)
                else:
                    host, port, _ = self._address
                    connected = await loop.create_connection(lambda: server_side, host, port)
        except OSError as error:  # a TimeoutError is one
            log.warning("The server at %s cannot be reached for a tunnel: %s.", self._address, error)
            self.pump.abort(AbortCode.BROKER_LOST, "the server behind the tunnel cannot be reached")
            self._on_end(self)
            return
        self._server = connected[0]
        tunnel_side = TunnelSide(self)
        self._tunnel = TunnelTransport(self.pump, tunnel_side)
        server_side.other, tunnel_side.other = self._tunnel, self._server
        connected[0].resume_reading()

    def on_tunnel_eof(self) -> None:
        """The server gets everything, then the end. What it still says is thrown away, but read: closing a socket with
        something unread in it would break the connection, and the server might never see the last of what we sent."""
        if self._server is not None and not self._server.is_closing():
            self._server.write_eof()
            self._server.resume_reading()
            self._patience = self.pump.loop.call_later(PATIENCE_S, self._server.abort)

    def on_tunnel_lost(self, error: Exception | None) -> None:
        if self._server is not None:
            if error is not None:
                self._reset(self._server)
            elif self._patience is None:
                self._server.close()
        self._ended_one()

    def on_server_lost(self, error: Exception | None) -> None:
        if self._patience:
            self._patience.cancel()
        if self._tunnel is None:
            self.pump.abort(AbortCode.BROKER_LOST, "the server behind the tunnel hung up at once")
            self._sides -= 1
        elif error is None:
            self._tunnel.close()
        else:
            self._tunnel.abort_with(AbortCode.BROKER_LOST, f"the server's connection broke: {error}")
        self._ended_one()

    def abort(self, code: int, text: str) -> None:
        if self._tunnel is not None:
            self._tunnel.abort_with(code, text)
        else:
            self.pump.abort(code, text)

    @staticmethod
    def _reset(transport: asyncio.Transport) -> None:
        """So that the server sees a broken connection, not an end."""
        found = transport.get_extra_info("socket")
        if found is not None and found.family != socket.AF_UNIX:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport.abort()

    def _ended_one(self) -> None:
        self._sides -= 1
        if not self._sides:
            self._on_end(self)
