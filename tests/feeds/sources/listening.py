"""An adapter's ear for tests: takes the events of sources until it has what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead.feeds.edge.sources import Sources, open_sources
from fairlead.feeds.sources.events import SourceBatch, SourceDeclared, SourceEvent, SourceGap, SourceReset

WAIT_S = 30.0


class Ear:
    """`heard` has sequences by source id, `bodies` what came under them, `events` all the rest in order."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.heard: dict[str, list[int]] = {}
        self.bodies: dict[str, list[bytes]] = {}
        self.events: list[SourceEvent] = []
        self.is_over = False
        self._changed = asyncio.Event()

    async def listen(self) -> None:
        async for event in self.sources:
            if isinstance(event, SourceBatch):
                self.heard.setdefault(event.source, []).extend(event.rows.column(0).to_pylist())
                self.bodies.setdefault(event.source, []).extend(event.rows.column(1).to_pylist())
            else:
                self.events.append(event)
                if isinstance(event, SourceGap):
                    self.heard.setdefault(event.source, []).extend(range(-event.first, -event.last - 1, -1))
            self._changed.set()
        self.is_over = True
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def declared(self) -> dict[str, tuple[str, ...]]:
        """Ids, with their relations as texts."""
        return {
            event.declared.id: tuple(f"{one.kind} {one.of}" for one in event.declared.relations)
            for event in self.events
            if isinstance(event, SourceDeclared | SourceReset)
        }


@asynccontextmanager
async def listening(*tables: dict[str, Any]) -> AsyncIterator[Ear]:
    sources = open_sources(tables, stream="test")
    ear = Ear(sources)
    task = asyncio.create_task(ear.listen())
    try:
        await asyncio.sleep(0)  # sockets are open
        yield ear
    finally:
        failed = task.done() and not task.cancelled() and task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sources.aclose()
        if failed:
            raise failed
