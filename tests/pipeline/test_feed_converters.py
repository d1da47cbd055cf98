"""The converters of feeds are the pipeline's: one function, live and on Spark; found by name, in any package."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fairlead.errors import ConfigError
from fairlead.feeds.making import maker
from fairlead.feeds.rows import decode
from fairlead.feeds.schema import Schema
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.events import SourceBatch
from fairlead.feeds.sources.runs import rows_of
from fairlead.pipeline.converters import READY_MADE, convert, load, split

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_same_messages_live_and_on_spark_give_the_same_records(spark: SparkSession) -> None:
    source = rows_of([TradingDay(seed=3, messages=20_000, malformed=50).run(1, 20_000)])
    one = maker("itch")
    made = one.make(SourceBatch("day", source))
    ends = [0, *made.ends.tolist()]
    bodies = [made.data[a:b] for a, b in pairwise(ends)]
    live = decode(
        [body for kind, body in zip(made.kinds, bodies, strict=True) if kind == 1], Schema.from_json(one.schema)
    )

    frame = spark.createDataFrame(pa.Table.from_batches([source])).repartition(4)
    good, bad = split(convert(frame, load("itch")).cache())
    rows = good.toArrow().to_pandas().sort_values("source_sequence", kind="stable").reset_index(drop=True)
    assert rows["source_sequence"].tolist() == made.sequences[made.kinds == 1].tolist()
    assert rows.drop(columns="source_sequence").equals(live.to_pandas())
    assert sorted(row.source_sequence for row in bad.collect()) == made.sequences[made.kinds == 3].tolist()


def test_adapters_do_not_need_spark() -> None:
    """Nor does whoever imports the converters: pyspark takes seconds, and a Java."""
    program = (
        "import sys, fairlead.pipeline.converters as c; c.load('itch');"
        "import fairlead.feeds.making, fairlead.feeds.edge.sources.udp; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_our_own_names_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["fairlead.converters"] == READY_MADE


def test_converters_of_other_packages_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebodys-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[fairlead.converters]\nnumbers = tests.pipeline.test_converters:numbers\nitch = somebodys:other\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("numbers").gives.names == ["order_number", "number"]
    with pytest.raises(ConfigError, match=r"Several packages have a converter 'itch'.*somebodys:other"):
        load("itch")
    with pytest.raises(ConfigError, match="or one of csv, fix, itch, json, numbers; not 'nothing'"):
        load("nothing")
