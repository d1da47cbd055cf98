"""Opening a journal: which files there are, how far they can be believed, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairlead.journal import sidecar
from fairlead.journal.edge import checkpoint, segments
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.segments import Read, Segment
from fairlead.journal.epochs import Epochs
from fairlead.journal.facts import Describer
from fairlead.journal.faults import JournalRefused
from fairlead.journal.layout import FILE_HEAD, ITEM_BYTES, VOID, Found, NotThisFormat, place_of
from fairlead.journal.ranges import Ranges
from fairlead.journal.recovery import Finding, Judged
from fairlead.journal.usage import Row, Usage


class Record(NamedTuple):
    """A record read again at a start. `body` is what `append` got as head and payload."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    kind: int
    place: int  # of the first byte of the body
    epoch: int
    body: memoryview


@dataclass(slots=True)
class Tail:
    """The end of the journal as it was found."""

    segment: Segment
    read: Read
    judged: Judged


class Recovery:
    """What a start finds. Read `blobs`, then `entries`, then `records`, each once; then `damage` is complete."""

    def __init__(self, directory: Path, store_id: bytes, usage: Usage, describe: Describer, *, created: bool) -> None:
        self.store_id = store_id
        self.created = created  # the journal did not exist before
        self.covers = 0  # the checkpoint has everything up to this index
        self.last = 0  # index of the last record
        self.epoch = 0  # of the last record
        self.epochs: Epochs | None = None  # of all records whose epochs are known, when all is read
        self.damage: list[Finding] = []
        self.torn: Finding | None = None
        self.complete = created
        self._directory = directory
        self._usage = usage
        self._describe = describe
        self._segments: list[Segment] = []
        self._checkpoint: Path | None = None
        self._entries_read = created
        self._seen: set[tuple[int, int]] = set()

    def blobs(self) -> Iterator[tuple[bytes, bytes]]:
        """What the newest checkpoint holds."""
        if self._checkpoint is not None:
            yield from checkpoint.blobs(self._checkpoint, self.store_id)

    def entries(self) -> Iterator[Row]:
        """Messages in records the checkpoint covers, by index; those without order numbers yet are WAITING.

        Messages of a transaction come again, with their order numbers, where it was committed.
        """
        for segment in [one for one in self._segments if one.first and one.first <= self.covers]:
            for row in self._rows(segment):
                if row.index <= self.covers and (counted := self._usage.note(row)) is not None:
                    yield counted
        self._entries_read = True

    def records(self) -> Iterator[Record]:
        """Every record behind the checkpoint, by index. Holds one segment in memory at a time."""
        if not self._entries_read:
            for _ in self.entries():
                pass
        for at, segment in enumerate(self._segments):
            following = self._segments[at + 1].first if at + 1 < len(self._segments) else 0
            if following and following <= self.covers + 1:
                continue
            yield from self._records(segment)
        if self.epochs is None:
            self.epochs = Epochs(self.last, self.epoch)
        self.complete = True
        for segment in self._segments[:-1]:
            segment.described = True

    def finish(self) -> None:
        """Go through what nobody has read."""
        if not self.complete:
            for _ in self.records():
                pass

    def _records(self, segment: Segment) -> Iterator[Record]:
        read, judged = self._judge(segment)
        view = memoryview(read.data)
        for _, offset, size, kind, index, epoch, previous in judged.records:
            if kind == VOID:
                continue
            if self.epochs is None:
                self.epochs = Epochs(index - 1, previous)
            if index > self.epochs.last:
                self.epochs.note(index, epoch)
            if index <= self.covers:
                continue
            body = offset + ITEM_BYTES
            contents = view[body : body + size].toreadonly()
            for facts in self._describe(kind, contents):
                self._usage.note(Row(kind, index, place_of(segment.number, body + facts.skip), facts))
            yield Record(index, kind, place_of(segment.number, body), epoch, contents)

    def _rows(self, segment: Segment) -> Iterator[Row]:
        if segment.sealed:
            path = segments.sidecar_of(self._directory, segment.number)
            try:
                beside = sidecar.decode(path.read_bytes(), self.store_id, segment.number)
            except OSError:
                beside = None
            if beside is not None and (beside.first, beside.last) == (segment.first, segment.last):
                segment.has_sidecar = True
                yield from beside.rows()
                return
        read, judged = self._judge(segment)
        yield from segments.rows_of(read, judged.records, self._describe)

    def _judge(self, segment: Segment) -> tuple[Read, Judged]:
        read = segments.read(self._directory, segment.number, self.store_id)
        judged = segments.judged(read, expected=segment.first, beyond=segment.last + 1 if segment.sealed else 0)
        if segment.sealed:  # the tail was reported when it was found
            self.report(of_the_file(read, judged))
        return read, judged

    def report(self, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.what == "torn":
                self.torn = finding
            elif (finding.segment, finding.offset) not in self._seen:
                self._seen.add((finding.segment, finding.offset))
                self.damage.append(finding)

    def set_out(self, found: list[Segment], newest: Path | None, covers: int) -> None:
        self._segments = found
        self._checkpoint = newest
        self.covers = covers


def of_the_file(read: Read, judged: Judged) -> list[Finding]:
    """What is wrong with the records, and with the file around them."""
    findings = list(judged.findings)
    if read.head is None:
        finding = _finding(read.number, 0, FILE_HEAD.size, "the file header is not what was written")
        findings.append(finding._replace(below_mark=judged.is_marked))
    elif len(read.data) < read.head[3]:
        text = f"the file was cut short: {len(read.data)} bytes of {read.head[3]}"
        findings.append(_finding(read.number, len(read.data), read.head[3] - len(read.data), text))
    findings += [_finding(read.number, *one, "the device cannot read this") for one in read.unreadable]
    return findings


def _finding(number: int, offset: int, size: int, text: str) -> Finding:
    return Finding("damage", number, offset, size, 0, 0, True, text)


@dataclass(slots=True)
class Survey:
    """All files of a journal, sorted out."""

    segments: list[Segment] = field(default_factory=list)  # in use, the active one last
    spares: list[int] = field(default_factory=list)  # prepared and never used, the numbers behind the active one
    strays: list[int] = field(default_factory=list)  # unused and of no use
    tail: Tail | None = None
    last: int = 0
    epoch: int = 0
    findings: list[Finding] = field(default_factory=list)


def survey(directory: Path, store_id: bytes, gone: Ranges) -> Survey:
    """Look at every file header, and read the end of the journal. `gone` are the numbers that were given up."""
    out = Survey()
    retired = {number for first, beyond in gone for number in range(first, beyond)}
    numbers = [number for number in segments.numbers_in(directory) if number not in retired]
    heads = {number: _head(directory, number, store_id) for number in numbers}
    used = list(numbers)
    read = None
    while used:
        read = segments.read(directory, used[-1], store_id)
        if not read.is_unused:
            break
        out.spares.insert(0, used.pop())
    if not used or read is None:
        return out
    firsts = {number: head[2] for number, head in heads.items() if head is not None}
    if len(used) == 1 and used[0] > 1:  # what was before it is gone
        firsts[used[0]] = read.first
    for number in used:
        following = firsts.get(number + 1, 0)
        previous = out.segments[-1].last + 1 if out.segments else 1
        head = heads[number]
        segment = Segment(number, firsts.get(number, 0) or previous, recycled=head is not None and head[4])
        segment.sealed = number != used[-1]
        if segment.sealed:
            segment.last = following - 1 if following else _last_of(directory, store_id, segment)
        out.segments.append(segment)
    _missing(out, used, gone)
    _judge_tail(out, directory, store_id, read)
    wanted = range(used[-1] + 1, used[-1] + 1 + len(out.spares))
    out.strays = [number for number, want in zip(out.spares, wanted, strict=True) if number != want]
    out.spares = [number for number in out.spares if number not in out.strays]
    _check_spares(out, directory, read.head[3] if read.head else 0)
    return out


def _check_spares(out: Survey, directory: Path, size: int) -> None:
    """A file is full of zeros before it gets its name: a shorter one was not always unused."""
    for number in [*out.spares, *out.strays]:
        length = segments.path_of(directory, number).stat().st_size
        if length < size:
            text = f"the file was cut short: {length} bytes of {size}; what was in it is lost"
            out.findings.append(_finding(number, length, size - length, text))


def _last_of(directory: Path, store_id: bytes, segment: Segment) -> int:
    """Index of the last record of a segment whose successor is not there."""
    try:
        beside = sidecar.decode(segments.sidecar_of(directory, segment.number).read_bytes(), store_id, segment.number)
    except OSError:
        beside = None
    if beside is not None:
        return beside.last
    read = segments.read(directory, segment.number, store_id)
    return segments.judged(read, expected=segment.first).expected - 1


def _missing(out: Survey, used: list[int], gone: Ranges) -> None:
    """Report numbers that have no file and were not given up."""
    lost = Ranges()
    lost.add(1, used[-1])
    for first, beyond in gone:
        lost.remove(first, beyond)
    for number in used:
        lost.remove(number, number + 1)
    for first, beyond in lost:
        before = max((one.last for one in out.segments if one.number < first), default=0)
        after = min((one.first for one in out.segments if one.number >= beyond), default=0)
        text = (
            f"the files of segments {first} to {beyond - 1} are missing"
            if beyond > first + 1
            else "the file is missing"
        )
        out.findings.append(Finding("damage", first, 0, 0, before + 1, max(after - 1, before + 1), True, text))


def _judge_tail(out: Survey, directory: Path, store_id: bytes, read: Read) -> None:
    segment = out.segments[-1]
    judged = segments.judged(read, expected=segment.first)
    findings = of_the_file(read, judged)
    out.findings += findings
    out.tail = Tail(segment, read, judged)
    out.last = judged.expected - 1
    records: list[Found] = judged.records
    for earlier in reversed(out.segments[:-1]):
        if records:
            break
        before = segments.read(directory, earlier.number, store_id)
        records = segments.judged(before, beyond=segment.first).records
    out.epoch = records[-1][5] if records else 0


def _head(directory: Path, number: int, store_id: bytes) -> tuple[bytes, int, int, int, bool] | None:
    path = segments.path_of(directory, number)
    try:
        with open(path, "rb") as file:
            return segments.own_head(file.read(FILE_HEAD.size), store_id, number)
    except NotThisFormat as error:
        raise JournalRefused(f"{path.name}: {error}") from error
    except OSError:
        return None


def newest_checkpoint(
    directory: Path, store_id: bytes, kept: dict[bytes, bytes] | None = None
) -> tuple[Path | None, int, list[Finding]]:
    """The newest whole checkpoint, the index it covers, and what is wrong with newer ones."""
    findings: list[Finding] = []
    for number in reversed(checkpoint.numbers_in(directory)):
        path = checkpoint.path_of(directory, number)
        covers = checkpoint.check(path, store_id, kept)
        if covers is not None:
            return path, covers, findings
        findings.append(_finding(0, 0, path.stat().st_size, f"the checkpoint {path.name} is not what was written"))
    return None, 0, findings


def sweep(files: Files, directory: Path) -> None:
    """Remove what a process that died left half made."""
    orphans = [name for name in os.listdir(directory) if name.endswith((".tmp", ".new"))]
    numbers = {f"{number:08d}.idx" for number in segments.numbers_in(directory)}
    orphans += [name for name in os.listdir(directory) if name.endswith(".idx") and name not in numbers]
    for name in orphans:
        files.remove(directory / name)
    if orphans:
        files.sync_directory(directory)
