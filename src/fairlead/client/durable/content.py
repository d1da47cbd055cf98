"""What an application says about a message, as the parts of an entry; and the body back as what was sent.

A text is UTF-8; maps and lists are MessagePack, which keeps bytes, integers and floats apart. The header `:body` says
which it is, and is absent for plain bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fairlead.errors import BadParameter
from fairlead.wire.durable import (
    ENTRY,
    ENTRY_CRON,
    ENTRY_DEDUP,
    ENTRY_VOLATILE,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    STORE_BYTES_MAX,
    STORE_HEAD,
    TIMES,
)
from fairlead.wire.entry_codec import encode
from fairlead.wire.kinds import HEAD_BYTES
from fairlead.wire.properties import encode_properties

__all__ = ["BODY_BYTES_MAX", "PLAIN", "Content", "Value", "content", "decode_body", "encode_body"]

Value: TypeAlias = bool | int | float | str | bytes

BODY_BYTES_MAX = STORE_BYTES_MAX - HEAD_BYTES - STORE_HEAD.size
"""A message that takes more than this does not fit one STORE: it is a very large message."""

_KINDS: dict[type, str] = {dict: "map", list: "list", tuple: "list"}


class Content(NamedTuple):
    """Everything about a message but its body; made once where many messages are alike."""

    headers: bytes = b""
    key: bytes = b""
    priority: int = PRIORITY_DEFAULT
    ttl_ms: int = 0
    delay_ms: int = 0
    flags: int = 0
    overhead: int = ENTRY.size + TIMES.size
    """Bytes it adds to a body, at most."""

    def entry(self, body: bytes, flags: int = 0) -> bytes:
        """The message as it travels."""
        return encode(
            body,
            headers=self.headers,
            key=self.key,
            priority=self.priority,
            ttl_ms=self.ttl_ms,
            delay_ms=self.delay_ms,
            flags=self.flags | flags,
        )

    def fits(self, size: int) -> bool:
        """Can a body of so many bytes travel whole?"""
        return size + self.overhead <= BODY_BYTES_MAX


PLAIN = Content()


def encode_body(body: object) -> tuple[bytes, str]:
    """The bytes of a body and the word for `:body`, which is empty for plain bytes."""
    if isinstance(body, bytes):
        return body, ""
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), "text"
    kind = _KINDS.get(type(body))
    if kind is None:
        raise BadParameter(f"A body is bytes, str, dict, list or a stream, and not {type(body).__name__}.")
    try:
        return msgspec.msgpack.encode(body), kind
    except (TypeError, OverflowError, ValueError) as fault:
        raise BadParameter(f"The body cannot be sent as a {kind}: {fault}") from None


def decode_body(body: bytes, kind: str) -> Any:
    """What was sent: text, map or list; a plain body is tried as JSON."""
    try:
        if kind in ("map", "list"):
            return msgspec.msgpack.decode(body)
        return msgspec.json.decode(body)
    except msgspec.DecodeError as fault:
        what = f"a {kind}" if kind in ("map", "list") else "JSON"
        raise ValueError(f"The body is not {what}: {fault}") from None


def content(
    kind: str = "",
    *,
    key: str | None = None,
    priority: int = PRIORITY_DEFAULT,
    ttl: float | None = None,
    delay: float | None = None,
    at_ms: int | None = None,
    cron: str | None = None,
    properties: Mapping[str, Value] | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    type: str | None = None,  # noqa: A002 - the word of the message model
    dedup: str | None = None,
    volatile: bool = False,
) -> Content:
    """Check and encode what was said; BadParameter names what cannot be."""
    if not 0 <= priority <= PRIORITY_MAX:
        raise BadParameter(f"A priority is 0 to {PRIORITY_MAX}, and not {priority!r}.")
    if sum(given is not None for given in (delay, at_ms, cron)) > 1:
        raise BadParameter("Of `delay`, `at` and `cron` only one can be given.")
    own: dict[str, Value] = {}
    for name, text in (
        (":body", kind),
        (":correlation", correlation_id),
        (":reply-to", reply_to),
        (":type", type),
        (":dedup", dedup),
        (":cron", cron),
    ):
        if text:
            own[name] = text
    if at_ms is not None:
        own[":due"] = at_ms
    flags = ENTRY_VOLATILE if volatile else 0
    flags |= ENTRY_DEDUP if dedup else 0
    flags |= ENTRY_CRON if cron else 0
    headers = encode_properties(properties or {}, own) if own or properties else b""
    delay_ms = _milliseconds("delay", delay) if at_ms is None else 1  # the server looks for `:due` in timed ones only
    group = key.encode() if key else b""
    return Content(
        headers,
        group,
        priority,
        _milliseconds("ttl", ttl),
        delay_ms,
        flags,
        ENTRY.size + TIMES.size + len(headers) + len(group),
    )


def _milliseconds(name: str, seconds: float | None) -> int:
    if seconds is None:
        return 0
    if not isfinite(seconds) or seconds < 0 or seconds > 1e12:
        raise BadParameter(f"`{name}` is a number of seconds, and not {seconds!r}.")
    return max(1, round(seconds * 1000)) if seconds else 0
