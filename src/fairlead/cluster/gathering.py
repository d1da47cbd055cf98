"""What a cursor of a queue gets: the messages that would be handed out next.

It takes them in the order of dispatch and by the same rules: priority first, nothing expired or delayed, no grouping
key somebody else has a message of, nothing beside an exclusive consumer. Long work is done in steps, a RESERVE record
each: whatever is interrupted, what was reserved so far stays, and is given first when the cursor asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from fairlead.cluster import dispatch, records, reserving, settling, stored, ticking
from fairlead.cluster.times import expires_ms
from fairlead.errors import BadName, FairleadError, TooMany
from fairlead.wire.durable import ENTRY_CRON, ENTRY_KEY
from fairlead.wire.entry_codec import keys as keys_of

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor, Share
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line
    from fairlead.cluster.reservations import Reservation
    from fairlead.journal.index import Entry as Indexed

STEP: Final = 2048
"""Records passed over in one turn, or messages looked at singly."""
LOOK_MAX: Final = 256
"""Messages looked at singly, before limits are looked at again."""
KEYED_MAX: Final = 4096
"""Messages with keys taken at once, where no key of them is in anybody's way."""
RUNS_MAX: Final = 8192
KEY_BYTES_MAX: Final = 256 * 1024
"""Of one RESERVE record."""
LOTS: Final = 1 << 62


@dataclass(slots=True, eq=False)
class Asked:
    """Somebody who waits for a reservation."""

    line: Line
    reservation: Reservation
    start: int
    messages: int  # still wanted; 0: as many as there are
    bytes: int
    done: Callable[[int | FairleadError], None]  # gets the end; the reservation's `index` has to be safe by then
    at: int = 0  # how far it reaches by now
    scanned: dict[int, int] = field(default_factory=dict)  # priority -> looked at up to here


class Taking:
    """What one step found to reserve."""

    __slots__ = ("key_bytes", "keys", "runs", "total")

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.keys: dict[bytes, int] = {}  # the last of each, counted from the first message; rising
        self.key_bytes = 0
        self.total = 0

    def add(self, low: int, high: int, keys: Iterable[tuple[bytes, int]] = ()) -> None:
        """These, and of their keys which of them is the last, in rising order."""
        for key, at in keys:
            if self.keys.pop(key, None) is None:
                self.key_bytes += len(key) + records.RESERVE_KEY.size
            self.keys[key] = self.total + at
        if self.runs and self.runs[-1][1] == low:
            self.runs[-1] = (self.runs[-1][0], high)
        else:
            self.runs.append((low, high))
        self.total += high - low

    @property
    def is_full(self) -> bool:
        return len(self.runs) >= RUNS_MAX or self.key_bytes >= KEY_BYTES_MAX


def ask(home: Destination, asked: Asked) -> None:
    """Reserve so much, in the destination's next turns."""
    asked.at = asked.start
    asked.messages, asked.bytes = asked.messages or LOTS, asked.bytes or LOTS
    reserving.ledger_of(home).asked.append(asked)
    home.port.ready(home)


def run(home: Destination) -> bool:
    """Whoever waits for a reservation gets more of it. True: there is more to do."""
    assert home.ledger is not None
    more = False
    for asked in list(home.ledger.asked):
        answer: int | FairleadError | None = None
        try:
            if _step(home, asked):
                answer = asked.at
            else:
                more = True
        except dispatch.Waits:
            continue
        except FairleadError as refusal:
            answer = refusal
        except Exception:
            home.ledger.asked.remove(asked)  # what went wrong once would do so in every turn
            asked.done(FairleadError("The server met a fault of its own; its log says more."))
            raise
        if answer is not None:
            home.ledger.asked.remove(asked)
            if not asked.line.gone:
                asked.done(answer)
    home.last_read = None
    return more


def _step(home: Destination, asked: Asked) -> bool:
    """A bounded piece of it; True: that was all."""
    assert home.ledger is not None
    one = asked.reservation
    if asked.line.gone:
        return True
    if home.ledger.by_name.get(one.name) is not one:
        raise BadName(f"The cursor {one.name!r} of {home.name!r} was released.")
    left = STEP
    asked.at = max(asked.at, one.at)
    if asked.at < one.reserved:  # what it has already comes first
        left = _again(home, asked, left)
    if asked.at < one.reserved or asked.messages <= 0 or asked.bytes <= 0:
        return left > 0
    cursor = home.cursors[0]
    if home.parameters.paused or _is_taken(home, cursor):
        return True
    if one.is_crowded:
        if asked.at > asked.start:
            return True
        raise TooMany(
            f"The cursor {one.name!r} has reserved {len(one)} messages in too many pieces; commit some first."
        )
    if cursor.has_parked:  # of its own keys: consumers have to wait for these, it has not
        cursor.come_back(cursor.groups.room(one.share, min(asked.messages, KEYED_MAX)))
    taking = Taking()
    try:
        return _gather(home, cursor, asked, taking, left)
    finally:
        if taking.runs:
            reserving.take(home, one.name, one.reserved, taking.runs, taking.keys)
            asked.at = one.reserved


def _is_taken(home: Destination, cursor: Cursor) -> bool:
    """Does one consumer get everything?"""
    return bool(cursor.shares) and (
        home.parameters.exclusive or any(share.consumer.exclusive for share in cursor.shares)
    )


def _again(home: Destination, asked: Asked, left: int) -> int:
    """How far its limits reach in what is reserved already; how many records may still be passed over."""
    one = asked.reservation
    end = min(one.reserved, asked.at + asked.messages)
    if asked.bytes >= LOTS:
        asked.messages -= end - asked.at
        asked.at = end
        return left
    for low, high in one.spans(asked.at, end, left):
        beyond, asked.bytes, left = _measure(home, low, high, asked.bytes, left, at_least=asked.at == asked.start)
        asked.at += beyond - low
        asked.messages -= beyond - low
        if beyond < high:
            break
    return left


def _measure(
    home: Destination, low: int, high: int, size: int, left: int, *, at_least: bool = False
) -> tuple[int, int, int]:
    """How far so many bytes reach from `low` on: one beyond the last; and what is left of the bytes and the records.

    `at_least`: one message, however long.
    """
    for entry in home.index.following(low):
        if low >= high or left <= 0 or size <= 0:
            return low, size, left
        beyond = min(high, entry.base + entry.count)
        low = max(low, min(entry.base, beyond))
        part = entry.size * (beyond - low) // entry.count
        if part > size:
            fit = max(size * entry.count // entry.size, int(at_least))
            return min(low + fit, beyond), 0, left
        size -= part
        low = beyond
        left -= 1
        at_least = False
    return (high if left > 0 and size > 0 else low), size, left


def _gather(home: Destination, cursor: Cursor, asked: Asked, taking: Taking, left: int) -> bool:
    """Find what is to be reserved next; True: nothing more is there, or wanted."""
    for priority in sorted(cursor.ready, reverse=True):
        ready = cursor.ready[priority]
        while asked.messages > 0 and asked.bytes > 0:
            low, high = next(ready.since(asked.scanned.get(priority, 0)), (0, 0))
            if low >= high:
                break
            if left <= 0 or taking.is_full:
                return False
            entry = home.index.find(low)
            if entry is None:
                settling.missing(home, cursor, low, high)
                continue
            end = min(high, entry.base + entry.count)
            if home.parameters.last_value or entry.flags & stored.CLOSE_LOOK:
                beyond = _at_once(home, cursor, asked, taking, entry, low, end)
                left -= 1 + (beyond - low) // 8
                if beyond == low:
                    end = min(end, low + LOOK_MAX)
                    beyond = _singly(home, cursor, asked, taking, entry, low, end)
                    left -= end - low
            elif _is_old(home, entry):
                ticking.expired(home, cursor, low, end)
                beyond = end
                left -= 1
            else:
                beyond, left = _plainly(home, asked, taking, entry, low, high, left)
            asked.scanned[priority] = beyond
    return True


def _is_old(home: Destination, entry: Indexed) -> bool:
    return home.ttl_ms > 0 and entry.arrival_ms + home.ttl_ms <= home.port.now_ms


def _plainly(
    home: Destination, asked: Asked, taking: Taking, entry: Indexed, low: int, high: int, left: int
) -> tuple[int, int]:
    """Take from this record on up to the first that needs a look; where that is, and how many more may be passed."""
    high = min(high, low + asked.messages)
    beyond = min(high, entry.base + entry.count)
    left -= 1
    for other in home.index.following(beyond):
        if beyond >= high or left <= 0 or other.base > beyond:
            break
        if other.flags & stored.CLOSE_LOOK or _is_old(home, other):
            break
        beyond = min(high, other.base + other.count)
        left -= 1
    if asked.bytes < LOTS:
        first = asked.at == asked.start and not taking.total
        beyond, asked.bytes, _ = _measure(home, low, beyond, asked.bytes, LOTS, at_least=first)
    if low < beyond:
        asked.messages -= beyond - low
        taking.add(low, beyond)
    return beyond, left


def _at_once(
    home: Destination, cursor: Cursor, asked: Asked, taking: Taking, entry: Indexed, low: int, high: int
) -> int:
    """Messages in which nothing is special but their keys, all of which are free; how far, `low` if that is not so."""
    if entry.flags & stored.CLOSE_LOOK != ENTRY_KEY or home.parameters.last_value or _is_old(home, entry):
        return low
    high = min(high, low + KEYED_MAX, low + asked.messages)
    size = entry.size * (high - low) // entry.count
    if size > asked.bytes:
        return low
    if cursor.unkeyed:
        dispatch.find_keys(home, cursor)
    one = dispatch.read(home, entry)
    found = keys_of(one.view, one.start, one.end, low - entry.base, high - low)
    lasts = dict(zip(found, range(high - low), strict=True))
    lasts.pop(b"", None)
    if sum(map(len, lasts)) > KEY_BYTES_MAX or not cursor.groups.are_free(lasts.keys(), asked.reservation.share):
        return low
    taking.add(low, high, sorted(lasts.items(), key=itemgetter(1)))
    asked.messages -= high - low
    asked.bytes -= size
    return high


def _singly(
    home: Destination, cursor: Cursor, asked: Asked, taking: Taking, entry: Indexed, low: int, high: int
) -> int:
    """Look at each of these; how far it came."""
    if cursor.unkeyed and entry.flags & ENTRY_KEY:
        dispatch.find_keys(home, cursor)
    one = dispatch.read(home, entry)
    share, groups = asked.reservation.share, cursor.groups
    newest = home.last_values.orders if home.parameters.last_value else None

    def has_room(other: Share) -> bool:
        """Will dispatch give it to the consumer that has others of its key?"""
        return other.is_open and groups.is_held(message.key)

    for position, message in enumerate(one.entries(low - entry.base, high - low), low - entry.base):
        order = entry.base + position
        expiry = expires_ms(message, entry.arrival_ms, home.ttl_ms)
        if expiry and expiry <= home.port.now_ms:
            ticking.expired(home, cursor, order, order + 1)
            continue
        if message.flags & ENTRY_CRON:
            settling.write(home, cursor, [(order, order + 1, records.GONE, 0, 0)])
            continue
        if newest is not None and message.key and order not in newest:
            continue  # a newer value is on its way to disk
        size = message.end - message.start
        if size > asked.bytes and (taking.total or asked.at > asked.start):
            asked.bytes = 0
        if asked.messages <= 0 or asked.bytes <= 0 or taking.is_full:
            return order
        if message.flags & ENTRY_KEY:
            chosen = groups.choose(message.key, order, share, has_room)
            if chosen is None:
                cursor.take_out(order, order + 1)  # parked
            if chosen is not share:
                continue
        taking.add(order, order + 1, [(message.key, 0)] if message.flags & ENTRY_KEY else ())
        asked.messages -= 1
        asked.bytes -= size
    return high
