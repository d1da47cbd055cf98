"""A small journal for tests that look at every byte of it, and a way to the disk that does not wait for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.journal.edge.begin import open_files
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.identity import read_identity
from fairlead.journal.edge.journal import Journal
from fairlead.journal.edge.opening import Recovery, survey
from fairlead.journal.edge.options import Options
from fairlead.journal.facts import Nothing
from fairlead.journal.layout import ITEM_BYTES, offset_of, padded, segment_of
from fairlead.journal.ranges import Ranges
from fairlead.journal.usage import Usage

SEGMENT = 400


class Hasty(Files):
    """Nothing is synced: for tests in which no power fails."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@dataclass(slots=True)
class Written:
    """A record as it was appended."""

    index: int
    place: int
    body: bytes

    @property
    def segment(self) -> int:
        return segment_of(self.place)

    @property
    def span(self) -> range:
        """Offsets of all its bytes, the header included, the padding not."""
        start = offset_of(self.place) - ITEM_BYTES
        return range(start, offset_of(self.place) + len(self.body))

    @property
    def end(self) -> int:
        return offset_of(self.place) + padded(len(self.body))


@dataclass(slots=True)
class Small:
    """A journal of three segments, its files in memory."""

    directory: Path
    clean: bool
    written: list[Written] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def put_back(self) -> None:
        for name in os.listdir(self.directory):
            if name not in self.files:
                (self.directory / name).unlink()
        for name, data in self.files.items():
            path = self.directory / name
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)

    def change(self, name: str, data: bytes) -> None:
        (self.directory / name).write_bytes(data)

    def recover(self) -> tuple[dict[int, bytes], Recovery]:
        return recover(self.directory, options())

    def look(self) -> tuple[dict[int, bytes], Recovery]:
        """The same, and nothing is put right."""
        store_id = read_identity(self.directory)
        assert store_id is not None
        found = survey(self.directory, store_id, Ranges())
        usage = Usage(Nothing())
        recovery = Recovery(self.directory, store_id, usage, Nothing(), created=False)
        recovery.report(found.findings)
        recovery.set_out(found.segments, None, 0)
        return {record.index: bytes(record.body) for record in recovery.records()}, recovery

    def ends(self) -> dict[str, int]:
        """For each segment file, the offset behind its last record."""
        return {f"{one.segment:08d}.seg": one.end for one in self.written}


def options(**changes: object) -> Options:
    return Options(**{"segment_bytes": SEGMENT, "ahead": 1, "files": Hasty(), **changes})  # type: ignore[arg-type]


def recover(directory: Path, how: Options) -> tuple[dict[int, bytes], Recovery]:
    """What a start would find, without the threads of one."""
    opened = open_files(directory, how)
    try:
        found = {record.index: bytes(record.body) for record in opened.recovery.records()}
    finally:
        for fd in (opened.lock, opened.fd, *(spare[1] for spare in opened.spares)):
            os.close(fd)
    return found, opened.recovery


def build(directory: Path, *, clean: bool) -> Small:
    """Batches of one to three records, all confirmed. `clean`: closed in order, with a last mark."""
    small = Small(directory, clean)
    journal, _ = Journal.open(directory, options())
    journal.epoch = 3
    for number in range(5):
        for part in range(number % 3 + 1):
            body = bytes((number * 16 + part,)) * (5 + 11 * part + number)
            index, place = journal.append(8, body[:3], body[3:])
            small.written.append(Written(index, place, body))
        journal.submit()
        assert journal.flush() == journal.last
    journal.close() if clean else journal.abort()
    for path in directory.iterdir():
        if path.name not in ("lock", "ballast") and path.suffix != ".idx":
            small.files[path.name] = path.read_bytes()
        else:
            path.unlink()
    assert len({one.segment for one in small.written}) == 3
    return small
