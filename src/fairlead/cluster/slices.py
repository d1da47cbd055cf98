"""What a scan reads next: some rows of the index, which of their messages are wanted, and where that leads to."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.cluster import reserving
from fairlead.cluster.readable import deliveries, readable
from fairlead.errors import OffsetGone
from fairlead.wire.column_batch import DELIVERY_COUNT

if TYPE_CHECKING:
    from fairlead.cluster import requests
    from fairlead.cluster.destination import Destination
    from fairlead.journal.index import Group

WINDOW_MIN: Final = 16_384  # messages looked at for one slice, where not all of them may be wanted
WINDOW_MAX: Final = 65_536
RUNS_MAX: Final = 1024  # of a cursor's positions


class Wanted(NamedTuple):
    """Some rows of an index, and which of their messages are wanted; all numbers rise."""

    group: Group
    ranges: array[int]
    counts: array[int]  # deliveries


class Slice(NamedTuple):
    """What one job reads, in this order."""

    parts: list[Wanted]
    end: int  # where to go on when all of it was read
    is_last: bool  # of the scan
    bytes: int  # of the records it reads
    position: Callable[[int, int], int]  # where to go on from an order number of a part


def by_order(home: Destination, asked: requests.Scan, at: int, beyond: int, rows: int, size: int) -> Slice:
    """The next slice in the order of the numbers, of about so many messages and bytes."""
    if at < home.first:
        if not (asked.jump or asked.waiting):
            raise OffsetGone(gone(home, at, min(home.first, beyond)))
        at = min(home.first, beyond)
    ranges, end = readable(home, at, beyond, waiting=asked.waiting, most=min(max(rows, WINDOW_MIN), WINDOW_MAX))
    groups: list[Group] = []
    left = size
    if ranges:
        groups, reached, left = home.index.select(ranges, rows, size)
        if reached < ranges[-1]:
            end = reached
    parts = [_wanted(home, asked, group, ranges) for group in groups]
    return Slice(parts, end, end >= beyond, size - left, lambda _, order: order)


def by_position(home: Destination, asked: requests.Scan, at: int, beyond: int, rows: int, size: int) -> Slice:
    """The next slice in the order in which a queue's cursor reserved: each part a stretch in which numbers rise."""
    cursor = reserving.find(home, asked.cursor)
    if at < cursor.at:
        if not asked.jump:
            raise OffsetGone(committed(asked, at, min(cursor.at, beyond)))
        at = min(cursor.at, beyond)
    beyond = min(beyond, cursor.reserved)
    runs = cursor.spans(at, min(beyond, at + rows))[:RUNS_MAX]
    parts: list[Wanted] = []
    starts: list[tuple[int, array[int]]] = []  # of each part: the position its stretch begins with, and the stretch
    end, left = at, size
    for stretch in _rising(runs):
        if left <= 0:
            break
        groups, reached, left = home.index.select(stretch, WINDOW_MAX, left)
        covered = clipped(stretch, stretch[0], reached)
        for group in groups:
            parts.append(_wanted(home, asked, group, covered))
            starts.append((end, covered))
        end += _length(covered)

    def position(part: int, order: int) -> int:
        first, stretch = starts[part]
        return first + _length(clipped(stretch, stretch[0], order))

    return Slice(parts, end, end >= beyond, size - left, position)


def _wanted(home: Destination, asked: requests.Scan, group: Group, ranges: array[int]) -> Wanted:
    mine = clipped(ranges, group.first, group.beyond)
    return Wanted(group, mine, deliveries(home, mine) if asked.columns >> DELIVERY_COUNT & 1 else array("Q"))


def clipped(ranges: array[int], first: int, beyond: int) -> array[int]:
    """What of these ranges is from `first` to before `beyond`."""
    if not ranges or (ranges[0] >= first and ranges[-1] <= beyond):
        return ranges
    found = array("Q")
    for low, high in zip(ranges[::2], ranges[1::2], strict=True):
        if max(low, first) < min(high, beyond):
            found.extend((max(low, first), min(high, beyond)))
    return found


def _length(ranges: array[int]) -> int:
    return sum(ranges[1::2]) - sum(ranges[::2])


def _rising(runs: list[tuple[int, int]]) -> Iterator[array[int]]:
    """The runs in stretches in which order numbers rise."""
    stretch = array("Q")
    for low, high in runs:
        if stretch and low < stretch[-1]:
            yield stretch
            stretch = array("Q")
        stretch.extend((low, high))
    if stretch:
        yield stretch


def gone(home: Destination, first: int, beyond: int) -> str:
    return f"Messages of {home.name!r} were let go; lost: [{first}, {beyond}]"


def committed(asked: requests.Scan, first: int, beyond: int) -> str:
    return f"Positions of the cursor {asked.cursor!r} are committed; lost: [{first}, {beyond}]"
