"""What an administrator does with the messages of a destination: look, purge, drop, move. Paged by order number.

Messages somebody holds are left alone. What has to be fetched from disk first ends a page early: the page says where to
go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlead import selector as selectors
from fairlead.cluster import dead, records, settling, showcase, stored, ticking
from fairlead.cluster.retention import retains
from fairlead.cluster.select import selects
from fairlead.errors import WrongKind

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parameters import Parameters
    from fairlead.journal.index import Entry as Indexed
    from fairlead.selector import Selector
    from fairlead.wire.entry_codec import Entry

PAGE_MAX = 10_000


class Seen(NamedTuple):
    """One message, as an administrator sees it."""

    order: int
    id: bytes
    deliveries: int  # so far
    state: str  # ready, locked, delayed, dead (and not yet moved), hidden, consumed (and still kept)
    sent_ms: int
    arrival_ms: int
    entry: Entry
    body: bytes


class Subscription(NamedTuple):
    """One durable subscription of a topic."""

    cursor: int
    name: str
    client: str
    selector: str
    shared: bool
    pattern: str
    depth: int
    opened_ms: int = 0  # it is a named cursor since then; 0: it is for consumers


class Page(NamedTuple):
    messages: list[Seen]
    next: int | None  # where to go on; None: that was all
    waits: bool  # it ended early: what comes next is being fetched from disk


def browse(home: Destination, start: int, count: int, text: str, *, kept: bool) -> Page:
    """Messages from this order number on; `kept`: also those that are consumed."""
    selector = selectors.compile(text)
    found: list[Seen] = []
    at, looked = max(start, home.first), 0
    while at < home.visible:
        span = readable(home, at, home.visible, not kept)
        if span is None:
            break
        low, high = span
        entry = home.index.find(low)
        if entry is None:
            at = low + 1
            continue
        one = _read(home, entry)
        if one is None:
            return Page(found, low, True)
        high = min(high, entry.base + entry.count)
        for position, message in enumerate(one.entries(low - entry.base, high - low), low - entry.base):
            order = entry.base + position
            if len(found) >= count or looked >= PAGE_MAX:
                return Page(found, order, False)
            looked += 1
            if selector is None or selects(selector, message, one, position, home.deliveries(order)):
                identity = stored.id_plus(one.head.id_first, position)
                body = bytes(one.view[message.body_start : message.body_end])
                found.append(
                    Seen(
                        order,
                        identity,
                        home.deliveries(order),
                        state(home, order),
                        one.head.sent_ms,
                        entry.arrival_ms,
                        message,
                        body,
                    )
                )
        at = high
    return Page(found, None, False)


def purge(home: Destination, text: str, start: int, most: int) -> tuple[int, int | None]:
    """Drop what nobody holds and the selector matches: how many, and where to go on (None: that was all)."""
    selector = selectors.compile(text)
    if selector is None:
        return drop(home, [(0, home.visible)]), None
    at, dropped, looked = max(start, home.first), 0, 0
    while at < home.visible:
        entry = home.index.find(at)
        if entry is None:
            at += 1
            continue
        if looked >= most:
            return dropped, at
        one = _read(home, entry)
        if one is None:
            return dropped, at
        dropped += drop(home, _matching(one, entry.base, at, selector))
        looked += entry.base + entry.count - at
        at = entry.base + entry.count
    return dropped, None


def _read(home: Destination, entry: Indexed) -> stored.Stored | None:
    body = home.port.read(entry.place, entry.size)
    return None if body is None else stored.read(body)


def _matching(one: stored.Stored, base: int, at: int, selector: Selector) -> list[tuple[int, int]]:
    return [
        (base + position, base + position + 1)
        for position, entry in enumerate(one.entries())
        if base + position >= at and selects(selector, entry, one, position, 1)
    ]


def drop(home: Destination, ranges: Iterable[tuple[int, int]]) -> int:
    """Remove these for good, but for what somebody holds."""
    total = 0
    for cursor in list(home.cursors.values()):
        lines = []
        for low, high in ranges:
            for first, beyond in free(cursor, low, min(high, home.visible)):
                lines.append((first, beyond, records.DROPPED, 0, 0))
                total += beyond - first
        settling.write(home, cursor, lines)
    for low, high in ranges:
        home.last_values.drop(low, high)
    return total


def free(cursor: Cursor, low: int, high: int) -> list[tuple[int, int]]:
    """Unsettled messages of this range nobody holds."""
    found = cursor.unsettled(low, high)
    for held in (*(share.locked for share in cursor.all_shares()), cursor.taken):
        if held:
            found = [part for first, beyond in found for part in held.gaps(first, beyond)]
    return found


def move(home: Destination, ranges: Iterable[tuple[int, int]], target: Destination) -> int:
    """To another destination, each in one step; headers of dead messages are taken off. How many were moved."""
    if home.kind != "queue" or target is home:
        raise WrongKind("Messages are moved out of a queue, into another destination.")
    cursor = home.cursors[0]
    moved = 0
    for low, high in ranges:
        for first, beyond in free(cursor, low, min(high, home.visible)):
            before = cursor.depth(home.next)
            dead.move(home, cursor, first, beyond, target, dead.unburied)
            moved += before - cursor.depth(home.next)
    return moved


def state(home: Destination, order: int) -> str:
    """For administration: what is with this message?"""
    if order in home.clock.later:
        return "delayed"
    cursors = [one for one in home.cursors.values() if not one.is_settled(order)]
    if not cursors:
        return "consumed"
    cursor = cursors[0]
    if order in cursor.delayed:
        return "delayed"
    if order in cursor.aside:
        return "dead"
    return "ready" if cursor.is_free(order) else "locked"


def facts(home: Destination) -> dict[str, Any]:
    shares = [share for cursor in home.cursors.values() for share in cursor.shares]
    return {
        "name": home.name,
        "kind": home.kind,
        "id": home.id.hex(),
        "number": home.number,
        "depth": home.depth,
        "bytes": home.bytes,
        "first": home.first,
        "next": home.next,
        "kept": home.next - home.first,
        "kept_bytes": home.kept_bytes if retains(home.parameters) else home.bytes,
        "ready": sum(ready.total for cursor in home.cursors.values() for ready in cursor.ready.values()),
        "locked": sum(cursor.locked() for cursor in home.cursors.values()),
        "delayed": len(home.clock.later) + sum(len(cursor.delayed) for cursor in home.cursors.values()),
        "aside": sum(len(cursor.aside) for cursor in home.cursors.values()),
        "schedules": len(home.clock.schedules),
        "transactions": len(home.parts),
        "consumers": len(shares) + len(home.views),
        "subscriptions": sum(cursor.number != 0 for cursor in home.cursors.values()),
        "blocked": home.blocked,
        "paused": home.parameters.paused,
        "stale": home.stale,
        "dropped": sum(cursor.dropped for cursor in home.cursors.values()),
        "oldest_ms": showcase.oldest_ms(home),
        **showcase.totals(home),
    }


def subscriptions(home: Destination) -> list[Subscription]:
    return [
        Subscription(
            one.number,
            one.name,
            one.client,
            one.selector.text if one.selector else "",
            one.shared,
            one.pattern,
            one.depth(home.next),
            one.opened_ms,
        )
        for one in home.cursors.values()
        if one.durable and one.number
    ]


def readable(home: Destination, at: int, end: int, waiting: bool) -> tuple[int, int] | None:
    """The next messages from here on that can be read; `waiting`: that are not consumed."""
    if not waiting:
        return (max(at, home.first), end) if max(at, home.first) < end else None
    if home.kind == "queue":
        spans = home.cursors[0].settled.gaps(max(at, home.cursors[0].floor), end)
        return spans[0] if spans else None
    return (max(at, home.low), end) if max(at, home.low) < end else None


def bury_all(home: Destination, reason: str = "deleted") -> int:
    """Everything that waits goes to the dead message queue, before this destination is deleted; how many."""
    before = home.depth
    for cursor in list(home.cursors.values()):
        for low, high in free(cursor, home.first, home.visible):
            dead.bury(home, cursor, low, high, reason)
    return before - home.depth


def schedules(home: Destination) -> list[dict[str, Any]]:
    return [
        {
            "order": one.order,
            "due_ms": one.due_ms,
            "cron": one.cron,
            "bytes": len(one.entry),
            "id": one.id_first.hex(),
        }
        for one in home.clock.schedules.values()
    ]


def cancel(home: Destination, order: int) -> bool:
    """End a schedule; False: there is none."""
    if order not in home.clock.schedules:
        return False
    facts = {"number": home.number, "order": order}
    home.last_index, _ = home.port.append(records.CANCEL, msgspec.json.encode(facts))
    return home.clock.cancel(order)


def change(home: Destination, parameters: Parameters) -> int:
    """Other parameters, for good: the index of the record that says so."""
    facts = {"number": home.number, "parameters": parameters}
    index, _ = home.port.append(records.CHANGE, msgspec.json.encode(facts))
    home.last_index = index
    changed(home, parameters)
    home.port.ready(home)
    return index


def changed(home: Destination, parameters: Parameters) -> None:
    before = home.ttl_ms
    if retains(parameters) and not retains(home.parameters):
        home.kept_bytes = settling.bytes_of(home, home.first, home.next)
    home.parameters = parameters
    if home.ttl_ms and home.ttl_ms != before:
        for entry in home.index.following(home.first):
            home.clock.expire_at(entry.arrival_ms + home.ttl_ms, entry.base + entry.count - 1)
    home.trim_due = True
    ticking.wake(home)
