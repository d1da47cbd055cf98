"""The parts for programs that work on messages by the million: who takes which COMMAND (docs/durable.md, section 7).

Each part brings its commands and hears when a connection ends or a destination is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.cluster.parties import Line
from fairlead.cluster.pipeline_cursors import PipelineCursors
from fairlead.cluster.positions import Questions
from fairlead.cluster.scans import Reader, Scans

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination

Handler = Callable[[Line, int, dict[str, Any]], None]
"""Line, number of the COMMAND, the request. It answers with `core.answer` or raises FairleadError."""


class Part(Protocol):
    """What `Bulk` asks of each of them."""

    @property
    def commands(self) -> Mapping[str, Handler]: ...

    def on_gone(self, line: Line) -> None:
        """The connection ended."""

    def on_deleted(self, destination: Destination, reason: str) -> None: ...


class Bulk:
    """All of them, of one message manager."""

    def __init__(self, core: Core, reader: Reader | None) -> None:
        self._core = core
        self.scans = Scans(core, reader)
        self.parts: list[Part] = [Questions(core), self.scans, PipelineCursors(core), core.stages]
        self.commands: dict[str, Handler] = {}
        for part in self.parts:
            self.commands.update(part.commands)

    def on_store(
        self, line: Line, handle: int, first: int, sent_ms: int, entries: memoryview, link: int, cost: int
    ) -> bool:
        """A STORE frame whose handle is no producer's. False: nobody here knows it either.

        The entries are a view of the link's buffer: valid until the turn ends, or as long as it is held.
        """
        return self._core.stages.staging.on_store(line, handle, first, sent_ms, entries, cost)

    def on_gone(self, line: Line) -> None:
        for part in self.parts:
            part.on_gone(line)

    def on_deleted(self, destination: Destination, reason: str) -> None:
        for part in self.parts:
            part.on_deleted(destination, reason)
