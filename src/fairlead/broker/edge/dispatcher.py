"""The dispatcher: accepts connections and hands each to the manager with the fewest, without reading a byte of it.

A loop over the listening sockets. Per connection: choose, write the table entry, send descriptor and uid in one
packet, close our copy (SRV-26 to SRV-29). Nothing is kept here, so one dispatcher can follow another at any moment: a
standby waits with everything loaded, and a parked one has finished every hand-over it began.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import time
from typing import Final

from fairlead.broker import placement
from fairlead.runtime.control import Control, Start
from fairlead.runtime.counters import Counters, DispatcherCounter
from fairlead.store import layout
from fairlead.store.connections import ConnectionTable
from fairlead.store.edge.segment import open_segment
from fairlead.store.memory import MODE

ACCEPTS_PER_TURN: Final = 64
HOLD_S: Final = 0.02  # between two tries when no manager's socket has room
IDLE_S: Final = 1.0
SWEEP_S: Final = 10.0
NEVER_ADOPTED_NS: Final = 10_000_000_000

_HANDOVER: Final = struct.Struct(layout.HANDOVER_FORMAT)
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def run(control: Control, start: Start) -> int:
    """Be a dispatcher until told to stop."""
    return Dispatcher(control, start).run()


class Dispatcher:
    """Standby, active or parked; only an active one touches the listening sockets and the table."""

    def __init__(self, control: Control, start: Start) -> None:
        self._control = control
        self._segment = open_segment(start.store / layout.CONNECTIONS_NAME, layout.KIND_CONNECTIONS, mode=MODE)
        self._table = ConnectionTable(self._segment.view)
        counters = open_segment(start.store / layout.counters_name("dispatcher"), layout.KIND_COUNTERS, mode=MODE)
        self._counters = Counters("dispatcher", counters.view)
        self._listening = {fd: socket.socket(fileno=fd) for name, fd in start.fds.items() if name.startswith("listen-")}
        self._managers = [socket.socket(fileno=start.fds[f"dispatch-{i}"]) for i in range(start.managers)]
        self._excluded = [False] * start.managers
        self._mode = start.mode
        self._active = False
        self._looking = False
        self._stopping = False
        self._holding: tuple[socket.socket, str] | None = None  # accepted, and no manager has taken it yet
        self._full_said_s = 0.0
        self._sweep_s = 0.0
        self._poll = select.epoll()

    def run(self) -> int:
        self._poll.register(self._control.fileno(), select.EPOLLIN)
        if self._mode == "active":
            self._activate()
        self._control.send("ready")
        if self._active:
            self._control.send("active", pause_ns=0)
        while not self._stopping:
            self._turn()
        if self._holding is not None:
            self._holding[0].close()
        return 0

    def _turn(self) -> None:
        line = self._control.fileno()
        timeout_s = HOLD_S if self._holding else IDLE_S if self._active or self._control.lost else -1
        if self._control.lost:
            timeout_s = min(timeout_s, 0.2) if timeout_s > 0 else 0.2
        ready = [fd for fd, _ in self._poll.poll(timeout_s)]
        if line in ready:
            for command in self._control.receive():
                self._obey(command.name, command.args.get("manager", -1), command.fds)
        if self._control.tick(time.monotonic()):
            self._poll.register(self._control.fileno(), select.EPOLLIN)
        if not self._active:
            return
        self._counters.add(DispatcherCounter.LOOP_PROGRESS)
        if self._holding is not None:
            if not self._hand_over_held():
                return
            self._listen(True)
        for fd in ready:
            if fd in self._listening and self._holding is None:
                self._accept(self._listening[fd])
        now_s = time.monotonic()
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + SWEEP_S
            self._sweep()

    # --- What the supervisor asks ---------------------------------------------------------------------------------
    def _obey(self, command: str, manager: int, fds: dict[str, int]) -> None:
        if command == "activate" and not self._active:
            began_ns = time.monotonic_ns()
            self._activate()
            self._control.send("active", pause_ns=time.monotonic_ns() - began_ns)
        elif command == "park":
            self._park()
            self._control.send("parked")
        elif command == "stop":
            if self._active:
                self._park()
            self._stopping = True
        elif command in ("replaced", "exclude") and 0 <= manager < len(self._excluded):
            self._excluded[manager] = command == "exclude"
            if (fd := fds.get(f"dispatch-{manager}")) is not None:
                self._managers[manager].close()
                self._managers[manager] = socket.socket(fileno=fd)

    def _activate(self) -> None:
        self._active = True
        for manager in range(self._table.managers):
            self._table.recount(manager)
        self._listen(self._holding is None)

    def _listen(self, on: bool) -> None:
        """Whether the loop looks at the listening sockets."""
        if on == self._looking:
            return
        self._looking = on
        for fd in self._listening:
            if on:
                self._poll.register(fd, select.EPOLLIN)
            else:
                self._poll.unregister(fd)

    def _park(self) -> None:
        """Finish what was begun (SRV-90): a connection that was accepted is handed over, however long that takes."""
        self._listen(False)
        self._active = False
        deadline_s = time.monotonic() + 1.5
        while self._holding is not None and not self._hand_over_held() and time.monotonic() < deadline_s:
            time.sleep(HOLD_S)

    # --- Connections ----------------------------------------------------------------------------------------------
    def _accept(self, listening: socket.socket) -> None:
        """A batch of new connections from one listening socket."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._say_full(f"out of file descriptors: {error.strerror}")
                    time.sleep(HOLD_S)
                    return
                continue  # the client has gone again meanwhile
            self._counters.add(DispatcherCounter.ACCEPTED)
            connection.setblocking(False)
            self._holding = connection, peer_text(address)
            if not self._hand_over_held():
                self._counters.add(DispatcherCounter.HELD)
                self._listen(False)  # the next ones wait in the kernel's queue
                return

    def _hand_over_held(self) -> bool:
        """Hand the accepted connection to the best manager whose socket has room. False: none has at the moment."""
        assert self._holding is not None
        connection, peer = self._holding
        table = self._table
        managers = range(table.managers)
        order = placement.order(
            [table.load(manager) for manager in managers],
            [self._excluded[manager] or table.draining(manager) for manager in managers],
            table.per_manager,
        )
        tried = False
        for manager in order:
            opened = table.open(manager, peer, time.time_ns())
            if opened is None:
                continue
            if self._send(manager, *opened, peer, connection):
                self._counters.add(DispatcherCounter.HANDED_OVER)
                self._holding = None
                connection.close()
                return True
            table.take_back(manager, opened[1])
            tried = True
        serving = any(not self._excluded[manager] and not table.draining(manager) for manager in managers)
        if serving and not tried:
            self._counters.add(DispatcherCounter.REFUSED)
            self._say_full(f"no manager has a place left; closed the connection of {peer}")
            self._holding = None
            connection.close()
            return True
        return False

    def _send(self, manager: int, uid: int, index: int, peer: str, connection: socket.socket) -> bool:
        packet = _HANDOVER.pack(uid, index, 0) + peer.encode()
        rights = array.array("i", [connection.fileno()])
        try:
            self._managers[manager].sendmsg(
                [packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT
            )
        except OSError:
            return False  # full, or its manager is gone for good: the next one, or later
        return True

    def _sweep(self) -> None:
        """Free entries whose packet was read by a manager that died before it adopted them."""
        before_ns = time.time_ns() - NEVER_ADOPTED_NS
        for manager, sock in enumerate(self._managers):
            unread = fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0")
            if unread == b"\0\0\0\0" and (swept := self._table.sweep(manager, before_ns)):
                self._counters.add(DispatcherCounter.SWEPT, swept)
                self._control.log("warning", f"freed {swept} connections handed to manager {manager} and never adopted")

    def _say_full(self, text: str) -> None:
        """Once a second at most."""
        now_s = time.monotonic()
        if now_s - self._full_said_s >= 1.0:
            self._full_said_s = now_s
            self._control.log("warning", f"the server is full: {text}")


def peer_text(address: object) -> str:
    """Where a client is, in words; a unix socket's peer usually has no name."""
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(address, bytes):
        address = os.fsdecode(address)
    return f"unix:{address}" if address else "unix"
