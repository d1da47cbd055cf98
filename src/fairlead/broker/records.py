"""The words of the routing log: what can change in the router's state, one record a change.

A log area begins with the whole state written as ordinary records and goes on with changes, so there is one way to
read it. Record: `u32 size` (a multiple of 8), `u8 kind`, `u8 padding`, `u16 zero`, payload, padding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

ATTACH: Final = 1  # a connection has an attachment: {uid, conn, manager, index, peer}
LIVE: Final = 2  # its client answered: {uid, type, instance, org, user, chosen, resuming}
DETACH: Final = 3  # {uid}
SUBSCRIBE: Final = 4  # {uid, number, pattern, no_local}
UNSUBSCRIBE: Final = 5  # {uid, number}
REGISTER: Final = 6  # {uid, number, topic}
UNREGISTER: Final = 7  # {uid, number}
ASK: Final = 8  # a request, conversation or fan-out awaits a receiver's answer (fixed form)
ANSWERED: Final = 9  # that receiver sent its last answer, or is lost (fixed form)
END: Final = 10  # the request as a whole is over (fixed form)
HOLD: Final = 11  # a request waits for a receiver: {rid, uid, manager, handle, body_length, head, until_ns}
RELEASE: Final = 12  # it waits no longer: {rid}
MOVE: Final = 13  # an attachment goes over to another connection: {uid, conn}

FIXED: Final = {ASK, ANSWERED, END}
_HEAD = struct.Struct("<IBBH")
ASK_FORMAT = struct.Struct("<QQQQQ")  # rid, requester uid, correlation, receiver uid, frame kind
ANSWERED_FORMAT = struct.Struct("<QQ")  # rid, receiver uid
END_FORMAT = struct.Struct("<Q")  # rid
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def payload(facts: dict[str, Any]) -> bytes:
    return _encode(facts)


def facts(data: bytes | memoryview) -> dict[str, Any]:
    found: dict[str, Any] = _decode(data)
    return found


def encode(kind: int, data: bytes) -> bytes:
    """One whole record."""
    padding = -len(data) % 8
    return _HEAD.pack(_HEAD.size + len(data) + padding, kind, padding, 0) + data + bytes(padding)


def decode(area: memoryview) -> Iterator[tuple[int, bytes]]:
    """All records of an area up to its end: (kind, payload)."""
    at = 0
    while at < len(area):
        size, kind, padding, _ = _HEAD.unpack_from(area, at)
        if size < _HEAD.size or at + size > len(area):
            raise ValueError(f"the routing log has a record of {size} bytes at {at} of {len(area)}")
        yield kind, bytes(area[at + _HEAD.size : at + size - padding])
        at += size
