"""Stands between a client and a server, and hurts chosen connections at a chosen byte: cut, stalled or garbled."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Literal, NamedTuple, Self

RESET = struct.pack("ii", 1, 0)


class Hurt(NamedTuple):
    """What happens to a connection once so many bytes have passed, to the client (`down`) or to the server (`up`)."""

    how: Literal["cut", "reset", "stall", "garble", "none"]
    after: int = 0
    way: Literal["down", "up"] = "down"


class Relay:
    """Connections are hurt as the list says, one after another; those beyond its end are left alone."""

    def __init__(self, port: int, hurts: Iterable[Hurt] = ()) -> None:
        self.hurts = list(hurts)
        self.connections = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"fairlead://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut_all()
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def cut_all(self) -> None:
        """Every connection there is ends now."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            hurt = self.hurts[self.connections] if self.connections < len(self.hurts) else Hurt("none")
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            self.connections += 1
            for way, one, other in (("down", server, client), ("up", client, server)):
                own = hurt if hurt.way == way else Hurt("none")
                self._threads.append(threading.Thread(target=self._carry, args=(one, other, own)))
                self._threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket, hurt: Hurt) -> None:
        passed, how = 0, hurt.how
        with suppress(OSError):
            while data := one.recv(65_536):
                if how != "none" and passed + len(data) > hurt.after:
                    at = hurt.after - passed
                    if how == "garble":
                        data = data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 8]) + data[at + 8 :]
                        how = "none"
                    else:
                        other.sendall(data[:at])
                        if how == "stall":
                            while one.recv(65_536):  # taken, and never passed on
                                pass
                        break
                other.sendall(data)
                passed += len(data)
        for sock in (one, other):
            with suppress(OSError):
                if how == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.shutdown(socket.SHUT_RDWR)
