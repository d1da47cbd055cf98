"""A whole message manager without sockets: the real core and all its parts over a journal in memory (CLU-57)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fairlead.cluster.core import Core
from fairlead.cluster.demuxing import scan
from fairlead.cluster.describe import Describer
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.options import Options
from fairlead.cluster.outgoing import Link
from fairlead.cluster.recovery import Checkpoint, Recovery
from fairlead.errors import StoreFull
from fairlead.journal.usage import Row, Usage
from fairlead.wire import durable
from fairlead.wire.durable import CHUNK, STORE_HEAD, STORED_ITEM
from fairlead.wire.entry_codec import details, encode
from fairlead.wire.headers import decode_headers
from fairlead.wire.kinds import KIND_ERROR


class Record(NamedTuple):
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    kind: int
    place: int
    body: memoryview


class MemoryJournal:
    """Everything in a list; what is beyond `safe` is lost in a crash."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.bytes = bytearray()
        self.first_place = 1
        self.full = ""
        self.hurry = False
        self.safe = 0
        self.cold = False  # nothing can be read at once
        self.asked: list[int] = []
        self.blobs: list[tuple[bytes, bytes]] = []
        self.covers = 0

    def append(self, kind: int, head: Any, payload: Any = b"") -> tuple[int, int]:
        if self.full and kind in (8, 9):
            raise StoreFull(self.full)
        body = bytes(head) + bytes(payload)
        place = len(self.bytes) + 1
        self.bytes += body
        index = len(self.records) + 1
        self.records.append(Record(index, kind, place, memoryview(body)))
        return index, place

    def read(self, place: int, size: int) -> memoryview | None:
        if self.cold and place not in self.asked:
            self.asked.append(place)
            return None
        return memoryview(bytes(self.bytes[place - 1 : place - 1 + size]))

    def fetch(self, place: int, size: int) -> memoryview:
        return memoryview(bytes(self.bytes[place - 1 : place - 1 + size]))

    def crash(self) -> None:
        for lost in self.records[self.safe :]:
            del self.bytes[lost.place - 1 :]
            break
        del self.records[self.safe :]

    def rows(self) -> Iterator[Row]:
        """What the journal knows of messages in records the checkpoint covers."""
        describe = Describer()
        usage = Usage(describe)
        for record in self.records[: self.covers]:
            for facts in describe(record.kind, record.body):
                row = usage.note(Row(record.kind, record.index, record.place + facts.skip, facts))
                if row is not None:
                    yield row

    # a checkpoint
    def add(self, key: bytes, blob: bytes) -> None:
        self._coming.append((key, blob))

    def finish(self, covers: int) -> None:
        self.blobs, self.covers = self._coming, covers

    _coming: list[tuple[bytes, bytes]]

    def begin(self) -> MemoryJournal:
        self._coming = []
        return self


class Got(NamedTuple):
    """A frame that came back."""

    uid: int
    kind: int
    number: int
    correlation: int
    peer: int
    topic: bytes
    headers: dict[str, bytes]
    body: bytes

    @property
    def facts(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body)  # type: ignore[no-any-return]


class World:
    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self.lives = 0

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        try:
            result: Any = job()
        except OSError as error:
            result = error
        then(result)

    def token(self) -> bytes:
        return next(self._numbers).to_bytes(32, "big")

    def new_id(self, kind: str) -> bytes:
        node = bytes([127, 0, 0, 1, 0, 0, 0, 1]) + self.lives.to_bytes(4)
        return node + bytes([3 if kind == "session" else 4]) + next(self._numbers).to_bytes(7)

    def log(self, record: dict[str, Any]) -> None:
        self.logged.append(record)


class Rig:
    """A core with one link, and what is needed to talk to it."""

    def __init__(self, folder: Path, options: Options | None = None, *, hello: bool = True) -> None:
        self.folder = folder
        self.options = options or Options()
        self.journal = MemoryJournal()
        self.world = World()
        self.now_ms = 1_000_000
        self.start(hello=hello)

    def start(self, *, hello: bool = True) -> None:
        """From what is in the journal."""
        self.world.lives += 1
        self.core = Core(self.journal, self.world, self.options, SideFiles(self.folder), now_ms=self.now_ms)
        recovery = Recovery(self.core)
        recovery.restore(self.journal.blobs)
        recovery.place(self.journal.rows())
        recovery.replay(one for one in self.journal.records if one.index > self.journal.covers)
        recovery.finish()
        self.core.create_well_known()
        self.numbers = itertools.count(1)
        self.link = self.core.link_opened()
        if hello:
            self.frame(0, durable.KIND_COMMAND, body=b'{"do":"hello","manager":0,"generation":1,"pid":1}')
        self.settle()

    def restart(self, *, crash: bool = True) -> None:
        if crash:
            self.journal.crash()
        self.start()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.core, self.journal.begin(), 1)

    # --- In -------------------------------------------------------------------------------------------------------
    def frame(self, uid: int, kind: int, *, link: Link | None = None, **facts: Any) -> None:
        link = link or self.link
        outside = Link(0)
        outside.frame(uid, uid % 1000, kind, **facts)
        data = bytearray(b"".join(outside.out))
        frames, used = scan(data, 0, len(data))
        assert used == len(data)
        self.core.take(link, memoryview(data), frames)

    def command(self, uid: int, do: str, **facts: Any) -> int:
        number = next(self.numbers)
        self.frame(uid, durable.KIND_COMMAND, number=number, body=msgspec.json.encode({"do": do, **facts}))
        return number

    def store(self, uid: int, producer: int, first: int, *bodies: bytes, transaction: int = 0, **facts: Any) -> None:
        entries = b"".join(encode(body, **facts) for body in bodies)
        head = STORE_HEAD.pack(len(bodies), 0, self.now_ms, self.ids[uid] + first)
        self.frame(uid, durable.KIND_STORE, number=producer, correlation=first, peer=transaction, body=head + entries)

    def settle_range(self, uid: int, consumer: int, first: int, beyond: int, *, action: int = 0, tag: int = 0) -> None:
        body = durable.SETTLE_ITEM.pack(first, beyond, action, 0)
        self.frame(uid, durable.KIND_SETTLE, number=consumer, peer=tag, body=body)

    # --- Turns ----------------------------------------------------------------------------------------------------
    def turn(self, *, sync: bool = False) -> None:
        self.core.on_time(self.now_ms)
        self.core.run()
        if sync:
            self.journal.safe = len(self.journal.records)
            self.core.on_safe(self.journal.safe)
            if self.journal.asked:
                asked, self.journal.asked = self.journal.asked, []
                cold, self.journal.cold = self.journal.cold, False
                self.core.on_loaded(asked)
                self.core.run()
                self.journal.cold = cold
            self.core.run()
        self.core.finish()
        self._acknowledge()

    def settle(self) -> None:
        """Turns until nothing happens any more."""
        for _ in range(20):
            self.turn(sync=True)

    muted = False  # managers do not answer announcements

    def _acknowledge(self) -> None:
        for link in list(self.core.links.values()):
            for got in frames_of(link):
                self.inbox.append(got)
                if got.kind == durable.KIND_COMMAND and not self.muted and got.facts["do"] == "announce":
                    body = msgspec.json.encode({"do": "announced", "number": got.facts["number"]})
                    self.frame(0, durable.KIND_COMMAND, link=link, body=body)

    # --- Out ------------------------------------------------------------------------------------------------------
    @property
    def inbox(self) -> list[Got]:
        return self.__dict__.setdefault("_inbox", [])  # type: ignore[no-any-return]

    @property
    def ids(self) -> dict[int, int]:
        return self.__dict__.setdefault("_ids", {})  # type: ignore[no-any-return]

    def take(self, uid: int, kind: int | None = None) -> list[Got]:
        found = [got for got in self.inbox if got.uid == uid and kind in (None, got.kind)]
        for got in found:
            self.inbox.remove(got)
        return found

    def answer(self, uid: int, number: int) -> dict[str, Any]:
        """Of a command, after as many turns as it takes."""
        self.settle()
        for got in self.inbox:
            if got.uid == uid and got.number == number and got.kind in (durable.KIND_ANSWER, KIND_ERROR):
                self.inbox.remove(got)
                if got.kind == KIND_ERROR:
                    return {"error": got.headers["code"].decode(), "text": got.body.decode()}
                return got.facts
        raise AssertionError(f"command {number} was not answered; there is {self.inbox}")

    def ask(self, uid: int, do: str, **facts: Any) -> dict[str, Any]:
        return self.answer(uid, self.command(uid, do, **facts))

    def session(self, uid: int, **facts: Any) -> dict[str, Any]:
        answer = self.ask(uid, "session", ack="individual", **facts)
        self.ids[uid] = answer["ids"][0]
        return answer

    def producer(self, uid: int, name: str, kind: str = "queue", session: int = 1) -> int:
        return int(self.ask(uid, "produce", session=session, destination=name, kind=kind, create=True)["producer"])

    def consumer(self, uid: int, name: str, kind: str = "queue", session: int = 1, **facts: Any) -> int:
        facts = {"messages": 1000, "bytes": 1 << 20, **facts}
        answer = self.ask(uid, "consume", session=session, destination=name, kind=kind, **{"create": True, **facts})
        return int(answer["consumer"])

    def stored(self, uid: int) -> list[tuple[int, int, int, int]]:
        """first, count, status, order of every receipt."""
        return [item[:4] for got in self.take(uid, durable.KIND_STORED) for item in STORED_ITEM.iter_unpack(got.body)]

    def delivered(self, uid: int) -> list[tuple[int, int, bytes]]:
        """order, deliveries, body."""
        return [message for got in self.take(uid, durable.KIND_DELIVER) for message in messages_of(got.body)]


def messages_of(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    view = memoryview(body)
    at = 0
    while at < len(view):
        order, count, deliveries, _, _, _, size, _ = CHUNK.unpack_from(view, at)
        at += CHUNK.size
        entries = details(view, at, at + size)
        assert len(entries) == count
        for position, entry in enumerate(entries):
            yield order + position, deliveries, bytes(view[entry.body_start : entry.body_end])
        at += size


def frames_of(link: Link) -> list[Got]:
    """What waits on a link, taken from it."""
    data = bytearray(b"".join(bytes(piece) for piece in link.out))
    assert link.bytes == len(data)
    link.out.clear()
    link.taken(len(data))
    frames, used = scan(data, 0, len(data))
    assert used == len(data)
    return [
        Got(
            uid,
            kind,
            number,
            correlation,
            peer,
            bytes(data[topic:headers]),
            dict(decode_headers(bytes(data[headers:body]))),
            bytes(data[body:end]),
        )
        for uid, _, kind, _, number, correlation, peer, topic, headers, body, end in frames
    ]
