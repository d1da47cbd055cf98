"""What `listen` may say: HOST:PORT, [IPV6]:PORT, or unix:PATH."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from fairlead.errors import ConfigError


class TcpAddress(NamedTuple):
    """Where to listen for TCP; an empty host means every interface, port 0 any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # A name may resolve to anything; treat it as reachable.

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """A unix stream socket, reachable from this host only."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_listen(text: str) -> TcpAddress | UnixAddress:
    """The address `text` names, or a ConfigError that shows how to write one."""
    if text.startswith("unix:"):
        if path := text.removeprefix("unix:"):
            return UnixAddress(path)
        raise ConfigError(f"listen address {text!r} has no path; write unix:/run/fairlead.sock")
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen address {text!r} has no port; write HOST:PORT, such as 127.0.0.1:7400, or unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"listen address {text!r} is ambiguous; put an IPv6 address into brackets: [{host}]:{port}")
    return TcpAddress("" if host == "*" else host, int(port))
