"""Texts to typed columns, a whole column at a time: which rows have no such value is found without trying each.

The forms are fixed and depend on no locale: whole numbers and decimals with a point, true and false, ISO 8601 dates and
times (UTC where nothing else is said). An empty text is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fairlead.errors import BadParameter, ConfigError
from fairlead.feeds.rows import arrow_schema
from fairlead.feeds.schema import Schema
from fairlead.feeds.sources.events import SEQUENCE
from fairlead.pipeline.converters import Reject

Faults: TypeAlias = dict[int, str]
"""By the row of the batch: why it cannot be converted."""

__all__ = ["Faults", "columns_of", "gives_of", "typed", "typed_batch"]

_INTEGER: Final = r"^[+-]?[0-9]{1,20}$"
_DECIMAL: Final = r"^[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})$"
_FLOAT: Final = r"^[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?$|^[+-]?(nan|inf)$"
_BOOL: Final = r"^(true|false|1|0)$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z?$"
_TIME: Final = r"^[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?$"


def columns_of(columns: object) -> Schema:
    """The option `columns` of a converter: [["symbol", "string"], ["price", "int64"]]."""
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    try:
        return Schema.of([(str(name), str(kind)) for name, kind in pairs])  # type: ignore[attr-defined]
    except (TypeError, ValueError, BadParameter) as error:
        raise ConfigError(f'The option columns is a list such as [["symbol", "string"], …]: {error}') from None


def gives_of(schema: Schema) -> pa.Schema:
    """What a converter with these columns gives."""
    if SEQUENCE in schema.names:
        raise ConfigError(f"A column cannot be called {SEQUENCE!r}: that is the source's own.")
    return pa.schema([pa.field(SEQUENCE, pa.int64(), nullable=False), *arrow_schema(schema)])


def typed_batch(
    batch: pa.RecordBatch, places: Sequence[int], texts: Sequence[list[str | None]], gives: pa.Schema, faults: Faults
) -> pa.RecordBatch:
    """Rows with these texts, a list for each column; `places` are the rows of `batch` that they were made from.

    If any message has a fault, `Reject` is raised with the rows of the others; some prove to have one only here.
    """
    at = np.asarray(places, np.int64)
    columns = [batch.column(0).take(pa.array(at))]
    for field, values in zip(list(gives)[1:], texts, strict=True):
        column, bad = typed(pa.array(values, pa.string()), field.type)
        for row in np.nonzero(bad)[0]:
            faults.setdefault(int(at[row]), f"{field.name} is no {field.type}")
        columns.append(column)
    made = pa.RecordBatch.from_arrays(columns, schema=gives)
    if not faults:
        return made
    raise Reject(faults, made.filter(pa.array(~np.isin(at, list(faults)))))


def typed(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The column, and which of its texts are no such value (null in the column)."""
    if pa.types.is_string(kind):
        return texts, np.zeros(len(texts), bool)
    if pa.types.is_binary(kind):
        return texts.cast(pa.binary()), np.zeros(len(texts), bool)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    good = pc.fill_null(pc.match_substring_regex(texts, _form(kind)), True)
    bad = ~np.asarray(good.to_numpy(zero_copy_only=False), bool)
    if bad.any():
        texts = pc.if_else(good, texts, None)
    try:
        return _cast(texts, kind), bad
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _one_by_one(texts, kind, bad)


def _form(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return _BOOL
    if pa.types.is_integer(kind):
        return _INTEGER
    if pa.types.is_floating(kind):
        return _FLOAT
    if pa.types.is_decimal(kind):
        return _DECIMAL
    if pa.types.is_date(kind):
        return _DATE
    if pa.types.is_timestamp(kind):
        return _TIMESTAMP
    if pa.types.is_time(kind):
        return _TIME
    raise ConfigError(f"A text cannot become a {kind}.")


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        texts = pc.replace_substring_regex(texts, r"^\+", "")
        return texts.cast(kind)
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring_regex(texts, "Z$", "")
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    if pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", texts, "T").cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def _one_by_one(texts: pa.Array, kind: pa.DataType, bad: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The form was right and the value is not (a number too large, the 31st of April): look for it by halving."""
    if len(texts) > 1:
        half = len(texts) // 2
        pieces: list[Any] = []
        for part, known in ((texts.slice(0, half), bad[:half]), (texts.slice(half), bad[half:])):
            try:
                pieces.append((_cast(part, kind), known))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                pieces.append(_one_by_one(part, kind, known))
        return pa.concat_arrays([piece for piece, _ in pieces]), np.concatenate([known for _, known in pieces])
    return pa.nulls(len(texts), kind), np.ones(len(texts), bool)
