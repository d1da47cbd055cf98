"""One Spark session for the whole run, and a real server for each file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.session import spark_session
from fairlead.testing import Server

# PySpark's own modules warn about Python's future; a suite in which warnings are errors has to look away.
NOISE = "ignore::DeprecationWarning:pyspark", "ignore::ResourceWarning", "ignore::FutureWarning"

# A Java of these tests lives for minutes: what its second compiler costs, half of all its CPU, is never earned back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for noise in NOISE:
                item.add_marker(pytest.mark.filterwarnings(noise))
            if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(300))  # a JVM starts, and Python beside it for every kind of work


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`; a task that fails is not tried again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = spark_session(
            "tests",
            "local[2]",
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
                "spark.driver.memory": "768m",
            },
        )
        yield session
        session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(managers=1) as server:
        yield server
