"""A made-up trading day as a source: no socket, no file, and the same messages in every adapter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.events import SourceDeclared, SourceEvent, SourceUp
from fairlead.feeds.sources.pacing import Pacing
from fairlead.feeds.sources.settings import GeneratorSource, declared_source
from fairlead.feeds.sources.telling import batches

__all__ = ["Generated"]


class Generated:
    """Ends with its day."""

    def __init__(self, settings: GeneratorSource) -> None:
        self._settings = settings
        self.counters = {"messages": 0}

    async def events(self) -> AsyncIterator[SourceEvent]:
        settings = self._settings
        day = TradingDay(
            seed=settings.seed, messages=settings.messages, symbols=settings.symbols, malformed=settings.malformed
        )
        yield SourceDeclared(declared_source(settings))
        yield SourceUp(settings.id)
        pacing = Pacing(settings.rate, settings.start_at or time.time())
        first = 1
        while first <= settings.messages:
            count = pacing.due(time.time())
            if count:
                run = day.run(first, count)
                first = run.last + 1
                self.counters["messages"] += run.size
                for batch in batches(settings.id, [run]):
                    yield batch
            await asyncio.sleep(pacing.wait_s(time.time()))
