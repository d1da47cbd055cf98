"""`spark.read.format("fairlead")` and `spark.readStream.format("fairlead")`: destinations as tables and streams.

This is what Spark talks to; which messages a batch is made of is decided in `offsets`, and they come as columns by
`fairlead.client.bulk`. A reader is pickled to executors: it holds options and no connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition

from fairlead.client.bulk import BulkConnection
from fairlead.client.bulk.answers import Position
from fairlead.errors import ConfigError, NoDestination, OffsetGone
from fairlead.pipeline.arrow import mask_of, record_batch
from fairlead.pipeline.filters import Narrowing, narrowing
from fairlead.pipeline.lines import line
from fairlead.pipeline.offsets import SLICE_ROWS_MIN, Loss, Range, pack
from fairlead.pipeline.options import Reading, Writing, is_pattern
from fairlead.pipeline.schema import arrow_schema, fitted, names_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["FairleadSource", "Lot", "known_of", "lots", "read_lot"]

SLICES = 2
GO_ON = "With failOnDataLoss=false reading goes on behind the gap."
PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class FairleadSource(DataSource):
    """The data source `fairlead`, for reading and writing, batch and stream."""

    @classmethod
    def name(cls) -> str:
        return "fairlead"

    def schema(self) -> StructType:
        return struct_of(Reading.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        reading = Reading.parse(self.options)
        # Spark refuses a reader that takes conditions where a session has not turned that on; the worker that hands
        # conditions over is the only one that loads this module.
        kind = FilteringReader if reading.pushdown and PUSHING in sys.modules else BatchReader
        return kind(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from fairlead.pipeline.stream import StreamReader

        return StreamReader(Reading.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fairlead.pipeline.sink import BatchWriter

        return BatchWriter(Writing.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from fairlead.pipeline.sink import StreamWriter

        return StreamWriter(Writing.parse(self.options), schema, overwrite=overwrite)


class Lot(InputPartition):
    """What one task reads: some ranges, one after another."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))


class BatchReader(DataSourceReader):
    """What is there now, or between the offsets or times given. Nothing is locked, counted or consumed."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        if reading.mode == "consume" or reading.cursor:
            raise ConfigError(
                "A batch read only looks. To consume, use readStream with a cursor; trigger(availableNow=True) takes "
                "what is there and ends."
            )
        self._reading = reading
        self._schema = schema
        self._names = names_of(schema)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        reading, asked = self._reading, self._narrowing
        if asked.is_empty:
            return []
        server = line(reading.access)
        since_ms = max(reading.starting_ms or 0, asked.arrived_ms[0]) or None
        known = known_of(server, reading, since_ms)
        ends = known_of(server, reading, reading.ending_ms) if reading.ending_ms is not None else {}
        for spec in (reading.starting, reading.ending):
            if isinstance(spec, dict) and (strange := set(spec) - set(known)):
                raise ConfigError(f"Offsets are given for {', '.join(sorted(strange))}, which is not read here.")
        found = []
        for name, there in known.items():
            if asked.destinations is None or name in asked.destinations:
                one = self._range(there, ends.get(name))
                first, beyond = max(one.first, asked.order[0]), min(one.beyond, asked.order[1])
                found.append(one._replace(first=first, beyond=beyond, jump=one.jump or first > one.first))
        return lots(found, reading)

    def _range(self, there: Position, ends: Position | None) -> Range:
        reading = self._reading
        waiting = there.kind == "queue" if reading.waiting is None else reading.waiting
        first, is_promised = there.first, False
        if there.at is not None:
            first = there.at
        match reading.starting if not isinstance(reading.starting, dict) else reading.starting.get(there.name):
            case int() as place:
                first, is_promised = max(first, place) if there.at is not None else place, True
            case "latest":
                first = there.next
        beyond = there.next if ends is None or ends.at is None else min(ends.at, there.next)
        match reading.ending if not isinstance(reading.ending, dict) else reading.ending.get(there.name):
            case int() as place:
                beyond = min(beyond, place)
            case "earliest":
                beyond = there.first
        if waiting:
            first, is_promised = max(first, there.low), False
        strict = is_promised and reading.fail_on_data_loss
        if strict and first < min(there.first, beyond):
            why = "for they were let go before they were read"
            raise OffsetGone(f"{Loss(there.name, first, min(there.first, beyond), why)}. {GO_ON}")
        return Range(there.name, first, beyond, waiting=waiting, jump=not strict)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_lot(self._reading, self._schema, partition, self._narrowing)


class FilteringReader(BatchReader):
    """The same for conditions that Spark hands over.

    Only on request: Spark 4.3 keeps the plan of the frame's last condition, and reads by it when the same frame is used
    with another one, or with none.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowing(filters)
        return filters  # Spark applies them once more: times are narrowed by the millisecond only


def known_of(connection: BulkConnection, reading: Reading, ms: int | None = None) -> dict[str, Position]:
    """The destinations that are meant, as they are now; NoDestination if one that was named is not there."""
    found: dict[str, Position] = {}
    for name in reading.destinations:
        there = connection.positions(name, ms).destinations
        if not there and not is_pattern(name):
            raise NoDestination(f"There is no destination {name!r}.")
        found |= {one.name: one for one in there}
    return dict(sorted(found.items()))


def lots(ranges: Iterable[Range], reading: Reading) -> list[InputPartition]:
    """Ranges as tasks: as many as asked for, or a few where there is enough for them."""
    rows_min = 1 if reading.slices else SLICE_ROWS_MIN
    return [Lot(lot) for lot in pack(ranges, reading.slices or SLICES, rows_min)]


def read_lot(
    reading: Reading, schema: StructType, partition: InputPartition, narrowed: Narrowing | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, on whichever machine it runs."""
    names, target = names_of(schema), arrow_schema(schema)
    where = (narrowed or Narrowing()).where()
    if reading.ending_ms is not None:  # clocks may have been set back
        low, high = where.get("arrived_ms", Narrowing.arrived_ms)
        where["arrived_ms"] = [low, min(high, reading.ending_ms)]
    ranges: Any = partition.value or ()  # Spark makes up an empty partition where there is none
    for one in ranges:
        batches = line(reading.access).scan(
            one.destination, one.first, one.beyond, columns=mask_of(names), cursor=one.cursor, waiting=one.waiting,
            where=where, rows=reading.batch_rows, bytes=reading.batch_bytes, jump=one.jump,
        )  # fmt: skip
        try:
            for columns in batches:
                yield fitted(record_batch(columns, one.destination, names), target)
        except OffsetGone as error:
            raise OffsetGone(f"{error}. {GO_ON}") from None
