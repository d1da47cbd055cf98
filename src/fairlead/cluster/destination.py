"""One queue or topic: a log of messages with cursors, and everything that may happen to it (CLU-74).

It is told commands, time and what is safe, and asks its `Port` for the rest. Whatever changes it for good is a record
first; `apply` makes the same of the record when it is read again. This is the door; behind it: taking in (intake,
acceptance), who consumes (consumers, cursor), handing out (dispatch, groups, views), settling, time (clockwork,
retention), transactions (parts), moving (dead), limits (marks), the journal (keeping), administration (care).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster import (
    care,
    clockwork,
    consumers,
    dead,
    dispatch,
    gathering,
    intake,
    keeping,
    retention,
    settling,
    stored,
    ticking,
    views,
)
from fairlead.cluster.books import Books
from fairlead.cluster.cursor import Cursor
from fairlead.cluster.dedup import Dedup
from fairlead.cluster.keeping import PLACED
from fairlead.cluster.last_value import LastValues
from fairlead.cluster.marks import FlowMarks
from fairlead.cluster.parts import Parts, Settled, Stored
from fairlead.cluster.priorities import Priorities
from fairlead.cluster.retention import Retention
from fairlead.journal.index import Index
from fairlead.security.spaces import owner as owner_of
from fairlead.security.spaces import prefix_of

if TYPE_CHECKING:
    from fairlead.cluster.parameters import Kind, Parameters
    from fairlead.cluster.parties import Consumer, Producer, Session
    from fairlead.cluster.port import Port
    from fairlead.cluster.reservations import Ledger
    from fairlead.journal.index import Pool

__all__ = ["PLACED", "Destination"]

START: Final = 1
"""The first order number."""


class Destination:
    """A queue or a topic."""

    __slots__ = (
        "books", "bytes", "clock", "cursors", "dedup", "first", "halted", "id", "index", "kept_bytes", "kind", "large",
        "last_index", "last_read", "last_values", "ledger", "low", "marks", "name", "next", "next_cursor", "number",
        "parameters", "parts", "port", "priorities", "recent", "retention", "retry_due", "selective", "stale",
        "takes_dead", "trim_due", "views", "visible",
    )  # fmt: skip

    def __init__(
        self,
        port: Port,
        number: int,
        id: bytes,  # noqa: A002
        name: str,
        kind: Kind,
        parameters: Parameters,
        pool: Pool | None = None,
    ) -> None:
        self.port = port
        self.number = number
        self.id = id
        self.name = name
        self.kind: Kind = kind
        self.parameters = parameters
        self.index = Index(pool)
        self.priorities = Priorities()
        self.cursors: dict[int, Cursor] = {}
        self.next_cursor = 1
        self.next = START  # the next order number to be given
        self.visible = START  # messages before this one are safe
        self.first = START  # the oldest message that can still be read
        self.low = START  # the oldest message somebody has still to settle
        self.bytes = 0  # of messages not settled
        self.kept_bytes = 0  # of all that can be read, where something is retained
        self.selective = 0  # cursors with a selector
        self.last_index = 0  # newest record of this destination
        self.clock = clockwork.Clockwork()
        self.dedup = Dedup()
        self.last_values = LastValues()
        self.retention = Retention()
        self.marks = FlowMarks(self)
        self.parts = Parts(self)
        self.recent: list[intake.Recent] = []
        self.large: dict[int, int] = {}  # order -> side file
        self.ledger: Ledger | None = None  # of a queue's named cursors
        self.last_read: tuple[int, stored.Stored] | None = None  # within one turn
        bare = name.removeprefix(prefix_of(owner_of(name)))
        self.takes_dead = bare == dead.DEAD_QUEUE or bare.startswith(f"{dead.DEAD_QUEUE}.")
        self.views: dict[Consumer, views.View] = {}
        self.halted = False  # nothing is handed out, see draining.py
        self.trim_due = False
        self.retry_due = False
        self.stale = 0  # settlements that came too late
        self.books = Books()  # what went through since we serve it
        if kind == "queue":
            self.cursors[0] = Cursor(0, START, self.priorities, durable=True)

    # ------------------------------------------------------------------ facts

    @property
    def depth(self) -> int:
        """Messages waiting: not settled in a queue, or by the slowest subscription of a topic."""
        return self.cursors[0].depth(self.next) if self.kind == "queue" else self.next - self.low

    @property
    def blocked(self) -> bool:
        """Are producers asked to wait?"""
        return self.marks.blocked

    @property
    def ttl_ms(self) -> int:
        """Time to live of messages that bring none."""
        return 0 if self.takes_dead else int(self.parameters.ttl_s * 1000)

    @property
    def hold_ms(self) -> int:
        """How long the messages of a lost session stay locked."""
        return int(self.parameters.hold_s * 1000)

    def slowest(self) -> int:
        """The longest backlog of a non-durable subscription, where that counts as a limit."""
        if self.kind == "queue" or self.parameters.slow_subscriber != "buffer":
            return 0
        return max((one.waiting() for one in self.cursors.values() if not one.durable), default=0)

    def deliveries(self, order: int) -> int:
        """How often a message of a queue was delivered so far."""
        return self.cursors[0].count(order) if self.kind == "queue" else 0

    def facts(self) -> dict[str, Any]:
        """For administration."""
        return care.facts(self)

    def subscriptions(self) -> list[care.Subscription]:
        return care.subscriptions(self)

    # ------------------------------------------------------------------ commands of its queue

    def on_store(
        self,
        producer: Producer,
        first: int,
        transaction: int,
        sent_ms: int,
        id_first: int,
        entries: memoryview,
        link: int,
    ) -> None:
        """Messages of a producer (CLU-118). Nothing changes if the journal has no room."""
        intake.store(self, producer, first, transaction, sent_ms, id_first, entries, link)
        if self.parameters.max_messages or self.parameters.max_bytes:
            self.marks.check()

    def accepted(self, session: Session, first: int, count: int, order: int) -> None:
        """These send numbers are taken."""
        session.accepted[self.number] = first + count - 1
        if count:
            self.remember(session.id, first, count, order)

    def remember(self, session: bytes, first: int, count: int, order: int) -> None:
        """Which order numbers these sends got."""
        self.recent.append((session, first, count, order))
        if len(self.recent) > 2 * intake.REMEMBERED:
            del self.recent[: intake.REMEMBERED]

    def recent_orders(self, session: bytes, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Send numbers, and the order numbers they got where that is still known: send, count, order or 0."""
        beyond = first + count
        for owner, send, many, order in self.recent:
            low, high = max(first, send), min(beyond, send + many)
            if owner == session and low < high:
                if first < low:
                    yield first, low - first, 0
                yield low, high - low, order + low - send
                first = high
        if first < beyond:
            yield first, beyond - first, 0

    def on_settle(
        self,
        consumer: Consumer,
        items: list[tuple[int, int, int, int]],
        transaction: int,
        tag: int,
        patient: bool = False,
    ) -> None:
        """What a consumer did with its messages. What it does not hold is stale, and that is answered (CLU-126)."""
        settling.settle(self, consumer, items, transaction, tag, patient)

    def on_want(self, consumer: Consumer, messages: int, bytes_: int) -> None:
        """More credit (CLU-111)."""
        consumers.want(self, consumer, messages, bytes_)

    def attach(self, consumer: Consumer, start: Any = "new") -> None:
        """A consumer, browser or replay begins. On a topic `cursor` 0 gives it a cursor of its own."""
        consumers.attach(self, consumer, start)

    def detach(self, consumer: Consumer, orderly: bool = True) -> None:
        """A consumer ends. What it still holds it has seen: that comes again and counts (CLU-25)."""
        consumers.leave(self, consumer, hold_ms=0 if orderly else self.hold_ms)

    def lost(self, consumer: Consumer) -> None:
        """The consumer's client or manager is gone (CLU-125); its messages may stay locked for a while (CLU-126)."""
        consumers.leave(self, consumer, hold_ms=self.hold_ms)

    def subscribe(
        self,
        *,
        name: str,
        client: str,
        selector: str,
        shared: bool,
        start: Any,
        pattern: str = "",
        opened_ms: int = 0,
    ) -> tuple[int, int]:
        """A durable subscription: its cursor, and the index of its record (CLU-17). `opened_ms`: a named cursor."""
        return consumers.subscribe(
            self,
            name=name,
            client=client,
            selector=selector,
            shared=shared,
            start=start,
            pattern=pattern,
            opened_ms=opened_ms,
        )

    def unsubscribe(self, cursor: int) -> int:
        """A durable subscription ends: the index of the record that says so."""
        return consumers.unsubscribe(self, cursor)

    # ------------------------------------------------------------------ turns and time

    def turn(self) -> bool:
        """Hand out what can be handed out; True: more to do."""
        if self.trim_due:
            retention.trim(self)
        more = self.ledger is not None and bool(self.ledger.asked) and gathering.run(self)
        if self.halted or self.parameters.paused:
            return more
        if not (self.kind == "topic" and self.parameters.slow_subscriber == "hold" and self._somebody_is_slow()):
            for cursor in list(self.cursors.values()):
                if cursor.shares:
                    more |= dispatch.run(self, cursor)
        for view in list(self.views.values()) if self.views else ():
            more |= views.run(self, view)
        self.last_read = None
        if self.trim_due:
            retention.trim(self)
        return more

    def _somebody_is_slow(self) -> bool:
        return any(
            not share.is_open and cursor.waiting() for cursor in self.cursors.values() for share in cursor.shares
        )

    def on_loaded(self, place: int) -> None:
        """What was asked for came from disk."""
        self.port.ready(self)

    def on_tick(self, now_ms: int) -> None:
        """Whatever the time brings: delays that are over, expiry, schedules, retention, lost sessions given up."""
        ticking.tick(self, now_ms)

    def tidy(self, now_ms: int) -> None:
        """Let go of what otherwise turns and time let go of: of a member that follows and has neither."""
        ticking.tidy(self, now_ms)

    # ------------------------------------------------------------------ transactions

    def prepare(self, session: Session, transaction: int) -> str | None:
        """Why this transaction cannot be committed here; None: it can."""
        return self.parts.fault(session, transaction)

    def hidden(self, session: Session, transaction: int) -> int:
        """Messages it sent here."""
        return self.parts.count(session, transaction)

    def commit_parts(self, session: Session, transaction: int) -> tuple[list[Stored], list[Settled]]:
        """What the COMMIT record says of this destination. It has to be written and applied at once."""
        return self.parts.items(session, transaction)

    def abort(self, session: Session, transaction: int) -> None:
        """Rolled back: its messages never were, what it took comes again and counts (CLU-159, CLU-160)."""
        settling.abort(self, session, transaction)

    # ------------------------------------------------------------------ the journal

    def apply(self, kind: int, index: int, place: int, head_and_payload: memoryview) -> None:
        """A record read again after a restart; COMMIT also when it is written."""
        keeping.apply(self, kind, index, place, head_and_payload)

    def located(self, base: int, count: int, place: int, size: int, flags: int, arrival_ms: int, skip: int = 0) -> None:
        """Where older messages lie, as the journal remembers it beside its segments. Between `restore` and `apply`."""
        keeping.located(self, base, count, place, size, flags, arrival_ms, skip)

    def recovered(self) -> None:
        """All records are read: what may have been delivered counts as that, and open transactions are over."""
        keeping.recovered(self)

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """Everything the journal's records said so far, for a checkpoint.

        Of the index only what is at or above the order number `since`: the journal knows where older messages are.
        """
        return keeping.snapshot(self, since)

    def restore(self, state: Any) -> None:
        """From a checkpoint; records behind it follow by `apply`, then `recovered`."""
        keeping.restore(self, state)

    def is_live(self, first: int, beyond: int) -> bool:
        """Does anybody still need one of these messages?"""
        return keeping.is_live(self, first, beyond)

    def compact(self, first: int, beyond: int) -> int:
        """Write what is still needed of these messages again (PLACE records); how many. Cold ones are fetched first."""
        return keeping.compact(self, first, beyond)

    # ------------------------------------------------------------------ administration

    def schedules(self) -> list[dict[str, Any]]:
        return care.schedules(self)

    def cancel(self, order: int) -> bool:
        """End a schedule; False: there is none."""
        return care.cancel(self, order)

    def browse(self, start: int = 0, count: int = 100, selector: str = "", *, kept: bool = False) -> care.Page:
        """Messages from this order number on; `kept`: also those that are consumed and still readable."""
        return care.browse(self, start, count, selector, kept=kept)

    def purge(self, selector: str = "", start: int = 0, most: int = care.PAGE_MAX) -> tuple[int, int | None]:
        """Drop what nobody holds: how many, and where to go on (None: that was all)."""
        return care.purge(self, selector, start, most)

    def drop(self, orders: Iterable[int]) -> int:
        """Remove these, but for what somebody holds; how many."""
        return care.drop(self, [(order, order + 1) for order in sorted(set(orders))])

    def move(self, orders: Iterable[int], to: Destination) -> int:
        """Each in one step to another destination; how many."""
        return care.move(self, [(order, order + 1) for order in orders], to)

    def bury_all(self, reason: str = "deleted") -> int:
        """Everything that waits goes to the dead message queue, before this destination is deleted; how many."""
        return care.bury_all(self, reason)

    def change(self, parameters: Parameters) -> int:
        """Other parameters, for good: the index of the record that says so."""
        return care.change(self, parameters)
