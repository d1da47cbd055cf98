"""Undoing the end of a journal: what was never safe in its group makes way for what is.

The note `cut` is the one step that counts. Before it everything is as it was; from then on every start carries it out
again until it is done. What goes is written to a file of its own first, so that somebody may look at it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairlead.journal.crc import crc32c
from fairlead.journal.edge import segments
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.identity import read_retired
from fairlead.journal.edge.segments import Read
from fairlead.journal.faults import JournalFailed
from fairlead.journal.layout import FILE_HEAD, ITEM_BYTES, padded

NAME: Final = "cut"
ASIDE_MAGIC: Final = b"FLAside1"
"""Begins a file of records that were set aside; then come records as they go to another journal."""


def set_aside(files: Files, folder: Path, epoch: int, first: int, pieces: Iterable[bytes]) -> Path:
    """Write what will be undone to `set-aside-EPOCH-FIRST.journal`; a second one of that name gets a number."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"set-aside-{epoch}-{first}.journal"
    count = 1
    while path.exists():
        count += 1
        path = folder / f"set-aside-{epoch}-{first}.{count}.journal"
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with files.opened(temporary, create=True) as fd:
        files.write_all(fd, ASIDE_MAGIC, 0)
        offset = len(ASIDE_MAGIC)
        for piece in pieces:
            files.write_all(fd, piece, offset)
            offset += len(piece)
        files.sync(fd)
    files.rename(temporary, path)
    files.sync_directory(folder)
    return path


def note(files: Files, directory: Path, last: int) -> None:
    """From here on everything behind that index is undone, also if the process ends now."""
    text = json.dumps({"last": last}).encode()
    files.put(directory / NAME, b"%08x %s\n" % (crc32c(text), text))


def noted(directory: Path) -> int | None:
    """The last index that stays, if a cut is to be carried out."""
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    text = data[9:-1]
    if data != b"%08x %s\n" % (crc32c(text), text):
        raise JournalFailed(f"{directory / NAME} is not what was written: nobody knows where the journal ends")
    return int(json.loads(text)["last"])


def carry_out(files: Files, directory: Path, store_id: bytes) -> bool:
    """Finish a cut that was noted; was there one?"""
    last = noted(directory)
    if last is None:
        return False
    gone = {number for first, beyond in read_retired(directory) or () for number in range(first, beyond)}
    heads = []
    for number in segments.numbers_in(directory):
        with open(segments.path_of(directory, number), "rb") as file:
            head = segments.own_head(file.read(FILE_HEAD.size), store_id, number)
        if head is not None and number not in gone:
            heads.append((number, head[2]))
    behind = [number for number, first in heads if first > last]
    if behind and len(behind) == len(heads):
        behind = behind[1:]  # the first of them stays, without its records: it says which index comes next
    for number in reversed(behind):
        segments.remove(files, directory, number)
    kept = [number for number, _ in heads if number not in behind]
    if kept:
        _shorten(files, directory, segments.read(directory, kept[-1], store_id), last)
    done(files, directory)
    return True


def done(files: Files, directory: Path) -> None:
    """It is carried out."""
    files.remove(directory / NAME)
    files.sync_directory(directory)


def _shorten(files: Files, directory: Path, read: Read, last: int) -> None:
    """Zeros over everything behind that record: what would be left there would be valid in its place for ever."""
    judged = segments.judged(read)
    ends = [offset + ITEM_BYTES + padded(size) for _, offset, size, _, index, _, _ in judged.records if index <= last]
    end = max(ends, default=FILE_HEAD.size)
    beside = segments.sidecar_of(directory, read.number)
    if beside.exists():
        files.remove(beside)  # it tells of what is undone
        files.sync_directory(directory)
    with files.opened(segments.path_of(directory, read.number)) as fd:
        files.zero(fd, end, judged.zero_to - end)
        files.sync(fd)
