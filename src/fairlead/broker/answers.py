"""The few frames a connection manager makes by itself, and its answer to a preface it does not speak."""

from __future__ import annotations

import struct

from fairlead.errors import CODES
from fairlead.wire.hello import begins_http

__all__ = [
    "PREFACE",
    "VERSION",
    "busy_answer",
    "error_frame",
    "frame",
    "full_frame",
    "gone_frame",
    "http_answer",
    "ping_frame",
    "pong_frame",
    "preface_answer",
    "room_frame",
]

MAGIC = b"FLD\n"
VERSION = 1
PREFACE = MAGIC + struct.pack("<HH", VERSION, 0)

FIXED = struct.Struct("<IBBHIIQQ")

PING = 0x02
PONG = 0x03
ERROR = 0x44
GO_AWAY = 0x48
COMMAND = 0x60


def frame(
    kind: int,
    *,
    flags: int = 0,
    topic: bytes = b"",
    headers: bytes = b"",
    body: bytes = b"",
    number: int = 0,
    correlation: int = 0,
    peer: int = 0,
) -> bytes:
    """One whole frame."""
    length = 32 + len(topic) + len(headers) + len(body)
    fixed = FIXED.pack(length, kind, flags, len(topic), len(headers), number, correlation, peer)
    return fixed + topic + headers + body


def error_frame(code: str, text: str = "", number: int = 0, correlation: int = 0) -> bytes:
    """An ERROR with its code; without a text it says what docs/errors.md says."""
    if not text:
        entry = CODES.get(code)
        text = entry.sentence if entry else code
    word = code.encode()
    headers = b"\x04code" + struct.pack("<H", len(word)) + word
    return frame(ERROR, headers=headers, body=text.encode(), number=number, correlation=correlation)


def ping_frame() -> bytes:
    return frame(PING)


def pong_frame(correlation: int) -> bytes:
    return frame(PONG, correlation=correlation)


def gone_frame() -> bytes:
    """What the message manager hears when a connection that it knows has ended (docs/durable.md, section 2)."""
    return frame(COMMAND, body=b'{"do":"gone"}')


def full_frame() -> bytes:
    """… that the client of one does not read what is sent to it in bulk."""
    return frame(COMMAND, body=b'{"do":"full"}')


def without(whole: bytes, prefix: bytes) -> bytes:
    """A frame of the message manager for a tenant's client: in its body names are as the client says them."""
    *_, topic, section, _, _, _ = FIXED.unpack_from(whole)
    head: int = FIXED.size + topic + section
    body: bytes = whole[head:].replace(prefix, b"")
    return (head + len(body)).to_bytes(4, "little") + whole[4:head] + body


def room_frame() -> bytes:
    """… and that it does again."""
    return frame(COMMAND, body=b'{"do":"room"}')


def preface_answer(first: bytes) -> tuple[str, bytes] | None:
    """None when these eight bytes are a preface we speak; else why not, and the last word to the client."""
    if first == PREFACE:
        return None
    if first[:4] == MAGIC:
        text = f"This server speaks version {VERSION} of the protocol."
        return "unsupported-version", error_frame("unsupported-version", text)
    return "not-a-preface", http_answer(404, NOT_HERE) if begins_http(first) else b""


NOT_HERE = (
    "This is a Fairlead server. Programs connect to it with fairlead://HOST:PORT.\n"
    "It has no tunnels through HTTP on this connection: they are switched off ([tunnel] enabled), or the method is\n"
    "none of theirs, or TLS was begun without offering http/1.1 (ALPN).\n"
)
BUSY = "The tunnel gateway of this server does not keep up, or is being started; try again.\n"
PLAIN = "This server takes passwords over TLS only: connect with https://HOST:PORT ([security] plain_passwords).\n"
REASONS = {403: "Forbidden", 404: "Not Found", 503: "Service Unavailable"}


def http_answer(status: int, text: str, *headers: str) -> bytes:
    """A short answer in HTTP/1.1 to somebody who is not served here; the connection is closed behind it."""
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def busy_answer() -> bytes:
    return http_answer(503, BUSY, "Retry-After: 1")


def plain_answer() -> bytes:
    return http_answer(403, PLAIN)
