"""A child's line to the supervisor (docs/processes.md), which outlives the supervisor.

When the supervisor's end closes, the child goes on serving. `tick` tries the well-known socket again every 200 ms and
says hello there with the child's state and every descriptor it was ever given, so a new supervisor finds all it needs
with the living.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.runtime import packets
from fairlead.runtime.config import Config, from_wire
from fairlead.runtime.rundir import short_path
from fairlead.runtime.version import VERSION

SOCKET_NAME: Final = "supervisor.sock"
RETRY_S: Final = 0.2
LOG_CHARACTERS_MAX: Final = 8192  # of one line: it has to fit into a packet


@dataclass(slots=True)
class Command:
    """What the supervisor asks, and the descriptors that came with it."""

    name: str
    args: dict[str, Any]
    fds: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Start:
    """What a child is to be."""

    role: str
    index: int
    config: Config
    store: Path
    managers: int
    server_id: int
    generation: int
    mode: str  # "active" or "standby"
    fds: dict[str, int]
    urls: list[str] = field(default_factory=list)  # where this server listens

    @classmethod
    def of(cls, role: str, index: int, command: Command) -> Start:
        args = command.args
        return cls(
            role=role,
            index=index,
            config=from_wire(args["config"]),
            store=Path(args["store"]),
            managers=args["managers"],
            server_id=args["server_id"],
            generation=args["generation"],
            mode=args["mode"],
            fds=command.fds,
            urls=args.get("urls", []),
        )


class Control:
    """The line itself. `fileno` changes when the line is lost and found: look again after `tick` returned True."""

    def __init__(self, run_dir: Path, role: str, index: int) -> None:
        self._run_dir = run_dir
        self._role = role
        self._index = index
        self._sock: socket.socket | None = None
        self._receiver: packets.Receiver | None = None
        self._held: dict[str, int] = {}
        self._retry_s = 0.0
        self._generation = 0
        self._mode = "active"
        self._started_ns = time.time_ns()
        self.state = "new"

    def connect(self) -> None:
        """Reach the supervisor and say hello; OSError if nobody listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            with short_path(self._run_dir / SOCKET_NAME) as path:
                sock.connect(path)
            sock.setblocking(False)
            hello = {
                "event": "hello",
                "role": self._role,
                "index": self._index,
                "pid": os.getpid(),
                "version": VERSION,
                "python": sys.executable,
                "started_ns": self._started_ns,
                "state": self.state,
                "generation": self._generation,
            }
            packets.send(sock, hello, self._held if self.state != "new" else None)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._receiver = packets.Receiver(sock)

    @property
    def run_dir(self) -> Path:
        """Where the sockets of this server are."""
        return self._run_dir

    def fileno(self) -> int:
        """The descriptor to wait on, or -1 while the supervisor is gone."""
        return -1 if self._sock is None else self._sock.fileno()

    @property
    def lost(self) -> bool:
        """Is the supervisor gone?"""
        return self._sock is None

    def hold(self, fds: Mapping[str, int]) -> None:
        """Remember descriptors for the next hello. Those that came with commands are held already."""
        self._held.update(fds)

    def receive(self) -> list[Command]:
        """All commands that have arrived; never waits."""
        commands: list[Command] = []
        while self._receiver is not None:
            try:
                received = self._receiver.receive()
            except BlockingIOError:
                break
            except OSError:
                received = None
            if received is None:
                self._lose()
                break
            name = received.message.pop("command", "")
            if name == "start":
                self._generation = received.message["generation"]
                self._mode = received.message["mode"]
            self.hold(received.fds)
            commands.append(Command(name, received.message, received.fds))
        return commands

    def send(self, event: str, **facts: Any) -> None:
        """Tell the supervisor; lost without harm while there is none, since the next hello says how things are."""
        if event == "ready":
            self.state = self._mode
        elif event in ("active", "parked"):
            self.state = event
        if self._sock is not None:
            try:
                packets.send(self._sock, {"event": event, **facts})
            except BlockingIOError:
                pass  # the supervisor is stopped and its socket full: it will not miss one line
            except OSError:
                self._lose()

    def log(self, level: str, text: str, **facts: str | int) -> None:
        """A line the operator should see; `connection` and `code` are known facts of one."""
        self.send("log", level=level, text=text[:LOG_CHARACTERS_MAX], facts=facts)

    def answer(self, number: int, **facts: Any) -> None:
        """Answer a question that came as the command `admin`; of any length, since it travels as a file in memory."""
        fd = os.memfd_create("answer", os.MFD_CLOEXEC)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(facts))
            file.flush()
            if self._sock is not None:
                try:
                    packets.send(self._sock, {"event": "answer", "number": number}, {"answer": fd})
                except BlockingIOError:
                    pass
                except OSError:
                    self._lose()

    def tick(self, now_s: float) -> bool:
        """While the supervisor is gone, look for a new one now and then. True: found, `fileno` is new.

        Not before we are ready: a new one turns away whoever says that it is new, and starts another in its place.
        """
        if self._sock is not None or now_s < self._retry_s:
            return False
        self._retry_s = now_s + RETRY_S
        if not self._run_dir.is_dir():
            raise SystemExit(0)  # the data directory is gone: nobody can ever adopt us
        if self.state == "new":
            return False
        try:
            self.connect()
        except OSError:
            return False
        return True

    def _lose(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._receiver = None
