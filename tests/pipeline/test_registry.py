"""Which pipelines run here: files that tell the living from the dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.pipeline import registry
from fairlead.pipeline.progress import Tally

CHILD = """
import signal, sys, threading
from pathlib import Path
from fairlead.pipeline.progress import Tally
from fairlead.pipeline.registry import Entry
entry = Entry(Path(sys.argv[1]), "child", {"job": "archive"})
tally = Tally()
tally.add(rows=7, size=70, batch=3, ranges={"a": (1, 8)}, lag=2)
entry.note(tally, "running")
done = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: done.set())
print("up", flush=True)
done.wait()
entry.note(tally, "stopped")
"""


@pytest.fixture
def child(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdout.close()
    return process


def only(directory: Path) -> dict[str, object]:
    (found,) = registry.entries(directory)
    return found


def test_a_running_one_is_seen_and_stopped(tmp_path: Path, child: subprocess.Popen[str]) -> None:
    facts = only(tmp_path)
    assert (facts["name"], facts["state"], facts["rows"], facts["lag"], facts["pid"]) == (
        "child", "running", 7, 2, child.pid,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="give --name"):
        registry.Entry(tmp_path, "child", {})
    assert registry.stop(tmp_path, "child", 10.0)
    assert child.wait(10) == 0
    assert only(tmp_path)["state"] == "stopped"
    with pytest.raises(ConfigError, match="No pipeline"):
        registry.stop(tmp_path, "child", 1.0)
    registry.Entry(tmp_path, "child", {}).close()  # the name is free again


def test_a_dead_one_is_known_by_its_start(tmp_path: Path, child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert only(tmp_path)["state"] == "dead"
    # Another process has got its number: it is left alone.
    file = tmp_path / "child.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps(facts | {"pid": os.getpid()}))
    assert only(tmp_path)["state"] == "dead"
    with pytest.raises(ConfigError, match="No pipeline"):
        registry.stop(tmp_path, "child", 1.0)


def test_files_of_others_are_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\x00")
    (tmp_path / "b.json").write_text("[" * 100_000)
    (tmp_path / "c.json").write_text('{"pid": "x", "began": 1}')
    (tmp_path / "d.json").write_text("[]")
    assert list(registry.entries(tmp_path)) == []
    assert list(registry.entries(tmp_path / "nowhere")) == []
    for name in ("", "../x", "a/b", "-", "x" * 200):
        with pytest.raises(ConfigError):
            registry.Entry(tmp_path, name, {})


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "x.json"
    registry.write_atomically(file, "one")
    with pytest.raises(UnicodeEncodeError):
        registry.write_atomically(file, "two\ud800")
    assert file.read_text() == "one"
    assert [one.name for one in file.parent.iterdir()] == ["x.json"]


def test_a_tally_adds_up() -> None:
    tally = Tally()
    tally.add(rows=10, size=100, batch=4, ranges={"a": (5, 10), "b": (1, 6)}, lag=3)
    tally.add(rows=5, size=50, batch=5, ranges={"a": (10, 15)}, lag=0)
    facts = tally.facts()
    assert facts["ranges"] == {"a": [5, 15], "b": [1, 6]}
    assert (facts["rows"], facts["bytes"], facts["batches"], facts["lag"], facts["last_batch"]) == (15, 150, 2, 0, 5)
    assert facts["rate"] > 0
