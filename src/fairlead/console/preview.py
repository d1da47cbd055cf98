"""How the body of a message is shown: as text, as JSON with its lines broken, or as hex digits; never more than asked.

Administration hands a body over as text where it is UTF-8, else in base64; one that is cut in the middle of a letter
comes in base64, too, and is still text.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Literal

import msgspec

from fairlead.console.shapes_messages import As, Message

HEX_WIDTH = 16
PACKED = ("map", "list")  # what the header `body` says of these
Shown = Literal["text", "json", "hex", "none"]


def message(one: dict[str, Any], wanted: As, most: int) -> Message:
    """A message of administration as the API tells of it."""
    body, shown, cut = body_of(one, wanted, most)
    return Message(
        order=one["order"],
        id=one["id"],
        state=one["state"],
        deliveries=one["deliveries"],
        priority=one["priority"],
        key=one["key"],
        persistent=one["persistent"],
        sent_ms=one["sent_ms"],
        arrival_ms=one["arrival_ms"],
        ttl_ms=one["ttl_ms"] or None,
        delay_ms=one["delay_ms"] or None,
        properties=one["properties"],
        headers=one["headers"],
        bytes=one["bytes"],
        body=body,
        shown_as=shown,
        cut=cut,
    )


def body_of(one: dict[str, Any], wanted: As, most: int) -> tuple[str | None, Shown, bool]:
    """The text to show, as what, and whether there is more of it."""
    if "body_base64" in one:
        raw = b64decode(one["body_base64"])
    elif "body" in one:
        raw = one["body"].encode()
    else:
        return None, "none", one["bytes"] > 0
    cut = bool(one.get("cut")) or len(raw) > most
    raw = raw[:most]
    if wanted in ("auto", "json") and not cut and one.get("headers", {}).get("body") in PACKED:
        shown = as_unpacked(raw)
        if shown is not None:
            return shown, "json", cut
    if wanted in ("auto", "json") and not cut:
        shown = as_json(raw)
        if shown is not None:
            return shown, "json", cut
    if wanted != "hex":
        text = as_text(raw, cut)
        if text is not None:
            return text, "text", cut
    if wanted == "text":
        return raw.decode("utf-8", "replace"), "text", cut
    return as_hex(raw), "hex", cut


def as_json(raw: bytes) -> str | None:
    """Objects and lists with a line for each of their parts; anything else is better shown as it is."""
    if raw.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def as_unpacked(raw: bytes) -> str | None:
    """A dict or list as our own clients send them, in MessagePack; what JSON cannot say is written in words."""
    try:
        return json.dumps(msgspec.msgpack.decode(raw), indent=2, ensure_ascii=False, default=str)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None


def as_text(raw: bytes, cut: bool) -> str | None:
    """Text that can be shown; the last letter of one that is cut may be half of one."""
    for missing in range(4 if cut else 1):
        try:
            text = raw[: len(raw) - missing].decode()
        except UnicodeDecodeError:
            continue
        return text if all(sign.isprintable() or sign in "\t\r\n" for sign in text) else None
    return None


def as_hex(raw: bytes) -> str:
    """Offset, bytes, and what of them is ASCII."""
    lines = []
    for at in range(0, len(raw), HEX_WIDTH):
        part = raw[at : at + HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * HEX_WIDTH}} {letters}")
    return "\n".join(lines)
