"""Records for another journal, or for whoever reads this one again: from memory at once, from the files by a thread.

A backup that keeps up is fed from the batches that are being gathered and written. One that is behind is fed from the
files, a stretch at a time; the files it reads are not given up meanwhile.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fairlead.journal.codec import Batch, export, read_record, walk
from fairlead.journal.edge.chores import Chores
from fairlead.journal.edge.segments import path_of
from fairlead.journal.exchange import Seen
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.layout import FILE_HEAD, ITEM_BYTES, offset_of, padded, place_of, segment_of

CHUNK_BYTES: Final = 1 << 20
CURSORS_MAX: Final = 64
READY_MAX: Final = 8

T = TypeVar("T")


class Exported(NamedTuple):
    """Records on their way to another journal; `Batch` of the replication has the same."""

    first: int
    previous: int  # epoch of the record before the first
    epochs: tuple[tuple[int, int], ...]  # runs: count, epoch
    data: bytes


class Spot(NamedTuple):
    """Where in the files to look for a record."""

    place: int  # of an item at or before it
    end: int  # offset in that file behind everything that may be read
    last: int  # the last index that counts in that file


def body_begins(batch: Batch) -> int:
    """The place of the first record's header in a batch."""
    return batch.place + (FILE_HEAD.size if offset_of(batch.place) == 0 else 0) + ITEM_BYTES


def from_memory(batch: Batch, place: int, seed: int, first: int, last: int, most_bytes: int) -> tuple[bytes, int, int]:
    """Records of a batch from the one at that place on: the bytes, how many, the place behind them."""
    view = batch.read(place, batch.place + batch.size - place)
    data, count, used = export(view, 0, place, seed, first, last, most_bytes, False)
    return data, count, place + used


def from_file(directory: Path, seed: int, spot: Spot, first: int, last: int, most_bytes: int) -> tuple[bytes, int, int]:
    """The same from a segment's file, checked. Raises JournalDamaged."""

    def look(view: memoryview, place: int) -> tuple[bytes, int, int]:
        return export(view, 0, place, seed, first, last, most_bytes, True)

    for data, count, end in _stretches(directory, seed, spot, look):
        if count:
            return data, count, end
    return b"", 0, spot.place


def walked(directory: Path, seed: int, spot: Spot, first: int, last: int) -> Iterator[tuple[memoryview, list[Seen]]]:
    """All records from the first to the last in a segment's file, with the memory their offsets mean."""

    def look(view: memoryview, place: int) -> tuple[tuple[memoryview, list[Seen]], int, int]:
        found, used = walk(view, 0, place, seed, first, last, len(view))
        return (view, found), len(found), used

    for found, count, _ in _stretches(directory, seed, spot, look):
        if count:
            yield found
            if found[1][-1][0] >= last:
                return


def _stretches(
    directory: Path, seed: int, spot: Spot, look: Callable[[memoryview, int], tuple[T, int, int]]
) -> Iterator[tuple[T, int, int]]:
    """What `look` makes of stretch after stretch of the file, how many, and the place behind; until the spot's end."""
    number, offset, size = segment_of(spot.place), offset_of(spot.place), CHUNK_BYTES
    try:
        fd = os.open(path_of(directory, number), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise JournalDamaged(f"segment {number} is missing") from error
    try:
        while offset < spot.end:
            data = memoryview(os.pread(fd, min(size, spot.end - offset), offset))
            place = place_of(number, offset)
            found, count, used = look(data, place)
            if used:
                yield found, count, place + used
                offset, size = offset + used, CHUNK_BYTES
                continue
            record = read_record(data, place, seed)
            need = ITEM_BYTES + padded(record[1]) if record is not None else 0
            if need <= len(data):
                if record is not None and record[2] > spot.last:
                    return  # it counts in the file behind this one
                raise JournalDamaged(f"there is no record at segment {number}, offset {offset}")
            size = need
    finally:
        os.close(fd)


class Feed:
    """What the thread is asked for, and what it has brought."""

    def __init__(self, event: int) -> None:
        self._event = event
        self._chores: Chores | None = None
        self._asked: set[int] = set()
        self._ready: OrderedDict[int, tuple[bytes, int, int] | Exception] = OrderedDict()
        self._cursors: OrderedDict[int, int] = OrderedDict()  # index -> place of its record's header, or before it

    def cursor(self, index: int) -> int | None:
        """The place where that record, or a batch that begins with it, was seen to begin."""
        return self._cursors.get(index)

    def went_on(self, index: int, place: int) -> None:
        """The record with that index begins at that place, if it is in the same file."""
        self._cursors[index] = place
        if len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)

    def get(self, first: int) -> tuple[bytes, int, int] | None:
        """What was brought from that index on; None: not there yet. Raises what went wrong."""
        found = self._ready.pop(first, None)
        if isinstance(found, Exception):
            raise found
        return found

    def ask(self, first: int, job: Callable[[], tuple[bytes, int, int]], ended: Callable[[], None]) -> None:
        """Have it brought, unless it is on its way; `ended` is called when no file is read for it any more."""
        if first in self._asked:
            return
        if self._chores is None:
            self._chores = Chores(self._event)
        self._asked.add(first)

        def run() -> tuple[bytes, int, int] | Exception:
            try:
                return job()
            except (OSError, JournalDamaged) as error:
                return error

        def then(found: tuple[bytes, int, int] | Exception, _: OSError | None) -> None:
            ended()
            self._asked.discard(first)
            self._ready[first] = found
            while len(self._ready) > READY_MAX:
                self._ready.popitem(last=False)

        self._chores.ask(run, then)

    def settle(self) -> None:
        if self._chores is not None:
            self._chores.settle()

    def close(self) -> None:
        if self._chores is not None:
            self._chores.close()
            self._chores.settle()
