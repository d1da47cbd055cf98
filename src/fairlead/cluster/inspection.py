"""Messages as an administrator sees them: plain values that fit into JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Literal

from fairlead.wire.durable import ENTRY_LARGE, ENTRY_VOLATILE, LARGE
from fairlead.wire.properties import decode

if TYPE_CHECKING:
    from fairlead.cluster.care import Seen

Form = Literal["text", "base64", "none"]


def shown(seen: Seen, form: Form, body_bytes: int) -> dict[str, Any]:
    """One message; its body as text where it is UTF-8 and text is wanted, else in base64, cut after `body_bytes`."""
    entry = seen.entry
    headers = {name: _plain(value) for name, value in decode(bytes(entry.headers)).items()}
    facts: dict[str, Any] = {
        "order": seen.order,
        "id": seen.id.hex(),
        "state": seen.state,
        "deliveries": seen.deliveries,
        "priority": entry.priority,
        "key": entry.key.decode(errors="replace") or None,
        "persistent": not entry.flags & ENTRY_VOLATILE,
        "sent_ms": seen.sent_ms,
        "arrival_ms": seen.arrival_ms,
        "ttl_ms": entry.ttl_ms,
        "delay_ms": entry.delay_ms,
        "properties": {name: value for name, value in headers.items() if not name.startswith(":")},
        "headers": {name[1:]: value for name, value in headers.items() if name.startswith(":")},
        "bytes": len(seen.body),
    }
    if entry.flags & ENTRY_LARGE:
        file, length, digest = LARGE.unpack_from(seen.body)
        return facts | {"bytes": length, "large": {"file": file, "sha256": digest.hex()}}
    if form == "none":
        return facts
    part = seen.body[:body_bytes]
    facts["cut"] = len(part) < len(seen.body)
    if form == "text":
        try:
            return facts | {"body": part.decode()}
        except UnicodeDecodeError:
            pass
    return facts | {"body_base64": b64encode(part).decode()}


def _plain(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
