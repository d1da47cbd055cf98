"""A pool of connections of one application, for concurrent synchronous work (DIR-70).

::

    async with fairlead.Pool("fairlead+directory://d1,d2/cluster-A", name="AX", maximum=9) as pool:
        answer = await pool.call("AZ", b"…")
        async with pool.connection() as connection: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from fairlead.client.aio.app_message import AppMessage
from fairlead.client.aio.connection import Connection
from fairlead.client.aio.placing import Scope
from fairlead.client.durable.receipt import Receipt
from fairlead.client.effects import Event
from fairlead.directory.delivery.pooled import Pooled
from fairlead.errors import LocalProtocolError, RequestTimeout

__all__ = ["Pool"]


class Pool:
    """Opens connections on demand, each placed as the directory says, and hands out an idle one where there is one.

    `wait_s`: how long to wait for one when all are in use; then RequestTimeout. The other options are those of
    `connect`; its connections are synchronous unless `mode` says otherwise. A connection that breaks is dropped and not
    made again: the next one that is needed is placed anew.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        name: str | None = None,
        *,
        minimum: int = 0,
        maximum: int = 9,
        wait_s: float | None = 30,
        scope: Scope | None = None,
        **options: Any,
    ) -> None:
        self._url = url
        self._scope = scope  # other than this loop, whose connections belong together when brokers are chosen
        self._options = {"mode": "synchronous", "reconnect": False, **options, "name": name}
        self._wait_s = wait_s
        self._pooled: Pooled[Connection, asyncio.Future[None]] = Pooled(minimum, maximum)
        self._closing: set[asyncio.Task[None]] = set()
        self._is_open = False

    # Its life.

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open as many connections as there are at least."""
        self._is_open = True
        try:
            for _ in range(self._pooled.missing):
                self._pooled.begin_opening()
                await self._open_one(used=False)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close all connections, also those in use; whoever waits for one is told."""
        self._is_open = False
        connections = self._pooled.everything()
        self._wake()
        await asyncio.gather(*(one.close() for one in connections), *self._closing, return_exceptions=True)

    @property
    def size(self) -> int:
        """Connections there are, in use or not."""
        return self._pooled.size

    def facts(self) -> dict[str, int]:
        """How many are `idle`, `used`, being opened (`opening`), and how many callers are `waiting` for one."""
        return self._pooled.facts()

    # Using it.

    @asynccontextmanager
    async def connection(self, wait_s: float | None = -1.0) -> AsyncIterator[Connection]:
        """One that nobody else uses, for as long as the block lasts."""
        limit_s = self._wait_s if wait_s == -1.0 else wait_s
        connection = await self._take(limit_s)
        try:
            yield connection
        finally:
            self._give_back(connection)

    async def call(self, to: str, body: Any = b"", *, timeout: float | None = 30, **options: Any) -> AppMessage:
        """Ask an application over a connection of its own; see `Connection.call`."""
        async with self.connection() as connection:
            return await connection._applications.call(to, body, timeout=timeout, **options)

    async def send_to(self, to: str, body: Any, **options: Any) -> Receipt:
        """See `Connection.send_to`."""
        async with self.connection() as connection:
            return await connection._applications.send(to, body, **options)

    # Inside.

    async def _take(self, limit_s: float | None) -> Connection:
        until_s = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        while True:
            if not self._is_open:
                raise LocalProtocolError("The pool is not open: use `async with`.")
            found = self._pooled.ask()
            if isinstance(found, Connection):
                if found.connected:
                    return found
                self._give_back(found)
            elif found == "open":
                return await self._open_one(used=True)
            else:
                try:
                    async with asyncio.timeout_at(until_s):
                        await self._wait()
                except TimeoutError:
                    raise RequestTimeout(
                        f"All {self._pooled.maximum} connections of the pool are in use, for {limit_s:g} s now."
                    ) from None

    async def _open_one(self, *, used: bool) -> Connection:
        connection: Connection | None = None
        try:
            connection = Connection(self._url, **self._options)
            connection._scope = self._scope
            await connection
        except BaseException:
            self._pooled.failed()
            if connection is not None and connection._opened is not None:
                await connection.close()
            self._wake()
            raise
        self._pooled.opened(connection, used=used)
        if not self._is_open:
            await connection.close()
        made = connection

        def hear(event: Event) -> None:
            if event.name in ("lost", "closed"):
                self._pooled.drop_idle(made)
                self._wake()

        connection.on_event(hear)
        return connection

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pooled.wait(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._pooled.leave(waiter)
            if waiter.done() and not waiter.cancelled():
                self._wake()  # its turn is another's now
            raise

    def _give_back(self, connection: Connection) -> None:
        is_broken = not connection.connected or not self._is_open
        self._pooled.give_back(connection, broken=is_broken)
        if is_broken:
            task = asyncio.get_running_loop().create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._wake()

    def _wake(self) -> None:
        """Those who may ask again now do."""
        while (waiter := self._pooled.next_waiter(everybody=not self._is_open)) is not None:
            if not waiter.done():
                waiter.set_result(None)
                if self._is_open:
                    return
