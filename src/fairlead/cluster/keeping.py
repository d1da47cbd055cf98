"""A destination and the journal: records read again, checkpoints, and compaction."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead import selector as selectors
from fairlead.cluster import acceptance, care, consumers, dead, records, reserving, retention, settling, stored, ticking
from fairlead.cluster.books import Books
from fairlead.cluster.cursor import Cursor
from fairlead.cluster.ranges import Ranges
from fairlead.wire.entry_codec import details, survey
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.port import Bytes
    from fairlead.journal.index import Entry as Indexed

PLACED: Final = struct.Struct("<QIQIIQI")
"""A row of the index in a checkpoint."""


def apply(home: Destination, kind: int, index: int, place: int, head_and_payload: memoryview) -> None:
    """A record read again after a restart; COMMIT also when it is written."""
    body = memoryview(head_and_payload)
    home.last_index = max(home.last_index, index)
    match kind:
        case records.STORE | records.FIRE:
            _apply_store(home, kind, place, body)
        case records.HIDDEN:
            home.parts.apply_hidden(index, place, body)
        case records.COMMIT:
            home.parts.commit(index, body)
        case records.SETTLE:
            settling.apply(home, body)
        case records.MOVE:
            dead.apply(home, body, place)
        case records.MARK:
            _, number, beyond = records.MARK_RECORD.unpack_from(body)
            if number in home.cursors:
                cursor = home.cursors[number]
                cursor.mark = cursor.mark_safe = beyond  # lower than before only after `draining`
        case records.PLACE:
            one = stored.read(body)
            _placed(home, one.head, place, len(body))
        case records.CHANGE:
            facts = msgspec.json.decode(body)
            care.changed(home, msgspec.convert(facts["parameters"], type(home.parameters)))
        case records.SUBSCRIBE:
            consumers.subscribed(home, msgspec.json.decode(body))
        case records.UNSUBSCRIBE:
            cursor_number = msgspec.json.decode(body)["cursor"]
            if cursor_number and cursor_number in home.cursors:
                consumers.remove_cursor(home, home.cursors[cursor_number])
        case records.CANCEL:
            home.clock.cancel(msgspec.json.decode(body)["order"])
        case records.RESERVE | records.RESERVED:
            reserving.apply(home, kind, body)
        case _:
            pass


def _apply_store(home: Destination, kind: int, place: int, body: memoryview) -> None:
    one = stored.read(body)
    head = one.head
    if kind == records.FIRE:
        _, order, due = records.FIRE_RECORD.unpack_from(body, records.STORE_RECORD.size)
        home.clock.refire(order, due)
    if head.count:
        if head.send:
            home.remember(head.session, head.send, head.count, head.order)
        acceptance.reveal(home, acceptance.accept(home, head, place, len(body), one.view[one.start : one.end]))


def recovered(home: Destination) -> None:
    """All records are read: what may have been delivered counts as that, and open transactions are over."""
    home.parts.recovered()
    home.books = Books()  # what is read again went through before
    for cursor in home.cursors.values():
        for low, high in cursor.taken.intersect(cursor.again_below, cursor.mark):  # its delivery is not over yet
            for order in range(low, high):
                cursor.counts.setdefault(order, 0)
        cursor.again_below = max(cursor.again_below, cursor.mark)
        cursor.unkeyed = bool(cursor.delayed or cursor.taken)
        waiting = {order for order, due in home.clock.later.items() if due > home.port.now_ms}
        for order in [one for one, count in cursor.counts.items() if not count and one not in waiting]:
            if order not in cursor.taken:
                del cursor.counts[order]  # it fell due meanwhile, and may have been delivered
        for order in waiting:  # these were not, for certain
            cursor.counts.setdefault(order, 0)
    retention.trim(home)
    ticking.tick(home, home.port.now_ms)


def took_moved(home: Destination, entries: Bytes) -> None:
    """Messages were moved here; if they are dead this is a dead message queue."""
    if not home.takes_dead and b":dead-reason" in bytes(entries[:4096]):
        first = details(entries, 0, len(entries), 0, 1)[0]
        home.takes_dead = lookup(first.headers, b":dead-reason") is not None


def is_live(home: Destination, first: int, beyond: int) -> bool:
    """Does anybody still need one of these messages?"""
    if beyond <= home.first:
        return False
    if retention.retains(home.parameters) and home.first < beyond:
        return True
    if home.parameters.last_value and home.last_values.orders.intersect(first, beyond):
        return True
    return any(cursor.unsettled(first, min(beyond, home.next)) for cursor in home.cursors.values())


def compact(home: Destination, first: int, beyond: int) -> int:
    """Write what is still needed of these messages again (PLACE records); how many. Cold ones are fetched first."""
    total = 0
    for low, high in _needed(home, max(first, home.first), min(beyond, home.visible)):
        while low < high:
            entry = home.index.find(low)
            if entry is None:
                low += 1
                continue
            body = home.port.read(entry.place, entry.size)
            if body is None:
                return total
            end = min(high, entry.base + entry.count)
            _copy(home, stored.read(body), entry, low, end)
            total += end - low
            low = end
    return total


def _copy(home: Destination, one: stored.Stored, entry: Indexed, low: int, high: int) -> None:
    cut = one.cut(low - entry.base, high - low)
    count, flags, lowest, highest = survey(cut, 0, len(cut))
    head = stored.Head(
        home.number, flags, low, count, one.head.session, 0, 0, lowest, highest, one.head.sent_ms,
        entry.arrival_ms, stored.id_plus(one.head.id_first, low - entry.base), len(cut),
    )  # fmt: skip
    packed = head.pack()
    home.last_index, place = home.port.append(records.PLACE, packed, cut)
    _placed(home, head, place, len(packed) + len(cut))


def _needed(home: Destination, low: int, high: int) -> list[tuple[int, int]]:
    if retention.retains(home.parameters):
        return [(max(low, home.first), high)] if high > home.first else []
    found = Ranges()
    for cursor in home.cursors.values():
        for first, beyond in cursor.unsettled(low, high):
            found.add(first, beyond)
    if home.parameters.last_value:
        for first, beyond in home.last_values.orders.intersect(low, high):
            found.add(first, beyond)
    return list(found)


def _placed(home: Destination, head: stored.Head, place: int, size: int) -> None:
    """Compaction copied these. What they count as in bytes changes with their record."""
    low, high = head.order, head.order + head.count
    waiting, kept = settling.waiting_bytes(home, low, high), settling.bytes_of(home, low, high)
    home.index.replace(low, head.count, place, size, head.flags, head.arrival_ms)
    home.bytes += settling.waiting_bytes(home, low, high) - waiting
    home.kept_bytes += settling.bytes_of(home, low, high) - kept


def located(
    home: Destination, base: int, count: int, place: int, size: int, flags: int, arrival_ms: int, skip: int = 0
) -> None:
    """Where older messages lie, as the journal remembers it beside its segments. Between `restore` and `apply`."""
    if base + count > home.first:
        home.index.add(base, count, place, size, flags, arrival_ms, skip)


def snapshot(home: Destination, since: int = 0) -> dict[str, Any]:
    """Everything the journal's records said so far, for a checkpoint.

    Of the index only what is at or above the order number `since`: the journal itself knows where older messages are.
    """
    return {
        "parameters": msgspec.to_builtins(home.parameters),
        "next": home.next,
        "first": home.first,
        "low": home.low,
        "bytes": home.bytes,
        "kept_bytes": home.kept_bytes,
        "next_cursor": home.next_cursor,
        "takes_dead": home.takes_dead,
        "index": b"".join([PLACED.pack(*entry) for entry in home.index.all(max(home.first, since))]),
        "priorities": home.priorities.snapshot(),
        "cursors": [cursor.snapshot() for cursor in home.cursors.values() if cursor.durable],
        "clock": home.clock.snapshot(),
        "dedup": home.dedup.snapshot(),
        "last_values": home.last_values.snapshot(),
        "consumed": list(home.retention.consumed),
        "parts": home.parts.snapshot(),
        "recent": list(home.recent),
        "large": list(home.large.items()),
        "reservations": home.ledger.snapshot() if home.ledger is not None else None,
    }


def restore(home: Destination, state: Any) -> None:
    """From a checkpoint; records behind it follow by `apply`, then `recovered`."""
    home.parameters = msgspec.convert(state["parameters"], type(home.parameters))
    home.next = home.visible = state["next"]
    home.first = state["first"]
    home.bytes, home.kept_bytes = state["bytes"], state["kept_bytes"]
    home.takes_dead = state["takes_dead"]
    for entry in PLACED.iter_unpack(state["index"]):
        home.index.add(*entry)
    home.index.drop_below(home.first)
    home.priorities.restore(state["priorities"])
    home.clock.restore(state["clock"])
    home.dedup.restore(state["dedup"])
    home.last_values.restore(state["last_values"])
    home.retention.consumed.extend((ms, low) for ms, low in state["consumed"])
    home.parts.restore(state["parts"])
    home.recent.extend((bytes(session), *rest) for session, *rest in state["recent"])
    home.large = dict(state["large"])
    home.cursors.clear()
    home.selective = 0
    for one in state["cursors"]:
        consumers.add_cursor(home, Cursor.restored(one, selectors.compile(one["selector"]), home.priorities))
    home.next_cursor = state["next_cursor"]
    home.low = state["low"]
    home.parts.lock()
    if (reservations := state.get("reservations")) is not None:  # absent in checkpoints of older versions
        reserving.restore(home, reservations)
