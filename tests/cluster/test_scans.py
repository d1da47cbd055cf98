"""Scans without sockets and threads: what they show, how many there may be, and what becomes of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import scans, slices
from fairlead.cluster.core import Core
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.options import Options
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.readable import deliveries, readable
from fairlead.cluster.scans import GRANTED_MAX, PIECE_BYTES, SCANS_MAX, SCANS_PER_LINE_MAX, SHARE_BYTES, Read
from fairlead.cluster.slices import Slice
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.index import Group
from fairlead.wire import durable
from fairlead.wire.column_batch import BODY, DELIVERY_COUNT, OFFSETS, ORDER_NUMBER, VALUES
from fairlead.wire.column_codec import ColumnBuilder, Columns, parse
from fairlead.wire.kinds import FLAG_LAST
from tests.cluster.core_rig import MemoryJournal, Rig, World, frames_of

COLUMNS = 1 << ORDER_NUMBER | 1 << BODY | 1 << DELIVERY_COUNT
UID = 7
FOREVER = 2**62


class Shelf:
    """Reads from a journal in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self.held = 0
        self.unwritten = False
        self.damaged = False

    def hold(self, groups: list[Group]) -> list[int] | None:
        if self.unwritten:
            return None
        self.held += 1
        return [1]

    def release(self, held: list[int]) -> None:
        self.held -= 1

    def read(self, what: Slice, builder: ColumnBuilder, *, rows: int, size: int) -> Read:
        if self.damaged:
            raise JournalDamaged("a bad disk")
        span = bytes(self.journal.bytes)
        for number, part in enumerate(what.parts):
            table = part.group.rows
            row, order = builder.add_span(span, table, part.ranges, part.counts, origin=1)
            if row < len(table) // 5:
                return Read((number, order), builder.finish(what.position(number, order), False))
        if builder.rows >= rows or builder.bytes >= size:
            return Read(None, builder.finish(what.end, what.is_last))
        return Read(None, None)


class Threads(World):
    """Jobs run when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.later = False

    def work(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.jobs.append((job, then))
        if not self.later:
            self.run()

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            job, then = self.jobs.pop(0)
            try:
                result = job()
            except Exception as error:
                result = error
            then(result)


class ScanRig(Rig):
    """With a reader."""

    def start(self, *, hello: bool = True) -> None:
        if not isinstance(self.world, Threads):
            self.world = Threads()
        self.shelf = Shelf(self.journal)
        real = Core

        def made(*args: Any, **options: Any) -> Core:
            return real(*args, **options, reader=self.shelf)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.cluster.core_rig.Core", made)
            super().start(hello=hello)

    @property
    def threads(self) -> Threads:
        assert isinstance(self.world, Threads)
        return self.world

    @property
    def scans(self) -> scans.Scans:
        return self.core.bulk.scans

    def fill(self, name: str, count: int, *, each: int = 1, body: Callable[[int], bytes] = lambda n: b"%d" % n) -> None:
        """Messages 1 to `count`, whose bodies are their numbers."""
        if UID not in self.ids:
            self.session(UID)
        producer = self.producer(UID, name)
        for first in range(1, count + 1, each):
            self.store(UID, producer, first, *(body(n) for n in range(first, min(first + each, count + 1))))
        self.settle()
        self.take(UID)

    def open(self, name: str, first: int = 1, beyond: int = FOREVER, uid: int = UID, **facts: Any) -> dict[str, Any]:
        facts = {"columns": COLUMNS, **facts}
        return self.ask(uid, "scan", destination=name, first=first, beyond=beyond, **facts)

    def more(self, scan: int, batches: int = 1, uid: int = UID, *, stop: bool = False) -> None:
        flags = FLAG_LAST if stop else 0
        self.frame(uid, durable.KIND_MORE, number=scan, correlation=batches, flags=flags)

    def batches(self, uid: int = UID) -> list[Columns]:
        """Whole ones that came."""
        self.settle()
        found: dict[tuple[int, int], bytearray] = {}
        for got in self.take(uid, durable.KIND_COLUMNS):
            data = found.setdefault((got.number, got.correlation), bytearray())
            assert len(data) == got.peer
            data += got.body
        return [parse(data) for data in found.values()]

    def read(self, name: str, first: int = 1, beyond: int = FOREVER, **facts: Any) -> list[tuple[int, bytes]]:
        """Everything a scan shows."""
        opened = self.open(name, first, beyond, **facts)
        assert "error" not in opened, opened
        found = []
        for _ in range(1000):
            self.more(opened["scan"])
            for batch in self.batches():
                found += rows_of(batch)
                if batch.end:
                    self.more(opened["scan"])
                    assert self.batches() == []  # it is gone with its last batch
                    return found
        raise AssertionError("it does not end")

    def ended(self, scan: int) -> dict[str, Any]:
        (notice,) = [got.facts for got in self.take(UID, durable.KIND_NOTICE) if got.facts.get("handle") == scan]
        assert notice["event"] == "ended"
        return notice


def rows_of(batch: Columns) -> list[tuple[int, bytes]]:
    orders = batch.buffers[ORDER_NUMBER, VALUES].cast("q")
    offsets, values = batch.buffers[BODY, OFFSETS].cast("i"), batch.buffers[BODY, VALUES]
    return [(orders[n], bytes(values[offsets[n] : offsets[n + 1]])) for n in range(batch.rows)]


def counts_of(batch: Columns) -> list[int]:
    return list(batch.buffers[DELIVERY_COUNT, VALUES].cast("i"))


@pytest.fixture
def rig(tmp_path: Path) -> ScanRig:
    return ScanRig(tmp_path)


def numbers(*orders: int) -> list[tuple[int, bytes]]:
    return [(order, b"%d" % order) for order in orders]


def test_a_scan_shows_the_range_in_batches(rig: ScanRig) -> None:
    rig.fill("q", 25, each=4)
    assert rig.read("q", rows=3) == numbers(*range(1, 26))
    assert rig.read("q", 6, 12, rows=100) == numbers(*range(6, 12))
    assert rig.read("q", 26) == []
    opened = rig.open("q", 5, 30, rows=3)
    assert opened == {"scan": opened["scan"], "first": 5, "next": 26}
    rig.more(opened["scan"], 2)
    first, second = rig.batches()
    assert (rows_of(first), first.next, first.end) == (numbers(5, 6, 7), 8, False)
    assert (rows_of(second), second.next, second.end) == (numbers(8, 9, 10), 11, False)
    assert rig.batches() == []  # no more was granted
    rig.more(opened["scan"], stop=True)
    rig.settle()
    assert len(rig.scans) == rig.shelf.held == 0


def test_only_what_is_safe_is_shown(rig: ScanRig) -> None:
    rig.fill("q", 3)
    rig.store(UID, rig.producer(UID, "q"), 4, b"4")
    rig.turn(sync=False)
    home = rig.core.find("q")
    assert home is not None
    assert (home.next, home.visible) == (5, 4)
    number = rig.command(UID, "scan", destination="q", first=1, beyond=FOREVER, columns=COLUMNS)
    positions = rig.command(UID, "positions", destination="q")
    rig.turn(sync=False)
    answers = {got.number: got.facts for got in rig.take(UID, durable.KIND_ANSWER)}
    assert answers[number]["next"] == answers[positions]["destinations"][0]["next"] == 4


def test_what_was_consumed_is_not_shown_unless_it_is_kept(rig: ScanRig) -> None:
    rig.fill("q", 10)
    consumer = rig.consumer(UID, "q")
    rig.settle_range(UID, consumer, 4, 7)
    rig.settle()
    left = numbers(1, 2, 3, 7, 8, 9, 10)
    assert rig.read("q") == rig.read("q", waiting=True) == left
    home = rig.core.find("q")
    assert home is not None
    home.change(Parameters(retain_messages=-1))
    assert rig.read("q") == numbers(*range(1, 11))
    assert rig.read("q", waiting=True) == left
    rig.settle_range(UID, consumer, 1, 4)
    rig.settle()
    assert rig.read("q", waiting=True) == numbers(7, 8, 9, 10)
    assert rig.ask(UID, "positions", destination="q")["destinations"][0] | {"id": ""} == {
        "name": "q",
        "kind": "queue",
        "id": "",
        "first": 1,
        "next": 11,
        "low": 7,
        "retains": True,
        "bytes": home.kept_bytes,
    }


def test_what_is_gone_is_an_error_unless_the_reader_jumps(rig: ScanRig) -> None:
    rig.fill("q", 10)
    consumer = rig.consumer(UID, "q")
    opened = rig.open("q", 1, rows=2)
    rig.more(opened["scan"])
    assert [rows_of(one) for one in rig.batches()] == [numbers(1, 2)]
    rig.settle_range(UID, consumer, 1, 6)
    rig.settle()
    refused = rig.open("q", 2)
    assert refused["error"] == "offset-gone"
    assert "lost: [2, 6]" in refused["text"]
    assert "lost: [2, 4]" in rig.open("q", 2, 4)["text"]
    assert rig.read("q", 2, jump=True) == rig.read("q", 2, waiting=True) == numbers(6, 7, 8, 9, 10)
    assert rig.read("q", 2, 4, jump=True) == []
    rig.more(opened["scan"])
    rig.settle()
    ended = rig.ended(opened["scan"])
    assert ended["code"] == "offset-gone"
    assert "lost: [3, 6]" in ended["text"]
    assert len(rig.scans) == 0


def test_delayed_messages_and_schedules_are_left_out(rig: ScanRig) -> None:
    rig.fill("q", 3)
    producer = rig.producer(UID, "q")
    rig.store(UID, producer, 4, b"4", delay_ms=1000)
    rig.store(UID, producer, 5, b"5")
    rig.settle()
    assert rig.read("q") == numbers(1, 2, 3, 5)
    rig.now_ms += 2000
    rig.settle()
    assert rig.read("q") == numbers(1, 2, 3, 4, 5)


def test_where_narrows_and_tells_how_far_it_came(rig: ScanRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WINDOW_MIN", 10)
    monkeypatch.setattr(scans, "LOOK_FACTOR", 1)
    rig.session(UID)
    producer = rig.producer(UID, "q")
    body = bytes(4000)
    for n in range(1, 101):
        rig.store(UID, producer, n, body, key=b"%d" % (n % 50), priority=n % 10)
    rig.settle()
    rig.take(UID)
    assert [order for order, _ in rig.read("q", where={"keys": ["7", "8"]})] == [7, 8, 57, 58]
    assert [order for order, _ in rig.read("q", where={"keys": ["7"], "priority": [8, 9]})] == []
    assert len(rig.read("q", where={"priority": [2, 3]})) == 20
    assert rig.read("q", where={"arrived_ms": [rig.now_ms + 1, rig.now_ms + 9]}) == []
    assert len(rig.read("q", where={"sent_ms": [rig.now_ms, rig.now_ms + 1]})) == 100
    opened = rig.open("q", where={"keys": ["49"]}, bytes=65536)
    rig.more(opened["scan"])
    (batch,) = rig.batches()
    assert (batch.rows, batch.end) == (0, False)  # enough was looked through for one batch
    assert 15 < batch.next < 49
    for wrong in ({"keys": "7"}, {"priority": [3, 2]}, {"priority": [0, 10]}, {"colour": 1}, {"sent_ms": [1]}, 5):
        assert rig.open("q", where=wrong)["error"] in ("bad-request", "bad-parameter")


def test_deliveries_are_counted_as_the_queue_counts_them(rig: ScanRig) -> None:
    rig.fill("q", 6)
    consumer = rig.consumer(UID, "q")
    rig.settle_range(UID, consumer, 2, 4, action=durable.RETURN)
    rig.settle()
    home = rig.core.find("q")
    assert home is not None
    opened = rig.open("q")
    rig.more(opened["scan"])
    (batch,) = rig.batches()
    assert counts_of(batch) == [home.deliveries(order) for order in range(1, 7)] == [0, 1, 1, 0, 0, 0]
    rig.restart()
    rig.session(UID)
    home = rig.core.find("q")
    assert home is not None
    opened = rig.open("q")
    rig.more(opened["scan"])
    (batch,) = rig.batches()
    assert counts_of(batch) == [home.deliveries(order) for order in range(1, 7)] == [1] * 6


def reserved(rig: ScanRig, count: int, *, each: int) -> list[int]:
    """A queue of mixed priorities of which a cursor has reserved everything; the order numbers by position."""
    rig.session(UID)
    producer = rig.producer(UID, "q")
    priorities = [(n * 7) % 10 for n in range(count + 1)]
    for first in range(1, count + 1, each):
        some = range(first, min(first + each, count + 1))
        if each == 1:
            rig.store(UID, producer, first, b"%d" % first, priority=priorities[first])
        else:
            priorities[first : first + each] = [priorities[first]] * len(some)
            rig.store(UID, producer, first, *(b"%d" % n for n in some), priority=priorities[first])
    rig.settle()
    opened = rig.ask(UID, "cursor-open", destination="q", name="c", create=True)
    at = opened["at"]
    answer = rig.ask(UID, "cursor-reserve", destination="q", name="c", start=at, messages=0, bytes=0)
    assert answer["end"] == at + count
    return sorted(range(1, count + 1), key=lambda n: (-priorities[n], n))


@pytest.mark.parametrize(("rows", "each"), [(1000, 1), (7, 1), (1000, 6), (7, 6), (1, 4)])
def test_a_scan_by_a_queues_cursor_reads_positions(rig: ScanRig, rows: int, each: int) -> None:
    orders = reserved(rig, 60, each=each)
    at = rig.ask(UID, "cursor-open", destination="q", name="c")["at"]
    assert rig.read("q", at, cursor="c", rows=rows) == numbers(*orders)
    assert rig.read("q", at + 11, at + 33, cursor="c", rows=rows) == numbers(*orders[11:33])
    opened = rig.open("q", at + 5, cursor="c", rows=3)
    assert opened == {"scan": opened["scan"], "first": at + 5, "next": at + 60}
    rig.more(opened["scan"])
    (batch,) = rig.batches()
    assert (rows_of(batch), batch.next) == (numbers(*orders[5:8]), at + 8)
    rig.ask(UID, "cursor-commit", destination="q", name="c", end=at + 20)
    rig.more(opened["scan"])
    rig.settle()
    assert rig.ended(opened["scan"])["code"] == "offset-gone"
    assert f"lost: [{at}, {at + 20}]" in rig.open("q", at, cursor="c")["text"]
    assert rig.read("q", at, cursor="c", jump=True, rows=rows) == numbers(*orders[20:])
    assert rig.open("q", at, cursor="unheard of")["error"] == "bad-name"
    opened = rig.open("q", at + 20, cursor="c", rows=1)
    rig.ask(UID, "cursor-release", destination="q", name="c")
    rig.more(opened["scan"])
    rig.settle()
    assert rig.ended(opened["scan"])["code"] == "bad-name"


def test_limits(rig: ScanRig) -> None:
    rig.fill("q", 5)
    for wrong in ({"rows": 0}, {"rows": 1_000_001}, {"bytes": 65535}, {"bytes": (16 << 20) + 1}, {"columns": 1 << 20}):
        assert rig.open("q", **wrong)["error"] in ("bad-request", "bad-parameter")
    assert rig.open("nowhere")["error"] == "no-destination"
    opened = [rig.open("q") for _ in range(SCANS_PER_LINE_MAX)]
    assert rig.open("q")["error"] == "too-many"
    rig.more(opened[0]["scan"], stop=True)
    assert "scan" in rig.open("q")
    for uid in range(100, 100 + SCANS_MAX // SCANS_PER_LINE_MAX):
        while "error" not in (answer := rig.open("q", uid=uid)):
            pass
        assert answer["error"] == "too-many"
    assert len(rig.scans) == SCANS_MAX
    for uid in (UID, *range(100, 200)):
        rig.frame(uid, durable.KIND_COMMAND, body=b'{"do":"gone"}')
    rig.settle()
    assert len(rig.scans) == 0


def test_at_most_eight_batches_are_granted(rig: ScanRig) -> None:
    rig.fill("q", 30)
    opened = rig.open("q", rows=1)
    rig.threads.later = True
    rig.more(opened["scan"], 1000)
    rig.more(opened["scan"], 2**62)
    came = 0
    while rig.threads.jobs:
        rig.threads.run()
        came += len(rig.batches())
    assert came == GRANTED_MAX
    rig.more(opened["scan"], 0)
    assert rig.batches() == []


def test_unknown_scans_are_dropped(rig: ScanRig) -> None:
    rig.fill("q", 3)
    producer = rig.producer(UID, "q")
    dropped = rig.core.dispatchers.dropped["more"]
    rig.more(99)
    rig.more(producer)
    rig.more(99, stop=True)
    rig.more(1, uid=12345)
    rig.settle()
    assert rig.core.dispatchers.dropped["more"] == dropped + 4
    assert rig.core.faults == 0


def test_two_jobs_at_once_and_scans_take_turns(rig: ScanRig) -> None:
    rig.fill("q", 40)
    rig.threads.later = True
    opened = [rig.open("q", rows=1)["scan"] for _ in range(4)]
    for scan in opened:
        rig.more(scan, 3)
    order = []
    for _ in range(12):
        rig.settle()
        assert len(rig.threads.jobs) <= 2
        rig.threads.run()
        rig.settle()
        order += [got.number for got in rig.take(UID, durable.KIND_COLUMNS)]
    assert len(order) == 12
    assert [sorted(order[at : at + 4]) for at in (0, 4, 8)] == [sorted(opened)] * 3
    assert not rig.threads.jobs


def test_a_scan_that_ends_under_a_job_is_forgotten_when_that_is_done(rig: ScanRig) -> None:
    rig.fill("q", 5)
    rig.threads.later = True
    opened = rig.open("q")
    rig.more(opened["scan"])
    rig.settle()
    rig.more(opened["scan"], stop=True)
    rig.settle()
    assert (len(rig.scans), rig.shelf.held) == (0, 1)
    rig.threads.run()
    assert rig.shelf.held == 0
    assert rig.batches() == []
    opened = rig.open("q")
    rig.more(opened["scan"])
    rig.settle()
    rig.core.link_lost(rig.link)
    rig.settle()
    rig.threads.run()
    assert (len(rig.scans), rig.shelf.held, rig.core.faults) == (0, 0, 0)


def test_a_deleted_destination_ends_its_scans(rig: ScanRig) -> None:
    rig.fill("q", 5)
    rig.fill("other", 5)
    opened, other = rig.open("q", rows=1), rig.open("other")
    rig.more(opened["scan"], 2)
    home = rig.core.find("q")
    assert home is not None
    rig.core.delete(home, "It was not needed.")
    rig.settle()
    ended = rig.ended(opened["scan"])
    assert ended["code"] == "destination-deleted"
    assert len(rig.scans) == 1
    rig.more(other["scan"])
    assert [rows_of(one) for one in rig.batches() if one.rows == 5] == [numbers(1, 2, 3, 4, 5)]


def test_damage_ends_the_scan_and_is_an_event(rig: ScanRig) -> None:
    rig.fill("q", 10)
    opened = rig.open("q", rows=4)
    rig.more(opened["scan"])
    assert len(rig.batches()) == 1
    rig.shelf.damaged = True
    rig.more(opened["scan"])
    rig.settle()
    ended = rig.ended(opened["scan"])
    assert ended["code"] == "journal-damaged"
    assert "from 5 to 8" in ended["text"]
    (event,) = [one for one in rig.threads.logged if one.get("code") == "scan-failed"]
    assert "from 5 to 8" in str(event)
    assert rig.core.faults == rig.shelf.held == 0


def test_records_that_are_not_in_their_file_yet_are_waited_for(rig: ScanRig) -> None:
    rig.fill("q", 3)
    rig.shelf.unwritten = True
    opened = rig.open("q")
    rig.core.append(1, b"{}")  # something is being written
    rig.more(opened["scan"])
    rig.turn()
    assert not rig.threads.jobs
    rig.shelf.unwritten = False
    assert [rows_of(one) for one in rig.batches()] == [numbers(1, 2, 3)]


def test_pieces_leave_room_for_others_and_a_client_that_does_not_read_gets_none(rig: ScanRig) -> None:
    rig.fill("q", 3000, each=100, body=lambda n: bytes(2000))
    opened = rig.open("q", bytes=4 << 20)
    rig.more(opened["scan"], 8)
    rig.core.run()
    rig.core.finish()
    # The link takes nothing: what is put into it stays within its share.
    for _ in range(5):
        rig.core.finish()
    assert SHARE_BYTES <= rig.link.bytes <= SHARE_BYTES + PIECE_BYTES + 100
    assert not is_busy(rig)
    pieces = [got for got in frames_of(rig.link) if got.kind == durable.KIND_COLUMNS]
    assert all(len(got.body) <= PIECE_BYTES for got in pieces)
    assert is_busy(rig)
    rig.frame(UID, durable.KIND_COMMAND, body=b'{"do":"full"}')
    rig.core.finish()
    assert not is_busy(rig)
    assert rig.link.bytes == 0
    made = rig.scans.batches
    assert made <= 2  # one on its way, and the next
    rig.frame(UID, durable.KIND_COMMAND, body=b'{"do":"room"}')
    data = b"".join(got.body for got in pieces)
    rig.settle()
    for got in rig.take(UID, durable.KIND_COLUMNS):
        if got.correlation == 1:
            assert got.peer == len(data)
            data += got.body
    assert parse(bytearray(data)).rows > 1000
    assert rig.scans.batches > made


def test_positions_of_patterns_are_looked_up_again_when_names_change(rig: ScanRig) -> None:
    rig.fill("a.one", 3)
    rig.fill("a.two", 2)

    def found(pattern: str, **facts: Any) -> list[str]:
        return sorted(one["name"] for one in rig.ask(UID, "positions", destination=pattern, **facts)["destinations"])

    assert found("a.*") == ["a.one", "a.two"]
    rig.fill("a.three", 1)
    assert found("a.*") == ["a.one", "a.three", "a.two"]
    home = rig.core.find("a.one")
    assert home is not None
    rig.core.delete(home, "")
    rig.settle()
    assert found("a.*") == ["a.three", "a.two"]
    assert found(">") == ["a.three", "a.two"]
    assert found("b.*") == []
    assert found("glob:_*") == ["_ADMIN", "_DMQ", "_LOG"]
    assert rig.ask(UID, "positions", destination="b")["error"] == "no-destination"
    assert rig.ask(UID, "positions", destination="regex:(")["error"] == "bad-pattern"


def test_positions_at_a_time(rig: ScanRig) -> None:
    rig.session(UID)
    producer = rig.producer(UID, "q")
    times = []
    for n in range(1, 6):
        rig.store(UID, producer, n, b"%d" % n)
        rig.settle()
        times.append(rig.now_ms)
        rig.now_ms += 1000
    for n, ms in enumerate(times, 1):
        (one,) = rig.ask(UID, "positions", destination="q", ms=ms)["destinations"]
        assert one["at"] == n
    (one,) = rig.ask(UID, "positions", destination="q", ms=times[-1] + 1)["destinations"]
    assert one["at"] == one["next"] == 6


def test_a_plan_keeps_its_limits(rig: ScanRig) -> None:
    rig.fill("q", 100, each=10, body=lambda n: bytes(1000))

    def end(first: int, **limits: int) -> int:
        answer = rig.ask(UID, "plan", destination="q", first=first, **limits)
        assert (answer["first"], answer["next"]) == (1, 101)
        return int(answer["end"])

    assert end(1) == end(0) == end(50) == 101
    assert end(1, messages=7) == 8
    assert end(95, messages=7) == end(101, messages=7) == end(1000, messages=7) == 101
    assert end(1, bytes=1) == 2  # one at least
    assert end(5, bytes=2500) == 7
    assert end(1, bytes=25_000) == 21  # two whole records
    assert end(1, messages=15, bytes=25_000) == 16
    assert end(1, bytes=10**9) == 101
    assert rig.ask(UID, "plan", destination="q", first=-1)["error"] == "bad-request"


@given(
    counts=st.dictionaries(st.integers(1, 30), st.integers(0, 5), max_size=12),
    again=st.integers(1, 35),
    first=st.integers(1, 30),
    length=st.integers(0, 30),
)
@settings(max_examples=100, deadline=None)
def test_deliveries_are_those_of_each_single_message(
    tmp_path_factory: pytest.TempPathFactory, counts: dict[int, int], again: int, first: int, length: int
) -> None:
    home = _queue(tmp_path_factory)
    cursor = home.cursors[0]
    cursor.counts, cursor.again_below = counts, again
    wanted = [*range(first, first + length), *range(first + length + 2, first + length + 5)]
    pairs = deliveries(home, array("Q", (first, first + length, first + length + 2, first + length + 5)))
    expected = [(order, home.deliveries(order)) for order in wanted if home.deliveries(order)]
    assert list(zip(pairs[::2], pairs[1::2], strict=True)) == expected


@given(
    st.sets(st.integers(1, 40)),
    st.sets(st.integers(1, 40)),
    st.integers(1, 40),
    st.integers(1, 45),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_what_is_readable_is_what_is_neither_settled_nor_delayed(
    tmp_path_factory: pytest.TempPathFactory,
    settled: set[int],
    later: set[int],
    first: int,
    beyond: int,
    waiting: bool,
    most: int,
    pairs_max: int,
) -> None:
    home = _queue(tmp_path_factory)
    home.next = home.visible = 38
    for order in settled:
        home.cursors[0].settle(order, order + 1)
    home.clock.later = dict.fromkeys(later, 10**12)
    found: list[int] = []
    at = first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlead.cluster.readable.PAIRS_MAX", pairs_max)
        while at < min(beyond, 38):
            pairs, end = readable(home, at, beyond, waiting=waiting, most=most)
            some = [order for low, high in zip(pairs[::2], pairs[1::2], strict=True) for order in range(low, high)]
            assert len(some) <= most
            assert end > at
            assert all(at <= order < end for order in some)
            found += some
            at = end
    assert found == [n for n in range(first, min(beyond, 38)) if n not in settled and n not in later]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 9), st.integers(1, 5)),
        st.tuples(st.just("drop"), st.integers(1, 60), st.integers(1, 12)),
        st.tuples(st.just("compact"), st.integers(1, 60), st.integers(1, 15)),
        st.tuples(st.sampled_from(["restart", "checkpoint"]), st.just(0), st.just(0)),
    ),
    max_size=14,
)


@given(STEPS, st.booleans(), st.integers(1, 30), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_whatever_happened_before_a_scan_shows_what_is_there(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int]],
    keeps: bool,
    rows: int,
    first: int,
) -> None:
    rig = ScanRig(tmp_path_factory.mktemp("scanned"))
    parameters = {"retain_messages": -1} if keeps else {}
    rig.session(UID)
    rig.ask(UID, "produce", session=1, destination="q", kind="queue", create=True, parameters=parameters)
    there: set[int] = set()
    sent = 0
    for what, low, many in steps:
        home = rig.core.find("q")
        assert home is not None
        if what == "store":
            if UID not in rig.ids:
                rig.session(UID)
            producer = rig.producer(UID, "q")
            number = home.next  # of this life of the session
            for _ in range(low):
                bodies = [b"%d" % n for n in range(number, number + many)]
                rig.store(UID, producer, sent + 1, *bodies)
                there |= set(range(number, number + many))
                number, sent = number + many, sent + many
        elif what == "drop":
            home.drop(range(low, low + many))
            there -= set() if keeps else set(range(low, low + many))
        elif what == "compact":
            home.compact(low, low + many)
        elif what == "checkpoint":
            taken = rig.checkpoint()
            while not taken.step():
                pass
        rig.settle()
        if what == "restart":
            rig.restart()
            rig.ids.clear()
            sent = 0
    assert rig.read("q", first, jump=True, rows=rows) == numbers(*sorted(n for n in there if n >= first))


def is_busy(rig: ScanRig) -> bool:
    return rig.scans.has_more


def _queue(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from fairlead.cluster.destination import Destination

    core = Core(MemoryJournal(), World(), Options(), SideFiles(tmp_path_factory.getbasetemp() / "large"))
    return Destination(core, 99, bytes(20), "q", "queue", Parameters())
