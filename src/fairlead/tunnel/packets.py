"""The packet: the only thing passed between drivers, gateway and ends. Header byte for byte in docs/tunnel.md (TUN-12).

Version 1 has 20 bytes of header; version 2 has four more, the CRC32C of the whole packet with those four bytes as zero.
`split` takes a body apart, `cut` a stream; what is damaged is left out and counted, what cannot be told apart ends it.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from fairlead.errors import RemoteProtocolError
from fairlead.journal.crc import crc32c

__all__ = [
    "HEADER_BYTES",
    "PAYLOAD_MAX",
    "SEQUENCED",
    "VERSIONS",
    "BadPacket",
    "Body",
    "Kind",
    "Packet",
    "cut",
    "encode",
    "split",
]

HEADER = Struct(">HHIIIHH")
CRC = Struct(">I")
VERSIONS = (1, 2)
HEADER_BYTES = {1: 20, 2: 24}
PAYLOAD_MAX = 32 << 10
NO_CRC = bytes(4)


class Kind(IntEnum):
    CONN_INIT = 1
    CONN_INIT_ACK = 2
    DATA = 3
    ACK = 4
    CONN_OPTION = 5
    CONN_CLOSE = 6
    CONN_ABORT = 7
    LINK_INIT = 8
    LINK_INIT_ACK = 9
    PING = 10
    PONG = 11


SEQUENCED = frozenset({Kind.DATA, Kind.CONN_OPTION, Kind.CONN_CLOSE})


class BadPacket(RemoteProtocolError):
    """A size that no packet has: what follows cannot be told apart."""


class Packet(NamedTuple):
    """`kind` may be a number nobody knows; `raw` is the packet as it travelled."""

    kind: int
    connection_id: int = 0
    sequence: int = 0
    window: int = 0
    payload: bytes = b""
    version: int = 2
    raw: bytes = b""


class Body(NamedTuple):
    """What a body held."""

    packets: list[Packet]
    damaged: int = 0
    """Packets left out: their checksum is wrong, or their version is none of ours."""
    rest: int = 0
    """Bytes at the end that are no whole packet."""
    fault: str = ""
    """Why nothing could be told apart any more; empty when all was well."""


def encode(
    kind: int, connection_id: int = 0, sequence: int = 0, window: int = 0, payload: bytes = b"", version: int = 2
) -> bytes:
    size = HEADER_BYTES[version] + len(payload)
    header = HEADER.pack(version, kind, size, connection_id, sequence, window, 0)
    if version == 1:
        return header + payload
    return b"".join((header, CRC.pack(crc32c(payload, crc32c(header + NO_CRC))), payload))


def split(body: bytes, payload_max: int = PAYLOAD_MAX) -> Body:
    """All packets of an HTTP body, a WebSocket frame or a datagram."""
    found: list[Packet] = []
    damaged, at, end = 0, 0, len(body)
    while end - at >= 20:
        version, kind, size, connection_id, sequence, window, _ = HEADER.unpack_from(body, at)
        header = HEADER_BYTES.get(version, 20)
        if size < header or size > header + payload_max:
            return Body(found, damaged, end - at, f"a packet cannot have {size} bytes")
        if size > end - at:
            break
        raw = body[at : at + size]
        at += size
        if version not in VERSIONS or (version == 2 and not is_whole(raw)):
            damaged += 1
            continue
        found.append(Packet(kind, connection_id, sequence, window, raw[header:], version, raw))
    return Body(found, damaged, end - at, "the last packet is cut off" if at < end else "")


def cut(stream: bytearray, payload_max: int = PAYLOAD_MAX) -> Body:
    """The whole packets at the beginning of a link's stream, which are removed from it; a part of one may wait.

    BadPacket for a size that no packet has.
    """
    found = split(bytes(stream), payload_max)
    if found.rest and not found.fault.startswith("the last"):
        raise BadPacket(f"The link is broken: {found.fault}.")
    del stream[: len(stream) - found.rest]
    return found._replace(fault="")


def is_whole(raw: bytes) -> bool:
    """Is the checksum of a packet of version 2 right?"""
    expected: int = CRC.unpack_from(raw, 20)[0]
    return crc32c(raw[24:], crc32c(raw[:20] + NO_CRC)) == expected
