"""How far two logs agree, found by epochs alone.

Epochs never fall along a log, and two logs that have the same epoch at one index are the same up to there (each record
was stored behind the record it follows). So a few probes find the place where they part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.cluster.replication.log import Batch, Log


def agreed(log: Log, batch: Batch, anchor: int) -> int:
    """The last index at which log and batch are the same; they are at `anchor`."""
    low, high = anchor, min(batch.last, log.last)
    if low < high and log.epoch_at(high) == batch.epoch_at(high):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if log.epoch_at(middle) == batch.epoch_at(middle):
            low = middle
        else:
            high = middle - 1
    return low


def back_up(log: Log, index: int, theirs: int, floor: int) -> int:
    """Our record at `index` has another epoch than theirs: from where they should be compared next.

    Ours is newer: behind our last record that is no newer than theirs. Ours is older: at the start of our run of that
    epoch, since the other log has left that epoch somewhere before. Never below `floor`.
    """
    epoch = min(log.epoch_at(index), theirs + 1)
    low, high = floor, index
    while low < high:  # the first index whose epoch is at least that
        middle = (low + high) // 2
        if log.epoch_at(middle) >= epoch:
            high = middle
        else:
            low = middle + 1
    return low
