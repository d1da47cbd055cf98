"""The two queries that run while everything around them is killed: from a topic to a queue, from a queue to a topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CURSOR: Final = "crashing"
SEEN: Final = b" seen"
"""What the transformation puts behind each body."""
ROWS_PER_BATCH: Final = 1000
PATIENCE_S: Final = 30


@dataclass(frozen=True)
class Flow:
    """`name` is the kind of the source."""

    name: str
    source: str
    sink: str
    sink_kind: str
    reading: dict[str, str] = field(default_factory=dict)


FLOWS: Final = {
    "topic": Flow("topic", "crash.in.topic", "crash.out.queue", "queue"),
    "queue": Flow("queue", "crash.in.queue", "crash.out.topic", "topic", {"cursor": CURSOR}),
}


def start(spark: SparkSession, flow: Flow, url: str, work: Path, source_format: str) -> StreamingQuery:
    """Go on where the checkpoint stands."""
    frame = (
        spark.readStream.format(source_format)
        .options(url=url, patience=PATIENCE_S, destination=flow.source, columns="key,body", slices=2)
        .options(maxRowsPerTrigger=ROWS_PER_BATCH, **flow.reading)
        .load()
    )
    return (
        transformed(frame, flow)
        .writeStream.format(source_format)
        .queryName(flow.name)
        .options(url=url, patience=PATIENCE_S, destination=flow.sink)
        .option("checkpointLocation", str(checkpoint(work, flow)))
        .start()
    )


def checkpoint(work: Path, flow: Flow) -> Path:
    return work / f"checkpoint-{flow.name}"


def transformed(frame: DataFrame, flow: Flow) -> DataFrame:
    """In SQL, or in Python."""
    if flow.name == "topic":
        return frame.selectExpr("key", f"concat(body, binary('{SEEN.decode()}')) as body")
    return frame.mapInArrow(marked, "key string, body binary")


def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        bodies = pa.array([body.as_py() + SEEN for body in batch.column("body")], pa.binary())
        yield pa.RecordBatch.from_arrays([batch.column("key"), bodies], names=["key", "body"])
