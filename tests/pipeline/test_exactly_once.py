"""Exactly once, with everything that can go wrong: single cases here, random kills in `tests.pipeline.crashing`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

import fairlead.sync
from fairlead.client.bulk import BulkConnection
from fairlead.pipeline import sink
from fairlead.pipeline.options import Writing
from fairlead.pipeline.sink import StreamWriter
from fairlead.pipeline.source import FairleadSource
from fairlead.testing import Server
from tests.pipeline.crashing.books import Books
from tests.pipeline.crashing.plants import MISHAPS, PLANTS
from tests.pipeline.crashing.rounds import Report, world
from tests.processes.durable.books import Faults
from tests.processes.durable.crash import free_port

pytestmark = pytest.mark.processes

KEEP = {"retain_messages": -1}
SPARK_S = 100


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """On a port that stays the same when it is started again."""
    with Server(managers=1, listen=f"127.0.0.1:{free_port()}") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[fairlead.sync.Connection]:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        yield connection


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).split("[")[0].removeprefix("test_").replace("_", "-")[:60]


def read(spark: SparkSession, server: Server, **options: Any) -> DataFrame:
    return spark.readStream.format("fairlead").options(url=server.url, columns="key,body", **options).load()


def begin(frame: DataFrame, server: Server, checkpoint: Path, to: str = "fairlead", **options: Any) -> StreamingQuery:
    writer = frame.writeStream.format(to).options(url=server.url, create="true", **options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(frame: DataFrame, server: Server, checkpoint: Path, **options: Any) -> None:
    assert begin(frame, server, checkpoint, **options).awaitTermination(SPARK_S)


def found(server: Server, name: str) -> list[int]:
    """The numbers in a destination, in its order."""
    from fairlead.pipeline.arrow import mask_of, record_batch

    with BulkConnection(server.url, name="looking") as bulk:
        there = bulk.positions(name).destinations[0]
        scan = bulk.scan(name, there.first, there.next, columns=mask_of(["body"]))
        return [int(body.as_py()) for one in scan for body in record_batch(one, name, ["body"]).column("body")]


def becomes(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def numbers(low: int, high: int) -> list[bytes]:
    return [b"%d" % number for number in range(low, high)]


# --- Random kills -------------------------------------------------------------------------------------------------
def harness(seed: int, hurts: list[str], **how: Any) -> Report:
    with world(seed, **how) as crashing:
        return crashing.run(len(hurts), hurts)


@pytest.mark.timeout(400)
def test_a_killed_worker() -> None:
    """The harness at work; more of it with `make test-long`, all of it with `make soak-pipeline`."""
    report = harness(1, ["worker"], flows=("topic",))
    assert report.faults.found == []
    assert report.starts == 1
    assert report.counts["topic: sent"] > 20


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_of_driver_worker_and_message_manager() -> None:
    report = harness(1, ["published", "worker", "manager"])
    assert report.faults.found == []
    assert report.starts == 2
    assert report.counts["queue: sent"] > 20
    assert report.counts["topic: sent"] > 20


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [11, 12])
def test_everything_is_hurt_at_random(seed: int) -> None:
    hurts = ["driver", "planned", "published", "worker", "manager", "connections", "broker", "crash", "worker"]
    report = harness(seed, hurts)
    assert report.faults.found == []
    assert report.rounds == len(hurts)


NOTICED: dict[str, tuple[list[str], set[str], tuple[str, ...]]] = {
    "forgets_the_batch": (["published"] * 4, {"doubled"}, ("topic",)),
    "publishes_in_the_task": (["planned", "worker"] * 3, {"doubled"}, ("topic",)),
    "partitions_backwards": ([], {"reordered"}, ("topic",)),
    "acknowledges_too_far": ([], {"lost", "it did not go on"}, ("queue",)),
    "reads_beyond_the_safe_point": ([], {"lost", "it did not go on"}, ("topic",)),
    "begins_again": (["published"] * 3, {"doubled", "lost", "it did not go on"}, ("queue",)),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_noticed(plant: str) -> None:
    hurts, expected, flows = NOTICED[plant]
    for seed in (1, 2):
        report = harness(seed, hurts, plant=plant, flows=flows)
        if expected & set(report.faults.counts):
            return
    pytest.fail(f"{plant} was not noticed: {report.lines()}")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_mishap_that_spark_mends_changes_nothing(mishap: str) -> None:
    report = harness(5, ["manager"], plant=mishap)
    assert report.faults.found == []
    if mishap == "tasks_fail_after_staging":
        assert report.failures == [], "Spark tries a task again, and the query knows nothing of it"
    else:
        assert report.failures


def test_the_books_notice_what_they_are_for() -> None:
    books = Books("topic", {n: f"k{n % 2}" for n in range(10)}, confirmed=set(range(10)))
    for arrived, fault in (
        (list(range(9)), "lost"),
        ([*range(10), 3], "doubled"),
        ([*range(10), 10], "invented"),
        ([0, 3, 1, 2, *range(4, 10)], "reordered"),
    ):
        faults = Faults()
        books.check(arrived, faults)
        assert fault in faults.counts
    faults = Faults()
    books.check([1, 0, *range(2, 10)], faults)  # of different keys
    assert faults.found == []
    books.taken = [9]
    books.check(list(range(10)), faults)
    assert list(faults.counts) == ["doubled"]


# --- Single cases -------------------------------------------------------------------------------------------------
def test_two_attempts_of_one_partition_driven_by_hand(server: Server, client: fairlead.sync.Connection) -> None:
    """As speculation runs them: Spark in one process does not speculate."""
    options = {"url": server.url, "destination": "speculative", "create": "true"}
    writer = FairleadSource(options=options).streamWriter(schema(), overwrite=False)
    assert isinstance(writer, StreamWriter)

    def attempt(partition: int, *bodies: bytes) -> sink.Staged:
        rows = pa.record_batch([pa.array(bodies, pa.binary())], names=["body"])
        one = sink.staged(writer._writing, "speculating", 0, iter([rows]))
        one.partition = partition
        return one

    first = attempt(0, b"0", b"1")
    slow, quick = attempt(1, b"2", b"3"), attempt(1, b"2", b"3")
    writer.commit([first, quick], 0)
    assert found(server, "speculative") == [0, 1, 2, 3]
    writer.abort([slow], 0)
    writer.commit([first, slow], 0)
    assert found(server, "speculative") == [0, 1, 2, 3], "the batch was published, whoever comes late"


def schema() -> Any:
    from pyspark.sql.types import StructType

    return StructType().add("body", "binary")


@pytest.mark.timeout(300)
def test_the_answer_to_a_publish_is_lost(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path, name: str
) -> None:
    """Spark calls `abort` for the batch that was published: nothing is undone, and the next start doubles nothing."""
    said = tmp_path / "said"
    said.mkdir()

    class Deaf(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if not (said / "published").exists():
                (said / "published").touch()
                raise ConnectionError("the answer is lost")

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().abort(messages, batchId)
            (said / "aborted").touch()

    class DeafSource(FairleadSource):
        @classmethod
        def name(cls) -> str:
            return "deaf"

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            return Deaf(Writing.parse(self.options), schema, overwrite=overwrite)

    spark.dataSource.register(DeafSource)
    client.topic(name, parameters=KEEP).send_many(numbers(0, 30))
    frame = read(spark, server, destination=name, maxRowsPerTrigger=20)
    with pytest.raises(PySparkException, match="the answer is lost"):
        begin(frame, server, tmp_path / "check", "deaf", destination=f"{name}.out").awaitTermination(SPARK_S)
    assert (said / "aborted").exists()
    assert found(server, f"{name}.out") == list(range(20))
    run(frame, server, tmp_path / "check", destination=f"{name}.out")
    assert found(server, f"{name}.out") == list(range(30))


@pytest.mark.timeout(300)
def test_an_abandoned_reservation_is_given_back_by_an_operator(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path, name: str
) -> None:
    queue = client.queue(name)
    queue.send_many(numbers(0, 20), key="k")
    frame = read(spark, server, destination=name, cursor="forgotten").selectExpr(
        "cast(raise_error('no') as binary) body"
    )
    with pytest.raises(PySparkException, match="no"):
        run(frame, server, tmp_path / "check", destination=f"{name}.out")
    shutil.rmtree(tmp_path / "check")
    with queue.consume() as consumer:
        assert consumer.receive(timeout=0.3) is None, "all of it is the query's"
        command = [
            "admin",
            "cursor",
            "release",
            "forgotten",
            "--destination",
            name,
            "--yes",
            "--data",
            str(server.data),
        ]
        subprocess.run([sys.executable, "-m", "fairlead", *command], check=True, capture_output=True, timeout=60)
        got: list[int] = []
        while len(got) < 20:
            more = consumer.receive_many(20, timeout=30)
            assert more
            consumer.ack_many(more, confirm=True)
            got += [int(message.body) for message in more]
    assert got == list(range(20))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_fresh_checkpoint_is_another_query(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path, name: str
) -> None:
    """Whoever deletes a checkpoint asks for everything once more; the pipeline page says so."""
    client.topic(name, parameters=KEEP).send_many(numbers(0, 10))
    frame = read(spark, server, destination=name)
    for checkpoint in ("one", "one", "two"):
        run(frame, server, tmp_path / checkpoint, destination=f"{name}.out")
    assert found(server, f"{name}.out") == [*range(10), *range(10)]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_messages_let_go_between_crash_and_restart_are_named_or_jumped_over(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path, name: str
) -> None:
    topic = client.topic(name, parameters={"retain_messages": 50})
    topic.send_many(numbers(0, 10))
    run(read(spark, server, destination=name), server, tmp_path / "check", destination=f"{name}.out")
    topic.send_many(numbers(10, 200))

    def kept() -> tuple[int, int]:
        with BulkConnection(server.url) as bulk:
            there = bulk.positions(name).destinations[0]
            return there.first, there.next

    becomes(lambda: kept()[0] > 100)
    first, _ = kept()
    with pytest.raises(PySparkException, match=f"messages from 11 to {first - 1} are lost"):
        run(read(spark, server, destination=name), server, tmp_path / "check", destination=f"{name}.out")
    frame = read(spark, server, destination=name, failOnDataLoss="false")
    run(frame, server, tmp_path / "check", destination=f"{name}.out")
    assert found(server, f"{name}.out") == [*range(10), *range(first - 1, 200)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_server_that_is_away_for_less_and_for_longer_than_patience(
    spark: SparkSession, server: Server, client: fairlead.sync.Connection, tmp_path: Path, name: str
) -> None:
    topic = client.topic(name, parameters=KEEP)
    topic.send_many(numbers(0, 10))

    def start(patience_s: int) -> StreamingQuery:
        frame = read(spark, server, destination=name, patience=patience_s)
        writer = frame.writeStream.format("fairlead").options(url=server.url, destination=f"{name}.out", create="true")
        return writer.option("patience", patience_s).option("checkpointLocation", str(tmp_path / "check")).start()

    query = start(60)
    query.processAllAvailable()
    server.stop()
    time.sleep(2)
    assert query.isActive
    server.start()
    topic.send_many(numbers(10, 20))
    query.processAllAvailable()
    assert query.exception() is None
    assert found(server, f"{name}.out") == list(range(20))
    query.stop()
    query = start(2)
    query.processAllAvailable()
    server.stop()
    becomes(lambda: query.exception() is not None)
    assert "Cannot connect" in str(query.exception()) or "Tried" in str(query.exception())
    server.start()
    topic.send_many(numbers(20, 30))
    run(read(spark, server, destination=name), server, tmp_path / "check", destination=f"{name}.out")
    assert found(server, f"{name}.out") == list(range(30))
