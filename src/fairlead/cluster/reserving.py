"""The cursors of a queue: made, given messages (gathering.py finds which), committed, released; and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster import dispatch, records, settling
from fairlead.cluster.cursor import Share
from fairlead.cluster.parties import Consumer, Session
from fairlead.cluster.reservations import CURSORS_MAX, Ledger, Reservation
from fairlead.errors import BadName, TooMany

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination

NOBODY: Final = Session(id=bytes(20), number=0, incarnation=0, ack="individual", line=None)


def ledger_of(home: Destination) -> Ledger:
    if home.ledger is None:
        home.ledger = Ledger()
    return home.ledger


def find(home: Destination, name: str) -> Reservation:
    """The cursor of this name, or BadName."""
    found = home.ledger.by_name.get(name) if home.ledger is not None else None
    if found is None:
        raise BadName(f"{home.name!r} has no cursor {name!r}.")
    return found


def make(home: Destination, name: str) -> Reservation:
    """The cursor of this name, made if need be."""
    ledger = ledger_of(home)
    found = ledger.by_name.get(name)
    if found is None:
        if len(ledger.by_name) >= CURSORS_MAX:
            raise TooMany(f"{home.name!r} has {CURSORS_MAX} cursors already.")
        take(home, name, ledger.past, (), {})
        found = ledger.by_name[name]
    return found


def commit(home: Destination, reservation: Reservation, end: int) -> None:
    """Everything before this position is acknowledged, in one record. Again is harmless."""
    if end > reservation.at:
        _tell(home, reservation, records.COMMITTED, end)


def release(home: Destination, reservation: Reservation) -> int:
    """The end of a cursor: what was not committed is anybody's again, and does not count as delivered. How many."""
    count = len(reservation)
    _tell(home, reservation, records.RELEASED, reservation.at)
    return count


def _tell(home: Destination, reservation: Reservation, what: int, position: int) -> None:
    name = reservation.name.encode()
    head = records.RESERVED_RECORD.pack(home.number, len(name), what, position, home.port.now_ms)
    home.last_index, _ = home.port.append(records.RESERVED, head + name)
    reservation.index = home.last_index
    reserved(home, reservation.name, what, position, home.port.now_ms)
    home.port.ready(home)


# ---------------------------------------------------------------------- the journal


def take(
    home: Destination, name: str, position: int, runs: Sequence[tuple[int, int]], lasts: Mapping[bytes, int]
) -> None:
    """Reserve these in one record, the first at this position. `lasts`: of each key which of them is its last."""
    now_ms, plain = home.port.now_ms, name.encode()
    head = records.RESERVE_RECORD.pack(home.number, len(plain), 0, len(runs), len(lasts), position, now_ms)
    keys = [(key, position + at) for key, at in lasts.items()]
    body = [plain, *(records.RESERVE_RUN.pack(low, high) for low, high in runs)]
    for key, last in keys:
        body += (records.RESERVE_KEY.pack(last, len(key), 0), key)
    home.last_index, _ = home.port.append(records.RESERVE, head, b"".join(body))
    reserve(home, name, position, runs, keys, now_ms)
    ledger_of(home).by_name[name].index = home.last_index
    cursor = home.cursors[0]
    target = cursor.mark
    home.port.after(home.last_index, lambda: dispatch.marked(home, cursor, target))


def reserve(
    home: Destination,
    name: str,
    position: int,
    runs: Iterable[tuple[int, int]],
    keys: Iterable[tuple[bytes, int]],
    now_ms: int,
) -> None:
    """A RESERVE record, when it is written and when it is read again."""
    ledger, cursor = ledger_of(home), home.cursors[0]
    one = ledger.by_name.get(name)
    if one is None:
        one = ledger.by_name[name] = Reservation(name, position, _share(home, cursor), now_ms)
    one.used_ms = now_ms
    for low, high in runs:
        one.add(low, high)
        cursor.reserve(one.share, low, high)
        home.clock.take(low, high)
    for key, last in keys:
        one.hold(key, last)
        cursor.groups.hold(key, one.share)


def reserved(home: Destination, name: str, what: int, position: int, now_ms: int) -> None:
    """A RESERVED record, when it is written and when it is read again."""
    ledger, cursor = ledger_of(home), home.cursors[0]
    one = ledger.by_name.get(name)
    if one is None:
        return
    one.used_ms = now_ms
    spans, free = one.commit(position if what == records.COMMITTED else one.reserved)
    for low, high in spans:
        one.share.locked.remove(low, high)
        if what == records.COMMITTED:
            home.books.acknowledged += high - low
            settling.finish(home, cursor, low, high)
    if what == records.RELEASED:
        ledger.drop(name)
        cursor.reserved.remove(one.share)
        for low, high in spans:
            cursor.come_back(cursor.unsettled(low, high))
    for key in free:
        cursor.come_back(cursor.groups.free(key, one.share))


def apply(home: Destination, kind: int, body: memoryview) -> None:
    """Either record, read again."""
    if kind == records.RESERVED:
        _, length, what, position, now_ms = records.RESERVED_RECORD.unpack_from(body)
        at = records.RESERVED_RECORD.size
        reserved(home, str(body[at : at + length], "utf-8"), what, position, now_ms)
        return
    _, length, _, runs, keys, position, now_ms = records.RESERVE_RECORD.unpack_from(body)
    at = records.RESERVE_RECORD.size
    name = str(body[at : at + length], "utf-8")
    at += length
    beyond = at + runs * records.RESERVE_RUN.size
    found: list[tuple[bytes, int]] = []
    spans = list(records.RESERVE_RUN.iter_unpack(body[at:beyond]))
    for _ in range(keys):
        last, size, _ = records.RESERVE_KEY.unpack_from(body, beyond)
        beyond += records.RESERVE_KEY.size
        found.append((bytes(body[beyond : beyond + size]), last))
        beyond += size
    reserve(home, name, position, spans, found, now_ms)
    cursor = home.cursors[0]
    cursor.mark_safe = max(cursor.mark_safe, cursor.mark)


def restore(home: Destination, state: dict[str, Any]) -> None:
    """From a checkpoint, behind the queue's own cursor."""
    cursor, cursors = home.cursors[0], []
    for one in state["cursors"]:
        made = Reservation.restored(one, _share(home, cursor))
        cursors.append(made)
        for low, high in made.spans(made.at, made.reserved):
            cursor.reserve(made.share, low, high)
        for key in made.keys:
            cursor.groups.hold(key, made.share)
    if cursors or state["past"]:
        ledger_of(home).restore(state["past"], cursors)


def _share(home: Destination, cursor: Cursor) -> Share:
    """A share without credit, which so is never open."""
    share = Share(Consumer(handle=0, session=NOBODY, destination=home))
    cursor.reserved.append(share)
    return share
