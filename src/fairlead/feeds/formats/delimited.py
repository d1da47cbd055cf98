"""The converter `csv`: a line of values for each message, with the columns that the configuration names.

::

    [convert]
    converter = "csv"
    options = { columns = [["symbol", "string"], ["price", "decimal128(18, 4)"]], delimiter = ";" }
"""

from __future__ import annotations

import csv

import pyarrow as pa

from fairlead.errors import ConfigError
from fairlead.feeds.formats.texts import Faults, columns_of, gives_of, typed_batch
from fairlead.feeds.sources.events import BODY, SOURCE_SCHEMA
from fairlead.pipeline.converters import Convert, converter, factory

__all__ = ["delimited"]


@factory
def delimited(*, columns: object, delimiter: str = ",", header: bool = False) -> Convert:
    """Values as texts (quoted as in RFC 4180); an empty one is null. With `header` sequence 1 is left out."""
    schema = columns_of(columns)
    gives = gives_of(schema)
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        raise ConfigError(f"The option delimiter is one ASCII character, not {delimiter!r}.")
    width = len(schema.names)

    @converter(takes=SOURCE_SCHEMA, gives=gives)
    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        faults: Faults = {}
        places: list[int] = []
        rows: list[list[str]] = []
        for place, body in enumerate(batch.column(BODY).to_pylist()):
            if header and place == 0 and batch.column(0)[0].as_py() == 1:
                continue
            try:
                rows.append(_values(body, delimiter, width))
                places.append(place)
            except ValueError as error:
                faults[place] = str(error)
        texts: list[list[str | None]] = [[row[column] for row in rows] for column in range(width)]
        return typed_batch(batch, places, texts, gives, faults)

    return convert


def _values(body: bytes, delimiter: str, width: int) -> list[str]:
    """The values of one line; ValueError where it is not right."""
    try:
        line = body.decode().removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if '"' not in line:
        values = line.split(delimiter)
    else:
        try:
            values = next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            raise ValueError(f"it is not CSV: {error}") from None
    if len(values) != width:
        raise ValueError(f"it has {len(values)} values, not {width}")
    return values
