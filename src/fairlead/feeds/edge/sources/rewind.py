"""The rewind servers of a numbered source: questions go to one after the other, answers come back as packets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from fairlead.feeds.sources.settings import split_address

__all__ = ["Rewind"]

WAITING_BYTES_MAX: Final = 8 << 20
PACKETS_MAX: Final = 256
CONNECT_S: Final = 1.0


class Rewind:
    """`wake` is called when there may be answers. A server that cannot be reached costs nothing but its turn."""

    def __init__(self, addresses: tuple[str, ...], wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._turn = 0
        self._servers: list[_Udp | _Tcp] = []
        for text in addresses:
            scheme, _, address = text.partition("://")
            server = _Udp if scheme == "udp" else _Tcp
            self._servers.append(server(*split_address(address), self._loop, wake))

    def ask(self, question: bytes) -> None:
        if self._servers:
            self._servers[self._turn % len(self._servers)].ask(question)
            self._turn += 1

    def answers(self) -> list[bytes]:
        """What has come, at most some hundred packets at a time."""
        found: list[bytes] = []
        for server in self._servers:
            found += server.answers()
        return found

    async def aclose(self) -> None:
        for server in self._servers:
            await server.aclose()


class _Udp:
    def __init__(self, host: str, port: int, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._address = (host, port)
        with contextlib.suppress(OSError):
            self._sock.connect(self._address)  # so that nobody else's packets are taken for answers
        loop.add_reader(self._sock, wake)

    def ask(self, question: bytes) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(question)

    def answers(self) -> list[bytes]:
        found: list[bytes] = []
        with contextlib.suppress(OSError):
            while len(found) < PACKETS_MAX:
                found.append(self._sock.recv(65536))
        return found

    async def aclose(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()


class _Tcp:
    """One connection, made when there is a question; every packet has its length (2 bytes) before it."""

    def __init__(self, host: str, port: int, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._address = (host, port)
        self._loop = loop
        self._wake = wake
        self._task: asyncio.Task[None] | None = None
        self._questions: deque[bytes] = deque(maxlen=64)
        self._asked = asyncio.Event()
        self._packets: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def ask(self, question: bytes) -> None:
        self._questions.append(question)
        self._asked.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._talk())

    def answers(self) -> list[bytes]:
        found: list[bytes] = []
        while self._packets and len(found) < PACKETS_MAX:
            found.append(self._packets.popleft())
            self._waiting_bytes -= len(found[-1])
        if self._packets:
            self._wake()
        elif self._waiting_bytes < WAITING_BYTES_MAX:
            self._room.set()
        return found

    async def _talk(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(*self._address)
        except OSError:  # a timeout is one too
            return
        sending = self._loop.create_task(self._send(writer))
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                packet = await reader.readexactly(size)
                self._packets.append(packet)
                self._waiting_bytes += len(packet)
                self._wake()
                if self._waiting_bytes >= WAITING_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._questions:
                writer.write(self._questions.popleft())
            await writer.drain()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
