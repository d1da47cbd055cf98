"""The source side of an adapter: what the source tells becomes records of the machine, batch by batch."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from fairlead.feeds.adapter import Adapter
from fairlead.feeds.adapter.actions import Action
from fairlead.feeds.edge.faults import Faults
from fairlead.feeds.edge.sources import open_sources
from fairlead.feeds.making import Maker
from fairlead.feeds.sources.events import (
    SourceBatch,
    SourceDeclared,
    SourceDown,
    SourceEvent,
    SourceGap,
    SourceReset,
    SourceTrouble,
    SourceUp,
)

__all__ = ["Intake"]

log = logging.getLogger("fairlead.feeds.source")

TURN_S: Final = 0.002
"""A source that always has more lets others run after so long."""
LARGE: Final = 1000
"""A batch of so many messages is worth its fixed cost: nothing is gained by waiting for more."""


class Intake:
    """Reads the sources, converts, and hands on."""

    def __init__(
        self,
        tables: list[dict[str, Any]],
        stream: str,
        maker: Maker,
        machine: Adapter,
        do: Callable[[Iterable[Action]], None],
        faults: Faults | None = None,
        linger_s: float = 0.0,
    ) -> None:
        self._tables = tables
        self._stream = stream
        self._maker = maker
        self._machine = machine
        self._do = do
        self._faults = faults
        self._linger_s = linger_s
        self._down: set[str] = set()
        self._late: deque[SourceEvent] = deque()
        self._loop = asyncio.get_running_loop()
        self._counted: Callable[[], dict[str, int]] = dict

    def counters(self) -> dict[str, int]:
        counted = {**self._counted(), **self._maker.counters}
        return {f"source_{name}": count for name, count in counted.items()}

    def log_rejected(self) -> None:
        """Say why messages could not be converted since this was last called."""
        for reason, count in self._maker.take_reasons().items():
            log.warning("%d source messages could not be converted: %s", count, reason)

    async def run(self) -> None:
        """Until it is cancelled, or the source has come to its end."""
        sources = open_sources(self._tables, stream=self._stream)
        self._counted = lambda: dict(sources.counters)
        rested_s = began_s = self._loop.time()
        try:
            async for event in sources:
                began_s = self._loop.time()
                if self._faults is not None and (self._faults.delay_source_s or self._late):
                    self._late.append(event)
                    self._loop.call_later(self._faults.delay_source_s, self._take_late)
                else:
                    self._take(event)
                now_s = self._loop.time()
                pause_s = began_s + self._linger_s - now_s if is_small(event) else 0.0
                if pause_s > 0 or now_s - rested_s > TURN_S:
                    await asyncio.sleep(max(pause_s, 0))
                    rested_s = self._loop.time()
            log.info("the source has come to its end")
            await asyncio.Event().wait()  # what was made of it is still to be had
        finally:
            await sources.aclose()

    def _take(self, event: SourceEvent) -> None:
        now_s = self._loop.time()
        machine, do = self._machine, self._do
        match event:
            case SourceBatch():
                made = self._maker.make(event)
                if self._faults is not None and self._faults.is_mangling:
                    made = made._replace(data=bytes(made.data).translate(MANGLED))
                do(machine.on_made(made, now_s))
            case SourceGap():
                log.warning("source %s lost sequences %d to %d", *event)
                do(machine.on_source_gap(event.source, event.first, event.last, now_s))
            case SourceDeclared() | SourceReset():
                do(machine.on_source(event.declared, now_s))
            case SourceDown():
                log.warning("source %s is down: %s", event.source, event.why)
                self._down.add(event.source)
                do(machine.on_source_alive(False, now_s))
            case SourceUp():
                log.info("source %s is up %s", event.source, event.why)
                self._down.discard(event.source)
                do(machine.on_source_alive(not self._down, now_s))
            case SourceTrouble():
                log.warning("source %s: %s (%d times)", *event)

    def _take_late(self) -> None:
        if self._late:
            self._take(self._late.popleft())


def is_small(event: SourceEvent) -> bool:
    """Is it a batch after which it pays to wait a little, so that the next one is larger?"""
    return isinstance(event, SourceBatch) and event.size < LARGE


MANGLED: Final = bytes(code ^ 1 for code in range(256))
