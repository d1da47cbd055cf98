"""When a message becomes available and when it expires, from what its entry says."""

from __future__ import annotations

from fairlead.wire.durable import ENTRY_CRON, ENTRY_TIMED
from fairlead.wire.entry_codec import Entry
from fairlead.wire.properties import lookup


def due_ms(entry: Entry, arrival_ms: int) -> int:
    """When it becomes available."""
    due = arrival_ms + entry.delay_ms
    if entry.flags & ENTRY_TIMED and b":due" in entry.headers and not entry.flags & ENTRY_CRON:
        at = lookup(entry.headers, b":due")
        if isinstance(at, int):
            due = max(due, min(at, 1 << 53))
    return due


def expires_ms(entry: Entry, arrival_ms: int, default_ttl_ms: int) -> int:
    """When it expires, counted from when it became available; 0: never."""
    ttl_ms = entry.ttl_ms or default_ttl_ms
    return due_ms(entry, arrival_ms) + ttl_ms if ttl_ms else 0
