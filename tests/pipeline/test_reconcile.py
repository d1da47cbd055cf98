"""Every message accounted for: planted faults by the hundred thousand, awkward ones by hand, and the job itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import fairlead.sync
from fairlead.errors import ConfigError
from fairlead.pipeline import accounts
from fairlead.pipeline.reconcile import Reconcile, facts_of, manifest_of, page_of
from fairlead.pipeline.running import Context
from fairlead.testing import Server
from tests.pipeline.planting import compare, plant

pytestmark = pytest.mark.timeout(600)  # Spark on a busy machine

LEAST, MOST = -(1 << 63), (1 << 63) - 1
SHAPE = "stream_id string, stream_sequence bigint, order_number bigint, body string, destination string"


def test_all_planted_faults_are_found_and_none_is_invented(spark: SparkSession, tmp_path: Path) -> None:
    planting = plant(spark, tmp_path, rows=200_000, streams=5, seed=7)
    where = str(tmp_path / "ranges")
    accounts.ranges(planting.books(spark, block_bits=10)).write.parquet(where)
    found = spark.read.parquet(where)
    verdict = compare(spark, planting, found)
    assert verdict.is_exact, verdict
    assert set(verdict.planted) == {*accounts.FATES, *accounts.FAULTS}, "every kind was planted"
    assert verdict.ranges < verdict.planted["delivered"] / 50, "ranges, not rows"
    facts = facts_of(found, listed=3)
    totals = facts["totals"]
    assert totals["sent"] + totals["unsent"] == sum(totals[fate] for fate in accounts.FATES) == 200_000
    assert [row["sent"] for row in facts["destinations"]] == [
        sum(row[fate] for fate in accounts.FATES) - row["unsent"] for row in facts["destinations"]
    ]
    assert totals["copies"] == 2 * totals["doubled"], "three of each were planted"
    assert all(len(one["listed"]) <= 3 <= one["ranges"] for one in facts["faults"].values())
    assert facts["streams_in_all"] == 5
    assert not facts["is_clean"]
    assert not facts["is_balanced"]


def rows(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    """stream, number, place, body; all for one destination."""
    full = [(*one, *(None,) * (4 - len(one)), "orders") for one in given]
    return accounts.known(spark.createDataFrame(full, SHAPE))


def ranges(books: accounts.Books, *kinds: str) -> list[tuple[Any, ...]]:
    shown = ("kind", "stream", "first", "last", "count")
    found = accounts.ranges(books).collect()
    return sorted(tuple(row[name] for name in shown) for row in found if row["kind"] in kinds)


@pytest.mark.long
def test_holes_at_every_border(spark: SparkSession) -> None:
    """Blocks of four numbers: holes within one, across borders, of whole blocks, and at both ends of a bigint."""
    seen = [1, 2, 4, 7, 8, 15, 16, 30]
    received = rows(
        spark,
        *(("a", n, n) for n in seen),
        *(("b", n, 100) for n in (LEAST, LEAST + 1, MOST)),
        ("c", 5, 1),
        (None, 7, 9),
        ("d", None, 9),
    )
    books = accounts.Books(received, dense=True, block_bits=2)
    assert ranges(books, "lost") == [
        ("lost", "a", 3, 3, 1),
        ("lost", "a", 5, 6, 2),
        ("lost", "a", 9, 14, 6),
        ("lost", "a", 17, 29, 13),
        ("lost", "b", LEAST + 2, MOST - 1, accounts.BIGGEST),  # more than a bigint counts
    ]
    assert [one[:4] for one in ranges(books, "delivered") if one[1] == "a"] == [
        *(("delivered", "a", low, high) for low, high in ((1, 2), (4, 4), (7, 8), (15, 16), (30, 30)))
    ]
    totals = facts_of(accounts.ranges(books))["totals"]
    assert totals["lost"] == 22 + accounts.BIGGEST
    first = accounts.Books(rows(spark, ("c", 5, 1)), dense=True, first=1)
    assert ranges(first, "lost") == [("lost", "c", 1, 4, 4)]


def test_order_is_judged_across_blocks_and_by_the_first_copy(spark: SparkSession) -> None:
    received = rows(
        spark,
        *(("a", n, n * 10) for n in (1, 3, 5, 6, 7, 8, 9)),
        ("a", 2, 85),  # behind 3 to 8: two blocks further on
        ("a", 3, 95),  # a second copy is late in order, but the first was not
        ("a", 4, 45),  # in time: 5 came at 50
        ("b", 2, 1),
        ("b", 1, 2),
    )
    books = accounts.Books(received, block_bits=1)
    assert ranges(books, "reordered") == [("reordered", "a", 2, 2, 1), ("reordered", "b", 1, 1, 1)]
    assert ranges(books, "doubled") == [("doubled", "a", 3, 3, 1)]


def test_what_became_of_each(spark: SparkSession) -> None:
    sent = accounts.known(
        spark.createDataFrame(
            [("a", n, "x", datetime(2026, 1, 1 if n == 5 else 9, tzinfo=UTC) if n > 4 else None) for n in range(1, 9)],
            "stream_id string, stream_sequence bigint, body string, expires timestamp",
        )
    )
    received = rows(spark, ("a", 1, 1, "x"), ("a", 2, 2, "y"), ("a", 99, 3, "x"))
    waiting = rows(spark, ("a", 3, 7, "x"), ("a", 1, 8, "x"))
    dead = rows(spark, ("a", 4, 1, "x"))
    as_of = datetime(2026, 1, 5, tzinfo=UTC)
    books = accounts.Books(received, sent, waiting, dead, as_of=as_of)
    kinds = {*accounts.FATES, *accounts.FAULTS}
    assert ranges(books, *kinds) == [
        ("altered", "a", 2, 2, 1),
        ("dead", "a", 4, 4, 1),
        ("delivered", "a", 1, 2, 2),
        ("delivered", "a", 99, 99, 1),
        ("expired", "a", 5, 5, 1),
        ("lost", "a", 6, 8, 3),
        ("overlap", "a", 1, 1, 1),
        ("unsent", "a", 99, 99, 1),
        ("waiting", "a", 3, 3, 1),
    ]


def test_a_manifest_says_what_was_sent(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({"streams": {"a": [[1, 70_000]], "b": [[5, 6], [9, 9]], "empty": []}}))
    sent = accounts.sent_by_ranges(spark, manifest_of(str(file)))
    assert sent.count() == 70_003
    books = accounts.Books(rows(spark, ("a", 66_000), ("b", 5), ("b", 9)), sent)
    assert ranges(books, "lost") == [
        ("lost", "a", 1, 65_999, 65_999),
        ("lost", "a", 66_001, 70_000, 4_000),
        ("lost", "b", 6, 6, 1),
    ]


@pytest.mark.parametrize(
    "said",
    ['{"a": [[2, 1]]}', '{"a": 3}', '{"a": [[1]]}', '{"a": [[1, "x"]]}', '{"a": [[0, 99999999999]]}', "[1]", "nonsense",
     '{"a": [[1, 9223372036854775808]]}', "[" * 100_000],
)  # fmt: skip
def test_a_bad_manifest_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path, said: str) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(said)
    with pytest.raises(ConfigError):
        accounts.sent_by_ranges(spark, manifest_of(str(file)))
    with pytest.raises(ConfigError):
        manifest_of(str(tmp_path / "none"))


def test_a_frame_without_numbers_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="no column stream_id"):
        accounts.known(spark.createDataFrame([(1,)], "order_number bigint"))


def reconcile(spark: SparkSession, output: Path, access: dict[str, str], **options: Any) -> dict[str, Any]:
    given = {
        "sent": "",
        "waiting": "",
        "dead": "",
        "only": "",
        "by": "stream",
        "dense": None,
        "first": None,
        "late": 0.0,
        "digest": "xxhash64",
        "output": str(output),
        "listed": 100,
        "counters": False,
        **options,
    }
    job = Reconcile()
    job.check(given)
    context = Context(name="reconcile", options=given, access=access)
    assert job.run(spark, context).state == "done"
    facts: dict[str, Any] = json.loads((output / "report.json").read_text())
    assert not (output / ".work").exists(), "what was put aside is gone"
    return facts


def test_the_job_against_a_server(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A feed that was sent through a queue: some consumed, one rejected to death, the rest waiting, one never sent."""
    access = {"url": server.url}
    feed = spark.range(1, 41).where("id <> 7").selectExpr(
        "cast(concat('body ', id) as binary) as body", "'feed' as stream_id", "id as stream_sequence"
    )  # fmt: skip
    feed.coalesce(1).write.format("fairlead").mode("append").options(
        **access, destination="work", create="true", kind="queue"
    ).save()
    consumed = []
    worker = fairlead.sync.connect(server.url, name="worker")
    with worker, worker.queue("work").consume() as consumer:
        for number in range(10):
            message = consumer.receive(timeout=20)
            assert message is not None
            if number == 3:
                message.reject(confirm=True)
            else:
                message.ack(confirm=True)
                consumed.append((message.body, "feed", int(message.body.split()[1])))
    got = tmp_path / "got"
    spark.createDataFrame(consumed, "body binary, stream_id string, stream_sequence bigint").write.parquet(str(got))
    (tmp_path / "manifest.json").write_text('{"feed": [[1, 40]]}')
    facts = reconcile(
        spark,
        tmp_path / "out",
        access,
        sent=f"manifest:{tmp_path / 'manifest.json'}",
        received=f"parquet:{got}",
        waiting="work",
        dead="_DMQ",
        counters=True,
    )
    totals = facts["totals"]
    assert {fate: totals[fate] for fate in ("sent", *accounts.FATES)} == {
        "sent": 40,
        "delivered": 9,
        "waiting": 29,
        "dead": 1,
        "expired": 0,
        "lost": 1,
    }
    (lost,) = facts["faults"]["lost"]["listed"]
    assert (lost["first"], lost["last"]) == (7, 7)
    (dead,) = facts["faults"]["dead"]["listed"]
    assert (dead["reason"], dead["count"]) == ("rejected", 1)
    assert {one["name"]: one["depth"] for one in facts["broker"]}["work"] == 29
    assert not facts["is_balanced"]
    assert "do not balance" in (tmp_path / "out" / "report.html").read_text()


def test_by_order_numbers(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Messages without numbers of their own: the archive of a topic against the topic."""
    access = {"url": server.url}
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        connection.topic("ticks", parameters={"retain_messages": -1}).send_many([b"%d" % n for n in range(100)])
    kept = spark.read.format("fairlead").options(**access, destination="ticks").load()
    kept.where("order_number % 50 <> 20").write.parquet(str(tmp_path / "archive"))
    facts = reconcile(
        spark, tmp_path / "out", access, sent="ticks", received=f"parquet:{tmp_path / 'archive'}", by="order"
    )
    assert [(one["first"], one["last"]) for one in facts["faults"]["lost"]["listed"]] == [(20, 20), (70, 70)]
    assert facts["totals"]["delivered"] == 98
    without = reconcile(spark, tmp_path / "other", access, received="ticks")
    assert without["rows"] == {"received": {"rows": 100, "unnumbered": 100}}
    assert "Messages without a stream and a number: 100 received." in page_of(without).html()


def test_a_lake_has_the_living_and_the_dead(spark: SparkSession, tmp_path: Path) -> None:
    """One lake for everything, as the archive makes it: what is in the dead queue was not received."""
    lake = str(tmp_path / "lake")
    died = "map('dead-reason', 'rejected', 'dead-destination', 'orders')"
    spark.range(1, 11).selectExpr(
        "case when id = 4 then '_DMQ' else 'orders' end as destination",
        "date'2026-01-01' as date",
        "id as order_number",
        "cast(id as string) as message_id",
        f"case when id = 4 then {died} else map('from', 'x') end as headers",
        "'feed' as stream_id",
        "id as stream_sequence",
    ).where("stream_sequence <> 8").write.partitionBy("destination", "date").parquet(lake)
    facts = reconcile(spark, tmp_path / "out", {}, received=f"lake:{lake}", dead=f"lake:{lake}", only="orders")
    assert {fate: facts["totals"][fate] for fate in accounts.FATES} == {
        "delivered": 8,
        "waiting": 0,
        "dead": 1,
        "expired": 0,
        "lost": 1,
    }
    everything = reconcile(spark, tmp_path / "out", {}, received=f"lake:{lake}", dead=f"lake:{lake}")
    assert everything["totals"] == facts["totals"], "and a second run takes the place of the first"
    with pytest.raises(ConfigError, match="exclude one another"):
        reconcile(spark, tmp_path / "out", {}, received=f"lake:{lake}", dead="_DMQ", by="order")
