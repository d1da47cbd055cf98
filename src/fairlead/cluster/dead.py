"""Moving messages to another destination in one record: to the dead message queue, out of it again, or anywhere.

One MOVE record stores the messages there and settles them here, so that no crash can lose or double one (CLU-202).
While the other destination is missing or blocked, or the message still on its way from disk, it is put aside: out of
distribution, to be tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fairlead.cluster import acceptance, keeping, records, settling, stored, ticking
from fairlead.errors import StoreFull
from fairlead.security.spaces import owner, prefix_of
from fairlead.wire.durable import ENTRY_LARGE, ENTRY_VOLATILE
from fairlead.wire.entry_codec import encode, survey
from fairlead.wire.kinds import HEADER_BYTES_MAX
from fairlead.wire.properties import Value, encode_properties, pairs

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination
    from fairlead.wire.entry_codec import Entry

DEAD_QUEUE: Final = "_DMQ"
KEPT_FLAGS: Final = ENTRY_LARGE | ENTRY_VOLATILE
REJECTED: Final = "rejected"
MOVE_MAX: Final = 1024
"""Messages of one MOVE record."""

Rewrite = Callable[["Entry", stored.Stored, int, int], bytes]
"""Entry, its record, position there, order number -> the entry as it will be."""


def bury(home: Destination, cursor: Cursor, low: int, high: int, reason: str) -> None:
    """These are dead, and held by nobody. What cannot be moved now is put aside."""
    if home.takes_dead:
        cursor.come_back(cursor.unsettled(low, high))  # a dead message never dies again (CLU-201)
        return
    cursor.take_out(low, high)
    cursor.aside.update(dict.fromkeys(range(low, high), reason))
    queue = home.port.find(home.parameters.dead_queue or prefix_of(owner(home.name)) + DEAD_QUEUE)
    moved = low
    if queue is not None and queue is not home and not queue.marks.blocked:
        before = cursor.depth(home.next)
        with suppress(StoreFull):
            moved = move(home, cursor, low, high, queue, headstone(home, cursor, reason))
        home.books.dead += before - cursor.depth(home.next)
    if moved < high:
        ticking.retry_later(home)


def headstone(home: Destination, cursor: Cursor, reason: str) -> Rewrite:
    """Adds to a message where it was addressed and why it is dead (CLU-200); body and properties stay as they are."""

    def rewrite(entry: Entry, one: stored.Stored, position: int, order: int) -> bytes:
        facts: dict[str, Value] = {
            ":dead-destination": home.name.removeprefix(prefix_of(owner(home.name))),
            ":dead-reason": reason,
            ":dead-ms": home.port.now_ms,
            ":dead-count": cursor.count(order) + (reason == REJECTED),  # that delivery is not counted yet
            ":dead-id": stored.id_plus(one.head.id_first, position).hex(),
        }
        return _rewritten(entry, one, facts)

    return rewrite


def unburied(entry: Entry, one: stored.Stored, position: int, order: int) -> bytes:
    """A message on its way back: without what was added when it died."""
    return _rewritten(entry, one, {})


def _rewritten(entry: Entry, one: stored.Stored, facts: Mapping[str, Value]) -> bytes:
    headers = entry.headers
    if b":dead-" in headers:
        headers = b"".join(
            bytes((len(name),)) + name + len(value).to_bytes(2, "little") + value
            for name, value in pairs(headers)
            if not name.startswith(b":dead-")
        )
    added = encode_properties({}, facts)
    if len(headers) + len(added) > HEADER_BYTES_MAX:
        added = encode_properties({}, {name: facts[name] for name in (":dead-destination", ":dead-reason")})
    if len(headers) + len(added) > HEADER_BYTES_MAX:
        added = b""  # its own properties leave no room
    return encode(
        bytes(one.view[entry.body_start : entry.body_end]),
        headers=added + headers,
        key=entry.key,
        priority=entry.priority,
        flags=entry.flags & KEPT_FLAGS,
    )


def move(home: Destination, cursor: Cursor, low: int, high: int, target: Destination, rewrite: Rewrite) -> int:
    """Store them there and settle them here; one beyond the last that was moved, if not all could be."""
    at = low
    while at < high:
        entry = home.index.find(at)
        if entry is None:
            at += 1
            continue
        body = home.port.read(entry.place, entry.size)
        if body is None:
            return at
        beyond = min(high, entry.base + entry.count, at + MOVE_MAX)
        one = stored.read(body)
        for first, end in cursor.unsettled(at, beyond):
            _move(home, cursor, first, end, target, one, entry.base, rewrite)
        at = beyond
    return high


def _move(
    home: Destination,
    cursor: Cursor,
    low: int,
    high: int,
    target: Destination,
    one: stored.Stored,
    base: int,
    rewrite: Rewrite,
) -> None:
    port = home.port
    pieces = [
        rewrite(entry, one, position, base + position)
        for position, entry in enumerate(one.entries(low - base, high - low), low - base)
    ]
    entries = b"".join(pieces)
    count, flags, lowest, highest = survey(entries, 0, len(entries))
    head = stored.Head(
        target.number, flags, target.next, count, stored.NOBODY, 0, 0, lowest, highest, one.head.sent_ms,
        port.now_ms, stored.id_plus(one.head.id_first, low - base), len(entries),
    )  # fmt: skip
    heads = head.pack() + b"".join(records.MOVED.pack(home.number, cursor.number, order) for order in range(low, high))
    index, place = port.append(records.MOVE, heads, entries)
    plan = acceptance.accept(target, head, place, len(heads) + len(entries), entries)
    keeping.took_moved(target, entries)
    target.last_index = index
    settling.finish(home, cursor, low, high)
    home.last_index = index
    port.after(index, lambda: acceptance.reveal(target, plan))


def apply(home: Destination, body: memoryview, place: int) -> None:
    """A MOVE record read again, for the destination it stored in and for the one it settled in."""
    one = stored.read(body)
    if one.head.destination == home.number:
        entries = one.view[one.start : one.end]
        plan = acceptance.accept(home, one.head, place, len(body), entries)
        keeping.took_moved(home, entries)
        acceptance.reveal(home, plan)
        return
    at = records.STORE_RECORD.size
    for position in range(one.head.count):
        number, cursor_number, order = records.MOVED.unpack_from(body, at + position * records.MOVED.size)
        cursor = home.cursors.get(cursor_number)
        if number == home.number and cursor is not None:
            settling.finish(home, cursor, order, order + 1)
