"""Nothing is left of a place to work: no process, no file, no shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fairlead.demo.edge.workplace import MARK, Workplace, marked
from fairlead.errors import ConfigError
from fairlead.store.edge.segment import tmpfs_directory

ORPHAN = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n"


def test_processes_files_and_shared_memory_go() -> None:
    place = Workplace()
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    subprocess.run([sys.executable, "-c", ORPHAN], check=True)  # its child has nobody any more
    assert len(marked(place.mark)) == 2
    store = tmpfs_directory(place.data("server"))
    store.mkdir()
    (store / "arena").write_bytes(b"x")
    assert Path(tempfile.mkdtemp()).is_relative_to(place.directory)
    killed = place.close()
    assert sleeper.pid in killed
    assert len(killed) == 2
    assert sleeper.wait(10) == -9
    assert marked(place.mark) == []
    assert not store.exists()
    assert not place.directory.exists()


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")
    before = dict(os.environ)
    with Workplace() as place:
        assert os.environ[MARK] == place.mark
        assert os.environ["TMPDIR"] != "/tmp"
    assert dict(os.environ) == before


def test_what_is_to_be_kept_stays(tmp_path: Path) -> None:
    with Workplace(tmp_path / "kept") as place:
        (place.data("server") / "file").write_text("x")
    assert (tmp_path / "kept" / "server" / "file").exists()
    assert not (tmp_path / "kept" / "tmp").exists()


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not an empty directory"):
        Workplace(tmp_path)
    assert MARK not in os.environ
