"""Consecutive messages of a source in two buffers: how they are carried, cut, and made into what a converter takes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fairlead.feeds.sources.events import SOURCE_SCHEMA

__all__ = ["Run", "rows_of", "run_of"]


class Run(NamedTuple):
    """Messages `first` … `last`."""

    first: int
    lengths: bytes  # int32, native, one for each message
    data: bytes

    @property
    def size(self) -> int:
        return len(self.lengths) // 4

    @property
    def last(self) -> int:
        return self.first + self.size - 1

    def cut(self, first: int, last: int) -> Run:
        """Its messages from `first` to `last`, as far as it has them."""
        skip = max(0, first - self.first)
        keep = max(skip, min(self.size, last - self.first + 1))
        if skip == 0 and keep == self.size:
            return self
        lengths = array("i", self.lengths)
        start = sum(lengths[:skip])
        end = start + sum(lengths[skip:keep])
        return Run(self.first + skip, self.lengths[4 * skip : 4 * keep], self.data[start:end])

    def bodies(self) -> list[bytes]:
        made, at = [], 0
        for length in array("i", self.lengths):
            made.append(self.data[at : at + length])
            at += length
        return made


def run_of(first: int, bodies: Sequence[bytes]) -> Run:
    return Run(first, array("i", map(len, bodies)).tobytes(), b"".join(bodies))


def rows_of(runs: Iterable[Run]) -> pa.RecordBatch:
    """One batch of all runs, as SOURCE_SCHEMA has it; one copy of the bytes, none if there is one run."""
    runs = list(runs)
    lengths = np.frombuffer(b"".join([run.lengths for run in runs]), np.int32)
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    if len(runs) == 1 or all(a.last + 1 == b.first for a, b in pairwise(runs)):
        sequences = np.arange(runs[0].first, runs[0].first + len(lengths), dtype=np.int64)
    else:
        sequences = np.concatenate([np.arange(run.first, run.last + 1, dtype=np.int64) for run in runs])
    data = runs[0].data if len(runs) == 1 else b"".join([run.data for run in runs])
    bodies = pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)])
    numbers = pa.Array.from_buffers(pa.int64(), len(lengths), [None, pa.py_buffer(sequences)])
    return pa.RecordBatch.from_arrays([numbers, bodies], schema=SOURCE_SCHEMA)
