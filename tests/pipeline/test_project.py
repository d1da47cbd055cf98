"""The declarative project that `fairlead pipeline init` writes, and that it runs, twice."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import fairlead.sync
from fairlead.errors import BadPattern, ConfigError
from fairlead.pipeline.project import write_project
from fairlead.testing import Server

URL = "fairlead://127.0.0.1:7400"


def test_what_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "My Feeds"
    files = write_project(directory, destination="it's.>", url=URL)
    assert {str(file.relative_to(directory)) for file in files} == {
        "README.md", "run", "spark-pipeline.yml", "transformations/messages.py",
    }  # fmt: skip
    spec = yaml.safe_load((directory / "spark-pipeline.yml").read_text())
    assert spec["name"] == "my_feeds"
    assert spec["storage"].startswith("file:///")
    program = (directory / "transformations" / "messages.py").read_text()
    assert "it's.>" in {node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)}
    assert os.access(directory / "run", os.X_OK)
    with pytest.raises(ConfigError, match="not empty"):
        write_project(directory, destination="a", url=URL)


def test_what_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="password"):
        write_project(tmp_path / "x", destination="a", url="fairlead://me:s3cret@host")
    with pytest.raises(BadPattern):
        write_project(tmp_path / "x", destination="a..b", url=URL)
    assert not (tmp_path / "x").exists()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_runs_bring_everything_once(spark: Any, server: Server, tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_project(project, destination="declared", url=server.url)
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic("declared", parameters={"retain_messages": -1})
        for rows in (100, 50):
            topic.send_many([b"x"] * rows)
            done = subprocess.run([project / "run"], capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
    warehouse = project / "spark-warehouse"
    messages = spark.read.parquet(str(warehouse / "messages"))
    assert sorted(row.order_number for row in messages.collect()) == list(range(1, 151))
    traffic = spark.read.parquet(str(warehouse / "traffic")).collect()
    assert sum(row.messages for row in traffic) == 150
