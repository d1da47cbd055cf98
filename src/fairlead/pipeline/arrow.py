"""Column batches as Arrow: the schema of what is read, and record batches that lie where the bytes came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from fairlead.errors import ConfigError
from fairlead.pipeline.outgoing import entries_from
from fairlead.wire import column_batch as layout
from fairlead.wire.column_batch import NAMES, Columns

__all__ = ["SCHEMA", "entries_from", "mask_of", "record_batch", "schema_of"]

_TIME: Final = pa.timestamp("us", "UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
_PAIR: Final = pa.struct([_MAP.key_field, _MAP.item_field])

SCHEMA: Final = pa.schema(
    [
        pa.field("destination", pa.string(), nullable=False),
        pa.field("order_number", pa.int64(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("headers", _MAP, nullable=False),
        pa.field("properties", _MAP, nullable=False),
        pa.field("header_bytes", pa.binary(), nullable=False),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("published", _TIME, nullable=False),
        pa.field("arrived", _TIME, nullable=False),
        pa.field("expires", _TIME),
        pa.field("delivery_count", pa.int32(), nullable=False),
        pa.field("stream_id", pa.string()),
        pa.field("stream_sequence", pa.int64()),
        pa.field("size", pa.int64(), nullable=False),
    ]
)
"""All columns of a message (docs/durable.md, section 8), and where it was read."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order."""
    for name in columns:
        if name not in SCHEMA.names:
            raise ConfigError(f"There is no column {name!r}. There are: {', '.join(SCHEMA.names)}.")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"A column is named twice: {', '.join(columns)}.")
    return pa.schema([SCHEMA.field(name) for name in columns])


def mask_of(names: Sequence[str]) -> int:
    """The bits to ask for; the destination is known without asking."""
    schema_of(names)
    return sum(1 << NAMES.index(name) for name in names if name != "destination")


def record_batch(columns: Columns, destination: str, names: Sequence[str]) -> pa.RecordBatch:
    """These columns, in this order, without a copy."""
    schema = schema_of(names)
    arrays = [
        pa.repeat(pa.scalar(destination, pa.string()), columns.rows)
        if field.name == "destination"
        else _array(columns, NAMES.index(field.name), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(columns: Columns, column: int, kind: pa.DataType) -> pa.Array:
    if not columns.mask >> column & 1:
        raise ConfigError(f"Column {NAMES[column]} was not asked for.")

    def buffers(*parts: int) -> list[pa.Buffer | None]:
        found = (columns.buffers.get((column, part)) for part in parts)
        return [None if data is None else pa.py_buffer(data) for data in found]

    if column in layout.MAPS:
        pairs = len(columns.buffers[column, layout.KEY_OFFSETS]) // 4 - 1
        children = [
            pa.Array.from_buffers(pa.string(), pairs, buffers(layout.VALIDITY, *parts))
            for parts in ((layout.KEY_OFFSETS, layout.KEY_VALUES), (layout.VALUE_OFFSETS, layout.VALUE_VALUES))
        ]
        entries = pa.Array.from_buffers(_PAIR, pairs, [None], children=children)
        return pa.Array.from_buffers(kind, columns.rows, [None, *buffers(layout.OFFSETS)], children=[entries])
    if column in layout.VARIABLE:
        return pa.Array.from_buffers(kind, columns.rows, buffers(layout.VALIDITY, layout.OFFSETS, layout.VALUES))
    return pa.Array.from_buffers(kind, columns.rows, buffers(layout.VALIDITY, layout.VALUES))
