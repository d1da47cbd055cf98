"""Starting, watching, hurting and stopping a real server from a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fairlead.errors import Unavailable
from fairlead.runtime import admin
from fairlead.store.edge.segment import remove_directory, tmpfs_directory
from fairlead.testing.ready import await_ready


class Server:
    """One server: `url`, `data`, `status()`, `update()`, `kill()`; a context manager that stops what it started.

    It has a console only with `console=True`; `console_url` says where. `settings` are those of the configuration file,
    by name: `Server(**{"fairness.limit": 100})`.
    """

    def __init__(
        self,
        *,
        managers: int = 2,
        listen: str = "127.0.0.1:0",
        data: Path | None = None,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] = ("serve",),
        console: bool = False,
        **settings: Any,
    ) -> None:
        self._temporary = None if data else tempfile.TemporaryDirectory(prefix="fairlead-test-")
        self.data = data or Path(self._temporary.name if self._temporary else "")
        self._arguments = [python, "-m", "fairlead", *command, "--data", str(self.data), "--listen", listen]
        self._arguments += ["--managers", str(managers)]
        settings = {"console.enabled": console, **({"console.listen": "127.0.0.1:0"} if console else {}), **settings}
        for name, value in settings.items():
            self._arguments += ["--set", f"{name}={value}"]
        self._environment = os.environ | (environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    # -- life

    def start(self) -> Self:
        """Start it and wait for its ready line; RuntimeError with its last words if it ends instead."""
        reading, writing = os.pipe()
        log = open(self.data / "serve.out", "ab")  # noqa: SIM115 - the child's, closed below
        try:
            self.process = subprocess.Popen(
                [*self._arguments, "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=(writing,),
                env=self._environment,
            )  # fmt: skip
        finally:
            os.close(writing)
            log.close()
        try:
            self.url = await_ready(reading, "the server", self.output).split()[1]
        finally:
            os.close(reading)
        return self

    def output(self) -> str:
        """What it has printed so far (the end of it)."""
        file = self.data / "serve.out"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    def stop(self, timeout_s: float = 20.0) -> int:
        """Stop it in order; its exit status. Whatever does not end in time is killed, and that is an error."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        children = self._family(process.pid)
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for pid in (process.pid, *children):
                _signal(pid, signal.SIGKILL)
            process.wait()
            raise RuntimeError(f"the server did not stop in {timeout_s:g} s:\n{self.output()}") from None

    def kill_everything(self) -> None:
        """The host loses power, as far as processes go: SIGKILL for supervisor and children at once."""
        assert self.process is not None
        for pid in (self.process.pid, *self._family(self.process.pid)):
            _signal(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def _family(self, pid: int) -> list[int]:
        try:
            return [component["pid"] for component in self.status(brief=True)["components"] if component["pid"] != pid]
        except (Unavailable, OSError):
            return []

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if self._temporary is not None:
                remove_directory(tmpfs_directory(self.data))  # what a killed server left
                self._temporary.cleanup()

    # -- looking at it and hurting it

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def console_url(self) -> str:
        """Where its console is; empty without one."""
        urls: list[str] = self.status(brief=True)["console"]["urls"]
        return urls[0] if urls else ""

    def ask(self, command: str, **facts: Any) -> dict[str, Any]:
        """A question to the supervisor, see `fairlead.runtime.admin`."""
        return admin.answer_of(self.data.resolve() / "run", command, **facts)

    def status(self, **facts: Any) -> dict[str, Any]:
        answer = self.ask("status", **facts)
        found: dict[str, Any] = answer.get("status", answer)
        return found

    def update(self, component: str, **facts: Any) -> dict[str, Any]:
        return self.ask("update", component=component, **facts)

    def pids(self, role: str, state: str | None = "active") -> list[int]:
        """Process ids of a role, by index; only those serving unless `state` says otherwise (None: all)."""
        components = self.status(brief=True)["components"]
        found = [c for c in components if c["role"] == role and state in (None, c["state"])]
        return [c["pid"] for c in sorted(found, key=lambda c: c["index"])]

    def kill(self, role: str, index: int = 0, number: int = signal.SIGKILL) -> int:
        """Send a signal to a serving component; its process id."""
        pid = self.pids(role)[index]
        os.kill(pid, number)
        return pid

    def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 10.0) -> dict[str, Any]:
        """Look at the status report until it is as wanted; AssertionError with the report otherwise."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if condition(status):
                return status
            assert time.monotonic() < deadline_s, f"not reached in {timeout_s:g} s; the report says: {status}"
            time.sleep(0.02)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
