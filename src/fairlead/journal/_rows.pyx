# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows of an index, many at a time, compiled; the plain twin is `rows.py`, which says what everything means."""

from cpython cimport array
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    COLUMNS = 5
    HEADER = 40
    SHIFT = 40


def choose(
    const uint64_t[::1] rows not None,
    Py_ssize_t row,
    Py_ssize_t beyond,
    const uint64_t[::1] ranges not None,
    Py_ssize_t at,
    int64_t messages,
    int64_t size,
    array.array out not None,
):
    """Append to `out` those of the rows that hold order numbers of the ranges, until a limit is met."""
    cdef Py_ssize_t pairs = ranges.shape[0] // 2
    cdef Py_ssize_t held = len(out), used = held
    cdef uint64_t base, both, count, end, low, high, wanted, share, reached = 0
    cdef uint64_t* to
    if beyond > rows.shape[0] // COLUMNS:
        beyond = rows.shape[0] // COLUMNS
    if row < 0 or at < 0 or row >= beyond:
        return row, at, messages, size, 0
    array.resize_smart(out, held + (beyond - row) * COLUMNS)
    to = <uint64_t*>out.data.as_ulonglongs
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
        wanted = 0
        while at < pairs and ranges[2 * at] < end:
            low = base if base > ranges[2 * at] else ranges[2 * at]
            high = end if end < ranges[2 * at + 1] else ranges[2 * at + 1]
            if high - low >= <uint64_t>messages:
                high = low + <uint64_t>messages
            wanted += high - low
            messages -= <int64_t>(high - low)
            reached = high
            if messages == 0 or ranges[2 * at + 1] > end:
                break
            at += 1
        memcpy(to + used, &rows[row * COLUMNS], COLUMNS * 8)
        used += COLUMNS
        share = (both & 0xFFFFFFFFULL) * wanted // (count if count else 1)
        size -= <int64_t>(share if share else 1)
        row += 1
    array.resize_smart(out, used)
    return row, at, messages, size, reached


def segments(const uint64_t[::1] rows not None):
    """The segments these records lie in, each once, and the highest place."""
    cdef Py_ssize_t row
    cdef uint64_t place, highest = 0, last = <uint64_t>-1
    found = {}
    for row in range(rows.shape[0] // COLUMNS):
        place = rows[row * COLUMNS + 1]
        if place > highest:
            highest = place
        if place >> SHIFT != last:
            last = place >> SHIFT
            found[last] = None
    return list(found), highest


def spans(const uint64_t[::1] rows not None, uint64_t gap, uint64_t most):
    """The stretches of files to be read: neighbours together, if no more than `gap` bytes of others lie between."""
    cdef Py_ssize_t row, first = 0, total = rows.shape[0] // COLUMNS
    cdef uint64_t place, low, high, begin = 0, end = 0
    found = []
    for row in range(total):
        place = rows[row * COLUMNS + 1]
        low = place - (rows[row * COLUMNS + 4] >> 32) - HEADER
        high = place + (rows[row * COLUMNS + 2] & 0xFFFFFFFFULL)
        if row > first and not (
            end <= low and low <= end + gap and low >> SHIFT == begin >> SHIFT and high - begin <= most
        ):
            found.append((first, row, begin, end - begin))
            first = row
        if row == first:
            begin = low
        end = high
    if total:
        found.append((first, total, begin, end - begin))
    return found
