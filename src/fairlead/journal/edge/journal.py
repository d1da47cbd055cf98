"""The journal of a message manager: append records, submit what is pending, collect what is safe, read it again.

One thread owns it. While a batch is being written, what is appended gathers in the next one; one sync confirms all of
it. What can be refused is refused at `append`; what fails later fails for good, since nobody knows what a device that
could not sync has kept.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fairlead.journal import sidecar
from fairlead.journal.codec import Batch, check_export
from fairlead.journal.edge import begin, cutting
from fairlead.journal.edge.backup import Backup
from fairlead.journal.edge.checkpoint import Checkpoint
from fairlead.journal.edge.chores import Chores
from fairlead.journal.edge.contents import Contents
from fairlead.journal.edge.feeding import Feed
from fairlead.journal.edge.files import Files
from fairlead.journal.edge.opening import Recovery
from fairlead.journal.edge.options import Options
from fairlead.journal.edge.reading import Reader, Recent
from fairlead.journal.edge.room import Room, Sparse
from fairlead.journal.edge.threads import open_writer
from fairlead.journal.epochs import Epochs
from fairlead.journal.exchange import first_of
from fairlead.journal.facts import WAITING
from fairlead.journal.faults import JournalFailed, StoreFull
from fairlead.journal.layout import (
    FILE_HEAD,
    FORMAT_VERSION,
    ITEM_BYTES,
    file_head,
    offset_of,
    padded,
    place_of,
    seed_of,
    segment_of,
)
from fairlead.journal.records import Bytes
from fairlead.journal.sync_times import SyncTimes
from fairlead.journal.usage import IsLive, Row

WRITE_FULL = (errno.ENOSPC, errno.EDQUOT)

Taken = tuple[int, int, int, int, int]
"""index, place, kind, offset of the body in the data it came from, its length."""


class Journal(Contents):
    """Open one with `Journal.open`."""

    def __init__(self, directory: Path, options: Options, opened: begin.Opened) -> None:
        self.directory = directory
        self.options = options
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.syncs = 0  # batches that were written and synced
        self.hurry = False  # somebody waits for what is pending; set by whoever does, cleared when it is being written
        self._grouped = -1  # everything up to this index is safe in the group; -1: there is none
        self._files = options.files or Files()
        self._clock_ms: Callable[[], int] = options.clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._bulky = options.bulky
        self._described = options.describe.kinds
        self._live(opened)

    def _live(self, opened: begin.Opened) -> None:
        """Begin with the files as they are: at a start, and after a cut."""
        options, directory = self.options, self.directory
        self.store_id = opened.store_id
        self.epoch = opened.recovery.epoch  # of the records appended from now on
        self._lock = opened.lock
        self._seed = seed_of(self.store_id)
        self._recovery = opened.recovery
        self._usage = opened.usage
        self._writer = open_writer(self.fd, options.faults, options.files)
        self._chores = Chores(self.fd)
        self._reader = Reader(directory, self._seed, self.fd)
        self._recent = Recent(options.cache_bytes)
        self._feed = Feed(self.fd)
        self._room = Room(directory, self._files, options, self._chores, opened, self._usage, self._reader)
        self._offset = opened.offset  # where the next batch begins in the active segment
        self._previous = opened.recovery.epoch  # of the record before
        self._next = opened.recovery.last + 1
        self._epochs = Epochs(opened.recovery.last, opened.recovery.epoch)  # what is recovered joins when it is asked
        self._epochs_joined = False
        self._safe = opened.recovery.last
        self._safe_end = place_of(opened.segments[-1].number, opened.offset)  # place behind everything that is safe
        self._open: Batch | None = None
        self._open_max = 0  # bytes it may have: then the segment ends
        self._closed: deque[Batch] = deque()  # full, or ended by a change of segment; not yet given to the writer
        self._writing: Batch | None = None
        self._recovered = False
        self._failure = ""
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_number = opened.checkpoint_number
        self._blocked_write = False  # the device had no room for the batch: it is written again later
        self._room.prepare()

    @classmethod
    def open(cls, directory: Path | str, options: Options | None = None) -> tuple[Journal, Recovery]:
        """Open the journal there, or make one. Everything recovered is on stable storage when this returns."""
        options = options or Options()
        opened = begin.open_files(Path(directory), options)
        return cls(Path(directory), options, opened), opened.recovery

    # What can be asked.

    @property
    def safe(self) -> int:
        """Everything up to this index is on stable storage."""
        return self._safe

    @property
    def sync_times(self) -> SyncTimes:
        """How long flushes took since the journal was opened."""
        return SyncTimes(self._writer.times())

    @property
    def last(self) -> int:
        """Index of the record appended last."""
        return self._next - 1

    @property
    def stable(self) -> int:
        """Everything up to this index will never be undone: it is safe here and, if there is one, in the group."""
        return self._safe if self._grouped < 0 else min(self._safe, self._grouped)

    @stable.setter
    def stable(self, index: int) -> None:
        self._grouped = max(self._grouped, index)

    @property
    def covers(self) -> int:
        """Everything up to this index is in the newest checkpoint."""
        return self._room.covers

    @property
    def full(self) -> str:
        """Why messages are refused at the moment; empty: they are not."""
        return self._room.full

    @property
    def failure(self) -> str:
        """Why nothing is confirmed any more; empty: all is well."""
        return self._failure

    @property
    def pending_bytes(self) -> int:
        """Appended and not yet safe."""
        batches = [*self._closed, *filter(None, (self._open, self._writing))]
        return sum(batch.size for batch in batches)

    @property
    def disk_bytes(self) -> int:
        """Of all segment files."""
        return self._room.disk_bytes

    # Writing.

    def append(self, kind: int, head: Bytes, payload: Bytes = b"") -> tuple[int, int]:
        """Put a record into the pending batch: its index, and the place of the first byte of `head`.

        Both are copied. Raises StoreFull when the disk is full and the record is one that brings messages.
        """
        if self._failure:
            raise JournalFailed(self._failure)
        if kind in self._bulky and self._room.full:
            raise StoreFull(self._room.full)
        need = ITEM_BYTES + padded(len(head) + len(payload))
        batch = self._open
        if batch is None or batch.size + need > self._open_max:
            batch = self._begin(need)
        place = batch.add(kind, head, payload, self.epoch, self._previous)
        index = self._next
        if self.epoch != self._previous:
            self._epochs.note(index, self.epoch)
            self._previous = self.epoch
        self._next = index + 1
        if kind in self._described:
            self._note(kind, index, place, head, len(head) + len(payload))
        return index, place

    @property
    def lingers(self) -> bool:
        """Is something pending for which nobody waits?"""
        return self._open is not None and not self.hurry

    def submit(self, *, patiently: bool = False) -> None:
        """Start writing what is pending, unless a write is under way; `patiently`: if somebody waits for it."""
        if self._writing is not None or self._failure:
            return
        if self._closed:
            batch = self._closed.popleft()
        elif self._open is not None and (self.hurry or not patiently):
            batch, self._open = self._open, None
            self._offset = offset_of(batch.place) + batch.size
            self.hurry = False
        else:
            return
        batch.finish(self._safe, self._clock_ms())
        self._writing = batch
        self._write(batch)

    def collect(self, *, patiently: bool = False) -> int:
        """Take in what the threads have done, and `submit`: everything up to the result is safe."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        for _, error, _ in self._writer.finished():
            self._written(error)
        self._reader.collect()
        self._chores.settle()
        self._feed.settle()
        if self._recovery.complete and not self._recovered:
            self._recovered = True
            self._room.after_recovery()
        if self._failure:
            raise JournalFailed(self._failure)
        if self._checkpoint is not None and self._checkpoint.covers >= 0 and self.stable >= self._checkpoint.needs:
            waiting, self._checkpoint = self._checkpoint, None
            self._room.settle_checkpoint(waiting)
        self.submit(patiently=patiently)
        return self._safe

    def tick(self, now_s: float) -> None:
        """Try again what a full disk refused. Call it about once a second."""
        if self._blocked_write and self._writing is not None and not self._failure:
            self._blocked_write = False
            self._write(self._writing)
        self._room.tick(now_s)

    def flush(self, timeout_s: float = 60.0) -> int:
        """Wait until everything appended is safe. For starts, ends and tests."""
        until = time.monotonic() + timeout_s
        while self.collect() < self._next - 1:
            if self._blocked_write:
                raise StoreFull(self._room.full)
            if time.monotonic() > until:
                raise JournalFailed(f"the device has not synced within {timeout_s:g} s")
            _wait(self.fd, 0.05)
        return self._safe

    # Reading.

    def read(self, place: int, size: int, skip: int = 0) -> memoryview | None:
        """Bytes of a record, checked; None: they are being fetched, and `loaded` will name the place.

        `skip` says how many bytes of the record's body come before the place. Raises JournalDamaged.
        """
        for batch in (self._open, self._writing, *self._closed):
            if batch is not None and batch.place <= place < batch.place + batch.size:
                return batch.read(place, size)
        batch = self._recent.find(place)
        if batch is not None:
            return batch.read(place, size)
        return self._reader.read(place, size, skip)

    def fetch(self, place: int, size: int) -> memoryview:
        """The same, however long the disk takes: for a start, when nobody waits yet."""
        found = self.read(place, size)
        return self._reader.fetch(place, size) if found is None else found

    def loaded(self) -> list[int]:
        """Places that were asked for and can be read now."""
        return self._reader.loaded()

    # Reading in bulk: whoever does reads the files itself, in a thread of its own.

    @property
    def seed(self) -> int:
        """Where the checksums of this store begin."""
        return self._seed

    @property
    def safe_end(self) -> int:
        """The place behind everything that is written and safe."""
        return self._safe_end

    # Records of a group: to other journals, from them, and back.

    def take(self, data: Bytes, skip: int = 0, out: list[Taken] | None = None) -> list[Taken]:
        """Append records that another journal exported, but for the first `skip`; what became of each.

        ValueError if they are not what was sent, or do not stand right behind `last`; then nothing is appended.
        StoreFull if there is no room for all: `out` has those for which there was.
        """
        if self._failure:
            raise JournalFailed(self._failure)
        taken: list[Taken] = [] if out is None else out
        first, previous, runs, longest, offset = check_export(data, skip)
        if offset >= len(data):
            return taken
        coming = Epochs(first - 1, previous)
        at = first
        for count, epoch in runs:
            coming.note(at, epoch)
            at += count
        coming.last = at - 1
        if first + skip != self._next or coming.at(first + skip - 1) != self._previous:
            raise ValueError(f"record {first + skip} does not follow record {self._next - 1} of epoch {self._previous}")
        if FILE_HEAD.size + 2 * ITEM_BYTES + padded(longest) > self.options.segment_bytes:
            raise ValueError("a record is smaller than a segment")
        view, end, is_limited = memoryview(data), len(data), False
        while offset < end:
            if self._room.full and not is_limited:  # what frees room still has the reserve
                is_limited, end = True, first_of(self._bulky, data, offset)
                view = view[:end]
                continue
            need = ITEM_BYTES + padded(int.from_bytes(view[offset + 4 : offset + 8], "little"))
            batch = self._open
            if batch is None or batch.size + need > self._open_max:
                batch = self._begin(need)
            done = len(taken)
            offset = batch.take(view, offset, self._open_max, taken)
            for index, place, kind, body, size in taken[done:]:
                if kind in self._described:
                    self._note(kind, index, place, view[body : body + size], size)
            for count, epoch in coming.runs(self._next, taken[-1][0]):
                self._epochs.note(self._next, epoch)
                self._next += count
                self._previous = epoch
        self.hurry = True
        if end < len(data):
            raise StoreFull(self._room.full or "there was no room for all of it")
        return taken

    def cut(self, last: int, aside: Path | None = None) -> Path | None:
        """Undo everything behind that index; the file in which it was set aside (CLU-152).

        What is stable or in a checkpoint is never undone. If it is more than the end of the active segment, or messages
        were moved by it, all files are looked at again, as at a start.
        """
        if last >= self._next - 1:
            return None
        if last < max(self._grouped, self._room.covers):
            raise ValueError(f"record {last + 1} is safe and cannot be undone")
        self.flush()
        while self._room.is_settling:
            self._chores.settle(wait_s=1.0)
        first, beyond = last + 1, self._next
        epoch = self.epoch_at(self._next - 1)
        path = cutting.set_aside(self._files, aside or self.directory, epoch, first, self.pieces(first, beyond - 1))
        in_place = self._is_plain_tail(first)
        cutting.note(self._files, self.directory, last)
        if self._checkpoint is not None:
            self._checkpoint.abandon("the journal was cut")
            self._checkpoint = None
        if in_place:
            self._cut_in_place(last)
        else:
            self._cut_and_reopen()
        os.eventfd_write(self.fd, 1)
        return path

    def _is_plain_tail(self, first: int) -> bool:
        """Is what begins there in the active segment only, and has it moved no message from one segment to another?"""
        active = self._room.active
        if first <= active.first or self._reader.is_busy(active.number):
            return False
        for one in self.replay(first, self._next - 1):
            if one.kind in self._described:
                if one.kind in self.options.describe.moved:
                    return False
                if any(0 < facts.source < WAITING for facts in self.options.describe(one.kind, one.body)):
                    return False
        return True

    def _cut_in_place(self, last: int) -> None:
        """Zeros over the end of the active segment. Messages that are gone may hold its file a while longer."""
        kept = next(self.replay(last, last))
        number, epoch = self._room.active.number, self.epoch_at(last)
        end = offset_of(kept.place) + padded(len(kept.body))
        fd = self._room.descriptor(number)
        self._feed.close()
        self._files.zero(fd, end, offset_of(self._safe_end) - end)
        self._files.sync(fd)
        cutting.done(self._files, self.directory)
        if end + ITEM_BYTES <= self.options.segment_bytes:
            mark = Batch(self._seed, place_of(number, end), last + 1)
            self._files.write_all(fd, mark.finish(last, self._clock_ms()), end)
            self._files.sync(fd)
            end += ITEM_BYTES
        self._history().cut(last)
        self._next, self._safe, self._offset = last + 1, last, end
        self._safe_end = place_of(number, end)
        self.epoch = self._previous = epoch
        self._room.active.rows = None  # the sidecar is made from the file
        self._recent = Recent(self.options.cache_bytes)
        self._feed = Feed(self.fd)
        self._reader.drop(number)

    def _cut_and_reopen(self) -> None:
        pins, questions = self._room.pins, self._reader.open_questions()
        self._stop_threads()
        lock, self._lock = self._lock, -1
        self._failure = f"the journal in {self.directory} was cut and could not be opened again"
        self._live(begin.open_files(self.directory, self.options, lock))
        self._room.pins = pins
        self._reader.give_back(questions)
        self._recovery.finish()

    # Keeping house.

    def checkpoint(self) -> Checkpoint:
        """Begin a checkpoint; there is one at a time."""
        if self._checkpoint is not None or self._room.is_settling:
            raise ValueError("a checkpoint is under way")
        self._checkpoint_number += 1
        self._checkpoint = Checkpoint(
            self._files,
            self.directory,
            self._checkpoint_number,
            self.store_id,
            self._checkpoint_added,
            lambda covers: self._history().blob(covers),
        )
        return self._checkpoint

    def reclaim(
        self,
        is_live: IsLive,
        pinned: int | None = None,
        needs: Callable[[int, int], bool] = lambda first, last: False,
    ) -> int:
        """Give up sealed segments that the checkpoint covers and in which nothing is needed; how many.

        Records from the index `pinned` on are kept whatever `is_live` says: an open transaction needs them. So are
        files of which `needs` says that it wants any of the indexes in them, from the first to the last.
        """
        self._recovery.finish()
        return self._room.reclaim(is_live, pinned, needs, self._next - 1, self.stable)

    def sparse(self, live_bytes: Callable[[int, int, int], int], share: float = 0.5) -> list[Sparse]:
        """Sealed segments of which less than that share is still needed, the emptiest first."""
        self._recovery.finish()
        return self._room.sparse(live_bytes, share)

    def backup(self, target: Path, extra: Path | None = None) -> Backup:
        """Copy everything that is safe now to a new directory, in a thread; `extra`: a folder of side files as well."""
        target.mkdir(parents=True, mode=0o700)
        parts = self._room.parts(self._safe_end)
        facts = {
            "format": FORMAT_VERSION,
            "store": self.store_id.hex(),
            "safe": self._safe,
            "time_ms": self._clock_ms(),
        }
        self._room.holds += 1
        return Backup(target, parts, facts, self._room.release, extra)

    def close(self) -> None:
        """Write and sync what is pending, and a last synced mark; then nothing is left to doubt at the next start."""
        if self._lock < 0:
            return
        try:
            if not self._failure:
                self.flush()
                self._mark()
        except (JournalFailed, StoreFull):
            pass
        self._stop()

    def abort(self) -> None:
        """Close without writing anything more, as a process that dies would."""
        if self._lock >= 0:
            self._stop()

    # Inside.

    def _stop(self) -> None:
        self._stop_threads()
        os.close(self.fd)
        os.close(self._lock)
        self._lock = -1

    def _stop_threads(self) -> None:
        self._feed.close()
        self._writer.close()
        self._chores.close()
        self._reader.close()
        self._room.close()

    def _begin(self, need: int) -> Batch:
        """Open a batch behind the one before, in the next segment if this one has no room for it."""
        number = self._room.active.number
        if self._open is not None:
            self._offset = offset_of(self._open.place) + self._open.size
            self._closed.append(self._open)
            self._open = None
        lead = b""
        if self._offset + ITEM_BYTES + need > self.options.segment_bytes and self._offset:
            if FILE_HEAD.size + ITEM_BYTES + need > self.options.segment_bytes:
                raise ValueError("a record is smaller than a segment")
            self._room.switch(self._next - 1)  # raises StoreFull
            number, self._offset = self._room.active.number, 0
        if self._offset == 0:
            self._room.active.first = self._next
            self._room.active.rows = bytearray()
            recycled = self._room.active.recycled
            lead = file_head(self.store_id, number, self._next, self.options.segment_bytes, recycled=recycled)
        self._open = Batch(self._seed, place_of(number, self._offset), self._next, lead)
        self._open_max = self.options.segment_bytes - self._offset
        return self._open

    def _write(self, batch: Batch) -> None:
        fd = self._room.descriptor(segment_of(batch.place))
        self._writer.write(batch.first, fd, offset_of(batch.place), batch.finish(0, 0), self.options.sync)

    def _written(self, error: int) -> None:
        batch = self._writing
        assert batch is not None
        if error in WRITE_FULL:
            # Nothing was synced and nothing confirmed: the same bytes may be written to the same place again.
            self._room.full = f"the disk is full ({os.strerror(error)}); messages are refused until there is room"
            self._blocked_write = True
            return
        if error:
            self._poison(batch, error)
            return
        self._writing = None
        self.syncs += 1
        self._safe = max(self._safe, batch.first + batch.count - 1)
        self._safe_end = batch.place + batch.size
        self._recent.keep(batch)
        self._room.is_safe(self._safe)

    def _poison(self, batch: Batch, error: int) -> None:
        number = segment_of(batch.place)
        what = "sync" if error < 0 else "write"
        self._failure = (
            f"cannot {what} segment {number} of the journal in {self.directory}: {os.strerror(abs(error))}. "
            "Nothing more is confirmed; a restart recovers what was"
        )
        begin.mark_poisoned(self.directory, number)

    def _mark(self) -> None:
        """An empty batch whose header says that everything before it is synced."""
        if self._offset == 0 or self._offset + ITEM_BYTES > self.options.segment_bytes:
            return
        batch = Batch(self._seed, place_of(self._room.active.number, self._offset), self._next)
        data = batch.finish(self._safe, self._clock_ms())
        self._writer.write(0, self._room.descriptor(self._room.active.number), self._offset, data, self.options.sync)

    def _checkpoint_added(self, checkpoint: Checkpoint) -> None:
        checkpoint.needs = self._next - 1

    def _note(self, kind: int, index: int, place: int, head: Bytes, size: int) -> None:
        rows = self._room.active.rows
        for facts in self.options.describe(kind, head, size):
            row = Row(kind, index, place + facts.skip, facts)
            if 0 < facts.source < WAITING:
                self._usage.ordered(facts)
            else:
                self._usage.note(row)
            if rows is not None:
                rows += sidecar.packed(row)


def _wait(fd: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(timeout_s * 1000)
