"""Datagrams. Each says of which stream it is, its number there, and is sealed with that stream's key.

A stream is one life of one node's multicasts on one bus. Its name is drawn at random and told to the others over
their lines; the key is made of the cluster's secret and that name. A packet that comes again has a number that is
known already, and one of another life has a name that nobody knows.
"""

from __future__ import annotations

import hashlib
import hmac
from struct import Struct
from typing import Final, NamedTuple

from fairlead.bus.frames import SEAL_BYTES

MAGIC: Final = 0x464C4D31
DATA: Final = 1  # number: of this packet in the stream
BEAT: Final = 2  # number: of the last packet that was sent
ASK: Final = 3  # number: of this request of ours; content: whose stream, and which numbers of it
FIRST: Final = 1  # a block begins with this packet
LAST: Final = 2  # a block ends with it
HEAD: Final = Struct("<IBB2x16sQ")
RANGE: Final = Struct("<QQ")
STREAM_BYTES: Final = 16
RANGES_MAX: Final = 32
PACKET_BYTES_MAX: Final = 65_507


class Packet(NamedTuple):
    """One datagram that is what it should be; `content` is a part of what was received."""

    kind: int
    flags: int
    stream: bytes
    number: int
    content: memoryview


class Sealer:
    """Makes and checks the packets of one stream."""

    def __init__(self, secret: bytes | None, stream: bytes) -> None:
        self.stream = stream
        self.size = 0 if secret is None else SEAL_BYTES
        self._mac = None
        if secret is not None:
            key = hmac.digest(secret, b"fairlead multicast " + stream, "sha256")
            self._mac = hmac.new(key, digestmod=hashlib.sha256)

    def pack(self, kind: int, flags: int, number: int, content: bytes) -> bytes:
        head = HEAD.pack(MAGIC, kind, flags, self.stream, number)
        return b"".join((head, self._seal(head, content), content))

    def open(self, data: memoryview) -> Packet | None:
        """None: not made by whoever has this stream."""
        at = HEAD.size + self.size
        if len(data) < at:
            return None
        magic, kind, flags, stream, number = HEAD.unpack_from(data)
        if magic != MAGIC or stream != self.stream:
            return None
        content = data[at:]
        if self._mac is not None and not hmac.compare_digest(
            self._seal(data[: HEAD.size], content), data[HEAD.size : at]
        ):
            return None
        return Packet(kind, flags, stream, number, content)

    def _seal(self, head: bytes | memoryview, content: bytes | memoryview) -> bytes:
        if self._mac is None:
            return b""
        mac = self._mac.copy()
        mac.update(head)
        mac.update(content)
        return mac.digest()[:SEAL_BYTES]


def stream_of(data: memoryview) -> bytes | None:
    """Whose packet it says it is; None if it is none."""
    if len(data) < HEAD.size:
        return None
    magic, _, _, stream, _ = HEAD.unpack_from(data)
    return stream if magic == MAGIC else None


def pack_ask(stream: bytes, ranges: list[tuple[int, int]]) -> bytes:
    """Which numbers (first, last) of whose stream are wanted again."""
    return stream + b"".join(RANGE.pack(*one) for one in ranges[:RANGES_MAX])


def parse_ask(content: memoryview) -> tuple[bytes, list[tuple[int, int]]] | None:
    rest = content[STREAM_BYTES:]
    if len(content) < STREAM_BYTES or len(rest) % RANGE.size or len(rest) > RANGES_MAX * RANGE.size:
        return None
    ranges = [(first, last) for first, last in RANGE.iter_unpack(rest)]
    return bytes(content[:STREAM_BYTES]), [one for one in ranges if one[0] <= one[1]]
