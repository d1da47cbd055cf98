"""One function, two engines: what turns messages of a feed into records, live and over years of history alike.

::

    @converter(takes=pa.schema([("body", pa.binary())]), gives=pa.schema([("price", pa.float64())]))
    def prices(batch: pa.RecordBatch) -> pa.RecordBatch: ...

A live adapter calls `run(load("my_feeds:prices"), batches)`, Spark `convert(frame, load("my_feeds:prices"))`. The
function depends on nothing but its batch, for it may be called again with parts of one: a row it cannot convert is
found by halving, and goes to the side with the reason; the others are converted. `Reject` names such rows at once.

Packages register converters under short names (entry points, group `fairlead.converters`): `load("itch")`. One that
needs options is made by a `factory`: `load("csv", {"columns": [["price", "int64"]]})`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Converted",
    "Converter",
    "Reject",
    "as_map_in_arrow",
    "convert",
    "converter",
    "factory",
    "load",
    "output_schema",
    "rejected_schema",
    "run",
    "split",
]

Convert: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | Iterable[pa.RecordBatch]"]
F = TypeVar("F", bound=Convert)
G = TypeVar("G", bound=Callable[..., Convert])

DECLARED = "__fairlead_converter__"
FACTORY = "__fairlead_converters__"
ENTRY_POINTS = "fairlead.converters"
READY_MADE = {
    "csv": "fairlead.feeds.formats.delimited:delimited",
    "fix": "fairlead.feeds.formats.fix:fix",
    "itch": "fairlead.feeds.formats.itch:itch",
    "json": "fairlead.feeds.formats.json_lines:json_lines",
}
"""Our own entry points, found in a tree that was never installed too."""
REASON = "reason"
REJECTED = "rejected"
REASON_CHARACTERS_MAX = 500
NO_REASONS = pa.nulls(0, pa.string())


class Reject(Exception):
    """Raised by a converter that knows which rows it cannot convert: `Reject({3: "no price"})`.

    With `rows`, all the others converted, it is not called again for them.
    """

    def __init__(self, reasons: Mapping[int, str], rows: pa.RecordBatch | None = None) -> None:
        super().__init__(f"{len(reasons)} rows")
        self.reasons = dict(reasons)
        self.rows = rows


class Converter(NamedTuple):
    """A converting function and what it declares about itself."""

    function: Convert
    takes: pa.Schema
    gives: pa.Schema
    name: str


class Converted(NamedTuple):
    """What became of one batch: rows as declared, and what was not converted, with the reason in its last column."""

    rows: list[pa.RecordBatch]
    rejected: pa.RecordBatch


def converter(*, takes: pa.Schema, gives: pa.Schema) -> Callable[[F], F]:
    """Declare a function as a converter. It stays the function it is."""
    if taken := {REASON} & set(takes.names) or {REJECTED} & set(gives.names):
        raise ConfigError(f"A converter's column cannot be called {taken.pop()!r}: that is where refusals go.")

    def declare(function: F) -> F:
        setattr(function, DECLARED, (takes, gives))
        return function

    return declare


def factory(function: G) -> G:
    """Declare a function of options that returns a converter; its options are keywords, checked by itself."""
    setattr(function, FACTORY, True)
    return function


def load(function: str | Convert, options: Mapping[str, Any] | None = None) -> Converter:
    """The converter called "module:function" or registered under a name, or of a function at hand.

    `options` are for one that a `factory` makes. ConfigError says what is wrong with it.
    """
    name = function if isinstance(function, str) else f"{function.__module__}:{getattr(function, '__qualname__', '?')}"
    found: Any = _imported(function) if isinstance(function, str) else function
    if getattr(found, FACTORY, False):
        try:
            found = found(**(options or {}))
        except TypeError as error:
            raise ConfigError(f"The options of converter {name!r} are not right: {error}.") from error
    elif options:
        raise ConfigError(f"Converter {name!r} takes no options; there are {', '.join(sorted(options))}.")
    declared = getattr(found, DECLARED, None)
    if not callable(found) or declared is None:
        raise ConfigError(f"{name} is no converter: declare it with @converter(takes=…, gives=…).")
    takes, gives = declared
    return Converter(found, takes, gives, name)


def _imported(name: str) -> Any:
    target = name if ":" in name else _registered(name)
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise ConfigError(f"A converter is named module:function, not {name!r}.")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"There is no converter {name!r}: {error}.") from error
    return found


def _registered(name: str) -> str:
    """What the name stands for. Two packages that claim one name are told of, rather than one taken."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    targets = {point.value for point in points if point.name == name}
    if name in READY_MADE:
        targets.add(READY_MADE[name])
    if len(targets) == 1:
        return targets.pop()
    if targets:
        raise ConfigError(f"Several packages have a converter {name!r}: {', '.join(sorted(targets))}. Name one so.")
    known = sorted({*READY_MADE, *(point.name for point in points)})
    raise ConfigError(f"A converter is named module:function, or one of {', '.join(known)}; not {name!r}.")


def run(one: Converter, batches: Iterable[pa.RecordBatch]) -> Iterator[Converted]:
    """Convert batch after batch. Only columns that are missing, or that are something else altogether, raise."""
    schema = rejected_schema(one)
    for batch in batches:
        taken = _as_declared(batch, one.takes)
        rows: list[pa.RecordBatch] = []
        refused: list[tuple[int, str]] = []
        _convert(one, taken, 0, rows, refused)
        if not refused:
            yield Converted(rows, pa.RecordBatch.from_arrays([*taken.slice(0, 0).columns, NO_REASONS], schema=schema))
            continue
        reasons = pa.array([reason for _, reason in refused], pa.string())
        left = taken.take(pa.array([row for row, _ in refused], pa.int64()))
        yield Converted(rows, pa.RecordBatch.from_arrays([*left.columns, reasons], schema=schema))


def rejected_schema(one: Converter) -> pa.Schema:
    """What the converter took, and why it was refused."""
    return one.takes.append(pa.field(REASON, pa.string()))


def _convert(
    one: Converter, batch: pa.RecordBatch, base: int, rows: list[pa.RecordBatch], refused: list[tuple[int, str]]
) -> None:
    """`base` is the number of the batch's first row in the whole one."""
    if not batch.num_rows:
        return
    try:
        parts, reasons = _called(one, batch)
    except Reject as reject:
        if named := _within(reject, batch):
            first = 0
            for row in (*sorted(named), batch.num_rows):
                _convert(one, batch.slice(first, row - first), base + first, rows, refused)
                if row < batch.num_rows:
                    refused.append((base + row, _shortened(named[row])))
                first = row + 1
            return
        reason = "it was refused without saying which row"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        rows += parts
        refused += [(base + row, _shortened(reason)) for row, reason in sorted(reasons.items())]
        return
    if batch.num_rows == 1:
        refused.append((base, _shortened(reason)))
        return
    half = batch.num_rows // 2
    _convert(one, batch.slice(0, half), base, rows, refused)
    _convert(one, batch.slice(half), base + half, rows, refused)


def _called(one: Converter, batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], dict[int, str]]:
    """What it gives, and which rows it refused beside that."""
    try:
        result = one.function(batch)
        parts = [result] if isinstance(result, pa.RecordBatch) else list(result)
        reasons: dict[int, str] = {}
    except Reject as reject:
        reasons = _within(reject, batch)
        if reject.rows is None or not reasons:
            raise
        parts = [reject.rows]
    return [_as_declared(part, one.gives) for part in parts], reasons


def _within(reject: Reject, batch: pa.RecordBatch) -> dict[int, str]:
    return {row: reason for row, reason in reject.reasons.items() if 0 <= row < batch.num_rows}


def _shortened(reason: str) -> str:
    return str(reason)[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """These columns in this order and type; others are left out."""
    if batch.schema.equals(schema) and not any(
        column.null_count for column, field in zip(batch.columns, schema, strict=True) if not field.nullable
    ):
        return batch
    columns = []
    for wanted in schema:
        place = batch.schema.get_field_index(wanted.name)
        if place < 0:
            raise ConfigError(f"There is no column {wanted.name!r}, or two; there are {', '.join(batch.schema.names)}.")
        column = batch.column(place)
        if column.type != wanted.type:
            try:
                column = column.cast(wanted.type)
            except pa.ArrowException as error:
                raise ConfigError(f"Column {wanted.name!r} is {column.type}, not {wanted.type}: {error}") from None
        if column.null_count and not wanted.nullable:
            raise ConfigError(f"Column {wanted.name!r} has nulls, and is declared without.")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


# Spark. One frame comes out, for a stream must not be read twice: `split` takes it apart.


def output_schema(one: Converter) -> pa.Schema:
    """The declared columns, all nullable, and `rejected`: null, or the row and the reason."""
    taken = [field.with_nullable(True) for field in one.takes]
    rejected = pa.field(REJECTED, pa.struct([pa.field(REASON, pa.string()), *taken]))
    return pa.schema([*(field.with_nullable(True) for field in one.gives), rejected])


def as_map_in_arrow(one: Converter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `DataFrame.mapInArrow`, with `output_schema`."""
    schema = output_schema(one)
    struct = schema.field(REJECTED).type

    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for converted in run(one, batches):
            for part in converted.rows:
                columns = [*part.columns, pa.nulls(part.num_rows, struct)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            left = converted.rejected
            if left.num_rows:
                *taken, reasons = left.columns
                nulls = [pa.nulls(left.num_rows, field.type) for field in one.gives]
                rejected = pa.StructArray.from_arrays([reasons, *taken], fields=list(struct))
                yield pa.RecordBatch.from_arrays([*nulls, rejected], schema=schema)

    return mapped


def convert(frame: DataFrame, one: Converter) -> DataFrame:
    """The frame's rows converted, those that could not be with the reason under `rejected`; batch or stream."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame.select(*one.takes.names).mapInArrow(as_map_in_arrow(one), from_arrow_schema(output_schema(one)))


def split(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The converted rows and the rejected ones of a frame from `convert`. Cache it first unless it is a stream."""
    good = frame.where(f"{REJECTED} is null").drop(REJECTED)
    return good, frame.where(f"{REJECTED} is not null").select(f"{REJECTED}.*")
