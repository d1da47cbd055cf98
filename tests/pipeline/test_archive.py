"""The job `archive` into a real lake, from a real server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import fairlead
import fairlead.sync
from fairlead.errors import ConfigError
from fairlead.pipeline import lake as lakes
from fairlead.pipeline.archive import Archive
from fairlead.pipeline.compaction import Compaction
from fairlead.pipeline.running import Context, Summary
from fairlead.testing import Server

KEEP = {"retain_messages": -1}
NAMES = ("plain", "fx.eur", "a/b", "a:b/c-d", "007", "Upper.lower")


def archive(spark: SparkSession, server: Server, lake: Path, destination: str, **more: Any) -> Summary:
    options = {"destination": destination, "lake": str(lake), "cursor": "", "since": "earliest", "max_bytes": 0}
    context = Context(name="archive", options=options | more.pop("options", {}), access={"url": server.url}, **more)
    return Archive().run(spark, context)


def feed(server: Server, name: str, rows: int, begin: int = 0) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic(name, parameters=KEEP)
        topic.send_many([b"%d" % n for n in range(begin, begin + rows)], key="k")


def numbers(spark: SparkSession, lake: Path, destination: str) -> list[int]:
    rows = lakes.read(spark, str(lake)).where(f.col("destination") == destination)
    return [int(row.body) for row in rows.orderBy("order_number").select("body").collect()]


def test_every_message_once_over_several_runs(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    feed(server, "orders", 1000)
    first = archive(spark, server, lake, "orders", rows_max=400)
    facts = first.facts()
    assert (facts["state"], facts["rows"], facts["batches"], facts["lag"]) == ("done", 1000, 3, 0)
    assert facts["bytes"] == sum(len(b"%d" % n) for n in range(1000))
    assert archive(spark, server, lake, "orders").facts()["rows"] == 0
    feed(server, "orders", 500, 1000)
    second = archive(spark, server, lake, "orders").facts()
    assert second["rows"] == 500
    (begin, middle), (again, end) = facts["ranges"]["orders"], second["ranges"]["orders"]
    assert (middle - begin, middle, end - middle) == (1000, again, 500)
    assert numbers(spark, lake, "orders") == list(range(1500))


def test_a_lake_is_read_by_spark_alone_and_has_all_columns(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    feed(server, "columns", 10)
    archive(spark, server, tmp_path, "columns")
    plain = spark.read.parquet(str(tmp_path))
    assert plain.count() == 10
    frame = lakes.read(spark, str(tmp_path))
    assert set(frame.columns) == set(plain.columns)
    there = spark.read.format("fairlead").options(url=server.url, destination="columns").load()
    assert set(frame.columns) == {*there.columns, "date"}
    same = ["order_number", "message_id", "key", "body", "header_bytes", "priority", "arrived", "size"]
    assert frame.select(*same).exceptAll(there.select(*same)).count() == 0
    row = frame.first()
    assert row is not None
    assert row.date == row.arrived.date()


def test_names_of_destinations_come_back(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    for name in NAMES:
        feed(server, name, 3)
    archive(spark, server, tmp_path, ",".join((*NAMES, "_LOG")))
    found = {
        row.destination: row["count"]
        for row in lakes.read(spark, str(tmp_path)).groupBy("destination").count().collect()
    }
    assert found.pop("_LOG") > 0
    assert found == dict.fromkeys(NAMES, 3)
    for name in NAMES:
        assert lakes.selected(lakes.read(spark, str(tmp_path)), destinations=[name]).count() == 3


def test_one_writer_at_a_time(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    feed(server, "single", 1)
    with lakes.lock(tmp_path), pytest.raises(ConfigError, match="Another job"):
        archive(spark, server, tmp_path, "single")


def test_many_small_files_become_one_and_nobody_notices(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    lake, name = tmp_path / "my lake=1 %", "a/b:c"
    feed(server, name, 1150)
    archive(spark, server, lake, name, rows_max=100)
    before = lakes.read(spark, str(lake))  # planned with the old files
    tomorrow_s = time.time() + 86_400
    with lakes.lock(lake), pytest.raises(ConfigError, match="Another job"):
        Compaction(str(lake)).run(spark, now_s=tomorrow_s)
    assert Compaction(str(lake)).run(spark, now_s=time.time())["merged"] == 0  # the day is not over
    # Killed after the new files were put in place, before the switch: they do not count, and go the next time.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lakes.Log, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Compaction(str(lake)).run(spark, now_s=tomorrow_s)
    assert numbers(spark, lake, name) == list(range(1150))
    facts = Compaction(str(lake)).run(spark, now_s=tomorrow_s)
    assert (facts["merged"], facts["into"], facts["rows"], facts["swept"]) == (10, 1, 1000, 0)
    files = [file for file in lake.rglob("*.parquet") if lakes.OWN not in file.parts]
    assert len(files) == 12 + 1
    assert before.count() == 1150
    assert numbers(spark, lake, name) == list(range(1150))
    later = Compaction(str(lake)).run(spark, now_s=tomorrow_s + 3601)
    assert (later["merged"], later["swept"]) == (0, 10)
    feed(server, name, 50, 1150)
    assert archive(spark, server, lake, name).facts()["rows"] == 50
    assert numbers(spark, lake, name) == list(range(1200))


def test_the_log_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / lakes.LOG).mkdir()
    file = tmp_path / lakes.LOG / "9.compact"
    for text, says in (("v2\n", "version"), ('v1\n{"path": "file:///x", "action": "delete"}', "nothing here writes")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            lakes.Log(tmp_path).files(file)


@pytest.mark.parametrize("name", ["plain", "a=b", "a%2Fb", "x y", "ü#?", "[a]{b}*", "a+b;c"])
def test_files_of_the_log_are_found_again(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"destination={name}" / "date=2026-01-31" / "part.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    entry = lakes.entry_of(file)
    assert lakes.path_of(entry) == file
    assert (entry["size"], entry["action"]) == (4, "add")
