"""The connection to one directory server: opened when it is first needed, kept, and opened again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.errors import ConnectionLost

if TYPE_CHECKING:
    from fairlead.client.aio import Connection

__all__ = ["ServerLine"]


class ServerLine:
    """`make` gives a connection that is not open yet. Whoever needs it while it is being opened waits for the same."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    async def connection(self) -> Connection:
        """The open one; or the reason why there is none."""
        if self._closed:
            raise ConnectionLost("This client of the directory is closed.")
        if self._connection is not None and self._connection.connected:
            return self._connection
        if self._opening is None:
            self.leave()  # what is lost is not waited for
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_seen)
        return await asyncio.shield(self._opening)

    async def _open(self) -> Connection:
        try:
            self._connection = connection = await self._make()
            return connection
        finally:
            self._opening = None

    def leave(self) -> None:
        """Do not use this connection any more: it says nothing."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            task = asyncio.create_task(connection.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        self.leave()
        if self._leaving:
            await asyncio.wait(self._leaving)


def _seen(task: asyncio.Task[Connection]) -> None:
    """Whoever asked may have gone meanwhile: the reason is nobody's then."""
    if not task.cancelled():
        task.exception()
