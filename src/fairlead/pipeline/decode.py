"""Bodies to values, as expressions: nothing here raises because of what a stranger sent.

A body that is not what it should be gives null, and `decode` keeps it in a column of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StringType, StructType

__all__ = ["body_json", "body_map", "decode", "json", "text"]

BROKEN = "__undecodable"


def text(body: Column | str) -> Column:
    """A body as text; null if it is not UTF-8."""
    return f.try_validate_utf8(_column(body).cast("string"))


def json(body: Column | str, schema: StructType | str) -> Column:
    """A JSON object as a struct; null if it is not JSON, or does not fit the schema ("a int, b string")."""
    struct = f.from_json(text(body), _with_broken(schema), {"columnNameOfCorruptRecord": BROKEN})
    return f.when(struct[BROKEN].isNull() & struct.isNotNull(), struct.dropFields(BROKEN))


def body_json(body: Column | str) -> Column:
    """A body that was sent as a `dict` or `list` (MessagePack) as JSON text; null if it is not one."""
    return arrow_udf(_json_texts, StringType())(_column(body))  # type: ignore[no-any-return,call-overload]


def body_map(body: Column | str) -> Column:
    """A body that was sent as a `dict` as map<string, string>: values that are not text as JSON; null if it is none."""
    return arrow_udf(_maps, "map<string,string>")(_column(body))  # type: ignore[no-any-return,call-overload]


def decode(
    frame: DataFrame, schema: StructType | str, *, body: str = "body", sent_as: Literal["json", "map"] = "json"
) -> DataFrame:
    """The frame with `value`, a struct, and `undecodable`: the body where it could not be decoded, else null.

    `sent_as="map"` is for bodies the client sent as a `dict`.
    """
    text_of = f.col(body) if sent_as == "json" else body_json(body).cast("binary")
    value = json(text_of, schema)
    return frame.withColumn("value", value).withColumn(
        "undecodable", f.when(f.col("value").isNull(), f.col(body).cast("binary"))
    )


def _column(body: Column | str) -> Column:
    return f.col(body) if isinstance(body, str) else body


def _with_broken(schema: StructType | str) -> StructType:
    parsed = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"A body's schema is a struct, not {parsed.simpleString()}.")
    return StructType([*parsed.fields]).add(BROKEN, StringType())


def _json_texts(bodies: pa.Array) -> pa.Array:
    return pa.array([_json_text(body.as_py()) for body in bodies], pa.string())


def _maps(bodies: pa.Array) -> pa.Array:
    return pa.array([_map(body.as_py()) for body in bodies], pa.map_(pa.string(), pa.string()))


def _json_text(body: bytes | None) -> str | None:
    value = _unpacked(body)
    return None if not isinstance(value, (dict, list)) else _as_json(value)


def _map(body: bytes | None) -> list[tuple[str, str | None]] | None:
    value = _unpacked(body)
    if not isinstance(value, dict):
        return None
    found: dict[str, str | None] = {}
    for key, item in value.items():
        item_text = None if item is None else item if isinstance(item, str) else _as_json(item)
        found[key if isinstance(key, str) else str(_as_json(key))] = item_text
    return list(found.items())


def _unpacked(body: bytes | None) -> Any:
    if body is None:
        return None
    try:
        return msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):  # TypeError: a key that cannot be one
        return None


def _as_json(value: object) -> str | None:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):  # something JSON has no word for
        return None
