"""Scans: reading messages by the million, as column batches, without locking or counting anything.

A scan belongs to a connection. Its client grants batches; each is gathered by jobs in a thread, one of a scan at a time
and two at most in all, in turn, and then leaves in pieces as the link has room, so that a delivery waits for a few
pieces and not for a batch. A client that does not read stops its own scans only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fairlead.cluster import requests, reserving
from fairlead.cluster.opening import new_handle
from fairlead.cluster.outgoing import Link, encode_json
from fairlead.cluster.positions import found
from fairlead.cluster.readable import bounds
from fairlead.cluster.slices import Slice, by_order, by_position, committed, gone
from fairlead.errors import BadParameter, DestinationDeleted, FairleadError, NotAllowed, OffsetGone, TooMany
from fairlead.wire.column_codec import ColumnBuilder
from fairlead.wire.durable import KIND_COLUMNS, KIND_NOTICE
from fairlead.wire.kinds import FLAG_LAST

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line
    from fairlead.journal.index import Group

SCANS_PER_LINE_MAX: Final = 16
SCANS_MAX: Final = 256
GRANTED_MAX: Final = 8
JOBS_MAX: Final = 2
PIECE_BYTES: Final = 256 * 1024 - 64  # of a COLUMNS frame; a manager's buffer takes it, with its head, as it is
SHARE_BYTES: Final = 1 << 20  # a link's output is filled with pieces up to here
AHEAD_BYTES: Final = 1 << 20  # so much of a batch may still be there when the next one is begun
LOOK_FACTOR: Final = 4  # so many times the bytes of a batch are read for it, then it goes as it is
DAMAGED: Final = "journal-damaged"


class Read(NamedTuple):
    """What a job did: all of its slice, or up to an order number of a part; and the batch, if that is complete."""

    stopped: tuple[int, int] | None
    batch: bytearray | None


class Reader(Protocol):
    """Reads records from the journal's files."""

    def hold(self, groups: list[Group]) -> list[int] | None:
        """Keep the files of these records from being given up; None: some are not in a file yet."""

    def release(self, held: list[int]) -> None: ...

    def read(self, what: Slice, builder: ColumnBuilder, *, rows: int, size: int) -> Read:
        """In a thread: add the slice to the builder; make a batch if that has so much then, or is full.

        Raises JournalDamaged, BadEntries, OSError.
        """


@dataclass(slots=True, eq=False)
class Scan:
    """One of them."""

    number: int  # handle on its connection
    line: Line
    destination: Destination
    asked: requests.Scan
    builder: ColumnBuilder
    at: int  # where to go on
    beyond: int
    granted: int = 0
    batches: int = 0  # made so far
    looked_bytes: int = 0  # for the batch that is being made
    is_reading: bool = False  # a job is under way, or it waits for one
    is_over: bool = False  # nothing more is read
    batch: memoryview | None = None  # on its way out
    sent: int = 0  # of it
    ready: bytearray | None = None  # the next one

    @property
    def has_much(self) -> bool:
        """Is so much of its last batch still here that the next one waits?"""
        return self.ready is not None or (self.batch is not None and len(self.batch) - self.sent > AHEAD_BYTES)


class Scans:
    """All scans of a message manager. A part of `Bulk`."""

    def __init__(self, core: Core, reader: Reader | None) -> None:
        self._core = core
        self._reader = reader
        self._lines: dict[Line, dict[int, Scan]] = {}
        self._count = 0
        self._queue: deque[Scan] = deque()  # they want a job
        self._jobs = 0
        self._full: set[Line] = set()  # their managers say that they do not read
        self._sending: dict[int, deque[Scan]] = {}  # by link: they have something to send, in turn
        self.opened = self.batches = self.bytes = self.failed = 0
        self.commands = {"scan": self._open}

    def __len__(self) -> int:
        return self._count

    # --- Opening and granting ---------------------------------------------------------------------------------------
    def _open(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Scan)
        home = found(self._core, asked.destination)
        if self._reader is None:
            raise NotAllowed("This message manager has no files to scan.")
        if len(self._lines.get(line, {})) >= SCANS_PER_LINE_MAX:
            raise TooMany(f"A connection may have {SCANS_PER_LINE_MAX} scans.")
        if self._count >= SCANS_MAX:
            raise TooMany(f"{SCANS_MAX} scans are open; try again when one of them has ended.")
        builder = _builder(asked, home)
        at, end = asked.first, asked.beyond
        if _by_position(asked, home):
            cursor = reserving.find(home, asked.cursor)
            first, beyond = cursor.at, cursor.reserved
            if at < min(first, end) and not asked.jump:
                raise OffsetGone(committed(asked, at, min(first, end)))
        else:
            first, beyond, _ = bounds(home)
            at = max(at, 1)  # there is no message 0
            if at < min(first, end) and not (asked.jump or asked.waiting):
                raise OffsetGone(gone(home, at, min(first, end)))
        at = max(at, first)
        scan = Scan(new_handle(line), line, home, asked, builder, at, max(at, min(end, beyond)))
        self._lines.setdefault(line, {})[scan.number] = scan
        self._count += 1
        self.opened += 1
        self._core.answer(line, number, {"scan": scan.number, "first": at, "next": beyond})

    def on_more(self, line: Line, handle: int, batches: int, *, stop: bool) -> bool:
        """A MORE frame. False: there is no such scan."""
        scan = self._lines.get(line, {}).get(handle)
        if scan is None:
            return False
        if stop:
            self._close(scan)
        else:
            scan.granted = min(scan.granted + batches, GRANTED_MAX)
            self._want(scan)
        return True

    # --- Reading ----------------------------------------------------------------------------------------------------
    def _want(self, scan: Scan) -> None:
        """Have its next batch made, if it may be."""
        if scan.granted and not (scan.is_reading or scan.is_over or scan.has_much or scan.line in self._full):
            scan.is_reading = True
            self._queue.append(scan)
            self._start()

    def _start(self) -> None:
        while self._queue and self._jobs < JOBS_MAX:
            scan = self._queue.popleft()
            if not scan.is_over:
                try:
                    self._begin(scan)
                except FairleadError as refusal:
                    self._end(scan, refusal.code, refusal.text)

    def _begin(self, scan: Scan) -> None:
        reader, builder, asked = self._reader, scan.builder, scan.asked
        assert reader is not None
        cut = by_position if _by_position(asked, scan.destination) else by_order
        rows, size = max(asked.rows - builder.rows, 1), max(asked.bytes - builder.bytes, 1)
        what = cut(scan.destination, asked, scan.at, scan.beyond, rows, size)
        assert what.is_last or what.end > scan.at, "a scan comes further with every slice"
        held = reader.hold([part.group for part in what.parts])
        if held is None:  # compaction has copied some just now, and the copies are not written yet
            self._core.after(self._core.last_index, lambda: self._again(scan))
            return
        self._jobs += 1
        scan.looked_bytes += what.bytes
        rows, size = asked.rows, asked.bytes - asked.bytes // 8  # the last eighth is not worth another job
        if what.is_last or scan.looked_bytes >= LOOK_FACTOR * asked.bytes:
            rows = size = 0
        self._core.work(
            lambda: reader.read(what, builder, rows=rows, size=size),
            lambda result: self._done(scan, what, held, result),
        )

    def _again(self, scan: Scan) -> None:
        self._queue.append(scan)
        self._start()

    def _done(self, scan: Scan, what: Slice, held: list[int], result: Any) -> None:
        """A job has ended."""
        self._jobs -= 1
        assert self._reader is not None
        self._reader.release(held)
        if isinstance(result, Exception):
            self._failed(scan, what, result)
        elif not scan.is_over:
            self._take(scan, what, result)
        self._start()

    def _take(self, scan: Scan, what: Slice, result: Read) -> None:
        scan.at = what.end if result.stopped is None else what.position(*result.stopped)
        if result.batch is None:
            self._queue.append(scan)
            return
        scan.is_reading = False
        scan.looked_bytes = 0
        scan.granted -= 1
        self.batches += 1
        self.bytes += len(result.batch)
        scan.is_over = what.is_last and result.stopped is None
        if scan.batch is not None:
            scan.ready = result.batch
            return
        scan.batches += 1
        scan.batch, scan.sent = memoryview(result.batch), 0
        self._sending.setdefault(scan.line.link, deque()).append(scan)
        self._want(scan)

    def _failed(self, scan: Scan, what: Slice, fault: Exception) -> None:
        self.failed += 1
        home = scan.destination
        text = f"Messages of {home.name!r} from {scan.at} to {what.end - 1} cannot be read: {fault}"
        self._core.event("error", "scan-failed", text, destination=home.name, first=scan.at, beyond=what.end)
        if not scan.is_over:
            self._end(scan, fault.code if isinstance(fault, FairleadError) else DAMAGED, text)

    # --- Sending ----------------------------------------------------------------------------------------------------
    @property
    def has_more(self) -> bool:
        """Is there a piece that can go in the next turn?"""
        links = self._core.links
        return any(
            number in links and links[number].bytes < SHARE_BYTES and any(one.line not in self._full for one in scans)
            for number, scans in self._sending.items()
        )

    def feed(self) -> None:
        """At the end of a turn: pieces into the links, behind what is for others, as far as their share goes."""
        for number in list(self._sending):
            scans = self._sending[number]
            link = self._core.links.get(number)
            idle = 0
            while scans and link is not None and idle < len(scans) and link.bytes < SHARE_BYTES:
                scan = scans.popleft()
                if scan.line in self._full:
                    idle += 1
                    scans.append(scan)
                elif self._put_piece(link, scan):
                    idle = 0
                    scans.append(scan)
            if not scans or link is None:
                del self._sending[number]

    def _put_piece(self, link: Link, scan: Scan) -> bool:
        """One piece of its batch. False: it has nothing to send any more."""
        data, sent = scan.batch, scan.sent
        if data is None:
            return False
        beyond = min(sent + PIECE_BYTES, len(data))
        is_last = beyond == len(data)
        link.frame(
            scan.line.uid,
            scan.line.index,
            KIND_COLUMNS,
            number=scan.number,
            correlation=scan.batches,
            peer=sent,
            flags=FLAG_LAST if is_last else 0,
            body=data[sent:beyond],
        )
        scan.sent = beyond
        if is_last:
            scan.batch, scan.sent = None, 0
            if scan.ready is not None:
                scan.batches += 1
                scan.batch, scan.ready = memoryview(scan.ready), None
            elif scan.is_over:
                self._forget(scan)
        self._want(scan)
        return scan.batch is not None

    def on_full(self, line: Line, *, is_full: bool) -> None:
        """The connection's manager holds much that its client has not read; or it has room again."""
        if is_full:
            self._full.add(line)
        else:
            self._full.discard(line)
            for scan in list(self._lines.get(line, {}).values()):
                self._want(scan)

    # --- Ending -----------------------------------------------------------------------------------------------------
    def _end(self, scan: Scan, code: str, text: str) -> None:
        """It cannot go on, and its client is told."""
        self._close(scan)
        facts = {"event": "ended", "handle": scan.number, "code": code, "text": text}
        self._core.send(scan.line, KIND_NOTICE, number=0, body=encode_json(facts))

    def _close(self, scan: Scan) -> None:
        scan.is_over = True
        scan.batch = scan.ready = None
        self._forget(scan)

    def _forget(self, scan: Scan) -> None:
        mine = self._lines.get(scan.line, {})
        if mine.pop(scan.number, None) is not None:
            self._count -= 1
        if not mine:
            self._lines.pop(scan.line, None)

    def on_gone(self, line: Line) -> None:
        for scan in list(self._lines.get(line, {}).values()):
            self._close(scan)
        self._full.discard(line)

    def on_deleted(self, destination: Destination, reason: str) -> None:
        every = [scan for mine in self._lines.values() for scan in mine.values()]
        for scan in every:
            if scan.destination is destination:
                self._end(scan, DestinationDeleted.code, reason)

    def facts(self) -> dict[str, int]:
        """For `counters`."""
        return {
            "open": self._count,
            "opened": self.opened,
            "jobs": self._jobs,
            "batches": self.batches,
            "bytes": self.bytes,
            "failed": self.failed,
        }


def _builder(asked: requests.Scan, home: Destination) -> ColumnBuilder:
    where = asked.where or requests.Where()
    if where.priority[0] > where.priority[1]:
        raise BadParameter("The lowest priority asked for is above the highest.")
    return ColumnBuilder(
        asked.columns,
        keys=None if where.keys is None else [key.encode(errors="replace") for key in where.keys],
        priority=where.priority,
        arrived_ms=where.arrived_ms,
        sent_ms=where.sent_ms,
        ttl_ms=home.ttl_ms,
        most_rows=asked.rows,
        most_bytes=asked.bytes,
    )


def _by_position(asked: requests.Scan, home: Destination) -> bool:
    return bool(asked.cursor) and home.kind == "queue"
