"""The job `archive`: destinations to a lake, each message exactly once, whatever is killed when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fairlead.pipeline import lake as lakes
from fairlead.pipeline.running import Context, Job, Summary, follow, observed, triggered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Archive"]

FILE_ROWS_MAX = 2_000_000
BATCH_BYTES = 256 << 20


class Archive(Job):
    """Topics and whatever is retained are read without a trace; a queue is consumed, for which --cursor is needed."""

    name = "archive"
    help = "Write the messages of destinations to a lake of Parquet files, each exactly once."
    options = (
        click.option("--destination", required=True, help="A name, a list with commas, or a pattern like 'trades.>'."),
        click.option("--lake", required=True, metavar="DIR", help="Where the files go: destination=…/date=…"),
        click.option("--cursor", default="", help="For queues, which are consumed, and topics that retain nothing."),
        click.option("--from", "since", default="earliest", show_default=True, help="earliest, latest, or a time."),
        click.option("--max-bytes", default=BATCH_BYTES, show_default=True, help="Of one batch; 0: no limit."),
    )

    def conf(self, options: Mapping[str, Any]) -> dict[str, str]:
        return {
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.parquet.compression.codec": "zstd",
        }

    def run(self, spark: SparkSession, context: Context) -> Summary:
        from pyspark.sql import functions as f

        options = context.options
        where = lakes.local(options["lake"])
        context.checkpoint = context.checkpoint or f"{options['lake'].rstrip('/')}/{lakes.OWN}/checkpoint"
        reader = context.stream_reader(spark, options["destination"], options["cursor"])
        since = options["since"]
        reader = reader.option("startingOffsets" if since in ("earliest", "latest") else "startingTime", since)
        if options["max_bytes"]:
            reader = reader.option("maxBytesPerTrigger", str(options["max_bytes"]))
        frame = observed(reader.load()).withColumn("date", f.to_date("arrived"))

        def start() -> StreamingQuery:
            writer = triggered(frame.writeStream.format("parquet").outputMode("append"), context)
            writer = writer.partitionBy(*lakes.PARTITIONS).option("path", options["lake"])
            return writer.option("maxRecordsPerFile", str(FILE_ROWS_MAX)).start()

        lock = lakes.lock(where) if where else None
        try:
            follow(start, context)
        finally:
            if lock is not None:
                lock.close()
        return context.ended(self.name, lake=options["lake"], checkpoint=context.checkpoint)
