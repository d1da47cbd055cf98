"""Killing the processes of a server while clients work, and waiting until they are there again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.testing import Server
from tests.processes.tools import reported

MM = "message-manager"
WHOLE_S = 40.0


async def whole(server: Server) -> None:
    """Everybody is there and serving."""
    await reported(server, lambda _: len(server.pids("manager")) == 2 and server.pids(MM), WHOLE_S)


async def hurt(server: Server, what: str, index: int = 0) -> None:
    if what == "everything":
        server.kill_everything()
        await asyncio.to_thread(server.start)
    else:
        await whole(server)
        server.kill(what, index if what == "manager" else 0)


@asynccontextmanager
async def killing(server: Server, *what: str, pause_s: float = 0.15) -> AsyncIterator[Counter[str]]:
    """Kills one after the other, again and again, as long as the block lasts."""
    done: Counter[str] = Counter()

    async def go_on() -> None:
        number = 0
        while True:
            victim = what[number % len(what)]
            await whole(server)
            server.kill(victim, number // len(what) % 2 if victim == "manager" else 0)
            done[victim] += 1
            number += 1
            await asyncio.sleep(pause_s)

    task = asyncio.create_task(go_on())
    try:
        yield done
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await whole(server)
