"""A message manager's state on a member that does not lead: it is told every record as that becomes safe (CLU-130).

It writes nothing, serves nobody and lets no time pass; so what only time or a turn lets go of on a primary is let go of
here by `tidy`, or a backup would grow for ever. Two members that were told the same records would answer alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from fairlead.cluster import records

if TYPE_CHECKING:
    from fairlead.cluster.core import Core
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.port import Bytes
    from fairlead.cluster.recovery import Recovery
    from fairlead.journal.usage import Row

TIDY_DESTINATIONS: Final = 256  # looked at in one step


class Replica:
    """A core that follows, until `lead`."""

    def __init__(self, core: Core, recovery: Recovery) -> None:
        self._core = core
        self._recovery = recovery
        self._tidying: Iterator[Destination] = iter(())
        self.applied = 0  # index of the newest record applied
        core.follows = True

    @property
    def epoch(self) -> int:
        """Of the newest primary of whose beginning it was told."""
        return self._recovery.epoch

    def restore(self, blobs: Iterable[tuple[bytes, Bytes]], rows: Iterable[Row], covers: int) -> None:
        """A checkpoint, and where its messages are; it knows everything up to that index."""
        self._recovery.restore(blobs)
        self._recovery.place(rows)
        self._core.transfers.recount()
        self._core.last_index = self._core.safe = self.applied = covers

    def apply(self, kind: int, index: int, place: int, body: memoryview) -> None:
        """The next record; it is safe and will never be undone."""
        assert index == self.applied + 1, f"record {index} was to be applied behind {self.applied}"
        core = self._core
        self._recovery.apply(kind, index, place, body)
        self._recovery.records += 1
        self.applied = index
        core.written_bytes += len(body)
        if kind == records.TRANSFER:
            facts = msgspec.json.decode(body)
            if facts["state"] == "gone":
                core.transfers.let_go(facts["id"])

    def tidy(self, now_ms: int) -> None:
        """Let go of what a primary lets go of by itself; a bounded piece of it."""
        core = self._core
        core.now_ms = now_ms
        while core.timers.due(now_ms):
            pass  # whoever leads one day asks for the time anew
        for _ in range(TIDY_DESTINATIONS):
            destination = next(self._tidying, None)
            if destination is None:
                self._tidying = iter(list(core.names.destinations.values()))
                return
            destination.tidy(now_ms)

    def lead(self) -> None:
        """Everything this store has is applied: from here on the core writes by itself."""
        self._core.follows = False
