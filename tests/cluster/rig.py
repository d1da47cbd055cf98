"""A message manager small enough for tests of one destination: a journal in memory that forgets what was not safe."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from fairlead.cluster import records, stored
from fairlead.cluster.destination import Destination
from fairlead.cluster.parameters import Kind, Parameters
from fairlead.cluster.parties import Consumer, Line, Producer, Session
from fairlead.cluster.port import Bytes
from fairlead.wire.durable import ACKNOWLEDGE, REJECT, RELEASE, RETURN
from fairlead.wire.entry_codec import Delivered, deliveries, encode

NOW_MS = 1_800_000_000_000
MANY = 1 << 40


class Rig:
    """Port of all destinations of a test; `crash` gives a new one with what was safe."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self.destinations: dict[str, Destination] = {}
        self.made: dict[str, tuple[int, Kind, Parameters]] = {}
        self.log: list[tuple[int, int, bytes]] = []  # kind, place, body
        self.bodies: dict[int, bytes] = {}
        self.next_place = 1 << 40
        self.safe = 0
        self.cold: set[int] = set()  # places that have to be fetched
        self.asked: set[int] = set()
        self.got: dict[int, list[Delivered]] = defaultdict(list)  # consumer handle -> messages
        self.receipts: list[tuple[int, int, int, int, int]] = []  # producer, first, count, status, order
        self.answers: list[tuple[int, int, list[tuple[int, int]]]] = []  # consumer, tag, stale
        self.notices: list[tuple[bytes, dict[str, Any]]] = []
        self.broadcasts: list[tuple[str, bytes]] = []
        self.events: list[tuple[str, str]] = []
        self.files: dict[int, int] = defaultdict(int)
        self.sessions: dict[bytes, Session] = {}
        self.handles = 0
        self.lines = 0
        self._ready: dict[Destination, None] = {}
        self._timers: list[tuple[int, int, Destination]] = []
        self._actions: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    # ------------------------------------------------------------------ Port

    def append(self, kind: int, head: bytes, payload: Bytes = b"") -> tuple[int, int]:
        body = bytes(head) + bytes(payload)
        place = self.next_place
        self.next_place += len(body) + 32
        self.log.append((kind, place, body))
        self.bodies[place] = body
        return len(self.log), place

    def read(self, place: int, size: int) -> memoryview | None:
        if place in self.cold:
            self.asked.add(place)
            return None
        body = self.bodies[place]
        assert len(body) == size
        return memoryview(body)

    def after(self, index: int, action: Callable[[], None], *, patient: bool = False) -> None:
        if index <= self.safe and not (self._actions and self._actions[0][0] <= index):
            action()
            return
        self._count += 1
        heapq.heappush(self._actions, (index, self._count, action))

    def deliver(self, consumer: Consumer, pieces: Sequence[Bytes]) -> None:
        body = b"".join(bytes(piece) for piece in pieces)
        self.got[consumer.handle] += deliveries(body, consumer.handle)

    def stored(self, producer: Producer, first: int, count: int, status: int, order: int, arrival_ms: int) -> None:
        self.receipts.append((producer.handle, first, count, status, order))

    def settled(self, consumer: Consumer, tag: int, stale: Sequence[tuple[int, int]]) -> None:
        self.answers.append((consumer.handle, tag, list(stale)))

    def notice(self, session: Session, **facts: Any) -> None:
        self.notices.append((session.id, facts))

    def broadcast(self, destination: Destination, entries: Bytes, link: int) -> None:
        self.broadcasts.append((destination.name, bytes(entries)))

    def find(self, name: str) -> Destination | None:
        return self.destinations.get(name)

    def ready(self, destination: Destination) -> None:
        self._ready[destination] = None

    def wake_at(self, destination: Destination, ms: int) -> None:
        self._count += 1
        heapq.heappush(self._timers, (ms, self._count, destination))

    def event(self, level: str, code: str, text: str, **ids: Any) -> None:
        self.events.append((level, code))

    def large(self, session: Session, entries: Bytes) -> Bytes:
        return entries

    def large_kept(self, transfer: int) -> None:
        self.files[transfer] += 1

    def large_gone(self, transfer: int) -> None:
        self.files[transfer] -= 1

    # ------------------------------------------------------------------ the machinery around it

    def flush(self) -> None:
        """Everything written is safe."""
        self.sync(len(self.log))

    def sync(self, index: int) -> None:
        self.safe = max(self.safe, index)
        while self._actions and self._actions[0][0] <= self.safe:
            heapq.heappop(self._actions)[2]()

    def turn(self) -> None:
        """What is ready gets its turn, until nothing is."""
        for _ in range(10_000):
            if not self._ready:
                return
            destination = next(iter(self._ready))
            del self._ready[destination]
            if destination.turn():
                self._ready[destination] = None
        raise AssertionError("a destination never comes to rest")

    def run(self) -> None:
        """Turns and flushes until nothing is left to do."""
        for _ in range(10_000):
            self.turn()
            if not self._ready and self.safe == len(self.log) and not self._actions:
                return
            self.flush()
        raise AssertionError("there is always more to write")

    def load(self) -> None:
        """What was asked for comes from disk."""
        asked, self.asked = self.asked, set()
        self.cold -= asked
        for destination in list(self.destinations.values()):
            for place in asked:
                destination.on_loaded(place)

    def wait(self, ms: int) -> None:
        """Time passes, and everything that falls due happens."""
        end = self.now_ms + ms
        self.run()
        while self._timers and self._timers[0][0] <= end:
            self.now_ms = max(self.now_ms, self._timers[0][0])
            destination = heapq.heappop(self._timers)[2]
            if self.destinations.get(destination.name) is destination:
                destination.on_tick(self.now_ms)
                self.run()
        self.now_ms = end

    # ------------------------------------------------------------------ making things

    def make(self, name: str, kind: Kind = "queue", **parameters: Any) -> Destination:
        number = len(self.made) + 1
        self.made[name] = (number, kind, Parameters(**parameters))
        destination = Destination(self, number, bytes(19) + bytes((number,)), name, kind, Parameters(**parameters))
        self.destinations[name] = destination
        return destination

    def session(self, session_id: bytes | None = None) -> Session:
        """A new session, or a new life of one."""
        if session_id is None:
            session_id = bytes(18) + (len(self.sessions) + 1).to_bytes(2)
        self.lines += 1
        known = self.sessions.get(session_id)
        session = Session(session_id, 1, 1, "individual", Line(0, self.lines, self.lines))
        session.id_first, session.id_last = 1, 1 << 55
        if known is not None:
            session.accepted = known.accepted
        self.sessions[session_id] = session
        return session

    def producer(self, destination: Destination, session: Session | None = None) -> Producer:
        self.handles += 1
        return Producer(self.handles, session or self.session(), destination)

    def consumer(
        self,
        destination: Destination,
        messages: int = 1000,
        bytes_: int = MANY,
        *,
        session: Session | None = None,
        start: Any = "new",
        **facts: Any,
    ) -> Consumer:
        self.handles += 1
        one = Consumer(self.handles, session or self.session(), destination, messages=messages, bytes=bytes_, **facts)
        destination.attach(one, start)
        return one

    def send(
        self, producer: Producer, *entries: bytes, transaction: int = 0, first: int | None = None, run: bool = True
    ) -> None:
        """One STORE frame with the next send number."""
        destination = producer.destination
        whole = b"".join(entries)
        if first is None:
            first = producer.session.accepted.get(destination.number, 0) + 1
        destination.on_store(producer, first, transaction, self.now_ms, first, memoryview(whole), 0)
        if run:
            self.run()

    def take(self, consumer: Consumer) -> list[Delivered]:
        """What came for this consumer since the last time."""
        found, self.got[consumer.handle] = self.got[consumer.handle], []
        return found

    def bodies_of(self, consumer: Consumer) -> list[bytes]:
        return [message.body for message in self.take(consumer)]

    def settle(
        self,
        consumer: Consumer,
        orders: Sequence[int],
        action: int = ACKNOWLEDGE,
        *,
        delay: int = 0,
        transaction: int = 0,
        tag: int = 0,
        run: bool = True,
    ) -> None:
        items = [(order, order + 1, action, delay) for order in orders]
        consumer.destination.on_settle(consumer, items, transaction, tag)
        if run:
            self.run()

    def ack(self, consumer: Consumer, messages: Sequence[Delivered], **more: Any) -> None:
        self.settle(consumer, [message.order for message in messages], ACKNOWLEDGE, **more)

    def retry(self, consumer: Consumer, messages: Sequence[Delivered], **more: Any) -> None:
        self.settle(consumer, [message.order for message in messages], RETURN, **more)

    def release(self, consumer: Consumer, messages: Sequence[Delivered], **more: Any) -> None:
        self.settle(consumer, [message.order for message in messages], RELEASE, **more)

    def reject(self, consumer: Consumer, messages: Sequence[Delivered], **more: Any) -> None:
        self.settle(consumer, [message.order for message in messages], REJECT, **more)

    def want(self, consumer: Consumer, messages: int, bytes_: int = 0) -> None:
        consumer.destination.on_want(consumer, messages, bytes_)
        self.run()

    def commit(self, session: Session, transaction: int, *touched: Destination, run: bool = True) -> str | None:
        for one in touched:
            fault = one.prepare(session, transaction)
            if fault is not None:
                return fault
        new: list[bytes] = []
        gone: list[bytes] = []
        for one in touched:
            stored_items, settled_items = one.commit_parts(session, transaction)
            new += [records.COMMIT_STORED.pack(*item) for item in stored_items]
            gone += [records.COMMIT_SETTLED.pack(*item) for item in settled_items]
        head = records.COMMIT_RECORD.pack(session.id, transaction, len(new), len(gone))
        body = b"".join((head, *new, *gone))
        index, place = self.append(records.COMMIT, body)
        for one in touched:
            one.apply(records.COMMIT, index, place, memoryview(body))
        if run:
            self.run()
        return None

    # ------------------------------------------------------------------ the end and a new beginning

    def snapshots(self) -> tuple[int, dict[str, Any]]:
        """A checkpoint: what it covers, and the blobs as they come back from disk."""
        blobs = {
            name: msgspec.msgpack.decode(msgspec.msgpack.encode(one.snapshot()))
            for name, one in self.destinations.items()
        }
        return len(self.log), blobs

    def crash(self, checkpoint: tuple[int, dict[str, Any]] | None = None) -> Rig:
        """A new message manager that knows what was safe, by the checkpoint (if that was) and the records behind it."""
        new = Rig(self.now_ms)
        new.log = self.log[: self.safe]
        new.bodies = {place: body for _, place, body in new.log}
        new.next_place = self.next_place
        new.safe = len(new.log)
        new.handles, new.lines = self.handles, self.lines
        for name, (_, kind, _) in self.made.items():
            new.make(name, kind)
            new.made[name] = self.made[name]
            new.destinations[name].parameters = self.made[name][2]
        covers = 0
        if checkpoint is not None and checkpoint[0] <= self.safe:
            covers = checkpoint[0]
            for name, blob in checkpoint[1].items():
                new.destinations[name].restore(blob)
        by_number = {one.number: one for one in new.destinations.values()}
        for index, (what, place, body) in enumerate(new.log, 1):
            if what == records.STORE:
                head = stored.read(body).head
                if head.session not in new.sessions:
                    new.sessions[head.session] = Session(head.session, 1, 1, "individual", None)
                accepted = new.sessions[head.session].accepted
                last = head.send + head.count - 1
                accepted[head.destination] = max(accepted.get(head.destination, 0), last)
            if index > covers:
                for number in concerned(what, body):
                    if number in by_number:
                        by_number[number].apply(what, index, place, memoryview(body))
        for one in new.destinations.values():
            one.recovered()
        new.run()
        return new


def concerned(kind: int, body: bytes) -> Iterator[int]:
    """Numbers of the destinations a record is about."""
    if kind in (records.CHANGE, records.SUBSCRIBE, records.UNSUBSCRIBE, records.CANCEL):
        yield msgspec.json.decode(body)["number"]
        return
    if kind == records.COMMIT:
        _, _, new, _ = records.COMMIT_RECORD.unpack_from(body)
        at = records.COMMIT_RECORD.size
        middle = at + new * records.COMMIT_STORED.size
        found = [one[0] for one in records.COMMIT_STORED.iter_unpack(body[at:middle])]
        found += [one[0] for one in records.COMMIT_SETTLED.iter_unpack(body[middle:])]
        yield from dict.fromkeys(found)
        return
    yield int.from_bytes(body[:4], "little")
    if kind == records.MOVE:
        yield records.MOVED.unpack_from(body, records.STORE_RECORD.size)[0]


def text(number: int, **more: Any) -> bytes:
    """An entry whose body is a number."""
    return encode(b"%d" % number, **more)


def texts(numbers: range | Sequence[int], **more: Any) -> bytes:
    return b"".join(text(number, **more) for number in numbers)
