"""Messages whose content says which they are, the source of them and their converter: what a test counts.

A body is its own source sequence, when it was due (monotonic clock of this host; 0: nobody measures), into how many
parts it is to be converted, and what is wrong with it. Needs the extra `feeds`, as adapters do.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fairlead.feeds.edge.sources.transmitter import BURST_RATE
from fairlead.feeds.sources.runs import Run, run_of
from fairlead.pipeline.converters import Reject, converter
from fairlead.testing.feed_source import Faults, FeedSource, FeedSourceProcess, main

FINE: Final = 0
MALFORMED: Final = 1  # cannot be converted: a void
FILTERED: Final = 2  # gives nothing
KEYS: Final = 16  # of snapshots
BODY: Final = struct.Struct("<qqHH12s")
_LAYOUT: Final = np.dtype([("number", "<i8"), ("due_ns", "<i8"), ("parts", "<u2"), ("fault", "<u2"), ("filler", "V12")])

TAKES: Final = pa.schema([("source_sequence", pa.int64()), ("body", pa.binary())])
GIVES: Final = pa.schema(
    [
        ("source_sequence", pa.int64()),
        ("number", pa.int64()),
        ("part", pa.int16()),
        ("key", pa.int64()),
        ("due_ns", pa.int64()),
    ]
)


def body(number: int, *, parts: int = 1, fault: int = FINE) -> bytes:
    return BODY.pack(number, 0, parts, fault, b"")


class NumberedSource(FeedSource):
    """The scripted source with such messages. `send` waits until they are on their way.

    `offset`: the same messages as those of a source without one, under sequences that are so much higher.
    """

    def __init__(self, *, offset: int = 0, **options: Any) -> None:
        self._schedule: tuple[int, int, float] | None = None
        self._offset = offset
        super().__init__(**options)
        self.sent = self._until = offset

    def _messages(self, first: int, count: int) -> Run:
        rows = np.zeros(count, _LAYOUT)
        rows["number"] = np.arange(first - self._offset, first - self._offset + count)
        rows["parts"] = 1
        if self._schedule is not None:
            began_ns, began, rate = self._schedule
            rows["due_ns"] = began_ns + (np.arange(first - began, first - began + count) * (1e9 / rate)).astype(
                np.int64
            )
        run = Run(first, np.full(count, BODY.size, np.int32).tobytes(), rows.tobytes())
        own = {sequence: self._own[sequence] for sequence in range(first, first + count) if sequence in self._own}
        if not own:
            return run
        return run_of(first, [own.get(number, made) for number, made in enumerate(run.bodies(), first)])

    def send(self, count: int, rate: float = BURST_RATE) -> int:
        until = super().send(count, rate)
        self.wait_sent(until)
        return until

    def run_stamped(self, rate: float) -> None:
        """At this rate for good, each message with the time at which it is due: once in the life of a source."""
        with self._lock:
            assert self._schedule is None
            self._schedule = (time.monotonic_ns(), self.sent, rate)
            self.run(rate)

    def heal(self) -> None:
        """Everything arrives again, at once, once."""
        with self._lock:
            self._faults = {name: Faults() for name in self._faults}
            self._later.clear()


class NumberedSourceProcess(FeedSourceProcess):
    """The same in a process of its own, for measurements."""

    MODULE = "fairlead.testing.feed_numbers"
    METHODS = FeedSourceProcess.METHODS | {"run_stamped", "heal"}


@converter(takes=TAKES, gives=GIVES)
def scripted(batch: pa.RecordBatch) -> pa.RecordBatch:
    found = batch.column(1)
    _reject(np.flatnonzero(~np.asarray(found.is_valid())), "no body")
    ends = np.frombuffer(found.buffers()[1], "<i4", len(found) + 1, found.offset * 4)
    _reject(np.flatnonzero(np.diff(ends) != BODY.size), "not of the right size")
    rows = np.frombuffer(found.buffers()[2], _LAYOUT, len(found), int(ends[0]))
    _reject(np.flatnonzero(rows["fault"] == MALFORMED), "malformed on purpose")
    parts = np.where(rows["fault"] == FILTERED, 0, rows["parts"]).astype(np.int64)
    row_of = np.repeat(np.arange(len(rows)), parts)
    part = np.arange(len(row_of)) - np.repeat(np.cumsum(parts) - parts, parts) + 1
    numbers = rows["number"][row_of]
    columns = [
        batch.column(0).take(pa.array(row_of)),
        pa.array(numbers),
        pa.array(part.astype(np.int16)),
        pa.array(numbers % KEYS),
        pa.array(rows["due_ns"][row_of]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=GIVES)


def _reject(rows: Iterable[Any], why: str) -> None:
    reasons = {int(row): why for row in rows}
    if reasons:
        raise Reject(reasons)


if __name__ == "__main__":
    main(NumberedSource)
