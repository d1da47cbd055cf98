"""Delivery instructions as bytes: the one way to write them down, so that both ends bind the same (DIR-80).

::

    2 bytes   how many there are
    each, in the order of their names as UTF-8:
      1 byte    length of the name      the name
      1 byte    's' text, 'i' number in decimal digits, 'b' bytes
      4 bytes   length of the value     the value

All numbers are big-endian. What is None or empty is left out: not there and empty are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeAlias

from fairlead.errors import BadParameter

Value: TypeAlias = str | int | bytes | None
Instructions: TypeAlias = Mapping[str, Value]

COUNT_MAX: Final = 64
BYTES_MAX: Final = 64 * 1024


def instructions_of(
    *,
    to: str,
    sender: str,
    id: str | bytes,  # noqa: A002
    correlation: str | int | bytes = "",
    reply_to: str = "",
    content_type: str = "",
    time: str | int = "",
) -> dict[str, Value]:
    """What is bound to a message between applications, under the names of docs/sealing.md."""
    return {
        "to": to,
        "from": sender,
        "id": id,
        "correlation": correlation,
        "reply-to": reply_to,
        "content-type": content_type,
        "time": time,
    }


def written(instructions: Instructions | None) -> bytes:
    """The bytes; BadParameter where there is too much of them, or something that is neither text, number nor bytes."""
    there = {name: value for name, value in (instructions or {}).items() if value not in (None, "", b"")}
    if len(there) > COUNT_MAX:
        raise BadParameter(f"{len(there)} delivery instructions are more than the {COUNT_MAX} that can be bound.")
    parts = [struct.pack(">H", len(there))]
    for name, value in sorted((_utf8(name), value) for name, value in there.items()):
        if not 1 <= len(name) <= 255:
            raise BadParameter("The name of a delivery instruction has 1 to 255 bytes.")
        kind, data = _value(name, value)
        parts.append(struct.pack(">B", len(name)) + name + kind + struct.pack(">I", len(data)) + data)
    found = b"".join(parts)
    if len(found) > BYTES_MAX:
        raise BadParameter(f"Delivery instructions of {len(found)} bytes are more than the {BYTES_MAX} one can bind.")
    return found


def _value(name: bytes, value: Value) -> tuple[bytes, bytes]:
    match value:
        case bool():
            pass
        case str():
            return b"s", _utf8(value)
        case int():
            return b"i", f"{value:d}".encode() if value.bit_length() <= 256 else _too_large(name)
        case bytes():
            return b"b", value
    raise BadParameter(f"The delivery instruction {name.decode()!r} is neither text nor a number nor bytes.")


def _too_large(name: bytes) -> bytes:
    raise BadParameter(f"The number {name.decode()!r} of the delivery instructions is too large.")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadParameter("A delivery instruction has characters that are none.") from None
