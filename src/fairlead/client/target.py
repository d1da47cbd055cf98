"""Where to connect: the URLs of the client library, taken apart.

`fairlead://user:password@host:port`, `fairleads://` for TLS, `fairlead+unix:///path`; several hosts are
separated by commas and tried in turn.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from fairlead.errors import ConfigError

__all__ = ["Address", "Target", "parse"]

PORT = 7400


class Address(NamedTuple):
    """One place to try: host and port, or the path of a unix socket."""

    host: str = ""
    port: int = PORT
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Target(NamedTuple):
    """All a URL says."""

    addresses: list[Address]
    tls: bool = False
    user: str = ""
    password: str = ""


def parse(url: str) -> Target:
    """Take a URL apart, or raise ConfigError."""
    # Not urlsplit: how it takes several bracketed hosts differs between versions of Python.
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    user, password = unquote(user), unquote(password)
    if scheme == "fairlead+unix":
        path = unquote(slash + path)
        if hosts or not path:
            raise ConfigError(f"{_shown(url)!r} names no socket: write fairlead+unix:///path.")
        return Target([Address(path=path)], False, user, password)
    if scheme not in ("fairlead", "fairleads"):
        raise ConfigError(f"{_shown(url)!r} does not begin with fairlead://, fairleads:// or fairlead+unix://.")
    addresses = [_address(host, url) for host in hosts.split(",") if host]
    return Target(addresses or [Address("localhost")], scheme == "fairleads", user, password)


def _address(text: str, url: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # no port; `[::1]` has colons of its own
        host, port = text, str(PORT)
    whole = host.startswith("[") == host.endswith("]")
    host = host.removeprefix("[").removesuffix("]")
    if not whole or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{_shown(url)!r} has an address that is not host:port.")
    return Address(host, int(port))


def _shown(url: str) -> str:
    """The URL without its password, wherever that ends: for people."""
    return re.sub(r"^((?:[^:/@]*://)?[^:@]*):.*@", r"\1:…@", url, flags=re.DOTALL)
