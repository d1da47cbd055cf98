"""Rows of an index, many at a time: which hold what is wanted, where their records lie. The twin of `_rows.pyx`.

A row is five numbers, as `index.py` keeps them. Nobody makes an object of a row here: a bulk reader wants a hundred
thousand of them.
"""

from __future__ import annotations

from array import array
from typing import Final

from fairlead.journal.layout import ITEM_BYTES, PLACE_SHIFT

__all__ = ["choose", "segments", "spans"]

COLUMNS: Final = 5  # base; place; size, count; arrival; flags, skip
LOW: Final = 0xFFFF_FFFF

Chosen = tuple[int, int, int, int, int]
Span = tuple[int, int, int, int]
"""First row, one beyond the last, place of the first byte, bytes."""


def choose(
    rows: array[int], row: int, beyond: int, ranges: array[int], at: int, messages: int, size: int, out: array[int]
) -> Chosen:
    """Append to `out` those of the rows that hold order numbers of the ranges, until a limit is met.

    Ranges are pairs, rising, counted from `at`; rows rise too, and do not overlap. A row counts with the share of its
    bytes that is wanted. The result: row reached, range reached, messages and bytes left (0 or less: the limit is met,
    in the last row appended), and the order number up to which everything wanted is in `out`.
    """
    pairs = len(ranges) // 2
    reached = 0
    while row < beyond and at < pairs and messages > 0 and size > 0:
        base = rows[row * COLUMNS]
        both = rows[row * COLUMNS + 2]
        count = both >> 32
        end = base + count
        if end <= ranges[2 * at]:
            row += 1
            continue
        if ranges[2 * at + 1] <= base:
            at += 1
            continue
        wanted, before = 0, messages
        while at < pairs and ranges[2 * at] < end:
            low, high = max(base, ranges[2 * at]), min(end, ranges[2 * at + 1])
            if high - low >= messages:
                high = low + messages
            wanted += high - low
            messages -= high - low
            reached = high
            if not messages or ranges[2 * at + 1] > end:
                break
            at += 1
        assert wanted <= before
        out.extend(rows[row * COLUMNS : (row + 1) * COLUMNS])
        size -= max(1, (both & LOW) * wanted // max(count, 1))
        row += 1
    return row, at, messages, size, reached


def segments(rows: array[int]) -> tuple[list[int], int]:
    """The segments these records lie in, each once, and the highest place."""
    places = rows[1::COLUMNS]
    found = dict.fromkeys([place >> PLACE_SHIFT for place in places])
    return list(found), max(places, default=0)


def spans(rows: array[int], gap: int, most: int) -> list[Span]:
    """The stretches of files to be read: neighbours together, if no more than `gap` bytes of others lie between.

    A span is `most` bytes at most, unless a single record is longer.
    """
    found: list[Span] = []
    first = begin = end = 0
    for row in range(len(rows) // COLUMNS):
        place, skip = rows[row * COLUMNS + 1], rows[row * COLUMNS + 4] >> 32
        low, high = place - skip - ITEM_BYTES, place + (rows[row * COLUMNS + 2] & LOW)
        if row > first and not (
            end <= low <= end + gap and low >> PLACE_SHIFT == begin >> PLACE_SHIFT and high - begin <= most
        ):
            found.append((first, row, begin, end - begin))
            first = row
        if row == first:
            begin = low
        end = high
    if len(rows):
        found.append((first, len(rows) // COLUMNS, begin, end - begin))
    return found
