"""Source and sink inside Spark, against a real server: what the other files cannot show without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import fairlead
import fairlead.sync
from fairlead.testing import Server
from tests.pipeline.starting import patiently

KEEP = {"retain_messages": -1}
ROWS = 2_500


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[fairlead.sync.Connection]:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        yield connection


@pytest.fixture(scope="module")
def trades(client: fairlead.sync.Connection) -> str:
    topic = client.topic("trades", parameters=KEEP)
    for base in range(0, ROWS, 500):
        topic.send_many([b"%d" % n for n in range(base, base + 500)], key=f"k{base // 500}")
    properties = {"region": "eu", "n": 7, "f": 0.5, "b": True, "y": b"\x01"}
    topic.send("last", key="clé", priority=7, properties=properties, type="t", correlation_id="c")
    return "trades"


def reader(spark: SparkSession, server: Server, **options: str) -> DataFrameReader:
    return spark.read.format("fairlead").options(url=server.url, **options)


def stream(spark: SparkSession, server: Server, **options: str) -> DataFrame:
    return spark.readStream.format("fairlead").options(url=server.url, **options).load()


def run(frame: DataFrame, server: Server, checkpoint: Path, **options: str) -> StreamingQuery:
    """Into a destination, as much as there is."""
    writer = frame.writeStream.format("fairlead").options(url=server.url, **options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)

    def once() -> StreamingQuery:
        query = writer.start()
        assert query.awaitTermination(100)
        return query

    return patiently(once)


def test_a_topic_is_a_table(spark: SparkSession, server: Server, trades: str) -> None:
    frame = reader(spark, server).load(trades)
    assert frame.columns[:5] == ["destination", "order_number", "message_id", "key", "body"]
    assert frame.rdd.getNumPartitions() == 2
    count, distinct, total = frame.agg(
        f.count("*"), f.count_distinct("order_number"), f.sum(f.expr("try_cast(cast(body as string) as int)"))
    ).first()  # type: ignore[misc]
    assert (count, distinct, total) == (ROWS + 1, ROWS + 1, sum(range(ROWS)))
    (last,) = frame.where("key = 'clé'").collect()
    assert (last.destination, last.priority, last.size, last.delivery_count) == ("trades", 7, 4, 0)
    assert last.properties == {"region": "eu", "n": "7", "f": "0.5", "b": "true", "y": "01"}
    assert (last.headers["type"], last.headers["correlation"], len(last.message_id)) == ("t", "c", 40)
    assert timedelta() <= last.arrived - last.published < timedelta(minutes=1)
    assert (last.expires, last.stream_id, last.stream_sequence) == (None, None, None)


def test_conditions_are_pushed_down_where_that_is_asked_for(spark: SparkSession, server: Server, trades: str) -> None:
    def frame(pushdown: str = "true") -> DataFrame:
        return reader(spark, server, pushdown=pushdown, columns="order_number,key,arrived").load(trades)

    condition = "key in ('k2', 'k3') and order_number % 2 = 0 and arrived > timestamp '2020-01-01'"
    assert frame().where(condition).count() == 500
    assert frame().where("key = 'a' and key = 'b'").count() == 0
    plain = frame("false")
    assert plain.where(condition).count() == 500
    assert plain.count() == ROWS + 1, "unasked, a frame may be used with other conditions, or none"


def test_a_session_that_does_not_push_conditions_down(spark: SparkSession, server: Server, trades: str) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert reader(spark, server, pushdown="true").load(trades).where("key = 'k2'").count() == 500
    finally:
        spark.conf.set(name, "true")


def test_mistakes_are_named(spark: SparkSession, server: Server, trades: str) -> None:
    with pytest.raises(PySparkException, match="Did you mean startingOffsets"):
        reader(spark, server, startingOffset="latest").load(trades)
    with pytest.raises(PySparkException, match="no queue or topic 'nowhere'"):
        reader(spark, server).load("nowhere").count()
    with pytest.raises(PySparkException, match="order_number is bigint, not string"):
        reader(spark, server).schema("order_number string").load(trades).count()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        spark.range(1).selectExpr("'x' as body").write.format("fairlead").mode("overwrite").options(
            url=server.url, destination="x"
        ).save()


def test_somebodys_own_schema(spark: SparkSession, server: Server, trades: str) -> None:
    frame = reader(spark, server).schema("body binary, order_number long").load(trades)
    assert frame.columns == ["body", "order_number"]
    assert frame.count() == ROWS + 1


def test_secrets_are_not_in_the_plan_nor_in_errors(
    spark: SparkSession, server: Server, trades: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.url.replace("fairlead://", "fairlead://me:s3cret@")
    frame = spark.read.format("fairlead").options(url=url, destination=trades).load()
    frame.where("key = 'a'").explain("extended")
    plans = capsys.readouterr().out + frame._jdf.queryExecution().toString()
    assert "fairlead" in plans.lower()
    with pytest.raises(PySparkException) as raised:
        spark.read.format("fairlead").options(url=server.url, password="s3cret", destination="nowhere").load().count()
    assert "s3cret" not in plans + str(raised.value)


def test_a_batch_write_is_a_batch_of_messages(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection
) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "cast(id as string) as value", "concat('out.', id % 3) as destination", "concat('k', id) as key"
    )
    frame.write.format("fairlead").mode("append").options(url=server.url, create="true").save()
    found = reader(spark, server).load("out.*")
    rows = [(int(row.order_number), row.destination, int(bytes(row.body)), row.key) for row in found.collect()]
    assert sorted(number for _, _, number, _ in rows) == list(range(1000))
    assert all(destination == f"out.{number % 3}" and key == f"k{number}" for _, destination, number, key in rows)
    for name in ("out.0", "out.1", "out.2"):
        ours = [number for _, destination, number, _ in sorted(rows) if destination == name]
        assert ours == sorted(ours), "partitions one after another, each in its order"


def test_a_write_that_fails_leaves_nothing(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection
) -> None:
    client.topic("unharmed", parameters=KEEP).send(b"before")
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as body", "if(id = 99, 12, 4) as priority")
    with pytest.raises(PySparkException, match=r"Partition 1, .*row 49|Partition 1, .*49"):
        frame.write.format("fairlead").mode("append").options(url=server.url, destination="unharmed").save()
    assert [bytes(row.body) for row in reader(spark, server).load("unharmed").collect()] == [b"before"]


def test_from_a_topic_through_spark_to_a_queue_exactly_once(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, trades: str, tmp_path: Path
) -> None:
    frame = stream(spark, server, destination=trades, maxRowsPerTrigger="1000")
    query = run(frame, server, tmp_path, destination="copy", create="true")
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [1000, 1000, 501]
    end = json.loads(query.recentProgress[-1].sources[0].endOffset)
    assert end["trades"] > ROWS
    found = reader(spark, server).load("copy").orderBy("order_number").collect()
    assert [bytes(row.body) for row in found] == [*(b"%d" % n for n in range(ROWS)), b"last"]
    assert (found[-1].key, found[-1].priority, found[-1].properties["region"]) == ("clé", 7, "eu")
    # The last batch was published, and Spark died before it noted that: it comes again.
    last = max(int(file.name) for file in (tmp_path / "commits").iterdir() if file.name.isdigit())
    for file in (tmp_path / "commits" / str(last), tmp_path / "commits" / f".{last}.crc"):
        file.unlink(missing_ok=True)
    client.topic(trades, create=False).send(b"more")
    again = run(frame, server, tmp_path, destination="copy", create="true")
    assert sum(progress.numInputRows for progress in again.recentProgress) == 501 + 1
    assert reader(spark, server).load("copy").count() == ROWS + 2, "nothing doubled, nothing lost"


def test_a_queue_is_consumed_by_a_stream(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path
) -> None:
    queue = client.queue("jobs")
    queue.send_many([b"%d" % n for n in range(20)])
    frame = stream(spark, server, destination="jobs", cursor="nightly", maxRowsPerTrigger="8")
    frame = frame.selectExpr("body", "key")
    run(frame, server, tmp_path, destination="done", create="true")
    queue.send(b"20")
    run(frame, server, tmp_path, destination="done", create="true")
    found = reader(spark, server).load("done").orderBy("order_number").collect()
    assert [int(bytes(row.body)) for row in found] == list(range(21))
    # Spark says that a batch is done when it plans the next: the last one is still the cursor's.
    left = [int(bytes(row.body)) for row in reader(spark, server).load("jobs").collect()]
    assert left in ([], [20])
