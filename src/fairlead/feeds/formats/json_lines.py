"""The converter `json`: an object for each message, with the members that the configuration names as columns.

Members that are not named are left out, those that are missing are null. A list of objects gives as many parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from fairlead.feeds.formats.texts import Faults, columns_of, gives_of, typed_batch
from fairlead.feeds.sources.events import BODY, SOURCE_SCHEMA
from fairlead.pipeline.converters import Convert, converter, factory

__all__ = ["json_lines"]

PARTS_MAX: Final = 4096
DEPTH_MAX: Final = 64  # beyond that it would depend on the caller's stack whether it can be read
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
Textual = Callable[[Any], "str | None"]


@factory
def json_lines(*, columns: object) -> Convert:
    """Values have the JSON type of their column: a number for numbers, a text for texts, dates and times."""
    schema = columns_of(columns)
    gives = gives_of(schema)
    readers = [(field.name, _reader(field)) for field in list(gives)[1:]]
    decode = msgspec.json.Decoder(float_hook=Decimal).decode  # they keep their digits

    def rows_of(body: bytes) -> list[list[str | None]]:
        if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _depth(body) > DEPTH_MAX:
            raise ValueError("it is nested too deeply")
        try:
            found = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError):
            raise ValueError("it is not JSON") from None
        parts = found if isinstance(found, list) else [found]
        if len(parts) > PARTS_MAX or not all(isinstance(part, dict) for part in parts):
            raise ValueError("it is no object, nor a list of objects")
        return [[read(part.get(name)) for name, read in readers] for part in parts]

    @converter(takes=SOURCE_SCHEMA, gives=gives)
    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        faults: Faults = {}
        rows: list[list[str | None]] = []
        places: list[int] = []
        for place, body in enumerate(batch.column(BODY).to_pylist()):
            try:
                made = rows_of(body)
            except ValueError as error:
                faults[place] = str(error)
            else:
                rows += made
                places += [place] * len(made)
        texts = [[row[column] for row in rows] for column in range(len(readers))]
        return typed_batch(batch, places, texts, gives, faults)

    return convert


def _reader(field: pa.Field) -> Textual:
    """A value of this column as text; ValueError if JSON has it as something else."""
    kind = field.type
    types: tuple[type, ...]
    if pa.types.is_boolean(kind):
        types = (bool,)
    elif pa.types.is_integer(kind):
        types = (int,)
    elif pa.types.is_floating(kind):
        types = (int, Decimal)
    elif pa.types.is_decimal(kind):
        types = (int, Decimal, str)
    else:
        types = (str,)

    def read(value: Any) -> str | None:
        if value is None:
            return None
        if type(value) not in types:
            raise ValueError(f"{field.name} is no {kind}")
        if value is True or value is False:
            return "true" if value else "false"
        if type(value) is Decimal and pa.types.is_decimal(kind):
            return f"{value:f}" if -60 < value.adjusted() < 60 else "too large"
        return str(value)

    return read


def _depth(body: bytes) -> int:
    deepest = depth = 0
    for token in _STRUCTURE.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest
