"""Which Python Spark's workers run (`fairlead.pipeline.worker_python`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from fairlead.pipeline import worker_python
from fairlead.pipeline.worker_python import NAME

ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
WHERE = "import os, pyspark, sys; print(pyspark.__file__); print(sys.executable); print(os.environ['PYTHONPATH'])"


def named(tmp_path: Path, master: str = "local[2]", **given: str) -> str:
    environ = {"HOME": str(tmp_path), **given}
    worker_python.use(master, environ)
    return environ[NAME]


def test_it_is_this_python_and_finds_pyspark_where_it_is_installed(tmp_path: Path) -> None:
    other = tmp_path / "it's * here"
    other.mkdir()
    path = os.pathsep.join([str(ARCHIVE), str(other), str(ARCHIVE), str(tmp_path)])
    where = [named(tmp_path), "-c", WHERE]
    answer = subprocess.run(where, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [pyspark.__file__, sys.executable, f"{other}:{tmp_path}"]


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    said = ["a b", "*", "$HOME", "'"]
    where = [named(tmp_path), "-c", "import sys; print(sys.argv[1:])", *said]
    answer = subprocess.run(where, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(said)


def test_what_somebody_has_said_holds_and_other_machines_have_no_such_file(tmp_path: Path) -> None:
    assert named(tmp_path, **{NAME: "/usr/bin/other"}) == "/usr/bin/other"
    assert named(tmp_path, "spark://somewhere:7077") == sys.executable
    assert named(tmp_path, "local-cluster[2,1,1024]") == sys.executable
    quick = named(tmp_path)
    assert quick != sys.executable
    assert named(tmp_path, "spark://somewhere:7077", **{NAME: quick}) == sys.executable
    assert named(tmp_path, **{NAME: sys.executable}) == quick


def test_where_nothing_can_be_run_from_the_cache_it_is_python_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert named(tmp_path) == sys.executable
