"""What follows from messages being accepted: where they are, when they are due, for whom they are.

`accept` runs when the record is written and again, with the same result, when it is read after a restart. The plan it
makes is carried out by `reveal` when the record is safe. A record in which nothing is out of the ordinary is not looked
into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import consumers, cron, records, settling, stored
from fairlead.cluster.clockwork import Schedule
from fairlead.cluster.ranges import Ranges
from fairlead.cluster.select import selects
from fairlead.cluster.times import due_ms, expires_ms
from fairlead.wire.durable import (
    ENTRY,
    ENTRY_CRON,
    ENTRY_DEDUP,
    ENTRY_LARGE,
    ENTRY_TIMED,
    LARGE,
    PRIORITY_DEFAULT,
)
from fairlead.wire.entry_codec import span
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line
    from fairlead.cluster.port import Bytes
    from fairlead.wire.entry_codec import Entry

LOOK_AT: Final = stored.AT_ACCEPTANCE | ENTRY_DEDUP


class Plan:
    """Messages accepted and not yet visible."""

    __slots__ = ("base", "beyond", "entries", "link", "matches", "origin", "priority", "replaced", "withheld")

    def __init__(self, base: int, beyond: int, priority: int) -> None:
        self.base = base
        self.beyond = beyond
        self.priority: int | None = priority  # of all of them; None: not of one only
        self.withheld: list[int] = []  # delayed, or a schedule
        self.matches: dict[int, Ranges] = {}  # cursor with a selector -> what it is for
        self.replaced: list[int] = []  # older values of the same keys
        self.entries: bytes | None = None  # of a topic, for its transient subscribers
        self.link = -1
        self.origin: Line | None = None


def needs_look(home: Destination, flags: int, low: int, high: int) -> bool:
    """Is there anything in these messages that has to be known at acceptance?"""
    return bool(flags & LOOK_AT or low != high or home.parameters.last_value or home.selective)


def accept(home: Destination, head: stored.Head, place: int, size: int, entries: memoryview | bytes | None) -> Plan:
    """Take a record of messages in. `entries` may be None where `needs_look` says no."""
    base, beyond = head.order, head.order + head.count
    if base > home.next:
        settling.hole(home, home.next, base)
    home.index.add(base, head.count, place, size, head.flags, head.arrival_ms)
    home.next = max(home.next, beyond)  # a batch being published has its numbers already
    home.bytes += size
    home.kept_bytes += size
    plan = Plan(base, beyond, head.low)
    if needs_look(home, head.flags, head.low, head.high):
        assert entries is not None
        _look(home, plan, head, memoryview(entries))
    else:
        if head.low != PRIORITY_DEFAULT:
            home.priorities.set(base, beyond, head.low)
        if home.ttl_ms:
            home.clock.expire_at(head.arrival_ms + home.ttl_ms, beyond - 1)
    return plan


def _look(home: Destination, plan: Plan, head: stored.Head, entries: memoryview) -> None:
    one = stored.Stored(entries, 0, len(entries), head)
    messages = one.entries()
    earliest = 0
    if head.low != head.high:
        plan.priority = None
    for order, message in enumerate(messages, head.order):
        home.priorities.set(order, order + 1, message.priority)
        if message.flags & LOOK_AT:
            _note(home, plan, head, order, message, entries)
        expiry = expires_ms(message, head.arrival_ms, home.ttl_ms)
        if expiry and not message.flags & ENTRY_CRON and (not earliest or expiry < earliest):
            earliest = expiry
        if home.parameters.last_value and message.key and not message.flags & ENTRY_CRON:
            before = home.last_values.put(message.key, order)
            if before is not None:
                plan.replaced.append(before)
    if earliest:
        home.clock.expire_at(earliest, plan.beyond - 1)
    for cursor in home.cursors.values():
        if cursor.selector is not None:
            plan.matches[cursor.number] = wanted = Ranges(
                (plan.base + position, plan.base + position + 1)
                for position, message in enumerate(messages)
                if selects(cursor.selector, message, one, position, 1)
            )
            for low, high in wanted.gaps(plan.base, plan.beyond):
                cursor.settle(low, high)


def _note(home: Destination, plan: Plan, head: stored.Head, order: int, message: Entry, entries: memoryview) -> None:
    if message.flags & ENTRY_DEDUP:
        identity = lookup(message.headers, b":dedup")
        if isinstance(identity, str):
            home.dedup.remember(identity, order, head.arrival_ms)
    if message.flags & ENTRY_CRON:
        plan.withheld.append(order)
        for cursor in home.cursors.values():
            cursor.settle(order, order + 1)  # a schedule is no message
        expression = str(lookup(message.headers, b":cron"))
        due = cron.next_after(expression, head.arrival_ms)
        if due:
            entry = _without_flags(bytes(entries[message.start : message.end]), ENTRY_CRON | ENTRY_DEDUP)
            identity_first = stored.id_plus(head.id_first, order - head.order)
            home.clock.schedule(Schedule(order, expression, due, entry, head.sent_ms, identity_first))
    elif message.flags & ENTRY_TIMED:
        due = due_ms(message, head.arrival_ms)
        if due > head.arrival_ms:
            plan.withheld.append(order)
            home.clock.withhold(order, due)
    if message.flags & ENTRY_LARGE:
        home.large[order] = transfer = LARGE.unpack_from(entries, message.body_start)[0]
        home.port.large_kept(transfer)


def reveal(home: Destination, plan: Plan) -> None:
    """Accepted messages are safe, and so there for everybody they are for."""
    runs: list[tuple[int, int]] = [(plan.base, plan.beyond)]
    if plan.withheld:
        runs = consumers.without(plan.base, plan.beyond, plan.withheld)
    for cursor in list(home.cursors.values()):
        if cursor.floor < plan.beyond:
            _offer(home, cursor, plan, runs)
    for order in plan.replaced:
        _replace(home, order)
    home.visible = max(home.visible, plan.beyond)
    home.trim_due = True
    if plan.entries is not None:
        _broadcast(home, plan)
    if home.clock.next_ms():
        home.port.wake_at(home, home.clock.next_ms())
    home.port.ready(home)


def _offer(home: Destination, cursor: Cursor, plan: Plan, runs: list[tuple[int, int]]) -> None:
    if plan.origin is not None and any(
        share.consumer.no_local and share.consumer.session.line is plan.origin for share in cursor.shares
    ):
        settling.write(home, cursor, [(plan.base, plan.beyond, records.GONE, 0, 0)])
        return
    matches = plan.matches.get(cursor.number)
    if matches is not None:
        runs = [part for low, high in runs for part in matches.intersect(low, high)]
    for low, high in runs:
        if plan.priority is not None:
            cursor.open(low, high, plan.priority)
        else:
            for priority, first, beyond in home.priorities.runs(low, high):
                cursor.open(first, beyond, priority)
    if not cursor.durable and home.parameters.slow_subscriber == "drop-oldest":
        _drop_oldest(home, cursor)


def _drop_oldest(home: Destination, cursor: Cursor) -> None:
    """CLU-107: a slow non-durable subscriber loses its oldest messages, and that is counted."""
    surplus = cursor.waiting() - home.parameters.subscriber_buffer
    while surplus > 0:
        dropped = 0
        for ready in list(cursor.ready.values()):
            for low, high in ready.peek(surplus):
                cursor.settle(low, high)
                dropped += high - low
                surplus -= high - low
        if not dropped:
            return
        cursor.dropped += dropped


def _replace(home: Destination, order: int) -> None:
    """A newer value came: the older one goes to nobody any more."""
    for cursor in home.cursors.values():
        if cursor.is_free(order):
            cursor.settle(order, order + 1)


def _broadcast(home: Destination, plan: Plan) -> None:
    entries: Bytes = plan.entries or b""
    if plan.withheld:
        cuts = consumers.without(plan.base, plan.beyond, plan.withheld)
        spans = [span(entries, 0, len(entries), low - plan.base, high - low) for low, high in cuts]
        entries = b"".join([entries[first:beyond] for first, beyond in spans])
    if entries:
        home.port.broadcast(home, entries, plan.link)


def _without_flags(entry: bytes, flags: int) -> bytes:
    """The same entry without these flags."""
    length, has, *rest = ENTRY.unpack_from(entry)
    return ENTRY.pack(length, has & ~flags, *rest) + entry[ENTRY.size :]
