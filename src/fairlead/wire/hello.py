"""What kind of connection begins with these bytes? Looked at before any of them is taken, so that another process may.

One port speaks our protocol, HTTP and TLS around either. A client of ours offers no HTTP in its ClientHello (ALPN);
everything that wants HTTP does. What is neither, and what is no TLS at all after its first byte, is left to those who
would read it anyway: they say what is wrong with it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

__all__ = ["HELLO_MAX", "HTTP_PROTOCOLS", "METHODS", "Hello", "Look", "begins_http", "look"]

HELLO_MAX: Final = 16384
"""Bytes looked at; a ClientHello that is longer counts as one without ALPN."""
METHODS: Final = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ")
PRIOR_KNOWLEDGE: Final = b"PRI * HTTP/2.0"
HTTP_PROTOCOLS: Final = frozenset({b"http/1.1", b"h2"})
RECORD_MAX: Final = 16384 + 256
RECORDS_MAX: Final = 16  # that one ClientHello may lie in: each of them costs a look
TLS_HANDSHAKE: Final = 0x16
CLIENT_HELLO: Final = 1
ALPN: Final = 16


class Hello(Enum):
    """Who is there."""

    MORE = "more"
    NATIVE = "native"
    HTTP = "http"
    TLS = "tls"
    TLS_HTTP = "tls-http"
    RUBBISH = "rubbish"


class Look(NamedTuple):
    """`wanted` are the bytes from which on another look can tell more; 0 when it is told."""

    kind: Hello
    wanted: int = 0


class Short(Exception):
    """The ClientHello has so many bytes at least, and not all of them are there."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class Broken(Exception):
    """This is no ClientHello; who reads it in earnest finds the words for it."""


def look(first: bytes, *, tls: bool) -> Look:
    """`tls`: does this server have a certificate? Without one a ClientHello is as good as rubbish."""
    if not first:
        return Look(Hello.MORE, 1)
    if first[0] == TLS_HANDSHAKE:
        return look_at_tls(first) if tls else Look(Hello.RUBBISH)
    if first[:1] == b"F":
        return Look(Hello.NATIVE)
    for beginning in (*METHODS, PRIOR_KNOWLEDGE):
        if first.startswith(beginning):
            return Look(Hello.HTTP)
        if beginning.startswith(first):
            return Look(Hello.MORE, len(first) + 1)
    return Look(Hello.RUBBISH)


def begins_http(first: bytes) -> bool:
    """Would somebody who sent this understand an answer in HTTP?"""
    return first.startswith((*METHODS, b"CONNECT ", b"TRACE ", PRIOR_KNOWLEDGE[:8]))


def look_at_tls(first: bytes) -> Look:
    try:
        protocols = alpn(client_hello(first))
    except Broken:
        return Look(Hello.TLS)
    except Short as short:
        return Look(Hello.MORE, short.wanted) if short.wanted <= HELLO_MAX else Look(Hello.TLS)
    return Look(Hello.TLS if HTTP_PROTOCOLS.isdisjoint(protocols) else Hello.TLS_HTTP)


def client_hello(data: bytes) -> bytes:
    """The body of the ClientHello, whose pieces may lie in several records."""
    message, at, records = bytearray(), 0, 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4]):
        records += 1
        if len(data) < at + 5:
            if data[at : at + 1] not in (b"", b"\x16") or data[at + 1 : at + 2] not in (b"", b"\x03"):
                raise Broken
            raise Short(at + 5)
        kind, major, length = data[at], data[at + 1], int.from_bytes(data[at + 3 : at + 5])
        if kind != TLS_HANDSHAKE or major != 3 or not 0 < length <= RECORD_MAX or records > RECORDS_MAX:
            raise Broken
        message += data[at + 5 : at + 5 + length]
        if message and message[0] != CLIENT_HELLO:
            raise Broken
        if len(data) < at + 5 + length:
            raise Short(at + 5 + length)
        at += 5 + length
    return bytes(message[4 : 4 + int.from_bytes(message[1:4])])


def alpn(hello: bytes) -> list[bytes]:
    """The protocols a ClientHello offers."""
    rest = Reader(hello)
    rest.take(34)  # version and random
    rest.vector(1)  # session
    rest.vector(2)  # cipher suites
    rest.vector(1)  # compression
    if rest.is_empty():
        return []
    extensions = Reader(rest.vector(2))
    while not extensions.is_empty():
        kind = int.from_bytes(extensions.take(2))
        content = extensions.vector(2)
        if kind == ALPN:
            return Reader(Reader(content).vector(2)).vectors(1)
    return []


class Reader:
    """Takes bytes from the front; Broken when there are not enough."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise Broken
        self._at += count
        return found

    def vector(self, length_bytes: int) -> bytes:
        """What comes behind a length of so many bytes."""
        return self.take(int.from_bytes(self.take(length_bytes)))

    def vectors(self, length_bytes: int) -> list[bytes]:
        found = []
        while not self.is_empty():
            found.append(self.vector(length_bytes))
        return found
