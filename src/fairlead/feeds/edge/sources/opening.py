"""The tables [source] opened: one stream of events, whatever the sources are and however many (STR-12)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

from fairlead.errors import ConfigError
from fairlead.feeds.sources.events import SourceDeclared, SourceEvent, SourceReset
from fairlead.feeds.sources.settings import (
    FileSource,
    GeneratorSource,
    SourceSettings,
    TcpSource,
    TopicSource,
    UdpSource,
    declared_source,
    read_sources,
    with_siblings,
)
from fairlead.feeds.words import Source

__all__ = ["Sources", "check_sources", "declared", "open_sources"]

AHEAD: Final = 4  # events of one source that may wait for the adapter


class Opened(Protocol):
    """One source."""

    @property
    def counters(self) -> dict[str, int]: ...

    def events(self) -> AsyncIterator[SourceEvent]: ...


def open_sources(tables: Sequence[dict[str, Any]], *, stream: str) -> Sources:
    """All sources of a stream; ConfigError if a table is not right."""
    return Sources({one.id: _open(one, stream) for one in read_sources(tables)})


def check_sources(tables: Sequence[dict[str, Any]]) -> None:
    """ConfigError says what is wrong with them, files included."""
    for settings in read_sources(tables):
        if isinstance(settings, FileSource) and not Path(settings.path).is_file():
            raise ConfigError(f"[source] path = {settings.path!r}: there is no such file.")


def declared(tables: Sequence[dict[str, Any]]) -> tuple[Source, ...]:
    """The source streams whose ids are known before the first packet; sessions are declared when they begin."""
    found = [
        declared_source(one)
        for one in read_sources(tables)
        if isinstance(one, GeneratorSource) or (isinstance(one, TopicSource) and not one.session_header)
    ]
    return tuple(with_siblings(one, [other.id for other in found]) for one in found)


def _open(settings: SourceSettings, stream: str) -> Opened:
    match settings:
        case UdpSource():
            from fairlead.feeds.edge.sources.udp import UdpLines

            return UdpLines(settings)
        case GeneratorSource():
            from fairlead.feeds.edge.sources.generator import Generated

            return Generated(settings)
        case FileSource():
            from fairlead.feeds.edge.sources.file import FileReplay

            return FileReplay(settings)
        case TcpSource():
            from fairlead.feeds.edge.sources.tcp import TcpLine

            return TcpLine(settings)
        case TopicSource():
            from fairlead.feeds.edge.sources.topic import TopicLine

            return TopicLine(settings, stream)


class Sources:
    """An async iterator over the events of all sources; ends when all have ended. Order is kept within each."""

    def __init__(self, opened: Mapping[str, Opened]) -> None:
        self._opened = opened
        self._events: AsyncIterator[SourceEvent] | None = None
        self._known: dict[str, str] = {}  # the present source stream of each source

    @property
    def counters(self) -> dict[str, int]:
        """Those of all sources, added up."""
        total: dict[str, int] = {}
        for one in self._opened.values():
            for name, count in one.counters.items():
                total[name] = total.get(name, 0) + count
        return total

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SourceEvent:
        if self._events is None:
            alone = next(iter(self._opened.values())) if len(self._opened) == 1 else None
            self._events = alone.events() if alone else self._merged()
        return await anext(self._events)

    async def aclose(self) -> None:
        """Close all sockets and files. It may be called before the first event too."""
        events, self._events = self._events, None
        if events is not None and hasattr(events, "aclose"):
            await events.aclose()

    async def _merged(self) -> AsyncIterator[SourceEvent]:
        """Whichever has something. A source that is faster than the adapter waits for it, and holds up no other."""
        queue: asyncio.Queue[SourceEvent | BaseException | None] = asyncio.Queue(AHEAD * len(self._opened))

        async def read(name: str, one: Opened) -> None:
            events = one.events()
            try:
                async for event in events:
                    await queue.put(self._as_sibling(name, event))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)
            finally:
                if hasattr(events, "aclose"):
                    await events.aclose()

        tasks = [asyncio.create_task(read(name, one), name="feed source") for name, one in self._opened.items()]
        try:
            left = len(tasks)
            while left:
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    left -= 1
                else:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _as_sibling(self, name: str, event: SourceEvent) -> SourceEvent:
        """A declaration names the other sources that are merged with it."""
        if not isinstance(event, SourceDeclared | SourceReset):
            return event
        others = [known for other, known in self._known.items() if other != name]
        self._known[name] = event.declared.id
        return event._replace(declared=with_siblings(event.declared, others))
