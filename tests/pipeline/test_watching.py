"""Gaps and copies while they happen: the machine against a plain set, and a streaming query that is started again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline import watching
from fairlead.pipeline.watching import CONF, Finding, Watched, watched

pytestmark = pytest.mark.timeout(600)  # Spark on a busy machine


def test_gap_filled_doubled() -> None:
    one = Watched()
    assert one.take([5, 6]) == []
    assert one.take([9, 9]) == [Finding("gap", 7, 8, 2), Finding("doubled", 9, 9, 1)]
    one = Watched(one.kept())
    assert one.take([8]) == [Finding("filled", 8, 8, 1)]
    assert one.take([2, 5, 6, 6]) == [Finding("gap", 3, 4, 2), Finding("doubled", 5, 6, 3)]
    assert one.take([-1, 1 << 62, (1 << 63) - 1])[0] == Finding("unusable", -1, (1 << 63) - 1, 2)


def test_the_same_as_a_set_of_numbers() -> None:
    for seed in range(30):
        dice = random.Random(seed)
        one, seen, holes, copies = Watched(), set[int](), set[int](), 0
        for _ in range(20):
            batch = [dice.randrange(dice.choice((10, 200))) for _ in range(dice.randrange(1, 30))]
            for finding in one.take(batch):
                numbers = set(range(finding.first, finding.last + 1))
                if finding.kind == "doubled":
                    copies += finding.messages
                    continue
                assert finding.messages == len(numbers)
                if finding.kind == "gap":
                    assert not numbers & (holes | seen)
                    holes |= numbers
                else:
                    assert numbers <= holes
                    holes -= numbers
            copies -= len(batch) - len(set(batch) - seen)
            seen |= set(batch)
            assert holes == set(range(min(seen), max(seen))) - seen
            assert copies == 0
            one = Watched(one.kept())


def test_a_hostile_stream_has_bounded_state() -> None:
    one = Watched()
    found = one.take(range(0, 6 * watching.HOLES_MAX, 2))
    assert len(one.kept()) <= 16 * (watching.HOLES_MAX + 1)
    assert sum(finding.kind == "given-up" for finding in found) == 2 * watching.HOLES_MAX - 1


@pytest.mark.long
def test_a_query_that_is_started_again_knows_what_it_knew(spark: SparkSession, tmp_path: Path) -> None:
    def add(*numbers: int) -> None:
        rows = [("a", number) for number in numbers] + [(None, 1)]
        frame = spark.createDataFrame(rows, "stream_id string, stream_sequence bigint")
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    def run() -> list[tuple[str, int, int]]:
        stream = spark.readStream.schema("stream_id string, stream_sequence bigint").parquet(str(tmp_path / "in"))
        rows: list[tuple[str, int, int]] = []

        def collect(frame: object, _: int) -> None:
            rows.extend((row["kind"], row["first"], row["last"]) for row in frame.collect())  # type: ignore[attr-defined]

        query = watched(stream).writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "check"))
        query.foreachBatch(collect).trigger(availableNow=True).start().awaitTermination()
        return sorted(rows)

    before = {name: spark.conf.get(name, None) for name in CONF}
    try:
        for name, value in CONF.items():
            spark.conf.set(name, value)
        add(1, 2, 5)
        assert run() == [("gap", 3, 4)]
        add(2, 3, 9)
        assert run() == [("doubled", 2, 2), ("filled", 3, 3), ("gap", 6, 8)]
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
