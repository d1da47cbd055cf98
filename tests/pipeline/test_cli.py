"""`fairlead pipeline`: what a user types."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

import fairlead.sync
from fairlead.cli.pipeline import pipeline_group, span
from fairlead.pipeline.running import JOBS
from fairlead.testing import Server

KEEP = {"retain_messages": -1}
START_S = 300.0


def ask(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(pipeline_group, arguments)
    return done.exit_code, done.output


def test_what_there_is_is_said_without_spark(tmp_path: Path) -> None:
    code, out = ask("list")
    assert code == 0
    assert all(name in out for name in JOBS)
    for job in ("archive", "replay", "normalise"):
        code, out = ask("run", job, "--help")
        assert code == 0
        assert "--checkpoint" in out
        assert "--lake" in out
    assert ask("status", "--state", str(tmp_path)) == (0, "No pipeline has run here.\n")
    quick = "import sys, fairlead.cli.pipeline as p, fairlead.pipeline.archive; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", quick], check=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "archive"), "--destination"),
        (("run", "nothing"), "No such command"),
        (("run", "archive", "--destination", "a", "--lake", "b", "--once", "--every", "1s"), "exclude one another"),
        (("run", "archive", "--destination", "a", "--lake", "b", "--every", "soon"), "not a time"),
        (("run", "replay", "--lake", "b"), "where to"),
        (("run", "archive", "--destination", "a", "--lake", "b", "--name", "../x"), "name has letters"),
        (("stop", "nobody"), "No pipeline called"),
        (("init", "x", "--url", "fairlead://me:secret@host"), "no place for a password"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, out = ask(*arguments)
    assert code == 2
    assert says in out
    assert "Traceback" not in out
    assert "secret" not in out


def test_times_as_people_write_them() -> None:
    assert [span(text) for text in ("500ms", "10s", "2m", "1.5h", "7")] == [0.5, 10.0, 120.0, 5400.0, 7.0]


def test_a_lake_from_the_command_line(
    spark: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the start of Spark, of which the suite has one."""
    monkeypatch.setattr("fairlead.cli.pipeline.started", lambda *_: contextlib.nullcontext(spark))
    lake, summary, states = str(tmp_path / "lake"), tmp_path / "summary.json", str(tmp_path / "state")
    feed(server, "typed", 30)
    run = ("run", "archive", "--url", server.url, "--lake", lake, "--state", states)
    code, out = ask(*run, "--destination", "typed", "--once", "--json", str(summary), "--password", "s3cret")
    assert code == 0, out
    assert "archive: done, 30 rows" in out
    facts = json.loads(summary.read_text())
    assert (facts["rows"], facts["lag"], facts["ranges"]) == (30, 0, {"typed": [1, 31]})
    assert {"bytes", "batches", "seconds", "rate"} <= set(facts)
    code, out = ask("status", "--state", states)
    assert code == 0
    assert "done" in out
    assert "s3cret" not in "".join(file.read_text() for file in Path(states).glob("*.json"))
    query = "select destination, count(*) n, max(body) b from messages group by 1"
    code, out = ask("sql", "--lake", lake, query)
    assert code == 0, out
    assert "typed" in out
    assert "30" in out
    code, out = ask("sql", "--lake", lake, "--json", query)
    assert json.loads(out) == {"destination": "typed", "n": 30, "b": "9"}
    code, out = ask("sql", "--lake", lake, "select nothing from nowhere")
    assert (code, "nowhere" in out) == (2, True)
    code, out = ask("compact", "--lake", lake)
    assert (code, out[:7]) == (0, "0 files")
    code, out = ask(*run, "--destination", "missing.one", "--checkpoint", str(tmp_path / "other"))
    assert code == 1
    assert "missing.one" in out
    assert json.loads((Path(states) / "archive.json").read_text())["state"] == "failed"


# Real processes. Each costs the start of a Java.


def feed(server: Server, name: str, rows: int, begin: int = 0) -> None:
    with fairlead.sync.connect(server.url, name="feeder") as connection:
        topic = connection.topic(name, parameters=KEEP)
        topic.send_many([b"%d" % n for n in range(begin, begin + rows)])


def until(condition: Callable[[], Any], process: subprocess.Popen[bytes], output: Path) -> Any:
    deadline_s = time.monotonic() + START_S
    while not (found := condition()):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline_s, output.read_text()
        time.sleep(0.05)
    return found


def job(directory: Path, server: Server, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with open(directory / f"{name}.out", "ab") as out:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "fairlead", "pipeline", "run", "archive", "--url", server.url),
                *("--lake", str(directory / "lake"), "--state", str(directory / "state"), "--name", name),
                *("--master", "local[2]", "--memory", "600m", *arguments),
            ],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip


def state(directory: Path, name: str) -> dict[str, Any]:
    code, out = ask("status", "--state", str(directory / "state"), "--json")
    assert code == 0
    return next((one for one in json.loads(out) if one["name"] == name), {})


def archived(spark: Any, directory: Path) -> list[int]:
    from fairlead.pipeline import lake

    rows = lake.read(spark, str(directory / "lake")).orderBy("order_number").select("body").collect()
    return [int(row.body) for row in rows]


def kill(process: subprocess.Popen[bytes]) -> None:
    """The job, and the Java it started, at once."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    for one in family:
        if one.is_running():
            one.kill()
    process.wait()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_killed_in_mid_batch_resumed_and_stopped(spark: Any, server: Server, tmp_path: Path) -> None:
    kill_and_resume(spark, server, tmp_path, "killed", rows=4_000, kills=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_again_and_again(spark: Any, server: Server, tmp_path: Path) -> None:
    kill_and_resume(spark, server, tmp_path, "killed-often", rows=200_000, kills=8)


def kill_and_resume(spark: Any, server: Server, directory: Path, name: str, *, rows: int, kills: int) -> None:
    feed(server, name, rows)
    arguments = ("--destination", name, "--max-rows", "400", "--every", "50ms", "--nice", "1")
    out, moments = directory / "k.out", random.Random(1)
    for _ in range(kills):
        process = job(directory, server, "k", *arguments)
        try:
            batches = moments.randint(1, 4)
            until(lambda few=batches: _running(directory).get("batches", 0) >= few, process, out)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 1
            assert _running(directory)["lag"] > 0  # there is a next batch, and it has begun
        finally:
            kill(process)
        assert state(directory, "k")["state"] == "dead"
    process = job(directory, server, "k", *arguments)
    try:
        until(lambda: _running(directory).get("lag") == 0, process, out)
        before = state(directory, "k")["rows"]
        feed(server, name, 10, rows)
        until(lambda: state(directory, "k")["rows"] == before + 10, process, out)
        code, said = ask("stop", "k", "--state", str(directory / "state"))
        assert (code, said) == (0, "k has ended.\n"), out.read_text()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            kill(process)
    found = state(directory, "k")
    assert (found["state"], found["summary"]["lag"]) == ("stopped", 0)
    assert archived(spark, directory) == list(range(rows + 10))


def _running(directory: Path) -> dict[str, Any]:
    found = state(directory, "k")
    return found if found.get("state") == "running" else {}
