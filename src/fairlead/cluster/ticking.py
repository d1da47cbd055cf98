"""Time passes for a destination: delays end, messages expire, schedules make new ones, lost sessions are given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import acceptance, care, consumers, cron, dead, records, retention, settling, stored
from fairlead.cluster.times import expires_ms
from fairlead.errors import StoreFull
from fairlead.wire.durable import ENTRY_CRON, ENTRY_TIMED
from fairlead.wire.entry_codec import survey

if TYPE_CHECKING:
    from fairlead.cluster.clockwork import Schedule
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination

RETRY_MS: Final = 1000


def tick(home: Destination, now_ms: int) -> None:
    """Whatever the time brings: delays that are over, expiry, schedules, retention, lost sessions given up."""
    for order in home.clock.due(now_ms):
        for cursor in home.cursors.values():
            if order >= cursor.floor and not cursor.is_settled(order):
                cursor.come_back([(order, order + 1)])
    for cursor in home.cursors.values():
        delays_over(cursor, now_ms)
        for session in list(cursor.held):
            for share in [one for one in cursor.held[session] if one.held_until_ms <= now_ms]:
                cursor.held[session].remove(share)
                consumers.give_up(home, cursor, share)
            if not cursor.held[session]:
                del cursor.held[session]
    for order in home.clock.expiring(now_ms):
        look_through(home, order)
    for schedule in home.clock.firing(now_ms):
        fire(home, schedule)
    if home.retry_due:
        home.retry_due = False
        for cursor in list(home.cursors.values()):
            for order, reason in list(cursor.aside.items()):
                dead.bury(home, cursor, order, order + 1, reason)
    retention.trim(home)
    wake(home)
    home.port.ready(home)


def tidy(home: Destination, now_ms: int) -> None:
    """The part of it that changes nothing but memory: for whoever is only told records."""
    if home.trim_due or home.parameters.retain_s:
        retention.trim(home)
    if len(home.dedup):
        home.dedup.trim(now_ms, home.parameters.dedup_s, home.parameters.dedup_max)
    home.clock.prune()
    for cursor in home.cursors.values():
        _ = cursor.next_due_ms  # forgets what is settled on its way


def wake(home: Destination) -> None:
    times = [home.clock.next_ms(), *(cursor.next_due_ms for cursor in home.cursors.values())]
    times += [share.held_until_ms for one in home.cursors.values() for held in one.held.values() for share in held]
    if retention.retains(home.parameters):
        times.append(home.retention.next_ms(home.parameters))
    due = min((one for one in times if one), default=0)
    if due:
        home.port.wake_at(home, max(due, home.port.now_ms + 1))
    if home.retry_due:
        home.port.wake_at(home, home.port.now_ms + RETRY_MS)


def fire(home: Destination, one: Schedule) -> None:
    """Make the message of a schedule that fell due, and say in the same record when it does so again."""
    now_ms = home.port.now_ms
    following = cron.next_after(one.cron, now_ms) or 0
    count, flags, low, high = survey(one.entry, 0, len(one.entry))
    head = stored.Head(
        home.number, flags, home.next, count, stored.NOBODY, 0, 0, low, high, one.sent_ms, now_ms,
        stored.own_id(home.id, home.number, home.next), len(one.entry),
    )  # fmt: skip
    heads = head.pack() + records.FIRE_RECORD.pack(home.number, one.order, following)
    try:
        index, place = home.port.append(records.FIRE, heads, one.entry)
    except StoreFull:
        home.clock.refire(one.order, now_ms + RETRY_MS)
        return
    home.clock.refire(one.order, following)
    size = len(heads) + len(one.entry)
    plan = acceptance.accept(home, head, place, size, memoryview(one.entry))
    home.port.after(index, lambda: acceptance.reveal(home, plan))


def look_through(home: Destination, order: int) -> None:
    """Look through the record of this message for what is expired."""
    now_ms = home.port.now_ms
    entry = home.index.find(order)
    if entry is None:
        return
    beyond = entry.base + entry.count
    if not entry.flags & ENTRY_TIMED:
        if home.ttl_ms:
            expired_everywhere(home, entry.base, beyond)
        return
    body = home.port.read(entry.place, entry.size)
    if body is None:
        home.clock.expire_at(now_ms + RETRY_MS, order)
        return
    later = 0
    for position, message in enumerate(stored.read(body).entries()):
        when = expires_ms(message, entry.arrival_ms, home.ttl_ms)
        if not when or message.flags & ENTRY_CRON:
            continue
        if when <= now_ms:
            expired_everywhere(home, entry.base + position, entry.base + position + 1)
        elif not later or when < later:
            later = when
    if later:
        home.clock.expire_at(later, beyond - 1)


def delays_over(cursor: Cursor, now_ms: int) -> bool:
    """Returned messages whose delay is over are ready again; with them what their keys held up."""
    orders = cursor.fall_due(now_ms)
    for order in orders:
        cursor.come_back([(order, order + 1)])
        cursor.come_back(cursor.groups.unblock(order))
    return bool(orders)


def retry_later(home: Destination) -> None:
    """Something was put aside: try again in a while."""
    home.retry_due = True
    home.port.wake_at(home, home.port.now_ms + RETRY_MS)


def expired(home: Destination, cursor: Cursor, low: int, high: int) -> None:
    """These are expired for this cursor, and held by nobody (CLU-23)."""
    home.books.expired += high - low
    if home.parameters.expired == "dead":
        dead.bury(home, cursor, low, high, "expired")
    else:
        settling.write(home, cursor, [(low, high, records.EXPIRED, 0, 0)])


def expired_everywhere(home: Destination, low: int, high: int) -> None:
    """Expired wherever they are still waiting and nobody holds them."""
    for cursor in list(home.cursors.values()):
        for first, beyond in care.free(cursor, low, high) if not cursor.opened_ms else ():
            expired(home, cursor, first, beyond)  # what a named cursor has read once it can read again
    home.last_values.drop(low, high)
