"""A real supervisor with a real dispatcher, and stand-ins for router and managers, on a temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairlead.runtime.admin import answer_of
from fairlead.store.edge.segment import tmpfs_directory

STAND_INS = Path(__file__).with_name("stand_ins.py")
SERVE = """
import sys
sys.executable = sys.argv[1]
sys.argv = ["fairlead", *sys.argv[2:]]
from fairlead.cli import main
main(prog_name="fairlead")
"""


def wrapper(directory: Path, name: str, **environment: str) -> Path:
    """A "Python interpreter" that starts the stand-ins, with some variables set; everything else is a real one."""
    path = directory / name
    settings = " ".join(f"{key}={value}" for key, value in environment.items())
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *fairlead.runtime.child*) exec env {settings} {sys.executable} {STAND_INS} "$@";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


class StandInServer:
    """Started, asked, hurt and stopped by tests."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.run = self.data / "run"
        self.arguments = arguments
        self.environment = environment
        self.python = wrapper(directory, "python", **environment)
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.port = 0
        self.opened: list[Client | socket.socket] = []

    def start(self, *, listen: str = "127.0.0.1:0") -> StandInServer:
        command = [sys.executable, "-c", SERVE, str(self.python), "serve", "--data", str(self.data)]
        command += ["--listen", listen, "--managers", "2", *self.arguments]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.directory)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "is ready on" in line, f"not ready: {line!r}\n{self.log()}"
        self.url = line.split(" is ready on ")[1].split()[0]
        self.port = int(self.url.rpartition(":")[2])
        return self

    def ask(self, command: str, **facts: Any) -> dict[str, Any]:
        return answer_of(self.run, command, **facts)

    def status(self) -> dict[str, Any]:
        report: dict[str, Any] = self.ask("status")["status"]
        return report

    def pids(self, role: str, state: str | None = None) -> list[int]:
        return [
            one["pid"]
            for one in self.status()["components"]
            if one["role"] == role and (state is None or one["state"] == state)
        ]

    def pid(self, role: str, state: str = "active") -> int:
        """The one process in that state, waited for."""
        return self.until(lambda: self.pids(role, state))[0]

    def until(self, found: Callable[[], Any], seconds: float = 10.0) -> Any:
        """The first true answer."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            if answer := found():
                return answer
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds:g} s in vain\n{self.log()}")

    def connect(self) -> Client:
        """A client that was greeted; closed at the end of the test at the latest."""
        client = Client(self.port)
        self.opened.append(client)
        return client

    def open(self) -> socket.socket:
        """A bare connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        self.opened.append(sock)
        return sock

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.data / "log" / "fairlead.log").read_text()
        return ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def end(self) -> None:
        """Whatever happened: nothing of ours is left."""
        for one in self.opened:
            one.close()
        pids: list[int] = []
        with contextlib.suppress(Exception):
            pids = [one["pid"] for one in self.status()["components"]]
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
        shutil.rmtree(tmpfs_directory(self.data), ignore_errors=True)


class Client:
    """A connection that has been greeted by a stand-in manager with its uid."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        greeting = self.line().split()
        if len(greeting) != 2:
            self.sock.close()
            raise ConnectionError("closed before it was greeted")
        self.uid, self.manager = int(greeting[0]), int(greeting[1])

    def echoes(self) -> bool:
        """Is the connection still served?"""
        self.sock.sendall(b"ping\n")
        return self.line() == b"ping\n"

    def line(self) -> bytes:
        return read_line(self.sock)

    def close(self) -> None:
        self.sock.close()


def read_line(sock: socket.socket) -> bytes:
    """Up to a newline, or to the end of the connection."""
    line = b""
    while not line.endswith(b"\n") and (byte := sock.recv(1)):
        line += byte
    return line


@contextlib.contextmanager
def stand_in_server(directory: Path, *arguments: str, **environment: str) -> Iterator[StandInServer]:
    server = StandInServer(directory, *arguments, **environment)
    try:
        yield server.start()
    finally:
        server.end()
