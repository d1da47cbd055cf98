"""Records of streams on Spark: bodies become typed columns, exactly, and what is no record is kept beside them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

import fairlead.sync
from fairlead.cli import main
from fairlead.errors import ConfigError
from fairlead.feeds import rows
from fairlead.feeds.block_codec import StreamMessage
from fairlead.feeds.records import MESSAGE, Place
from fairlead.feeds.schema import Schema
from fairlead.pipeline.feed_records import decoded, records
from fairlead.pipeline.feed_types import plain, plain_schema
from fairlead.pipeline.recording import BODY, IDENTITY, Recording
from fairlead.testing import Server
from tests.pipeline.test_command_lines import command_lines, understood

EVERY = Schema.of(
    {
        "open": "bool",
        "i8": "int8",
        "u8": "uint8",
        "u32": "uint32",
        "u64": "uint64",
        "half": "float16",
        "real": "double",
        "day": "date32",
        "at": "timestamp[ns, tz=UTC]",
        "local": "timestamp[ms]",
        "time": "time64[ns]",
        "price": "decimal128(10, 4)",
        "round": "decimal128(3, -2)",
        "tiny": "decimal128(2, 5)",
        "tag": "fixed_size_binary[2]",
        "symbol": "string",
        "raw": "binary",
    }
)
NS = 1_700_000_000_123_456_789
ROW = {
    "open": True,
    "i8": -1,
    "u8": 255,
    "u32": 1 << 31,
    "u64": (1 << 64) - 1,
    "half": 1.5,
    "real": -0.25,
    "day": 3,
    "at": NS,
    "local": 1_700_000_000_001,
    "time": 5,
    "price": Decimal("12.3400"),
    "round": Decimal("12E2"),
    "tiny": Decimal("0.00012"),
    "tag": b"xy",
    "symbol": "Ä",
    "raw": b"\x00",
}
SHOWN = {
    "open": True,
    "i8": -1,
    "u8": 255,
    "u32": 1 << 31,
    "u64": Decimal((1 << 64) - 1),
    "half": 1.5,
    "real": -0.25,
    "day": date(1970, 1, 4),
    "at": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
    "at_ns": 789,
    "time": 5,
    "local": datetime(2023, 11, 14, 22, 13, 20, 1000),
    "price": Decimal("12.34"),
    "round": Decimal("1200"),
    "tiny": Decimal("0.00012"),
    "tag": b"xy",
    "symbol": "Ä",
    "raw": b"\x00",
}


def test_plain_types_keep_every_value() -> None:
    early = {"at": -1}  # a nanosecond before the epoch
    batch = plain(rows.decode([EVERY.encode(ROW), EVERY.encode({}), EVERY.encode(early)], EVERY), EVERY)
    first, nothing, before = batch.to_pylist()
    assert first == SHOWN
    assert set(nothing.values()) == {None}
    assert (before["at"], before["at_ns"]) == (datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), 999)


def test_what_is_no_record_is_kept_beside_those_that_are() -> None:
    schema = Schema.of({"x": "int8"})
    good = [schema.encode({"x": number}) for number in (1, 2)]
    typed, rest = decoded(pa.array([good[0], b"?", None, good[1]], pa.binary()), schema)
    assert typed.to_pylist() == [{"x": 1}, {"x": None}, {"x": None}, {"x": 2}]
    assert rest.to_pylist() == [None, b"?", None, None]
    typed, rest = decoded(pa.array([b"?"], pa.binary()), schema)
    assert (typed.to_pylist(), rest.to_pylist()) == ([{"x": None}], [b"?"])


def test_columns_that_would_be_in_each_others_way_are_refused() -> None:
    with pytest.raises(ConfigError, match="at_ns"):
        plain_schema(Schema.of({"at": "timestamp[ns]", "at_ns": "int8"}))
    with pytest.raises(ConfigError, match="digits"):
        plain_schema(Schema.of({"x": "decimal128(38, -1)"}))


def test_spark_reads_every_type(spark: SparkSession) -> None:
    bodies = [(1, EVERY.encode(ROW)), (2, EVERY.encode({})), (3, b"garbage"), (4, None)]
    struct = StructType([StructField("n", IntegerType()), StructField("body", BinaryType())])
    frame = records(spark.createDataFrame(bodies, struct), EVERY.to_json())
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = {row.n: row.asDict() for row in frame.collect()}
    first = found[1]
    assert first.pop("undecodable") is None
    assert first.pop("at").astimezone(UTC) == SHOWN["at"]
    assert first == {"n": 1, **{name: value for name, value in SHOWN.items() if name != "at"}}
    assert found[3]["undecodable"] == b"garbage"
    assert {value for row in (found[2], found[4]) for name, value in row.items() if name != "n"} == {None}


def test_spark_reads_plain_records_from_parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("plain") / "part.parquet"
    pq.write_table(pa.Table.from_batches([plain(rows.decode([EVERY.encode(ROW)], EVERY), EVERY)]), file)
    (row,) = spark.read.parquet(str(file)).collect()
    assert {**row.asDict(), "at": SHOWN["at"]} == SHOWN


def test_a_frame_that_cannot_have_the_columns_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, b"")], "x int, body binary")
    with pytest.raises(ConfigError, match="both have x"):
        records(frame, Schema.of({"x": "int8"}))
    with pytest.raises(ConfigError, match="no column 'payload'"):
        records(frame, Schema.of({"y": "int8"}), body="payload")


def test_what_was_published_to_a_topic_is_read_with_the_data_source(spark: SparkSession, server: Server) -> None:
    schema = Schema.of({"symbol": "string", "price": "int64"})
    with fairlead.sync.connect(server.url) as connection:
        topic = connection.topic("prices.recorded", parameters={"retain_messages": -1})
        topic.send_many([schema.encode({"symbol": "AB", "price": number}) for number in range(50)])
    frame = spark.read.format("fairlead").options(url=server.url, destination="prices.recorded").load()
    found = records(frame, schema).orderBy("order_number").select("symbol", "price", "undecodable").collect()
    assert [tuple(row) for row in found] == [("AB", number, None) for number in range(50)]


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "feeds-records.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run(
    spark: SparkSession,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, third = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    exec(first, names)
    said = re.findall(r"#> (.*)", first)
    assert capsys.readouterr().out.splitlines() == said

    bodies = [names["schema"].encode({"symbol": f"S{number % 2}", "price": number}) for number in range(10)]
    with Recording(tmp_path / "prices", "prices.emea") as recording:
        messages = [StreamMessage(n, MESSAGE, "DAY", n, 1, 1, body) for n, body in enumerate(bodies, 1)]
        recording.add(messages, {"DAY": Place(10)}, names["schema"], datetime.now(UTC))
        recording.commit()
    monkeypatch.chdir(tmp_path)
    exec(second, names)
    assert "S0          5    0    8" in capsys.readouterr().out

    with fairlead.sync.connect(server.url) as connection:
        connection.topic("prices.emea", parameters={"retain_messages": -1}).send_many(bodies)
    exec(third.replace("fairlead://localhost", server.url), names)
    assert "|    S1|         9|" in capsys.readouterr().out


def test_the_commands_of_the_page_exist() -> None:
    lines = command_lines("docs/feeds-records.md")
    assert len(lines) == 2
    for words in lines:
        understood(main, words)


def test_every_column_of_a_recording_is_in_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", PAGE.split("## 2.")[1], re.MULTILINE))))
    assert named >= {*IDENTITY.names, BODY.name}
