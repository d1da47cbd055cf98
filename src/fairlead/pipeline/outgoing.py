"""Rows to messages: what a record batch of the sink becomes, as entries for each destination.

Only `body` (or `value`) is needed. Bodies, keys, priorities and times never become Python objects; headers and
properties do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.client.bulk.unconfirmed import ENTRIES_BYTES_MAX
from fairlead.errors import BadParameter, BodyTooLarge
from fairlead.pipeline.sections import sections_of
from fairlead.wire.column_codec import entries_of
from fairlead.wire.durable import PRIORITY_DEFAULT
from fairlead.wire.entry_columns import Ragged

__all__ = ["ACCEPTED", "ENTRIES_BYTES_MAX", "TOLD", "entries_from"]

PIECE_BYTES: Final = 512 * 1024
"""Longer pieces are made of fresh memory every time, which costs more than the copying."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        _is_text(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


_WHOLE: Final[tuple[Callable[[pa.DataType], Any], str]] = (pa.types.is_integer, "an integer")
_BYTES: Final = (_is_bytes, "binary or a string")
_TEXT: Final = (_is_text, "a string")
_MAP: Final = (_is_map, "a map of strings to strings")
_TIME: Final = (_is_time, "a timestamp with a time zone")

ACCEPTED: Final[dict[str, tuple[Callable[[pa.DataType], Any], str]]] = {
    "body": _BYTES,
    "value": _BYTES,
    "destination": _TEXT,
    "key": _BYTES,
    "headers": _MAP,
    "properties": _MAP,
    "header_bytes": _BYTES,
    "priority": _WHOLE,
    "expires": _TIME,
    "ttl_ms": _WHOLE,
    "deliver_at": _TIME,
    "delay_ms": _WHOLE,
    "stream_id": _TEXT,
    "stream_sequence": _WHOLE,
}
"""The columns of which messages are made, and what they may be."""
TOLD: Final = frozenset(("order_number", "message_id", "published", "arrived", "delivery_count", "size"))
"""Columns the server fills; those of a message that was read may be left in, and say nothing."""


class _Prepared(NamedTuple):
    """The columns of all rows, those of one destination next to each other."""

    body: Ragged
    key: Ragged | None
    headers: Ragged | None
    priority: pa.Buffer | None
    ttl_ms: pa.Buffer | None
    delay_ms: pa.Buffer | None
    numbers: pa.Buffer | None


def entries_from(
    batch: pa.RecordBatch, *, also: str = "", most_bytes: int = PIECE_BYTES, now_ms: int | None = None
) -> Iterator[tuple[str, bytearray, int]]:
    """Destination, entries, and how many, until all rows are done; rows of one destination keep their order.

    `also` is where rows go that do not say where. BadParameter or BodyTooLarge says which column or row is to blame.
    """
    columns = _columns(batch)
    if not batch.num_rows:
        return
    groups, taken = _groups(columns.pop("destination", None), also, batch.num_rows)
    if taken is not None:
        columns = {name: column.take(taken) for name, column in columns.items()}
    numbers = None if taken is None else taken.cast(pa.int64()).buffers()[1]
    ready = _prepare(columns, batch.num_rows, numbers, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    for destination, first, beyond in groups:
        while first < beyond:
            entries, count = entries_of(beyond, **ready._asdict(), first=first, most_bytes=most_bytes)
            if len(entries) > ENTRIES_BYTES_MAX and count == 1:
                row = first if taken is None else taken[first].as_py()
                raise BodyTooLarge(
                    f"Row {row}: the message takes {len(entries)} bytes, more than {ENTRIES_BYTES_MAX}.",
                    size=len(entries),
                    limit=ENTRIES_BYTES_MAX,
                )
            yield destination, entries, count
            first += count


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """By name, each of a type it may have."""
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in TOLD:
            continue
        if name not in ACCEPTED:
            raise BadParameter(f"A message has no column {name!r}. There are: {', '.join(ACCEPTED)}.")
        if name in columns:
            raise BadParameter(f"There are two columns {name!r}.")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        is_one, words = ACCEPTED[name]
        if pa.types.is_null(column.type):
            continue
        if not is_one(column.type):
            raise BadParameter(f"Column {name} has to be {words}, not {column.type}.")
        columns[name] = column
    for one, other in (("body", "value"), ("expires", "ttl_ms"), ("deliver_at", "delay_ms")):
        if one in columns and other in columns:
            raise BadParameter(f"Columns {one} and {other} say the same: leave one out.")
    if "value" in columns:
        columns["body"] = columns.pop("value")
    if "body" not in columns:
        raise BadParameter("There is no column 'body' (or 'value'): binary or a string.")
    return columns


def _groups(column: pa.Array | None, also: str, rows: int) -> tuple[list[tuple[str, int, int]], pa.Array | None]:
    """Destinations with their rows, from one to before another; and the order in which to take rows first, or None."""
    if column is not None and also:
        column = column.fill_null(also)
    if column is None:
        if not also:
            raise BadParameter("Nothing says where to: there is neither a column nor an option 'destination'.")
        return [(also, 0, rows)], None
    if column.null_count:
        raise BadParameter(f"Row {pc.index(column.is_null(), True).as_py()}: the destination is null.")
    coded = column.cast(pa.string()).dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], 0, rows)], None
    taken = pc.sort_indices(coded.indices)  # a stable sort
    groups, first = [], 0
    for count in sorted(pc.value_counts(coded.indices).to_pylist(), key=lambda one: one["values"]):
        groups.append((names[count["values"]], first, first + count["counts"]))
        first += count["counts"]
    return groups, taken


def _prepare(columns: dict[str, pa.Array], rows: int, numbers: pa.Buffer | None, now_ms: int) -> _Prepared:
    ttl_ms, delay_ms = _times(columns, now_ms)
    sections = sections_of(columns, rows, lambda row: row if numbers is None else _number(numbers, row))
    return _Prepared(
        _ragged(columns["body"]),
        _ragged(columns["key"]) if "key" in columns else None,
        None if sections is None else _ragged(sections),
        _fixed(columns["priority"], "priority", pa.int32(), PRIORITY_DEFAULT) if "priority" in columns else None,
        ttl_ms,
        delay_ms,
        numbers,
    )


def _number(numbers: pa.Buffer, row: int) -> int:
    return int(memoryview(numbers).cast("b").cast("q")[row])


def _times(columns: dict[str, pa.Array], now_ms: int) -> tuple[pa.Buffer | None, pa.Buffer | None]:
    """Time to live and delay, of which the first counts from the end of the second."""
    ttl_ms = delay_ms = None
    if "delay_ms" in columns:
        delay_ms = _whole(columns["delay_ms"], "delay_ms", pa.int64()).fill_null(0)
    elif "deliver_at" in columns:
        delay_ms = pc.max_element_wise(pc.subtract(_ms(columns["deliver_at"]), now_ms), 0).fill_null(0)
    if "ttl_ms" in columns:
        ttl_ms = _whole(columns["ttl_ms"], "ttl_ms", pa.int64()).fill_null(0)
    elif "expires" in columns:
        # What expired before it was sent lives for one millisecond: 0 would be for ever.
        left = pc.subtract(_ms(columns["expires"]), now_ms)
        if delay_ms is not None:
            left = pc.subtract(left, delay_ms)
        ttl_ms = pc.if_else(left.is_null(), 0, pc.max_element_wise(left, 1))
    return _buffer(ttl_ms), _buffer(delay_ms)


def _ms(column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _whole(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise BadParameter(f"Column {name} does not fit into {kind}: {error}") from None


def _fixed(column: pa.Array, name: str, kind: pa.DataType, default: int) -> pa.Buffer | None:
    return _buffer(_whole(column, name, kind).fill_null(default))


def _buffer(column: pa.Array | None) -> pa.Buffer | None:
    """Its values, from its first row on."""
    if column is None:
        return None
    width = column.type.bit_width // 8
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


def _ragged(column: pa.Array) -> Ragged:
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.binary())
        kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    _, offsets, values = column.buffers()
    places = memoryview(offsets).cast("b").cast("q" if wide else "i")
    validity = column.is_valid().buffers()[1] if column.null_count else None  # a bitmap that begins with our first row
    return places[column.offset : column.offset + len(column) + 1], b"" if values is None else values, validity
