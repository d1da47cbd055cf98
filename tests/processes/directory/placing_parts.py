"""What stands in the way of a choice: brokers that are none, and a line that is slow or listened to."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fairlead.directory.rows import Broker
from fairlead.testing.directory_world import World

_numbers = itertools.count(1)


class Line:
    """Carries bytes to a port of this host, late if it is told to, and remembers them."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = 0
        self.late_s = 0.0
        self.seen = bytearray()
        self.accepted = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def cut(self) -> None:
        """Every connection ends, and no other gets through."""
        self.to = 1
        for task in self._tasks:
            task.cancel()

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if self.late_s:
                    await asyncio.sleep(self.late_s)
                self.seen += data
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    @classmethod
    @asynccontextmanager
    async def open(cls, to: int) -> AsyncIterator[Line]:
        line = cls(to)
        server = await asyncio.start_server(line._on_client, "127.0.0.1", 0)
        line.port = server.sockets[0].getsockname()[1]
        try:
            yield line
        finally:
            server.close()
            for task in list(line._tasks):
                task.cancel()
            if line._tasks:
                await asyncio.wait(line._tasks)
            await server.wait_closed()


class Silent:
    """A port that takes connections and says nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted = 0
        self.open_lines = 0
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open_lines += 1
        self._writers.append(writer)
        with suppress(OSError):
            await reader.read()
        self.open_lines -= 1
        writer.close()

    async def close(self) -> None:
        """As if it had died."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Silent]:
        made = cls()
        made._server = await asyncio.start_server(made._on_client, "127.0.0.1", 0)
        made.port = made._server.sockets[0].getsockname()[1]
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def cluster_of(world: World, *members: str | Broker) -> AsyncIterator[str]:
    """A new cluster of these, in this order; a row that is given stands for a broker the test plays itself."""
    cluster = f"cluster-{next(_numbers)}"
    rows = [member for member in members if isinstance(member, Broker)]
    async with world.open() as directory:
        for row in rows:
            await directory.put_broker(row)
        for member in members:
            await directory.join_cluster(cluster=cluster, broker=member if isinstance(member, str) else member.name)
        try:
            yield cluster
        finally:
            for member in members:
                if isinstance(member, str):
                    await directory.leave_cluster(cluster=cluster, broker=member)
            for row in rows:
                await directory.remove_broker(name=row.name)


def played(port: int, *, secure_port: int = 0, name: str = "", **facts: Any) -> Broker:
    """The row of a broker that is none."""
    return Broker(
        name=name or f"played-{next(_numbers)}",
        ip="127.0.0.1",
        port=port,
        secure_port=secure_port,
        host="127.0.0.1",
        identity=secrets.token_hex(8),
        **facts,
    )
