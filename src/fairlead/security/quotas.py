"""How much a tenant, or one user, may use; 0 is no limit.

Where the answer is a refusal it is `quota-exceeded`; a rate is kept by reading slower, so that nothing is lost.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**62)]


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of each server or client manager; storage and destinations of the whole."""

    connections: Count = 0
    messages_per_s: Count = 0
    storage_bytes: Count = 0
    message_bytes: Count = 0
    destinations: Count = 0
    subscriptions: Count = 0

    def said(self) -> dict[str, Any]:
        """Those that are limits."""
        return {name: value for name in KINDS if (value := getattr(self, name))}


KINDS: Final = Quota.__struct_fields__
SENTENCES: Final = {
    "connections": "Connections at a time.",
    "messages_per_s": "Messages a second; who sends faster is read slower.",
    "storage_bytes": "Bytes of messages in its queues and topics.",
    "message_bytes": "Bytes of one message.",
    "destinations": "Queues and durable topics.",
    "subscriptions": "Subscriptions of all its clients together.",
}
