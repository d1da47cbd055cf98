"""Runs a directory server: its two nodes are started and stopped together, and started again when they end.

The member is started first and stopped last, so that clients are served as long as there is somebody to ask. When this
process is killed both of them end in order by themselves.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from fairlead.runtime.directory_server.files import ServerFiles
from fairlead.runtime.logbook import Logbook
from fairlead.runtime.restart import CANNOT_START, Halt, describe, on_exit

STOP_S: Final = {"front": 15.0, "member": 25.0}
ORDER: Final = ("front", "member")  # of stopping
TURN_S: Final = 0.5
EXIT_HALTED: Final = 1


class Node:
    """One of the two, through all its lives."""

    def __init__(self, name: str, path: Path, output: Path, ready_fd: int = -1) -> None:
        self.name = name
        self._path = path
        self._output = output
        self._ready_fd = ready_fd
        self.process: subprocess.Popen[bytes] | None = None
        self.attempts = 0
        self.again_s = 0.0  # when it is started again
        self._began_s = 0.0

    def start(self, life: int) -> int:
        arguments = [sys.executable, "-m", "fairlead.runtime.directory_server.child"]
        arguments += [str(self._path / "node.toml"), str(life), str(self._ready_fd)]
        fds = (life,) if self._ready_fd < 0 else (life, self._ready_fd)
        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                start_new_session=True,  # Ctrl-C is for us: we stop them in order
            )
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1
        self._began_s = time.monotonic()
        return self.process.pid

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began_s

    def stop(self, timeout_s: float) -> bool:
        """False: it had to be killed."""
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return True
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        return True


class DirectoryServer:
    """Both of them, until told to stop."""

    def __init__(self, files: ServerFiles, logbook: Logbook, ready_fd: int | None = None) -> None:
        self._log = logbook
        self._stopping = False
        outputs = {name: files.data / f"{name}.out" for name in ORDER}
        self._nodes = [
            Node("member", files.member, outputs["member"]),
            Node("front", files.front, outputs["front"], -1 if ready_fd is None else ready_fd),
        ]

    def run(self) -> int:
        """The status to exit with."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        life_read, life_write = os.pipe2(os.O_CLOEXEC)
        old = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes us up
        try:
            for node in self._nodes:
                self._start(node, life_read)
            return self._keep(wake_read, life_read)
        finally:
            self._stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old)
            for fd in (wake_read, wake_write, life_read, life_write):
                os.close(fd)

    def _on_stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _start(self, node: Node, life: int) -> None:
        pid = node.start(life)
        self._log.info("directory", f"started the {node.name}", pid=pid)

    def _keep(self, wake: int, life: int) -> int:
        while not self._stopping:
            for node in self._nodes:
                if node.process is None:
                    if time.monotonic() >= node.again_s:
                        self._start(node, life)
                elif (status := node.process.poll()) is not None:
                    node.process = None
                    if not self._is_started_again(node, status):
                        return EXIT_HALTED
            if select.select([wake], [], [], TURN_S)[0]:
                os.read(wake, 4096)
        return 0

    def _is_started_again(self, node: Node, status: int) -> bool:
        # A status of 2 is ours: files, ports. Whatever else ends a node, its own supervisor has tried before.
        verdict = on_exit(CANNOT_START if status == 2 else status, node.lived_s, node.attempts)
        if isinstance(verdict, Halt):
            self._log.error("directory", f"the {node.name} is not started again: {verdict.reason}")
            return False
        node.attempts, node.again_s = verdict.attempts, time.monotonic() + verdict.after_s
        self._log.write("warning", "directory", f"the {node.name} ended {describe(status)}; it is started again")
        return True

    def _stop_all(self) -> None:
        for name in ORDER:
            node = next(one for one in self._nodes if one.name == name)
            if not node.stop(STOP_S[name]):
                self._log.error("directory", f"the {name} did not stop in time and was killed")
