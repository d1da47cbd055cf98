"""A process that the connection managers link to: its gate, their links, and the supervisor's commands.

The message manager and the agent of a client manager's node both stand behind such a gate. What comes over a link, what
room on one means, and what an administrator asks are theirs; taking, reading, writing and losing links is the same.
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fairlead.cluster.edge.wiring import Wire
from fairlead.errors import RemoteProtocolError
from fairlead.runtime.control import Command, Control
from fairlead.runtime.rundir import listen_unix

SOCKET_BYTES: Final = 1 << 20

W = TypeVar("W", bound=Wire)


class LinkedProcess(ABC, Generic[W]):
    """The part of the loop that knows sockets; `stop_s` is how long a stop may take."""

    def __init__(self, control: Control, gate_path: Path, stop_s: float) -> None:
        self._control = control
        self._gate_path = gate_path
        self._stop_after_s = stop_s
        self._gate: socket.socket | None = None
        self._poll = select.epoll()
        self._on_readable: dict[int, Callable[[], None]] = {}
        self._wires: dict[int, W] = {}
        self._control_fd = -1
        self._stop_s = 0.0  # until then, once we were told to stop

    # --- What differs ---------------------------------------------------------------------------------------------
    @abstractmethod
    def _linked(self, sock: socket.socket) -> W:
        """A manager has come."""

    @abstractmethod
    def _take(self, wire: W) -> bool:
        """Read from it. False: it is lost. RemoteProtocolError: it has to be ended."""

    @abstractmethod
    def _has_room(self, wire: W) -> None:
        """It was full, and is no longer."""

    @abstractmethod
    def _unlinked(self, wire: W, why: str) -> None:
        """It is gone; `why` if it was we who ended it."""

    @abstractmethod
    def _note(self, record: dict[str, Any]) -> None:
        """Something another process of this server has to say to the event log."""

    @abstractmethod
    def _administer(self, name: str, args: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """An administrator of this host asks."""

    def _reads(self) -> bool:
        """Are managers listened to at the moment?"""
        return True

    # --- Links ----------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        self._gate = listen_unix(self._gate_path, socket.SOCK_STREAM)
        self._watch(self._gate.fileno(), self._accept)

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._poll.register(fd, select.EPOLLIN)
        self._on_readable[fd] = action

    def _accept(self) -> None:
        assert self._gate is not None
        while True:
            try:
                sock, _ = self._gate.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._control.log("error", f"a manager's link could not be taken: {error}")
                return
            sock.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
            wire = self._wires[sock.fileno()] = self._linked(sock)
            self._poll.register(sock.fileno(), 0)
            self._listen_to(wire)

    def _listen_to(self, wire: W) -> None:
        events = (select.EPOLLIN if self._reads() else 0) | (select.EPOLLOUT if wire.waits else 0)
        self._poll.modify(wire.sock.fileno(), events)

    def _handle(self, events: list[tuple[int, int]]) -> None:
        """What the kernel told of a turn."""
        for fd, what in events:
            wire = self._wires.get(fd)
            if wire is not None:
                self._on_wire(wire, what)
            elif fd in self._on_readable:
                self._on_readable[fd]()

    def _on_wire(self, wire: W, what: int) -> None:
        if what & select.EPOLLOUT:
            wire.waits = False
            self._listen_to(wire)
            self._write(wire)
        if what & ~select.EPOLLOUT and wire.sock.fileno() >= 0:
            try:
                if not self._take(wire):
                    self._lose(wire, "")
            except RemoteProtocolError as error:
                self._lose(wire, error.text)

    def _write_all(self) -> None:
        """Once a turn: everything said to managers."""
        for wire in list(self._wires.values()):
            if wire.link.out and not wire.waits:
                self._write(wire)

    def _write(self, wire: W) -> None:
        if not wire.write():
            self._lose(wire, "")
            return
        if wire.waits:
            self._listen_to(wire)
        if wire.has_room_again:
            self._has_room(wire)

    def _lose(self, wire: W, why: str) -> None:
        fd = wire.sock.fileno()
        if self._wires.pop(fd, None) is None:
            return
        self._poll.unregister(fd)
        wire.close()
        self._unlinked(wire, why)

    def _is_all_said(self) -> bool:
        return not any(wire.link.out for wire in self._wires.values())

    def _close_links(self) -> None:
        for wire in list(self._wires.values()):
            wire.close()
        if self._gate is not None:
            self._gate.close()
            self._gate_path.unlink(missing_ok=True)

    # --- The supervisor -------------------------------------------------------------------------------------------
    def _watch_control(self) -> None:
        self._control_fd = self._control.fileno()
        if self._control_fd >= 0:
            self._watch(self._control_fd, self._on_control)

    def _look_for_control(self, now_s: float) -> None:
        """Once a turn: was the supervisor lost, and is it there again?"""
        if self._control.lost and self._control.tick(now_s):
            self._watch_control()

    def _on_control(self) -> None:
        for command in self._control.receive():
            self._obey(command)
        if self._control.lost:
            self._on_readable.pop(self._control_fd, None)  # closing it took it out of the epoll set
            self._control_fd = -1

    def _obey(self, command: Command) -> None:
        if command.name == "stop" and not self._stop_s:
            self._stop_s = time.monotonic() + self._stop_after_s
        elif command.name == "audit":
            self._note(dict(command.args.get("record", {})))
        elif command.name == "admin":
            number = command.args["number"]

            def answered(result: dict[str, Any]) -> None:
                self._control.answer(number, ok="error" not in result, answer=result)

            self._administer(command.args["name"], command.args["args"], answered)
