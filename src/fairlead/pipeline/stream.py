"""The stream reader: which offsets a query has reached, what its next batch is, and what it is done with.

Topics and whatever is retained are read without a trace, unless a cursor is named, which keeps messages until they
are read. A queue is consumed: a batch is what the cursor's ledger reserved for it, and is acknowledged when Spark says
that it is done. Spark says so one batch late, or never; the ledger gives the same messages again for the same offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from fairlead.client.bulk import BulkConnection
from fairlead.client.bulk.answers import Cursor, Position
from fairlead.errors import ConfigError, NoDestination, OffsetGone
from fairlead.pipeline.offsets import Offsets, losses, mended, ranges, shares
from fairlead.pipeline.options import Reading, Start
from fairlead.pipeline.schema import names_of
from fairlead.pipeline.source import known_of, lots, read_lot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

log = logging.getLogger("fairlead.pipeline")

CURSOR_STARTS: dict[object, str] = {"earliest": "first", "latest": "new"}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One of it plans on the driver, over one connection; copies of it read on executors."""

    def __init__(self, reading: Reading, schema: StructType) -> None:
        if reading.ending is not None or reading.ending_ms is not None:
            raise ConfigError("A stream has no end: endingOffsets and endingTime are for spark.read.")
        if reading.waiting is not None:
            raise ConfigError("waiting is for spark.read: a stream of a queue consumes.")
        names_of(schema)
        self._reading = reading
        self._schema = schema
        self._connection: BulkConnection | None = None
        self._initial: dict[str, Any] | None = None
        self._latest: dict[str, Any] | None = None
        self._target: dict[str, int] | None = None
        self._committed: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None}

    @property
    def _server(self) -> BulkConnection:
        if self._connection is None:
            self._connection = self._reading.access.connect()
        return self._connection

    # Where it begins.

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark may ask twice
            reading = self._reading
            known = known_of(self._server, reading, reading.starting_ms)
            if isinstance(reading.starting, dict) and (strange := set(reading.starting) - set(known)):
                raise ConfigError(f"Offsets are given for {', '.join(sorted(strange))}, which is not read here.")
            offsets = Offsets()
            for there in known.values():
                self._begin(offsets, there, reading.starting, there.at)
            self._initial = offsets.as_json()
        return self._initial

    def _begin(self, offsets: Offsets, there: Position, start: Start | None, at: int | None = None) -> None:
        """Note where a destination begins, which opens its cursor. `at` is the place of a time that was asked for."""
        reading, name = self._reading, there.name
        if self._consumes(there):
            if start not in (None, "earliest") or at is not None:
                raise ConfigError(f"{name} is a queue: it is consumed from its head, wherever that is.")
            offsets.note(there, self._ledger(there).at, reading.cursor)
            return
        place = start.get(name, "earliest") if isinstance(start, dict) else start or "earliest"
        if reading.cursor and there.kind == "topic":
            wanted = {"ms": reading.starting_ms} if at is not None else CURSOR_STARTS.get(place, place)
            offsets.note(there, self._server.cursor_open(name, reading.cursor, start=wanted, create=True).at)
            return
        if reading.mode == "consume" or reading.cursor:
            raise ConfigError(
                f"{name} is a {there.kind}: to consume is to have a cursor, and mode read on a queue is to have none."
            )
        if not there.retains:
            raise ConfigError(
                f"{name} lets go of its messages when its subscribers have them: set a retention on it, or name a "
                "cursor for which it keeps them, .option('cursor', 'my-query')."
            )
        if at is None:
            at = there.first if place == "earliest" else there.next if place == "latest" else place
        offsets.note(there, at)

    def _consumes(self, there: Position) -> bool:
        return there.kind == "queue" and self._reading.mode != "read"

    def _ledger(self, there: Position) -> Cursor:
        """The cursor of a queue, made if need be."""
        if not self._reading.cursor:
            raise ConfigError(
                f"{there.name} is a queue, and a stream consumes it: name a cursor that is this query's own, "
                ".option('cursor', 'my-query'). To look without consuming use spark.read"
                + (", or .option('mode', 'read')." if there.retains else ".")
            )
        return self._server.cursor_open(there.name, self._reading.cursor, create=True)

    # Where the next batch ends.

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = self._known()
        begun = self._mended(Offsets.parse(start), known)
        end = begun.copy()
        for name, there in known.items():
            if name not in begun.at and (self._target is None or name in self._target):
                self._begin(end, there, None)
        wanted = {name: self._waiting(begun, known[name]) for name in begun.at if name in known}
        rows, size = self._limits(limit)
        if isinstance(limit, ReadMinRows) and self._target is None and sum(wanted.values()) < limit.min_rows:
            wanted = {}
        parts = shares(wanted, rows, turn=sum(begun.at.values()))
        for name, part in parts.items():
            end.at[name] = self._end(begun, name, part, -(-size // len(parts)))
        self._latest = self._reported(end, known)
        return end.as_json()

    def _known(self) -> dict[str, Position]:
        try:
            return known_of(self._server, self._reading)
        except NoDestination:
            if self._reading.fail_on_data_loss:
                raise
            return {one.name: one for name in self._reading.destinations for one in self._there(name)}

    def _there(self, name: str) -> list[Position]:
        try:
            return self._server.positions(name).destinations
        except NoDestination:
            return []

    def _mended(self, begun: Offsets, known: dict[str, Position]) -> Offsets:
        if lost := losses(begun, known):
            text = "; ".join(map(str, lost))
            if self._reading.fail_on_data_loss:
                raise OffsetGone(f"{text}. With failOnDataLoss=false the query goes on behind the gap.")
            log.warning("Data loss: %s", text)
            return mended(begun, known)
        return begun

    def _waiting(self, begun: Offsets, there: Position) -> int:
        """How many there may be from here on; of a queue nobody knows how many are free."""
        at = begun.at[there.name]
        if self._target is not None:
            return self._target.get(there.name, at) - at
        return there.next - (there.low if there.name in begun.cursors else at)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Rows and bytes of a batch; 0: as many as there are."""
        if isinstance(limit, ReadAllAvailable):
            return 0, 0
        rows, size = self._reading.rows_max, self._reading.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return rows, size

    def _end(self, begun: Offsets, name: str, rows: int, size: int) -> int:
        at = begun.at[name]
        if cursor := begun.cursors.get(name):
            if cursor != self._reading.cursor:
                raise ConfigError(
                    f"The checkpoint of {name} is that of cursor {cursor!r}: set the option cursor to it."
                )
            try:
                return self._server.cursor_reserve(name, cursor, at, messages=rows, bytes=size)
            except OffsetGone as error:  # the checkpoint is older than what was committed
                if self._reading.fail_on_data_loss:
                    raise
                log.warning("Data loss: %s", error)
                at = self._server.cursor_open(name, cursor).at
                return self._server.cursor_reserve(name, cursor, at, messages=rows, bytes=size)
        if size:
            return min(at + rows, self._server.plan(name, at, messages=rows, bytes=size).end)
        return at + rows

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._reading.rows_max:
            return ReadMaxRows(self._reading.rows_max)
        if self._reading.bytes_max:
            return ReadMaxBytes(self._reading.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all the query will read. Of queues it is reserved at once."""
        self._target = {}
        for name, there in self._known().items():
            if self._consumes(there):
                reserved = self._ledger(there).reserved
                self._target[name] = self._server.cursor_reserve(name, self._reading.cursor, reserved)
            else:
                self._target[name] = there.next

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest

    def _reported(self, end: Offsets, known: dict[str, Position]) -> dict[str, Any]:
        newest = end.copy()
        for name in newest.at:
            if name in known and name not in newest.cursors:
                newest.at[name] = known[name].next
        return newest.as_json()

    # A batch, and its end.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        jump = not self._reading.fail_on_data_loss
        return lots(ranges(Offsets.parse(start), Offsets.parse(end), jump=jump), self._reading)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_lot(self._reading, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        done = Offsets.parse(end)
        for name, at in done.at.items():
            cursor = done.cursors.get(name, self._reading.cursor)
            if not cursor or self._committed.get(name) == at:
                continue
            try:
                self._server.cursor_commit(name, cursor, at)
            except NoDestination:
                if self._reading.fail_on_data_loss:
                    raise
            self._committed[name] = at

    def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
