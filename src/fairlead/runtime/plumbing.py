"""The descriptors that outlive every child: listening sockets, event descriptors, the socket pairs between dispatcher
and managers and between managers and the gateway of tunnels.

Kept under one name each. A child gets those it needs under the names of docs/processes.md, and beside its own end of
a socket pair a copy of the other end: so if supervisor and one side die together, the other still keeps what was in
flight.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairlead.errors import ConfigError
from fairlead.runtime import listeners, rundir

OUTLET: Final = "tunnel-outlet"  # where managers put connections that begin with HTTP
INTAKE: Final = "tunnel-intake"  # where the gateway takes them
LINK: Final = "tunnel-link"  # where the broker of tunnels reaches the gateway
CONSOLE: Final = "console-"  # where browsers reach the console
LINK_NAME: Final = "tunnel.sock"  # of its file in the run directory


class Plumbing:
    """All of them, by name: `listen-N`, `wake-router`, `wake-manager-I`, `dispatch-I`, `dispatched-I`, `tunnel-…`,
    `console-N`."""

    def __init__(self, managers: int) -> None:
        self._managers = managers
        self._fds: dict[str, int] = {}

    def take(self, role: str, index: int, fds: Mapping[str, int]) -> None:
        """Collect what a living child held for us; copies of what we have already are closed."""
        for name, fd in fds.items():
            ours = self._our_name(role, index, name)
            if ours in self._fds or not ours:
                os.close(fd)
            else:
                self._fds[ours] = fd

    def complete(self, listen: list[str], backlog: int) -> None:
        """Make what nobody had. ConfigError if an address cannot be listened on."""
        if not any(name.startswith("listen-") for name in self._fds):
            for number, text in enumerate(listen):
                self._fds[f"listen-{number}"] = listeners.listen(text, backlog).detach()
        for name in ("wake-router", *(f"wake-manager-{i}" for i in range(self._managers))):
            if name not in self._fds:
                self._fds[name] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for i in range(self._managers):
            if f"dispatch-{i}" not in self._fds or f"dispatched-{i}" not in self._fds:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.setblocking(False)
                theirs.setblocking(False)
                self._fds[f"dispatch-{i}"] = ours.detach()
                self._fds[f"dispatched-{i}"] = theirs.detach()

    def complete_tunnels(self, run: Path) -> None:
        """The same for what tunnels need. The pair takes as many connections as its buffer has room for."""
        if OUTLET not in self._fds or INTAKE not in self._fds:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            ours.setblocking(False)
            theirs.setblocking(False)
            self._fds[OUTLET], self._fds[INTAKE] = ours.detach(), theirs.detach()
        if LINK not in self._fds:
            self._fds[LINK] = rundir.listen_unix(run / LINK_NAME, socket.SOCK_STREAM).detach()

    def complete_console(self, listen: list[str], backlog: int, *, default: bool) -> str:
        """The sockets of the console. A note if the default one is taken, so that another free port is used."""
        if any(name.startswith(CONSOLE) for name in self._fds):
            return ""
        note = ""
        for number, text in enumerate(listen):
            try:
                sock = listeners.listen(text, backlog)
            except ConfigError as error:
                if not default:
                    raise ConfigError(f"[console] {error}") from None
                sock = listeners.listen(text.rpartition(":")[0] + ":0", backlog)
                note = f"{text} is taken by another program; the console is at {listeners.url(sock, 'http')} instead"
            self._fds[f"{CONSOLE}{number}"] = sock.detach()
        return note

    def consoles(self) -> list[socket.socket]:
        """Copies of the console's sockets, to ask them things."""
        return [socket.socket(fileno=os.dup(fd)) for _, fd in sorted(self._named(CONSOLE).items())]

    @property
    def intake(self) -> int:
        return self._fds[INTAKE]

    def fds_for(self, role: str, index: int) -> dict[str, int]:
        """What a child of this role is given."""
        fds = self._fds
        if role == "router":
            return {"wake": fds["wake-router"], **self._named("wake-manager-")}
        if role == "manager":
            return {
                "wake": fds[f"wake-manager-{index}"],
                "wake-router": fds["wake-router"],
                "dispatched": fds[f"dispatched-{index}"],
                f"dispatch-{index}": fds[f"dispatch-{index}"],
                **self._named("tunnel-"),
            }
        if role == "tunnel-gateway":
            return self._named("tunnel-")
        if role == "console":
            return self._named(CONSOLE)
        if role in ("message-manager", "agent", "bridge", "registrar", "streams", "tunnel-broker"):
            return {}  # it listens or connects by itself: nothing of it has to outlive it
        return {**self._named("listen-"), **self._named("dispatch-"), **self._named("dispatched-")}

    def listening(self) -> list[socket.socket]:
        """Copies of the listening sockets, to ask them things."""
        names = sorted(self._named("listen-"), key=lambda name: int(name.removeprefix("listen-")))
        return [socket.socket(fileno=os.dup(self._fds[name])) for name in names]

    def handovers_unread(self, manager: int) -> bool:
        """Do connections wait in the socket for this manager to read them?"""
        return fcntl.ioctl(self._fds[f"dispatch-{manager}"], termios.TIOCOUTQ, bytes(4)) != bytes(4)

    def close(self) -> None:
        for fd in self._fds.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = {}

    def _named(self, prefix: str) -> dict[str, int]:
        return {name: fd for name, fd in self._fds.items() if name.startswith(prefix)}

    def _our_name(self, role: str, index: int, name: str) -> str:
        if name == "wake":
            return "wake-router" if role == "router" else f"wake-manager-{index}"
        if name == "dispatched":
            return f"dispatched-{index}"
        return name
