"""A message manager without a process: the real core over a journal in memory, spoken to in frames.

`turn` lets it work until it is quiet; `crash` forgets what was not safe and builds it again from its records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from fairlead.cluster.core import Core
from fairlead.cluster.demux import scan
from fairlead.cluster.describe import Describer
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.options import Options
from fairlead.cluster.recovery import Checkpoint, Recovery
from fairlead.journal.facts import WAITING, Facts
from fairlead.wire import durable
from fairlead.wire.entry_codec import deliveries, encode
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import FLAG_LAST, KIND_ERROR, KIND_PUBLISH

START_MS = 1_700_000_000_000


class Written(NamedTuple):
    kind: int
    index: int
    place: int
    body: memoryview


class MemoryJournal:
    """Records in a list; what is beyond `safe` is lost in a crash."""

    def __init__(self) -> None:
        self.full = ""
        self.hurry = False
        self.records: list[Written] = []
        self.bytes = bytearray(16)
        self.covers = 0

    def append(self, kind: int, head: Any, payload: Any = b"") -> tuple[int, int]:
        body = bytes(head) + bytes(payload)
        place = len(self.bytes)
        self.bytes += body
        index = self.records[-1].index + 1 if self.records else self.covers + 1
        self.records.append(Written(kind, index, place, memoryview(body)))
        return index, place

    def read(self, place: int, size: int, skip: int = 0) -> memoryview | None:
        return memoryview(bytes(self.bytes[place : place + size]))

    def fetch(self, place: int, size: int) -> memoryview:
        return memoryview(bytes(self.bytes[place : place + size]))


class MemorySheet:
    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.covers = -1

    def add(self, key: bytes, blob: bytes) -> None:
        self.blobs[key] = blob

    def finish(self, covers: int) -> None:
        self.covers = covers


class Frame(NamedTuple):
    kind: int
    flags: int
    number: int
    correlation: int
    peer: int
    topic: str
    headers: bytes
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Manager:
    """One message manager and its links."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.folder = folder
        self.options = Options(**{"resend_retention_s": 10.0, "fragment_bytes": 1024, **options})
        self.journal = MemoryJournal()
        self.now_ms = START_MS
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.log_records: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self.sheet: MemorySheet | None = None
        self._begin()
        self.core.create_well_known()
        self.turn()

    def _begin(self) -> None:
        self.jobs.clear()
        self.core = Core(self.journal, self, self.options, SideFiles(self.folder / "large"), now_ms=self.now_ms)
        self.link = self.core.link_opened(carries_broadcasts=True)
        self.link.manager = 0
        self.clients: dict[int, Client] = {}
        self.published: list[Frame] = []
        self.is_holding = False  # True: nothing becomes safe

    # what the core asks of an edge

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.jobs.append((job, then))

    def token(self) -> bytes:
        return next(self._numbers).to_bytes(32, "big")

    def new_id(self, kind: str) -> bytes:
        return next(self._numbers).to_bytes(20, "big")

    def log(self, record: dict[str, Any]) -> None:
        self.log_records.append(record)

    # driving it

    def turn(self, *, jobs: bool = True) -> None:
        """Work until nothing is left to do."""
        for _ in range(1000):
            self.core.on_time(self.now_ms)
            more = self.core.run()
            if jobs and self.jobs:
                waiting, self.jobs[:] = list(self.jobs), []
                for job, then in waiting:
                    try:
                        result = job()
                    except Exception as fault:  # as a pool does
                        result = fault
                    then(result)
                more = True
            if not self.is_holding and self.core.safe < self.core.last_index:
                self.core.on_safe(self.core.last_index)
                more = True
            self.core.finish()
            self._collect()
            if not more and self.core.tasks.idle:
                return
        raise AssertionError("the message manager does not come to rest")

    def _collect(self) -> None:
        whole = b"".join(bytes(piece) for piece in self.link.out)
        self.link.out.clear()
        self.link.taken(self.link.bytes)
        frames, end = scan(memoryview(whole), 0, len(whole))
        assert end == len(whole)
        for uid, _, kind, flags, number, correlation, peer, topic, headers, body, beyond in frames:
            frame = Frame(
                kind,
                flags,
                number,
                correlation,
                peer,
                whole[topic:headers].decode(),
                whole[headers:body],
                whole[body:beyond],
            )
            if uid in self.clients:
                self.clients[uid].received.append(frame)
            elif kind == durable.KIND_COMMAND and frame.json["do"] == "announce":
                number = frame.json["number"]
                self.put(0, durable.KIND_COMMAND, body=msgspec.json.encode({"do": "announced", "number": number}))
            elif kind == KIND_PUBLISH:
                self.published.append(frame)

    def put(self, uid: int, kind: int, **parts: Any) -> None:
        """A frame over the link."""
        from fairlead.cluster.outgoing import Link

        scratch = Link(0)
        scratch.frame(uid, uid, kind, **parts)
        whole = bytearray(b"".join(bytes(piece) for piece in scratch.out))
        frames, end = scan(whole, 0, len(whole))
        assert end == len(whole)
        self.core.take(self.link, memoryview(whole), frames)

    def client(self, user: str = "") -> Client:
        uid = next(self._numbers)
        client = self.clients[uid] = Client(self, uid, user)
        return client

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.turn()

    def checkpoint(self) -> None:
        self.sheet = MemorySheet()
        taking = Checkpoint(self.core, self.sheet, 1)
        for _ in range(1000):
            if taking.step():
                return
            self.turn()
        raise AssertionError("the checkpoint is never finished")

    def _rows(self, covers: int) -> list[Row]:
        """What the journal's own index says about records the checkpoint covers."""
        describe, rows, waiting = Describer(), list[Row](), dict[int, Row]()
        for record in self.journal.records:
            for facts in describe(record.kind, record.body) if record.index <= covers else ():
                if facts.source == WAITING:
                    waiting[record.index] = Row(record.place, facts)
                elif facts.source:
                    place, hidden = waiting[facts.source]
                    rows.append(Row(place, facts._replace(size=hidden.size, flags=hidden.flags)))
                else:
                    rows.append(Row(record.place, facts))
        return sorted(rows, key=lambda row: row.facts.base)

    def crash(self) -> None:
        """Kill it and start it again; what was not safe is gone."""
        safe = self.core.safe
        self.journal.records[:] = [record for record in self.journal.records if record.index <= safe]
        self.now_ms += 1000
        self._begin()
        recovery = Recovery(self.core)
        covers = 0
        if self.sheet is not None:
            covers = self.sheet.covers
            recovery.restore(self.sheet.blobs.items())
            recovery.place(self._rows(covers))
        recovery.replay(record for record in self.journal.records if record.index > covers)
        self.core.last_index = self.core.safe = safe
        recovery.finish()
        self.core.create_well_known()
        self.turn()


class Row(NamedTuple):
    """Where messages are, as the journal tells after a checkpoint."""

    place: int
    facts: Facts


class Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Client:
    """One connection, which speaks in frames and remembers what it got."""

    def __init__(self, manager: Manager, uid: int, user: str) -> None:
        self.manager = manager
        self.uid = uid
        self.user = user
        self.received: list[Frame] = []
        self._numbers = itertools.count(1)

    def ask(self, do: str, **fields: Any) -> int:
        number = next(self._numbers)
        facts = {"do": do, "user": self.user, "client": "test/1", **fields}
        self.manager.put(self.uid, durable.KIND_COMMAND, number=number, body=msgspec.json.encode(facts))
        return number

    def answer(self, number: int) -> dict[str, Any] | None:
        for frame in self.received:
            if frame.number == number and frame.kind == durable.KIND_ANSWER:
                return dict(frame.json)
            if frame.number == number and frame.kind == KIND_ERROR:
                raise Refused(dict(decode_headers(frame.headers))["code"].decode(), frame.body.decode())
        return None

    def do(self, do: str, **fields: Any) -> dict[str, Any]:
        number = self.ask(do, **fields)
        self.manager.turn()
        answer = self.answer(number)
        assert answer is not None, f"no answer to {do}"
        return answer

    def store(self, producer: int, first: int, *bodies: bytes, ids: int, transaction: int = 0, **how: Any) -> None:
        entries = b"".join(encode(body, **how) for body in bodies)
        self.store_raw(producer, first, entries, len(bodies), ids=ids, transaction=transaction)

    def store_raw(
        self, producer: int, first: int, entries: bytes, count: int, *, ids: int, transaction: int = 0
    ) -> None:
        head = durable.STORE_HEAD.pack(count, 0, self.manager.now_ms, ids)
        self.manager.put(
            self.uid, durable.KIND_STORE, number=producer, correlation=first, peer=transaction, body=head + entries
        )

    def settle(self, consumer: int, *items: tuple[int, int, int], transaction: int = 0, tag: int = 0) -> None:
        body = b"".join(durable.SETTLE_ITEM.pack(first, beyond, action, 0) for first, beyond, action in items)
        self.manager.put(self.uid, durable.KIND_SETTLE, number=consumer, correlation=transaction, peer=tag, body=body)

    def piece(self, producer: int, transfer: int, offset: int, body: bytes, *, last: bool = False) -> None:
        flags = FLAG_LAST if last else 0
        self.manager.put(
            self.uid, durable.KIND_PIECE, number=producer, correlation=transfer, peer=offset, flags=flags, body=body
        )

    def pull(self, consumer: int, order: int, up_to: int, *, stop: bool = False) -> None:
        flags = FLAG_LAST if stop else 0
        self.manager.put(self.uid, durable.KIND_PULL, number=consumer, correlation=order, peer=up_to, flags=flags)

    def gone(self) -> None:
        self.manager.put(self.uid, durable.KIND_COMMAND, body=b'{"do":"gone"}')
        self.manager.turn()

    def of_kind(self, kind: int) -> list[Frame]:
        return [frame for frame in self.received if frame.kind == kind]

    def notices(self, event: str) -> list[dict[str, Any]]:
        return [frame.json for frame in self.of_kind(durable.KIND_NOTICE) if frame.json["event"] == event]

    def delivered(self, consumer: int) -> list[Any]:
        return [
            message
            for frame in self.of_kind(durable.KIND_DELIVER)
            if frame.number == consumer
            for message in deliveries(frame.body, consumer)
        ]

    def bodies(self, consumer: int) -> list[bytes]:
        return [bytes(message.body) for message in self.delivered(consumer)]

    def stored(self) -> list[tuple[int, int, int, int]]:
        """(first send number, count, status, order) of all STORED items."""
        return [
            item[:4]
            for frame in self.of_kind(durable.KIND_STORED)
            for item in durable.STORED_ITEM.iter_unpack(frame.body)
        ]
