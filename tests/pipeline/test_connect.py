"""The same program through Spark Connect: a client without Spark, and a server that has only the package installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.testing import Server
from tests.pipeline.spark_servers import connect
from tests.pipeline.test_cluster_master import EXAMPLE, ROWS, check_large, job, run, trades

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

MISTAKES = """
import sys
from pyspark.errors import PySparkException
from fairlead.pipeline.session import spark_session
spark = spark_session("mistakes", sys.argv[1])
for options in ({"startingOffset": "latest"}, {"url": "fairlead://me:s3cret@127.0.0.1:1", "patience": "1"}):
    try:
        spark.read.format("fairlead").options(**options).load("trades").count()
    except PySparkException as error:
        print("s3cret" in str(error), str(error))
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def busy() -> Iterator[Server]:
    with Server(managers=1) as server:
        trades(server)
        yield server


def test_a_stream_over_connect(remote: str, busy: Server, tmp_path: Path) -> None:
    arguments = (str(EXAMPLE), "--master", remote, "--url", busy.url, "--checkpoint", str(tmp_path / "checkpoint"))
    assert f"looked at {ROWS + 2} trades" in run(tmp_path, *arguments)
    assert "looked at 0 trades" in run(tmp_path, *arguments)
    check_large(busy, ROWS)


def test_jobs_over_connect(remote: str, busy: Server, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    facts = job(tmp_path, "archive", remote, busy, "--destination", "trades", "--lake", lake)
    assert (facts["state"], facts["rows"]) == ("done", ROWS + 2)
    facts = job(
        *(tmp_path, "reconcile", remote, busy, "--sent", "trades", "--received", f"lake:{lake}"),
        *("--by", "order", "--output", str(tmp_path / "books")),
    )
    assert facts["is_clean"] is True
    assert facts["totals"]["delivered"] == ROWS + 2


def test_mistakes_over_connect(remote: str, tmp_path: Path) -> None:
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES)
    out = run(tmp_path, str(program), remote)
    assert "Did you mean startingOffsets?" in out
    assert "Cannot connect to 127.0.0.1:1" in out
    assert "s3cret" not in out
    assert "True " not in out
