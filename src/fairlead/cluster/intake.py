"""Taking messages in: send numbers, repeats, deduplication, and the STORE or HIDDEN record.

A session's sends are taken one after the other by their numbers, so a repeat is known by its number alone (CLU-118).
What is skipped inside a batch (a deduplication id that was seen, a schedule nobody can read) cuts it into several
records, for the ids of messages count on within a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import acceptance, cron, records, stored
from fairlead.cluster.ids import Kind
from fairlead.errors import BadEntries, BadParameter, FairleadError, OutOfOrder, QuotaExceeded, TransferFailed
from fairlead.wire.durable import (
    ENTRY_CRON,
    ENTRY_DEDUP,
    ENTRY_LARGE,
    ENTRY_VOLATILE,
    STORED_AGAIN,
    STORED_NEW,
    STORED_REFUSED,
    STORED_VOLATILE,
)
from fairlead.wire.entry_codec import details, forged, span, survey
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Producer
    from fairlead.wire.entry_codec import Entry

REMEMBERED: Final = 64
"""Newest STORE records of which it is known which order numbers they gave, for the receipts of repeats."""
Recent = tuple[bytes, int, int, int]
"""session id, first send number, count, order number of the first."""
MESSAGE: Final = bytes((Kind.MESSAGE,))


class Batch:
    """Messages as they came: one STORE frame, or what is left of it."""

    __slots__ = ("count", "entries", "first", "flags", "high", "id_first", "link", "low", "producer", "sent_ms")

    def __init__(
        self, producer: Producer, first: int, sent_ms: int, id_first: int, entries: memoryview, link: int
    ) -> None:
        self.producer = producer
        self.first = first
        self.sent_ms = sent_ms
        self.id_first = id_first
        self.entries = entries
        self.link = link
        self.count, self.flags, self.low, self.high = survey(entries, 0, len(entries))

    def part(self, first: int, count: int) -> Batch:
        """Some of them; the whole is not cut."""
        if first == 0 and count == self.count:
            return self
        low, high = span(self.entries, 0, len(self.entries), first, count)
        return Batch(
            self.producer, self.first + first, self.sent_ms, self.id_first + first, self.entries[low:high], self.link
        )

    def head(self, number: int, order: int, transaction: int, arrival_ms: int) -> stored.Head:
        session = self.producer.session.id
        identity = session[:12] + MESSAGE + (self.id_first & stored.SEQUENCE_MAX).to_bytes(7)
        return stored.Head(
            number, self.flags, order, self.count, session, self.first, transaction, self.low, self.high,
            self.sent_ms, arrival_ms, identity, len(self.entries),
        )  # fmt: skip


def store(
    home: Destination,
    producer: Producer,
    first: int,
    transaction: int,
    sent_ms: int,
    id_first: int,
    entries: memoryview,
    link: int,
) -> None:
    """A STORE of a client, or of the server itself (handle 0)."""
    try:
        batch = Batch(producer, first, sent_ms, id_first, entries, link)
    except BadEntries as fault:
        _tell_refused(home, producer, first, 0, fault.code, fault.text)
        return
    home.marks.meet(producer)
    if transaction:
        try:
            _check(batch)
            home.parts.hide(_with_files(home, batch), transaction)
        except (BadParameter, BadEntries, TransferFailed, QuotaExceeded) as fault:
            home.parts.spoil(batch, transaction, fault.text)
        return
    expected = producer.session.accepted.get(home.number, 0) + 1
    if first > expected:
        text = f"Send number {first} came before {expected}."
        _tell_refused(home, producer, first, batch.count, OutOfOrder.code, text)
        return
    known = min(expected - first, batch.count)
    if known:
        _again(home, producer, first, known)
        if known == batch.count:
            return
        batch = batch.part(known, batch.count - known)
    try:
        _check(batch)
        batch = _with_files(home, batch)
    except (BadParameter, BadEntries, TransferFailed, QuotaExceeded) as fault:
        _skip(home, batch, 0, batch.count, None, fault)
        return
    if batch.flags & (ENTRY_DEDUP | ENTRY_CRON):
        _singly(home, batch)
    else:
        _store(home, batch)


def _check(batch: Batch) -> None:
    """What the bytes alone do not tell: are the ids its own, and the headers such as a client may set?"""
    producer = batch.producer
    if not producer.handle:
        return
    if not producer.session.has_ids(batch.id_first, batch.count):
        raise BadParameter(f"The message id numbers from {batch.id_first} were not given to this session.")
    if forged(batch.entries, 0, len(batch.entries)):
        raise BadEntries("A message brings a header that only the server may set.")
    for allowance in producer.allowances:
        allowance.check(batch.entries)


def _with_files(home: Destination, batch: Batch) -> Batch:
    """Very large messages name a transfer of their session; stored, they name a file of the store."""
    if not batch.flags & ENTRY_LARGE:
        return batch
    entries = home.port.large(batch.producer.session, batch.entries)
    return Batch(batch.producer, batch.first, batch.sent_ms, batch.id_first, memoryview(entries), batch.link)


def _store(home: Destination, batch: Batch) -> None:
    port = home.port
    producer = batch.producer
    head = batch.head(home.number, home.next, 0, port.now_ms)
    packed = head.pack()
    index, place = port.append(records.STORE, packed, batch.entries)
    home.accepted(producer.session, batch.first, batch.count, head.order)
    plan = acceptance.accept(home, head, place, len(packed) + len(batch.entries), batch.entries)
    if home.kind == "topic":
        plan.entries = bytes(batch.entries)
        plan.link = batch.link
        plan.origin = producer.session.line
    first, count, order, now_ms = batch.first, batch.count, head.order, head.arrival_ms
    if not producer.handle:
        port.after(index, lambda: acceptance.reveal(home, plan))
    elif batch.flags & ENTRY_VOLATILE and all_volatile(batch):
        port.stored(producer, first, count, STORED_VOLATILE, order, now_ms)
        port.after(index, lambda: acceptance.reveal(home, plan))
    else:

        def safe() -> None:
            acceptance.reveal(home, plan)
            port.stored(producer, first, count, STORED_NEW, order, now_ms)

        port.after(index, safe)
    home.last_index = index


def all_volatile(batch: Batch) -> bool:
    return all(entry.flags & ENTRY_VOLATILE for entry in details(batch.entries, 0, len(batch.entries)))


def _again(home: Destination, producer: Producer, first: int, count: int) -> None:
    """A repeat: confirmed when the original is safe, with the order numbers the original got, if still known."""
    runs = list(home.recent_orders(producer.session.id, first, count))
    now_ms = home.port.now_ms

    def answer() -> None:
        for send, many, order in runs:
            home.port.stored(producer, send, many, STORED_AGAIN, order, now_ms)

    home.port.after(home.last_index, answer)


def _singly(home: Destination, batch: Batch) -> None:
    """A batch some of whose messages may be left out."""
    entries = details(batch.entries, 0, len(batch.entries))
    taken = 0  # entries dealt with
    pending: set[str] = set()  # ids of those that are not
    for position, entry in enumerate(entries):
        known, fault = None, None
        if entry.flags & ENTRY_CRON:
            fault = bad_schedule(entry, home.port.now_ms)
        identity = lookup(entry.headers, b":dedup") if entry.flags & ENTRY_DEDUP else None
        if isinstance(identity, str):
            if identity in pending:
                _store(home, batch.part(taken, position - taken))  # now the id is known
                taken = position
                pending.clear()
            known = home.dedup.find(identity, home.port.now_ms, home.parameters.dedup_s)
            pending.add(identity)
        if known is None and fault is None:
            continue
        if taken < position:
            _store(home, batch.part(taken, position - taken))
        taken = position + 1
        pending.clear()
        _skip(home, batch, position, 1, known, fault)
    if taken < len(entries):
        _store(home, batch.part(taken, len(entries) - taken))
    home.dedup.trim(home.port.now_ms, home.parameters.dedup_s, home.parameters.dedup_max)


def bad_schedule(entry: Entry, now_ms: int) -> FairleadError | None:
    """What is wrong with the schedule of this message, if anything."""
    try:
        if cron.next_after(str(lookup(entry.headers, b":cron")), now_ms) is None:
            return BadParameter("The schedule never falls due.")
    except FairleadError as fault:
        return fault
    return BadParameter("A very large message cannot be a schedule.") if entry.flags & ENTRY_LARGE else None


def _skip(
    home: Destination, batch: Batch, position: int, count: int, known: int | None, fault: FairleadError | None
) -> None:
    """Some messages are not stored; their send numbers are used all the same, which an empty record says."""
    producer, send, now_ms = batch.producer, batch.first + position, home.port.now_ms
    beyond = send + count
    head = stored.Head(
        home.number, 0, home.next, 0, producer.session.id, beyond, 0, 0, 0, batch.sent_ms, now_ms, stored.NOBODY, 0
    )
    index, _ = home.port.append(records.STORE, head.pack())
    home.accepted(producer.session, beyond, 0, 0)
    home.last_index = index
    if known is not None:
        home.remember(producer.session.id, send, 1, known)

    def answer() -> None:
        if fault is not None:
            _tell_refused(home, producer, send, count, fault.code, fault.text)
        status = STORED_AGAIN if fault is None else STORED_REFUSED
        home.port.stored(producer, send, count, status, known or 0, now_ms)

    if producer.handle:
        home.port.after(index, answer)


def _tell_refused(home: Destination, producer: Producer, first: int, count: int, code: str, text: str) -> None:
    facts = {"producer": producer.handle, "first": first, "count": count, "code": code, "text": text}
    home.port.notice(producer.session, event="refused", **facts)
