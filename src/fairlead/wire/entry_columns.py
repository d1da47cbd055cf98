"""Columns to entries: what bulk writing does to every message.

This is the plain twin, which says what everything means; `_entry_columns.pyx` is the compiled one, and
`column_codec.py` chooses.
"""

from __future__ import annotations

from typing import Final

from fairlead.errors import BadEntries, BadParameter
from fairlead.wire.column_batch import Bytes
from fairlead.wire.durable import (
    COUNT_MAX,
    ENTRY,
    ENTRY_CRON,
    ENTRY_DEDUP,
    ENTRY_KEY,
    ENTRY_TIMED,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    TIMES,
)
from fairlead.wire.entries import ENTRY_BYTES_MAX, KEY_BYTES_MAX, TIME_MS_MAX
from fairlead.wire.kinds import HEADER_BYTES_MAX
from fairlead.wire.properties import check_section, pairs

__all__ = ["FAULTS", "Ragged", "entries_of"]

Ragged = tuple[memoryview, Bytes, Bytes | None]
"""A column of pieces of different length: offsets (i32 or i64, at least one more than rows), values, and a bitmap of
the rows that are not null (None: all)."""

FAULTS: Final = (
    "",
    "its place in the values is not one",
    "the body is null",
    f"the key is longer than {KEY_BYTES_MAX} bytes",
    "the key is not UTF-8",
    f"the priority is not 0 to {PRIORITY_MAX}",
    f"time to live or delay is not 0 to {TIME_MS_MAX} ms",
    f"all headers together take more than {HEADER_BYTES_MAX} bytes",
    "the headers are not a header section",
    f"the message is longer than {ENTRY_BYTES_MAX} bytes",
)
"""Why a row does not become an entry."""


def entries_of(
    rows: int,
    *,
    body: Ragged,
    key: Ragged | None = None,
    priority: Bytes | None = None,
    ttl_ms: Bytes | None = None,
    delay_ms: Bytes | None = None,
    headers: Ragged | None = None,
    first: int = 0,
    most_bytes: int,
    numbers: Bytes | None = None,
) -> tuple[bytearray, int]:
    """Entries of as many rows, from the row `first`, as fit into so many bytes, but of one at least; and how many.

    `priority` is a buffer of i32, times are buffers of i64; `headers` are ready sections. A key that is null or empty
    is none. BadParameter names the row, by its place or as `numbers` (i64) calls it.
    """
    if not 0 <= first <= rows:
        raise BadParameter(f"There is no row {first} of {rows}.")
    out = bytearray()
    count = 0
    bodies = _pieces(body, rows)
    keys = None if key is None else _pieces(key, rows)
    sections = None if headers is None else _pieces(headers, rows)
    priorities = _fixed(priority, "i", rows)
    lifetimes, delays = _fixed(ttl_ms, "q", rows), _fixed(delay_ms, "q", rows)
    names = _fixed(numbers, "q", rows)
    for row in range(first, min(rows, first + COUNT_MAX)):
        entry, fault = _entry(
            _piece(bodies, row),
            None if keys is None else _piece(keys, row),
            None if sections is None else _piece(sections, row),
            PRIORITY_DEFAULT if priorities is None else priorities[row],
            0 if lifetimes is None else lifetimes[row],
            0 if delays is None else delays[row],
        )
        if fault:
            raise BadParameter(f"Row {row if names is None else names[row]}: {FAULTS[fault]}.")
        if count and len(out) + len(entry) > most_bytes:
            break
        out += entry
        count += 1
    return out, count


def _fixed(data: Bytes | None, kind: str, rows: int) -> memoryview | None:
    if data is None:
        return None
    view = memoryview(data).cast("B")
    if len(view) < rows * (4 if kind == "i" else 8):
        raise BadParameter(f"A column of {len(view)} bytes is shorter than {rows} rows.")
    return view.cast(kind)  # type: ignore[call-overload,no-any-return]


def _pieces(column: Ragged, rows: int) -> Ragged:
    offsets, values, validity = column
    offsets = memoryview(offsets)
    if offsets.itemsize not in (4, 8) or len(offsets) < rows + 1:
        raise BadParameter(f"The offsets of {rows} rows are one more, of 32 or 64 bits.")
    if validity is not None and len(memoryview(validity).cast("B")) < (rows + 7) // 8:
        raise BadParameter(f"A bitmap is shorter than {rows} rows.")
    offsets = offsets.cast("B").cast("i" if offsets.itemsize == 4 else "q")
    return offsets, memoryview(values).cast("B"), None if validity is None else memoryview(validity).cast("B")


def _piece(column: Ragged, row: int) -> bytes | int | None:
    """The bytes; None: null; a number: the fault."""
    offsets, values, validity = column
    if validity is not None and not validity[row >> 3] >> (row & 7) & 1:
        return None
    low, high = offsets[row], offsets[row + 1]
    if not 0 <= low <= high <= len(values):
        return 1
    return bytes(values[low:high])


def _entry(
    body: bytes | int | None,
    key: bytes | int | None,
    headers: bytes | int | None,
    priority: int,
    ttl_ms: int,
    delay_ms: int,
) -> tuple[bytes, int]:
    """The entry, or the number of the fault."""
    if isinstance(body, int) or isinstance(key, int) or isinstance(headers, int):
        return b"", 1
    key, headers = key or b"", headers or b""
    flags = ENTRY_KEY if key else 0
    if body is None:
        return b"", 2
    if len(key) > KEY_BYTES_MAX:
        return b"", 3
    try:
        key.decode()
    except UnicodeDecodeError:
        return b"", 4
    if not 0 <= priority <= PRIORITY_MAX:
        return b"", 5
    if not (0 <= ttl_ms <= TIME_MS_MAX and 0 <= delay_ms <= TIME_MS_MAX):
        return b"", 6
    if len(headers) > HEADER_BYTES_MAX:
        return b"", 7
    try:
        check_section(headers)
    except BadEntries:
        return b"", 8
    for name, value in pairs(headers):
        if value[0] == 0x73:
            flags |= {b":dedup": ENTRY_DEDUP, b":cron": ENTRY_CRON}.get(name, 0)
    times = TIMES.pack(ttl_ms, delay_ms) if ttl_ms or delay_ms else b""
    length = ENTRY.size + len(times) + len(key) + len(headers) + len(body)
    if length > ENTRY_BYTES_MAX:
        return b"", 9
    flags |= ENTRY_TIMED if times else 0
    return b"".join((ENTRY.pack(length, flags, priority, len(key), len(headers), 0), times, key, headers, body)), 0
