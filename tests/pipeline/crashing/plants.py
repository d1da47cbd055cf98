"""Bugs planted into source and sink, to see that the books notice them.

Spark runs readers and writers in processes of its own, to which it hands the data source by name. So each bug is a
data source with a name of its own, which the driver registers and uses in place of `fairlead`; the product knows
nothing of it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, WriterCommitMessage

from fairlead.pipeline.offsets import Offsets
from fairlead.pipeline.options import Reading, Writing
from fairlead.pipeline.sink import BATCH, QUERY, Staged, StreamWriter, publish, staged
from fairlead.pipeline.source import FairleadSource
from fairlead.pipeline.stream import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

PLANTS: Final = {
    "forgets_the_batch": "the sink publishes under another name each time, so nobody knows a batch again",
    "publishes_in_the_task": "each task makes its rows visible by itself, whether it wins or not",
    "partitions_backwards": "partitions are published in the wrong order",
    "acknowledges_too_far": "what is planned is acknowledged, not what is done",
    "reads_beyond_the_safe_point": "a batch ends behind the last message that is there",
    "begins_again": "after a restart the reader gives back what was reserved and reserves anew",
}

MISHAPS: Final = {
    "tasks_fail_after_staging": "the first attempt of some tasks fails when all its rows are staged",
    "answers_are_lost": "some commits fail when the batch is published",
}
"""No bugs: Spark deals with these, and the books must balance all the same."""


def planted(name: str) -> type[DataSource]:
    """The data source with this bug."""
    found: type[DataSource] = globals()["".join(part.capitalize() for part in name.split("_"))]
    return found


def _identity() -> tuple[str, int]:
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    return str(query), int(batch or 0)


class Forgetful(StreamWriter):
    def __init__(self, writing: Writing, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(writing, schema, overwrite=overwrite)
        self._salt = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = _identity()
        return staged(self._writing, f"{query}-{self._salt}", batch, iterator)


class ForgetsTheBatch(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "forgets_the_batch"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Forgetful(Writing.parse(self.options), schema, overwrite=overwrite)


class Hasty(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = _identity()
        one = staged(self._writing, f"{query}-{uuid.uuid4().hex}", batch, iterator)
        publish(self._writing, [one])
        return one

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass


class PublishesInTheTask(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "publishes_in_the_task"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Hasty(Writing.parse(self.options), schema, overwrite=overwrite)


class Backwards(StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for one in messages:
            if isinstance(one, Staged):
                one.partition = -one.partition
        super().commit(messages, batchId)


class PartitionsBackwards(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "partitions_backwards"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Backwards(Writing.parse(self.options), schema, overwrite=overwrite)


class TooFar(StreamReader):
    def commit(self, end: dict[str, Any]) -> None:
        done = Offsets.parse(end)
        for name, cursor in done.cursors.items():
            done.at[name] = self._server.cursor_open(name, cursor).reserved
        super().commit(done.as_json())


class AcknowledgesTooFar(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "acknowledges_too_far"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TooFar(Reading.parse(self.options), schema)


class Unsafe(StreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = Offsets.parse(super().latestOffset(start, limit))
        if end.at != Offsets.parse(start).at:
            for name in end.at.keys() - end.cursors.keys():
                end.at[name] += 500
        return end.as_json()


class ReadsBeyondTheSafePoint(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "reads_beyond_the_safe_point"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Unsafe(Reading.parse(self.options), schema)


class Anew(StreamReader):
    def __init__(self, reading: Reading, schema: StructType) -> None:
        super().__init__(reading, schema)
        self._is_first = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = Offsets.parse(start)
        if self._is_first:
            for name, cursor in begun.cursors.items():
                self._server.cursor_release(name, cursor)
                begun.at[name] = self._server.cursor_open(name, cursor, create=True).at
            self._is_first = False
        return super().latestOffset(begun.as_json(), limit)


class BeginsAgain(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "begins_again"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Anew(Reading.parse(self.options), schema)


class Stumbling(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = super().write(iterator)
        context, (_, batch) = TaskContext.get(), _identity()
        assert context is not None
        if context.attemptNumber() == 0 and (batch + context.partitionId()) % 3 == 0:
            raise ConnectionError("planted: everything is staged, and the task fails")
        return done


class TasksFailAfterStaging(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "tasks_fail_after_staging"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Stumbling(Writing.parse(self.options), schema, overwrite=overwrite)


class Deaf(StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId % 4 == 1 and random.random() < 0.5:
            raise ConnectionError("planted: the batch is published, and nobody hears of it")


class AnswersAreLost(FairleadSource):
    @classmethod
    def name(cls) -> str:
        return "answers_are_lost"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return Deaf(Writing.parse(self.options), schema, overwrite=overwrite)
