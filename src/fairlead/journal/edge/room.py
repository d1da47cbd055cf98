"""Room on the disk: files made ahead, files taken into use, files given up, and what to do when there are no more.

Two files are kept ready behind the active one. When no further one can be made, messages are refused; what frees
room (acknowledgements, deletions) still has the rest of the active file and the reserve.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairlead.journal.edge import begin, segments
from fairlead.journal.edge.backup import Part
from fairlead.journal.edge.checkpoint import Checkpoint
from fairlead.journal.edge.checkpoint import numbers_in as checkpoints_in
from fairlead.journal.edge.checkpoint import path_of as checkpoint_path
from fairlead.journal.edge.chores import Chores
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.identity import IDENTITY_BYTES, identity_bytes, retired_bytes, write_retired
from fairlead.journal.edge.options import Options
from fairlead.journal.edge.reading import Reader
from fairlead.journal.edge.segments import Segment
from fairlead.journal.faults import StoreFull
from fairlead.journal.layout import offset_of, segment_of
from fairlead.journal.usage import IsLive, Usage

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WAIT_S = 30.0


class Sparse(NamedTuple):
    """A segment worth compacting."""

    segment: int
    live_bytes: int
    held: list[tuple[int, int, int]]  # destination, first order number, one beyond


class StatePart(NamedTuple):
    """A file of a state for another store: its first `size` bytes, then zeros up to `full`."""

    name: str
    source: Path | int | bytes  # a descriptor, if the name may go before it is read
    size: int
    full: int


class Spare(NamedTuple):
    """A file that is ready."""

    number: int
    fd: int
    recycled: bool


class Room:
    """The segment files of one journal."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        options: Options,
        chores: Chores,
        opened: begin.Opened,
        usage: Usage,
        reader: Reader,
    ) -> None:
        self.full = ""
        self.covers = opened.recovery.covers
        self.is_settling = False
        self.holds = 0  # backups under way: no file is given up meanwhile
        self.pins: Counter[int] = Counter()  # segments that are being read in bulk
        self._directory = directory
        self._files = files
        self._options = options
        self._chores = chores
        self._usage = usage
        self._reader = reader
        self._store_id = opened.store_id
        self._segments = opened.segments
        self._descriptors = {opened.segments[-1].number: opened.fd}
        self._spares = [Spare(*one) for one in opened.spares]
        self._gone = opened.gone
        self._making = 0  # files being made
        self._highest = max(
            [opened.segments[-1].number, *(one.number for one in self._spares)]
        )  # of the chores' thread
        self._failed_s: float | None = None
        self._decided: tuple[int, set[int]] | None = None  # when this index is safe, these segments may go
        self._first_readable = 0  # 0: to be found out
        self._chores.ask(self._make_ballast, self._whatever)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def sealed(self) -> list[Segment]:
        return self._segments[:-1]

    @property
    def disk_bytes(self) -> int:
        return (len(self._segments) + len(self._spares) + self._making) * self._options.segment_bytes

    def descriptor(self, number: int) -> int:
        return self._descriptors[number]

    # Files to come.

    def prepare(self) -> None:
        """Have files made until enough are ready."""
        while len(self._spares) + self._making < self._options.ahead:
            quota = self._options.quota_bytes
            if quota and self.disk_bytes + self._options.segment_bytes > quota:
                self._no_room(f"the quota of {quota} bytes is used up")
                return
            self._making += 1
            self._chores.ask(self._make, self._made)

    def switch(self, last: int) -> None:
        """Seal the active segment, whose last record has that index, and take the next file into use."""
        while not self._spares:
            # Writing is faster than making files: everybody waits, and so it evens out.
            if not self._making or not self._chores.settle(wait_s=WAIT_S):
                raise StoreFull(self.full or "no file for the journal is ready")
        active = self.active
        active.sealed, active.last = True, last
        spare = self._spares.pop(0)
        self._descriptors[spare.number] = spare.fd
        self._segments.append(Segment(spare.number, recycled=spare.recycled))
        self._first_readable = 0
        self.prepare()

    def tick(self, now_s: float) -> None:
        if not self.full:
            return
        if self._failed_s is None:
            self._failed_s = now_s
        if now_s - self._failed_s >= self._options.retry_s:
            self._failed_s = None
            self.full = "" if len(self._spares) >= self._options.ahead else self.full
            self.prepare()

    def _make(self) -> list[Spare]:
        number = self._highest + 1
        fd = segments.make(self._files, self._directory, number, self._options.segment_bytes)
        self._highest = number
        return [Spare(number, fd, False)]

    def _made(self, spares: list[Spare] | None, error: OSError | None) -> None:
        self._making -= 1
        if spares is None:
            assert error is not None
            self._no_room(os.strerror(error.errno or errno.EIO))
            self._chores.ask(self._drop_ballast, self._whatever)
            return
        self._take_in(spares)

    def _take_in(self, spares: list[Spare]) -> None:
        self._spares += spares
        if len(self._spares) >= self._options.ahead:
            if self.full:
                self._chores.ask(self._make_ballast, self._whatever)
            self.full = ""

    def _no_room(self, why: str) -> None:
        self.full = f"no room for the journal in {self._directory}: {why}; messages are refused until some is freed"

    # Ballast: a file of no use but to be thrown off, so that a full disk still takes a checkpoint.

    def _make_ballast(self) -> None:
        path = self._directory / "ballast"
        if not path.exists():
            try:
                with self._files.opened(path, create=True) as fd:
                    self._files.zero(fd, 0, self._options.segment_bytes // 8)
                    self._files.sync(fd)
            except OSError:
                path.unlink(missing_ok=True)

    def _drop_ballast(self) -> None:
        (self._directory / "ballast").unlink(missing_ok=True)

    def _whatever(self, _: object, error: OSError | None) -> None:
        """It does not matter whether it worked."""

    # Files that are done with.

    def is_safe(self, index: int) -> None:
        """Sealed segments that are wholly on stable storage can be described, and need no descriptor for writing."""
        if len(self._descriptors) == 1:
            return
        for segment in self._segments[:-1]:
            if segment.number in self._descriptors and segment.last <= index:
                self._files.close(self._descriptors.pop(segment.number))
                self._describe(segment)

    def after_recovery(self) -> None:
        """Everything that was found is known to Usage: write the sidecars that are missing."""
        for segment in self._segments[:-1]:
            if not segment.has_sidecar and segment.number not in self._descriptors:
                self._describe(segment)

    def _describe(self, segment: Segment) -> None:
        def then(_: None, error: OSError | None) -> None:
            if error is None:
                segment.described = True  # its records were noted when they were appended or recovered

        segment.has_sidecar = True
        self._chores.ask(
            lambda: segments.write_sidecar(
                self._files, self._directory, self._store_id, segment, self._options.describe
            ),
            then,
        )

    @property
    def first_readable(self) -> int:
        """From this index on nothing is missing."""
        if not self._first_readable:
            first = self.active.first
            for segment in reversed(self._segments[:-1]):
                if segment.leaving or segment.last != first - 1:
                    break
                first = segment.first
            self._first_readable = first
        return self._first_readable

    def size_of(self, number: int) -> int:
        """Bytes of a file; another version, or another store it was copied from, may have made it another size."""
        return segments.path_of(self._directory, number).stat().st_size

    def holding(self, index: int) -> Segment:
        """The segment that has this record."""
        for segment in reversed(self._segments):
            if segment.first <= index:
                return segment
        raise IndexError(index)

    def reclaim(
        self, is_live: IsLive, pinned: int | None, needs: Callable[[int, int], bool], last: int, stable: int
    ) -> int:
        """What `is_live` says is of everything up to `last`; it may be acted on when that is safe."""
        if self.holds:
            return 0
        limit = self.covers if pinned is None else min(self.covers, pinned - 1)
        free = [
            segment
            for segment in self._segments[:-1]
            if segment.described
            and not segment.leaving
            and segment.last <= limit
            and not self.pins[segment.number]
            and not self._reader.is_busy(segment.number)
            and not self._usage.is_needed(segment.number, is_live)
            and not needs(segment.first, segment.last)
        ]
        ripe: set[int] = set()
        if self._decided is not None and self._decided[0] <= stable:
            ripe, self._decided = self._decided[1], None
        if last <= stable:
            ripe.update(segment.number for segment in free)
        elif free and self._decided is None:
            self._decided = last, {segment.number for segment in free}
        free = [segment for segment in free if segment.number in ripe]
        if free:
            self._give_up(free)
        return len(free)

    def _give_up(self, free: list[Segment]) -> None:
        wanted = max(0, self._options.ahead - len(self._spares) - self._making)
        again = [segment.number for segment in free[:wanted]]
        rest = [segment.number for segment in free[wanted:]]
        for segment in free:
            segment.leaving = True
            self._gone.add(segment.number, segment.number + 1)
            self._reader.forget(segment.number)
        gone = self._gone.copy()
        self._making += len(again)
        self._first_readable = 0

        def chore() -> list[Spare]:
            write_retired(self._files, self._directory, gone)
            return self._recycle(again, rest)

        def then(spares: list[Spare] | None, error: OSError | None) -> None:
            self._making -= len(again)
            for segment in free:
                segment.leaving = False
            self._first_readable = 0
            if spares is None:
                for segment in free:
                    self._gone.remove(segment.number, segment.number + 1)
                return
            for segment in free:
                self._segments.remove(segment)
                self._usage.forget(segment.number)
            self._take_in(spares)
            self.prepare()

        self._chores.ask(chore, then)

    def _recycle(self, again: list[int], rest: list[int]) -> list[Spare]:
        """What goes wrong here is put right at the next start: the files are in the list of those given up."""
        spares = []
        for number in again:
            try:
                fd = segments.recycle(self._files, self._directory, number, self._highest + 1)
            except OSError:
                continue
            self._highest += 1
            spares.append(Spare(self._highest, fd, True))
        for number in rest:
            try:
                segments.remove(self._files, self._directory, number)
            except OSError:
                continue
        return spares

    def sparse(self, live_bytes: Callable[[int, int, int], int], share: float) -> list[Sparse]:
        out = []
        for segment in self._segments[:-1]:
            if segment.described and segment.last <= self.covers:
                held = list(self._usage.held(segment.number))
                live = sum(live_bytes(*one) for one in held)
                if live < self._options.segment_bytes * share:
                    out.append(Sparse(segment.number, live, held))
        return sorted(out, key=lambda one: one.live_bytes)

    # Copies.

    def parts(self, end: int) -> list[Part]:
        """The files of which a copy consists; `end` is the place behind everything that is safe."""
        directory, size = self._directory, self._options.segment_bytes
        parts = [
            Part(f"journal/{name}", directory / name, (directory / name).stat().st_size, 0) for name in self._small()
        ]
        newest = max(checkpoints_in(directory), default=0)
        if newest:
            path = checkpoint_path(directory, newest)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the next checkpoint removes its name
            parts.append(Part(f"journal/{path.name}", fd, os.fstat(fd).st_size, 0))
        for segment in self._segments:
            path = segments.path_of(directory, segment.number)
            if segment.number < segment_of(end):
                parts.append(Part(f"journal/{path.name}", path, path.stat().st_size, 0))
            elif segment.number == segment_of(end) and offset_of(end):
                parts.append(Part(f"journal/{path.name}", path, offset_of(end), size))
        return parts

    def state(self, end: int) -> tuple[list[StatePart], list[int]]:
        """The files of which another store can be made, and the segments among them; they are to be pinned."""
        directory, size = self._directory, self._options.segment_bytes
        retired = retired_bytes(self._gone)
        parts = [
            StatePart("journal/store", identity_bytes(self._store_id), IDENTITY_BYTES, IDENTITY_BYTES),
            StatePart("journal/retired", retired, len(retired), len(retired)),
        ]
        newest = max(checkpoints_in(directory), default=0)
        if newest:
            path = checkpoint_path(directory, newest)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the next checkpoint removes its name
            parts.append(StatePart(f"journal/{path.name}", fd, os.fstat(fd).st_size, os.fstat(fd).st_size))
        numbers = []
        for segment in self._segments:
            if segment.leaving or segment.number > segment_of(end):  # the name of one that leaves may be gone
                continue
            path = segments.path_of(directory, segment.number)
            used = offset_of(end) if segment.number == segment_of(end) else path.stat().st_size
            if not used:
                continue
            parts.append(StatePart(f"journal/{path.name}", path, used, max(used, size)))
            numbers.append(segment.number)
        return parts, numbers

    def release(self) -> None:
        """A copy has ended. Called by its thread."""
        self.holds -= 1

    def _small(self) -> list[str]:
        return [name for name in ("store", "retired") if (self._directory / name).exists()]

    # Checkpoints.

    def settle_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.is_settling = True

        def then(_: None, error: OSError | None) -> None:
            self.is_settling = False
            if error is None:
                checkpoint.done = True
                self.covers = checkpoint.covers
            else:
                checkpoint.error = error

        self._chores.ask(checkpoint.settle, then)

    def close(self) -> None:
        for fd in [*self._descriptors.values(), *(spare.fd for spare in self._spares)]:
            self._files.close(fd)
        self._descriptors.clear()
        self._spares.clear()
