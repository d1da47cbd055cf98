"""Takes connections that somebody else has accepted: descriptors in datagrams of a unix socket (SCM_RIGHTS).

One datagram is one connection; its only byte says what will be spoken on it: `P` plain HTTP, `T` TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable

__all__ = ["Intake"]

log = logging.getLogger("fairlead.tunnel.gateway")

PLAIN, TLS = b"P", b"T"
AT_ONCE = 64
"""Connections taken before others have their turn."""
DESCRIPTORS_MAX = 4


class Intake:
    """Belongs to one event loop; `make` gives the protocol of a connection."""

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None,
        patience_s: float,
        handshakes_max: int = 1024,
    ) -> None:
        self.taken = 0
        self.refused = 0
        self._sock = sock
        self._make = make
        self._context = context
        self._patience_s = patience_s
        self._handshakes_max = handshakes_max
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def close(self) -> None:
        """Takes no more; what waits in the socket is for whoever has it next."""
        self._loop.remove_reader(self._sock.fileno())
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_readable(self) -> None:
        for _ in range(AT_ONCE):
            try:
                what, fds, _, _ = socket.recv_fds(self._sock, 16, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("the intake of connections is broken: %s", error)
                self._loop.remove_reader(self._sock.fileno())
                return
            for fd in fds[1:]:
                os.close(fd)
            if fds:
                self._take(what, fds[0])

    def _take(self, what: bytes, fd: int) -> None:
        try:
            connection = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            self.refused += 1
            return
        unwanted = what not in (PLAIN, TLS) or (what == TLS and self._context is None)
        if unwanted or connection.type != socket.SOCK_STREAM or len(self._tasks) >= self._handshakes_max:
            connection.close()
            self.refused += 1
            return
        self.taken += 1
        task = self._loop.create_task(self._begin(connection, self._context if what == TLS else None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=context, ssl_handshake_timeout=self._patience_s if context else None
            )
        except (OSError, ssl.SSLError) as error:  # it went away, or it speaks no TLS
            self.refused += 1
            connection.close()
            log.debug("a connection handed in was not taken: %s", error)
