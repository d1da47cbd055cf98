"""Packets of a numbered feed (docs/feed-formats.md, section 1): session, sequence, count, messages with their lengths.

This is the plain twin of `_mold.pyx`; `mold_codec` says which is used. A packet's messages are taken apart into two
buffers, lengths (int32, native) and data, which Arrow can take over as they are.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

__all__ = [
    "BadPacket",
    "COUNT_MAX",
    "END_OF_SESSION",
    "HEADER",
    "HEADER_BYTES",
    "HEARTBEAT",
    "PACKET_BYTES_MAX",
    "SEQUENCE_MAX",
    "SESSION_BYTES",
    "heartbeat",
    "pack",
    "request",
    "split",
]

HEADER: Final = struct.Struct(">10sQH")
HEADER_BYTES: Final = HEADER.size
SESSION_BYTES: Final = 10
HEARTBEAT: Final = 0
END_OF_SESSION: Final = 0xFFFF
COUNT_MAX: Final = END_OF_SESSION - 1
PACKET_BYTES_MAX: Final = 65507  # of UDP
SEQUENCE_MAX: Final = (1 << 63) - 1 - 0xFFFF
LENGTH: Final = struct.Struct(">H")


class BadPacket(ValueError):
    """This is no packet of a feed; the text says what is wrong with it, in few and constant words."""


def split(packet: bytes) -> tuple[bytes, int, int, bytes, bytes]:
    """Session, sequence, count, lengths, data. Heartbeats (count 0) and ends of session (0xFFFF) have no messages."""
    size = len(packet)
    if size < HEADER_BYTES:
        raise BadPacket("shorter than its header")
    session, sequence, count = HEADER.unpack_from(packet)
    if not 1 <= sequence <= SEQUENCE_MAX:
        raise BadPacket("a sequence out of range")
    at = HEADER_BYTES
    if count in (HEARTBEAT, END_OF_SESSION):
        if size != at:
            raise BadPacket("more bytes than its messages have")
        return session, sequence, count, b"", b""
    lengths = array("i")
    bodies = []
    for _ in range(count):
        if size - at < 2:
            raise BadPacket("fewer messages than it counts")
        (length,) = LENGTH.unpack_from(packet, at)
        at += 2
        if size - at < length:
            raise BadPacket("a message longer than the packet")
        lengths.append(length)
        bodies.append(packet[at : at + length])
        at += length
    if at != size:
        raise BadPacket("more bytes than its messages have")
    return session, sequence, count, lengths.tobytes(), b"".join(bodies)


def pack(
    session: bytes, first: int, lengths: bytes, data: bytes, count_max: int = COUNT_MAX, bytes_max: int = 1400
) -> list[bytes]:
    """Packets of at most so many messages and, unless a single one is longer, so many bytes."""
    packets = []
    parts: list[bytes] = []
    size, at, sequence = HEADER_BYTES, 0, first
    for length in array("i", lengths):
        if parts and (size + 2 + length > bytes_max or len(parts) >= count_max):
            packets.append(HEADER.pack(session, sequence, len(parts)) + b"".join(parts))
            sequence += len(parts)
            parts, size = [], HEADER_BYTES
        parts.append(LENGTH.pack(length) + data[at : at + length])
        at += length
        size += 2 + length
    if parts:
        packets.append(HEADER.pack(session, sequence, len(parts)) + b"".join(parts))
    return packets


def heartbeat(session: bytes, next_sequence: int, is_end: bool = False) -> bytes:
    """Says that nothing was sent since, and what comes next; so a loss at the end is seen too."""
    return HEADER.pack(session, next_sequence, END_OF_SESSION if is_end else HEARTBEAT)


def request(session: bytes, first: int, count: int) -> bytes:
    """Asks a rewind server for messages again; the answer are packets like any others."""
    return HEADER.pack(session, first, min(count, COUNT_MAX))
