"""The examples of docs/pipeline.md run as they stand, and its tables are complete."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fairlead
import fairlead.sync
from fairlead.pipeline.arrow import SCHEMA
from fairlead.pipeline.options import ACCESS, READING, WRITING
from fairlead.pipeline.outgoing import ACCEPTED
from fairlead.pipeline.schema import struct_of
from fairlead.testing import Server
from tests.pipeline.starting import patiently

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")


def test_the_examples_run(spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = {"retain_messages": -1}
    with fairlead.sync.connect(server.url, name="feeder") as client:
        client.queue("orders").send_many([b"x"] * 3, key="customer-7")
        client.topic("quotes", parameters=keep).send_many([b"1.5", b"2.5", b"no price"])
        client.topic("trades.eur", parameters=keep).send_many([b'{"price": 2, "symbol": "EUR"}', b"{broken"])
        monkeypatch.chdir(tmp_path)
        names: dict[str, object] = {}
        for example in re.findall(r"```python\n(.*?)```", PAGE, re.S):
            example = example.replace("fairlead://localhost", server.url)
            example = example.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')  # Java stays where it was started
            program = compile(example, "docs/pipeline.md", "exec")
            patiently(partial(exec, program, names))
        with client.queue("summaries").consume() as consumer:
            assert [(m.key, m.body) for m in consumer.receive_many(5, timeout=5)] == [("EUR", b"2.0")]
        with client.queue("hourly").consume() as consumer:
            assert len(consumer.receive_many(50, timeout=1)) == 5, "the second time nothing was written"
    assert spark.read.format("fairlead").option("url", server.url).load("copy.>").count() == 2
    assert names["rows"].count() == 2  # type: ignore[attr-defined]


def test_every_option_and_column_is_in_the_tables() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*ACCESS, *READING, *WRITING} <= named
    assert set(SCHEMA.names) <= named
    assert set(ACCEPTED) <= named
    for field in struct_of(SCHEMA.names):
        (row,) = re.findall(
            rf"^\|[^|]*`{field.name}`[^|]*\|([^|]*)\|([^|]*)\|[^|]*\|$", PAGE.split("## Columns")[1], re.M
        )
        assert field.dataType.simpleString().replace(",", ", ") in row[0]
        assert field.nullable == (row[1].strip() == "yes"), field.name
