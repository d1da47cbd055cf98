"""Instructions under way, written down where a successor finds them (docs/store.md, Outstanding).

An instruction that is finished in the turn that read it needs no record: until the ring's head is published a successor
reads it again. One that has to wait for a slow recipient is recorded before that. Finishing twice changes nothing, so a
death between any two steps is harmless.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fairlead.broker.relinquish import Finish
from fairlead.store import layout

KIND_OUTSTANDING: Final = 6
RECORDS: Final = 64  # offset of the number of records
FIRST: Final = 4096
RECORD: Final = struct.Struct("<QBBHI")  # handle (0: free, written last), touch, limit, zero
RECORDS_DEFAULT: Final = 262_144


def outstanding_name(manager: int) -> str:
    return f"outstanding-{manager}"


def outstanding_bytes(records: int) -> int:
    return FIRST + records * RECORD.size


def format_outstanding(buffer: Any, records: int) -> None:
    """Lay an empty table out over a zeroed buffer."""
    struct.pack_into("<Q", buffer, RECORDS, records)


class OutstandingTable:
    """The records; used by the plain engine and by a successor."""

    def __init__(self, buffer: Any) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self.size: int = struct.unpack_from("<Q", self._bytes, RECORDS)[0]
        assert outstanding_bytes(self.size) <= len(self._bytes)
        self._free = [i for i in range(self.size - 1, -1, -1) if not self._handle(i)]

    def _handle(self, record: int) -> int:
        found: int = struct.unpack_from("<Q", self._bytes, FIRST + record * RECORD.size)[0]
        return found

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def used(self) -> int:
        return self.size - len(self._free)

    def add(self, finish: Finish) -> int:
        record = self._free.pop()
        at = FIRST + record * RECORD.size
        self._bytes[at + 8] = finish.touch
        self._bytes[at + 9] = finish.limit
        struct.pack_into("<Q", self._bytes, at, finish.handle)
        return record

    def remove(self, record: int) -> None:
        struct.pack_into("<Q", self._bytes, FIRST + record * RECORD.size, 0)
        self._free.append(record)

    def records(self) -> Iterator[tuple[int, Finish]]:
        for record in range(self.size):
            handle, touch, limit, _, _ = RECORD.unpack_from(self._bytes, FIRST + record * RECORD.size)
            if handle:
                yield record, Finish(handle, touch, limit)


def finish_all(table: OutstandingTable, down: Any, arenas: Mapping[int, Any], on_fault: Callable[[], None]) -> int:
    """A successor's duty (SRV-115): count every instruction of its predecessor as finished. Returns how many."""
    counted = 0

    def finish(what: Finish) -> None:
        arena = arenas.get(what.handle >> layout.HANDLE_ARENA_SHIFT)
        if arena is None or arena.finish(what.handle, what.touch, what.limit) == 3:
            on_fault()

    for record, what in list(table.records()):
        finish(what)
        table.remove(record)
        counted += 1
    while (entry := down.next()) is not None:
        kind, _, payload = entry
        if kind in (layout.DOWN_DELIVER, layout.DOWN_DELETE):
            handle, touch, limit, *_ = struct.unpack_from(layout.DOWN_FORMAT, payload)
            finish(Finish(handle, touch, limit))
            counted += 1
        down.advance()
    down.publish(1 << 62)
    return counted
