"""The same program and the same jobs on a real cluster of Spark: a master and two workers, processes of their own."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import fairlead
import fairlead.sync
from fairlead.pipeline.running import BUSY
from fairlead.testing import Server
from tests.pipeline.spark_servers import standalone

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pipeline" / "large_trades.py"
KEEP = {"retain_messages": -1}
ROWS = 20_000
TIMEOUT_S = 500
TRIES = 4
"""Spark gives a new Python worker ten seconds to report, whatever else the machine does."""


def trades(server: Server, rows: int = ROWS) -> None:
    """Trades of which one in five is large, and two bodies that are none."""
    with fairlead.sync.connect(server.url, name="feeder") as client:
        topic = client.topic("trades", parameters=KEEP)
        for base in range(0, rows, 1000):
            several = range(base, min(rows, base + 1000))
            topic.send_many(
                [b'{"symbol": "S%d", "price": 251.0, "amount": %d}' % (n, n % 5) for n in several], key=f"k{base}"
            )
        topic.send_many([b"{broken", b"\xff"])


def taken(server: Server, name: str) -> list[tuple[bytes, dict[str, Any]]]:
    found = []
    with fairlead.sync.connect(server.url, name="taker") as client, client.queue(name).consume() as consumer:
        while (more := consumer.receive_many(5000, timeout=0.3)) or client.admin.destination(destination=name)["depth"]:
            found += [(message.body, dict(message.properties)) for message in more]
            consumer.ack_many(more)
    return found


def check_large(server: Server, rows: int) -> None:
    """Every large trade is in the queue, once, and the others are not."""
    found = taken(server, "large-trades")
    assert sorted(int(json.loads(body)["symbol"][1:]) for body, _ in found) == list(range(4, rows, 5))
    assert {properties["worth"] for _, properties in found} == {"1004.0"}
    assert sorted(body for body, _ in taken(server, "not-trades")) == [b"{broken", b"\xff"]


def run(directory: Path, *arguments: str) -> str:
    """A command of this environment to its end; what it printed."""
    environment = os.environ | {"XDG_STATE_HOME": str(directory / "state"), "SPARK_LOCAL_IP": "127.0.0.1"}
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            cwd=directory, env=environment,
        )  # fmt: skip
        if not done.returncode or BUSY not in done.stderr:
            break
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def job(directory: Path, name: str, master: str, server: Server, *arguments: str) -> dict[str, Any]:
    """A job of the pipeline on a cluster; its summary."""
    common = ["--master", master, "--url", server.url, "--json", "-"]
    conf = [*("--conf", "spark.sql.shuffle.partitions=2"), *("--conf", "spark.executor.memory=512m")]
    out = run(directory, "-m", "fairlead", "pipeline", "run", name, *arguments, *common, *conf)
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def test_the_example_in_one_process(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """What the long tests do on a cluster, so that a broken example is seen at once."""
    example = runpy.run_path(str(EXAMPLE))

    def looked_at() -> int:
        for _ in range(TRIES - 1):
            try:
                return int(example["run"](spark, server.url, str(tmp_path)))
            except StreamingQueryException as error:
                if BUSY not in str(error):
                    raise
        return int(example["run"](spark, server.url, str(tmp_path)))

    trades(server, 2_000)
    assert (looked_at(), looked_at()) == (2_002, 0)
    check_large(server, 2_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def busy() -> Iterator[Server]:
    """A server with trades."""
    with Server(managers=1) as server:
        trades(server)
        yield server


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_stream_on_two_workers(cluster: str, busy: Server, tmp_path: Path) -> None:
    arguments = (str(EXAMPLE), "--master", cluster, "--url", busy.url, "--checkpoint", str(tmp_path / "checkpoint"))
    assert f"looked at {ROWS + 2} trades" in run(tmp_path, *arguments)
    assert "looked at 0 trades" in run(tmp_path, *arguments), "it goes on where it was"
    check_large(busy, ROWS)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_archive_and_reconcile_on_two_workers(cluster: str, busy: Server, tmp_path: Path) -> None:
    lake, books = str(tmp_path / "lake"), tmp_path / "books"
    facts = job(tmp_path, "archive", cluster, busy, "--destination", "trades", "--lake", lake, "--max-rows", "8000")
    assert (facts["state"], facts["rows"], facts["lag"]) == ("done", ROWS + 2, 0)
    assert facts["batches"] >= 3
    began_s = time.monotonic()
    facts = job(
        *(tmp_path, "reconcile", cluster, busy, "--sent", "trades", "--received", f"lake:{lake}"),
        *("--by", "order", "--output", str(books)),
    )
    assert time.monotonic() - began_s < TIMEOUT_S
    assert facts["is_clean"] is True
    assert (facts["totals"]["sent"], facts["totals"]["delivered"]) == (ROWS + 2, ROWS + 2)
    assert (books / "report.html").stat().st_size > 1000
