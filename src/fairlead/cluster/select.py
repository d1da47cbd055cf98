"""Putting a message to a selector: which facts beside its headers it may ask for (CLU-19)."""

from __future__ import annotations

from fairlead.cluster.stored import Stored, id_plus
from fairlead.selector import Facts, Selector
from fairlead.wire.durable import ENTRY_VOLATILE
from fairlead.wire.entry_codec import Entry


def selects(selector: Selector, entry: Entry, stored: Stored, position: int, deliveries: int) -> bool:
    """Is this message wanted? `position` is its place in its record; unknown is as good as no."""
    facts = Facts(
        priority=entry.priority,
        timestamp_ms=stored.head.sent_ms,
        message_id=id_plus(stored.head.id_first, position),
        delivery_count=deliveries,
        key=entry.key,
        persistent=not entry.flags & ENTRY_VOLATILE,
    )
    return selector.matches(entry.headers, facts) is True
