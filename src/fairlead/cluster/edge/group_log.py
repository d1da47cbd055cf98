"""A group's log on one of its members: the journal, and what of it the state behind it has been told.

While another member leads, records come by `take`, and `settle` hands them on, in order, as they become safe. Their
bodies are read back from the journal, which has the newest in memory; of the others only places are kept, and of very
many not even those. When this member leads, its core applies what it writes, and `settle` only tells how far it is
safe.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from fairlead.cluster import records
from fairlead.cluster.replication.log import Batch
from fairlead.errors import StoreFull
from fairlead.journal.edge.journal import Journal, Taken

PLACES_MAX: Final = 200_000
"""Records between what is stored and what is safe of which the places are kept; beyond, the files are read again."""
STEP_RECORDS: Final = 4096
"""Records handed on in one go; then the loop has its turn, and the journal's `fd` wakes it for the rest."""

Apply = Callable[[int, int, int, memoryview], None]
"""kind, index, place, body."""


class Gate(Protocol):
    """What must be here before a record counts as stored: the file of a very large message (edge/side_feed.py)."""

    def told(self, index: int, body: memoryview) -> None:
        """A TRANSFER record was taken."""

    def limit(self, durable: int) -> int:
        """How far what is on disk counts."""

    def cut(self, last: int) -> None: ...


class GroupLog:
    """A `replication.log.Log`. `applied`: what the state knows already, from a checkpoint."""

    def __init__(
        self,
        journal: Journal,
        *,
        applied: int,
        apply: Apply,
        on_safe: Callable[[int], None],
        gate: Gate | None = None,
        aside: Path | None = None,
    ) -> None:
        self.journal = journal
        self.applied = applied
        self.leads = False
        self.gate = gate
        self.set_aside: list[Path] = []  # files of what was undone, since the start
        self._apply = apply
        self._on_safe = on_safe
        self._aside = aside
        self._settled = applied
        self._coming: deque[Taken] = deque()  # taken and not applied; with holes where there were too many
        journal.stable = applied
        if gate is not None:
            for one in journal.replay(max(applied + 1, journal.first_readable), journal.last):
                if one.kind == records.TRANSFER:
                    gate.told(one.index, one.body)

    @property
    def first(self) -> int:
        return self.journal.first_readable

    @property
    def last(self) -> int:
        return self.journal.last

    @property
    def synced(self) -> int:
        return self.journal.safe

    @property
    def durable(self) -> int:
        return self.journal.safe if self.gate is None else self.gate.limit(self.journal.safe)

    @property
    def has_more(self) -> bool:
        """Is there anything safe that the state has not been told?"""
        return not self.leads and self.applied < self._settled

    def epoch_at(self, index: int) -> int:
        return self.journal.epoch_at(index)

    def take(self, batch: Batch, skip: int = 0) -> None:
        """Raises ValueError if it is not what was sent, StoreFull if the disk is; then `last` says what was taken."""
        assert not self.leads, "who leads takes nothing"
        taken: list[Taken] = []
        try:
            self.journal.take(batch.data, skip, taken)
        except StoreFull:
            self._took(batch, taken)
            self.journal.submit()
            raise
        self._took(batch, taken)
        self.journal.submit()

    def _took(self, batch: Batch, taken: list[Taken]) -> None:
        if len(self._coming) < PLACES_MAX:
            self._coming.extend(taken)
        if self.gate is not None:
            view = memoryview(batch.data)
            for index, _, kind, at, size in taken:
                if kind == records.TRANSFER:
                    self.gate.told(index, view[at : at + size])

    def read(self, first: int, most_bytes: int) -> Batch | None:
        """Raises IndexError if it is not here, JournalDamaged if it cannot be read."""
        found = self.journal.export(first, most_bytes)
        return None if found is None else Batch(*found)

    def cut(self, last: int) -> None:
        assert last >= self._settled, f"record {last + 1} is safe"
        assert not self.leads, "who leads undoes nothing"
        path = self.journal.cut(last, self._aside)
        while self._coming and self._coming[-1][0] > last:
            self._coming.pop()
        if self.gate is not None:
            self.gate.cut(last)
        if path is not None:
            self.set_aside.append(path)

    def settle(self, safe: int) -> None:
        if safe > self._settled:
            self._settled = self.journal.stable = safe
        if self.leads:
            self._on_safe(safe)
        else:
            self._go_on()

    def on_collected(self) -> None:
        """The journal's `collect` was called: go on with what is still to be handed on."""
        if self.has_more:
            self._go_on()

    def lead(self) -> None:
        """Hand on everything there is: whoever was chosen has all that may be safe, and from now on writes itself."""
        while self.applied < self.journal.last:
            self._hand_on(self.journal.last)
        self._coming.clear()
        self.leads = True

    def _go_on(self) -> None:
        self._hand_on(min(self._settled, self.journal.last))
        if self.applied < min(self._settled, self.journal.last):
            os.eventfd_write(self.journal.fd, 1)

    def _hand_on(self, last: int) -> None:
        last = min(last, self.applied + STEP_RECORDS)
        journal, apply, coming = self.journal, self._apply, self._coming
        while self.applied < last:
            following = self.applied + 1
            while coming and coming[0][0] < following:
                coming.popleft()
            if coming and coming[0][0] == following:
                index, place, kind, _, size = coming.popleft()
                apply(kind, index, place, journal.fetch(place, size))
                self.applied = index
                continue
            upto = min(last, coming[0][0] - 1) if coming else last
            for one in journal.replay(following, upto):
                apply(one.kind, one.index, one.place, one.body)
                self.applied = one.index
