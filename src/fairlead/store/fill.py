"""How full a ring is, for an onlooker that neither produces nor consumes.

Read while both sides work, so the answer is a snapshot that may be a little torn; it never raises and never writes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fairlead.store import layout as at

ENTRIES_SEEN_MAX: Final = 20_000


class Fill(NamedTuple):
    """What waits in a ring."""

    head: int
    tail: int
    entries: int  # all entries waiting, at most ENTRIES_SEEN_MAX of them counted
    counted: int  # client messages among them
    capacity: int

    @property
    def waiting_bytes(self) -> int:
        return self.tail - self.head


def positions(ring: memoryview) -> tuple[int, int]:
    """(head, tail): how far was consumed, how far was published."""
    head, tail = struct.unpack_from("<Q", ring, at.RING_HEAD)[0], struct.unpack_from("<Q", ring, at.RING_TAIL)[0]
    return head, max(head, tail)


def fill(ring: memoryview) -> Fill:
    """Walk the entries between head and tail."""
    head, tail = positions(ring)
    (capacity,) = struct.unpack_from("<Q", ring, at.RING_CAPACITY)
    (popped,) = struct.unpack_from("<Q", ring, at.RING_POPPED)
    entries, last_counted, position = 0, popped, head
    while position < tail and entries < ENTRIES_SEEN_MAX:
        place = position & (capacity - 1)
        if capacity - place < at.ENTRY_HEADER_BYTES:
            position += capacity - place
            continue
        size, kind, _, _, counted = struct.unpack_from(at.ENTRY_FORMAT, ring, at.RING_DATA + place)
        if size < at.ENTRY_ALIGN or size % at.ENTRY_ALIGN or size > capacity:
            break  # the consumer went past us and the producer wrote here anew
        if kind != at.ENTRY_PAD:
            entries += 1
            last_counted = counted
        position += size
    return Fill(head, tail, entries, max(0, last_counted - popped), capacity)
