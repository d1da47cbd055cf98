"""The measurements of `benchmarks/feeds` run, at a tiny scale, and their page can be written."""

from __future__ import annotations

import pytest

from benchmarks.feeds.failover import measure, percentile, table
from benchmarks.feeds.scenarios import failing_over, latency


@pytest.mark.long
@pytest.mark.requirement("STR-84", half="that the figures are measured; they are in benchmarks/results/feeds.md")
def test_latency_is_measured() -> None:
    row = latency("suspended", 0.5, 2000)
    assert row["messages"] > 500
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["wrong"] == []


def test_a_failover_is_measured() -> None:
    (row,) = failing_over("killed", 1, 2000)
    assert row["failed_over"]
    assert row["wrong"] == []
    assert row["lost"] == 0
    assert row["pause_ms"] > 0


@pytest.mark.long
def test_everything_is_measured_and_written_down() -> None:
    rows = list(measure(2000, 2, 0.3, 1))
    assert {row["scenario"] for row in rows} == {"latency", "killed", "frozen"}
    assert not any(row["wrong"] for row in rows)
    page = table(rows)
    assert page.count("| frozen |") == 2
    assert page.count("| killed |") == 1


def test_percentiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0
