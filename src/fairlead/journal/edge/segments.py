"""The segment files of a journal: their names, and how they come to be, come into use again, and go."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fairlead.journal import sidecar
from fairlead.journal.codec import scan
from fairlead.journal.edge.files import Files, read_whole
from fairlead.journal.facts import Describer
from fairlead.journal.layout import FILE_HEAD, ITEM_BYTES, VOID, Found, place_of, read_file_head, seed_of
from fairlead.journal.recovery import Judged, judge
from fairlead.journal.usage import Row

NAME = re.compile(r"(\d{8})\.seg")
SYNC_EVERY = 4 << 20


@dataclass(slots=True)
class Segment:
    """A segment in use, sealed or active."""

    number: int
    first: int = 0  # index of its first record
    last: int = 0  # of its last, known when it is sealed; 0: no record
    recycled: bool = False
    sealed: bool = False
    rows: bytearray | None = None  # of its sidecar; None: they are to be read from the segment itself
    described: bool = False  # what is in it is known to Usage
    has_sidecar: bool = False
    leaving: bool = False  # its file is being given up


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{number:08d}.seg"


def sidecar_of(directory: Path, number: int) -> Path:
    return directory / f"{number:08d}.idx"


def numbers_in(directory: Path) -> list[int]:
    """Of all segment files, in order."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := NAME.fullmatch(name)))


def make(files: Files, directory: Path, number: int, size: int) -> int:
    """A file of zeros that is really there, under its name, before anything depends on it. Its descriptor."""
    path = path_of(directory, number)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    fd = files.open(temporary, create=True)
    try:
        files.zero(fd, 0, size, sync_every=SYNC_EVERY)
        files.sync(fd)
        files.rename(temporary, path)
        files.sync_directory(directory)
    except BaseException:
        files.close(fd)
        temporary.unlink(missing_ok=True)
        raise
    return fd


def recycle(files: Files, directory: Path, number: int, new: int) -> int:
    """Give an old file the name of one to come. What is in it has the wrong number in every checksum."""
    sidecar_of(directory, number).unlink(missing_ok=True)
    files.rename(path_of(directory, number), path_of(directory, new))
    files.sync_directory(directory)
    return files.open(path_of(directory, new))


def remove(files: Files, directory: Path, number: int) -> None:
    sidecar_of(directory, number).unlink(missing_ok=True)
    files.remove(path_of(directory, number))
    files.sync_directory(directory)


@dataclass(slots=True)
class Read:
    """A segment file, read and scanned from end to end."""

    number: int
    data: bytearray
    found: list[Found]
    head: (
        tuple[bytes, int, int, int, bool] | None
    )  # as read_file_head gives it, if it is this store's and this number's
    unreadable: list[tuple[int, int]]

    @property
    def is_unused(self) -> bool:
        return self.head is None and len(self.found) == 1

    @property
    def first(self) -> int:
        """Index of its first record; 0: nobody knows."""
        return self.head[2] if self.head else next((one[4] for one in self.found if one[4]), 0)


def read(directory: Path, number: int, store_id: bytes) -> Read:
    fd = os.open(path_of(directory, number), os.O_RDONLY | os.O_CLOEXEC)
    try:
        data, unreadable = read_whole(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    head = own_head(bytes(data[: FILE_HEAD.size]), store_id, number)
    found = scan(data, place_of(number, 0), seed_of(store_id), FILE_HEAD.size)
    return Read(number, data, found, head, unreadable)


def own_head(data: bytes, store_id: bytes, number: int) -> tuple[bytes, int, int, int, bool] | None:
    """The file header, if it is of this store and for this number: a recycled file has another until it is used."""
    head = read_file_head(data)
    return head if head is not None and head[:2] == (store_id, number) else None


def judged(what: Read, *, expected: int = 0, beyond: int = 0) -> Judged:
    recycled = what.head is not None and what.head[4]
    return judge(what.number, what.found, FILE_HEAD.size, expected or what.first, beyond=beyond, recycled=recycled)


def rows_of(what: Read, records: list[Found], describe: Describer) -> list[Row]:
    """What the records of a segment say about messages."""
    view = memoryview(what.data)
    rows = []
    for _, offset, size, kind, index, _, _ in records:
        if kind == VOID:
            continue
        body = offset + ITEM_BYTES
        for facts in describe(kind, view[body : body + size]):
            rows.append(Row(kind, index, place_of(what.number, body + facts.skip), facts))
    return rows


def write_sidecar(files: Files, directory: Path, store_id: bytes, segment: Segment, describe: Describer) -> None:
    """Write down what is in a sealed segment. One that an earlier process began is read again for it."""
    rows = segment.rows
    if rows is None:
        what = read(directory, segment.number, store_id)
        found = rows_of(what, judged(what, expected=segment.first, beyond=segment.last + 1).records, describe)
        rows = bytearray().join(map(sidecar.packed, found))
    segment.rows = None
    data = sidecar.encode(store_id, segment.number, segment.first, segment.last, rows)
    try:
        files.put(sidecar_of(directory, segment.number), data)
    except OSError:
        pass  # the segment itself is read at the next start
