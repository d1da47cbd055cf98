"""Commands of administration that need the disk: journal, checkpoint, compaction, backup, the event log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fairlead.cluster.admin import Later
from fairlead.cluster.admin_commands import Nothing
from fairlead.cluster.core import Core
from fairlead.cluster.edge.eventlog import EventLog, tail
from fairlead.cluster.edge.upkeep import Upkeep
from fairlead.errors import BadParameter
from fairlead.journal.edge.journal import Journal


class Backup(Struct, kw_only=True):
    target: Annotated[str, Meta(min_length=1, max_length=4096)]


class Tail(Struct, kw_only=True):
    lines: Annotated[int, Meta(ge=1, le=10_000)] = 100
    level: Literal["debug", "info", "warning", "error"] = "debug"
    code: str = ""
    since_ms: Annotated[int, Meta(ge=0)] = 0


class Offers:
    """Registers them with the admin manager."""

    def __init__(self, core: Core, journal: Journal, upkeep: Upkeep, events: EventLog, large: Path) -> None:
        self._core = core
        self._journal = journal
        self._upkeep = upkeep
        self._events = events
        self._large = large  # the folder of side files
        register = core.admin.register
        register("journal", Nothing, self.journal)
        register("checkpoint", Nothing, self.checkpoint, changes=True)
        register("compact", Nothing, self.compact, changes=True)
        register("backup", Backup, self.backup, changes=True)
        register("log", Tail, self.log)

    def journal(self, _: Nothing) -> dict[str, Any]:
        """Figures of the journal."""
        return {"sync": self._core.settings.sync, "epoch": self._core.epoch, **self._upkeep.facts()}

    def checkpoint(self, _: Nothing) -> dict[str, Any]:
        """Take a checkpoint soon, so that the next start reads less."""
        self._upkeep.ask()
        return {"covers": self._journal.covers}

    def compact(self, _: Nothing) -> dict[str, Any]:
        """Write the messages of nearly empty files again, so that the files come free."""
        return {"ranges": self._upkeep.compact_now()}

    def backup(self, asked: Backup) -> Later:
        """Copy the journal as it is into a new directory of the server's host."""
        target = Path(asked.target)
        if not target.is_absolute():
            raise BadParameter("The target of a backup is an absolute path on the server.")

        try:
            copy = self._journal.backup(target, self._large)
        except OSError as error:
            raise BadParameter(f"No backup can be made there: {error}.") from None

        def begin(then: Callable[[Any], None]) -> None:
            def done(result: Any) -> None:
                then(result if isinstance(result, Exception) else {"target": str(target), "safe": result["safe"]})

            self._core.work(copy.wait, done)

        return Later(begin)

    def log(self, asked: Tail) -> Later:
        """The newest lines of the event log on this host."""

        def read() -> list[dict[str, Any]]:
            return tail(
                self._events.path, lines=asked.lines, level=asked.level, code=asked.code, since_ms=asked.since_ms
            )

        def begin(then: Callable[[Any], None]) -> None:
            def done(found: Any) -> None:
                then(found if isinstance(found, Exception) else {"lines": found})

            self._core.work(read, done)

        return Later(begin)
