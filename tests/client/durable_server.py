"""A message manager in a few hundred lines, for the client's tests: right, slow, in memory, and willing to be lost.

It keeps every rule of docs/durable.md a client can notice, one message at a time, with no thought for speed. `Line` is
one connection; `World` ties a client's `Road` to it without sockets, with a clock of its own, and can cut the line at
any frame.
"""

from __future__ import annotations

import hashlib
import json
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairlead.client.durable.road import Road
from fairlead.errors import from_wire
from fairlead.wire import durable, kinds
from fairlead.wire.entries import details
from fairlead.wire.frames import Message, Parser, encode_frame
from fairlead.wire.headers import encode_headers

WINDOW = 4 * 65_536
FRAGMENT = 65_536


@dataclass(eq=False)
class Stored:
    entry: bytes
    key: bytes
    flags: int
    id: bytes
    sent_ms: int
    producer: str


@dataclass(eq=False)
class Cursor:
    """A queue's own, or a subscription: what is there, who has what, how often it was delivered."""

    available: list[int] = field(default_factory=list)
    locks: dict[int, Consumer] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    lasting: bool = True

    def give_back(self, order: int, *, counted: bool) -> None:
        if self.locks.pop(order, None) is not None:
            if counted:
                self.counts[order] = self.counts.get(order, 1) + 1
            insort(self.available, order)


@dataclass(eq=False)
class Destination:
    name: str
    kind: str
    id: str
    messages: dict[int, Stored] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    next: int = 1
    blocked: bool = False
    dead: list[int] = field(default_factory=list)

    def store(self, stored: Stored) -> int:
        order, self.next = self.next, self.next + 1
        self.messages[order] = stored
        for cursor in self.cursors.values():
            cursor.available.append(order)
        return order

    @property
    def bodies(self) -> list[bytes]:
        """What waits or is held, in order (of a queue)."""
        cursor = self.cursors[""]
        orders = sorted([*cursor.available, *cursor.locks])
        return [body_of(self.messages[order].entry) for order in orders]


@dataclass(eq=False)
class Session:
    id: str
    secret: str
    incarnation: int
    line: Line | None
    accepted: dict[str, int] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    hidden: dict[tuple[int, str], list[Stored]] = field(default_factory=dict)
    taken: dict[int, list[tuple[Consumer, int]]] = field(default_factory=dict)
    uploads: dict[int, bytearray] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Producer:
    handle: int
    session: Session
    destination: Destination


@dataclass(eq=False)
class Consumer:
    handle: int
    session: Session
    destination: Destination
    cursor: Cursor
    line: Line
    messages: int
    bytes: int
    browse: list[int] | None = None
    stopped: bool = False


class Line:
    """One connection; `say` gets whole frames."""

    def __init__(self, server: DurableServer, say: Callable[[bytes], None]) -> None:
        self.server = server
        self.say = say
        self.handles: dict[int, Producer | Consumer] = {}
        self.sessions: dict[int, Session] = {}
        self.next_handle = 1

    def frame(self, kind: int, number: int = 0, correlation: int = 0, peer: int = 0, body: bytes = b"",
              flags: int = 0, headers: bytes = b"") -> None:  # fmt: skip
        self.say(encode_frame(kind, flags, number, correlation, peer, b"", headers, body))

    def answer(self, number: int, facts: dict[str, Any]) -> None:
        self.frame(durable.KIND_ANSWER, number, body=json.dumps(facts).encode())

    def error(self, number: int, code: str, text: str = "") -> None:
        self.frame(kinds.KIND_ERROR, number, body=text.encode(), headers=encode_headers([("code", code)]))

    def notice(self, **facts: Any) -> None:
        self.frame(durable.KIND_NOTICE, body=json.dumps(facts).encode())

    def party(self, handle: int, kind: type) -> Any:
        found = self.handles.get(handle)
        return found if isinstance(found, kind) else None

    def take(self, message: Message) -> None:
        """A frame of the client."""
        match message.kind:
            case durable.KIND_COMMAND:
                self.server.on_command(self, message.number, json.loads(message.body))
            case durable.KIND_STORE:
                self.server.on_store(self, message)
            case durable.KIND_SETTLE:
                self.server.on_settle(self, message)
            case durable.KIND_WANT:
                if consumer := self.party(message.number, Consumer):
                    consumer.messages += message.correlation
                    consumer.bytes += message.sender
            case durable.KIND_PIECE:
                self.server.on_piece(self, message)
            case durable.KIND_PULL:
                self.server.on_pull(self, message)
        self.server.deliver()

    def lost(self) -> None:
        """The connection is gone: everything its sessions held is available again, counted."""
        for session in list(self.sessions.values()):
            self.server.release(session)
        self.server.deliver()


class DurableServer:
    """All destinations and sessions."""

    def __init__(self) -> None:
        self.destinations: dict[str, Destination] = {}
        self.sessions: dict[str, Session] = {}
        self.commands: list[dict[str, Any]] = []
        self.refuse: dict[str, str] = {}  # command: code it is refused with
        self.silent: set[str] = set()  # commands that are not answered
        self.ids = 1
        self.made = 0
        self.confirming = True
        self.stores = 0
        self.large: dict[bytes, bytes] = {}

    def queue(self, name: str, kind: str = "queue") -> Destination:
        found = self.destinations.get(name)
        if found is None:
            self.made += 1
            found = self.destinations[name] = Destination(name, kind, f"{self.made:040x}")
            if kind == "queue":
                found.cursors[""] = Cursor()
        return found

    def consumers(self) -> list[Consumer]:
        lines = {id(s.line): s.line for s in self.sessions.values() if s.line is not None}
        return [party for line in lines.values() for party in line.handles.values() if isinstance(party, Consumer)]

    # Commands.

    def on_command(self, line: Line, number: int, asked: dict[str, Any]) -> None:
        self.commands.append(asked)
        do = asked["do"]
        if do in self.silent:
            return
        if do in self.refuse:
            line.error(number, self.refuse[do])
            return
        handler = getattr(self, "do_" + do.replace("-", "_"))
        session = line.sessions.get(asked.get("session", 0))
        if "session" in asked and session is None:
            line.error(number, "session-lost")
            return
        handler(line, number, asked, session)

    def do_session(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        resume = asked.get("resume")
        if resume is None:
            self.made += 1
            session = Session(f"{self.made:040x}", f"{self.made:064x}", 1, line)
            self.sessions[session.id] = session
        else:
            found = self.sessions.get(resume["id"])
            if found is None or found.secret != resume["secret"] or resume["incarnation"] <= found.incarnation:
                line.error(number, "session-lost")
                return
            session = found
            self.release(session)
            session.incarnation = resume["incarnation"]
            session.line = line
        key = max(line.sessions, default=0) + 1
        line.sessions[key] = session
        line.answer(number, {
            "session": key, "id": session.id, "secret": session.secret, "incarnation": session.incarnation,
            "ids": self.block(), "accepted": session.accepted,
            "window_messages": 1024, "window_bytes": 1 << 22,
        })  # fmt: skip

    def block(self, count: int = 100_000) -> list[int]:
        first, self.ids = self.ids, self.ids + count
        return [first, count]

    def do_ids(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        line.answer(number, {"ids": self.block()})

    def do_end_session(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        self.release(session, counted=False)
        del self.sessions[session.id]
        line.answer(number, {})

    def resolve(self, line: Line, number: int, asked: dict[str, Any]) -> Destination | None:
        name = asked["destination"]
        found = self.destinations.get(name)
        if found is None and asked.get("create"):
            found = self.queue(name, asked.get("kind") or "queue")
        if found is None:
            line.error(number, "no-destination")
        elif asked.get("kind") and asked["kind"] != found.kind:
            line.error(number, "wrong-kind")
            found = None
        return found

    def do_produce(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        destination = self.resolve(line, number, asked)
        if destination is None:
            return
        known = [p for p in line.handles.values()
                 if isinstance(p, Producer) and p.session is session and p.destination is destination]  # fmt: skip
        producer = known[0] if known else Producer(self.handle(line), session, destination)
        line.handles[producer.handle] = producer
        accepted = session.accepted.get(destination.id, 0)
        line.answer(number, {"producer": producer.handle, "destination_id": destination.id, "kind": destination.kind,
                             "accepted": accepted, "blocked": destination.blocked})  # fmt: skip

    def handle(self, line: Line) -> int:
        line.next_handle += 1
        return line.next_handle - 1

    def do_consume(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        destination = self.resolve(line, number, asked)
        if destination is None:
            return
        browse = None
        if destination.kind == "queue":
            cursor = destination.cursors[""]
        elif asked.get("durable"):
            cursor = destination.cursors.setdefault(asked["durable"], Cursor())
        else:
            cursor = destination.cursors.setdefault(f"-{self.made}-{number}", Cursor(lasting=False))
            start = asked.get("start", "new")
            if isinstance(start, int):
                cursor.available += [order for order in destination.messages if order >= start]
        if asked.get("browse"):
            browse = sorted(cursor.available) if destination.kind == "queue" else sorted(destination.messages)
        if asked.get("replay") is not None:
            start = 1 if asked["replay"] == "first" else asked["replay"]
            browse = [order for order in destination.messages if order >= start]
        consumer = Consumer(self.handle(line), session, destination, cursor, line, asked["messages"], asked["bytes"],
                            browse)  # fmt: skip
        line.handles[consumer.handle] = consumer
        line.answer(number, {"consumer": consumer.handle, "destination_id": destination.id, "cursor": 0,
                             "first": 1, "next": destination.next})  # fmt: skip

    def do_end(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        party = line.handles.pop(asked["handle"], None)
        if isinstance(party, Consumer):
            for order in [o for o, holder in party.cursor.locks.items() if holder is party]:
                party.cursor.give_back(order, counted=False)
        line.answer(number, {})

    def do_flow(self, line: Line, number: int, asked: dict[str, Any], session: Session | None) -> None:
        for party in line.handles.values():
            if isinstance(party, Consumer) and (party.handle == asked.get("handle") or party.session is session):
                party.stopped = asked["stop"]
        line.answer(number, {})

    def do_unsubscribe(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        for destination in self.destinations.values():
            destination.cursors.pop(asked["name"], None)
        line.answer(number, {})

    def do_temporary(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        self.made += 1
        made = self.queue(f"temporary:{self.made}", asked["kind"])
        line.answer(number, {"name": made.name, "destination_id": made.id})

    def do_locate(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        found = self.destinations.get(asked["destination"])
        if found is None:
            line.error(number, "no-destination")
        else:
            line.answer(number, {"kind": found.kind, "id": found.id, "group": "a"})

    def do_schedules(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        line.answer(number, {"schedules": [{"order": 1, "cron": "@hourly"}]})

    def do_cancel(self, line: Line, number: int, asked: dict[str, Any], _: object) -> None:
        line.answer(number, {})

    # Sending.

    def on_store(self, line: Line, message: Message) -> None:
        producer = line.party(message.number, Producer)
        if producer is None:
            return
        self.stores += 1
        count, _, sent_ms, id_first = durable.STORE_HEAD.unpack_from(message.body)
        entries = message.body[durable.STORE_HEAD.size :]
        found = details(entries, 0, len(entries))
        assert len(found) == count <= durable.COUNT_MAX, "the head counts what follows"
        assert len(message.body) + kinds.HEAD_BYTES <= durable.STORE_BYTES_MAX
        assert sent_ms, "every message has its time"
        assert id_first, "every message has its id"
        prefix = bytes.fromhex(producer.session.id)[:12] + b"\x02"
        new = [Stored(entries[one.start : one.end], bytes(one.key), one.flags, prefix + (id_first + n).to_bytes(7),
                      sent_ms, producer.session.id) for n, one in enumerate(found)]  # fmt: skip
        first, session, destination = message.correlation, producer.session, producer.destination
        if message.sender:
            hidden = session.hidden.setdefault((message.sender, destination.id), [])
            assert first == len(hidden) + 1, "numbers of a transaction count from 1"
            hidden += new
            return
        for stored in new:
            if stored.flags & durable.ENTRY_LARGE:
                transfer, length, digest = durable.LARGE.unpack(body_of(stored.entry))
                whole = bytes(session.uploads[transfer])
                assert transfer in session.complete
                assert len(whole) == length
                assert hashlib.sha256(whole).digest() == digest
                self.large[digest] = whole
        accepted = session.accepted.get(destination.id, 0)
        if first > accepted + 1:
            line.notice(event="refused", producer=producer.handle, first=first, count=count, code="out-of-order")
            return
        items = []
        for at, stored in enumerate(new):
            if first + at <= accepted:
                items.append((first + at, 1, durable.STORED_AGAIN, 0, 1))
                continue
            session.accepted[destination.id] = first + at
            if body_of(stored.entry).startswith(b"refuse"):
                line.notice(event="refused", producer=producer.handle, first=first + at, count=1, code="bad-parameter",
                            text="it says so")  # fmt: skip
                items.append((first + at, 1, durable.STORED_REFUSED, 0, 0))
            else:
                items.append((first + at, 1, durable.STORED_NEW, destination.store(stored), 1))
        if self.confirming:
            line.frame(durable.KIND_STORED, producer.handle,
                       body=b"".join(durable.STORED_ITEM.pack(*item) for item in items))  # fmt: skip

    def do_transfer(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        have = session.uploads.setdefault(asked["transfer"], bytearray())
        complete = asked["transfer"] in session.complete
        line.answer(number, {"offset": len(have), "window": WINDOW, "complete": complete})

    def on_piece(self, line: Line, message: Message) -> None:
        producer = line.party(message.number, Producer)
        if producer is None:
            return
        have = producer.session.uploads[message.correlation]
        if message.sender != len(have):
            return
        have += message.body
        if message.flags & kinds.FLAG_LAST:
            producer.session.complete.add(message.correlation)
            line.notice(event="transfer", producer=producer.handle, transfer=message.correlation, offset=len(have),
                        complete=True)  # fmt: skip
        else:
            line.notice(event="transfer", producer=producer.handle, transfer=message.correlation,
                        offset=len(have) + WINDOW)  # fmt: skip

    def on_pull(self, line: Line, message: Message) -> None:
        consumer = line.party(message.number, Consumer)
        if consumer is None or message.flags & kinds.FLAG_LAST:
            return
        entry = consumer.destination.messages[message.correlation].entry
        _, length, digest = durable.LARGE.unpack(body_of(entry))
        whole = self.large[digest]
        sent = self.__dict__.setdefault("pulled", {})
        at = sent.get((id(consumer), message.correlation), 0)
        while at < min(message.sender, length):
            piece = whole[at : min(at + FRAGMENT, message.sender)]
            last = kinds.FLAG_LAST if at + len(piece) == length else 0
            line.frame(durable.KIND_DATA, consumer.handle, message.correlation, at, piece, last)
            at += len(piece)
        sent[id(consumer), message.correlation] = at

    # Receiving.

    def deliver(self) -> None:
        for consumer in self.consumers():
            if consumer.browse is not None:
                self._browse(consumer)
                continue
            destination, cursor = consumer.destination, consumer.cursor
            for order in list(cursor.available):
                if consumer.messages < 1 or consumer.bytes < 1 or consumer.stopped:
                    break
                stored = destination.messages[order]
                holders = {id(h) for o, h in cursor.locks.items() if destination.messages[o].key == stored.key}
                if stored.key and holders - {id(consumer)}:
                    continue
                cursor.available.remove(order)
                cursor.locks[order] = consumer
                self._send(consumer, order, cursor.counts.setdefault(order, 1))

    def _browse(self, consumer: Consumer) -> None:
        assert consumer.browse is not None
        while consumer.browse and consumer.messages > 0 and consumer.bytes > 0:
            self._send(consumer, consumer.browse.pop(0), 1)
            if not consumer.browse:
                consumer.line.notice(event="caught-up", consumer=consumer.handle)
        if not consumer.browse and consumer.messages > 0:
            consumer.line.notice(event="caught-up", consumer=consumer.handle)
            consumer.messages = 0

    def _send(self, consumer: Consumer, order: int, count: int) -> None:
        stored = consumer.destination.messages[order]
        consumer.messages -= 1
        consumer.bytes -= len(stored.entry)
        head = durable.CHUNK.pack(order, 1, count, stored.sent_ms, 1, stored.id,
                                  len(stored.entry), 0)  # fmt: skip
        consumer.line.frame(durable.KIND_DELIVER, consumer.handle, body=head + stored.entry)

    def on_settle(self, line: Line, message: Message) -> None:
        consumer = line.party(message.number, Consumer)
        if consumer is None:
            return
        stale = []
        for first, beyond, action, _delay_ms in durable.SETTLE_ITEM.iter_unpack(message.body):
            for order in range(first, beyond):
                if consumer.cursor.locks.get(order) is not consumer:
                    stale.append(order)
                elif message.correlation:
                    consumer.session.taken.setdefault(message.correlation, []).append((consumer, order))
                else:
                    self._settle(consumer, order, action)
        if message.sender:
            body = b"".join(durable.RANGE.pack(order, order + 1) for order in stale)
            line.frame(durable.KIND_SETTLED, consumer.handle, 0, message.sender, body)

    def _settle(self, consumer: Consumer, order: int, action: int) -> None:
        cursor = consumer.cursor
        if action == durable.ACKNOWLEDGE:
            del cursor.locks[order]
        elif action == durable.REJECT:
            del cursor.locks[order]
            consumer.destination.dead.append(order)
        else:
            cursor.give_back(order, counted=action == durable.RETURN)

    def release(self, session: Session, *, counted: bool = True) -> None:
        line = session.line
        session.line = None
        session.hidden.clear()
        session.taken.clear()
        if line is None:
            return
        for handle, party in list(line.handles.items()):
            if party.session is session:
                del line.handles[handle]
                if isinstance(party, Consumer):
                    for order in [o for o, holder in party.cursor.locks.items() if holder is party]:
                        party.cursor.give_back(order, counted=counted)
                    if not party.cursor.lasting:
                        names = [n for n, c in party.destination.cursors.items() if c is party.cursor]
                        for name in names:
                            del party.destination.cursors[name]
        line.sessions = {key: one for key, one in line.sessions.items() if one is not session}

    # Transactions.

    def do_commit(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        transaction = asked["transaction"]
        if session.outcomes.get(transaction) == "rolled-back":
            line.error(number, "transaction-aborted", "it was rolled back")
            return
        by_id = {destination.id: destination for destination in self.destinations.values()}
        hidden = {key[1]: found for key, found in session.hidden.items() if key[0] == transaction}
        for handle, count in asked["sends"].items():
            producer = line.handles[int(handle)]
            assert len(hidden.get(producer.destination.id, ())) == count
        for consumer, order in session.taken.get(transaction, ()):
            if consumer.cursor.locks.get(order) is not consumer:
                session.outcomes[transaction] = "rolled-back"
                line.error(number, "transaction-aborted", "a message is somebody else's")
                return
        for destination_id, found in hidden.items():
            for stored in found:
                by_id[destination_id].store(stored)
        for consumer, order in session.taken.pop(transaction, ()):
            self._settle(consumer, order, durable.ACKNOWLEDGE)
        session.hidden = {key: found for key, found in session.hidden.items() if key[0] != transaction}
        session.outcomes[transaction] = "committed"
        line.answer(number, {})

    def do_rollback(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        transaction = asked["transaction"]
        session.hidden = {key: found for key, found in session.hidden.items() if key[0] != transaction}
        for consumer, order in session.taken.pop(transaction, ()):
            self._settle(consumer, order, durable.RETURN)
        session.outcomes[transaction] = "rolled-back"
        line.answer(number, {})

    def do_outcome(self, line: Line, number: int, asked: dict[str, Any], session: Session) -> None:
        line.answer(number, {"outcome": session.outcomes.setdefault(asked["transaction"], "rolled-back")})


def body_of(entry: bytes) -> bytes:
    (found,) = details(entry, 0, len(entry))
    return entry[found.body_start : found.body_end]


class Way:
    """The connection under a Road, as `Outgoing` is it."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.number = 1 << 30

    def send(self, frame: bytes) -> None:
        self.out.append(frame)

    def next_command(self) -> int:
        self.number += 1
        return self.number


class Ticket:
    """A future without a loop."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.times = 0

    def done(self) -> bool:
        return self.times > 0

    def set_result(self, result: Any) -> None:
        self.result, self.times = result, self.times + 1

    def set_exception(self, error: Exception) -> None:
        self.error, self.times = error, self.times + 1

    def reply(self, facts: dict[str, Any], error: Exception | None) -> None:
        if error is None:
            self.set_result(facts)
        else:
            self.set_exception(error)


class World:
    """A road and a server, frame by frame. The line is cut before the frame numbered `cut_at` of all that travel."""

    def __init__(self, *, cut_at: int = -1, limit_s: float = 60.0) -> None:
        self.server = DurableServer()
        self.way = Way()
        self.now_s = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.frames = 0
        self.cut_at = cut_at
        self.cuts = 0
        self.line: Line | None = None
        self.back: list[bytes] = []
        self.road = Road(self.way, client_name="test", limit_s=limit_s, now_ms=lambda: 1_000 + int(self.now_s * 1000),
                         later=self.later, wake=lambda: None, write=lambda: None)  # fmt: skip
        self.connect()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        insort(self.timers, (self.now_s + delay_s, len(self.timers), action), key=lambda timer: timer[:2])

    def connect(self) -> None:
        self.back = []
        self.line = Line(self.server, lambda frame: self.back.append(frame))
        self.parser, self.other = Parser(), Parser()
        self.road.on_connected()

    def cut(self) -> None:
        """Both directions at once; what was under way is gone."""
        self.cuts += 1
        self.way.out.clear()
        line, self.line, self.back = self.line, None, []
        assert line is not None
        line.lost()
        self.road.on_disconnected()
        self.way.out.clear()

    def pump(self, rounds: int = 10_000) -> None:
        """Until nobody has anything to say; a cut line is made again."""
        for _ in range(rounds):
            self.road.flush()
            if self.line is None:
                self.connect()
            if not self.way.out and not self.back and not self.road._dirty:
                return
            out, self.way.out = self.way.out, []
            for frame in out:
                if not self._travels():
                    break
                assert self.line is not None
                for message in self.parser.feed(frame):
                    self.line.take(message)
            back, self.back = self.back, []
            for frame in back:
                if self.line is None or not self._travels():
                    break
                for message in self.other.feed(frame):
                    if message.kind == kinds.KIND_ERROR:
                        code = message.headers["code"].decode()
                        self.road.on_error(message.number, from_wire(code, message.body.decode()))
                    else:
                        self.road.on_frames([message])
        raise AssertionError("they never come to rest")

    def _travels(self) -> bool:
        if self.line is None:
            return False
        self.frames += 1
        if self.frames == self.cut_at:
            self.cut()
            return False
        return True

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.timers and self.timers[0][0] <= until_s:
            self.now_s, _, action = self.timers.pop(0)
            action()
            self.pump()
        self.now_s = until_s
