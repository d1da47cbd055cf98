"""The measurements of `benchmarks/pipeline` run, small: every path gives all rows, and figures of who spent what."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.pipeline import disturbance, throughput
from fairlead.testing import Server

pytestmark = pytest.mark.processes

ROWS = 1_500


@pytest.mark.long
def test_throughput(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    paths = ["Parquet batch -> noop, 3 columns", "batch source -> noop, 3 columns", "source -> sink"]
    result = throughput.run(spark, server, tmp_path, rows=ROWS, repeat=1, only=paths)
    assert [case["name"] for case in result["cases"]] == paths
    assert result["cases"][1]["beside"] == paths[0]
    for case in result["cases"]:
        assert case["rows_per_s"][0] > 0
        assert case["cpu_us_per_row"].keys() >= {"message-manager", "manager", "python", "java"}
        assert f"| {case['name']} |" in throughput.table(result)


def test_publishers_keep_their_rate_alone(server: Server) -> None:
    seen = disturbance.clients(server.url, rate=200, seconds=0.5)
    assert 0 < seen.kept <= 1
    assert seen.p50_ms <= seen.p99_ms <= seen.worst_ms
    result = {"rate": 200, "runs": {"alone": [seen._asdict()]}}
    assert "| alone |" in disturbance.table(result)
