"""The columns of a message as Spark names and types them; docs/pipeline.md has the table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fairlead.errors import ConfigError
from fairlead.pipeline.arrow import SCHEMA, schema_of

__all__ = ["arrow_schema", "fitted", "names_of", "struct_of"]


def struct_of(names: Sequence[str]) -> StructType:
    """Spark's schema of these columns."""
    return from_arrow_schema(schema_of(names))


def names_of(schema: StructType) -> tuple[str, ...]:
    """Which columns a reader is asked for; ConfigError where somebody's own `.schema(…)` wants what there is not."""
    for field in schema.fields:
        if field.name not in SCHEMA.names:
            raise ConfigError(f"There is no column {field.name!r}. There are: {', '.join(SCHEMA.names)}.")
        (there,) = struct_of((field.name,)).fields
        if field.dataType.simpleString() != there.dataType.simpleString():
            raise ConfigError(
                f"Column {field.name} is {there.dataType.simpleString()}, not {field.dataType.simpleString()}."
            )
        if there.nullable and not field.nullable:
            raise ConfigError(f"Column {field.name} may be null.")
    return tuple(schema.fieldNames())


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares the first batch with."""
    return to_arrow_schema(schema, timezone="UTC")


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same buffers under Spark's schema, which may be laxer about nulls than ours."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
