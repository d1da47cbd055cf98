"""A file as a source: a recorded or generated feed, replayed at a rate or as fast as it is taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from fairlead.errors import ConfigError
from fairlead.feeds.sources.actions import Action, Ready
from fairlead.feeds.sources.events import SourceDeclared, SourceEvent, SourceTrouble, SourceUp
from fairlead.feeds.sources.lines import FixSplitter, LineSplitter, PacketSplitter
from fairlead.feeds.sources.pacing import Pacing
from fairlead.feeds.sources.recorded import Recorded
from fairlead.feeds.sources.runs import Run
from fairlead.feeds.sources.settings import FileSource, declared_source
from fairlead.feeds.sources.telling import Telling

__all__ = ["FileReplay"]

READ_BYTES: Final = 1 << 18


class FileReplay:
    """Ends with the file. Two adapters with the same `start_at` and `rate` are at the same place."""

    def __init__(self, settings: FileSource) -> None:
        self._settings = settings
        self._telling = Telling(settings)
        self._recorded = Recorded()
        self.counters = self._recorded.counters

    async def events(self) -> AsyncIterator[SourceEvent]:
        settings = self._settings
        try:
            file = await asyncio.to_thread(open, settings.path, "rb")
        except OSError as error:
            raise ConfigError(f"[source] path = {settings.path!r}: {error.strerror}.") from None
        try:
            yield SourceUp(settings.id)
            if settings.framing != "mold":
                yield SourceDeclared(declared_source(settings))
            self._pacing = Pacing(settings.rate, settings.start_at or time.time())
            self._allowed = 0
            actions = self._packets(file) if settings.framing == "mold" else self._messages(file)
            async for some in actions:
                async for event in self._paced(some):
                    yield event
            troubles = self._recorded.troubles
            for what, count in troubles.items():
                yield SourceTrouble(settings.id, what, count)
        finally:
            file.close()

    async def _packets(self, file: BinaryIO) -> AsyncIterator[list[Action]]:
        splitter = PacketSplitter()
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            try:
                packets = splitter.feed(data)
            except ValueError as error:
                raise ConfigError(f"{self._settings.path} is no file of packets: {error}.") from None
            yield [action for packet in packets for action in self._recorded.on_packet(packet)]
        yield self._recorded.on_end()

    async def _messages(self, file: BinaryIO) -> AsyncIterator[list[Action]]:
        splitter = LineSplitter() if self._settings.framing == "lines" else FixSplitter()
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            yield self._counted(splitter.feed(data))
        yield self._counted(splitter.end())
        self._recorded.troubles |= splitter.troubles

    def _counted(self, run: Run) -> list[Action]:
        self.counters["messages"] += run.size
        return [Ready("", run)] if run.size else []

    async def _paced(self, actions: list[Action]) -> AsyncIterator[SourceEvent]:
        """As they become due; a run may be cut for that."""
        waiting = actions
        while waiting:
            due: list[Action] = []
            while waiting:
                action = waiting[0]
                if isinstance(action, Ready):
                    if not self._allowed:
                        self._allowed = self._pacing.due(time.time())
                    if not self._allowed:
                        break
                    taken = action.run.cut(0, action.run.first + self._allowed - 1)
                    due.append(Ready(action.session, taken))
                    self._allowed -= taken.size
                    if taken.size < action.run.size:
                        waiting = [Ready(action.session, action.run.cut(taken.last + 1, action.run.last)), *waiting[1:]]
                        continue
                else:
                    due.append(action)
                waiting = waiting[1:]
            for event in self._telling.events(due):
                yield event
            await asyncio.sleep(self._pacing.wait_s(time.time()) if waiting else 0)
