"""The job `normalise` with the converter of the examples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fairlead.sync
from fairlead.errors import ConfigError
from fairlead.pipeline.archive import Archive
from fairlead.pipeline.normalise import Normalise
from fairlead.pipeline.running import Context, Summary
from fairlead.testing import Server

KEEP = {"retain_messages": -1}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GOOD, BAD = 400, 3
CONVERTERS = """
import pyarrow as pa
from fairlead.pipeline.converters import converter

@converter(takes=pa.schema([("body", pa.binary())]), gives=pa.schema([("value", pa.binary())]))
def doubled(batch):
    return pa.RecordBatch.from_pylist([{"value": b"%d" % (2 * int(body))} for body in batch.column(0).to_pylist()])
"""

OPTIONS = {
    "destination": "", "lake": "", "cursor": "", "where": "", "since": "", "before": "", "converter": "quotes:quotes",
    "output": "", "to_destination": "", "create": None, "rejected": "",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where converters are found: here, not by the workers of Spark."""
    directory = tmp_path_factory.mktemp("converters")
    (directory / "numbers_of_tests.py").write_text(CONVERTERS)
    with pytest.MonkeyPatch.context() as patch:
        for one in (EXAMPLES, directory):
            patch.syspath_prepend(str(one))
        yield directory
    for name in ("quotes", "numbers_of_tests"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def feed(server: Server) -> str:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("fx.quotes", parameters=KEEP)
        topic.send_many([b"EURUSD;1.%03d;%d" % (n, n) for n in range(GOOD)])
        topic.send_many([b"nonsense", b"EURUSD;x;1", b"\xff"])
    return "fx.quotes"


def normalise(spark: SparkSession, server: Server, checkpoint: Path, rows: int = 0, **options: Any) -> Summary:
    given = OPTIONS | options
    Normalise().check(given)
    context = Context(
        name="normalise", options=given, access={"url": server.url}, checkpoint=str(checkpoint), rows_max=rows
    )
    return Normalise().run(spark, context)


def test_a_feed_to_records_and_what_is_left(spark: SparkSession, server: Server, feed: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    facts = normalise(spark, server, tmp_path / "c", 250, destination=feed, output=str(out)).facts()
    assert (facts["rows"], facts["converted"], facts["rejected"], facts["batches"]) == (GOOD + BAD, GOOD, BAD, 2)
    records = spark.read.parquet(str(out))
    assert sorted(row.volume for row in records.collect()) == list(range(GOOD))
    left = spark.read.parquet(str(tmp_path / "out-rejected")).collect()
    assert {bytes(row.body) for row in left} == {b"nonsense", b"EURUSD;x;1", b"\xff"}
    assert all("ArrowInvalid" in row.reason for row in left)
    assert normalise(spark, server, tmp_path / "c", destination=feed, output=str(out)).facts()["rows"] == 0


def test_history_is_gone_on_with(
    spark: SparkSession, server: Server, feed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, out = str(tmp_path / "lake"), str(tmp_path / "out")
    options = {"destination": feed, "lake": lake, "cursor": "", "since": "earliest", "max_bytes": 0}
    Archive().run(spark, Context(name="archive", options=options, access={"url": server.url}))
    from fairlead.pipeline.batches import Plan

    real = Plan.advance
    monkeypatch.setattr(Plan, "advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        normalise(spark, server, tmp_path / "c", 250, lake=lake, output=out)
    monkeypatch.setattr(Plan, "advance", real)
    facts = normalise(spark, server, tmp_path / "c", 250, lake=lake, output=out).facts()
    assert (facts["converted"], facts["rejected"]) == (GOOD, BAD)
    assert sorted(row.volume for row in spark.read.parquet(out).collect()) == list(range(GOOD))


def test_records_as_messages(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        connection.topic("numbers", parameters=KEEP).send_many([b"1", b"x", b"3"])
        facts = normalise(
            spark, server, tmp_path / "c", destination="numbers", converter="numbers_of_tests:doubled",
            to_destination="doubled", create="queue", rejected=str(tmp_path / "left"),
        ).facts()  # fmt: skip
        assert (facts["converted"], facts["rejected"]) == (2, 1)
        with connection.queue("doubled").consume() as consumer:
            assert [message.body for message in consumer.receive_many(2, timeout=5)] == [b"2", b"6"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"destination": "x"}, "where to"),
        ({"output": "x"}, "what to read"),
        ({"destination": "x", "to_destination": "y"}, "--rejected"),
        ({"destination": "x", "output": "y", "where": "true"}, "choose from a lake"),
        ({"destination": "x", "output": "hdfs://y/z"}, "on this machine"),
        ({"destination": "x", "output": "y", "converter": "nothing:there"}, "no converter"),
    ],
)
def test_what_does_not_fit_together(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Normalise().check(OPTIONS | options)
