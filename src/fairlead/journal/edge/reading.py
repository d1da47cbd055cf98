"""Reading records again: from the batches written last, from the page cache, or, when neither has them, by a thread.

Nothing read from a file is handed out before its checksum was found right.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

from fairlead.journal.codec import Batch, read_record
from fairlead.journal.edge.files import RWF_NOWAIT
from fairlead.journal.edge.segments import path_of
from fairlead.journal.edge.threads import Writer, open_writer
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.layout import ITEM_BYTES, offset_of, segment_of

DESCRIPTORS_MAX = 64
FETCHED_BYTES_MAX = 16 << 20
EACH_BYTES = 256  # what a batch costs beside its bytes


class Recent:
    """The batches written last, by place, up to so many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._places: list[int] = []
        self._batches: list[Batch] = []
        self._bytes = 0

    def keep(self, batch: Batch) -> None:
        self._places.append(batch.place)
        self._batches.append(batch)
        self._bytes += batch.size + EACH_BYTES
        if self._bytes > self._bytes_max:
            self._trim()

    def find(self, place: int) -> Batch | None:
        at = bisect_right(self._places, place) - 1
        if at < 0:
            return None
        batch = self._batches[at]
        return batch if place < batch.place + batch.size else None

    def since(self, index: int) -> list[Batch]:
        """Batches from the one on that has this record; none if it is not among them."""
        at = bisect_right(self._batches, index, key=_first) - 1
        return self._batches[at:] if at >= 0 else []

    def _trim(self) -> None:
        # An eighth at a time, so that the lists are not moved for every batch.
        count, goal = 0, self._bytes_max * 7 // 8
        while count < len(self._batches) - 1 and self._bytes > goal:
            self._bytes -= self._batches[count].size + EACH_BYTES
            count += 1
        del self._batches[:count], self._places[:count]


class Reader:
    """Reads from the files of a journal."""

    def __init__(self, directory: Path, seed: int, event: int) -> None:
        self._directory = directory
        self._seed = seed
        self._event = event
        self._thread: Writer | None = None
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._asked: dict[int, tuple[int, int, int]] = {}  # by ticket: place, size, skip
        self._asked_places: set[int] = set()
        self._fetched: OrderedDict[int, memoryview] = OrderedDict()  # by place of the record's header
        self._fetched_bytes = 0
        self._failed: dict[int, str] = {}  # by place of the record's header: why the thread could not read it
        self._loaded: list[int] = []
        self._tickets = 0

    def read(self, place: int, size: int, skip: int) -> memoryview | None:
        """None: the thread was asked, `loaded` will name the place."""
        header = place - skip - ITEM_BYTES
        kept = self._fetched.get(header)
        if kept is None:
            if header in self._failed:
                raise JournalDamaged(self._failed.pop(header))
            if place in self._asked_places:
                return None
            kept = self._from_page_cache(header, ITEM_BYTES + skip + size)
            if kept is None:
                self._ask(place, size, skip)
                return None
            kept = self._checked(kept, header)
        if len(kept) < ITEM_BYTES + skip + size:
            raise JournalDamaged(f"the record at {_where(place)} is shorter than asked for")
        return kept[ITEM_BYTES + skip : ITEM_BYTES + skip + size]

    def fetch(self, place: int, size: int) -> memoryview:
        """A whole record, read here and now."""
        header = place - ITEM_BYTES
        data = os.pread(self._descriptor(segment_of(header)), ITEM_BYTES + size, offset_of(header))
        if len(data) < ITEM_BYTES + size:
            raise JournalDamaged(f"the file ends inside the record at {_where(place)}")
        return self._checked(memoryview(data), header)[ITEM_BYTES : ITEM_BYTES + size]

    def loaded(self) -> list[int]:
        places, self._loaded = self._loaded, []
        return places

    def collect(self) -> None:
        """Take in what the thread has fetched."""
        if self._thread is None:
            return
        for ticket, error, data in self._thread.finished():
            place, _, skip = self._asked.pop(ticket)
            self._asked_places.discard(place)
            self._loaded.append(place)
            header = place - skip - ITEM_BYTES
            if error or data is None:
                self._failed[header] = f"cannot read the record at {_where(header)}: {os.strerror(error)}"
                continue
            try:
                whole = self._length(data, header)
                if whole > len(data):  # the place asked for is in the middle of a longer record
                    data = os.pread(self._descriptor(segment_of(header)), whole, offset_of(header))
                self._keep(header, self._checked(memoryview(data), header))
            except JournalDamaged as damage:
                self._failed[header] = damage.text

    def _keep(self, header: int, view: memoryview) -> None:
        before = self._fetched.pop(header, None)
        self._fetched[header] = view
        self._fetched_bytes += len(view) - (0 if before is None else len(before))
        while self._fetched_bytes > FETCHED_BYTES_MAX and len(self._fetched) > 1:
            self._fetched_bytes -= len(self._fetched.popitem(last=False)[1])

    def forget(self, segment: int) -> None:
        """The file of that segment is going to be another's."""
        fd = self._descriptors.pop(segment, None)
        if fd is not None:
            os.close(fd)
        self.drop(segment)

    def drop(self, segment: int) -> None:
        """Keep nothing that was read in that segment: its end is going to be another."""
        for header in [one for one in self._fetched if segment_of(one) == segment]:
            self._fetched_bytes -= len(self._fetched.pop(header))

    def give_back(self, places: list[int]) -> None:
        """Places that another reader was asked for: they are to be asked for again."""
        self._loaded += places

    def open_questions(self) -> list[int]:
        """Places that were asked for and not yet told of."""
        return [*self._loaded, *(place for place, _, _ in self._asked.values())]

    def is_busy(self, segment: int) -> bool:
        """Is the thread reading in that segment?"""
        return any(segment_of(place) == segment for place, _, _ in self._asked.values())

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()

    def _ask(self, place: int, size: int, skip: int) -> None:
        if self._thread is None:
            self._thread = open_writer(self._event)
        header = place - skip - ITEM_BYTES
        self._tickets += 1
        self._asked[self._tickets] = (place, size, skip)
        self._asked_places.add(place)
        fd = self._descriptor(segment_of(header))
        self._thread.read(self._tickets, fd, offset_of(header), ITEM_BYTES + skip + size)

    def _from_page_cache(self, header: int, size: int) -> memoryview | None:
        """The whole record, if no device has to be asked for it."""
        fd = self._descriptor(segment_of(header))
        data = self._read_nowait(fd, offset_of(header), size)
        if data is None:
            return None
        whole = self._length(data, header)
        if whole <= size:
            return memoryview(data)
        longer = self._read_nowait(fd, offset_of(header), whole)
        return None if longer is None else memoryview(longer)

    def _read_nowait(self, fd: int, offset: int, size: int) -> bytearray | None:
        data = bytearray(size)
        try:
            count = os.preadv(fd, [data], offset, RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno == errno.EOPNOTSUPP:  # not every file system can say
                count = os.preadv(fd, [data], offset)
            else:
                raise JournalDamaged(f"cannot read at offset {offset}: {error.strerror}") from error
        if count < size:
            # The page cache had a part of it, or the file ends here: the thread will find out.
            if offset + size > os.fstat(fd).st_size:
                raise JournalDamaged(f"the file ends before offset {offset + size}")
            return None
        return data

    def _length(self, data: bytes | bytearray, header: int) -> int:
        """How many bytes the record has with its header; the data may end before it does."""
        record = read_record(memoryview(data), header, self._seed)
        if record is None:
            raise JournalDamaged(f"there is no record at {_where(header)}")
        return ITEM_BYTES + record[1]

    def _checked(self, data: memoryview, header: int) -> memoryview:
        record = read_record(data, header, self._seed)
        if record is None or not record[5]:
            raise JournalDamaged(f"the record at {_where(header)} is not what was written")
        return data[: ITEM_BYTES + record[1]]

    def _descriptor(self, segment: int) -> int:
        fd = self._descriptors.get(segment)
        if fd is None:
            try:
                fd = os.open(path_of(self._directory, segment), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise JournalDamaged(f"segment {segment} is missing") from error
            self._descriptors[segment] = fd
            if len(self._descriptors) > DESCRIPTORS_MAX:
                idle = next((one for one in self._descriptors if one != segment and not self.is_busy(one)), None)
                if idle is not None:
                    os.close(self._descriptors.pop(idle))
        else:
            self._descriptors.move_to_end(segment)
        return fd


def _first(batch: Batch) -> int:
    return batch.first


def _where(place: int) -> str:
    return f"segment {segment_of(place)}, offset {offset_of(place)}"
