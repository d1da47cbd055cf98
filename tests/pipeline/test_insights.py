"""The numbers of `insights` against sums made by hand, and the job against a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fairlead.sync
from fairlead.errors import ConfigError
from fairlead.pipeline.insights import Insights, events_of, facts_of
from fairlead.pipeline.insights_page import page_of
from fairlead.pipeline.running import Context
from fairlead.testing import Server

pytestmark = pytest.mark.timeout(600)  # Spark on a busy machine

EVIL = "<script>alert(1)</script>"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
SHAPE = (
    "destination string, key string, headers map<string,string>, published timestamp, arrived timestamp, "
    "delivery_count int, size bigint, order_number bigint"
)
EMPTY = {"job": "insights", "made": "now", "inputs": {}, "events": None, "broker": []}


def message(destination: str, at_ms: int, **more: Any) -> tuple[Any, ...]:
    arrived = BEGAN + timedelta(milliseconds=at_ms)
    published = arrived - timedelta(milliseconds=more.get("wait_ms", 1))
    headers = {"from": more["who"]} if "who" in more else {}
    headers |= more.get("headers", {})
    return (
        destination,
        more.get("key"),
        headers,
        published,
        arrived,
        more.get("count", 0),
        more.get("size", 100),
        at_ms,
    )


def test_numbers(spark: SparkSession) -> None:
    rows = [message("a", n * 10, who="x", key="k", wait_ms=n, size=n) for n in range(1, 1001)]
    rows += [message("b", 20_000 + n, who="y", size=1 << 20, count=n % 4) for n in range(100)]
    rows += [message(EVIL, 60_123, key=EVIL, who=EVIL, wait_ms=-5)]
    stone = {"dead-destination": "a", "dead-reason": "rejected", "dead-count": "5"}
    dead = [message("_DMQ", n, headers=stone) for n in (1, 2)]
    dead.append(message("_DMQ", 3, headers={"dead-destination": EVIL, "dead-reason": EVIL, "dead-count": "many"}))
    facts = facts_of(spark.createDataFrame(rows, SHAPE), spark.createDataFrame(dead, SHAPE))
    assert facts["totals"]["messages"] == 1101
    assert facts["totals"]["bytes"] == 1000 * 1001 // 2 + (100 << 20) + 100
    a, b, evil = facts["destinations"]
    assert [one["destination"] for one in (a, b, evil)] == ["a", "b", EVIL]
    assert a["wait_us"] == {"p50": 500_000, "p90": 900_000, "p99": 990_000, "p99.9": 999_000}
    assert (a["wait_max_us"], a["before_sent"], evil["before_sent"]) == (1_000_000, 0, 1)
    assert (b["redelivered"], b["deliveries_max"]) == (50, 3)
    assert facts["deliveries"] == {"0": 1026, "1": 25, "2": 25, "3": 25}
    traffic = facts["traffic"]
    assert {name: sum(values) for name, values in traffic["messages"].items()} == {"a": 1000, "b": 100, EVIL: 1}
    assert traffic["step_s"] == 1
    assert len(traffic["times_s"]) == 61
    assert facts["sizes"]["1048576"] == 100
    assert sum(facts["sizes"].values()) == 1101
    shares = facts["producers"]
    assert {row["producer"]: row["messages"] for row in shares["top"]} == {"x": 1000, "y": 100, EVIL: 1}
    assert shares["evenness"] == round(1101**2 / (3 * (1000**2 + 100**2 + 1)), 4)
    assert facts["keys"]["top"][0] | {} == {
        "destination": "a",
        "key": "k",
        "messages": 1000,
        "bytes": 500_500,
        "share": round(1000 / 1101, 6),
    }
    assert facts["gaps"] == {"gaps": 0, "top": []}
    assert facts["dead"]["messages"] == 3
    assert facts["dead"]["by"][0] == {"destination": "a", "reason": "rejected", "messages": 2, "deliveries_max": 5}
    html = page_of({**EMPTY, **facts}).html()
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)" in html


def test_silences_to_the_microsecond(spark: SparkSession) -> None:
    rows = [message("a", at) for at in (0, 999, 1000, 5999, 6000, 11_001, 11_002, 11_900)] + [message("b", 50_000)]
    facts = facts_of(spark.createDataFrame(rows, SHAPE), gap_s=4.999)
    began_us = int(BEGAN.timestamp() * 1e6)
    found = [((one["from_us"] - began_us) // 1000, one["length_us"]) for one in facts["gaps"]["top"]]
    assert found == [(6000, 5_001_000), (1000, 4_999_000)]


def test_nothing_and_hostile_times(spark: SparkSession) -> None:
    nothing = facts_of(spark.createDataFrame([], SHAPE))
    assert "There were no messages." in page_of({**EMPTY, **nothing}).html()
    ends = (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC))
    ages = [("a", None, {}, BEGAN, when, 1, 1, 1) for when in ends]
    facts = facts_of(spark.createDataFrame(ages, SHAPE))
    assert len(facts["traffic"]["times_s"]) < 200
    page_of({**EMPTY, **facts}).html()


def test_events_and_lines_that_are_none(spark: SparkSession) -> None:
    def line(ms: int, level: str, code: str) -> str:
        return json.dumps({"node": "mm-0", "ms": ms, "level": level, "code": code, "text": f"{EVIL} {code}"})

    lines = [line(n, "info", "created") for n in range(5)] + [line(9, "error", "full"), line(8, "warning", "slow")]
    lines += ["nonsense", "{}", '{"ms": "x", "code": 3}', "[" * 1000]
    facts = events_of(spark.createDataFrame([(one.encode(),) for one in lines], "body binary"))
    assert (facts["lines"], facts["strange"]) == (11, 4)
    assert [(one["code"], one["count"]) for one in facts["codes"]] == [("created", 5), ("full", 1), ("slow", 1)]
    assert [one["code"] for one in facts["latest"]] == ["full", "slow"]


def test_the_job_against_a_server(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("quotes", parameters={"retain_messages": -1})
        topic.send_many([b"x" * 10 for _ in range(500)], key="k")
    log = tmp_path / "events.jsonl"
    log.write_text('{"node": "mm-0", "ms": 5, "level": "warning", "code": "slow", "text": "It was slow."}\n')
    options = {
        "source": "quotes",
        "only": "",
        "dead": "_DMQ",
        "log": f"file:{log}",
        "counters": True,
        "gap": 5.0,
        "output": str(tmp_path / "out"),
    }
    job = Insights()
    job.check(options)
    summary = job.run(spark, Context(name="insights", options=options, access={"url": server.url}))
    assert (summary.facts()["rows"], summary.facts()["bytes"]) == (500, 5000)
    facts = json.loads((tmp_path / "out" / "insights.json").read_text())
    assert facts["keys"]["top"][0]["messages"] == 500
    assert facts["events"]["codes"][0]["code"] == "slow"
    assert {one["name"] for one in facts["broker"]} >= {"quotes", "_DMQ"}
    html = (tmp_path / "out" / "insights.html").read_text()
    assert "quotes" in html
    assert "It was slow." in html
    with pytest.raises(ConfigError, match="no file"):
        job.check({**options, "log": "file:/nowhere/events.jsonl"})
