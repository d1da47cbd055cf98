"""What a request says: its parameters (TUN-25), its token, whom it comes from. Anything unclear is refused in words."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hmac import compare_digest
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

__all__ = [
    "Asked",
    "BadRequest",
    "address_of",
    "bearer",
    "is_loopback",
    "is_near_caller",
    "parse_query",
    "place_of",
    "refuse_pages",
    "single",
]

FIELDS_MAX = 16
ID_MAX = 2**32 - 1
SERVER_BYTES_MAX = 255
SHORT_BYTES = 256
SHORT_KEPT = 4096
"""Queries of up to so many bytes, and how many of them are remembered: a tunnel's are always the same two."""
TYPES = ("connect", "push", "pull", "stream")
FORWARDED = {b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"}


class BadRequest(Exception):
    """Answered with `status` and the text."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Asked(NamedTuple):
    """The parameters of a request."""

    kind: str
    server: str
    connection_id: int | None
    hold_s: float | None


def parse_query(query: bytes) -> Asked:
    return parse_short(query) if len(query) <= SHORT_BYTES else parse(query)


def parse(query: bytes) -> Asked:
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX, separator="&"
        )
    except ValueError:  # neither ASCII nor UTF-8, or very many
        raise BadRequest(400, "The parameters cannot be read: they are percent-encoded UTF-8, a few of them.") from None
    named = dict(pairs)
    if len(named) != len(pairs):
        raise BadRequest(400, "A parameter is given twice.")
    kind = named.get("Type", "")
    if kind not in TYPES:
        raise BadRequest(400, "Type is one of connect, push, pull and stream.")
    server = named.get("ServerName", "")
    if not 1 <= len(server.encode()) <= SERVER_BYTES_MAX:
        raise BadRequest(400, f"ServerName is the name of a broker, 1 to {SERVER_BYTES_MAX} bytes.")
    connection_id = number(named["ConnId"]) if "ConnId" in named else None
    if connection_id is None and kind in ("pull", "stream"):
        raise BadRequest(400, f"A {kind} needs ConnId.")
    return Asked(kind, server, connection_id, seconds(named["Hold"]) if "Hold" in named else None)


parse_short = lru_cache(SHORT_KEPT)(parse)


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= ID_MAX):
        raise BadRequest(400, f"ConnId is a number from 1 to {ID_MAX}.")
    return int(text)


def seconds(text: str) -> float:
    plain = text.replace(".", "", 1)
    if not (plain.isascii() and plain.isdigit() and len(text) <= 12):
        raise BadRequest(400, "Hold is a number of seconds.")
    return float(text)


def single(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The value of a header; empty when it is not there or, which nobody honest does, there twice."""
    found = [value for key, value in headers if key.lower() == name]
    return found[0].decode("latin-1").strip() if len(found) == 1 else ""


def refuse_pages(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """A page in a browser could open tunnels for whoever wrote it, to servers that only this host can reach."""
    if any(name.lower() == b"origin" for name, _ in headers):
        raise BadRequest(403, "Pages in browsers cannot use tunnels; programs can.")


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of `Authorization: Bearer TOKEN`; empty without one."""
    scheme, _, token = single(headers, b"authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def place_of(scope: Mapping[str, Any]) -> str:
    """The path below where the application is mounted. Servers differ in whether `path` has `root_path` in front."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.strip("/")


def address_of(scope: Mapping[str, Any]) -> str:
    """The client's address, for limits; all who come over a unix socket are one."""
    client = scope.get("client")
    return str(client[0]) if client and client[0] else "unix"


def is_near_caller(scope: Mapping[str, Any], status_token: str) -> bool:
    """May the caller see the status? Whoever has the token, or is on this host without anybody in between.

    The name in `Host` is looked at, since a page in a browser on this host may be somebody else's.
    """
    headers = scope["headers"]
    if status_token and compare_digest(bearer(headers).encode(), status_token.encode()):
        return True
    if any(name.lower() in FORWARDED for name, _ in headers):
        return False
    host = single(headers, b"host")
    name = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    return is_loopback(address_of(scope)) and (is_loopback(name.strip("[]")) or name in ("localhost", ""))


def is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
