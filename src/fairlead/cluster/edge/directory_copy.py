"""What a member can say of the directory while nobody leads: its state, and what is in its log behind that.

After a start nobody has told a member how far its log is safe, so its state is as old as the last checkpoint. For an
answer that is marked as stale the rest of the log counts too, although some of it may yet be undone (DIR-38).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fairlead.cluster import records
from fairlead.cluster.core import Core
from fairlead.cluster.edge.group_log import GroupLog
from fairlead.directory.tables import Tables
from fairlead.errors import NoDirectory

STEP_RECORDS: Final = 20_000  # read for one question: the loop has other things to do


class DirectoryCopy:
    """`store` tells the core and the log as they are now: both are made anew when a member stops leading."""

    def __init__(self, store: Callable[[], tuple[Core, GroupLog]]) -> None:
        self._store = store
        self._core: Core | None = None
        self._tables = Tables()
        self._upto = self._epoch = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        core, log = self._store()
        if log.leads or log.applied >= log.last:
            self._core = None
            return core.directory.stale(request)
        self._read(core, log)
        return core.directory.stale(request, self._tables)

    def _read(self, core: Core, log: GroupLog) -> None:
        is_undone = self._upto > log.last or log.epoch_at(self._upto) != self._epoch
        if core is not self._core or self._upto < log.applied or is_undone:
            self._core, self._upto = core, log.applied
            self._tables = Tables(core.directory.tables.settings)
            self._tables.restore(core.directory.snapshot())
        upto = min(log.last, self._upto + STEP_RECORDS)
        if self._upto < upto:
            for one in log.journal.replay(self._upto + 1, upto):
                if one.kind == records.DIRECTORY:
                    self._tables.apply(msgspec.json.decode(one.body))
        self._upto, self._epoch = upto, log.epoch_at(upto)
        if upto < log.last:
            raise NoDirectory("This server is reading what it had; ask again in a moment.")
