"""docs/pipeline-tutorial.md, typed into a shell and a Python as a reader would; fewer messages unless asked for."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.processes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline-tutorial.md"
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
DONE = "the block is done"


class Terminal:
    """A shell into which blocks are typed. One that fails ends it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "terminal.log"
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(directory / "state"),
        }
        with open(self._log, "wb") as log:
            self._shell = subprocess.Popen(
                ["bash", "-e"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=directory, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._read = 0

    def type(self, block: str, timeout_s: float) -> str:
        """Everything that was printed until the block was done."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{block}\necho {DONE}\n".encode())
        self._shell.stdin.flush()
        deadline_s = time.monotonic() + timeout_s
        while True:
            text = self._log.read_text(errors="replace")[self._read :]
            if DONE in text:
                self._read += text.index(DONE) + len(DONE)
                return text.partition(DONE)[0]
            assert self._shell.poll() is None, f"{block}\nended with {self._shell.returncode}:\n{text[-4000:]}"
            assert time.monotonic() < deadline_s, f"{block}\nis not done in {timeout_s:g} s:\n{text[-4000:]}"
            time.sleep(0.05)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()


@contextmanager
def terminal(directory: Path) -> Iterator[Terminal]:
    found = Terminal(directory)
    try:
        yield found
    finally:
        found.close()


def scaled(block: str, messages: int, port: int) -> str:
    """The one number a reader may change, and a port that is free here."""
    return block.replace("MESSAGES=1000000", f"MESSAGES={messages}").replace("127.0.0.1:7400", f"127.0.0.1:{port}")


def follow(
    directory: Path, messages: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[tuple[str, str, float]]:
    """Type every block of the page; what was typed, what it printed, and how long it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MESSAGES", str(messages))
    monkeypatch.setenv("FAIRLEAD_URL", f"fairlead://127.0.0.1:{port}")
    names: dict[str, object] = {}
    typed = []
    with terminal(directory) as shell:
        for kind, block in BLOCKS:
            began_s = time.monotonic()
            if kind == "sh":
                out = shell.type(scaled(block, messages, port), 600)
            else:
                capsys.readouterr()
                exec(compile(block, str(PAGE), "exec"), names)
                out = capsys.readouterr().out
                assert out.splitlines() == re.findall(r"#> (.*)", block)
            typed.append((block, out, time.monotonic() - began_s))
    return typed


def check(typed: list[tuple[str, str, float]], messages: int) -> None:
    out = "\n".join(text for _, text, _ in typed)
    assert re.search(rf"archive: done, {messages:,} rows", out), out
    assert re.search(r"^archive +archive +done ", out, re.MULTILINE), "the status"
    assert re.search(r"│ S0 +│", out), "the table of the query"
    assert re.search(r"replay: done, 100 rows", out), out


@pytest.mark.long
def test_the_page_from_its_beginning_to_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(follow(tmp_path, 20_000, monkeypatch, capsys), 20_000)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_page_with_its_million(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = follow(tmp_path, 1_000_000, monkeypatch, capsys)
    check(typed, 1_000_000)
    with capsys.disabled():
        for block, _, seconds in typed:
            print(f"\n{seconds:8.1f} s  {block.strip().splitlines()[-1][:100]}", end="")
