"""A destination's part in transactions: what they sent here, hidden, and what they took, locked (CLU-156, CLU-157).

Nothing of it shows before the COMMIT record. After a restart open transactions are over: their messages are forgotten,
and what they had taken is available again. Only what is prepared (CLU-166) stays as it is, whatever happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster import acceptance, intake, records, settling, stored
from fairlead.wire.durable import ENTRY_CRON, ENTRY_DEDUP, ENTRY_LARGE, LARGE
from fairlead.wire.entry_codec import details
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.intake import Batch
    from fairlead.cluster.parties import Line, Session

Stored = tuple[int, int, int, int, int]
Settled = tuple[int, int, int, int]
GONE_MEANWHILE: Final = "a message it received is gone"


@dataclass(slots=True, frozen=True)
class Hidden:
    """One HIDDEN record."""

    index: int
    place: int
    size: int
    head: stored.Head
    entries: bytes | None  # None: nothing in them has to be known at the commit


class Part:
    """What one transaction did here."""

    __slots__ = ("dedup", "fault", "hidden", "link", "live", "origin", "prepared", "sent", "settled")

    def __init__(self, live: bool) -> None:
        self.live = live  # not read from the journal
        self.hidden: list[Hidden] = []
        self.sent = 0  # messages, which are numbered from 1
        self.settled: list[tuple[int, int, int]] = []  # cursor, first, one beyond
        self.fault = ""
        self.dedup: set[str] = set()
        self.link = -1
        self.origin: Line | None = None
        self.prepared = False

    def files(self) -> list[int]:
        """The files of its very large messages."""
        found: list[int] = []
        for one in self.hidden:
            if one.head.flags & ENTRY_LARGE and one.entries is not None:
                entries = details(one.entries, 0, len(one.entries))
                bodies = (entry.body_start for entry in entries if entry.flags & ENTRY_LARGE)
                found += [LARGE.unpack_from(one.entries, at)[0] for at in bodies]
        return found


class Parts:
    """All open transactions in one destination."""

    __slots__ = ("_home", "_open")

    def __init__(self, home: Destination) -> None:
        self._home = home
        self._open: dict[tuple[bytes, int], Part] = {}

    def __len__(self) -> int:
        return len(self._open)

    def _part(self, session: bytes, transaction: int, *, live: bool = True) -> Part:
        part = self._open.get((session, transaction))
        if part is None:
            part = self._open[session, transaction] = Part(live)
        return part

    # ------------------------------------------------------------------ while it is open

    def hide(self, batch: Batch, transaction: int) -> None:
        """Messages sent in a transaction. What is wrong with them is told at the commit."""
        home = self._home
        part = self._part(batch.producer.session.id, transaction)
        if batch.first != part.sent + 1:
            part.fault = part.fault or f"send number {batch.first} came where {part.sent + 1} was expected"
            return
        part.sent += batch.count
        part.link = batch.link
        part.origin = batch.producer.session.line
        for piece in self._wanted(batch, part):
            head = piece.head(home.number, 0, transaction, home.port.now_ms)
            packed = head.pack()
            index, place = home.port.append(records.HIDDEN, packed, piece.entries)
            part.hidden.append(self._hidden(index, place, len(packed) + len(piece.entries), head, piece.entries))

    def spoil(self, batch: Batch, transaction: int, fault: str) -> None:
        """Something of it cannot be stored: the commit will say why."""
        part = self._part(batch.producer.session.id, transaction)
        part.sent += batch.count
        part.fault = part.fault or fault

    def _wanted(self, batch: Batch, part: Part) -> list[Batch]:
        """The batch without what was stored before under the same deduplication id."""
        if not batch.flags & (ENTRY_DEDUP | ENTRY_CRON):
            return [batch]
        home, kept = self._home, list[tuple[int, int]]()
        for position, entry in enumerate(details(batch.entries, 0, len(batch.entries))):
            if entry.flags & ENTRY_CRON and (bad := intake.bad_schedule(entry, home.port.now_ms)) is not None:
                part.fault = part.fault or bad.text
            identity = lookup(entry.headers, b":dedup") if entry.flags & ENTRY_DEDUP else None
            if isinstance(identity, str):
                known = home.dedup.find(identity, home.port.now_ms, home.parameters.dedup_s)
                if known is not None or identity in part.dedup:
                    continue
                part.dedup.add(identity)
            if kept and kept[-1][1] == position:
                kept[-1] = (kept[-1][0], position + 1)
            else:
                kept.append((position, position + 1))
        return [batch.part(first, beyond - first) for first, beyond in kept]

    def _hidden(self, index: int, place: int, size: int, head: stored.Head, entries: memoryview) -> Hidden:
        look = self._home.kind == "topic" or acceptance.needs_look(self._home, head.flags, head.low, head.high)
        return Hidden(index, place, size, head, bytes(entries) if look else None)

    def settle(self, session: Session, transaction: int, cursor: int, ranges: list[tuple[int, int]]) -> None:
        """Acknowledged in a transaction: still locked, no longer the consumer's to settle."""
        if ranges:
            part = self._part(session.id, transaction)
            part.settled += [(cursor, low, high) for low, high in ranges]

    def doom(self, session: Session, transaction: int, why: str) -> None:
        """Something of it cannot happen, so nothing of it will (CLU-155)."""
        part = self._part(session.id, transaction)
        part.fault = part.fault or why

    # ------------------------------------------------------------------ how it ends

    def fault(self, session: Session, transaction: int) -> str | None:
        """Why it cannot be committed."""
        part = self._open.get((session.id, transaction))
        if part is None:
            return None
        for number, low, high in part.settled:
            cursor = self._home.cursors.get(number)
            if cursor is not None and not cursor.taken.covered(low, high):
                return part.fault or GONE_MEANWHILE
        return part.fault or None

    def count(self, session: Session, transaction: int) -> int:
        part = self._open.get((session.id, transaction))
        return part.sent if part is not None else 0

    def items(self, session: Session, transaction: int) -> tuple[list[Stored], list[Settled]]:
        """What the COMMIT record has to say of this destination; order numbers are given here."""
        home = self._home
        part = self._open.get((session.id, transaction))
        if part is None:
            return [], []
        order, new = home.next, list[Stored]()
        for one in part.hidden:
            new.append((home.number, one.head.count, order, one.index, home.port.now_ms))
            order += one.head.count
        return new, [(home.number, cursor, low, high) for cursor, low, high in part.settled]

    def commit(self, index: int, body: memoryview) -> None:
        """The COMMIT record was written, or is read again."""
        home = self._home
        session, transaction, stored_count, settled_count = records.COMMIT_RECORD.unpack_from(body)
        part = self._open.pop((session, transaction), None) or Part(live=False)
        hidden = {one.index: one for one in part.hidden}
        plans, at = [], records.COMMIT_RECORD.size
        for _ in range(stored_count):
            number, _, order, source, arrival_ms = records.COMMIT_STORED.unpack_from(body, at)
            at += records.COMMIT_STORED.size
            if number == home.number and source in hidden:
                one = hidden[source]
                head = one.head._replace(order=order, arrival_ms=arrival_ms)
                plan = acceptance.accept(home, head, one.place, one.size, one.entries)
                if home.kind == "topic":
                    plan.entries, plan.link, plan.origin = one.entries, part.link, part.origin
                plans.append(plan)
        for _ in range(settled_count):
            number, cursor_number, low, high = records.COMMIT_SETTLED.unpack_from(body, at)
            at += records.COMMIT_SETTLED.size
            cursor = home.cursors.get(cursor_number)
            if number == home.number and cursor is not None:
                home.books.acknowledged += high - low
                settling.finish(home, cursor, low, high)
                for share in cursor.all_shares():
                    settling.free_keys(home, cursor, share, [(low, high)])
        self._let_files_go(part)
        home.last_index = max(home.last_index, index)
        home.port.ready(home)

        def visible() -> None:
            for plan in plans:
                acceptance.reveal(home, plan)

        if part.live:
            home.port.after(index, visible)
        else:
            visible()

    def take(self, session: Session, transaction: int) -> list[tuple[int, int, int]]:
        """It is rolled back: what it had taken. Its messages are never delivered (CLU-160)."""
        part = self._open.pop((session.id, transaction), None)
        if part is None:
            return []
        self._let_files_go(part)
        return part.settled

    # ------------------------------------------------------------------ prepared

    def prepare(self, session: bytes, transaction: int) -> tuple[list[tuple[int, int, int]], list[Settled]]:
        """Hold on to it until somebody brings the word; the items of the PREPARE record, written at once."""
        home = self._home
        part = self._open.get((session, transaction))
        if part is None:
            return [], []
        part.prepared = True
        for number in part.files():
            home.port.large_kept(number)
        hidden = [(home.number, one.head.count, one.index) for one in part.hidden]
        lasting = [(home.number, cursor, low, high) for cursor, low, high in self._lasting(part)]
        return hidden, lasting

    def apply_prepare(self, session: bytes, transaction: int, settled: list[tuple[int, int, int]]) -> None:
        """A PREPARE record read again: what it took of this destination is locked."""
        part = self._part(session, transaction, live=False)
        part.prepared = True
        part.settled = settled
        self._lock(part)

    def release(self, session: Session, transaction: int) -> None:
        """Its rollback is read again: what it took is anybody's, and counts as delivered if a line says so."""
        for number, low, high in self.take(session, transaction):
            cursor = self._home.cursors.get(number)
            if cursor is not None:
                cursor.taken.remove(low, high)
                cursor.come_back(cursor.unsettled(low, high))

    def lock(self) -> None:
        """Cursors were read from a checkpoint: what is prepared is not ready."""
        for part in self._open.values():
            self._lock(part)

    def _lock(self, part: Part) -> None:
        for number, low, high in part.settled if part.prepared else ():
            cursor = self._home.cursors.get(number)
            if cursor is not None:
                cursor.take_out(low, high)
                for first, beyond in cursor.unsettled(low, high):
                    cursor.taken.add(first, beyond)

    def prepared(self, cursor: int) -> list[tuple[int, int]]:
        """What prepared transactions have taken of this cursor."""
        return [
            (low, high)
            for part in self._open.values()
            if part.prepared
            for number, low, high in part.settled
            if number == cursor
        ]

    @property
    def has_prepared(self) -> bool:
        return any(part.prepared for part in self._open.values())

    def files(self) -> list[int]:
        """Of very large messages in what is prepared."""
        return [number for part in self._open.values() if part.prepared for number in part.files()]

    def needs(self, first: int, last: int) -> bool:
        """Is any record with an index from the first to the last hidden, and prepared?"""
        return any(first <= one.index <= last for part in self._open.values() if part.prepared for one in part.hidden)

    def _let_files_go(self, part: Part) -> None:
        for number in part.files() if part.prepared and part.live else ():
            self._home.port.large_gone(number)

    # ------------------------------------------------------------------ the journal

    def apply_hidden(self, index: int, place: int, body: memoryview) -> None:
        one = stored.read(body)
        part = self._part(one.head.session, one.head.transaction, live=False)
        part.sent += one.head.count
        part.hidden.append(self._hidden(index, place, len(body), one.head, one.view[one.start : one.end]))

    def oldest(self) -> int | None:
        """Index of the oldest HIDDEN record that may still be committed, without what is prepared (see `needs`)."""
        found = (one.index for part in self._open.values() if not part.prepared for one in part.hidden)
        return min(found, default=None)

    def snapshot(self) -> list[Any]:
        return [
            (
                session,
                transaction,
                [(o.index, o.place, o.size, o.head, o.entries) for o in part.hidden],
                self._lasting(part) if part.prepared else None,
            )
            for (session, transaction), part in self._open.items()
            if part.hidden or part.prepared
        ]

    def _lasting(self, part: Part) -> list[tuple[int, int, int]]:
        cursors = self._home.cursors
        return [one for one in part.settled if one[0] in cursors and cursors[one[0]].durable]

    def restore(self, state: list[Any]) -> None:
        for session, transaction, hidden, *more in state:  # checkpoints of older versions have nothing prepared
            part = self._part(bytes(session), transaction, live=False)
            if more and more[0] is not None:
                part.prepared = True
                part.settled = [(cursor, low, high) for cursor, low, high in more[0]]
            part.hidden = [
                Hidden(index, place, size, stored.Head(*head), entries) for index, place, size, head, entries in hidden
            ]
            part.sent = sum(one.head.count for one in part.hidden)

    def over(self, session: bytes, transaction: int | None = None) -> None:
        """The journal says that this transaction, or all open ones of this session, ended without a commit."""
        for key in [one for one in self._open if one[0] == session and transaction in (None, one[1])]:
            if not self._open[key].prepared:
                del self._open[key]

    def forget(self) -> None:
        """Another life of the message manager: nobody can commit what was open, except what is prepared."""
        self._open = {key: part for key, part in self._open.items() if part.prepared}

    def recovered(self) -> None:
        """All records are read, and from now on more are written."""
        self.forget()
        for part in self._open.values():
            part.live = True
