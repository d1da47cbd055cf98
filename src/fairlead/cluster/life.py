"""The life of one message, told by the records of a journal: where it was stored, and what became of it there.

Records are told in their order. Only what they say is told: a time is that of the batch a record was written with, and
who got a message is not in them. The first record found may be a copy that compaction made, since the file with the
original is gone; then what was settled before the copy is found by telling everything once more (`again`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from fairlead.cluster import records, stored
from fairlead.cluster.describe import MESSAGES
from fairlead.cluster.ids import ID_BYTES
from fairlead.wire.durable import ENTRY_LARGE, LARGE
from fairlead.wire.properties import Value, decode, lookup

__all__ = ["Life", "Place", "Record", "Search"]

EVENTS_MAX: Final = 1000
USERS_MAX: Final = 10_000
NAMES_MAX: Final = 100_000
FOUND_MAX: Final = 100

SETTLED: Final = {
    records.GONE: "acknowledged",
    records.RAISED: "returned",
    records.EXPIRED: "expired",
    records.DROPPED: "dropped",
    records.DEAD: "dead",
}
STORED: Final = {
    records.STORE: "stored",
    records.HIDDEN: "received",
    records.FIRE: "stored",
    records.PLACE: "copied",
}


class Record(NamedTuple):
    """A record as it lies in the journal."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    epoch: int
    segment: int
    offset: int
    kind: int
    ms: int  # when its batch was written
    body: memoryview

    @property
    def facts(self) -> dict[str, Any]:
        """Where it is, and since when."""
        return {"ms": self.ms, "index": self.index, "epoch": self.epoch, "segment": self.segment, "offset": self.offset}


@dataclass(slots=True)
class Place:
    """The message in one destination: queues and topics know it by its order number."""

    destination: int
    order: int
    index: int  # of the record that made it visible there
    left: bool = False  # it was moved elsewhere, or its destination is gone
    positions: dict[str, int] | None = None  # by name of a cursor that reserved it: its position


class _Created(msgspec.Struct):
    number: int
    name: str


class _Session(msgspec.Struct):
    id: str
    user: str | None = None


class Life:
    """One message. `events` are plain values, the oldest first; `places` is where it is, or was."""

    def __init__(self, id_: bytes) -> None:
        if len(id_) != ID_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes, not {len(id_)}")
        self._id = id_
        self._number = int.from_bytes(id_[12:])
        self._prefix = id_[:12]
        self.events: list[dict[str, Any]] = []
        self.places: list[Place] = []
        self.message: dict[str, Any] | None = None
        """What it says: size, properties, who sent it."""
        self.names = Names()
        self.cut = False  # there was more than can be told
        self._hidden: dict[int, tuple[int, int]] = {}  # index of a HIDDEN record: destination, position in it
        self._users: dict[bytes, str] = {}  # of sessions, those that began last
        self._again = False
        self._first_is_copy = False

    @property
    def again(self) -> bool:
        """Should all records be told once more?"""
        return self._first_is_copy and not self._again

    def restart(self) -> None:
        """They are: what is known of its places stays, everything else is found anew."""
        self._again = True
        self.events = []
        self._hidden = {}

    def tell(self, record: Record) -> None:
        """The next record."""
        kind = record.kind
        if kind in MESSAGES and len(record.body) >= records.STORE_RECORD.size:
            if kind == records.MOVE:
                self._moved(record)
            else:
                self._stored(record)
        elif kind == records.CREATE:
            self.names.tell(record)
        elif kind == records.SESSION:
            self._opened(record)
        elif kind in (records.DELETE, records.OUTCOME) and (self.places or self._hidden):
            self._ended(record)
        elif not self.places and not self._hidden:
            return
        elif kind == records.SETTLE:
            self._settled(record)
        elif kind == records.COMMIT:
            self._committed(record)
        elif kind == records.PREPARE:
            self._prepared(record)
        elif kind == records.PUBLISH:
            self._published(record)
        elif kind == records.MARK:
            self._marked(record)
        elif kind == records.RESERVE:
            self._reserved(record)
        elif kind == records.RESERVED:
            self._released(record)

    # --- It came ----------------------------------------------------------------------------------------------------
    def _position(self, head: stored.Head) -> int:
        """Its place among the messages of a record; -1: it is not among them."""
        if head.id_first[:12] != self._prefix:
            return -1
        position = self._number - int.from_bytes(head.id_first[12:])
        return position if position < head.count else -1

    def _stored(self, record: Record) -> None:
        one = stored.read(record.body)
        position = self._position(one.head)
        if position < 0:
            return
        head, kind = one.head, record.kind
        facts: dict[str, Any] = {
            **record.facts,
            "what": STORED[kind],
            "destination": head.destination,
            "order": head.order + position if head.order else None,
            "sent_ms": head.sent_ms,
            "arrival_ms": head.arrival_ms,
            "batch": head.count,
        }
        if head.session != stored.NOBODY:
            facts |= {"session": head.session.hex(), "send": head.send + position}
            if head.session in self._users:
                facts["user"] = self._users[head.session] or None
        if kind == records.FIRE:
            facts["schedule"] = records.FIRE_RECORD.unpack_from(record.body, records.STORE_RECORD.size)[1]
        if kind == records.HIDDEN:
            self._hidden[record.index] = (head.destination, position)
            if head.transaction == records.STAGED:
                facts["stage"] = True
            else:
                facts["transaction"] = head.transaction
        else:
            known = any(place.destination == head.destination for place in self.places)
            if not known:
                self._first_is_copy = kind == records.PLACE and not self.places
                self.places.append(Place(head.destination, head.order + position, record.index))
        self._look_at(one, position)
        if kind == records.STORE:
            self._add(self._received(facts))
        self._add(facts)

    def _received(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Taken from its sender, as the record of its storing says."""
        kept = ("epoch", "destination", "session", "send", "sent_ms", "user")
        return {"ms": facts["arrival_ms"], "what": "received", **{key: facts[key] for key in kept if key in facts}}

    def _look_at(self, one: stored.Stored, position: int) -> dict[str, Value]:
        """What the message says; its headers."""
        (entry,) = one.entries(position, 1)
        headers = decode(bytes(entry.headers))
        size = entry.body_end - entry.body_start
        if entry.flags & ENTRY_LARGE:
            _, size, _ = LARGE.unpack_from(one.view, entry.body_start)
        self.message = {
            "bytes": size,
            "key": entry.key.decode(errors="replace") or None,
            "priority": entry.priority,
            "ttl_ms": entry.ttl_ms,
            "delay_ms": entry.delay_ms,
            "sent_ms": one.head.sent_ms,
            "user": headers.get(":from"),
            "type": headers.get(":type"),
            "correlation": headers.get(":correlation"),
            "traceparent": headers.get("traceparent") if isinstance(headers.get("traceparent"), str) else None,
        }
        return headers

    def _opened(self, record: Record) -> None:
        try:
            facts = msgspec.json.decode(record.body, type=_Session)
        except msgspec.DecodeError:
            return
        if facts.user is not None:
            self._users[bytes.fromhex(facts.id)] = facts.user
            if len(self._users) > USERS_MAX:
                del self._users[next(iter(self._users))]

    # --- It became visible ------------------------------------------------------------------------------------------
    def _show(self, record: Record, what: str, source: int, first: int, time_ms: int) -> None:
        found = self._hidden.get(source)
        if found is None:
            return
        destination, position = found
        if not any(place.destination == destination and place.order == first + position for place in self.places):
            self.places.append(Place(destination, first + position, record.index))
        self._add(
            {**record.facts, "what": what, "destination": destination, "order": first + position, "visible_ms": time_ms}
        )

    def _committed(self, record: Record) -> None:
        session, transaction, many, settled = records.COMMIT_RECORD.unpack_from(record.body)
        start, step = records.COMMIT_RECORD.size, records.COMMIT_STORED.size
        stop = start + many * step
        for _, _, first, source, time_ms in records.COMMIT_STORED.iter_unpack(record.body[start:stop]):
            self._show(record, "committed", source, first, time_ms)
        beyond = stop + settled * records.COMMIT_SETTLED.size
        for destination, cursor, low, high in records.COMMIT_SETTLED.iter_unpack(record.body[stop:beyond]):
            for place in self._at(destination, low, high):
                facts = {"transaction": transaction, "session": session.hex(), "cursor": cursor}
                self._of(place, record, "acknowledged", **facts)

    def _prepared(self, record: Record) -> None:
        _, transaction, many, settled, _ = records.PREPARE_RECORD.unpack_from(record.body)
        start, step = records.PREPARE_RECORD.size, records.PREPARE_HIDDEN.size
        stop = start + many * step
        for destination, _, source in records.PREPARE_HIDDEN.iter_unpack(record.body[start:stop]):
            if source in self._hidden:
                facts = {"destination": destination, "transaction": transaction}
                self._add({**record.facts, "what": "prepared", **facts})
        beyond = stop + settled * records.COMMIT_SETTLED.size
        for destination, cursor, low, high in records.COMMIT_SETTLED.iter_unpack(record.body[stop:beyond]):
            for place in self._at(destination, low, high):
                self._of(place, record, "prepared", transaction=transaction, cursor=cursor)

    def _published(self, record: Record) -> None:
        time_ms, many, _ = records.PUBLISH_RECORD.unpack_from(record.body)
        start = records.PUBLISH_RECORD.size
        stop = start + many * records.PUBLISH_ITEM.size
        for _, _, first, source in records.PUBLISH_ITEM.iter_unpack(record.body[start:stop]):
            self._show(record, "published", source, first, time_ms)

    # --- What became of it ------------------------------------------------------------------------------------------
    def _settled(self, record: Record) -> None:
        destination, cursor, _, many = records.SETTLE_RECORD.unpack_from(record.body)
        if not any(place.destination == destination for place in self.places):
            return
        start = records.SETTLE_RECORD.size
        stop = start + many * records.SETTLE_LINE.size
        for low, high, what, reason, due_ms in records.SETTLE_LINE.iter_unpack(record.body[start:stop]):
            for place in self._at(destination, low, high):
                more = {"count": reason} if what == records.RAISED else {}
                if due_ms:
                    more["due_ms"] = due_ms
                self._of(place, record, SETTLED.get(what, "settled"), cursor=cursor, **more)

    def _moved(self, record: Record) -> None:
        one = stored.read(record.body)
        position = self._position(one.head)
        if position < 0:
            return
        at = records.STORE_RECORD.size + position * records.MOVED.size
        source, cursor, order = records.MOVED.unpack_from(record.body, at)
        headers = self._look_at(one, position)
        last = next((event["what"] for event in reversed(self.events) if "to" in event), "")
        what = "dead" if ":dead-reason" in headers else "redriven" if last == "dead" else "moved"
        facts: dict[str, Any] = {
            **record.facts,
            "what": what,
            "destination": source,
            "order": order,
            "cursor": cursor,
            "to": one.head.destination,
            "to_order": one.head.order + position,
        }
        if what == "dead":
            facts |= {"reason": headers[":dead-reason"], "count": headers.get(":dead-count")}
        for place in self._at(source, order, order + 1):
            place.left = True
        target = Place(one.head.destination, one.head.order + position, record.index)
        if not any((place.destination, place.order) == (target.destination, target.order) for place in self.places):
            self.places.append(target)
        self._add(facts)

    def _marked(self, record: Record) -> None:
        destination, cursor, beyond = records.MARK_RECORD.unpack_from(record.body)
        for place in self.places:
            if place.destination == destination and place.order < beyond and not place.left:
                told = any(
                    event["what"] == "offered" and (event["destination"], event["cursor"]) == (destination, cursor)
                    for event in self.events
                    if event.get("order") == place.order
                )
                if not told:
                    self._of(place, record, "offered", cursor=cursor)

    def _reserved(self, record: Record) -> None:
        destination, name_bytes, _, runs, _, first, _ = records.RESERVE_RECORD.unpack_from(record.body)
        start = records.RESERVE_RECORD.size + name_bytes
        name = bytes(record.body[records.RESERVE_RECORD.size : start]).decode(errors="replace")
        stop = start + runs * records.RESERVE_RUN.size
        for low, high in records.RESERVE_RUN.iter_unpack(record.body[start:stop]):
            for place in self._at(destination, low, high):
                place.positions = {**(place.positions or {}), name: first + place.order - low}
                self._of(place, record, "reserved", by=name)
            first += high - low

    def _released(self, record: Record) -> None:
        destination, name_bytes, what, upto, _ = records.RESERVED_RECORD.unpack_from(record.body)
        start = records.RESERVED_RECORD.size
        name = bytes(record.body[start : start + name_bytes]).decode(errors="replace")
        for place in self.places:
            if place.destination == destination and place.positions and name in place.positions:
                if place.positions[name] < upto:
                    del place.positions[name]
                    self._of(place, record, "acknowledged", by=name)
                elif what == records.RELEASED:
                    del place.positions[name]
                    self._of(place, record, "returned", by=name)

    def _ended(self, record: Record) -> None:
        try:
            facts = msgspec.json.decode(record.body)
        except msgspec.DecodeError:
            return
        if record.kind == records.DELETE:
            for place in self.places:
                if place.destination == facts.get("number") and not place.left:
                    place.left = True
                    self._of(place, record, "deleted")
            return
        for event in [one for one in self.events if one["what"] == "received"]:
            ended = (facts.get("session"), facts.get("transaction"))
            if ended == (event.get("session"), event.get("transaction")):
                self._add({**record.facts, "what": "rolled-back", "destination": event["destination"]})

    # --- Inside -----------------------------------------------------------------------------------------------------
    def _at(self, destination: int, low: int, high: int) -> list[Place]:
        return [one for one in self.places if one.destination == destination and low <= one.order < high]

    def _of(self, place: Place, record: Record, what: str, **more: Any) -> None:
        self._add({**record.facts, "what": what, "destination": place.destination, "order": place.order, **more})

    def _add(self, facts: dict[str, Any]) -> None:
        if len(self.events) < EVENTS_MAX:
            self.events.append(facts)
        else:
            self.cut = True


class Names:
    """What destinations were called when they were made, also those that are no more."""

    def __init__(self) -> None:
        self.by_number: dict[int, str] = {}

    def tell(self, record: Record) -> None:
        """A CREATE record."""
        try:
            facts = msgspec.json.decode(record.body, type=_Created)
        except msgspec.DecodeError:
            return
        if len(self.by_number) < NAMES_MAX:
            self.by_number[facts.number] = facts.name

    def of(self, numbers: Iterable[int]) -> dict[str, str]:
        return {str(number): self.by_number[number] for number in numbers if number in self.by_number}


class Search:
    """Messages of a trace, by what their senders said in `traceparent`."""

    def __init__(self, trace_id: str) -> None:
        self._needle = trace_id.encode()
        self.found: dict[str, dict[str, Any]] = {}
        self.names = Names()
        self.cut = False

    def tell(self, record: Record) -> None:
        if record.kind == records.CREATE:
            self.names.tell(record)
            return
        if record.kind not in MESSAGES or len(record.body) < records.STORE_RECORD.size:
            return
        if bytes(record.body).find(self._needle) < 0:
            return
        one = stored.read(record.body)
        for position, entry in enumerate(one.entries()):
            parent = lookup(bytes(entry.headers), b"traceparent")
            if isinstance(parent, str) and parent[3:35].encode() == self._needle:
                self._add(stored.id_plus(one.head.id_first, position).hex(), one.head, position)

    def _add(self, id_: str, head: stored.Head, position: int) -> None:
        if id_ in self.found:
            return
        if len(self.found) >= FOUND_MAX:
            self.cut = True
            return
        self.found[id_] = {
            "id": id_,
            "destination": head.destination,
            "order": head.order + position if head.order else None,
            "sent_ms": head.sent_ms,
            "arrival_ms": head.arrival_ms,
        }


def destinations_of(events: Iterable[dict[str, Any]]) -> set[int]:
    """Numbers of destinations that are named in them."""
    return {event[key] for event in events for key in ("destination", "to") if isinstance(event.get(key), int)}
