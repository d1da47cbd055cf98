"""Where brokers dial in (TUN-43): each connection is one link, which carries all tunnels of its broker.

A link that is not read fast enough loses packets, and the ends send them again: nobody else waits for it (TUN-47).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from fairlead.broker.edge.tls import ask_for_certificates, make_context
from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen
from fairlead.security.certificates import names_in
from fairlead.tunnel.edge.gateway.settings import GatewaySettings
from fairlead.tunnel.edge.widths import widen
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX
from fairlead.tunnel.packets import HEADER, PAYLOAD_MAX, BadPacket, Body, cut

__all__ = ["Link", "LinkOwner", "address_text", "bind_private", "link_context", "listen_for_links"]

OUT_MAX = 16 << 20
"""Bytes that wait for a link; beyond it packets with data are dropped."""
CONTROL_BYTES = 512
"""A packet up to this size opens, closes or acknowledges something: it is dropped much later."""
CLOSE_S = 5.0


class LinkOwner(Protocol):
    """What a link asks of its gateway."""

    def link_made(self, link: Link) -> bool: ...
    def link_packets(self, link: Link, body: Body) -> None: ...
    def link_broken(self, link: Link, why: str) -> None: ...
    def link_lost(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """One connection from a broker. Its owner names it by `key`."""

    def __init__(self, owner: LinkOwner) -> None:
        self.key = 0
        self.is_known = False
        """It has said who it is; its first packet may be larger than others."""
        self.dropped = 0
        self.peer = ""
        self.names: frozenset[str] | None = None
        """Those its certificate vouches for; None: it was not asked for one."""
        self._owner = owner
        self._in = bytearray()
        self._need = HEADER.size
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        widen(transport)
        # What waits is counted here, so the transport need not say when it has had enough.
        self.peer = address_text(transport.get_extra_info("peername"))
        if shown := transport.get_extra_info("peercert"):
            self.names = frozenset((*names_in(shown, "cn"), *names_in(shown, "san-dns")))
        if not self._owner.link_made(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if len(self._in) + len(data) < self._need:
            self._in += data
            return
        try:
            payload_max = PAYLOAD_MAX if self.is_known else LINK_PAYLOAD_MAX
            body = cut(self._in, payload_max, data=data, with_data=False)
        except BadPacket as error:
            self._in.clear()
            self._owner.link_broken(self, str(error))
            return
        # Nothing is looked at again before the packet that has begun is there, however small the pieces are.
        self._need = HEADER.size if len(self._in) < HEADER.size else HEADER.unpack_from(self._in)[2]
        if body.damaged and not body.packets and not self.is_known:
            self._owner.link_broken(self, "its first packet is damaged")
        elif body.packets or body.damaged:
            self.is_known = True
            self._owner.link_packets(self, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._closing is not None:
            self._closing.cancel()
        self._out.clear()
        self._owner.link_lost(self)

    def send(self, packets: list[bytes]) -> None:
        """Leaves with everything else of this turn of the loop."""
        if self._transport is None:
            return
        waiting = self._out_bytes + self._transport.get_write_buffer_size()
        if not self._out:
            self._loop.call_soon(self._flush)
        for packet in packets:
            if waiting > OUT_MAX and (len(packet) > CONTROL_BYTES or waiting > 2 * OUT_MAX):
                self.dropped += 1
                continue
            self._out.append(packet)
            self._out_bytes += len(packet)
            waiting += len(packet)

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.writelines(self._out)
        self._out = []
        self._out_bytes = 0

    def close(self) -> None:
        """After what was said last has left, if the other side takes it."""
        self._flush()
        if self._transport is not None and self._closing is None:
            self._transport.close()
            self._closing = self._loop.call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def listen_for_links(
    settings: GatewaySettings, owner: LinkOwner, inherited: socket.socket | None
) -> list[asyncio.Server]:
    """At the configured address, and at a listening socket that was handed in."""
    loop = asyncio.get_running_loop()
    make: Callable[[], Link] = lambda: Link(owner)  # noqa: E731
    servers: list[asyncio.Server] = []
    if inherited is not None:
        inherited.setblocking(False)
        kind = loop.create_unix_server if inherited.family == socket.AF_UNIX else loop.create_server
        servers.append(await kind(make, sock=inherited))
    if settings.link_listen:
        address = parse_listen(settings.link_listen)
        try:
            if isinstance(address, UnixAddress):
                servers.append(await loop.create_unix_server(make, sock=bind_private(address.path)))
            else:
                context = link_context(settings)
                timeout_s = settings.patience_s if context else None
                servers.append(
                    await loop.create_server(
                        make, address.host or None, address.port, ssl=context, ssl_handshake_timeout=timeout_s
                    )
                )
        except OSError as error:
            for server in servers:
                server.close()
            raise ConfigError(f"cannot listen for links on {address}: {error.strerror or error}") from None
    return servers


def link_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """TLS as brokers see it; with `link_ca` each must show a certificate with the name of its server."""
    if not settings.certificate:
        return None
    context = make_context(settings.certificate, settings.key)
    if settings.link_ca:
        ask_for_certificates(context, settings.link_ca, require=True)
    return context


def bind_private(path: str) -> socket.socket:
    """A unix socket that only this account can open, from its first moment on."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if Path(path).is_socket():
            Path(path).unlink()
        listener.bind(path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def address_text(address: object) -> str:
    """How an address is called: HOST:PORT, or unix:PATH."""
    if isinstance(address, tuple) and len(address) >= 2:
        return str(TcpAddress(str(address[0]), int(address[1])))
    return f"unix:{address.decode() if isinstance(address, bytes) else address or ''}"
