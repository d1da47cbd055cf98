"""Which forward proxy leads to a gateway: the one named, else `HTTPS_PROXY` or `HTTP_PROXY`, but for `NO_PROXY`.

A gateway on this machine is reached directly unless a proxy is named for it.
"""

from __future__ import annotations

import urllib.request
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from fairlead.errors import ConfigError
from fairlead.tunnel.place import Place

__all__ = ["Proxy", "proxy_for"]

PORT = 80


class Proxy(NamedTuple):
    """Its login is for it alone: `str()` shows none, and the gateway never sees it."""

    host: str
    port: int
    user: str | None = None
    password: str = ""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"http://{self.authority}"


def proxy_for(place: Place, named: str | None) -> Proxy | None:
    """The proxy to use; None: go there directly."""
    if named is not None:
        return _parse(named, "proxy") if named else None
    if place.is_loopback:
        return None
    found = urllib.request.getproxies_environment().get(place.scheme)
    if not found or urllib.request.proxy_bypass(f"{place.host}:{place.port}"):
        return None
    return _parse(found, f"{place.scheme.upper()}_PROXY")


def _parse(text: str, name: str) -> Proxy:
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host or url.scheme != "http":
        raise ConfigError(f"{name} has to be http://[USER:PASSWORD@]HOST:PORT; other kinds of proxies are not used.")
    user = None if url.username is None else unquote(url.username)
    return Proxy(host, port or PORT, user, unquote(url.password or ""))
