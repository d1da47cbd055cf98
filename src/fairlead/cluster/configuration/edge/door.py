"""The local socket of a node, `DATA/run/admin.sock`: administration when no client can connect (CLU-185).

It speaks like the socket of a server (`runtime.admin`): `{"command": "admin", "name": "cluster", "args": {"do":
"status"}}` is put to all nodes, with `"nodes": [...]` in `args` to these; the command `here` to this node alone.
"""

from __future__ import annotations

import contextlib
import select
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.cluster.configuration.edge.admin_port import AdminPort
from fairlead.runtime.admin import QUESTION_BYTES_MAX, SOCKET_NAME
from fairlead.runtime.rundir import listen_unix

CALLERS_MAX: Final = 64


class _Caller:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inward = b""
        self.outward = b""
        self.gone = False


class Door:
    """`fileno` is readable when `turn` has something to do."""

    def __init__(self, run: Path, port: AdminPort) -> None:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._port = port
        self._path = run / SOCKET_NAME
        self._sock = listen_unix(self._path, socket.SOCK_STREAM)
        self._epoll = select.epoll()
        self._epoll.register(self._sock.fileno(), select.EPOLLIN)
        self._callers: dict[int, _Caller] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def turn(self) -> None:
        for fd, events in self._epoll.poll(0):
            if fd == self._sock.fileno():
                self._accept()
            elif (caller := self._callers.get(fd)) is not None:
                if events & select.EPOLLOUT:
                    self._flush(caller)
                if events & ~select.EPOLLOUT:
                    self._read(caller)

    def close(self) -> None:
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._epoll.close()
        self._sock.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._sock.accept()
                if len(self._callers) >= CALLERS_MAX:
                    sock.close()
                    continue
                sock.setblocking(False)
                self._callers[sock.fileno()] = _Caller(sock)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.inward += data
        while b"\n" in caller.inward:
            line, _, caller.inward = caller.inward.partition(b"\n")
            self._question(caller, line)
        if not data or len(caller.inward) > QUESTION_BYTES_MAX:
            self._drop(caller)

    def _question(self, caller: _Caller, line: bytes) -> None:
        try:
            question = msgspec.json.decode(line, type=dict[str, Any])
            args = question.get("args", {})
            if not isinstance(args, dict):
                raise ValueError("its args are no object")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._tell(caller, ok=False, error=f"Not a question: {error}.")
            return
        if question.get("command") == "here":
            self._port.answer_here(args, lambda answer: self._tell(caller, **answer))
        elif question.get("command") == "admin" and question.get("name") == "cluster":
            self._port.ask(args, lambda answer: self._tell(caller, ok=True, result=answer))
        else:
            text = "This node answers `fairlead cluster` commands; ask a client manager's node for everything else."
            self._tell(caller, ok=False, error=text)

    def _tell(self, caller: _Caller, **facts: Any) -> None:
        if not caller.gone:
            caller.outward += msgspec.json.encode(facts) + b"\n"
            self._flush(caller)

    def _flush(self, caller: _Caller) -> None:
        try:
            while caller.outward:
                caller.outward = caller.outward[caller.sock.send(caller.outward) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller)
            return
        self._epoll.modify(caller.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if caller.outward else 0))

    def _drop(self, caller: _Caller) -> None:
        if not caller.gone:
            caller.gone = True
            fd = caller.sock.fileno()
            self._callers.pop(fd, None)
            self._epoll.unregister(fd)
            caller.sock.close()
