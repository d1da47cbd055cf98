"""Rows of a schema and Arrow batches, a whole batch at a time: what converters publish, and what analysts read.

Byte for byte the same as `schema.Schema` makes one at a time; no Python is run for a single row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias

from fairlead.errors import BadParameter, BadRow, ConfigError
from fairlead.feeds.schema import Column, Schema

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise ConfigError(f"Batches of records need Arrow: pip install 'fairlead[feeds]' ({missing}).") from None

compiled: Any = None
if os.environ.get("FAIRLEAD_PURE", "0") in ("", "0"):
    try:
        from fairlead.feeds import _rows

        compiled = _rows
    except ImportError:
        pass

pa.array(np.zeros(1))
"""With its first array Arrow looks for pandas, which takes half a second: now, and not when the first message comes."""

__all__ = ["arrow_schema", "decode", "encode", "schema_of"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Ends: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_KIND: Final = {"bool": 1, "string": 2, "binary": 2}
_BATCH_BYTES_MAX: Final = (1 << 31) - 1
"""Of all rows of a batch: where Arrow's 32-bit offsets end."""


@lru_cache(maxsize=256)
def schema_of(schema: pa.Schema) -> Schema:
    """The schema of rows made from such batches; BadParameter where a type cannot be in a row."""
    return Schema.of((field.name, str(field.type)) for field in schema)


@lru_cache(maxsize=256)
def arrow_schema(schema: Schema) -> pa.Schema:
    """The schema of batches made from such rows."""
    return pa.schema([(column.name, _arrow_type(column)) for column in schema.columns])


def encode(batch: pa.RecordBatch) -> tuple[bytes, Ends]:
    """The bodies of all rows, one behind the other, and where each of them ends."""
    schema = schema_of(batch.schema)
    count = batch.num_rows
    if count == 0:
        return b"", np.empty(0, np.uint64)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadParameter(f"The batch to be published is not sound: {error}.") from None
    if compiled is not None:
        return _compiled(batch, schema, count)
    fixed = np.zeros(count, _layout(schema))
    raw = fixed.view(np.uint8).reshape(count, schema.fixed_bytes)
    tails, size = [], fixed.nbytes
    at = schema.bitmap_bytes
    for index, (column, values) in enumerate(zip(schema.columns, batch.columns, strict=True)):
        if column.is_variable:
            pieces = values.view(pa.binary())
            tails.append(pc.fill_null(pieces, b"") if pieces.null_count else pieces)
            lengths = np.diff(_offsets(tails[-1]))
            size += int(lengths.sum(dtype=np.int64))
            fixed[f"c{index}"] = lengths
        else:
            fixed[f"c{index}"] = _numbers(column, values)
        if values.null_count:
            nulls = values.is_null().to_numpy(zero_copy_only=False)
            raw[nulls, at : at + column.width] = 0  # so that both adapters make the same bytes (STR-11)
            raw[:, index >> 3] |= nulls.view(np.uint8) << (index & 7)
        at += column.width
    if size > _BATCH_BYTES_MAX:
        raise BadParameter(f"The rows of this batch have {size} bytes: make smaller batches.")
    if not tails:
        return fixed.tobytes(), np.arange(1, count + 1, dtype=np.uint64) * np.uint64(schema.fixed_bytes)
    starts = np.arange(count + 1, dtype=np.int32) * np.int32(schema.fixed_bytes)
    heads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(raw)])
    joined = pc.binary_join_element_wise(heads, *tails, b"")
    return _content(joined).to_pybytes(), _offsets(joined)[1:].astype(np.uint64)


def _compiled(batch: pa.RecordBatch, schema: Schema, count: int) -> tuple[bytes, Ends]:
    """The same by the compiled twin, which costs next to nothing for a small batch."""
    assert compiled is not None
    columns = [
        (_KIND.get(column.kind, 0), column.width, values.offset, values.buffers())
        for column, values in zip(schema.columns, batch.columns, strict=True)
    ]
    size, data, ends = compiled.encode(count, columns, _BATCH_BYTES_MAX)
    if data is None or ends is None:
        raise BadParameter(f"The rows of this batch have {size} bytes: make smaller batches.")
    return data, np.frombuffer(ends, np.uint64)


def decode(bodies: pa.Array | pa.ChunkedArray | Sequence[bytes], schema: Schema) -> pa.RecordBatch:
    """The rows as a batch; BadRow names the first that is none."""
    column = _binary(bodies)
    wanted = arrow_schema(schema)
    if len(column) == 0:
        return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in wanted.types], schema=wanted)
    try:
        return _decoded(column, schema, wanted)
    except (_Unsound, pa.ArrowInvalid) as error:
        _blame(column, schema, error)


class _Unsound(Exception):
    """Some row is wrong; which one is found out one at a time."""


def _decoded(column: pa.Array, schema: Schema, wanted: pa.Schema) -> pa.RecordBatch:
    count = len(column)
    lengths = np.diff(_offsets(column))
    if column.null_count or lengths.min() < schema.fixed_bytes:
        raise _Unsound
    tails: dict[int, pa.Array] = {}
    if lengths.max() == schema.fixed_bytes and not any(made.is_variable for made in schema.columns):
        rows = np.frombuffer(_content(column), _layout(schema))
    else:
        widths = np.column_stack((np.full(count, schema.fixed_bytes), lengths - schema.fixed_bytes))
        head, tail = _cut(column, widths)
        rows = np.frombuffer(_content(head), _layout(schema))
        tails = _tails(tail, schema, rows, lengths)
    bitmaps = rows["bitmap"]
    has_nulls = bool(bitmaps.any())
    if has_nulls and int(bitmaps[:, -1].max()) >> ((len(schema.columns) - 1) % 8 + 1):
        raise _Unsound
    arrays = []
    for index, (made, kind) in enumerate(zip(schema.columns, wanted.types, strict=True)):
        values, validity = rows[f"c{index}"], None
        if has_nulls:
            valid = ~bitmaps[:, index >> 3] >> (index & 7) & 1
            validity = _bits(valid)
            if made.is_variable or made.kind == "bool":
                values = values * (made.is_variable ^ valid)  # a null has no length, and whatever else in its place
        if made.is_variable:
            if has_nulls and values.any():
                raise _Unsound
            buffers = tails[index].buffers()[1:]
        elif made.kind == "bool":
            if values.max() > 1:
                raise _Unsound
            buffers = [_bits(values)]
        else:
            buffers = [pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))]
        arrays.append(pa.Array.from_buffers(kind, count, [validity, *buffers]))
    batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    batch.validate(full=True)  # UTF-8, times of a day, digits of decimals
    return batch


def _tails(tail: pa.Array, schema: Schema, rows: Array, lengths: Array) -> dict[int, pa.Array]:
    """The bytes of the strings and binaries, by the index of their column."""
    indexes = [index for index, made in enumerate(schema.columns) if made.is_variable]
    sizes = np.zeros((len(rows), len(indexes)), np.int64)
    for place, index in enumerate(indexes):
        sizes[:, place] = rows[f"c{index}"]
    if (sizes.sum(axis=1) != lengths - schema.fixed_bytes).any():
        raise _Unsound
    return {indexes[0]: tail} if len(indexes) == 1 else dict(zip(indexes, _cut(tail, sizes), strict=True))


def _cut(column: pa.Array, widths: Array) -> list[pa.Array]:
    """Every value cut into pieces of these widths, which together are as long as it: a column for each piece."""
    each = widths.shape[1]
    offsets = np.zeros(widths.size + 1, np.int32)
    np.cumsum(widths.reshape(-1), out=offsets[1:])
    pieces = pa.Array.from_buffers(pa.binary(), widths.size, [None, pa.py_buffer(offsets), _content(column)])
    return [pieces.take(pa.array(np.arange(place, widths.size, each))) for place in range(each)]


def _blame(column: pa.Array, schema: Schema, error: Exception) -> NoReturn:
    """BadRow for the first row that is wrong."""
    for number, body in enumerate(column):
        if not body.is_valid:
            raise BadRow(f"Row {number}: there is no body.") from None
        try:
            schema.decode_tuple(body.as_py())
        except BadRow as wrong:
            raise BadRow(f"Row {number}: {wrong}") from None
    raise BadRow(f"These are no rows of this schema: {error}.") from None


def _binary(bodies: pa.Array | pa.ChunkedArray | Sequence[bytes]) -> pa.Array:
    if isinstance(bodies, pa.ChunkedArray):
        bodies = bodies.combine_chunks()
    if not isinstance(bodies, pa.Array):
        return pa.array(bodies, pa.binary())
    if bodies.type in (pa.large_binary(), pa.binary_view()):
        if bodies.nbytes > _BATCH_BYTES_MAX:
            raise BadParameter(f"{bodies.nbytes} bytes of bodies: read them in smaller batches.")
        bodies = bodies.cast(pa.binary())
    if bodies.type != pa.binary():
        raise BadParameter(f"Bodies are of type binary, not {bodies.type}.")
    return bodies


@lru_cache(maxsize=256)
def _layout(schema: Schema) -> np.dtype[np.void]:
    """The fixed part of a row."""
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [("bitmap", "u1", (schema.bitmap_bytes,))]
    for index, column in enumerate(schema.columns):
        fields.append((f"c{index}", f"V{column.width}" if column.code[-1] == "s" else f"<{_NUMPY[column.code]}"))
    return np.dtype(fields)


_NUMPY: Final = {
    **dict(zip("bhiq", ("i1", "i2", "i4", "i8"), strict=True)),
    **dict(zip("BHIQ", ("u1", "u2", "u4", "u8"), strict=True)),
    **dict(zip("efd", ("f2", "f4", "f8"), strict=True)),
}


def _arrow_type(column: Column) -> pa.DataType:
    match column.kind:
        case "timestamp":
            return pa.timestamp(column.unit, column.zone or None)
        case "time64":
            return pa.time64(column.unit)
        case "decimal128":
            return pa.decimal128(column.precision, column.scale)
        case "fixed_size_binary":
            return pa.binary(column.width)
        case _:
            return pa.type_for_alias(column.type)


def _numbers(column: Column, values: pa.Array) -> Array:
    """What lies in a column, whatever is where nulls are."""
    if column.kind == "bool":
        values = values.cast(pa.uint8())
    kind = f"V{column.width}" if column.code[-1] == "s" else f"<{_NUMPY[column.code]}"
    return np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values)]


def _offsets(column: pa.Array) -> Array:
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _content(column: pa.Array) -> pa.Buffer:
    """The bytes of all values of a binary column, which lie one behind the other."""
    offsets = _offsets(column)
    data = column.buffers()[2]
    return pa.py_buffer(b"") if data is None else data[int(offsets[0]) : int(offsets[-1])]


def _bits(values: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
