"""What a transaction sends to one destination: kept until the transaction is over, since it may have to begin anew."""

from __future__ import annotations

from collections import deque

from fairlead.client.durable.batch import Batch
from fairlead.client.durable.content import Content
from fairlead.client.durable.producer import Gathered

__all__ = ["Sends"]


class Sends:
    """Numbered from 1; `unsent` are those that were not said on the line there is."""

    __slots__ = ("_gathered", "_next", "batches", "unsent")

    def __init__(self) -> None:
        self._gathered = Gathered()
        self._next = 1
        self.batches: list[Batch] = []
        self.unsent: deque[Batch] = deque()

    @property
    def count(self) -> int:
        return self._next - 1 + len(self._gathered.tickets)

    def add(self, body: bytes, like: Content) -> bool:
        """True: there is so much that it should be sent on its way."""
        if not self._gathered.fits(body, like):
            self.seal()
        return self._gathered.add(body, like, None) < 0

    def add_entry(self, entry: bytes) -> None:
        self.seal()
        self._append(Batch(self._next, 1, entry, ()))

    def seal(self) -> None:
        if self._gathered.tickets:
            entries, tickets = self._gathered.take()
            self._append(Batch(self._next, len(tickets), entries, ()))

    def begin_anew(self) -> None:
        self.seal()
        self.unsent = deque(self.batches)

    def _append(self, batch: Batch) -> None:
        self._next += batch.count
        self.batches.append(batch)
        self.unsent.append(batch)
