"""A persistent first-in-first-out queue in a mapped segment: one producer, one consumer, entries of any length.

The plain twin of the rings in `_store.pyx`, on the same layout (docs/store.md). Where the compiled one uses atomic
loads and stores, this one takes a byte-range lock of the segment's file around each publication: the kernel orders
the two sides and frees the lock when its holder dies. Without a file (tests on a bytearray) no lock is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
from collections.abc import Iterator
from typing import Protocol

from fairlead.store import layout

_ENTRY = struct.Struct(layout.ENTRY_FORMAT)
_U64 = struct.Struct("<Q")
_HEAD = layout.ENTRY_HEADER_BYTES


class Buffer(Protocol):
    """Anything that can be mapped: mmap, bytearray, memoryview."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Words:
    """A segment seen as 64-bit and 32-bit words, each read and written in one go."""

    def __init__(self, buffer: Buffer, lock_fd: int = -1) -> None:
        self.bytes = memoryview(buffer).cast("B")
        size = len(self.bytes) // 8 * 8
        self.q = self.bytes[:size].cast("Q")
        self.i = self.bytes[:size].cast("I")
        self._fd = lock_fd

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        if self._fd < 0:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)


class Producer:
    """The writing end of a ring. Writes beyond the published tail; `publish` shows it all at once."""

    def __init__(self, buffer: Buffer, lock_fd: int = -1) -> None:
        self._w = Words(buffer, lock_fd)
        self.capacity = self._w.q[layout.RING_CAPACITY // 8]
        self.entries_max = self._w.q[layout.RING_ENTRIES_MAX // 8]
        self._mask = self.capacity - 1
        with self._w.locked():
            self.tail = self.published = self._w.q[layout.RING_TAIL // 8]
            self._head_seen = self._w.q[layout.RING_HEAD // 8]
            self.counted = self.count_at_tail()
            self._w.q[layout.RING_PUSHED // 8] = self.counted

    def count_at_tail(self) -> int:
        """Counted entries pushed so far: what the last entry says, or the consumer's total when all are popped."""
        position, counted = self._head_seen, self._w.q[layout.RING_POPPED // 8]
        while position < self.tail:
            left = self.capacity - (position & self._mask)
            if left < _HEAD:
                position += left
                continue
            size, kind, _, _, total = _ENTRY.unpack_from(self._w.bytes, layout.RING_DATA + (position & self._mask))
            if kind != layout.ENTRY_PAD:
                counted = total
            position += size
        return counted

    def push(self, kind: int, flags: int, payload: bytes, keep_free: int = 0) -> bool:
        """Write one entry beyond the published tail; False when there is no room."""
        need = layout.round_up(_HEAD + len(payload), layout.ENTRY_ALIGN)
        left = self.capacity - (self.tail & self._mask)
        total = need + (left if left < need else 0)
        if self.tail + total + keep_free > self._head_seen + self.capacity:
            with self._w.locked():
                self._head_seen = self._w.q[layout.RING_HEAD // 8]
            if self.tail + total + keep_free > self._head_seen + self.capacity:
                return False
        if left < need:
            if left >= _HEAD:
                at = layout.RING_DATA + (self.tail & self._mask)
                _ENTRY.pack_into(self._w.bytes, at, left, layout.ENTRY_PAD, 0, 0, self.counted)
            self.tail += left
        if flags & layout.FLAG_COUNTED:
            self.counted += 1
        at = layout.RING_DATA + (self.tail & self._mask)
        _ENTRY.pack_into(self._w.bytes, at, need, kind, flags, 0, self.counted)
        self._w.bytes[at + _HEAD : at + _HEAD + len(payload)] = payload
        self.tail += need
        return True

    def next_position(self, payload_length: int) -> int:
        """The position the next entry of this length gets (a slot's ring_position)."""
        need = layout.round_up(_HEAD + payload_length, layout.ENTRY_ALIGN)
        left = self.capacity - (self.tail & self._mask)
        return self.tail + (left if left < need else 0)

    def publish(self) -> bool:
        """Let the consumer see what was pushed; True: it sleeps, its eventfd has to be written."""
        if self.tail == self.published:
            return False
        with self._w.locked():
            self._w.q[layout.RING_PUSHED // 8] = self.counted
            self._w.q[layout.RING_TAIL // 8] = self.tail
            self.published = self.tail
            if self._w.i[layout.RING_SLEEPING // 4]:
                self._w.i[layout.RING_SLEEPING // 4] = 0
                return True
        return False

    def rollback(self, tail: int, counted: int) -> None:
        """Set the published position anew: a starting router republishes what its commit record says."""
        with self._w.locked():
            self.tail = self.published = tail
            self.counted = counted
            self._w.q[layout.RING_PUSHED // 8] = counted
            self._w.q[layout.RING_TAIL // 8] = tail

    def waiting(self) -> int:
        """Counted entries that the consumer has not popped."""
        with self._w.locked():
            return self.counted - self._w.q[layout.RING_POPPED // 8]

    def room(self) -> int:
        with self._w.locked():
            self._head_seen = self._w.q[layout.RING_HEAD // 8]
        return self.capacity - (self.tail - self._head_seen)

    def want(self) -> None:
        """Ask to be woken when there is room; look at the room again afterwards."""
        with self._w.locked():
            self._w.i[layout.RING_WANTING // 4] = 1

    def unwant(self) -> None:
        with self._w.locked():
            self._w.i[layout.RING_WANTING // 4] = 0


class Consumer:
    """The reading end of a ring. Peeks at a private cursor; `publish` gives back what was dealt with."""

    def __init__(self, buffer: Buffer, lock_fd: int = -1) -> None:
        self._w = Words(buffer, lock_fd)
        self.capacity = self._w.q[layout.RING_CAPACITY // 8]
        self._mask = self.capacity - 1
        with self._w.locked():
            self.cursor = self._w.q[layout.RING_HEAD // 8]
            self.counted = self._w.q[layout.RING_POPPED // 8]
            self._tail_seen = self._w.q[layout.RING_TAIL // 8]

    def _find(self) -> int:
        """Offset of the entry at the cursor in the segment, or -1."""
        while True:
            if self.cursor == self._tail_seen:
                with self._w.locked():
                    self._tail_seen = self._w.q[layout.RING_TAIL // 8]
                if self.cursor == self._tail_seen:
                    return -1
            left = self.capacity - (self.cursor & self._mask)
            if left < _HEAD:
                self.cursor += left
                continue
            at = layout.RING_DATA + (self.cursor & self._mask)
            if self._w.bytes[at + 4] == layout.ENTRY_PAD:
                self.cursor += self._w.i[at // 4]
                continue
            return at

    def next(self) -> tuple[int, int, bytes] | None:
        """The entry at the cursor as (kind, flags, payload copy), or None; `advance` moves on."""
        at = self._find()
        if at < 0:
            return None
        size, kind, flags, _, _ = _ENTRY.unpack_from(self._w.bytes, at)
        return kind, flags, bytes(self._w.bytes[at + _HEAD : at + size])

    def advance(self) -> None:
        at = self._find()
        if at >= 0:
            size, _, _, _, self.counted = _ENTRY.unpack_from(self._w.bytes, at)
            self.cursor += size

    def publish(self, low: int = 0) -> bool:
        """Give everything before the cursor back; True: the producer wanted room, write its eventfd."""
        with self._w.locked():
            self._w.q[layout.RING_POPPED // 8] = self.counted
            self._w.q[layout.RING_HEAD // 8] = self.cursor
            pushed = self._w.q[layout.RING_PUSHED // 8]
            if self._w.i[layout.RING_WANTING // 4] and pushed <= self.counted + low:
                self._w.i[layout.RING_WANTING // 4] = 0
                return True
        return False

    def owes(self, low: int = 0) -> bool:
        """Would `publish` say True? Nothing is changed."""
        with self._w.locked():
            pushed = self._w.q[layout.RING_PUSHED // 8]
            return bool(self._w.i[layout.RING_WANTING // 4] and pushed <= self.counted + low)

    def rollback(self, head: int, popped: int) -> None:
        """Set the consumed position anew from a commit record."""
        with self._w.locked():
            self.cursor, self.counted = head, popped
            self._w.q[layout.RING_POPPED // 8] = popped
            self._w.q[layout.RING_HEAD // 8] = head

    def sleep(self) -> bool:
        """Announce sleep; True: there is still nothing to read, so waiting on the eventfd is safe."""
        with self._w.locked():
            self._w.i[layout.RING_SLEEPING // 4] = 1
        return self._find() < 0

    def awake(self) -> None:
        with self._w.locked():
            self._w.i[layout.RING_SLEEPING // 4] = 0

    def empty(self) -> bool:
        return self._find() < 0


def format_ring(buffer: Buffer, capacity: int, entries_max: int = 0) -> None:
    """Lay an empty ring out over a zeroed buffer (the segment's first 64 bytes are somebody else's)."""
    view = memoryview(buffer).cast("B")
    _U64.pack_into(view, layout.RING_CAPACITY, capacity)
    _U64.pack_into(view, layout.RING_ENTRIES_MAX, entries_max)
