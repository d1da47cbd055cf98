"""Is everything that is stored still what was written, and do the members of a group have the same?

`Scrub` reads every record of a journal in a thread, at a bounded rate, and says what is damaged and where.
`StateDigest` puts what waits in each destination into one number: order numbers, sizes and checksums of its messages.
Where nothing is under way, it is equal on all members that are in sync (CLU-138).
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.edge.state_files import Work
from fairlead.cluster.ranges import Ranges
from fairlead.journal.codec import read_record
from fairlead.journal.crc import crc32c
from fairlead.journal.edge import segments
from fairlead.journal.edge.feeding import Spot, walked
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import of_the_file
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.layout import ITEM_BYTES, offset_of, segment_of

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination

RATE_BYTES_S: Final = 32 << 20
ROWS_MAX: Final = 2048  # of an index, looked at in one turn of the loop
FINDINGS_MAX: Final = 1000
ROW: Final = struct.Struct("<QQQQI")
"""order number of the first, how many, arrival, bytes, CRC32C."""


class Scrub:
    """A journal that is being read through. `done` is called in the loop with the report."""

    def __init__(
        self, journal: Journal, work: Work, done: Callable[[dict[str, Any]], None], rate_bytes_s: int = RATE_BYTES_S
    ) -> None:
        self.read_bytes = 0
        self._journal = journal
        self._rate = rate_bytes_s
        self._stop = threading.Event()
        self._todo = journal.files_to_read()
        numbers = [segment_of(spot.place) for _, spot in self._todo]
        journal.pin(numbers)

        def ended(result: Any) -> None:
            journal.unpin(numbers)
            done(result if isinstance(result, dict) else {"error": str(result), "damage": []})

        work(self._run, ended)

    def stop(self) -> None:
        """Read no more; the report says so."""
        self._stop.set()

    def _run(self) -> dict[str, Any]:
        began_s = time.monotonic()
        damage: list[dict[str, Any]] = []
        records = 0
        directory, seed = self._journal.directory, self._journal.seed
        for first, spot in self._todo:
            try:
                for view, seen in walked(directory, seed, spot, first, spot.last):
                    records += len(seen)
                    first = seen[-1][0] + 1
                    self.read_bytes += len(view)
                    if self._stop.wait(max(0.0, self.read_bytes / self._rate - (time.monotonic() - began_s))):
                        return self._report(records, damage, complete=False)
                if first <= spot.last:
                    raise JournalDamaged(f"record {first} is missing")
            except JournalDamaged:
                damage += self._looked_at(spot)
        return self._report(records, damage, complete=True)

    def _looked_at(self, spot: Spot) -> list[dict[str, Any]]:
        """Something in that file is bad: all of what is, with its places."""
        number = segment_of(spot.place)
        try:
            read = segments.read(self._journal.directory, number, self._journal.store_id)
        except OSError as error:
            return [{"what": "damage", "segment": number, "offset": 0, "text": str(error)}]
        judged = segments.judged(read, beyond=spot.last + 1)
        return [one._asdict() for one in of_the_file(read, judged)][:FINDINGS_MAX]

    def _report(self, records: int, damage: list[dict[str, Any]], *, complete: bool) -> dict[str, Any]:
        return {
            "records": records,
            "bytes": self.read_bytes,
            "segments": len(self._todo),
            "complete": complete,
            "damage": damage[:FINDINGS_MAX],
        }


class StateDigest:
    """Of one core's destinations. Some rows in the loop, their messages in a thread, in turns.

    `done` gets the digests by name, and the indexes at which it began and ended: they differ if records came meanwhile.
    """

    def __init__(self, core: Core, journal: Journal, work: Work, done: Callable[[dict[str, Any]], None]) -> None:
        self._core, self._journal, self._work, self._done = core, journal, work, done
        self._began = core.last_index
        self._digests: dict[str, str] = {}
        self._names = iter(sorted((one.name, number) for number, one in core.names.destinations.items()))
        self._name = ""
        self._hash = hashlib.sha256()
        self._rows: Iterator[list[Row]] | None = None
        self._step()

    def _step(self) -> None:
        rows = next(self._rows, None) if self._rows is not None else None
        if rows is None:
            if self._rows is not None:
                self._digests[self._name] = self._hash.hexdigest()
            if not self._next_destination():
                self._done({"began": self._began, "ended": self._core.last_index, "digests": self._digests})
                return
            rows = []
        journal = self._journal
        loose = {
            place: bytes(journal.fetch(place, size)) for _, _, place, size, _, _ in rows if place >= journal.safe_end
        }
        numbers = sorted({segment_of(row[2]) for row in rows if row[2] not in loose})
        journal.pin(numbers)
        found, directory, seed = self._hash, journal.directory, journal.seed

        def job() -> None:
            files: dict[int, int] = {}
            try:
                for base, count, place, size, skip, arrival in rows:
                    data = loose.get(place)
                    if data is None:
                        number = segment_of(place)
                        if number not in files:
                            files[number] = os.open(segments.path_of(directory, number), os.O_RDONLY | os.O_CLOEXEC)
                        data = read_at(files[number], place, size, skip, seed)
                    found.update(ROW.pack(base, count, arrival, size, crc32c(data)))
            finally:
                for fd in files.values():
                    os.close(fd)

        def then(result: Any) -> None:
            journal.unpin(numbers)
            if isinstance(result, Exception):
                self._digests[self._name] = f"cannot be read: {result}"
                self._rows = None
            self._step()

        self._work(job, then)

    def _next_destination(self) -> bool:
        for name, number in self._names:
            home = self._core.names.destinations.get(number)
            if home is not None:
                self._name, self._hash = name, hashlib.sha256()
                self._hash.update(repr((home.id.hex(), home.kind, home.next)).encode())
                for cursor in sorted(home.cursors.values(), key=lambda one: (one.name, one.number)):
                    if cursor.name or home.kind == "queue":
                        left = list(cursor.unsettled(home.first, home.next))
                        self._hash.update(repr((cursor.client, cursor.name, left)).encode())
                self._rows = waiting_rows(home)
                return True
        return False


Row = tuple[int, int, int, int, int, int]
"""order number of the first, how many, place, bytes, bytes of the record before the place, arrival."""


def waiting_rows(home: Destination) -> Iterator[list[Row]]:
    """Rows of its index that have a message somebody waits for, some at a time."""
    wanted = Ranges()
    for cursor in home.cursors.values():
        if cursor.name or home.kind == "queue":
            for low, high in cursor.unsettled(home.first, home.next):
                wanted.add(low, high)
    rows: list[Row] = []
    looked = 0
    at = home.first
    for low, high in list(wanted):
        at = max(at, low)
        while at < high:
            entry = home.index.find(at)
            if entry is None:
                at += 1
                continue
            rows.append((entry.base, entry.count, entry.place, entry.size, entry.skip, entry.arrival_ms))
            at = entry.base + entry.count
            looked += 1
            if looked >= ROWS_MAX:
                yield rows
                rows, looked = [], 0
    yield rows


def read_at(fd: int, place: int, size: int, skip: int, seed: int) -> bytes:
    """What an index row means, checked."""
    header = place - skip - ITEM_BYTES
    data = os.pread(fd, ITEM_BYTES + skip + size, offset_of(header))
    record = read_record(data, header, seed)
    if record is not None and record[1] > skip + size:
        data = os.pread(fd, ITEM_BYTES + record[1], offset_of(header))
        record = read_record(data, header, seed)
    if record is None or not record[5]:
        raise JournalDamaged(f"the record at segment {segment_of(header)}, offset {offset_of(header)} is damaged")
    return data[ITEM_BYTES + skip : ITEM_BYTES + skip + size]
