"""What a store needs now and then: checkpoints, files taken back, sparse files compacted; all in small pieces.

A checkpoint is begun after so many bytes or so much time, if anything was written since. After it the journal takes
files back in which nothing is needed. Files in which little is needed are compacted: their messages are written
again, a few at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from fairlead.cluster.core import Core
from fairlead.cluster.recovery import Checkpoint, Recovery
from fairlead.journal.edge.checkpoint import Checkpoint as Sheet
from fairlead.journal.edge.journal import Journal

RECLAIM_S: Final = 1.0
COMPACT_S: Final = 10.0
SPARSE_SHARE: Final = 0.3  # of a file; below it, it is worth writing its messages again
COMPACT_ORDERS: Final = 256  # order numbers looked at in one step
FULL_SHARE: Final = 0.9  # the same when the disk is full: any room is worth it


class Upkeep:
    """Driven by the loop with `step`."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        recovery: Recovery,
        collect: Callable[[], None],
        reserve: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._recovery = recovery  # knows the newest start of a node
        self._collect = collect  # takes in what the journal's threads have done
        self._reserve = reserve  # the oldest record somebody else will want to have
        self._taking: Checkpoint | None = None
        self._sheet: Sheet | None = None
        self._began_s = 0.0
        self._covered_bytes = 0  # written when the newest checkpoint began
        self._reclaimed_s = self._compacted_s = 0.0
        self._sparse: deque[tuple[int, int, int]] = deque()  # destination, first, beyond: to be compacted
        self.checkpoints = 0
        self.reclaimed = 0
        self.compacted = 0
        self.failed = ""  # why the last checkpoint came to nothing

    @property
    def is_busy(self) -> bool:
        """Is there something to do in the next turn?"""
        return self._sheet is not None or bool(self._sparse)

    def ask(self) -> None:
        """Take a checkpoint as soon as possible."""
        self._covered_bytes = -(1 << 62)

    def step(self, now_s: float) -> None:
        self._journal.tick(now_s)
        if self._began_s == 0.0:
            self._began_s = now_s
        if self._core.stages.publisher.is_busy:
            return  # a batch is half published, which no checkpoint could tell
        if self._taking is not None:
            if self._taking.step():
                self._taking = None
        elif self._sheet is not None:
            self._look_at_sheet()
        elif self._is_due(now_s):
            self._begin(now_s)
        if now_s - self._reclaimed_s >= RECLAIM_S:
            self._reclaimed_s = now_s
            core = self._core
            open_ = self._recovery.oldest_hidden() if core.follows else core.transactions.oldest()
            pinned = min((index for index in (open_, self._reserve()) if index is not None), default=None)
            self.reclaimed += self._journal.reclaim(core.manager.is_live, pinned, core.needs)
        if self._taking is not None or self._core.follows:
            return  # its parts must not be moved while a checkpoint notes where they are; who follows writes nothing
        if self._sparse:
            self._compact()
        elif now_s - self._compacted_s >= COMPACT_S or (self._journal.full and now_s - self._compacted_s >= 1.0):
            self._compacted_s = now_s
            self._look_for_sparse()

    # --- Checkpoints ----------------------------------------------------------------------------------------------
    def _is_due(self, now_s: float) -> bool:
        core = self._core
        if core.last_index <= self._journal.covers + 1:
            return False
        settings = core.settings
        if core.written_bytes - self._covered_bytes >= settings.checkpoint_bytes:
            return True
        if self._journal.full and now_s - self._began_s >= 1.0:
            return True
        return now_s - self._began_s >= settings.checkpoint_s

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._covered_bytes = self._core.written_bytes
        try:
            self._sheet = self._journal.checkpoint()
        except (ValueError, OSError) as error:
            self.failed = str(error)
            return
        self._taking = Checkpoint(self._core, self._sheet, self._recovery.start)

    def _look_at_sheet(self) -> None:
        sheet = self._sheet
        assert sheet is not None
        self._collect()  # where nothing is written, nothing else lets it go on
        if sheet.done:
            self.checkpoints += 1
            self.failed = ""
            self._sheet = None
            self._reclaimed_s = 0.0
        elif sheet.error is not None:
            self.failed = str(sheet.error)
            self._core.event("error", "checkpoint-failed", f"A checkpoint was not written: {sheet.error}")
            self._sheet = None

    # --- Compaction -----------------------------------------------------------------------------------------------
    def _look_for_sparse(self) -> None:
        """The emptiest file that is worth it; one at a time, so that traffic hardly notices."""
        share = FULL_SHARE if self._journal.full else SPARSE_SHARE
        found = self._journal.sparse(self._core.manager.live_bytes, share)
        worth_it = next((one for one in found if one.held), None)  # others may be kept for what is only staged there
        if worth_it is not None:
            self._sparse.extend(worth_it.held)

    def compact_now(self) -> int:
        """Begin to compact the emptiest file whatever the time; how many ranges of messages it has."""
        if not self._sparse:
            self._look_for_sparse()
        return len(self._sparse)

    def _compact(self) -> None:
        left = COMPACT_ORDERS
        while self._sparse and left > 0:
            number, first, beyond = self._sparse.popleft()
            destination = self._core.destinations.get(number)
            if destination is None:
                continue
            until = min(beyond, first + left)
            self.compacted += destination.compact(first, until)
            left -= until - first
            if until < beyond:
                self._sparse.appendleft((number, until, beyond))

    def facts(self) -> dict[str, Any]:
        journal = self._journal
        return {
            "safe": journal.safe,
            "last": journal.last,
            "pending_records": journal.last - journal.safe,
            "pending_bytes": journal.pending_bytes,
            "covers": journal.covers,
            "syncs": journal.syncs,
            "sync_times": journal.sync_times.numbers(),
            "disk_bytes": journal.disk_bytes,
            "full": journal.full,
            "checkpoints": self.checkpoints,
            "checkpoint_failed": self.failed,
            "reclaimed": self.reclaimed,
            "compacted": self.compacted,
        }
