"""A file without a name, for blocks of indexes that are not needed at the moment. It is gone with the process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fairlead.journal.index import BLOCK_BYTES

SLOT_BYTES = 2 * BLOCK_BYTES + 64  # a block that got rows by compaction is longer than a full one


class Spill:
    """A `Storage` in a directory."""

    def __init__(self, directory: Path) -> None:
        fd, name = tempfile.mkstemp(prefix="spill-", suffix=".tmp", dir=directory)
        os.unlink(name)  # noqa: PTH108 - by the name mkstemp gave
        self._fd = fd
        self._free: list[int] = []
        self._slots = 0
        self._lengths: dict[int, int] = {}

    def put(self, data: bytes) -> int:
        if len(data) > SLOT_BYTES:
            raise ValueError("a block is not longer than two full ones")
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots
            self._slots += 1
        view, offset = memoryview(data), slot * SLOT_BYTES
        while view:
            count = os.pwrite(self._fd, view, offset)
            view, offset = view[count:], offset + count
        if len(data) != BLOCK_BYTES:
            self._lengths[slot] = len(data)
        return slot

    def get(self, slot: int) -> bytes:
        size = self._lengths.get(slot, BLOCK_BYTES)
        data = os.pread(self._fd, size, slot * SLOT_BYTES)
        if len(data) != size:
            raise OSError(f"the spilled index ends after {len(data)} of {size} bytes")
        return data

    def free(self, slot: int) -> None:
        self._lengths.pop(slot, None)
        self._free.append(slot)

    def close(self) -> None:
        os.close(self._fd)
