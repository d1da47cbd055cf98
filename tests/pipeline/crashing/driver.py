"""A Spark driver as a process of its own, with all it starts: to be killed, and started again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

ROOT: Final = Path(__file__).parents[3]
PATH: Final = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
START_S: Final = 300.0
"""A loaded machine takes its time to start a Java."""


class Driver:
    """`said` is what it printed, line by line."""

    def __init__(self, url: str, work: Path, *, flows: Sequence[str], plant: str = "", master: str = "") -> None:
        self._arguments = ["--url", url, "--work", str(work), "--flows", *flows]
        self._arguments += ["--plant", plant] if plant else []
        self._arguments += ["--master", master] if master else []
        self._log = work / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.said: list[str] = []
        self.starts = 0

    def start(self) -> None:
        """Without waiting for anything."""
        surroundings = {"PYTHONPATH": PATH, "SPARK_AUTH_SOCKET_TIMEOUT": "120"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.crashing.query", *self._arguments],
                cwd=ROOT, env=os.environ | surroundings,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self.starts += 1
        self.said.append("started")
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line.decode(errors="replace").strip())

    def until(self, word: str, timeout_s: float = START_S) -> None:
        """Since its last start it said this."""
        deadline_s = time.monotonic() + timeout_s
        while word not in self.said[len(self.said) - self.said[::-1].index("started") :]:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the driver ended before it was {word}:\n{self.log()}")
            assert time.monotonic() < deadline_s, f"the driver was not {word} in {timeout_s:g} s:\n{self.log()}"
            time.sleep(0.02)

    def failures(self) -> list[str]:
        return [line for line in self.said if line.startswith("failed ")]

    def log(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join((*self.said[-10:], text[-3000:]))

    def kill(self) -> int:
        """kill -9 for it and everything it has started; how many processes that were."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        killed: set[int] = set()
        family = _family(process.pid)
        while family:
            for one in family:
                _attempt(one.kill)
            killed |= {one.pid for one in family}
            known = family
            family = [new for one in known for new in _family(one.pid) if new.pid not in killed]
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            _attempt(pipe.close)
        psutil.wait_procs([psutil.Process(pid) for pid in killed if psutil.pid_exists(pid)], timeout=10)
        return len(killed)

    def kill_worker(self, chance: random.Random) -> bool:
        """kill -9 for a Python process that works for Spark; False: there is none at this moment."""
        if self._process is None:
            return False
        workers = [one for one in _family(self._process.pid) if one.pid != self._process.pid and _is_python(one)]
        workers = [one for one in workers if one.ppid() in {other.pid for other in workers}] or workers
        if not workers:
            return False
        _attempt(chance.choice(workers).kill)
        return True

    def finish(self, timeout_s: float = 60.0) -> None:
        """Let it take what is there and end by itself."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.until_ended(timeout_s)

    def until_ended(self, timeout_s: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end in {timeout_s:g} s:\n{self.log()}") from None


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_python(process: psutil.Process) -> bool:
    try:
        return any("pyspark" in word for word in process.cmdline()) and "java" not in process.name()
    except psutil.Error:
        return False


def _attempt(action: Callable[[], object]) -> None:
    try:
        action()
    except (psutil.NoSuchProcess, OSError):
        pass
