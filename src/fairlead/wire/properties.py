"""Typed properties of a message to bytes and back: the header section of an entry (docs/durable.md, section 3).

Names that begin with `:` are Fairlead's own and are given apart, so that no application sets one by accident. Where a
section has a name twice, the first one counts, here and in selectors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from fairlead.errors import BadEntries, BadParameter, HeaderTooLarge
from fairlead.wire.kinds import HEADER_BYTES_MAX

__all__ = [
    "OWN_NAMES",
    "SERVER_NAMES",
    "Value",
    "application_properties",
    "check_section",
    "decode",
    "decode_value",
    "encode_properties",
    "lookup",
    "pairs",
]

Value = bool | int | float | str | bytes

OWN_NAMES: Final = frozenset(
    {":correlation", ":reply-to", ":type", ":dedup", ":cron", ":due", ":body", ":stream", ":sequence", ":from"}
    | {":dead-destination", ":dead-reason", ":dead-ms", ":dead-count", ":dead-id"}
)
SERVER_PREFIXES: Final = (b":from", b":dead-")
SERVER_NAMES: Final = frozenset(name for name in OWN_NAMES if name.encode().startswith(SERVER_PREFIXES))
"""What only the server may set (CLU-18)."""

NAME_BYTES_MAX: Final = 255
VALUE_BYTES_MAX: Final = 65_534  # a u16 counts the type too
_I64: Final = struct.Struct("<q")
_F64: Final = struct.Struct("<d")
_SIZES: Final = {b"b": 2, b"i": 9, b"f": 9}  # the type counted; s and y have any length


def encode_properties(properties: Mapping[str, Value], own: Mapping[str, Value | None] | None = None) -> bytes:
    """The section of these properties; `own` are Fairlead's (`:type` …), of which those that are None are left out."""
    section = bytearray()
    for name, value in (own or {}).items():
        if value is None:
            continue
        if name not in OWN_NAMES:
            raise BadParameter(f"{name!r} is not one of Fairlead's own headers.")
        _put(section, name.encode(), name, value)
    for name, value in properties.items():
        _put(section, _checked_name(name), name, value)
    if len(section) > HEADER_BYTES_MAX:
        raise HeaderTooLarge(
            f"All properties together take {len(section)} bytes, more than {HEADER_BYTES_MAX}.",
            size=len(section),
            limit=HEADER_BYTES_MAX,
        )
    return bytes(section)


def _checked_name(name: object) -> bytes:
    if not isinstance(name, str) or not name:
        raise BadParameter(f"A property's name is a str that is not empty, not {name!r}.")
    if name.startswith(":"):
        raise BadParameter(f"The property {name[:40]!r} begins with ':', which is kept for Fairlead's own headers.")
    for place, letter in enumerate(name):
        if not (letter.isalnum() or letter in "_$.-"):
            raise BadParameter(
                f"The property {name[:40]!r} has {letter!r} at place {place + 1}; "
                "letters, digits, '_', '$', '.' and '-' may be used."
            )
    raw = name.encode()
    if len(raw) > NAME_BYTES_MAX:
        raise BadParameter(f"The property {name[:40]!r}… has a name longer than {NAME_BYTES_MAX} bytes.")
    return raw


def _put(section: bytearray, raw: bytes, name: str, value: object) -> None:
    content = _encode_value(name, value)
    if len(content) > VALUE_BYTES_MAX + 1:
        raise HeaderTooLarge(
            f"The property {name!r} is {len(content) - 1} bytes long, more than {VALUE_BYTES_MAX}.",
            size=len(content) - 1,
            limit=VALUE_BYTES_MAX,
        )
    section.append(len(raw))
    section += raw
    section += len(content).to_bytes(2, "little")
    section += content


def _encode_value(name: str, value: object) -> bytes:
    if isinstance(value, bool):
        return b"b\x01" if value else b"b\x00"
    if isinstance(value, int):
        try:
            return b"i" + _I64.pack(value)
        except struct.error:
            raise BadParameter(f"The property {name!r} is {value}, which does not fit into 64 bits.") from None
    if isinstance(value, float):
        return b"f" + _F64.pack(value)
    if isinstance(value, str):
        try:
            return b"s" + value.encode()
        except UnicodeEncodeError:
            raise BadParameter(f"The property {name!r} has a lone surrogate, which UTF-8 cannot say.") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return b"y" + bytes(value)
    raise BadParameter(f"The property {name!r} is a {type(value).__name__}; it may be bool, int, float, str or bytes.")


def pairs(section: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values with their type, as they stand; BadEntries where the section is not made of pairs."""
    at, end = 0, len(section)
    while at < end:
        name_end = at + 1 + section[at]
        value_at = name_end + 2
        if name_end == at + 1 or value_at > end:
            raise BadEntries("A header section ends inside a name, or has an empty one.")
        value_end = value_at + (section[name_end] | section[name_end + 1] << 8)
        if value_end > end:
            raise BadEntries("A header section ends inside a value.")
        yield section[at + 1 : name_end], section[value_at:value_end]
        at = value_end


def check_section(section: bytes) -> None:
    """BadEntries unless every name and value of it is well-formed; text is not looked into."""
    for _, value in pairs(section):
        if value[:1] not in (b"s", b"y") and len(value) != _SIZES.get(value[:1], -1):
            raise BadEntries("A header has no known type, or not the length of its type.")


def decode(section: bytes) -> dict[str, Value]:
    """All headers of a section, Fairlead's own too."""
    found: dict[str, Value] = {}
    for name, value in pairs(section):
        found.setdefault(name.decode(errors="replace"), decode_value(value))
    return found


def application_properties(section: bytes) -> dict[str, Value]:
    """What the application set."""
    found: dict[str, Value] = {}
    for name, value in pairs(section):
        if name[0] != 0x3A:
            found.setdefault(name.decode(errors="replace"), decode_value(value))
    return found


def lookup(section: bytes, name: bytes) -> Value | None:
    """One header; None: there is none of that name."""
    for found, value in pairs(section):
        if found == name:
            return decode_value(value)
    return None


def decode_value(value: bytes) -> Value:
    """What these bytes say, the first of which is the type."""
    kind = value[:1]
    if kind == b"s":
        return value[1:].decode(errors="replace")
    if kind == b"y":
        return value[1:]
    if kind == b"i" and len(value) == 9:
        return int(_I64.unpack_from(value, 1)[0])
    if kind == b"f" and len(value) == 9:
        return float(_F64.unpack_from(value, 1)[0])
    if kind == b"b" and len(value) == 2:
        return value[1] != 0
    raise BadEntries("A header has no known type, or not the length of its type.")
