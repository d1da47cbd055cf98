"""`df.write.format("fairlead")` and `writeStream`: rows to messages, every batch exactly once.

A task *stages* its rows at the server, where nobody sees them; when all tasks are done the driver publishes the stages
that count, all at once and once per query and batch. Whatever crashes in between, the batch is written anew into other
stages, and what was staged before is dropped. A stage belongs to one run of a task and is never gone on with by
another: Spark may give it the same rows in another order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from fairlead.errors import BadParameter, BodyTooLarge, ConfigError, FairleadError, LocalProtocolError, NoDestination
from fairlead.pipeline.arrow import entries_from
from fairlead.pipeline.lines import line
from fairlead.pipeline.options import Writing
from fairlead.pipeline.schema import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fairlead.client.bulk import Stage

__all__ = ["BatchWriter", "Staged", "StreamWriter"]

log = logging.getLogger("fairlead.pipeline")

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has put where: rows per destination."""

    query: str
    batch: int
    partition: int
    stage: str
    rows: dict[str, int] = field(default_factory=dict)


class BatchWriter(DataSourceArrowWriter):
    """A batch write is a query of its own with one batch, unless options say which batch of which query it is."""

    def __init__(self, writing: Writing, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("Messages that were sent cannot be overwritten: use mode('append').")
        check(writing, schema)
        self._writing = writing
        self._query = writing.query or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return staged(self._writing, self._query, self._writing.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._writing, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abandon(self._writing, self._query, self._writing.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Query and batch are Spark's own, so they survive a restart with the same checkpoint."""

    def __init__(self, writing: Writing, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("Messages that were sent cannot be overwritten: use outputMode append or update.")
        if writing.query:
            raise ConfigError("A streaming query has an id and batches of its own: query and batch are for df.write.")
        check(writing, schema)
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context else None for name in (QUERY, BATCH))
        if not query or not batch:
            raise LocalProtocolError("Spark does not say which batch of which query this is.")
        return staged(self._writing, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish(self._writing, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # Which query it is, only messages tell. Without one the next batch, or time, drops what was staged.
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            abandon(self._writing, query, batchId)


def staged(writing: Writing, query: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage what one task has; it is safe when this returns."""
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
    name = f"{partition}/{attempt}-{uuid.uuid4().hex[:16]}"  # of this query and batch: `publish` may name thousands
    stages: dict[str, Stage] = {}
    base = 0
    with writing.access.connect() as connection:
        for rows in batches:
            try:
                for destination, entries, count in entries_from(_addressed(rows, writing), also=writing.destination):
                    if destination not in stages:
                        stages[destination] = connection.stage(
                            destination, name, query=query, batch=batch, kind=writing.kind, create=writing.create
                        )
                    stages[destination].send(entries, count)
            except (BadParameter, BodyTooLarge) as error:
                where = f"Partition {partition}, in its rows {base} to {base + rows.num_rows - 1}"
                raise type(error)(f"{where}, counted from 0 there: {error}") from None
            except NoDestination as error:
                raise NoDestination(f"{error} With .option('create', True) it is made.") from None
            base += rows.num_rows
        return Staged(query, batch, partition, name, {to: stage.finish() for to, stage in stages.items()})


def _addressed(rows: pa.RecordBatch, writing: Writing) -> pa.RecordBatch:
    """The option says where to, whatever a column says: rows that were read have the name of where they come from."""
    if writing.destination and "destination" in rows.schema.names:
        return rows.drop_columns(["destination"])
    return rows


def check(writing: Writing, schema: StructType) -> None:
    """Complain about columns before anything runs."""
    empty = pa.RecordBatch.from_pylist([], arrow_schema(schema))
    list(entries_from(_addressed(empty, writing), also=writing.destination))
    if not writing.destination and "destination" not in schema.fieldNames():
        raise ConfigError("Nothing says where to: there is neither a column nor an option destination.")


def publish(writing: Writing, messages: list[WriterCommitMessage | None]) -> None:
    """Make visible what the tasks staged, in the order of the partitions."""
    won = sorted((one for one in messages if isinstance(one, Staged) and one.rows), key=lambda one: one.partition)
    if not won:
        return
    query, batch = won[0].query, won[0].batch
    answer = line(writing.access).publish(query, batch, [(one.stage, one.rows) for one in won])
    if answer.published == "before":
        log.info("Batch %d of query %s was published before", batch, query)


def abandon(writing: Writing, query: str, batch: int) -> None:
    """Drop what was staged, unless it was published: Spark also says abort when the answer to `publish` was lost."""
    try:
        line(writing.access).abandon(query, batch)
    except FairleadError as error:  # the error that led here is the one to be seen
        log.warning("Batch %d of query %s was not abandoned: %s", batch, query, error)
