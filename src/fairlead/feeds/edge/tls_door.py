"""Takes in connections that begin with a TLS handshake: bounded, since until it is done they are nobody's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

__all__ = ["TlsDoor"]

PAUSE_S: Final = 0.05
"""After the system could not give us a connection: descriptors may be short for a moment."""


class TlsDoor:
    """Listens on a socket. When too many are greeting, whoever has taken longest makes room."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.Protocol],
        *,
        greeting_max: int,
        greeting_s: float,
    ) -> None:
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._greeting_max = greeting_max
        self._greeting_s = greeting_s
        self._loop = asyncio.get_running_loop()
        self._greeting: dict[asyncio.Task[None], socket.socket] = {}
        listener.setblocking(False)
        self._task = asyncio.create_task(self._accept_all())

    def __len__(self) -> int:
        return len(self._greeting)

    async def close(self) -> None:
        greeting = list(self._greeting)
        for task in (self._task, *greeting):
            task.cancel()
        await asyncio.gather(self._task, *greeting, return_exceptions=True)
        self._listener.close()

    async def _accept_all(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._greeting) >= self._greeting_max:
                slowest, its = next(iter(self._greeting.items()))
                with contextlib.suppress(OSError):
                    its.shutdown(socket.SHUT_RDWR)
                del self._greeting[slowest]
                slowest.cancel()
            task = asyncio.create_task(self._greet(sock))
            self._greeting[task] = sock
            task.add_done_callback(lambda done: self._greeting.pop(done, None))

    async def _greet(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, sock, ssl=self._context, ssl_handshake_timeout=self._greeting_s
            )
        except (OSError, asyncio.CancelledError):
            sock.close()
