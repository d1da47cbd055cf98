"""Listening sockets: made once by the supervisor, held by it and by the dispatchers, so that no connect is refused
while one dispatcher follows another (SRV-89)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from fairlead.errors import ConfigError
from fairlead.runtime.addresses import TcpAddress, UnixAddress, parse_listen


def listen(text: str, backlog: int) -> socket.socket:
    """A listening, non-blocking socket for one address of the configuration."""
    address = parse_listen(text)
    try:
        if isinstance(address, UnixAddress):
            return _listen_unix(Path(address.path).expanduser(), backlog)
        return _listen_tcp(address, backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"The address {text} is in use by another program; choose another with --listen."
            ) from None
        raise ConfigError(f"Cannot listen on {text}: {error.strerror or error}.") from None


def _listen_tcp(address: TcpAddress, backlog: int) -> socket.socket:
    found = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
    )
    # An empty host means every interface: one dual-stack socket where there is IPv6.
    family, kind, protocol, _, where = next((one for one in found if one[0] == socket.AF_INET6), found[0])
    if address.host:
        family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(address.host)))
        sock.bind(where)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_unix(path: Path, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left by a server that was killed
        mask = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False


def url(sock: socket.socket, scheme: str = "fairlead") -> str:
    """What a client on this host types to reach a listening socket."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"{scheme}+unix://{name}"
    host, port = name[0], name[1]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port(sock: socket.socket) -> int | None:
    """The TCP port, or None for a unix socket."""
    return None if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])
