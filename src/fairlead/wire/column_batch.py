"""Column batches as bytes (docs/durable.md, section 8): which columns there are, how they lie, and reading them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from fairlead.errors import BadEntries, BadParameter

Bytes = bytes | bytearray | memoryview

# Columns, by the number of their bit.
ORDER_NUMBER: Final = 0
MESSAGE_ID: Final = 1
KEY: Final = 2
BODY: Final = 3
HEADERS: Final = 4
PROPERTIES: Final = 5
HEADER_BYTES: Final = 6
PRIORITY: Final = 7
PUBLISHED: Final = 8
ARRIVED: Final = 9
EXPIRES: Final = 10
DELIVERY_COUNT: Final = 11
STREAM_ID: Final = 12
STREAM_SEQUENCE: Final = 13
SIZE: Final = 14

NAMES: Final = (
    *("order_number", "message_id", "key", "body", "headers", "properties", "header_bytes", "priority"),
    *("published", "arrived", "expires", "delivery_count", "stream_id", "stream_sequence", "size"),
)
EVERY: Final = (1 << len(NAMES)) - 1
"""All columns."""

MAPS: Final = frozenset((HEADERS, PROPERTIES))
TEXTS: Final = frozenset((MESSAGE_ID, KEY, STREAM_ID))
VARIABLE: Final = TEXTS | {BODY, HEADER_BYTES}
WIDTHS: Final = {
    **dict.fromkeys((ORDER_NUMBER, PUBLISHED, ARRIVED, EXPIRES, STREAM_SEQUENCE, SIZE), 8),
    **dict.fromkeys((PRIORITY, DELIVERY_COUNT), 4),
}
"""Bytes of one value, of the columns in which all are as long."""
NULLABLE: Final = frozenset((KEY, BODY, EXPIRES, STREAM_ID, STREAM_SEQUENCE))

# Parts of a column. A map has the parts 1 and 3 to 6.
VALIDITY: Final = 0
OFFSETS: Final = 1
VALUES: Final = 2
KEY_OFFSETS: Final = 3
KEY_VALUES: Final = 4
VALUE_OFFSETS: Final = 5
VALUE_VALUES: Final = 6

BATCH: Final = struct.Struct("<4sHHIIQQ32s")
"""Begins a batch: magic, version, flags, rows, buffers, next position, bytes in all, zeros."""
BUFFER: Final = struct.Struct("<BBHIQ")
"""column, part, zero, length, offset from the start of the batch."""
MAGIC: Final = b"FLCB"
VERSION: Final = 1
END: Final = 1  # flag: the last batch
ALIGN: Final = 64

BATCH_ROWS_MAX: Final = 1 << 22
BATCH_BYTES_MAX: Final = 1 << 28
"""What a builder may be told to gather at most; so 32 bits are enough for every offset."""

RECORD_HEAD: Final = struct.Struct("<IIQI20sQQIIQQ20sI")
"""What a record of messages begins with (STORE_RECORD in cluster/records.py)."""
RECORD_ID_AT: Final = 80

TIME_MS_LAST: Final = 253_402_300_799_999
"""The end of the year 9999, which stands for any later time: what a sender's clock says must not stop a reader."""

FOREVER: Final = (1 << 63) - 1
ID_DIGITS: Final = 40


class Columns(NamedTuple):
    """One batch; the buffers are views of the bytes it came in."""

    rows: int
    next: int  # where to read on
    end: bool  # there is nothing more
    buffers: dict[tuple[int, int], memoryview]  # by column and part

    @property
    def mask(self) -> int:
        """The bits of the columns in it."""
        return sum({1 << column for column, _ in self.buffers})


def check_asked(
    columns: int,
    priority: tuple[int, int],
    arrived_ms: tuple[int, int],
    sent_ms: tuple[int, int],
    ttl_ms: int,
    most_rows: int,
    most_bytes: int,
) -> None:
    """BadParameter unless a builder can do this."""
    if columns & ~EVERY:
        raise BadParameter(f"There are no columns {columns & ~EVERY:#x}.")
    if any(not 0 <= number <= 255 for number in priority):
        raise BadParameter(f"There are no priorities from {priority[0]} to {priority[1]}.")
    if any(not 0 <= number <= FOREVER for number in (*arrived_ms, *sent_ms, ttl_ms)):
        raise BadParameter(f"A time is 0 to {FOREVER} ms.")
    if not (1 <= most_rows <= BATCH_ROWS_MAX and 1 <= most_bytes <= BATCH_BYTES_MAX):
        raise BadParameter(f"A batch is of 1 to {BATCH_ROWS_MAX} rows and 1 to {BATCH_BYTES_MAX} bytes.")


def cost_of(columns: int) -> tuple[int, int]:
    """What a row with these columns counts as: fixed bytes, and how often its header section."""
    fixed = weight = 0
    for column in range(len(NAMES)):
        if columns >> column & 1:
            fixed += WIDTHS.get(column, 4) + (ID_DIGITS if column == MESSAGE_ID else 0)
            weight += {HEADERS: 1, PROPERTIES: 1, HEADER_BYTES: 1, STREAM_ID: 1}.get(column, 0)
    return fixed, weight


def assemble(rows: int, next_position: int, end: bool, buffers: Iterable[tuple[int, int, Bytes]]) -> bytearray:
    """A batch of these buffers, which are in the order of columns and parts."""
    buffers = list(buffers)
    at = _aligned(BATCH.size + BUFFER.size * len(buffers))
    directory = bytearray()
    for column, part, data in buffers:
        directory += BUFFER.pack(column, part, 0, len(data), at)
        at += _aligned(len(data))
    blob = bytearray(at)
    BATCH.pack_into(blob, 0, MAGIC, VERSION, END if end else 0, rows, len(buffers), next_position, at, bytes(32))
    blob[BATCH.size : BATCH.size + len(directory)] = directory
    at = _aligned(BATCH.size + len(directory))
    for _, _, data in buffers:
        blob[at : at + len(data)] = data
        at += _aligned(len(data))
    return blob


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def parse_with(blob: Bytes, rising: Callable[[Bytes, int], bool], texts: Callable[[Bytes, Bytes], bool]) -> Columns:
    """The batch in these bytes, of which nothing is believed; BadEntries.

    `rising` tells whether i32 offsets begin with 0, never fall and end at a number; `texts` whether what lies between
    offsets (rising ones) is UTF-8, piece by piece.
    """
    view = memoryview(blob).cast("B").toreadonly()
    if len(view) < BATCH.size:
        raise BadEntries("A column batch is shorter than its head.")
    magic, version, flags, rows, count, next_position, size, zeros = BATCH.unpack_from(view)
    if magic != MAGIC or version != VERSION or flags & ~END or any(zeros):
        raise BadEntries("These bytes do not begin like a column batch.")
    if size != len(view) or rows > BATCH_ROWS_MAX or count > 7 * len(NAMES) or BATCH.size + BUFFER.size * count > size:
        raise BadEntries("A column batch has not the size it says, or one it cannot have.")
    found: dict[tuple[int, int], memoryview] = {}
    for number in range(count):
        column, part, zero, length, at = BUFFER.unpack_from(view, BATCH.size + BUFFER.size * number)
        if column >= len(NAMES) or zero or (column, part) in found:
            raise BadEntries("A column batch has a buffer that does not exist, or one twice.")
        if at % ALIGN or at < BATCH.size + BUFFER.size * count or at > size or length > size - at:
            raise BadEntries(f"A buffer of column {NAMES[column]} does not lie within its batch.")
        found[column, part] = view[at : at + length]
    for column in sorted({column for column, _ in found}):
        if not _is_sound(column, rows, {part: data for (c, part), data in found.items() if c == column}, rising, texts):
            raise BadEntries(f"Column {NAMES[column]} of a column batch is not what {rows} rows need.")
    return Columns(rows, next_position, bool(flags & END), found)


def _is_sound(
    column: int,
    rows: int,
    parts: dict[int, memoryview],
    rising: Callable[[Bytes, int], bool],
    texts: Callable[[Bytes, Bytes], bool],
) -> bool:
    parts = dict(parts)
    validity = parts.pop(VALIDITY, None)
    if validity is not None and (column not in NULLABLE or len(validity) != (rows + 7) // 8):
        return False
    if column in MAPS:
        if parts.keys() != {OFFSETS, KEY_OFFSETS, KEY_VALUES, VALUE_OFFSETS, VALUE_VALUES}:
            return False
        pairs = len(parts[KEY_OFFSETS]) // 4 - 1
        return (
            _is_list(parts[OFFSETS], rows, pairs, rising)
            and _is_list(parts[KEY_OFFSETS], pairs, len(parts[KEY_VALUES]), rising)
            and _is_list(parts[VALUE_OFFSETS], pairs, len(parts[VALUE_VALUES]), rising)
            and texts(parts[KEY_OFFSETS], parts[KEY_VALUES])
            and texts(parts[VALUE_OFFSETS], parts[VALUE_VALUES])
        )
    if column in VARIABLE:
        return (
            parts.keys() == {OFFSETS, VALUES}
            and _is_list(parts[OFFSETS], rows, len(parts[VALUES]), rising)
            and (column not in TEXTS or texts(parts[OFFSETS], parts[VALUES]))
        )
    return parts.keys() == {VALUES} and len(parts[VALUES]) == rows * WIDTHS[column]


def _is_list(offsets: memoryview, count: int, last: int, rising: Callable[[Bytes, int], bool]) -> bool:
    return count >= 0 and len(offsets) == 4 * (count + 1) and rising(offsets, last)
