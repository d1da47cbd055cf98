"""Records that hold messages, read and written: where their entries are, and what stands at their head.

STORE, HIDDEN, MOVE, PLACE and FIRE all begin with a STORE_RECORD and end with the entries: one way of reading fits all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fairlead.cluster.port import Bytes
from fairlead.cluster.records import STORE_RECORD
from fairlead.wire.durable import ENTRY_CRON, ENTRY_KEY, ENTRY_LARGE, ENTRY_TIMED
from fairlead.wire.entry_codec import Entry, details, span

NOBODY: Final = bytes(20)
MADE: Final = b"\x42"  # in the place of an id's kind: not a number given to a session
SEQUENCE_MAX: Final = (1 << 56) - 1

CLOSE_LOOK: Final = ENTRY_KEY | ENTRY_TIMED | ENTRY_CRON
"""Entries with one of these flags are looked at singly before they are delivered."""
AT_ACCEPTANCE: Final = ENTRY_TIMED | ENTRY_LARGE | ENTRY_CRON
"""Entries with one of these flags are looked at singly when they are accepted."""


class Head(NamedTuple):
    """A STORE_RECORD by name."""

    destination: int
    flags: int
    order: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    session: bytes
    send: int
    transaction: int
    low: int
    high: int
    sent_ms: int
    arrival_ms: int
    id_first: bytes
    size: int  # of the entries

    def pack(self) -> bytes:
        return STORE_RECORD.pack(*self)


class Stored(NamedTuple):
    """One record of messages in memory; entries are `view[start:end]`."""

    view: memoryview
    start: int
    end: int
    head: Head

    def entries(self, first: int = 0, count: int = -1) -> list[Entry]:
        return details(self.view, self.start, self.end, first, count)

    def cut(self, first: int, count: int) -> memoryview:
        """The bytes of some of them; all of them need no look."""
        if first == 0 and count == self.head.count:
            return self.view[self.start : self.end]
        low, high = span(self.view, self.start, self.end, first, count)
        return self.view[low:high]


def read(body: Bytes) -> Stored:
    """From the bytes of a whole record."""
    view = memoryview(body)
    head = Head(*STORE_RECORD.unpack_from(view))
    return Stored(view, len(view) - head.size, len(view), head)


def id_plus(first: bytes, position: int) -> bytes:
    """The id of the message so many places behind the first one of its record."""
    if not position:
        return first
    return first[:12] + ((int.from_bytes(first[12:]) + position) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)


def own_id(destination: bytes, number: int, order: int) -> bytes:
    """The id of a message no session sent but the destination itself made, by a schedule."""
    return destination[:12] + MADE + ((number & 0xF_FFFF) << 36 | order & 0xF_FFFF_FFFF).to_bytes(7)
