"""Where to connect: the URLs of the client library, taken apart.

`fairlead://user:password@host:port`, `fairleads://` for TLS, `fairlead+unix:///path`; and through HTTP (docs/tunnel.md)
`https://user:password@host:port/tunnel/NAME?option=value` and `http://…`. Several hosts are separated by commas, or
given as several URLs. Which of them is tried when, is `Route`'s to say.

`fairlead+directory://user:password@d1:7402,d2:7402/CLUSTER?option=value` names servers of a directory, which knows the
brokers of the cluster; likewise `fairleads+directory://`, and `https+directory://d1/tunnel/NAME/CLUSTER`, `http+…`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from fairlead.errors import ConfigError
from fairlead.tunnel.options import TunnelOptions, changed
from fairlead.tunnel.place import SCHEMES, Place, at, check_plain

__all__ = ["Address", "DirectoryTarget", "Route", "Target", "hinted", "is_directory", "parse", "parse_directory"]

PORT = 7400
DIRECTORY_PORT = 7402
DIRECTORY = "+directory"
HINTS_MAX = 16


class Address(NamedTuple):
    """One place to try: host and port, or the path of a unix socket, or a gateway's."""

    host: str = ""
    port: int = PORT
    path: str = ""
    tunnel: Place | None = None
    name: str = ""
    """What its certificate says, if that is another name than the host."""

    def __str__(self) -> str:
        return str(self.tunnel) if self.tunnel else self.path or f"{self.host}:{self.port}"


class Target(NamedTuple):
    """All a URL says."""

    addresses: list[Address]
    tls: bool = False
    user: str = ""
    password: str = ""
    tunnel: TunnelOptions | None = None
    """How to reach a gateway; None: it is none."""


class DirectoryTarget(NamedTuple):
    """All a URL of a directory says."""

    targets: tuple[str, ...]
    """Its servers, each by an ordinary URL without login, in the order given."""
    cluster: str = ""
    """Whose brokers are wanted; empty: the URL does not say."""
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = MappingProxyType({})
    """What is behind the `?` and not about the tunnel, unread."""
    tunnel: TunnelOptions | None = None
    """How to reach gateways; None: there is none on the way."""

    def __repr__(self) -> str:
        said = {**self._asdict(), "password": "…" if self.password else ""}
        return f"DirectoryTarget({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def parse(urls: str | Sequence[str], tunnel: TunnelOptions | None = None) -> Target:
    """Take a URL apart, or several of one server or cluster; or raise ConfigError. `tunnel`: what URLs leave open."""
    tunnel = tunnel or TunnelOptions()
    if isinstance(urls, str):
        return _parse(urls, tunnel)
    targets = [_parse(url, tunnel) for url in urls]
    if not targets:
        raise ConfigError("There is no URL to connect to.")
    first = targets[0]
    for url, target in zip(urls, targets, strict=True):
        if target[1:] != first[1:]:
            raise ConfigError(f"{_shown(url)!r} has another scheme, login or options than the URL before it.")
    return first._replace(addresses=list(dict.fromkeys(address for target in targets for address in target.addresses)))


def is_directory(urls: str | Sequence[str]) -> bool:
    """Is it of a directory, by its scheme?"""
    first = urls if isinstance(urls, str) else urls[0] if urls else ""
    return first.partition("://")[0].endswith(DIRECTORY)


def parse_directory(urls: str | Sequence[str], tunnel: TunnelOptions | None = None) -> DirectoryTarget:
    """Take apart the URL, or URLs, of one directory; or raise ConfigError. Ordinary URLs of its servers do as well."""
    each = [_parse_directory(url, tunnel) for url in ([urls] if isinstance(urls, str) else urls)]
    if not each:
        raise ConfigError("There is no URL of a directory.")
    first = each[0]
    for other in each[1:]:
        if other[1:] != first[1:]:
            raise ConfigError(f"{other.targets[0]!r} has another login, cluster or options than the URL before it.")
    return first._replace(targets=tuple(dict.fromkeys(target for one in each for target in one.targets)))


def hinted(text: str) -> list[Address]:
    """The addresses a server names as better ones, `host:port` by commas; what cannot be read is left out."""
    found: list[Address] = []
    for host in text.split(",")[:HINTS_MAX]:
        try:
            found.append(_address(host.strip(), host))
        except ConfigError:
            pass
    return found


class Route:
    """Which address to try next: those a server named, then all at random, the one that failed us last at the end.

    So clients spread over the nodes of a cluster, and leave one that is lost (CLU-13, CLU-121). `random` gives a number
    from 0 to 1. A hint is followed once; two servers that point at each other keep nobody busy.
    """

    def __init__(self, addresses: Iterable[Address], random: Callable[[], float]) -> None:
        self._addresses = list(addresses)
        self._random = random
        self._hints: list[Address] = []
        self._followed: set[Address] = set()
        self._last: Address | None = None

    def round(self) -> list[Address]:
        """All of them, in the order to try them."""
        left = list(self._addresses)
        order: list[Address] = []
        while left:
            order.append(left.pop(int(self._random() * len(left)) % len(left)))
        if self._last in order and len(order) > 1:
            order.remove(self._last)
            order.append(self._last)
        self._last = None
        return order

    def hint(self, addresses: Iterable[Address]) -> None:
        """A server says that these are better."""
        self._hints += [address for address in addresses if address not in self._followed][:HINTS_MAX]

    def take_hint(self) -> Address | None:
        """The next address a server named, once each."""
        while self._hints:
            address = self._hints.pop(0)
            if address not in self._followed:
                self._followed.add(address)
                return address
        return None

    def reached(self, address: Address) -> None:
        self._last = address
        self._followed.clear()
        self._hints.clear()


def _parse(url: str, tunnel: TunnelOptions) -> Target:
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
    if scheme in SCHEMES:
        if "?" in login:
            raise ConfigError(f"{_shown(url)!r} has a ? in its login: write %3F.")
        return _tunnel(url, scheme, user, password, hosts + slash + path, tunnel)
    if scheme not in ("fairlead", "fairleads"):
        raise ConfigError(
            f"{_shown(url)!r} does not begin with fairlead://, fairleads://, fairlead+unix://, https:// or http://."
        )
    addresses = [_address(host, url) for host in hosts.split(",") if host]
    return Target(addresses or [Address("localhost")], scheme == "fairleads", user, password)


def _parse_directory(url: str, tunnel: TunnelOptions | None) -> DirectoryTarget:
    scheme, _, rest = url.partition("://")
    base = scheme.removesuffix(DIRECTORY)
    if base == scheme:
        plain = parse(url, tunnel)
        servers = tuple(_server(address, plain.tls) for address in plain.addresses)
        return DirectoryTarget(servers, "", plain.user, plain.password, {}, plain.tunnel)
    if base not in ("fairlead", "fairleads", *SCHEMES):
        raise ConfigError(
            f"{_shown(url)!r} does not begin with fairlead+directory://, fairleads+directory://, https+directory:// "
            "or http+directory://."
        )
    if "?" in rest.partition("/")[0].rpartition("@")[0]:
        raise ConfigError(f"{_shown(url)!r} has a ? in its login, or an @ behind it: write %3F, or %40.")
    place, _, query = rest.partition("#")[0].partition("?")
    authority, _, path = place.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    gateway, cluster = _gateway(path) if base in SCHEMES else ("", path.strip("/"))
    if "/" in cluster:
        raise ConfigError(f"{_shown(url)!r} has more behind the hosts than the name of one cluster; write %2F for /.")
    options, tunnelled = _options(url, query, of_tunnel=base in SCHEMES)
    addresses = [_address(host, url, DIRECTORY_PORT) for host in hosts.split(",") if host]
    addresses = addresses or [Address("localhost", DIRECTORY_PORT)]
    reached = None
    if base in SCHEMES:
        reached = changed(tunnel or TunnelOptions(), tunnelled)
        places = [at(base, address.host, address.port, gateway) for address in addresses]
        for found in places:
            check_plain(found, reached.allow_plain)
        servers = tuple(str(found) for found in places)
    else:
        servers = tuple(_server(address, base == "fairleads") for address in addresses)
    servers = tuple(dict.fromkeys(servers))
    return DirectoryTarget(servers, unquote(cluster), unquote(user), unquote(password), options, reached)


def _gateway(path: str) -> tuple[str, str]:
    """`gw/tunnel/NAME/CLUSTER`: the path of the tunnel, and the cluster; without a tunnel it is the usual one."""
    parts = [part for part in path.split("/") if part]
    if "tunnel" not in parts:
        return "", "/".join(parts)
    end = parts.index("tunnel") + 2
    return "/".join(parts[:end]), "/".join(parts[end:])


def _options(url: str, query: str, *, of_tunnel: bool) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """What the query says to whoever connects, and to the tunnel."""
    options: dict[str, str] = {}
    tunnelled: list[tuple[str, str]] = []
    for name, text in parse_qsl(query, keep_blank_values=True):
        if of_tunnel and name in TunnelOptions._fields and name != "rules":
            tunnelled.append((name, text))
        elif name in options:
            raise ConfigError(f"{_shown(url)!r} says {name[:40]!r} twice.")
        else:
            options[name] = text
    return options, tunnelled


def _server(address: Address, tls: bool) -> str:
    if address.tunnel is not None:
        return str(address.tunnel)
    if address.path:
        return f"fairlead+unix://{quote(address.path)}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'fairleads' if tls else 'fairlead'}://{host}:{address.port}"


def _tunnel(url: str, scheme: str, user: str, password: str, rest: str, tunnel: TunnelOptions) -> Target:
    place, _, query = rest.partition("#")[0].partition("?")
    hosts, _, path = place.partition("/")
    options = changed(tunnel, parse_qsl(query, keep_blank_values=True))
    addresses = []
    for text in hosts.split(","):
        address = _address(text, url, SCHEMES[scheme])
        gateway = at(scheme, address.host, address.port, path)
        check_plain(gateway, options.allow_plain)
        addresses.append(address._replace(tunnel=gateway))
    return Target(addresses, scheme == "https", user, password, options)


def _address(text: str, url: str, otherwise: int = PORT) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # no port; `[::1]` has colons of its own
        host, port = text, str(otherwise)
    whole = host.startswith("[") == host.endswith("]")
    host = host.removeprefix("[").removesuffix("]")
    if not whole or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{_shown(url)!r} has an address that is not host:port.")
    return Address(host, int(port))


def _shown(url: str) -> str:
    """The URL without its password, wherever that ends: for people."""
    return re.sub(r"^((?:[^:/@]*://)?[^:@]*):.*@", r"\1:…@", url, flags=re.DOTALL)
