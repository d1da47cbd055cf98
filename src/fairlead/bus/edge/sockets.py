"""Sockets of the stream carriers: TCP between hosts, Unix sockets in a directory within one."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Final

from fairlead.bus.config import split_address
from fairlead.errors import ConfigError

NOBODY: Final = {errno.ECONNREFUSED, errno.ENOENT}
PATH_BYTES_MAX: Final = 107
WILDCARDS: Final = ("0.0.0.0", "::")


def listen_tcp(address: str) -> tuple[socket.socket, str]:
    """The listening socket, and the address it really has (port 0 is any)."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(f"the bus cannot listen on {address}: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    return sock, f"{shown}:{sock.getsockname()[1]}"


def listen_local(directory: str, bus: str, node: str) -> tuple[socket.socket, str]:
    """A socket in the directory, named after bus and node; one that a former life left there is replaced."""
    Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    path = f"{directory}/{bus}.{node}.sock"
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ConfigError(f"{path} is too long for a socket: at most {PATH_BYTES_MAX} bytes")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        sock.bind(path)
        Path(path).chmod(0o600)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(f"the bus cannot listen on {path}: {error.strerror}") from None
    return sock, path


def unlisten(sock: socket.socket, address: str, inode: int) -> None:
    """Close it; a socket file goes too, unless a later life of the node has put its own there."""
    sock.close()
    if "/" in address:
        with contextlib.suppress(OSError):
            if inode_of(address) == inode:
                Path(address).unlink()


def neighbours(directory: str, bus: str) -> list[str]:
    """Sockets of nodes in the directory."""
    with contextlib.suppress(OSError):
        return [str(path) for path in sorted(Path(directory).glob(f"{bus}.*.sock"))]
    return []


def call(address: str) -> tuple[socket.socket, int]:
    """A socket on its way to there, and an error number (EINPROGRESS: not known yet)."""
    flags = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    if "/" in address:
        sock = socket.socket(socket.AF_UNIX, flags)
        return sock, sock.connect_ex(address)
    host, port = split_address(address)
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return socket.socket(socket.AF_INET, flags), errno.EHOSTUNREACH
    sock = socket.socket(family, flags)
    return sock, sock.connect_ex(where)


def inode_of(address: str) -> int:
    return Path(address).stat().st_ino if "/" in address else 0


def tune(sock: socket.socket) -> None:
    """What is flushed should go at once."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reachable(address: str, sock: socket.socket) -> str:
    """The address a node gives of itself; where it listens on all interfaces, the one it calls from."""
    if "/" in address:
        return address
    host, port = split_address(address)
    if host not in WILDCARDS:
        return address
    seen = sock.getpeername()[0]
    return f"[{seen}]:{port}" if ":" in seen else f"{seen}:{port}"
