"""What is in a journal, by index: records for other journals, records once more, and files for another store.

The newest are in memory, in the batches that are gathered, being written, or were written last; the others are in the
files. `Journal` is this, and writes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fairlead.journal.codec import Batch, walk
from fairlead.journal.edge.feeding import Exported, Feed, Spot, body_begins, from_file, from_memory, walked
from fairlead.journal.edge.opening import Record, Recovery
from fairlead.journal.edge.reading import Recent
from fairlead.journal.edge.room import Room, StatePart
from fairlead.journal.epochs import Epochs
from fairlead.journal.faults import JournalDamaged
from fairlead.journal.layout import FILE_HEAD, ITEM_BYTES, offset_of, place_of, segment_of

PIECE_BYTES = 4 << 20


class State(NamedTuple):
    """A state for another store."""

    parts: list[StatePart]
    segments: list[int]  # pinned
    last: int
    epoch: int  # of the last


class Contents:
    """The part of a journal that reads by index."""

    directory: Path
    _seed: int
    _recovery: Recovery
    _room: Room
    _recent: Recent
    _feed: Feed
    _epochs: Epochs
    _epochs_joined: bool
    _next: int
    _safe: int
    _safe_end: int
    _open: Batch | None
    _closed: deque[Batch]
    _writing: Batch | None

    @property
    def first_readable(self) -> int:
        """The oldest index from which on every record is here; `last` + 1 if there is none."""
        return self._room.first_readable

    def epoch_at(self, index: int) -> int:
        """In which epoch that record was written; 0 for index 0, -1 if nobody knows any more or it is not there."""
        return self._history().at(index)

    def export(self, first: int, most_bytes: int) -> Exported | None:
        """Records from that index on, at least one; None: a thread brings them, and `fd` tells. Raises JournalDamaged.

        They need not be safe: a backup writes them while we do. IndexError if they are not (or no longer) here.
        """
        if not self.first_readable <= first < self._next:
            raise IndexError(first)
        found = self._from_memory(first, most_bytes) or self._feed.get(first)
        if found is None:
            segment, spot = self._spot(first)
            directory, seed, last = self.directory, self._seed, min(spot.last, self._safe)
            self.pin([segment])
            self._feed.ask(
                first, lambda: from_file(directory, seed, spot, first, last, most_bytes), lambda: self.unpin([segment])
            )
            return None
        data, count, place = found
        if not count:
            raise JournalDamaged(f"record {first} is not where it should be")
        self._feed.went_on(first + count, place)
        history = self._history()
        return Exported(first, history.at(first - 1), history.runs(first, first + count - 1), data)

    def replay(self, first: int, last: int) -> Iterator[Record]:
        """Records once more, however long the disk takes."""
        while first <= last:
            batches = self._in_memory(first)
            if batches:
                batch = batches[0]
                place = body_begins(batch)
                view = batch.read(place, batch.place + batch.size - place)
                chunks = iter([(view, walk(view, 0, place, self._seed, first, last, len(view))[0])])
            else:
                _, spot = self._spot(first)
                chunks = walked(self.directory, self._seed, spot, first, min(last, spot.last))
            before = first
            for view, seen in chunks:
                for index, place, kind, body, size, epoch in seen:
                    yield Record(index, kind, place, epoch, view[body : body + size].toreadonly())
                    first = index + 1
            if first == before:
                raise JournalDamaged(f"record {first} is not where it should be")

    def pieces(self, first: int, last: int) -> Iterator[bytes]:
        while first <= last:
            found = self._from_memory(first, PIECE_BYTES)
            if found is None:
                _, spot = self._spot(first)
                found = from_file(self.directory, self._seed, spot, first, min(last, spot.last), PIECE_BYTES)
            if not found[1]:
                raise JournalDamaged(f"record {first} is not where it should be")
            self._feed.went_on(first + found[1], found[2])
            first += found[1]
            yield found[0]

    def _in_memory(self, first: int) -> list[Batch]:
        """The batches that are not only in the files, from the one on that has this record."""
        found = self._recent.since(first)
        found += filter(None, (self._writing, *self._closed, self._open))
        while found and found[0].first + found[0].count <= first:
            found.pop(0)
        return found if found and found[0].first <= first else []

    def _from_memory(self, first: int, most_bytes: int) -> tuple[bytes, int, int] | None:
        pieces: list[bytes] = []
        count = end = 0
        for batch in self._in_memory(first):
            index = first + count
            if not batch.count or (pieces and most_bytes < ITEM_BYTES):
                break
            place = self._feed.cursor(index) or 0
            if not body_begins(batch) <= place < batch.place + batch.size:
                place = body_begins(batch)
            data, more, behind = from_memory(batch, place, self._seed, index, self._next - 1, most_bytes)
            if pieces and len(data) > most_bytes:
                break
            pieces.append(data)
            count, end = count + more, behind
            most_bytes -= len(data)
            if index + more < batch.first + batch.count:
                break
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces), count, end) if count else None

    def _spot(self, first: int) -> tuple[int, Spot]:
        """Where in the files that record is to be looked for."""
        if not self.first_readable <= first <= self._safe:
            raise IndexError(first)
        segment = self._room.holding(first)
        is_end = segment.number == segment_of(self._safe_end)
        end = offset_of(self._safe_end) if is_end else self._room.size_of(segment.number)
        place = self._feed.cursor(first) or 0
        if segment_of(place) != segment.number:
            place = place_of(segment.number, FILE_HEAD.size)
        return segment.number, Spot(place, end, segment.last if segment.sealed else self._safe)

    def _history(self) -> Epochs:
        """The epochs of all records that are known."""
        if not self._epochs_joined:
            self._recovery.finish()
            self._epochs_joined = True
            if self._recovery.epochs is not None:
                self._recovery.epochs.go_on(self._epochs)
                self._epochs = self._recovery.epochs
        self._epochs.last = self._next - 1
        return self._epochs

    # Files.

    def files_to_read(self) -> list[tuple[int, Spot]]:
        """First index and extent of every file that has anything safe in it."""
        spots = []
        for segment in [*self._room.sealed, self._room.active]:
            if not segment.leaving and segment.first <= self._safe and segment.number <= segment_of(self._safe_end):
                is_end = segment.number == segment_of(self._safe_end)
                end = offset_of(self._safe_end) if is_end else self._room.size_of(segment.number)
                last = min(self._safe, segment.last if segment.sealed else self._safe)
                if segment.first <= last:
                    spots.append((segment.first, Spot(place_of(segment.number, FILE_HEAD.size), end, last)))
        return spots

    def pin(self, segments: Iterable[int]) -> None:
        """These files are being read: they are not given up before `unpin`."""
        self._room.pins.update(segments)

    def unpin(self, segments: Iterable[int]) -> None:
        for number in segments:
            if self._room.pins[number] > 1:
                self._room.pins[number] -= 1
            else:
                del self._room.pins[number]

    def state(self) -> State:
        """Everything that is safe now, as files of which another store can be made; to be released.

        The checkpoint's descriptor in it is closed by whoever releases it.
        """
        parts, numbers = self._room.state(self._safe_end)
        self.pin(numbers)
        return State(parts, numbers, self._safe, self.epoch_at(self._safe))

    def release(self, state: State) -> None:
        self.unpin(state.segments)
        for part in state.parts:
            if isinstance(part.source, int):
                os.close(part.source)
