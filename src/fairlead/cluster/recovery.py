"""From journal to state and from state to checkpoint.

A checkpoint is taken part by part over many turns, while records are written on. Each part says up to which index it
knows everything; reading again skips, for that part alone, what it knows already. The checkpoint counts from the
index at which it began, and the journal lets it count only when everything appended before its end is safe: it never
tells of what a crash took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from fairlead.cluster import records
from fairlead.cluster.destination import PLACED
from fairlead.cluster.names import Made
from fairlead.cluster.port import Bytes
from fairlead.cluster.staged import is_staged
from fairlead.journal.usage import Row

if TYPE_CHECKING:
    from fairlead.cluster.core import Core

OF_DESTINATION: Final = frozenset(
    {
        *(records.STORE, records.HIDDEN, records.SETTLE, records.MARK, records.PLACE, records.FIRE),
        *(records.RESERVE, records.RESERVED),
    }
)
"""Kinds that begin with the number of the one destination they concern."""
OF_DESTINATION_JSON: Final = frozenset({records.CHANGE, records.SUBSCRIBE, records.UNSUBSCRIBE, records.CANCEL})
OF_SESSIONS: Final = frozenset(
    {records.SESSION, records.PRODUCER, records.STORE, records.SUBSCRIBE, records.UNSUBSCRIBE}
)
OF_DECISIONS: Final = frozenset({records.PREPARE, records.DECIDED, records.COMMIT, records.OUTCOME})
PROGRESS_RECORDS: Final = 1_000_000


class Record(Protocol):
    """A record as the journal gives it back."""

    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def body(self) -> memoryview: ...


_encode = msgspec.msgpack.Encoder().encode


class Sheet(Protocol):
    """A checkpoint under way."""

    def add(self, key: bytes, blob: bytes) -> None: ...

    def finish(self, covers: int) -> None: ...


def destinations_of(kind: int, body: Bytes) -> list[int]:
    """The numbers of the destinations a record concerns."""
    if kind in OF_DESTINATION:
        return [int.from_bytes(body[:4], "little")]
    if kind in OF_DESTINATION_JSON:
        return [int(msgspec.json.decode(body)["number"])]
    if kind == records.MOVE:
        target = int.from_bytes(body[:4], "little")
        count = records.STORE_RECORD.unpack_from(body)[3]
        size = records.MOVED.size
        at = records.STORE_RECORD.size
        sources = (records.MOVED.unpack_from(body, at + i * size)[0] for i in range(count))
        return list(dict.fromkeys((target, *sources)))
    if kind == records.COMMIT:
        _, _, stored, settled = records.COMMIT_RECORD.unpack_from(body)
        at = records.COMMIT_RECORD.size
        beyond = at + stored * records.COMMIT_STORED.size
        numbers = [one[0] for one in records.COMMIT_STORED.iter_unpack(memoryview(body)[at:beyond])]
        end = beyond + settled * records.COMMIT_SETTLED.size
        numbers += [one[0] for one in records.COMMIT_SETTLED.iter_unpack(memoryview(body)[beyond:end])]
        return list(dict.fromkeys(numbers))
    return []


class Recovery:
    """Builds a core's state from a checkpoint and the records behind it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[int, int] = {}  # destination -> index up to which its part of the checkpoint knows all
        self._missing: set[int] = set()  # named in the checkpoint, deleted before its own part was written
        self._tails: dict[int, bytes] = {}  # entries of indexes that were added during the checkpoint
        self._hidden: dict[bytes, set[int]] = {}  # session -> destinations in which a transaction of it may be open
        self._names = self._sessions = self._transactions = self._transfers = self._admin = self._stages = 0
        self._decisions = self._directory = 0
        self.epoch = 0
        self.start = 0
        self.records = 0

    def restore(self, blobs: Iterable[tuple[bytes, Bytes]]) -> None:
        """A checkpoint's parts, in any order."""
        found = dict(blobs)
        core = self._core
        if not found:
            return
        _, facts = _opened(found[b"core"])
        self.epoch, self.start = facts["epoch"], facts["start"]
        core.next_message = facts["next_message"]
        self._names, names = _opened(found[b"names"])
        core.names.next_number = names["next_number"]
        for made in msgspec.convert(names["made"], list[Made]):
            core.manager.adopt(made)
            blob = found.get(b"d:%d" % made.number)
            if blob is None:
                self._missing.add(made.number)
            else:
                self._known[made.number], state = _opened(blob)
                self._tails[made.number] = state["index"]
                core.names.destinations[made.number].restore({**state, "index": b""})
                for part in state["parts"]:
                    self._hidden.setdefault(bytes(part[0]), set()).add(made.number)
        self._sessions, state = _opened(found[b"sessions"])
        core.sessions.restore(state)
        self._transactions, state = _opened(found[b"transactions"])
        core.transactions.restore(state)
        self._transfers, state = _opened(found[b"transfers"])
        core.transfers.restore(state)
        self._admin, state = _opened(found[b"admin"])
        core.admin.restore(state)
        if b"decisions" in found:  # not in checkpoints of older versions
            self._decisions, state = _opened(found[b"decisions"])
            core.decisions.restore(state)
        if b"stages" in found:  # not in checkpoints of older versions
            self._stages, state = _opened(found[b"stages"])
            core.stages.restore(state)
        if b"directory" in found:  # not in checkpoints of older versions
            self._directory, state = _opened(found[b"directory"])
            core.directory.restore(state)

    def place(self, rows: Iterable[Row]) -> None:
        """Where the messages are of which the checkpoint tells: the journal knows, up to where the checkpoint began."""
        destinations = self._core.names.destinations
        for row in rows:
            facts = row.facts
            destination = destinations.get(facts.destination)
            if destination is None or not facts.base or facts.base + facts.count <= destination.first:
                continue
            destination.index.add(
                facts.base, facts.count, row.place, facts.size, facts.flags, facts.arrival_ms, facts.skip
            )
        for number, tail in self._tails.items():
            for entry in PLACED.iter_unpack(tail):
                destinations[number].index.add(*entry)
        self._tails.clear()

    def replay(self, found: Iterable[Record], say: Callable[[str], None] = lambda text: None) -> None:
        """The records behind the checkpoint, in their order."""
        for one in found:
            self.apply(one.kind, one.index, one.place, one.body)
            self.records += 1
            if self.records % PROGRESS_RECORDS == 0:
                say(f"read {self.records:,} records of the journal")

    def apply(self, kind: int, index: int, place: int, body: memoryview) -> None:
        core = self._core
        core.last_index = core.safe = index
        if kind == records.SESSION:
            self._lived(index, body)
        if kind in OF_SESSIONS and index > self._sessions:
            core.sessions.apply(kind, body)
        if kind in (records.COMMIT, records.OUTCOME) and index > self._transactions:
            core.transactions.apply(kind, index, body)
        if kind in OF_DECISIONS and index > self._decisions:
            core.decisions.apply(kind, index, body, lambda number: self._wants(number, index))
        if kind == records.START:
            facts = msgspec.json.decode(body)
            self.epoch, self.start = max(self.epoch, facts["epoch"]), max(self.start, facts["start"])
            self._began(index)
        elif kind == records.CREATE and index > self._names:
            core.manager.adopt(msgspec.json.decode(body, type=Made))
        elif kind == records.DELETE and index > self._names:
            number = msgspec.json.decode(body)["number"]
            core.manager.abandon(number)
            self._missing.discard(number)
        elif kind == records.TRANSFER and index > self._transfers:
            core.transfers.apply(body)
        elif kind == records.CONFIG and index > self._admin:
            core.admin.apply(body)
        elif kind == records.DIRECTORY and index > self._directory:
            core.directory.apply(body)
        elif kind == records.STAGE and index > self._stages:
            core.stages.apply(index, body)
        elif kind == records.PUBLISH and index > self._stages:
            core.stages.apply_publish(index, body, lambda number: self._wants(number, index))
        elif kind == records.HIDDEN and is_staged(body):
            if index > self._stages:
                core.stages.apply_hidden(index, place, body)
            return
        elif kind == records.HIDDEN:
            of = records.STORE_RECORD.unpack_from(body)
            self._hidden.setdefault(of[4], set()).add(of[0])
        elif kind == records.OUTCOME:
            facts = msgspec.json.decode(body)
            self._over(index, bytes.fromhex(facts["session"]), facts["transaction"])
        for number in destinations_of(kind, body):
            if self._wants(number, index):
                core.names.destinations[number].apply(kind, index, place, body)

    # What was rolled back left hidden messages behind; whoever follows for months must let go of them.

    def _began(self, index: int) -> None:
        """Somebody began to lead: what was open before is over."""
        for number, destination in self._core.names.destinations.items():
            if self._wants(number, index):
                destination.parts.forget()
                for of in self._hidden.values():
                    of.discard(number)
        self._hidden = {session: of for session, of in self._hidden.items() if of}

    def _lived(self, index: int, body: Bytes) -> None:
        """Another life of a session, or its end: what the last one had open is over."""
        facts = msgspec.json.decode(body)
        session = bytes.fromhex(facts["id"])
        known = self._core.sessions.by_id.get(session)
        if facts.get("ended_ms") or (known is not None and facts["incarnation"] > known.incarnation):
            self._over(index, session)
        if facts.get("ended_ms") and index > self._transactions:
            self._core.transactions.forget(session)

    def oldest_hidden(self) -> int | None:
        """The oldest record of a transaction that may still be committed by whoever leads."""
        numbers = {number for of in self._hidden.values() for number in of}
        found = (self._core.names.destinations[one].parts.oldest() for one in numbers if self._is_there(one))
        return min((index for index in found if index is not None), default=None)

    def _is_there(self, number: int) -> bool:
        return number in self._core.names.destinations

    def _over(self, index: int, session: bytes, transaction: int | None = None) -> None:
        for number in self._hidden.get(session, ()):
            if self._wants(number, index):
                self._core.names.destinations[number].parts.over(session, transaction)
        if transaction is None:
            self._hidden.pop(session, None)

    def _wants(self, number: int, index: int) -> bool:
        """Is this record news for that destination?"""
        there = number in self._core.names.destinations and number not in self._missing
        return there and index > self._known.get(number, 0)

    def finish(self) -> None:
        """Everything is read: what was open is rolled back, what is for ever there is made."""
        core = self._core
        core.next_message = max(core.next_message, core.sessions.recovered())
        core.next_message = max(core.next_message, core.stages.recovered())
        core.transactions.recovered()
        core.decisions.recovered()
        core.transfers.recovered()
        core.directory.began()
        for destination in list(core.names.destinations.values()):
            destination.recovered()


class Checkpoint:
    """One checkpoint under way; `step` does a bounded piece of it."""

    def __init__(self, core: Core, sheet: Sheet, start: int) -> None:
        self._core = core
        self._sheet = sheet
        self.covers = core.last_index
        facts = {"epoch": core.epoch, "start": start, "next_message": core.next_message}
        self._nexts = {number: one.next for number, one in core.names.destinations.items()}
        self._parts = self._in_order(facts)
        self._all = False

    def _in_order(self, facts: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
        core = self._core
        yield b"core", facts
        yield b"names", core.names.snapshot()
        yield b"sessions", core.sessions.snapshot()
        yield b"transactions", core.transactions.snapshot()
        yield b"transfers", core.transfers.snapshot()
        yield b"admin", core.admin.snapshot()
        yield b"directory", core.directory.snapshot()
        yield b"decisions", core.decisions.snapshot()  # before the destinations, as stages
        yield b"stages", core.stages.snapshot()  # before the destinations: they know of every batch that it knows
        for number, since in self._nexts.items():
            destination = core.names.destinations.get(number)
            if destination is not None:
                yield b"d:%d" % number, destination.snapshot(since)

    def step(self, most_bytes: int = 1 << 20, most_parts: int = 64) -> bool:
        """A bounded piece of it. True: everything is handed to the journal."""
        while not self._all and most_bytes > 0 and most_parts > 0:
            part = next(self._parts, None)
            if part is None:
                self._all = True
                break
            blob = _encode((self._core.last_index, part[1]))
            self._sheet.add(part[0], blob)
            most_bytes -= len(blob)
            most_parts -= 1
        if self._all:
            self._sheet.finish(self.covers)
        return self._all


def _opened(blob: Bytes) -> tuple[int, Any]:
    index, state = msgspec.msgpack.decode(blob)
    return index, state
