"""Making staged messages visible: order numbers for all of them in one record, in pieces that keep nobody waiting long.

Each function that may have much to do is a generator: what it yields is how many milliseconds it may be left alone
before it goes on. While a batch is published the destinations it goes to stand still, so what one piece finds the next
one finds as well, and a restart, which does it all at once, comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fairlead.cluster import acceptance, consumers, records, settling, stored
from fairlead.cluster.staged import Row, row_of
from fairlead.journal.faults import JournalDamaged
from fairlead.wire.durable import ENTRY_DEDUP
from fairlead.wire.entry_codec import span, survey
from fairlead.wire.properties import lookup

if TYPE_CHECKING:
    from fairlead.cluster.acceptance import Plan
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.staged import Rows

T = TypeVar("T")
Steps = Generator[int, None, T]
Read = Callable[[int, int], memoryview | None]

RECORDS_PER_STEP: Final = 1000
COLLECTED_PER_STEP: Final = 4000
LOOKS_PER_STEP: Final = 1000
"""Messages looked at singly."""
BROADCAST_PER_STEP: Final = 500
READING_MS: Final = 1
LINK_FULL_MS: Final = 5


class Share(NamedTuple):
    """A record of a stage, on its way to a destination."""

    home: Destination
    row: Row


class Placed(NamedTuple):
    """The same with its order numbers."""

    home: Destination
    row: Row
    order: int


class Revealed(NamedTuple):
    """Messages of a topic, for its transient subscribers."""

    home: Destination
    row: Row
    order: int
    withheld: list[int]


# --- Before the record ------------------------------------------------------------------------------------------
def shares_of(chosen: Iterable[tuple[Destination, Rows]]) -> Steps[list[Share]]:
    """The records of stages, in their order."""
    shares: list[Share] = []
    for home, rows in chosen:
        for row in rows.staged():
            shares.append(Share(home, row))
            if not len(shares) % COLLECTED_PER_STEP:
                yield 0
    return shares


def without_repeats(core: Core, shares: list[Share]) -> Steps[list[Share]]:
    """Leave out messages whose deduplication id was seen; what is left of their records is written again."""
    if not any(share.row.flags & ENTRY_DEDUP for share in shares):
        return shares
    kept: list[Share] = []
    seen: dict[int, set[str]] = {}
    looked = 0
    for share in shares:
        if not share.row.flags & ENTRY_DEDUP:
            kept.append(share)
            continue
        looked += share.row.count
        if looked > LOOKS_PER_STEP:
            looked = 0
            yield 0
        while (body := core.read(share.row.place, share.row.size)) is None:
            yield READING_MS
        one = stored.read(body)
        runs = _new_ones(share.home, one, seen.setdefault(share.home.number, set()))
        if runs == [(0, share.row.count)]:
            kept.append(share)
        else:
            kept += [share._replace(row=_copied(core, one, first, beyond - first)) for first, beyond in runs]
    return kept


def _new_ones(home: Destination, one: stored.Stored, seen: set[str]) -> list[tuple[int, int]]:
    """Positions in a record of what is no repeat, as ranges."""
    runs: list[tuple[int, int]] = []
    for position, entry in enumerate(one.entries()):
        identity = lookup(entry.headers, b":dedup") if entry.flags & ENTRY_DEDUP else None
        if isinstance(identity, str):
            known = home.dedup.find(identity, home.port.now_ms, home.parameters.dedup_s)
            if known is not None or identity in seen:
                continue
            seen.add(identity)
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return runs


def _copied(core: Core, one: stored.Stored, first: int, count: int) -> Row:
    cut = one.cut(first, count)
    _, flags, low, high = survey(cut, 0, len(cut))
    identity = stored.id_plus(one.head.id_first, first)
    head = one.head._replace(flags=flags, count=count, send=0, low=low, high=high, id_first=identity, size=len(cut))
    packed = head.pack()
    index, place = core.append(records.HIDDEN, packed, cut)
    return row_of(index, place, len(packed) + len(cut), head)


# --- The record -------------------------------------------------------------------------------------------------
def placed(shares: Iterable[Share]) -> list[Placed]:
    """Order numbers, behind everything there is in each destination."""
    following: dict[int, int] = {}
    found: list[Placed] = []
    for home, row in shares:
        order = following.get(home.number, home.next)
        found.append(Placed(home, row, order))
        following[home.number] = order + row.count
    return found


def record(items: Iterable[Placed], ms: int, facts: bytes) -> bytes:
    pack = records.PUBLISH_ITEM.pack
    packed = [pack(home.number, row.count, order, row.index) for home, row, order in items]
    return b"".join((records.PUBLISH_RECORD.pack(ms, len(packed), len(facts)), *packed, facts))


# --- After it ---------------------------------------------------------------------------------------------------
class Appearance:
    """What a published batch will show, once it may: few plans, for most of them can be one."""

    def __init__(self) -> None:
        self._plans: list[tuple[Destination, Plan]] = []
        self._last: dict[int, Plan] = {}
        self.broadcasts: list[Revealed] = []

    def add(self, item: Placed, plan: Plan) -> None:
        home = item.home
        last = self._last.get(home.number)
        if last is not None and _is_plain(last) and _is_plain(plan) and last.priority == plan.priority:
            last.beyond = plan.beyond
        else:
            self._plans.append((home, plan))
            self._last[home.number] = plan
        if home.kind == "topic":
            self.broadcasts.append(Revealed(home, item.row, item.order, plan.withheld))

    def reveal(self) -> None:
        for home, plan in self._plans:
            acceptance.reveal(home, plan)


def _is_plain(plan: Plan) -> bool:
    return plan.priority is not None and not (plan.withheld or plan.matches or plan.replaced)


def take_in(items: list[Placed], index: int, ms: int, read: Read) -> Steps[Appearance]:
    """Everything that follows from the record but for being seen. `read` may say None: not yet."""
    for home, row, order in items:
        home.last_index = max(home.last_index, index)
        if order > home.next:
            settling.hole(home, home.next, order)
        home.next = max(home.next, order + row.count)  # nobody else is given these numbers
    appearance = Appearance()
    left = RECORDS_PER_STEP
    for item in items:
        home, row, order = item
        head, entries = row.head(home.number, order, ms), None
        left -= 1
        if acceptance.needs_look(home, row.flags, row.low, row.high):
            left -= row.count * RECORDS_PER_STEP // LOOKS_PER_STEP
            try:
                while (body := read(row.place, row.size)) is None:
                    yield READING_MS
                one = stored.read(body)
                head = one.head._replace(order=order, arrival_ms=ms)
                entries = one.view[one.start : one.end]
            except JournalDamaged:
                settling.hole(home, order, order + row.count)
                continue
        appearance.add(item, acceptance.accept(home, head, row.place, row.size, entries))
        if left <= 0:
            left = RECORDS_PER_STEP
            yield 0
    for home in {item.home for item in items}:
        home.dedup.trim(ms, home.parameters.dedup_s, home.parameters.dedup_max)
    return appearance


def broadcast(core: Core, one: Revealed) -> Steps[None]:
    """Read a record of a topic again for the transient subscribers, a part at a time."""
    home, row, order, withheld = one
    runs = consumers.without(order, order + row.count, withheld) if withheld else [(order, order + row.count)]
    for low, high in runs:
        while low < high:
            while core.is_link_full:
                yield LINK_FULL_MS
            try:
                while (body := core.read(row.place, row.size)) is None:
                    yield READING_MS
            except JournalDamaged:
                return
            found = stored.read(body)
            beyond = min(high, low + BROADCAST_PER_STEP)
            first, end = span(found.view, found.start, found.end, low - order, beyond - low)
            core.broadcast(home, found.view[first:end], -1)
            low = beyond
            yield 0


def at_once(steps: Steps[T]) -> T:
    """All of it, for whom nobody waits."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
