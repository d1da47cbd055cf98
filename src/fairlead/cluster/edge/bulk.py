"""The part of a scan that runs in a thread: stretches of journal files, checked, into a column batch.

Files are read as files. Through a mapping a bad disk would be a signal that ends the process; so it is an error of
one scan. What a checksum does not confirm is never shown to anybody.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fairlead.cluster.scans import Read
from fairlead.cluster.slices import Slice, Wanted
from fairlead.journal.codec import check_rows
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.segments import path_of
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.index import Group
from fairlead.journal.layout import offset_of, segment_of
from fairlead.journal.row_codec import segments, spans
from fairlead.wire.column_codec import ColumnBuilder

GAP_BYTES: Final = 64 * 1024  # of other destinations' records that are read along rather than jumped over
SPAN_BYTES: Final = 1 << 20
SPARE_MAX: Final = 12  # spans for which memory is kept
COLUMNS: Final = 5  # of a row of the index


class BulkReader:
    """Reads records of messages from the files of a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._directory = journal.directory
        self._seed = journal.seed
        self._spare: list[bytearray] = []  # memory for spans; new memory costs more than reading into it

    def hold(self, groups: list[Group]) -> list[int] | None:
        """In the loop: pin the files; None if a record is not in its file yet."""
        held: list[int] = []
        for group in groups:
            numbers, highest = segments(group.rows)
            if highest >= self._journal.safe_end:
                return None
            held += numbers
        self._journal.pin(held)
        return held

    def release(self, held: list[int]) -> None:
        self._journal.unpin(held)

    def read(self, what: Slice, builder: ColumnBuilder, *, rows: int, size: int) -> Read:
        """In a thread, and nearly all of it without the interpreter's lock."""
        files = Files(self._directory, self._spare)
        try:
            for number, part in enumerate(what.parts):
                order = self._add(files, part, builder)
                if order:
                    batch = builder.finish(what.position(number, order), False)
                    files.give_back()
                    return Read((number, order), batch)
            if builder.rows < rows and builder.bytes < size:
                return Read(None, None)  # the builder needs what was read until it makes a batch
            batch = builder.finish(what.end, what.is_last)
            files.give_back()
            return Read(None, batch)
        finally:
            files.close()

    def _add(self, files: Files, part: Wanted, builder: ColumnBuilder) -> int:
        """0, or the order number of the first message there was no room for."""
        rows = part.group.rows
        view = memoryview(rows)
        for first, beyond, place, size in spans(rows, GAP_BYTES, SPAN_BYTES):
            span = files.read(place, size)
            bad = check_rows(span, place, self._seed, rows, first, beyond)
            if bad >= 0:
                raise JournalDamaged(f"the record at {_where(rows[bad * COLUMNS + 1])} is not what was written")
            table = view[first * COLUMNS : beyond * COLUMNS]
            row, order = builder.add_span(span, table, part.ranges, part.counts, origin=place)
            if row < beyond - first:
                return order
        return 0


class Files:
    """Segment files that are open for one job, and the memory they are read into."""

    def __init__(self, directory: Path, spare: list[bytearray]) -> None:
        self._directory = directory
        self._spare = spare
        self._used: list[bytearray] = []
        self._open: dict[int, int] = {}

    def read(self, place: int, size: int) -> memoryview:
        """So many bytes from there on."""
        number, offset = segment_of(place), offset_of(place)
        fd = self._open.get(number)
        if fd is None:
            try:
                fd = self._open[number] = os.open(path_of(self._directory, number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise JournalDamaged(f"segment {number} is missing") from error
        view = self._memory(size)
        done = 0
        while done < size:
            try:
                count = os.preadv(fd, [view[done:]], offset + done)
            except OSError as error:
                raise JournalDamaged(f"cannot read at {_where(place + done)}: {error.strerror}") from error
            if not count:
                raise JournalDamaged(f"segment {number} ends at offset {offset + done}, inside a record")
            done += count
        return view

    def _memory(self, size: int) -> memoryview:
        if size > SPAN_BYTES:
            return memoryview(bytearray(size))
        try:
            buffer = self._spare.pop()
        except IndexError:
            buffer = bytearray(SPAN_BYTES)
        self._used.append(buffer)
        return memoryview(buffer)[:size]

    def give_back(self) -> None:
        """Nobody looks at what was read any more."""
        self._spare.extend(self._used[: max(0, SPARE_MAX - len(self._spare))])
        self._used.clear()

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)


def _where(place: int) -> str:
    return f"segment {segment_of(place)}, offset {offset_of(place)}"
