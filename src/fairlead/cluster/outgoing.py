"""What goes back to the managers: frames in their envelopes, gathered per link until the edge writes them.

Nothing here copies a message: a delivery is a head of 48 bytes and views of the journal's memory. `bytes` tells how
much waits; above `high` a link has no room, and whoever can wait is told so (CLU-102).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from fairlead.cluster.parties import Line
from fairlead.cluster.port import Bytes
from fairlead.wire.durable import CHUNK, ENVELOPE, FLAG_MORE
from fairlead.wire.kinds import FRAGMENT_BYTES_MAX, HEAD_BYTES, KIND_ERROR

HIGH_BYTES: Final = 64 << 20
LOW_BYTES: Final = 16 << 20

_BOTH: Final = struct.Struct("<IIQIBBHIIQQ")
_BYTES_OF_CHUNK: Final = struct.Struct("<I")
_BYTES_AT: Final = CHUNK.size - 12  # where a chunk's head says how many bytes follow

encode_json = msgspec.json.Encoder().encode


class Link:
    """One manager's link, as the core knows it."""

    __slots__ = (
        "announced",
        "bytes",
        "carries_broadcasts",
        "generation",
        "is_full",
        "is_open",
        "lines",
        "manager",
        "missed",
        "node",
        "number",
        "out",
    )

    def __init__(self, number: int, node: str = "", *, carries_broadcasts: bool = False) -> None:
        self.number = number
        self.node = node  # the client manager it comes from, in a cluster
        self.carries_broadcasts = carries_broadcasts  # whoever is behind it hands publishes to transient subscribers
        self.missed = 0  # messages that transient subscribers of that node did not get, since it took no more
        self.manager = -1  # until it said hello
        self.generation = 0
        self.announced = 0  # announcements it has acknowledged
        self.lines: dict[int, Line] = {}  # connections of it, by uid
        self.out: list[Bytes] = []
        self.bytes = 0
        self.is_open = True
        self.is_full = False

    def frame(
        self,
        uid: int,
        index: int,
        kind: int,
        *,
        number: int = 0,
        correlation: int = 0,
        peer: int = 0,
        flags: int = 0,
        topic: bytes = b"",
        headers: bytes = b"",
        body: Bytes = b"",
    ) -> None:
        """One frame to the connection with that uid; 0: to the manager itself."""
        if not self.is_open:
            return
        length = HEAD_BYTES + len(topic) + len(headers) + len(body)
        whole = ENVELOPE.size + length
        head = _BOTH.pack(whole, index, uid, length, kind, flags, len(topic), len(headers), number, correlation, peer)
        if len(body) <= 4096:
            self.out.append(b"".join((head, topic, headers, body)))
        else:
            self.out.append(head + topic + headers)
            self.out.append(body)
        self.bytes += whole
        if self.bytes > HIGH_BYTES:
            self.is_full = True

    def pieces(self, uid: int, index: int, kind: int, number: int, pieces: Sequence[Bytes], size: int) -> None:
        """One frame whose body is in pieces that are `size` bytes together."""
        if not self.is_open:
            return
        length = HEAD_BYTES + size
        self.out.append(_BOTH.pack(ENVELOPE.size + length, index, uid, length, kind, 0, 0, 0, number, 0, 0))
        self.out.extend(pieces)
        self.bytes += ENVELOPE.size + length
        if self.bytes > HIGH_BYTES:
            self.is_full = True

    def json(self, uid: int, index: int, kind: int, number: int, facts: Any) -> None:
        self.frame(uid, index, kind, number=number, body=encode_json(facts))

    def error(self, uid: int, index: int, number: int, code: str, text: str) -> None:
        """An ERROR frame: its code is in the headers."""
        word = code.encode()
        headers = b"\x04code" + len(word).to_bytes(2, "little") + word
        self.frame(uid, index, KIND_ERROR, number=number, headers=headers, body=text.encode(errors="replace"))

    def taken(self, count: int) -> bool:
        """The edge wrote so many bytes. True: there is room again where there was none."""
        self.bytes -= count
        if self.is_full and self.bytes <= LOW_BYTES:
            self.is_full = False
            return True
        return False


def chunks_of(body: bytes, most: int = FRAGMENT_BYTES_MAX) -> Iterator[tuple[int, bytes]]:
    """The body of an ANSWER of any length in pieces that fit into frames, each with its flags."""
    first = 0
    while len(body) - first > most:
        yield FLAG_MORE, body[first : first + most]
        first += most
    yield 0, body[first:] if first else body


def chunked(pieces: Sequence[Bytes], most: int = FRAGMENT_BYTES_MAX) -> Iterator[tuple[list[Bytes], int]]:
    """A delivery's pieces in groups of whole chunks, each with its size, none above `most` unless one chunk is."""
    group: list[Bytes] = []
    size = 0
    at = 0
    while at < len(pieces):
        head = pieces[at]
        (follow,) = _BYTES_OF_CHUNK.unpack_from(head, _BYTES_AT)
        beyond, missing = at + 1, follow - (len(head) - CHUNK.size)
        while missing > 0 and beyond < len(pieces):
            missing -= len(pieces[beyond])
            beyond += 1
        chunk = CHUNK.size + follow
        if group and size + chunk > most:
            yield group, size
            group, size = [], 0
        group.extend(pieces[at:beyond])
        size += chunk
        at = beyond
    if group:
        yield group, size
