"""Handing out: who gets which messages of a cursor now, and the DELIVER chunks made of them.

Consumers take turns in runs. A run is a part of one record: where nothing in the record is out of the ordinary, its
bytes go out as they lie in the journal, whatever their number. Only messages with keys, times or a selector are looked
at singly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import records, settling, stored, ticking
from fairlead.cluster.select import selects
from fairlead.cluster.times import expires_ms
from fairlead.wire.durable import CHUNK, ENTRY_CRON, ENTRY_KEY

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor, Share
    from fairlead.cluster.destination import Destination
    from fairlead.journal.index import Entry as Indexed
    from fairlead.wire.entry_codec import Entry

RUNS_PER_TURN: Final = 128
LOOK_MAX: Final = 256
"""Messages looked at singly in one run."""
RUN_FAIR: Final = 64
"""Messages of one run while others could take some, too."""
LOTS: Final = 1 << 32
FRAME_BYTES: Final = 512 * 1024
AHEAD: Final = 16
"""Marks are taken so many windows ahead."""


class Waits(Exception):
    """What is to be handed out next is not in memory; `on_loaded` will tell."""


def chunk(one: stored.Stored, entry: Indexed, low: int, high: int, deliveries: int) -> tuple[bytes, memoryview]:
    """The head and the entries of a DELIVER chunk."""
    position = low - entry.base
    cut = one.cut(position, high - low)
    identity = stored.id_plus(one.head.id_first, position)
    head = CHUNK.pack(low, high - low, deliveries, one.head.sent_ms, entry.arrival_ms, identity, len(cut), 0)
    return head, cut


def run(home: Destination, cursor: Cursor) -> bool:
    """Hand out what can be handed out, within bounds. True: there is more to do."""
    if home.visible == home.next and not cursor.waiting():
        return False
    shares = _open_shares(home, cursor)
    if not shares:
        return False
    if cursor.durable:
        _mark(home, cursor, shares)
    fair = LOTS
    if len(shares) > 1:
        fair = max(1, min(RUN_FAIR, -(-cursor.waiting() // len(shares))))
    left = RUNS_PER_TURN
    touched = list(shares)
    at = cursor.rotation % len(shares)
    try:
        while shares and left:
            left -= 1
            share = shares[at]
            if _run(home, cursor, share, fair) and share.is_open:
                at += 1
            else:
                del shares[at]
            if at >= len(shares):
                at = 0
    except Waits:
        shares = []
    cursor.rotation += 1
    for share in touched:
        _flush(home, share)
    return bool(shares)


def _open_shares(home: Destination, cursor: Cursor) -> list[Share]:
    shares = cursor.shares
    if len(shares) > 1:
        exclusive = next((share for share in shares if share.consumer.exclusive), None)
        if exclusive is not None or home.parameters.exclusive:
            shares = [exclusive or shares[0]]
    return [share for share in shares if share.is_open]


def _run(home: Destination, cursor: Cursor, share: Share, fair: int) -> bool:
    """One run for one consumer; False: there is nothing for it."""
    levels = cursor.ready
    for priority in sorted(levels, reverse=True) if len(levels) > 1 else levels:
        ready = levels[priority]
        if share.consumer.selector is None:
            first = ready.first_range()
            low, high = first or (0, 0)
        else:
            low, high = next(ready.since(share.scanned.get(priority, 0)), (0, 0))
        if low >= high:
            continue
        if low >= cursor.mark_safe:
            return False  # its mark is on the way to disk; nothing of a lower priority goes before it (CLU-22)
        high = min(high, cursor.mark_safe)
        entry = home.index.find(low)
        if entry is None:
            settling.missing(home, cursor, low, high)
            return True
        high = min(high, entry.base + entry.count)
        if (
            entry.flags & stored.CLOSE_LOOK
            or share.consumer.selector is not None
            or (cursor.selector is not None and low < cursor.filtered_from)
        ):
            _closely(home, cursor, share, priority, low, min(high, low + LOOK_MAX), entry, fair)
        elif home.ttl_ms and entry.arrival_ms + home.ttl_ms <= home.port.now_ms:
            ticking.expired(home, cursor, low, high)
        else:
            most = min(fair, share.consumer.messages)
            _hand(home, cursor, share, priority, low, min(high, low + most), entry, fit=True)
        return True
    return False


def _hand(
    home: Destination, cursor: Cursor, share: Share, priority: int, low: int, high: int, entry: Indexed, *, fit: bool
) -> None:
    """These go to this consumer: locked, counted against its credit, and put into its frame.

    `fit`: fewer of them if they are more bytes than it has credit for.
    """
    consumer = share.consumer
    one = read(home, entry)
    if fit and high - low > 1 and (size := (one.end - one.start) * (high - low) // entry.count) > consumer.bytes:
        high = low + max(1, (high - low) * consumer.bytes // size)
    for first, beyond, count in cursor.alike(low, high):
        head, cut = chunk(one, entry, first, beyond, count + 1)
        share.out += (head, cut)
        share.out_bytes += len(head) + len(cut)
        consumer.bytes -= len(cut)
        if count:
            home.books.redelivered += beyond - first
    home.books.delivered += high - low
    consumer.messages -= high - low
    consumer.held += high - low
    cursor.ready[priority].remove(low, high)
    share.locked.add(low, high)
    if share.out_bytes > FRAME_BYTES:
        _flush(home, share)


def _closely(
    home: Destination,
    cursor: Cursor,
    share: Share,
    priority: int,
    low: int,
    high: int,
    entry: Indexed,
    fair: int,
) -> None:
    """A run of messages each of which is looked at: expired, not selected, of a key somebody else has."""
    if cursor.unkeyed and entry.flags & ENTRY_KEY:
        find_keys(home, cursor)
    one = read(home, entry)
    messages, size = min(share.consumer.messages, fair), share.consumer.bytes  # still free for this consumer
    first = order = low  # `first` of those chosen for it that are not handed over yet

    def hand_over(beyond: int) -> None:
        nonlocal first
        if first < beyond:
            _hand(home, cursor, share, priority, first, beyond, entry, fit=False)
        first = beyond + 1

    for position, message in enumerate(one.entries(low - entry.base, high - low), low - entry.base):
        order = entry.base + position
        if messages <= 0 or size <= 0:
            break
        fate = _fate(home, cursor, share, message, one, position, entry)
        if isinstance(fate, str):
            hand_over(order)
            if fate == EXPIRED:
                ticking.expired(home, cursor, order, order + 1)
            elif fate == UNWANTED:
                settling.write(home, cursor, [(order, order + 1, records.GONE, 0, 0)])
            elif fate == PARKED:
                cursor.ready[priority].remove(order, order + 1)
            continue
        if message.flags & ENTRY_KEY:
            cursor.groups.take(message.key, order, fate)
        if fate is share:
            messages -= 1
            size -= message.end - message.start
        else:
            hand_over(order)
            _hand(home, cursor, fate, priority, order, order + 1, entry, fit=False)
    else:
        order += 1
    hand_over(order)
    if share.consumer.selector is not None:
        share.scanned[priority] = order


def find_keys(home: Destination, cursor: Cursor) -> None:
    """Which keys are held up by returned messages that wait for their delay, and by those of prepared transactions?"""
    taken = (order for low, high in home.parts.prepared(cursor.number) for order in range(low, high))
    for order in sorted((*cursor.delayed, *taken)):
        entry = home.index.find(order)
        if entry is not None and entry.flags & ENTRY_KEY:
            (message,) = read(home, entry).entries(order - entry.base, 1)
            if message.key:
                cursor.groups.block(message.key, order)
    cursor.unkeyed = False


EXPIRED: Final = "expired"
UNWANTED: Final = "unwanted"
SKIPPED: Final = "skipped"
PARKED: Final = "parked"


def _fate(
    home: Destination,
    cursor: Cursor,
    share: Share,
    message: Entry,
    one: stored.Stored,
    position: int,
    entry: Indexed,
) -> Share | str:
    order = entry.base + position
    expiry = expires_ms(message, entry.arrival_ms, home.ttl_ms)
    if expiry and expiry <= home.port.now_ms:
        return EXPIRED
    if message.flags & ENTRY_CRON:
        return UNWANTED  # a schedule is no message
    late = cursor.selector if order < cursor.filtered_from else None
    if late is not None and not selects(late, message, one, position, 1):
        return UNWANTED

    def wanted(by: Share) -> bool:
        selector = by.consumer.selector
        return selector is None or selects(selector, message, one, position, cursor.count(order) + 1)

    if not wanted(share):
        return SKIPPED
    if not message.flags & ENTRY_KEY:
        return share
    chosen = cursor.groups.choose(message.key, order, share, lambda other: other.is_open and wanted(other))
    if chosen is None:
        return PARKED
    if chosen is not share and (share.consumer.selector is not None or chosen.consumer.selector is not None):
        return SKIPPED  # it finds it by its own scan, in its own order
    return chosen


def read(home: Destination, entry: Indexed) -> stored.Stored:
    """The record of this entry, or Waits."""
    if home.last_read is not None and home.last_read[0] == entry.place:
        return home.last_read[1]
    body = home.port.read(entry.place, entry.size)
    if body is None:
        raise Waits
    one = stored.read(body)
    home.last_read = (entry.place, one)
    return one


def _flush(home: Destination, share: Share) -> None:
    if share.out:
        home.port.deliver(share.consumer, share.out)
        share.out = []
        share.out_bytes = 0


def _mark(home: Destination, cursor: Cursor, shares: list[Share]) -> None:
    """Write down, ahead, how far deliveries may have gone, so that after a crash what comes again says so (CLU-25).

    The record goes to disk with the messages it is for; only a backlog ever waits for one.
    """
    if cursor.mark >= home.next:
        return
    credit = window = 0
    for share in shares:
        credit += share.consumer.messages
        window += max(share.window, share.consumer.messages)
    position = -1
    for priority, ready in cursor.ready.items():
        first = ready.first()
        if first is not None:
            position = max(position, first, *(share.scanned.get(priority, 0) for share in shares))
    if position < 0:
        if home.visible >= home.next:
            return
        position = home.visible
    if cursor.mark - position >= 2 * credit:
        return
    cursor.mark = target = min(home.next, max(cursor.mark, position) + AHEAD * window)
    index, _ = home.port.append(records.MARK, records.MARK_RECORD.pack(home.number, cursor.number, target))
    home.port.after(index, lambda: marked(home, cursor, target))


def marked(home: Destination, cursor: Cursor, target: int) -> None:
    cursor.mark_safe = max(cursor.mark_safe, target)
    home.port.ready(home)
