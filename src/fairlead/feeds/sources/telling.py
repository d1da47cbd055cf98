"""From what recovery does to what an adapter is told: runs become batches, sessions become ids and relations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fairlead.feeds.sources.actions import Action, Alive, Began, Lost, Ready, Silent
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
from fairlead.feeds.sources.recovery import Recovery
from fairlead.feeds.sources.runs import Run, rows_of
from fairlead.feeds.sources.settings import SourceSettings, declared_id, declared_source

__all__ = ["BATCH_MESSAGES", "Telling", "batches"]

BATCH_MESSAGES: Final = 8192
BATCH_BYTES: Final = 8 << 20
TROUBLES_S: Final = 1.0


class Telling:
    """For one source."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._told_s = 0.0

    def events(self, actions: Iterable[Action]) -> Iterator[SourceEvent]:
        """In their order, runs that follow each other in as few batches as may be. Asks are not for the adapter."""
        runs: list[Run] = []
        session = ""
        for action in actions:
            if isinstance(action, Ready):
                session = action.session
                runs.append(action.run)
                continue
            if runs and isinstance(action, Began | Lost):
                yield from batches(self.id_of(session), runs)
                runs = []
            match action:
                case Began():
                    yield self.began(action)
                case Lost():
                    yield SourceGap(self.id_of(action.session), action.first, action.last)
                case Silent():
                    yield SourceDown(self._settings.id, action.why)
                case Alive():
                    yield SourceUp(self._settings.id)
        if runs:
            yield from batches(self.id_of(session), runs)

    def id_of(self, session: str) -> str:
        return declared_id(self._settings.id, session)

    def began(self, began: Began) -> SourceEvent:
        after = self.id_of(began.after) if began.after else ""
        declared = declared_source(self._settings, began.session, after)
        if after:
            return SourceReset(declared.id, after, began.start, declared)
        return SourceDeclared(declared)

    def troubles(self, recovery: Recovery, now_s: float) -> list[SourceEvent]:
        """At most once a second, so that a flood of nonsense is no flood in the log."""
        if not recovery.troubles or now_s - self._told_s < TROUBLES_S:
            return []
        self._told_s = now_s
        found = recovery.take_troubles()
        return [SourceTrouble(self._settings.id, what, count) for what, count in found.items()]


def batches(source: str, runs: Sequence[Run]) -> Iterator[SourceBatch]:
    """Runs with rising sequences, in batches of a bounded size."""
    waiting: list[Run] = []
    count = size = 0
    for run in runs:
        if waiting and (count + run.size > BATCH_MESSAGES or size + len(run.data) > BATCH_BYTES):
            yield SourceBatch(source, rows_of(waiting))
            waiting, count, size = [], 0, 0
        waiting.append(run)
        count += run.size
        size += len(run.data)
    if waiting:
        yield SourceBatch(source, rows_of(waiting))
