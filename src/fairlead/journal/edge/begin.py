"""The first steps of a journal in a process: lock it, find or make its files, and put right what a crash left.

After a crash the end of the journal may be in the page cache only. It is written again and synced before anybody is
told of it; in the same place, unless a sync failed there: then into a new file, and the old place no longer counts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fairlead.journal.codec import Batch
from fairlead.journal.edge import checkpoint, cutting, identity, segments
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.opening import Recovery, Survey, newest_checkpoint, survey, sweep
from fairlead.journal.edge.options import Options
from fairlead.journal.edge.segments import Read, Segment
from fairlead.journal.epochs import BLOB_KEY, Epochs
from fairlead.journal.faults import JournalFailed, JournalRefused
from fairlead.journal.layout import (
    FILE_HEAD,
    ITEM_BYTES,
    STORE_ID_BYTES,
    VOID,
    NotThisFormat,
    file_head,
    padded,
    place_of,
    seed_of,
)
from fairlead.journal.ranges import Ranges
from fairlead.journal.records import filler
from fairlead.journal.recovery import Finding, Judged
from fairlead.journal.usage import Usage

POISONED = "poisoned"


@dataclass(slots=True)
class Opened:
    """A journal's files, ready to be written."""

    store_id: bytes
    lock: int
    recovery: Recovery
    usage: Usage
    segments: list[Segment]
    fd: int  # of the active segment
    offset: int  # where it goes on; 0: not even its header is written
    spares: list[tuple[int, int, bool]]  # number, descriptor, recycled
    gone: Ranges
    checkpoint_number: int


def open_files(directory: Path, options: Options, lock: int = -1) -> Opened:
    """Everything up to what can be written. `lock`: this process has the journal already."""
    files = options.files or Files()
    if not directory.exists():
        directory.mkdir(parents=True, mode=0o700)
        files.sync_directory(directory.parent)
    lock = identity.lock(directory) if lock < 0 else lock
    try:
        return _open(files, directory, options, lock)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, NotThisFormat):
            raise JournalRefused(str(error)) from error
        raise


def _open(files: Files, directory: Path, options: Options, lock: int) -> Opened:
    findings: list[Finding] = []
    sweep(files, directory)
    store_id = identity.read_identity(directory)
    if store_id is None:
        store_id = identity.id_from_segments(directory)
        if store_id is not None:
            findings.append(
                _about("the file 'store' is missing or is not what was written; its segments say who it is")
            )
            identity.write_identity(files, directory, store_id)
    created = store_id is None
    if store_id is None:
        store_id = _create(files, directory, options)
    was_cut = cutting.carry_out(files, directory, store_id)
    gone = identity.read_retired(directory)
    if gone is None:
        findings.append(_about("the file 'retired' is not what was written; segments may be reported as missing"))
        gone = Ranges()
    found = survey(directory, store_id, gone)
    usage = Usage(options.describe)
    recovery = Recovery(directory, store_id, usage, options.describe, created=created)
    kept: dict[bytes, bytes] = {}
    newest, covers, about_checkpoints = newest_checkpoint(directory, store_id, kept)
    recovery.last, recovery.epoch = found.last, found.epoch
    recovery.epochs = Epochs.of_blob(kept[BLOB_KEY]) if BLOB_KEY in kept else None
    if recovery.epochs is not None and covers == found.last:
        recovery.epoch = recovery.epochs.at(covers)  # of the record itself nothing may be left
    if was_cut:  # its last batch header tells of records that were undone
        found.findings = [one for one in found.findings if one.what != "torn"]
    findings += found.findings + about_checkpoints
    if covers > found.last:
        text = f"the checkpoint covers records up to {covers}, but the last one found is {found.last}"
        findings.append(Finding("damage", 0, 0, 0, found.last + 1, covers, True, text))
        recovery.last = covers  # numbers that were given once are not given again
    recovery.report(findings)
    unfit = [number for number in found.spares if _size(directory, number) != options.segment_bytes]
    if unfit:
        found.strays += [number for number in found.spares if number >= unfit[0]]
        found.spares = [number for number in found.spares if number < unfit[0]]
    _remove_given_up(files, directory, gone, found.strays)
    opened = _active(files, directory, options, store_id, found, recovery)
    recovery.set_out(opened.segments, newest, covers)
    opened.lock, opened.gone, opened.usage = lock, gone, usage
    opened.checkpoint_number = max(checkpoint.numbers_in(directory), default=0)
    return opened


def _active(
    files: Files, directory: Path, options: Options, store_id: bytes, found: Survey, recovery: Recovery
) -> Opened:
    """Make the end of the journal firm, and open it for writing."""
    spares = [_spare(files, directory, number) for number in found.spares]
    out = Opened(store_id, -1, recovery, Usage(options.describe), found.segments, -1, 0, spares, Ranges(), 0)
    try:
        if found.tail is None:
            _take_spare(files, directory, options, out, 1)
            if not recovery.created:
                recovery.report([_about("no segment has anything in it")])
        elif _is_poisoned(directory, found.tail.segment.number) or recovery.last != found.last:
            _move_tail(files, directory, options, found, out)
        else:
            _firm_tail(files, directory, found, out)
    except OSError as error:
        raise JournalFailed(f"cannot make the end of the journal in {directory} firm: {error}") from error
    (directory / POISONED).unlink(missing_ok=True)
    return out


def _firm_tail(files: Files, directory: Path, found: Survey, out: Opened) -> None:
    """Write again what may be in the page cache only, and zeros over what was cut off, so that it never comes back.

    Then a mark says that all of it is synced: the next start has no doubts about it.
    """
    assert found.tail is not None
    tail, judged = found.tail.read, found.tail.judged
    out.fd = files.open(segments.path_of(directory, tail.number))
    out.offset = judged.end
    settled = all(finding.what == "damage" and finding.below_mark for finding in judged.findings)
    if settled and judged.mark == judged.expected - 1 and judged.zero_to <= judged.end and tail.head is not None:
        return
    _stand_in(seed_of(out.store_id), tail, judged)
    begin = 0 if judged.marked <= FILE_HEAD.size else judged.marked
    files.write_all(out.fd, memoryview(tail.data)[begin : judged.end], begin)
    if tail.head is None:
        head = file_head(out.store_id, tail.number, found.tail.segment.first, len(tail.data))
        files.write_all(out.fd, head, 0)
    files.zero(out.fd, judged.end, judged.zero_to - judged.end)
    files.sync(out.fd)
    if judged.end + ITEM_BYTES <= len(tail.data):
        mark = Batch(seed_of(out.store_id), place_of(tail.number, judged.end), judged.expected)
        files.write_all(out.fd, mark.finish(judged.expected - 1, 0), judged.end)
        files.sync(out.fd)
        out.offset += mark.size


def _move_tail(files: Files, directory: Path, options: Options, found: Survey, out: Opened) -> None:
    """Write what is beyond the last mark into a new segment, whose first index takes it from the old one."""
    assert found.tail is not None
    tail, judged, old = found.tail.read, found.tail.judged, found.tail.segment
    moved = [record for record in judged.records if record[4] > judged.mark]
    first = moved[0][4] if moved else out.recovery.last + 1
    old.sealed, old.last = True, first - 1
    _take_spare(files, directory, options, out, old.number + 1)
    active = out.segments[-1]
    active.first = first
    lead = file_head(out.store_id, active.number, first, options.segment_bytes)
    batch = Batch(seed_of(out.store_id), place_of(active.number, 0), first, lead)
    for _, offset, size, kind, index, epoch, previous in moved:
        while batch.first + batch.count < index:  # reported, and stood for
            batch.add(VOID, b"", b"", epoch, previous)
        body = offset + ITEM_BYTES
        batch.add(kind, memoryview(tail.data)[body : body + size], b"", epoch, previous)
    files.write_all(out.fd, batch.finish(first - 1, 0), 0)
    files.sync(out.fd)
    out.offset = batch.size


def _stand_in(seed: int, tail: Read, judged: Judged) -> None:
    """Put fillers where a cut-off write left holes before records that arrived, so that they are reported once."""
    for finding in judged.findings:
        size = padded(finding.size)
        if (
            finding.what != "damage"
            or finding.below_mark
            or size < ITEM_BYTES * max(1, finding.last - finding.first + 1)
        ):
            continue
        end = finding.offset + size
        following = next((one[4] for one in judged.records if one[1] >= end), judged.expected)
        place = place_of(tail.number, finding.offset)
        tail.data[finding.offset : end] = filler(seed, place, size, finding.first, finding.last, following)


def _take_spare(files: Files, directory: Path, options: Options, out: Opened, number: int) -> None:
    if out.spares:
        number, out.fd, recycled = out.spares.pop(0)
    else:
        out.fd, recycled = segments.make(files, directory, number, options.segment_bytes), False
    out.segments.append(Segment(number, out.recovery.last + 1, recycled=recycled))


def _size(directory: Path, number: int) -> int:
    return segments.path_of(directory, number).stat().st_size


def _spare(files: Files, directory: Path, number: int) -> tuple[int, int, bool]:
    fd = files.open(segments.path_of(directory, number))
    return number, fd, any(os.pread(fd, FILE_HEAD.size, 0))


def _create(files: Files, directory: Path, options: Options) -> bytes:
    """A new store: the id is written last, so that a half made one is made anew."""
    store_id = os.urandom(STORE_ID_BYTES)
    for number in segments.numbers_in(directory):
        segments.remove(files, directory, number)
    fd = segments.make(files, directory, 1, options.segment_bytes)
    try:  # so that a store that was never used is told from one whose file was lost
        begun = Batch(seed_of(store_id), place_of(1, 0), 1, file_head(store_id, 1, 1, options.segment_bytes))
        files.write_all(fd, begun.finish(0, 0), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    identity.write_identity(files, directory, store_id)
    return store_id


def _remove_given_up(files: Files, directory: Path, gone: Ranges, strays: list[int]) -> None:
    """Files that were given up and are still there, and prepared ones out of line."""
    there = segments.numbers_in(directory)
    for number in [*strays, *(number for first, beyond in gone for number in there if first <= number < beyond)]:
        segments.remove(files, directory, number)


def _about(text: str) -> Finding:
    return Finding("damage", 0, 0, 0, 0, 0, True, text)


def mark_poisoned(directory: Path, number: int) -> None:
    """Leave word for the next process. It need not survive a power failure: then the page cache is gone as well."""
    try:
        (directory / POISONED).write_text(f"{number}\n", encoding="ascii")
    except OSError:
        pass


def _is_poisoned(directory: Path, number: int) -> bool:
    try:
        return (directory / POISONED).read_text(encoding="ascii").strip() == str(number)
    except (OSError, UnicodeDecodeError):
        return False
