"""In which epoch each record was written: runs of indexes, since an epoch lasts for many records."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Final

RUNS_MAX: Final = 4096
"""Older ones are forgotten: whoever is that many failovers behind takes over a whole state."""
BLOB_KEY: Final = b":epochs"
"""Under this key a checkpoint has the runs up to what it covers, so that they outlive the files."""


class Epochs:
    """Told of records in the order of their indexes."""

    def __init__(self, before: int = 0, epoch: int = 0) -> None:
        """`before`: the index before the first that will be told of, and its epoch; 0, 0 for an empty journal."""
        self._firsts = [before]
        self._epochs = [epoch]
        self.last = before

    def note(self, index: int, epoch: int) -> None:
        """The next record has that epoch. What lies between the last one and this counts as of the epoch before."""
        if epoch != self._epochs[-1]:
            self._firsts.append(index)
            self._epochs.append(epoch)
            if len(self._firsts) > RUNS_MAX:
                del self._firsts[: RUNS_MAX // 8], self._epochs[: RUNS_MAX // 8]
        self.last = index

    def go_on(self, other: Epochs) -> None:
        """The runs of another that begins where this one ends."""
        for first, epoch in zip(other._firsts, other._epochs, strict=True):
            if first > self.last:
                self.note(first, epoch)
        self.last = max(self.last, other.last)

    def cut(self, last: int) -> None:
        """Forget what is behind that index, which is known."""
        while len(self._firsts) > 1 and self._firsts[-1] > last:
            del self._firsts[-1], self._epochs[-1]
        self.last = last

    def at(self, index: int) -> int:
        """Its epoch; -1 if that is not known."""
        if index > self.last or index < self._firsts[0]:
            return -1
        return self._epochs[bisect_right(self._firsts, index) - 1]

    def runs(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """(count, epoch) of the records from the first to the last, which are known."""
        out = []
        at = bisect_right(self._firsts, first) - 1
        while first <= last:
            beyond = self._firsts[at + 1] if at + 1 < len(self._firsts) else last + 1
            count = min(beyond, last + 1) - first
            out.append((count, self._epochs[at]))
            first += count
            at += 1
        return tuple(out)

    def blob(self, last: int) -> bytes:
        """For a checkpoint that covers everything up to that index."""
        runs = [[first, epoch] for first, epoch in zip(self._firsts, self._epochs, strict=True) if first <= last]
        return json.dumps({"last": last, "runs": runs}).encode()

    @classmethod
    def of_blob(cls, blob: bytes) -> Epochs | None:
        """None if it is not one."""
        try:
            facts = json.loads(blob)
            out = cls(*facts["runs"][0])
            for first, epoch in facts["runs"][1:]:
                out.note(first, epoch)
            out.last = int(facts["last"])
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        return out
