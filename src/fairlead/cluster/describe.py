"""What the journal is told about our records: where messages lie, and under which order numbers."""

from __future__ import annotations

from typing import Final

from fairlead.cluster import records
from fairlead.journal.facts import WAITING, Facts

STORE_BYTES: Final = records.STORE_RECORD.size
MESSAGES: Final = frozenset((records.STORE, records.HIDDEN, records.MOVE, records.PLACE, records.FIRE))
"""Kinds that begin with a STORE_RECORD."""

KIND_NAMES: Final = {
    getattr(records, name): name
    for name in (
        *("START", "CREATE", "DELETE", "CHANGE", "SUBSCRIBE", "UNSUBSCRIBE", "SESSION", "STORE", "HIDDEN", "COMMIT"),
        *("OUTCOME", "SETTLE", "MOVE", "MARK", "PLACE", "FIRE", "CANCEL", "TRANSFER", "CONFIG", "PRODUCER"),
    )
}
"""Words for kinds, for people who look into a journal."""


class Describer:
    """A describer (journal/facts.py). A body it cannot read says nothing."""

    late: frozenset[int] = frozenset((records.HIDDEN, records.COMMIT, records.PLACE))
    moved: frozenset[int] = frozenset((records.PLACE,))

    def __call__(self, kind: int, body: memoryview) -> list[Facts]:
        if kind in MESSAGES:
            return self._messages(kind, body)
        if kind == records.COMMIT:
            return self._committed(body)
        return []

    def _messages(self, kind: int, body: memoryview) -> list[Facts]:
        if len(body) < STORE_BYTES:
            return []
        store = records.STORE_RECORD.unpack_from(body)
        destination, flags, base, count = store[:4]
        source = WAITING if kind == records.HIDDEN else 0
        return [Facts(destination, base, count, len(body), flags, store[10], 0, source)]

    def _committed(self, body: memoryview) -> list[Facts]:
        if len(body) < records.COMMIT_RECORD.size:
            return []
        stored = records.COMMIT_RECORD.unpack_from(body)[2]
        start, step = records.COMMIT_RECORD.size, records.COMMIT_STORED.size
        if len(body) < start + stored * step:
            return []
        out = []
        for destination, count, base, source, time_ms in records.COMMIT_STORED.iter_unpack(
            body[start : start + stored * step]
        ):
            out.append(Facts(destination, base, count, 0, 0, time_ms, 0, source))
        return out
