"""Records of streams in types that Spark, pandas and every reader of Parquet have.

Nothing is lost on the way: of a timestamp in nanoseconds the microseconds stay under its name, and the nanoseconds
behind them (0 to 999) go to a column NAME_ns. Times of a day are whole numbers in their unit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from fairlead.errors import ConfigError
from fairlead.feeds.rows import arrow_schema
from fairlead.feeds.schema import Column, Schema

__all__ = ["NANOSECONDS", "plain", "plain_schema"]

NANOSECONDS: Final = "_ns"

_WIDER: Final = {
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "halffloat": pa.float32(),
    "fixed_size_binary": pa.binary(),
    "time64": pa.int64(),
}


@lru_cache(maxsize=256)
def plain_schema(schema: Schema) -> pa.Schema:
    """The columns that `plain` makes of records of this schema; ConfigError if two of them have one name."""
    fields = []
    for column, kind in zip(schema.columns, arrow_schema(schema).types, strict=True):
        fields.append(pa.field(column.name, _plain_type(column, kind)))
        if _has_nanoseconds(column):
            fields.append(pa.field(column.name + NANOSECONDS, pa.int16()))
    names = [field.name for field in fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"Columns of the stream's schema are in the way of each other: {', '.join(sorted(twice))}.")
    return pa.schema(fields)


def plain(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """What `rows.decode` made, in plain types."""
    wanted = plain_schema(schema)
    arrays: list[pa.Array] = []
    for column, values in zip(schema.columns, batch.columns, strict=True):
        kind = wanted.field(column.name).type
        if _has_nanoseconds(column):
            units = values.view(pa.int64())
            nulls = values.is_null().to_numpy(zero_copy_only=False)
            numbers = units.fill_null(0).to_numpy()
            micros = pa.array(numbers // 1000, mask=nulls)
            arrays += [micros.view(kind), pa.array((numbers % 1000).astype(np.int16), mask=nulls)]
        elif column.kind == "time64":
            arrays.append(values.view(pa.int64()))
        else:
            arrays.append(values if values.type == kind else values.cast(kind))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _has_nanoseconds(column: Column) -> bool:
    return column.kind == "timestamp" and column.unit == "ns"


def _plain_type(column: Column, kind: pa.DataType) -> pa.DataType:
    if column.kind == "timestamp":
        return pa.timestamp("us", column.zone or None)
    if column.kind == "decimal128" and column.scale < 0:
        if column.precision - column.scale > 38:
            raise ConfigError(f"Column {column.name} has more digits before the point than any reader takes.")
        return pa.decimal128(column.precision - column.scale, 0)
    if column.kind == "decimal128" and column.scale > column.precision:
        return pa.decimal128(column.scale, column.scale)
    return _WIDER.get(column.kind, kind)
