"""What becomes of messages that were handed out: acknowledged, returned, released, rejected; and all else that settles.

Each settling is a line of a SETTLE record, unless the cursor is one that no restart outlives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fairlead.cluster import dead, records
from fairlead.wire.durable import ACKNOWLEDGE, ACTIONS, RELEASE, RETURN

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor, Share
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Consumer, Session

MANY: Final = 64
"""Messages beyond which those of whole records are not looked up one by one."""

Line = tuple[int, int, int, int, int]
"""A SETTLE_LINE: first, one beyond, what, reason or raised count, due."""


def settle(
    home: Destination,
    consumer: Consumer,
    items: list[tuple[int, int, int, int]],
    transaction: int,
    tag: int,
    patient: bool = False,
) -> None:
    """What a consumer did with its messages. What it does not hold is stale, and that is answered (CLU-126)."""
    cursor = home.cursors.get(consumer.cursor)
    share = cursor.share_of(consumer) if cursor is not None else None
    stale: list[tuple[int, int]] = []
    index = 0
    if cursor is None or share is None:
        if consumer not in home.views:
            stale = [(low, high) for low, high, _, _ in items if low < high]
    else:
        lines: list[Line] = []
        for low, high, action, delay_ms in items:
            if low >= high:
                continue
            if action not in ACTIONS:
                stale.append((low, high))
                continue
            if share.locked.covered(low, high):
                owned = [(low, high)]
            else:
                owned = share.locked.intersect(low, high)
                stale += share.locked.gaps(low, high)
            for first, beyond in owned:
                share.locked.remove(first, beyond)
                consumer.held -= beyond - first
            if not owned:
                continue
            if action == ACKNOWLEDGE and transaction:
                for first, beyond in owned:
                    cursor.taken.add(first, beyond)
                home.parts.settle(consumer.session, transaction, cursor.number, owned)
            elif action == ACKNOWLEDGE:
                for first, beyond in owned:
                    home.books.acknowledged += beyond - first
                    lines.append((first, beyond, records.GONE, 0, 0))
            elif action == RELEASE:
                free_keys(home, cursor, share, owned)
                cursor.come_back(part for low, high in owned for part in cursor.unsettled(low, high))
            elif action == RETURN:
                index = returned(home, cursor, share, owned, delay_ms)
            else:  # REJECT
                free_keys(home, cursor, share, owned)
                for first, beyond in owned:
                    dead.bury(home, cursor, first, beyond, dead.REJECTED)
                index = home.last_index
        if lines:
            index = write(home, cursor, lines) or index
            free_keys(home, cursor, share, [(line[0], line[1]) for line in lines])
        if cursor.has_parked:
            cursor.come_back(cursor.groups.room(share))
    if stale:
        home.stale += sum(high - low for low, high in stale)
        if transaction:
            home.parts.doom(consumer.session, transaction, "a message it received was not its consumer's any more")
    if tag:
        home.port.after(index, lambda: home.port.settled(consumer, tag, stale), patient=patient)
    home.port.ready(home)


def free_keys(home: Destination, cursor: Cursor, share: Share, ranges: Iterable[tuple[int, int]]) -> None:
    if share.keys:
        for low, high in ranges:
            cursor.come_back(cursor.groups.give(share, low, high))


def returned(
    home: Destination, cursor: Cursor, share: Share | None, ranges: Iterable[tuple[int, int]], delay_ms: int = 0
) -> int:
    """Deliveries are undone: counts rise, and with them delays; over the limit a message is dead (CLU-25, CLU-26)."""
    limit = 0 if home.takes_dead else home.parameters.delivery_limit
    now_ms = home.port.now_ms
    lines: list[Line] = []
    for low, high in ranges:
        for start, end in cursor.unsettled(low, high):
            for first, beyond, count in cursor.alike(start, end):
                delay = delay_ms or _delay_ms(home, count + 1)
                lines.append((first, beyond, records.RAISED, count + 1, now_ms + delay if delay else 0))
    for first, beyond, _, _, due in lines:
        if due and share is not None:
            for order in range(first, beyond) if share.keys else ():
                if order in share.keys:
                    cursor.groups.block(share.keys[order], order)
    index = write(home, cursor, lines)
    if share is not None:
        free_keys(home, cursor, share, ranges)
    for first, beyond, _, count, _ in lines:
        if limit and count >= limit:
            for order in range(first, beyond):
                cursor.delayed.pop(order, None)
                cursor.come_back(cursor.groups.unblock(order))
            dead.bury(home, cursor, first, beyond, "delivery-limit")
            index = home.last_index
    return index


def _delay_ms(home: Destination, count: int) -> int:
    limits = home.parameters
    if not limits.redelivery_delay_s:
        return 0
    exponent = min(count - 1, 64)
    return int(
        1000 * min(limits.redelivery_delay_s * limits.redelivery_factor**exponent, limits.redelivery_delay_max_s)
    )


def write(home: Destination, cursor: Cursor, lines: list[Line]) -> int:
    """Settle in one record; its index, or 0 if there is nothing to write."""
    if not lines:
        return 0
    index = 0
    if cursor.durable:
        head = records.SETTLE_RECORD.pack(home.number, cursor.number, 0, len(lines))
        body = b"".join([records.SETTLE_LINE.pack(*line) for line in lines])
        index, _ = home.port.append(records.SETTLE, head + body)
        home.last_index = index
    for line in lines:
        apply_line(home, cursor, line)
    home.port.ready(home)
    return index


def apply_line(home: Destination, cursor: Cursor, line: Line) -> None:
    low, high, what, count, due = line
    if what != records.RAISED:
        finish(home, cursor, low, high)
        return
    cursor.counts.update(dict.fromkeys(range(low, high), count))
    if due:
        cursor.take_out(low, high)
        for order in range(low, high):
            cursor.delay(order, due)
        home.port.wake_at(home, due)
    else:
        cursor.come_back(cursor.unsettled(low, high))


def apply(home: Destination, body: memoryview) -> None:
    """A SETTLE record read again."""
    _, number, _, count = records.SETTLE_RECORD.unpack_from(body)
    size = records.SETTLE_RECORD.size
    lines = list(records.SETTLE_LINE.iter_unpack(body[size : size + count * records.SETTLE_LINE.size]))
    cursor = home.cursors.get(number)
    if cursor is not None:
        for line in lines:
            apply_line(home, cursor, line)


def finish(home: Destination, cursor: Cursor, low: int, high: int) -> None:
    """Settled for good."""
    if home.kind == "queue":
        for first, beyond in cursor.unsettled(low, min(high, home.next)):
            home.bytes -= bytes_of(home, first, beyond)
        if home.large:
            large_gone(home, low, high)
    cursor.settle(low, min(high, home.next))
    home.trim_due = True


def bytes_of(home: Destination, low: int, high: int) -> int:
    """Bytes of these messages; of a record in part, the same part of its bytes."""
    total = 0
    if high - low > MANY:
        first, beyond, total = home.index.whole(low, high)
        if first < beyond:
            return bytes_of(home, low, first) + total + bytes_of(home, beyond, high)
    while low < high:
        entry = home.index.find(low)
        if entry is None:
            low += 1
            continue
        beyond = min(high, entry.base + entry.count)
        if low == entry.base and beyond == low + entry.count:
            total += entry.size
        else:
            total += entry.size * (beyond - entry.base) // entry.count
            total -= entry.size * (low - entry.base) // entry.count
        low = beyond
    return total


def waiting_bytes(home: Destination, low: int, high: int) -> int:
    if home.kind == "topic":
        return bytes_of(home, max(low, home.low), high)
    return sum(bytes_of(home, first, beyond) for first, beyond in home.cursors[0].unsettled(low, high))


def large_gone(home: Destination, low: int, high: int) -> None:
    for order in [one for one in home.large if low <= one < high]:
        home.port.large_gone(home.large.pop(order))


def abort(home: Destination, session: Session, transaction: int) -> None:
    """Rolled back: its messages never were, what it took comes again and counts (CLU-159, CLU-160)."""
    for number, low, high in home.parts.take(session, transaction):
        cursor = home.cursors.get(number)
        if cursor is None:
            continue
        cursor.taken.remove(low, high)
        share = next((one for one in cursor.shares if one.consumer.session.id == session.id), None)
        if cursor.durable or home.parameters.rollback_redelivers:
            returned(home, cursor, share, [(low, high)])
            if cursor.has_waiting_keys:
                for order in [one for one in range(low, high) if one not in cursor.delayed]:
                    cursor.come_back(cursor.groups.unblock(order))
        else:
            write(home, cursor, [(low, high, records.GONE, 0, 0)])
            if share is not None:
                free_keys(home, cursor, share, [(low, high)])
    home.port.ready(home)


def missing(home: Destination, cursor: Cursor, low: int, high: int) -> None:
    """The journal has lost these: damage that was reported when it was opened."""
    following = next(iter(home.index.following(low)), None)
    beyond = max(min(high, following.base) if following is not None else high, low + 1)
    write(home, cursor, [(low, beyond, records.DROPPED, 0, 0)])
    _tell_lost(home, low, beyond)


def hole(home: Destination, low: int, high: int) -> None:
    """The record of these is not in the journal any more, though later ones are."""
    for cursor in home.cursors.values():
        cursor.settle(low, high)
    _tell_lost(home, low, high)


def _tell_lost(home: Destination, low: int, high: int) -> None:
    text = f"Messages {low} to {high - 1} of {home.name!r} are lost to damage of the journal."
    home.port.event("error", "messages-lost", text, destination=home.name)
