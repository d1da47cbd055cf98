"""What the tests of whole directories share: clients with a place of their own, and counts by broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import fairlead
from fairlead.testing.directory_world import MAIN, SCHEME, View

PATIENCE_S = 40.0


class Client:
    """What one client process would be: its own directory server, copy of the tables and cursor."""

    def __init__(self, stage: Stage, number: int, login: str, options: dict[str, Any]) -> None:
        self._stage = stage
        self._login = login
        self.number = number
        self.options = options
        self.anywhere = False  # True: it knows all servers of the directory
        self.scheme = SCHEME

    def url(self, cluster: str = MAIN) -> str:
        own = (self.number - 1) % self._stage.servers + 1
        return self._stage.world.url(cluster, None if self.anywhere else own, self._login, self.scheme)

    async def open(self, app: str, cluster: str = MAIN, **options: Any) -> Any:
        """A connection of an application to some broker of a cluster; closed with the stage."""
        facts = {"client": f"{self._stage.name}-{self.number}", **self.options, **options}
        return await self._stage.enter(fairlead.connect(self.url(cluster), name=app, **facts))

    async def open_many(self, app: str, count: int, cluster: str = MAIN, **options: Any) -> list[Any]:
        """All at once."""
        return await asyncio.gather(*(self.open(app, cluster, **options) for _ in range(count)))


class Stage:
    """Clients of one test. Each keeps to one directory server, client 1 to the first one, unless told otherwise."""

    _count = 0

    def __init__(self, world: View) -> None:
        Stage._count += 1
        self.world = world
        self.name = f"stage{Stage._count}"
        self.servers = len(world.authorities)
        self._open: list[Any] = []

    def client(self, number: int = 1, login: str = "", **options: Any) -> Client:
        return Client(self, number, login, options)

    async def enter(self, opening: Any) -> Any:
        opened = await opening.__aenter__()
        self._open.append(opened)
        return opened

    async def leave(self, connection: Any) -> None:
        self._open.remove(connection)
        await connection.__aexit__(None, None, None)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for connection in self._open:
                stack.push_async_exit(connection.__aexit__)
        self._open.clear()


def spread(rows: Iterable[Any]) -> dict[str, int]:
    """How many of these (rows, connections) each broker has."""
    return dict(Counter(row.broker for row in rows))


def evenness(rows: Iterable[Any], brokers: str = "ABC") -> int:
    counts = spread(rows)
    numbers = [counts.get(name, 0) for name in brokers]
    return max(numbers) - min(numbers)


async def off(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a thread, so that clients go on."""
    return await asyncio.to_thread(work, *arguments)


async def picks(world: View) -> int:
    """How many picks the directory has made."""
    return int((await world.status()).facts["picks"])
