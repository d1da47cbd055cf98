"""What a feed published, as typed columns of a frame: `records(frame, schema)`.

::

    frame = spark.read.format("fairlead").option("destination", "prices.emea").load()
    records(frame, '[["symbol", "string"], ["price", "int64"]]').groupBy("symbol").max("price")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.errors import BadRow, ConfigError
from fairlead.feeds import rows
from fairlead.feeds.schema import Schema
from fairlead.pipeline.feed_types import plain, plain_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["UNDECODABLE", "decoded", "records"]

UNDECODABLE: Final = "undecodable"


def records(frame: DataFrame, schema: Schema | str, *, body: str = "body") -> DataFrame:
    """The frame with the columns of the records in place of `body`.

    A body that is no record of this schema stays, in the column `undecodable`, which is null elsewhere.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    made = Schema.from_json(schema) if isinstance(schema, str) else schema
    added = pa.schema([*plain_schema(made), pa.field(UNDECODABLE, pa.binary())])
    if body not in frame.columns:
        raise ConfigError(f"The frame has no column {body!r}. It has: {', '.join(frame.columns)}.")
    kept = [name for name in frame.columns if name != body]
    if clash := set(kept) & set(added.names):
        raise ConfigError(f"The frame and the records both have {', '.join(sorted(clash))}: rename or drop it first.")
    struct = StructType([frame.schema[name] for name in kept] + from_arrow_schema(added).fields)
    return frame.mapInArrow(_mapping(made.to_json(), kept, body), struct)


def _mapping(
    schema: str, kept: Sequence[str], body: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = Schema.from_json(schema)
        for batch in batches:
            typed, undecodable = decoded(batch.column(body), made)
            yield pa.RecordBatch.from_arrays(
                [*(batch.column(name) for name in kept), *typed.columns, undecodable],
                names=[*kept, *typed.schema.names, UNDECODABLE],
            )

    return convert


def decoded(bodies: pa.Array, schema: Schema) -> tuple[pa.RecordBatch, pa.Array]:
    """The records in plain types, and the bodies that are none; where those are, the records are null."""
    if bodies.null_count == 0:
        try:
            return plain(rows.decode(bodies, schema), schema), pa.nulls(len(bodies), pa.binary())
        except BadRow:
            pass
    good = np.array([_is_row(body.as_py(), schema) for body in bodies], np.bool_)
    typed = plain(rows.decode(bodies.filter(pa.array(good)), schema), schema)
    places = pa.array(np.cumsum(good) - 1, mask=~good)
    return typed.take(places), pc.if_else(pa.array(good), pa.scalar(None, bodies.type), bodies).cast(pa.binary())


def _is_row(body: bytes | None, schema: Schema) -> bool:
    if body is None:
        return False
    try:
        schema.decode_tuple(body)
    except BadRow:
        return False
    return True
