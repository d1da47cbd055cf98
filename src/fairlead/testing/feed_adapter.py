"""One feed adapter as a real process: started, hurt, looked at and stopped by a test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.testing.ready import await_ready

STOP_S = 20.0


class FeedAdapter:
    """`fairlead feed run` with these settings, by section; the same port and home when it is started again."""

    def __init__(self, name: str, home: Path, settings: Mapping[str, Any], *, python: str = sys.executable) -> None:
        self.name = name
        self.home = home
        self.settings = dict(settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self._python = python
        self._is_frozen = False

    # -- life

    def start(self) -> None:
        """Returns when it listens; it may not have a role yet."""
        assert not self.runs, f"{self.name} runs already"
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.home / "feed.toml"
        config.write_text(toml(self.settings), encoding="utf-8")
        reading, writing = os.pipe()
        words = ["feed", "run", "--config", str(config), "--ready-fd", str(writing), "--faults", str(self._faults)]
        with open(self.home / "feed.out", "ab") as output:
            self.process = subprocess.Popen(
                [self._python, "-m", "fairlead", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
            )
        os.close(writing)
        try:
            self.address = await_ready(reading, self.name, self.output).split()[1]
        finally:
            os.close(reading)

    def stop(self) -> int:
        """In order; its exit status. RuntimeError if it did not end by itself."""
        if self.process is None:
            return 0
        self.thaw()
        process, self.process = self.process, None
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"{self.name} did not stop in {STOP_S:g} s:\n{self.output()}") from None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    # -- hurting it

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None, f"{self.name} does not run"
        self.process.kill()
        self.process.wait()
        self.process, self._is_frozen = None, False

    def freeze(self) -> None:
        """SIGSTOP: its port still takes connections, and nobody answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen and self.process is not None:
            os.kill(self.process.pid, signal.SIGCONT)
        self._is_frozen = False

    def fault(self, do: str, **facts: Any) -> dict[str, Any]:
        """A fault inside it, see `fairlead feed run --faults`; its answer."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(STOP_S)
            control.connect(str(self._faults))
            control.sendall(json.dumps({"do": do, **facts}).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = control.recv(65536)
                assert more, f"{self.name} has not answered: {do}"
                answer += more
        found: dict[str, Any] = json.loads(answer)
        return found

    # -- looking at it

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    def output(self) -> str:
        """The end of what it has printed."""
        file = self.home / "feed.out"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    @property
    def _faults(self) -> Path:
        return self.home / "faults"


def toml(settings: Mapping[str, Any]) -> str:
    """Sections of plain values and lists, tables below them, and lists of tables."""
    lines: list[str] = []
    for section, values in settings.items():
        for table in values if isinstance(values, list) else [values]:
            lines.append(f"[[{section}]]" if isinstance(values, list) else f"[{section}]")
            inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
            lines += [f"{key} = {_inline(value)}" for key, value in table.items() if key not in inner]
            for key, below in inner.items():
                lines.append(f"[{section}.{key}]")
                lines += [f"{name} = {_inline(value)}" for name, value in below.items()]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_inline(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(_inline(one) for one in value)}]"
    return json.dumps(value)
