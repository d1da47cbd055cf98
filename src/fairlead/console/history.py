"""Figures over time in one bounded file: a row for each second of the last minutes, one for each ten of the last hours.

Laid out over any writable buffer. Production maps a file, so whoever is killed has nothing to save and the next one
goes on with the same rows. A row holds all series side by side, so a second touches one page; a series is a column that
keeps its name in a table, and gives its place to another one when it has not been told of for longest.

The head's slot is written after the row it speaks of: a row that was being written when its writer died is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import isnan, nan
from typing import Final

MAGIC: Final = b"FLHIST\x00\x01"
_HEAD: Final = struct.Struct(
    "<8sIIIIIIQQ"
)  # magic, columns, fine rows, fine ms, coarse rows, coarse ms, 0, newest slots
_NEWEST_AT: Final = (32, 40)
_NAME: Final = struct.Struct("<Q120s")  # newest slot of this column (coarse), name
HEAD_BYTES: Final = 64
NAME_BYTES_MAX: Final = 120
FINE_MS: Final = 1000
COARSE_MS: Final = 10_000
FINE_ROWS: Final = 900


def size_of(columns: int, coarse_rows: int, fine_rows: int = FINE_ROWS) -> int:
    """Bytes of a buffer for so much."""
    return HEAD_BYTES + columns * _NAME.size + (fine_rows + coarse_rows) * columns * 4


class Track:
    """Rows of one step, as a ring: the row of a slot is at its number modulo the rows."""

    def __init__(self, cells: memoryview[float], rows: int, columns: int, step_ms: int) -> None:
        self._cells = cells
        self.rows, self.columns, self.step_ms = rows, columns, step_ms

    def clear_row(self, slot: int) -> None:
        first = slot % self.rows * self.columns
        for i in range(first, first + self.columns):
            self._cells[i] = nan

    def clear_column(self, column: int) -> None:
        for row in range(self.rows):
            self._cells[row * self.columns + column] = nan

    def set(self, slot: int, column: int, value: float) -> None:
        self._cells[slot % self.rows * self.columns + column] = value

    def get(self, slot: int, column: int) -> float:
        value: float = self._cells[slot % self.rows * self.columns + column]
        return value


class History:
    """All series. `joined` says how the values of one row of ten seconds come out of those of each second."""

    def __init__(
        self,
        buffer: memoryview | bytearray,
        *,
        columns: int,
        coarse_rows: int,
        fine_rows: int = FINE_ROWS,
        joined: Callable[[str, list[float]], float] = lambda name, values: sum(values) / len(values),
    ) -> None:
        self._view = memoryview(buffer).cast("B")
        self._joined = joined
        self._columns = columns
        wanted = (MAGIC, columns, fine_rows, FINE_MS, coarse_rows, COARSE_MS)
        table = HEAD_BYTES + columns * _NAME.size
        middle = table + fine_rows * columns * 4
        end = middle + coarse_rows * columns * 4
        self.fine = Track(self._view[table:middle].cast("f"), fine_rows, columns, FINE_MS)
        self.coarse = Track(self._view[middle:end].cast("f"), coarse_rows, columns, COARSE_MS)
        found = _HEAD.unpack_from(self._view)
        if found[:6] != wanted:
            _HEAD.pack_into(self._view, 0, *wanted, 0, 0, 0)
            for column in range(columns):
                self._name(column, "", 0)
            for track in (self.fine, self.coarse):
                for slot in range(track.rows):
                    track.clear_row(slot)
            found = _HEAD.unpack_from(self._view)
        self._newest = [found[7], found[8]]
        self._places: dict[str, int] = {}
        self._used: list[int] = []  # newest coarse slot of each column
        for column in range(columns):
            used, raw = _NAME.unpack_from(self._view, HEAD_BYTES + column * _NAME.size)
            self._used.append(used)
            if name := raw.rstrip(b"\x00").decode("utf-8", "replace"):
                self._places[name] = column

    @property
    def names(self) -> list[str]:
        return sorted(self._places)

    def put(self, now_ms: int, values: Mapping[str, float | None]) -> None:
        """The values of this second; a second that was told already keeps what it has. A clock set back waits."""
        slot = now_ms // FINE_MS
        if slot <= self._newest[0]:
            return
        for missed in range(max(self._newest[0] + 1, slot - self.fine.rows + 1), slot + 1):
            self.fine.clear_row(missed)
        for name, value in values.items():
            if value is not None and 0 < len(name.encode()) <= NAME_BYTES_MAX:
                self.fine.set(slot, self._column(name, now_ms), float(value))
        before = self._newest[0]
        self._tell(0, slot)
        if slot * FINE_MS // COARSE_MS > before * FINE_MS // COARSE_MS and before:
            self._gather(before * FINE_MS // COARSE_MS)

    def _gather(self, slot: int) -> None:
        """Ten seconds are over: their row."""
        if slot <= self._newest[1]:
            return
        for missed in range(max(self._newest[1] + 1, slot - self.coarse.rows + 1), slot + 1):
            self.coarse.clear_row(missed)
        seconds = range(slot * COARSE_MS // FINE_MS, (slot + 1) * COARSE_MS // FINE_MS)
        for name, column in self._places.items():
            known = [value for second in seconds if not isnan(value := self.fine.get(second, column))]
            if known:
                self.coarse.set(slot, column, self._joined(name, known))
        self._tell(1, slot)

    def read(self, name: str, track: Track, first: int, beyond: int) -> list[float | None]:
        """The values of a series from one slot to before another; None where nothing is known."""
        column = self._places.get(name)
        newest = self._newest[track is self.coarse]
        out: list[float | None] = []
        for slot in range(first, beyond):
            value = nan
            if column is not None and newest - track.rows < slot <= newest:
                value = track.get(slot, column)
            out.append(None if isnan(value) else round(value, 6))
        return out

    def _column(self, name: str, now_ms: int) -> int:
        used, column = now_ms // COARSE_MS, self._places.get(name)
        if column is None:
            column = min(range(self._columns), key=self._used.__getitem__)
            self._places = {other: place for other, place in self._places.items() if place != column}
            self.fine.clear_column(column)
            self.coarse.clear_column(column)
            self._places[name] = column
            self._name(column, name, used)
        elif self._used[column] != used:
            self._name(column, name, used)
        self._used[column] = used
        return column

    def _name(self, column: int, name: str, used: int) -> None:
        _NAME.pack_into(self._view, HEAD_BYTES + column * _NAME.size, used, name.encode())

    def _tell(self, which: int, slot: int) -> None:
        self._newest[which] = slot
        struct.pack_into("<Q", self._view, _NEWEST_AT[which], slot)

    def release(self) -> None:
        """Let go of the buffer, so that it can be closed."""
        for track in (self.fine, self.coarse):
            track._cells.release()
        self._view.release()
