"""How far a queue, or one subscription of a topic, has come: what is settled, what can be handed out, who holds what.

A message beyond the floor is in exactly one place: settled, ready, delayed, parked, held by a share, put aside, or not
yet visible. Everything is ranges of order numbers; only what is out of the ordinary is known by its single number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.groups import Groups
from fairlead.cluster.priorities import Priorities
from fairlead.cluster.ranges import Ranges
from fairlead.wire.durable import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from fairlead.cluster.parties import Consumer
    from fairlead.cluster.port import Bytes
    from fairlead.selector import Selector

NEVER: Final = 1 << 63
"""An order number no message reaches."""


class Share:
    """What one consumer holds of a cursor."""

    __slots__ = ("consumer", "held_until_ms", "keys", "locked", "out", "out_bytes", "scanned", "window")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.locked = Ranges()
        self.keys: dict[int, bytes] = {}  # of the locked messages that have one
        self.scanned: dict[int, int] = {}  # with a selector: priority -> looked at up to here
        self.window = 0  # most credit it ever had
        self.out: list[Bytes] = []  # the DELIVER frame being made
        self.out_bytes = 0
        self.held_until_ms = 0  # of a lost session: its locks stay so long (CLU-126)

    @property
    def is_open(self) -> bool:
        """Can it take a message now? A blocked consumer is passed over (CLU-106)."""
        consumer = self.consumer
        return consumer.messages > 0 and consumer.bytes > 0 and not (consumer.paused or consumer.stalled)

    def scan_from(self, order: int) -> None:
        """A message came back: a selector has to look at it again."""
        for priority, position in self.scanned.items():
            if order < position:
                self.scanned[priority] = order


class Cursor:
    """One position in a log. `durable` ones are in the journal, the others end with their consumer."""

    __slots__ = (
        "_due", "_groups", "_priorities", "again_below", "aside", "client", "counts", "delayed", "dropped", "durable",
        "filtered_from", "floor", "held", "mark", "mark_safe", "name", "number", "opened_ms", "pattern",
        "ready", "reserved", "rotation", "selector", "settled", "shared", "shares", "start", "taken", "unkeyed",
        "used_ms",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        start: int,
        priorities: Priorities,
        *,
        durable: bool,
        name: str = "",
        client: str = "",
        selector: Selector | None = None,
        shared: bool = False,
        pattern: str = "",
        filtered_from: int = 0,
        opened_ms: int = 0,
    ) -> None:
        self.number = number
        self.opened_ms = self.used_ms = opened_ms  # of a named cursor; 0: it is for consumers
        self.start = start  # what came before was never its own
        self.durable = durable
        self.name = name
        self.client = client
        self.selector = selector
        self.shared = shared
        self.pattern = pattern
        self.filtered_from = filtered_from  # messages before this one were not put to the selector at their acceptance
        self.floor = start
        self.settled = Ranges()
        self.ready: dict[int, Ranges] = {PRIORITY_DEFAULT: Ranges()}
        self.counts: dict[int, int] = {}  # deliveries so far that count, where there were any
        self.again_below = start  # after a restart: what may have been delivered, and so counts as delivered once
        self.mark = start if durable else NEVER  # messages below may be handed out, once `mark_safe` says so too
        self.mark_safe = self.mark
        self.delayed: dict[int, int] = {}  # order -> due
        self._due: list[tuple[int, int]] = []
        self.unkeyed = False  # the keys of delayed or prepared messages are not known yet
        self._groups: Groups | None = None  # most have no keys
        self._priorities = priorities
        self.aside: dict[int, str] = {}  # out of distribution, waiting for the dead message queue, and why
        self.taken = Ranges()  # acknowledged in transactions that are still open
        self.shares: list[Share] = []
        self.rotation = 0
        self.held: dict[bytes, list[Share]] = {}  # of lost sessions, by their id
        self.reserved: list[Share] = []  # of named cursors (cluster/reserving.py)
        self.dropped = 0  # by `slow_subscriber = "drop-oldest"`

    # ------------------------------------------------------------------ messages come and go

    def depth(self, beyond: int) -> int:
        """Messages not settled, of those before `beyond`."""
        return max(beyond - self.floor - self.settled.total, 0)

    def waiting(self) -> int:
        """Messages that could be handed out."""
        return sum(ready.total for ready in self.ready.values())

    def open(self, low: int, high: int, priority: int = PRIORITY_DEFAULT) -> None:
        """These can be handed out."""
        low = max(low, self.floor)
        if low < high:
            ready = self.ready.get(priority)
            if ready is None:
                ready = self.ready[priority] = Ranges()
            ready.add(low, high)

    def come_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These were ready before, are so again, and stand where they stood, by their order numbers."""
        for low, high in ranges:
            for priority, first, beyond in self._priorities.runs(low, high):
                self.open(first, beyond, priority)
            for share in self.shares:
                if share.scanned:
                    share.scan_from(low)

    def take_out(self, low: int, high: int) -> None:
        """These are no longer ready."""
        for ready in self.ready.values():
            ready.remove(low, high)

    def settle(self, low: int, high: int) -> None:
        """These are done with, wherever they were but for shares. Again is harmless."""
        low = max(low, self.floor)
        if low >= high:
            return
        self.take_out(low, high)
        if self.taken:
            self.taken.remove(low, high)
        if self.counts or self.delayed or self.aside or self.has_waiting_keys:
            self._forget(low, high)
        if low == self.floor and not self.settled:
            self.floor = high
            return
        self.settled.add(low, high)
        first = self.settled.first_range()
        if first is not None and first[0] <= self.floor:
            self.floor = first[1]
            self.settled.remove(*first)

    @property
    def groups(self) -> Groups:
        if self._groups is None:
            self._groups = Groups()
        return self._groups

    @property
    def has_parked(self) -> bool:
        """Are messages parked because of their keys?"""
        return self._groups is not None and bool(self._groups.parked)

    @property
    def has_waiting_keys(self) -> bool:
        """Are messages parked because of their keys, or would they be?"""
        return self._groups is not None and self._groups.is_in_use

    def _forget(self, low: int, high: int) -> None:
        tables: tuple[dict[int, Any], ...] = (self.counts, self.delayed, self.aside)
        for table in tables:
            for order in _within(table, low, high):
                del table[order]
        if self._groups is not None:
            self.come_back(self._groups.forget(low, high))

    def is_settled(self, order: int) -> bool:
        return order < self.floor or order in self.settled

    def unsettled(self, low: int, high: int) -> list[tuple[int, int]]:
        """Ranges of what is not settled within these bounds."""
        return self.settled.gaps(max(low, self.floor), high)

    def is_free(self, order: int) -> bool:
        """Is it ready, delayed or parked: nobody holds it?"""
        return (
            order in self.delayed
            or any(order in ready for ready in self.ready.values())
            or (self._groups is not None and self._groups.is_parked(order))
        )

    # ------------------------------------------------------------------ deliveries counted

    def count(self, order: int) -> int:
        """How often it was delivered, as far as that counts (CLU-25)."""
        found = self.counts.get(order)
        return found if found is not None else 1 if order < self.again_below else 0

    def alike(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """The same range in runs of equal delivery count."""
        if not self.counts:
            if low < self.again_below < high:
                yield low, self.again_below, 1
                low = self.again_below
            yield low, high, 1 if high <= self.again_below else 0
            return
        first, count = low, self.count(low)
        for order in range(low + 1, high):
            if (other := self.count(order)) != count:
                yield first, order, count
                first, count = order, other
        yield first, high, count

    # ------------------------------------------------------------------ waiting for a time

    def delay(self, order: int, due_ms: int) -> None:
        self.delayed[order] = due_ms
        heappush(self._due, (due_ms, order))

    def fall_due(self, now_ms: int) -> list[int]:
        """Messages whose delay is over; they are nowhere until somebody opens them."""
        found: list[int] = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, order = heappop(self._due)
            if self.delayed.get(order) == due_ms:
                del self.delayed[order]
                found.append(order)
        return found

    @property
    def next_due_ms(self) -> int:
        """When the next one falls due; 0: none is delayed."""
        while self._due and self.delayed.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else 0

    # ------------------------------------------------------------------ shares

    def share_of(self, consumer: Consumer) -> Share | None:
        for share in self.shares:
            if share.consumer is consumer:
                return share
        return None

    def all_shares(self) -> list[Share]:
        """Of those who are here, of those who may come back, and of named cursors."""
        if not self.held and not self.reserved:
            return self.shares
        return [*self.shares, *(share for shares in self.held.values() for share in shares), *self.reserved]

    def reserve(self, share: Share, low: int, high: int) -> None:
        """These are locked for a named cursor, and may have been seen when a restart comes."""
        self.take_out(low, high)
        if self.delayed:
            for order in _within(self.delayed, low, high):
                del self.delayed[order]  # read again: its time had come
        share.locked.add(low, high)
        self.mark = max(self.mark, high)

    def locked(self) -> int:
        """Messages somebody holds."""
        return sum(share.locked.total for share in self.all_shares()) + self.taken.total

    # ------------------------------------------------------------------ checkpoints

    def snapshot(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "start": self.start,
            "name": self.name,
            "client": self.client,
            "selector": self.selector.text if self.selector else "",
            "shared": self.shared,
            "pattern": self.pattern,
            "filtered_from": self.filtered_from,
            "floor": self.floor,
            "settled": self.settled.flat(),
            "counts": list(self.counts.items()),
            "delayed": list(self.delayed.items()),
            "mark": self.mark,
            "again_below": self.again_below,
            "opened_ms": self.opened_ms,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], selector: Selector | None, priorities: Priorities) -> Cursor:
        """Without anything ready: the destination knows what else stands in the way of its messages."""
        cursor = cls(
            state["number"],
            state["start"],
            priorities,
            durable=True,
            name=state["name"],
            client=state["client"],
            selector=selector,
            shared=state["shared"],
            pattern=state["pattern"],
            filtered_from=state["filtered_from"],
            opened_ms=state.get("opened_ms", 0),  # absent in checkpoints of older versions
        )
        cursor.floor = state["floor"]
        cursor.settled = Ranges.from_flat(state["settled"])
        cursor.counts = dict(state["counts"])
        cursor.delayed = dict(state["delayed"])
        cursor._due = [(due, order) for order, due in cursor.delayed.items()]
        heapify(cursor._due)
        cursor.mark = cursor.mark_safe = state["mark"]
        cursor.again_below = state["again_below"]
        return cursor


def _within(table: dict[int, Any], low: int, high: int) -> list[int]:
    if len(table) < high - low:
        return [order for order in table if low <= order < high]
    return [order for order in range(low, high) if order in table]
