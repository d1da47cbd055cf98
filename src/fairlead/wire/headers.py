"""The header section of a frame: pairs of a short key and a value of bytes (docs/protocol.md, section 2).

Keys that begin with `:` are the protocol's own; applications neither see nor set them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.errors import HeaderTooLarge, LocalProtocolError, RemoteProtocolError

__all__ = ["application_pairs", "decode_headers", "encode_headers"]

KEY_BYTES_MAX = 255
VALUE_BYTES_MAX = 65_535


def encode_headers(pairs: Iterable[tuple[str, bytes | str]]) -> bytes:
    """The section for these pairs, in their order."""
    section = bytearray()
    for key, value in pairs:
        name = key.encode()
        content = value.encode() if isinstance(value, str) else value
        if not 1 <= len(name) <= KEY_BYTES_MAX:
            raise LocalProtocolError(f"The header key {key[:40]!r} is not 1 to {KEY_BYTES_MAX} bytes long.")
        if len(content) > VALUE_BYTES_MAX:
            raise HeaderTooLarge(
                f"The value of header {key!r} is longer than {VALUE_BYTES_MAX} bytes.",
                size=len(content),
                limit=VALUE_BYTES_MAX,
            )
        section.append(len(name))
        section += name
        section += len(content).to_bytes(2, "little")
        section += content
    return bytes(section)


def application_pairs(headers: Mapping[str, bytes | str]) -> list[tuple[str, bytes | str]]:
    """The pairs an application may set: all but the protocol's own."""
    for key in headers:
        if key.startswith(":"):
            raise LocalProtocolError(f"The header key {key!r} begins with ':', which is kept for the protocol.")
    return list(headers.items())


def decode_headers(section: bytes) -> list[tuple[str, bytes]]:
    """The pairs of a section, all of them; RemoteProtocolError unless it is made of pairs to its last byte."""
    pairs: list[tuple[str, bytes]] = []
    at, end = 0, len(section)
    while at < end:
        key_end = at + 1 + section[at]
        value_at = key_end + 2
        if key_end == at + 1 or value_at > end:
            raise RemoteProtocolError("A header section ends inside a key, or has an empty key.")
        value_end = value_at + int.from_bytes(section[key_end:value_at], "little")
        if value_end > end:
            raise RemoteProtocolError("A header section ends inside a value.")
        try:
            key = section[at + 1 : key_end].decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("A header key is not UTF-8.") from None
        pairs.append((key, section[value_at:value_end]))
        at = value_end
    return pairs
