"""Ids that are unique across the cluster and over time, made by a node alone (CLU-89 … CLU-92).

::

    address (4) | site (2) | port (2) | start (4) | kind (1) | sequence (7)        20 bytes, big-endian

The port is one the node really holds open, so two nodes of a machine differ. The start is the time the node started, in
seconds since 2020; it is larger than any the node used before, even if its clock was set back, so a sequence may begin
again at 1. Ids of one node and kind sort in the order in which they were made. Only nodes make ids; a client is given
a block of them with its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["ID_BYTES", "NO_ID", "Block", "Generator", "Id", "Kind", "Node", "at", "decode", "from_text", "text"]

ID_BYTES: Final = 20
NO_ID: Final = bytes(ID_BYTES)
EPOCH_S: Final = 1_577_836_800  # 2020-01-01
SEQUENCE_MAX: Final = (1 << 56) - 1
START_MAX: Final = 0xFFFF_FFFF
_LAYOUT: Final = Struct(">4sHHIQ")


class Kind(IntEnum):
    """What an id is the id of; each kind has a sequence of its own."""

    NODE = 1
    MESSAGE = 2
    SESSION = 3
    DESTINATION = 4
    CONSUMER = 5
    TRANSACTION = 6
    TRANSFER = 7
    STORE = 8


class Id(NamedTuple):
    """What an id says."""

    address: str
    site: int
    port: int
    start: int
    kind: int
    sequence: int

    @property
    def start_s(self) -> int:
        """The start as a calendar time; ahead of it where the clock was set back or a sequence overflowed."""
        return self.start + EPOCH_S


def decode(id_: bytes) -> Id:
    """The fields of an id."""
    if len(id_) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(id_)}")
    address, site, port, start, low = _LAYOUT.unpack(id_)
    return Id(str(IPv4Address(address)), site, port, start, low >> 56, low & SEQUENCE_MAX)


def text(id_: bytes) -> str:
    """An id in 40 hexadecimal digits."""
    return id_.hex()


def from_text(digits: str) -> bytes:
    """The id of these 40 hexadecimal digits, also with the `ID:` of JMS before them."""
    digits = digits.removeprefix("ID:")
    if len(digits) != 2 * ID_BYTES:
        raise ValueError(f"an id has {2 * ID_BYTES} hexadecimal digits, not {len(digits)}")
    return bytes.fromhex(digits)


def at(first: bytes, position: int) -> bytes:
    """The id so many places after another one, of the same block."""
    low = int.from_bytes(first[12:]) + position
    return first[:12] + (low & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)


class Node:
    """The part of all ids of a node that says which node, and which of its lives.

    `last_start` is the last start this node used, which it keeps on stable storage; 0: it never started before.
    Whoever makes a Node writes `start` there before the first id leaves it, and again after a `renew`.
    """

    def __init__(self, address: str, site: int, port: int, now_s: float, last_start: int = 0) -> None:
        if not (0 <= site <= 0xFFFF and 1 <= port <= 0xFFFF):
            raise ValueError(f"site and port are numbers of 16 bits, and the port is open: not {site} and {port}")
        self.address = IPv4Address(address)
        self.site = site
        self.port = port
        self.start = last_start
        self.renew(now_s)

    def renew(self, now_s: float) -> None:
        """Begin another life, as if the node had been started anew: all sequences may begin again."""
        start = max(int(now_s) - EPOCH_S, self.start + 1, 1)
        if start > START_MAX:
            raise ValueError(f"no start is left after {self.start}: the clock is far beyond its time")
        self.start = start

    def prefix(self) -> bytes:
        """The first 12 bytes."""
        return _LAYOUT.pack(self.address.packed, self.site, self.port, self.start, 0)[:12]


@dataclass(frozen=True, slots=True)
class Block:
    """Ids handed out together: `count` of them, from `first` on."""

    first: bytes
    count: int

    @property
    def number(self) -> int:
        """The sequence number of the first."""
        return int.from_bytes(self.first[13:])

    def __contains__(self, id_: object) -> bool:
        return (
            isinstance(id_, bytes)
            and len(id_) == ID_BYTES
            and id_[:12] == self.first[:12]
            and 0 <= int.from_bytes(id_[12:]) - int.from_bytes(self.first[12:]) < self.count
        )


class Generator:
    """Makes the ids of one kind. When its sequence overflows it renews the node's start (CLU-90).

    The clock is looked at for that alone: `now_s` may be the time of the caller's turn.
    """

    def __init__(self, node: Node, kind: int, last: int = 0) -> None:
        if not 1 <= kind <= 0xFF:
            raise ValueError(f"a kind is 1 to 255, not {kind}")
        self._node = node
        self._kind = kind
        self._start = node.start
        self._prefix = node.prefix()
        self.last = last  # the last sequence number used

    def next(self, now_s: float = 0.0) -> bytes:
        """One id."""
        return self.block(1, now_s).first

    def block(self, count: int, now_s: float = 0.0) -> Block:
        """So many ids, one after another and all of the same start."""
        if not 1 <= count <= SEQUENCE_MAX:
            raise ValueError(f"a block has at least one id, not {count}")
        if self.last + count > SEQUENCE_MAX and self._start == self._node.start:
            self._node.renew(now_s)
        if self._start != self._node.start:  # ours or another kind's sequence overflowed
            self._start = self._node.start
            self._prefix = self._node.prefix()
            self.last = 0
        first = self._prefix + (self._kind << 56 | self.last + 1).to_bytes(8)
        self.last += count
        return Block(first, count)
