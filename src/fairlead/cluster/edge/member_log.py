"""The log a member machine holds for as long as it lives, whatever journal lies behind it at the moment.

A machine may step down and store another primary's records within one call. So the first record that comes from
elsewhere, or is undone, makes a store that led follow again before it is touched.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.replication.log import Batch
from fairlead.errors import RemoteProtocolError


class MemberLog:
    """A `Log`."""

    def __init__(self, inner: GroupLog, follow: Callable[[], None]) -> None:
        self.inner = inner
        self._follow = follow  # changes `inner` if this store led

    @property
    def first(self) -> int:
        return self.inner.first

    @property
    def last(self) -> int:
        return self.inner.last

    @property
    def synced(self) -> int:
        return self.inner.synced

    @property
    def durable(self) -> int:
        return self.inner.durable

    def epoch_at(self, index: int) -> int:
        return self.inner.epoch_at(index)

    def read(self, first: int, most_bytes: int) -> Batch | None:
        return self.inner.read(first, most_bytes)

    def take(self, batch: Batch, skip: int = 0) -> None:
        self._follow()
        try:
            self.inner.take(batch, skip)
        except ValueError as error:
            raise RemoteProtocolError(f"records that came are none: {error}") from None

    def cut(self, last: int) -> None:
        self._follow()
        self.inner.cut(last)

    def settle(self, safe: int) -> None:
        self.inner.settle(safe)
