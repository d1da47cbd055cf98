"""The job `replay`: what was archived, sent again."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fairlead
import fairlead.sync
from fairlead.errors import ConfigError
from fairlead.pipeline.archive import Archive
from fairlead.pipeline.batches import Batch, Piece, Plan, batches, joined
from fairlead.pipeline.replay import Replay
from fairlead.pipeline.running import Context, Summary
from fairlead.testing import Server

KEEP = {"retain_messages": -1}
ROWS = 500


@pytest.fixture(scope="module")
def lake(spark: SparkSession, server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """`in.a` and `in.b`, each with numbered bodies, and one message with everything a message can have."""
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        for name in ("in.a", "in.b"):
            connection.topic(name, parameters=KEEP).send_many([b"%d" % n for n in range(ROWS)], key="k")
        connection.topic("in.a").send(
            "last", key="clé", priority=7, properties={"region": "eu", "n": 7, "f": 0.5, "b": True, "y": b"\x01"},
            type="t", correlation_id="c",
        )  # fmt: skip
    directory = str(tmp_path_factory.mktemp("lake"))
    options = {"destination": "in.>", "lake": directory, "cursor": "", "since": "earliest", "max_bytes": 0}
    Archive().run(spark, Context(name="archive", options=options, access={"url": server.url}))
    return directory


OPTIONS = {
    "destination": "", "where": "", "since": "", "before": "", "to_destination": "", "prefix": "", "create": "queue",
    "pace": None, "dry_run": False,
}  # fmt: skip


def replay(spark: SparkSession, server: Server, lake: str, checkpoint: Path, rows: int = 0, **options: Any) -> Summary:
    given = {**OPTIONS, "lake": lake, **options}
    Replay().check(given)
    context = Context(
        name="replay", options=given, access={"url": server.url}, checkpoint=str(checkpoint), rows_max=rows
    )
    return Replay().run(spark, context)


def received(server: Server, name: str) -> list[Any]:
    with fairlead.sync.connect(server.url, name="reader") as connection, connection.queue(name).consume() as consumer:
        found: list[Any] = []
        while (more := consumer.receive_many(1000, timeout=0.3)) or connection.admin.destination(destination=name)[
            "depth"
        ]:
            found += more
            for message in more:
                message.ack()
        return found


def test_faithful_in_order_and_resumed_without_doubles(
    spark: SparkSession, server: Server, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Plan.advance, []

    def dies_before_it_is_noted(plan: Plan, directory: Path) -> None:
        calls.append(plan.done)
        if len(calls) == 2:
            raise KeyboardInterrupt  # batch 1 is published, and nobody wrote it down
        real(plan, directory)

    monkeypatch.setattr(Plan, "advance", dies_before_it_is_noted)
    with pytest.raises(KeyboardInterrupt):
        replay(spark, server, lake, tmp_path, 300, prefix="again.")
    facts = replay(spark, server, lake, tmp_path, 300, prefix="again.").facts()
    assert (facts["state"], facts["left"], facts["planned"]) == ("done", 0, 2 * ROWS + 1)
    a, b = received(server, "again.in.a"), received(server, "again.in.b")
    assert [message.body for message in a] == [b"last", *(b"%d" % n for n in range(ROWS))]  # by priority
    assert [message.body for message in b] == [b"%d" % n for n in range(ROWS)]
    last = a[0]
    assert (last.key, last.priority, last.type, last.correlation_id) == ("clé", 7, "t", "c")
    assert dict(last.properties) == {"region": "eu", "n": 7, "f": 0.5, "b": True, "y": b"\x01"}
    with pytest.raises(ConfigError, match="something else"):
        replay(spark, server, lake, tmp_path, 300, prefix="other.")


def test_some_of_them_to_one_place(spark: SparkSession, server: Server, lake: str, tmp_path: Path) -> None:
    some = {"destination": "in.b", "where": "cast(cast(body as string) as int) % 100 = 7", "to_destination": "one"}
    dry = replay(spark, server, lake, tmp_path, dry_run=True, **some).facts()
    assert (dry["rows"], dry["dry_run"]) == (5, True)
    assert not list(tmp_path.iterdir())
    assert replay(spark, server, lake, tmp_path, **some).facts()["rows"] == 5
    assert [message.body for message in received(server, "one")] == [b"7", b"107", b"207", b"307", b"407"]


def test_what_does_not_fit_together(spark: SparkSession, server: Server, lake: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where to"):
        replay(spark, server, lake, tmp_path)
    with pytest.raises(ConfigError, match="no lake"):
        replay(spark, server, str(tmp_path / "nothing"), tmp_path, prefix="x.")
    with pytest.raises(ConfigError, match="A time"):
        replay(spark, server, lake, tmp_path, prefix="x.", since="yesterday")


# The plan, which is arithmetic.


def test_batches_keep_the_order_of_each_destination() -> None:
    found = [
        Piece("a", 0, 10, 10, 1000), Piece("a", 10, 20, 10, 900), Piece("a", 20, 30, 10, 3000),
        Piece("b", 5, 15, 10, 2000), Piece("b", 15, 16, 1, 2500),
    ]  # fmt: skip
    plan = batches(found, 20)
    assert [one.number for one in plan] == list(range(len(plan)))
    assert sum(one.rows for one in plan) == 41
    for name in ("a", "b"):
        spans = [one.ranges[name] for one in plan if name in one.ranges]
        assert spans == sorted(spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(one.rows <= 20 for one in plan)


def test_stretches_of_time_that_overlap_are_one() -> None:
    found = [Piece("a", 0, 10, 8, 1000), Piece("a", 5, 12, 4, 500), Piece("a", 12, 20, 8, 700)]
    assert joined(found) == [Piece("a", 0, 12, 12, 500), Piece("a", 12, 20, 8, 700)]
    stretches = batches([Piece("a", 0, 5, 5, 1000), Piece("b", 0, 5, 5, 1999), Piece("a", 5, 9, 4, 2000)], 100, 1000)
    assert [dict(one.ranges) for one in stretches] == [{"a": (0, 5), "b": (0, 5)}, {"a": (5, 9)}]


def test_a_plan_that_is_damaged_is_refused(tmp_path: Path) -> None:
    Plan({"x": 1}, [Batch(0, 1, 2, {"a": (0, 1)})]).save(tmp_path)
    assert Plan.load(tmp_path, {"x": 1}) is not None
    with pytest.raises(ConfigError, match="something else"):
        Plan.load(tmp_path, {"x": 2})
    (tmp_path / "plan.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(ConfigError, match="version"):
        Plan.load(tmp_path, {})
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        Plan.load(tmp_path, {})


def test_the_pace_is_kept(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("paced", parameters=KEEP)
        topic.send(b"0")
        began_s = time.monotonic()
        while time.monotonic() < began_s + 2.2:
            time.sleep(0.05)
        topic.send(b"1")
    lake = str(tmp_path / "lake")
    options = {"destination": "paced", "lake": lake, "cursor": "", "since": "earliest", "max_bytes": 0}
    Archive().run(spark, Context(name="archive", options=options, access={"url": server.url}))
    replay(spark, server, lake, tmp_path / "state", to_destination="slow", pace=1.0)
    first, second = received(server, "slow")
    assert (first.body, second.body) == (b"0", b"1")
    rows = spark.read.format("fairlead").options(url=server.url, destination="paced").load().select("arrived").collect()
    assert (rows[1].arrived - rows[0].arrived).total_seconds() >= 2
    assert json.loads((tmp_path / "state" / "done.json").read_text())["done"] == 2
