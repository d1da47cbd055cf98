"""`fairlead demo` without a tour: what it lists, refuses, and says of steps that go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from fairlead.cli import main
from fairlead.demo import outline
from fairlead.demo.edge import archiving
from fairlead.demo.edge.stage import Skipped, Stage
from fairlead.demo.findings import Findings
from fairlead.demo.outline import STEPS, Step


def demo(*words: str) -> Result:
    return CliRunner().invoke(main, ["demo", *words])


def planted(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    """A tour of one step."""
    module = ModuleType("planted_step")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted_step", module)
    monkeypatch.setattr(outline, "STEPS", (Step("planted", "planted_step", "Planted", "It is.", ("fairlead serve",)),))


def test_the_list() -> None:
    result = demo("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == [step.name for step in STEPS]
    assert "archive" not in demo("--list", "--no-spark").output
    assert [one["name"] for one in json.loads(demo("--list", "--step", "feed", "--json").output)] == ["feed"]


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    for words, said in (
        (["--step", "rooter"], "no step 'rooter'"),
        (["--pause"], "no terminal"),
        (["--output", str(tmp_path / "none" / "x.html")], "cannot be written"),
        (["--keep", str(tmp_path), "--output", str(tmp_path / "x.html")], "not an empty directory"),
    ):
        result = demo(*words)
        assert result.exit_code == 2, result.output
        assert said in result.output


def test_a_step_that_breaks_is_a_failure_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(stage: Stage) -> Findings:
        (stage.place.data("server") / "file").write_text("x")
        raise OSError("no room")

    planted(monkeypatch, run)
    result = demo("--output", str(tmp_path / "x.html"))
    assert result.exit_code == 1
    assert "OSError: no room" in result.output
    assert "1 failed" in result.output


def test_a_skipped_step_is_said_and_not_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(stage: Stage) -> Findings:
        raise Skipped("There is no Java: get one.")

    planted(monkeypatch, run)
    result = demo("--output", str(tmp_path / "x.html"))
    assert result.exit_code == 0
    assert "There is no Java: get one." in result.output
    assert "1 skipped in" in result.output
    assert "passed" not in result.output


def test_a_process_that_is_left_running_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess

    left: list[subprocess.Popen[bytes]] = []

    def run(stage: Stage) -> Findings:
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return Findings(said=["done"])

    planted(monkeypatch, run)
    result = demo("--output", str(tmp_path / "x.html"))
    assert left[0].wait(10) == -9
    assert result.exit_code == 1
    assert str(left[0].pid) in result.output


def test_without_spark_the_step_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "find_spec", lambda name: None)
    with pytest.raises(Skipped, match=r"no pyspark.*fairlead\[spark\]"):
        archiving._check()


def test_without_a_java_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.errors import ConfigError
    from fairlead.pipeline import java

    def find() -> None:
        raise ConfigError("Spark needs Java 17 or later.")

    monkeypatch.setattr(java, "find", find)
    with pytest.raises(Skipped, match=r"Java 17.*fairlead\[spark\]"):
        archiving._check()
