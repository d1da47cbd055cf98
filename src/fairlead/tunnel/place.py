"""Where a tunnel leads: the gateway's URL, and the name of the broker there.

`http(s)://HOST:PORT/PREFIX/tunnel/NAME`; without a name, or without any path, the broker is `fairlead`, which is what a
server calls itself at its own gateway.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from fairlead.errors import ConfigError

__all__ = ["SCHEMES", "Place", "at", "check_plain", "parse"]

SCHEMES = {"http": 80, "https": 443}
SERVER = "fairlead"
HOST = re.compile(r"[A-Za-z0-9._~%:-]+")
LOOPBACK = re.compile(r"localhost|.*\.localhost|127(\.\d+){3}|::1", re.IGNORECASE)


class Place(NamedTuple):
    """A broker at a gateway."""

    scheme: str
    host: str
    port: int
    path: str = "/tunnel"
    """Where requests go, percent-encoded."""
    server: str = SERVER

    @property
    def authority(self) -> str:
        """Host and port, as a URL and the Host header have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def is_loopback(self) -> bool:
        return LOOPBACK.fullmatch(self.host) is not None

    def query(self, kind: str, connection_id: int = 0, hold_s: float | None = None) -> str:
        """What a request is about (TUN-25)."""
        said = {"ServerName": self.server, "Type": kind}
        if connection_id:
            said["ConnId"] = str(connection_id)
        if hold_s is not None:
            said["Hold"] = f"{hold_s:g}"
        return urlencode(said, quote_via=quote)

    def __str__(self) -> str:
        return f"{self.origin}{self.path}/{quote(self.server, safe='')}"


def at(scheme: str, host: str, port: int | None, path: str) -> Place:
    """The place a URL's parts name; ConfigError if its path is not one of a tunnel."""
    parts = path.strip("/").split("/") if path.strip("/") else ["tunnel"]
    if parts[-1] == "tunnel":
        prefix, server = parts, SERVER
    elif len(parts) > 1 and parts[-2] == "tunnel":
        prefix, server = parts[:-1], unquote(parts[-1])
    else:
        raise ConfigError(f"/{path.strip('/')} is no path of a tunnel: write {scheme}://HOST/tunnel/NAME.")
    if not re.fullmatch(r"[!-~]*", "/".join(prefix)) or len(server.encode(errors="replace")) > 255:
        raise ConfigError(f"/{path.strip('/')[:300]!r} is no path of a tunnel: percent-encode what is not ASCII.")
    if not HOST.fullmatch(host):
        raise ConfigError(f"{host[:300]!r} is no name of a host; one with other letters is written as xn--….")
    return Place(scheme, host, port or SCHEMES[scheme], "/" + "/".join(prefix), server)


def parse(url: str) -> Place:
    """The place a plain URL names, without login or options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in SCHEMES or "@" in parts.netloc or parts.query or port == 0:
        raise ConfigError("A gateway is named by http(s)://HOST:PORT/PREFIX/tunnel/NAME, without login and options.")
    return at(parts.scheme, host, port, parts.path)


def check_plain(place: Place, allow_plain: bool) -> bool:
    """Is a warning due? ConfigError where one is not enough: whoever overhears the token has the tunnel (TUN-64).

    On one machine nobody is in between.
    """
    if place.scheme == "https" or place.is_loopback:
        return False
    if not allow_plain:
        raise ConfigError(
            f"{place.origin} is plain HTTP: whoever listens on the way can take the tunnel over. Use https://, or "
            "allow it with TunnelOptions(allow_plain=True) or ?allow_plain=1 in the URL."
        )
    return True
