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
    "Abort",
    "AbortCode",
    "BadPacket",
    "Body",
    "Kind",
    "Packet",
    "cut",
    "encode",
    "is_whole",
    "printable",
    "split",
]

HEADER = Struct(">HHIIIHH")
CRC = Struct(">I")
REASON = Struct(">H")
VERSIONS = (1, 2)
HEADER_BYTES = {1: 20, 2: 24}
PAYLOAD_MAX = 32 << 10
NO_CRC = bytes(4)
CUT_OFF = "the last packet is cut off"
REASON_MAX = 1024


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


class Abort(NamedTuple):
    """Why a tunnel was aborted: the payload of CONN_ABORT. The codes are listed in docs/tunnel.md."""

    code: int
    text: str = ""

    def payload(self) -> bytes:
        return REASON.pack(self.code & 0xFFFF) + self.text.encode("utf-8", "replace")[:REASON_MAX]

    @classmethod
    def of(cls, payload: bytes) -> Abort:
        """From a packet; one that gives no reason broke the protocol."""
        if len(payload) < REASON.size:
            return cls(AbortCode.PROTOCOL, "aborted without a reason")
        text = payload[REASON.size : REASON.size + REASON_MAX]
        return cls(REASON.unpack_from(payload)[0], printable(text.decode("utf-8", "replace")))


def printable(text: str) -> str:
    """What others say ends up in logs and on terminals: as one line, and nothing in it moves the cursor."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


class AbortCode(IntEnum):
    PROGRAM = 1
    SILENCE = 2
    CLIENT_LOST = 3
    BROKER_LOST = 4
    NOT_KNOWN = 5
    LINGER = 6
    REFUSED = 7
    PROTOCOL = 8
    SHUTDOWN = 9


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


def split(body: bytes, payload_max: int = PAYLOAD_MAX, *, with_raw: bool = True, with_data: bool = True) -> Body:
    """All packets of an HTTP body, a WebSocket frame or a datagram.

    Each saves a copy: an end has no use for `raw`, a gateway none for the payload of DATA, which is empty then.
    """
    return _walk(memoryview(body), payload_max, with_raw, with_data)


def cut(
    stream: bytearray,
    payload_max: int = PAYLOAD_MAX,
    *,
    data: bytes = b"",
    with_raw: bool = True,
    with_data: bool = True,
) -> Body:
    """The whole packets of a link's stream, to which `data` came; `stream` keeps what is no whole packet yet.

    BadPacket for a size that no packet has. Of long data only the packets at its ends pass through the stream.
    """
    packets: list[Packet] = []
    damaged, at = 0, 0
    while stream:
        found = _whole(stream, payload_max, with_raw, with_data)
        packets += found.packets
        damaged += found.damaged
        del stream[: len(stream) - found.rest]
        if not stream or at == len(data):
            break
        missing = (HEADER.unpack_from(stream)[2] if len(stream) >= HEADER.size else HEADER.size) - len(stream)
        stream += data[at : at + missing]
        at = min(at + missing, len(data))
    if at < len(data):
        found = _whole(memoryview(data)[at:], payload_max, with_raw, with_data)
        stream += data[len(data) - found.rest :]
        packets += found.packets
        damaged += found.damaged
    return Body(packets, damaged, len(stream))


def is_whole(raw: bytes) -> bool:
    """Is the checksum of a packet of version 2 right?"""
    return len(raw) >= 24 and _is_right(raw[:24], raw[24:])


def _whole(stream: bytearray | memoryview, payload_max: int, with_raw: bool, with_data: bool) -> Body:
    with memoryview(stream) as view:
        found = _walk(view, payload_max, with_raw, with_data)
    if found.fault and found.fault != CUT_OFF:
        raise BadPacket(f"The link is broken: {found.fault}.")
    return found


def _walk(view: memoryview, payload_max: int, with_raw: bool, with_data: bool) -> Body:
    """A packet that is not all there yet is not copied."""
    found: list[Packet] = []
    damaged, at, end = 0, 0, len(view)
    while end - at >= 20:
        version, kind, size, connection_id, sequence, window, _ = HEADER.unpack_from(view, at)
        # A version nobody knows may be a known one that was damaged: its size is right, and what follows can be used.
        least, most = HEADER_BYTES.get(version, 20), HEADER_BYTES.get(version, 24) + payload_max
        if size < least or size > most:
            return Body(found, damaged, end - at, f"a packet cannot have {size} bytes")
        if size > end - at:
            break
        begin, at = at, at + size
        if version in VERSIONS:
            payload = bytes(view[begin + least : at])
            if version == 1 or _is_right(bytes(view[begin : begin + 24]), payload):
                raw = bytes(view[begin:at]) if with_raw else b""
                if kind == Kind.DATA and not with_data:
                    payload = b""
                found.append(Packet(kind, connection_id, sequence, window, payload, version, raw))
                continue
        damaged += 1
    return Body(found, damaged, end - at, CUT_OFF if at < end else "")


def _is_right(header: bytes, payload: bytes) -> bool:
    expected: int = CRC.unpack_from(header, 20)[0]
    return crc32c(payload, crc32c(header[:20] + NO_CRC)) == expected
