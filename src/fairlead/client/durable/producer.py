"""A session's way to send to one destination: gathers messages, numbers them, keeps them until they are confirmed.

All that is added between two flushes travels in as few STORE frames as it takes. Send numbers go on across lives of the
session, so that what is sent again is known for a repeat. A very large message takes its place in the order when its
sending begins: what is sent after it waits for it (CLU-99).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairlead.client.durable.batch import Batch
from fairlead.client.durable.content import BODY_BYTES_MAX, PLAIN, Content
from fairlead.client.durable.receipt import Ticket
from fairlead.errors import DestinationDeleted, FairleadError, OutOfOrder, from_wire
from fairlead.wire.durable import (
    STORED_AGAIN,
    STORED_ITEM,
    STORED_REFUSED,
    STORED_VOLATILE,
)
from fairlead.wire.entry_codec import encode_many

if TYPE_CHECKING:
    from fairlead.client.durable.commands import Facts
    from fairlead.client.durable.part import Part

__all__ = ["Gathered", "Producer"]

SMALL_BYTES = 65_536
EARLY_COUNT = 256
EARLY_BYTES = 131_072
"""So much is sent on its way before the turn ends: the other side can begin while we go on."""
REASK_S = 5.0
"""A blocked destination is asked about again at this interval, lest a lost release block for ever (CLU-112)."""


class Gathered:
    """Messages said in this turn, in order: runs of like ones are encoded in one go."""

    __slots__ = ("_bodies", "_like", "_parts", "bytes", "tickets")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bodies: list[bytes] = []
        self._like: Content = PLAIN
        self.tickets: list[Ticket | None] = []
        self.bytes = 0

    def add(self, body: bytes, like: Content, ticket: Ticket | None) -> int:
        """How many there are now; -1: so many that they should be sent on their way."""
        if like is not self._like:
            self._encode()
            self._like = like
        tickets = self.tickets
        self._bodies.append(body)
        tickets.append(ticket)
        self.bytes = size = self.bytes + len(body) + like.overhead
        count = len(tickets)
        return count if size < EARLY_BYTES and count < EARLY_COUNT else -1

    def fits(self, body: bytes, like: Content) -> bool:
        """In the same batch as what is here?"""
        return self.bytes + len(body) + like.overhead <= BODY_BYTES_MAX

    def take(self) -> tuple[bytes, list[Ticket | None]]:
        self._encode()
        entries = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        tickets = self.tickets
        self._parts, self.tickets, self.bytes = [], [], 0
        return entries, tickets

    def _encode(self) -> None:
        if self._bodies:
            like, bodies = self._like, self._bodies
            if like.key:
                self._parts += [like.entry(body) for body in bodies]
            else:
                self._parts.append(
                    encode_many(
                        bodies,
                        like.headers,
                        like.priority,
                        flags=like.flags,
                        ttl_ms=like.ttl_ms,
                        delay_ms=like.delay_ms,
                    )
                )
            self._bodies = []


class Producer:
    """`handle` is 0 while it is not open on the line there is."""

    def __init__(self, part: Part, destination: str, kind: str, *, create: bool, parameters: dict[str, Any]) -> None:
        self.part = part
        self.destination = destination
        self.kind = kind
        self.create = create
        self.parameters = parameters
        self.handle = 0
        self.refused_by: Part | None = None  # it is not there, said this one; asked where it is, we ask once more
        self.blocked = False
        self.error: FairleadError | None = None  # refused for good: the next use opens another one
        self.unconfirmed: deque[Batch] = deque()
        self._unsent: deque[Batch] = deque()  # those of them that were not sent on this line
        self._gathered = Gathered()
        self._next = 1
        self._destination_id: object = None
        self._refusals: deque[tuple[int, int, FairleadError]] = deque()
        self._reasking = False

    # The application's side.

    @property
    def is_gathering(self) -> bool:
        """Did this turn send something already? Then there was room."""
        return bool(self._gathered.tickets)

    @property
    def was_open(self) -> bool:
        return self._destination_id is not None

    @property
    def destination_id(self) -> str:
        """In hexadecimal digits; empty before it was open."""
        return "" if self._destination_id is None else str(self._destination_id)

    @property
    def is_idle(self) -> bool:
        """Is everything it was given confirmed or refused?"""
        return not self.unconfirmed and not self._gathered.tickets

    def add(self, body: bytes, like: Content, ticket: Ticket | None) -> None:
        """Send one; it fits one STORE, and whoever asks has looked whether the session has room."""
        if len(body) > SMALL_BYTES and not self._gathered.fits(body, like):
            self.seal()
        count = self._gathered.add(body, like, ticket)
        if count < 0:
            self.seal()
            self.part.road.flush_early(self)
        elif count == 1:
            self.part.road.touch(self)

    def reserve(self, ticket: Ticket | None) -> Batch:
        """A place in the order for a very large message whose body is not there yet; see `fill`."""
        self.seal()
        return self._append(1, None, [ticket], 0)

    def fill(self, batch: Batch, entry: bytes) -> None:
        batch.entries = entry
        self.part.road.touch(self)

    def give_up(self, batch: Batch, error: Exception) -> None:
        """The very large message will not come: those behind it move up."""
        if batch not in self.unconfirmed:
            return
        at = self.unconfirmed.index(batch)
        for later in list(self.unconfirmed)[at + 1 :]:
            later.first -= 1
        self._next -= 1
        self.unconfirmed.remove(batch)
        self._unsent.remove(batch)
        self.part.in_flight -= 1
        batch.refuse(1, error)
        self.part.road.touch(self)

    def seal(self) -> None:
        """What was gathered becomes a batch, with its numbers."""
        if self._gathered.tickets:
            size = self._gathered.bytes
            entries, tickets = self._gathered.take()
            self._append(len(tickets), entries, tickets, size)

    def _append(self, count: int, entries: bytes | None, tickets: Sequence[Ticket | None], size: int) -> Batch:
        batch = Batch(self._next, count, entries, tickets, size)
        self._next += count
        self.part.in_flight += count
        self.part.in_flight_bytes += size
        self.unconfirmed.append(batch)
        self._unsent.append(batch)
        return batch

    def move(self, part: Part) -> None:
        """It belongs to another part; nothing of it was sent yet."""
        self.seal()
        count, size = sum(batch.count for batch in self.unconfirmed), sum(batch.size for batch in self.unconfirmed)
        self.part.in_flight -= count
        self.part.in_flight_bytes -= size
        part.in_flight += count
        part.in_flight_bytes += size
        self.part = part

    # The line's side.

    def flush(self) -> None:
        """Say what can be said now."""
        self.seal()
        part = self.part
        if not self.handle or not part.is_open:
            return
        unsent = self._unsent
        while unsent:
            batch = unsent[0]
            if batch.entries is None:
                return
            if not batch.id_first:
                batch.id_first = part.take_ids(batch.count)
                if not batch.id_first:
                    return
                batch.sent_ms = part.road.now_ms()
            unsent.popleft()
            part.road.send(batch.frame(self.handle))

    def on_open(self, facts: Facts) -> None:
        """The answer to `produce`: what was accepted before is confirmed, the rest is sent (again)."""
        accepted = int(facts.get("accepted") or 0)
        known, self._destination_id = self._destination_id, facts.get("destination_id")
        self.kind = str(facts.get("kind") or self.kind)
        self.handle = int(facts["producer"])
        if known is None:
            self._renumber(accepted + 1)
        elif known != self._destination_id:
            self._fail_all(DestinationDeleted(f"{self.destination!r} was deleted, and another one has its name now."))
            self._renumber(accepted + 1)
        else:
            self._learn(accepted)
        self._unsent = deque(self.unconfirmed)
        self.on_blocked(bool(facts.get("blocked")))
        self.part.road.touch(self)
        self.part.road.changed()
        if self.part.transaction is not None:
            self.part.road.touch(self.part.transaction)

    def _renumber(self, first: int) -> None:
        self._next = first
        for batch in self.unconfirmed:
            batch.first = self._next
            self._next += batch.count

    def _learn(self, accepted: int) -> None:
        """Everything up to this number is stored, and safe; where, is not said."""
        while self.unconfirmed and self.unconfirmed[0].first + self.unconfirmed[0].confirmed <= accepted:
            batch = self.unconfirmed[0]
            self._confirm(batch, min(accepted + 1, batch.beyond) - batch.first - batch.confirmed, None, 0)
        if self.unconfirmed:
            self.unconfirmed[0].cut()

    def on_lost(self) -> None:
        self.handle = 0
        self._unsent = deque(self.unconfirmed)
        self._refusals.clear()

    def on_blocked(self, blocked: bool) -> None:
        if blocked and not self._reasking:
            self._reasking = True
            self.part.road.later(REASK_S, self._reask)
        if blocked != self.blocked:
            self.blocked = blocked
            self.part.road.changed()

    def _reask(self) -> None:
        self._reasking = False
        if self.blocked and self.handle and self.error is None:
            self.part.ask_blocked(self)

    def on_stored(self, body: bytes) -> None:
        """A STORED frame."""
        for first, count, status, order, _arrival_ms in STORED_ITEM.iter_unpack(body):
            self._on_stored(first, count, status, order)
        self.part.road.changed()

    def _on_stored(self, first: int, count: int, status: int, order: int) -> None:
        while count and self.unconfirmed:
            batch = self.unconfirmed[0]
            expected = batch.first + batch.confirmed
            if first < expected:  # told before, on the line that was lost
                skipped = min(expected - first, count)
                first, count, order = first + skipped, count - skipped, order + skipped
                continue
            part = min(count, batch.beyond - first)
            if first > expected or part <= 0 or not batch.sent_ms:
                return  # nothing we sent: the resume sorts it out
            if status == STORED_REFUSED:
                self._refuse(batch, first, part)
            else:
                self._confirm(batch, part, order or None, status)
            first, count, order = first + part, count - part, order + part

    def _confirm(self, batch: Batch, count: int, order: int | None, status: int) -> None:
        duplicate = status == STORED_AGAIN
        batch.confirm(
            count, None if status == STORED_VOLATILE and not order else order, self.destination, duplicate,
            self.part.id_base,
        )  # fmt: skip
        self._settle(batch, count)

    def _refuse(self, batch: Batch, first: int, count: int) -> None:
        error: FairleadError | None = None
        while self._refusals and self._refusals[0][0] + self._refusals[0][1] <= first:
            self._refusals.popleft()
        if self._refusals and self._refusals[0][0] <= first:
            error = self._refusals[0][2]
        batch.refuse(count, error or from_wire("refused"))
        self._settle(batch, count)

    def _settle(self, batch: Batch, count: int) -> None:
        """Give the room in the window back; a batch that is done is forgotten."""
        part = self.part
        part.in_flight -= count
        if batch.confirmed >= batch.count:
            self.unconfirmed.popleft()
            if self._unsent and self._unsent[0] is batch:
                self._unsent.popleft()
            part.in_flight_bytes = max(0, part.in_flight_bytes - batch.size)

    def on_refused(self, first: int, count: int, code: str, text: str) -> None:
        """A NOTICE before the STORED that counts them; a gap in the numbers is mended by sending everything again."""
        if code != OutOfOrder.code:
            self._refusals.append((first, count, from_wire(code, text)))
        elif self.unconfirmed and self.unconfirmed[0].first + self.unconfirmed[0].confirmed >= first:
            self.fail(from_wire(code, text))  # what it misses was confirmed to us: nothing to send again
        else:
            self._unsent = deque(self.unconfirmed)
            self.part.road.touch(self)

    def fail(self, error: FairleadError) -> None:
        """It cannot be used any more."""
        if self.error is None:
            self.error = error
            self.handle = 0
            self.part.remove_producer(self)
            self._fail_all(error)
            if self.part.transaction is not None:
                self.part.transaction.on_producer_failed(self, error)
            self.part.road.changed()

    def _fail_all(self, error: Exception) -> None:
        self.seal()
        while self.unconfirmed:
            batch = self.unconfirmed[0]
            left = batch.count - batch.confirmed
            batch.refuse(left, error)
            self._settle(batch, left)
        self._unsent.clear()
