"""One child process, from the supervisor's side."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.runtime import packets
from fairlead.runtime.rundir import ChildNote, process_start_time


@dataclass(slots=True, eq=False)
class Child:
    """A process and how far it has come: starting, loading, standby, active, parked, stopping."""

    role: str
    index: int
    generation: int
    python: str
    pid: int
    pidfd: int
    state: str = "starting"
    mode: str = "active"  # what it was started as
    promoted: bool = False  # to be activated as soon as it is ready
    told: bool = False  # we asked it to end
    version: str = ""
    started_ns: int = field(default_factory=time.time_ns)
    ready_s: float = 0.0  # when it became ready, monotonic; 0: not yet
    asked_s: float = 0.0  # when the pause began that its activation ends
    pause_ns: int = 0
    failure: str = ""  # its own last words
    sock: socket.socket | None = None
    receiver: packets.Receiver | None = None

    @property
    def name(self) -> str:
        return f"manager {self.index}" if self.role == "manager" else self.role

    def attach(self, sock: socket.socket, receiver: packets.Receiver) -> None:
        self.sock, self.receiver = sock, receiver

    def send(self, command: str, fds: Mapping[str, int] | None = None, **args: Any) -> bool:
        """Tell it something; False if it cannot be told, of which its end will be the reason or the consequence."""
        if self.sock is None:
            return False
        try:
            packets.send(self.sock, {"command": command, **args}, fds)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """At once, also when it is stopped by a signal."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """Its exit status, negative for a signal; an orphan we adopted has left its status with init."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.receiver is not None:
            self.receiver.drop()
        if self.sock is not None:
            self.sock.close()
        os.close(self.pidfd)
        self.sock = self.receiver = None

    def note(self) -> ChildNote | None:
        start_time = process_start_time(self.pid)
        if start_time is None:
            return None
        return ChildNote(self.role, self.index, self.pid, start_time, self.generation, self.python)


def spawn(role: str, index: int, *, python: str, run: Path, log_fd: int, generation: int, mode: str) -> Child:
    """Start a process in a session of its own, so that the terminal's Ctrl-C reaches only the supervisor."""
    arguments = [python, "-P", "-m", "fairlead.runtime.child", role, str(index), str(run)]
    pid = os.posix_spawn(
        python,
        arguments,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log_fd, 1),
            (os.POSIX_SPAWN_DUP2, log_fd, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD],
    )
    return Child(role, index, generation, python, pid, os.pidfd_open(pid), mode=mode)


def adopt(note: ChildNote) -> Child | None:
    """A living child of a dead supervisor."""
    try:
        pidfd = os.pidfd_open(note.pid)
    except ProcessLookupError:
        return None
    if process_start_time(note.pid) != note.start_time:
        os.close(pidfd)
        return None
    return Child(note.role, note.index, note.generation, note.python, note.pid, pidfd)
