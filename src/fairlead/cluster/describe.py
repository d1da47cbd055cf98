"""What the journal is told about our records: where messages lie, and under which order numbers."""

from __future__ import annotations

from typing import Final

from fairlead.cluster import records
from fairlead.journal.facts import WAITING, Bytes, Facts

STORE_BYTES: Final = records.STORE_RECORD.size
MESSAGES: Final = frozenset((records.STORE, records.HIDDEN, records.MOVE, records.PLACE, records.FIRE))
"""Kinds that begin with a STORE_RECORD."""

KIND_NAMES: Final = {
    getattr(records, name): name
    for name in (
        *("START", "CREATE", "DELETE", "CHANGE", "SUBSCRIBE", "UNSUBSCRIBE", "SESSION", "STORE", "HIDDEN", "COMMIT"),
        *("OUTCOME", "SETTLE", "MOVE", "MARK", "PLACE", "FIRE", "CANCEL", "TRANSFER", "CONFIG", "PRODUCER"),
        *("STAGE", "PUBLISH", "PREPARE", "DECIDED"),
    )
}
"""Words for kinds, for people who look into a journal."""


class Describer:
    """A describer (journal/facts.py). A body it cannot read says nothing."""

    kinds: frozenset[int] = MESSAGES | {records.COMMIT, records.PUBLISH}
    moved: frozenset[int] = frozenset((records.PLACE,))

    def __call__(self, kind: int, body: Bytes, size: int = -1) -> list[Facts]:
        if kind in MESSAGES:
            return self._messages(kind, body, len(body) if size < 0 else size)
        if kind == records.COMMIT:
            return self._committed(body)
        if kind == records.PUBLISH:
            return self._published(body)
        return []

    def _messages(self, kind: int, body: Bytes, size: int) -> list[Facts]:
        if len(body) < STORE_BYTES:
            return []
        destination, flags, base, count, _, _, _, _, _, _, arrival_ms, _, _ = records.STORE_RECORD.unpack_from(body)
        source = WAITING if kind == records.HIDDEN else 0
        return [Facts(destination, base, count, size, flags, arrival_ms, 0, source)]

    def _committed(self, body: Bytes) -> list[Facts]:
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

    def _published(self, body: Bytes) -> list[Facts]:
        if len(body) < records.PUBLISH_RECORD.size:
            return []
        time_ms, count, _ = records.PUBLISH_RECORD.unpack_from(body)
        start, step = records.PUBLISH_RECORD.size, records.PUBLISH_ITEM.size
        if len(body) < start + count * step:
            return []
        return [
            Facts(destination, base, many, 0, 0, time_ms, 0, source)
            for destination, many, base, source in records.PUBLISH_ITEM.iter_unpack(body[start : start + count * step])
        ]
