"""Batches of records into bytes and back: the plain twin of `_records.pyx`, and what that one must agree with.

A batch is one header and its records, in one buffer that is written by one `pwrite` and confirmed by one sync.
"""

from __future__ import annotations

import struct
from array import array

from fairlead.journal.crc import crc32c
from fairlead.journal.layout import (
    ALIGN,
    BATCH_MAGIC,
    FOUND_BAD,
    FOUND_BATCH,
    FOUND_BODY_BAD,
    FOUND_END,
    FOUND_RECORD,
    ITEM,
    ITEM_BYTES,
    RECORD_MAGIC,
    VOID,
    Found,
    padded,
)

__all__ = ["Batch", "check_rows", "filler", "item_at", "read_record", "scan", "sealed"]

Bytes = bytes | bytearray | memoryview
PLACE = struct.Struct("<Q")
BATCH_MAGIC_BYTES = struct.pack("<H", BATCH_MAGIC)
RECORD_MAGIC_BYTES = struct.pack("<H", RECORD_MAGIC)
MAGIC_SECOND = BATCH_MAGIC_BYTES[1:]  # of both


class Batch:
    """Records that will be written together. `lead` is what is written in front of them (a segment's file header)."""

    def __init__(self, seed: int, place: int, first: int, lead: bytes = b"") -> None:
        self.place = place  # of the first byte, the lead included
        self.first = first
        self.count = 0
        self._seed = seed
        self._lead = len(lead)
        self._data = bytearray(lead + bytes(ITEM_BYTES))
        self._done: memoryview | None = None

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, kind: int, head: Bytes, payload: Bytes, epoch: int, previous: int) -> int:
        """Copy a record into the batch; where its first byte will lie."""
        if self._done is not None:
            raise ValueError("the batch is finished")
        body = bytes(head) + bytes(payload)
        place = self.place + len(self._data)
        start = crc32c(PLACE.pack(place), self._seed)
        index = self.first + self.count
        header = ITEM.pack(RECORD_MAGIC, kind, len(body), 0, crc32c(body, start), index, epoch, previous)
        self._data += sealed(header, start)
        self._data += body
        self._data += bytes(padded(len(body)) - len(body))
        self.count += 1
        return place + ITEM_BYTES

    def take(self, data: Bytes, offset: int, size_max: int, out: list[tuple[int, int, int, int, int]]) -> int:
        """Copy records of another journal into the batch while it is not larger than that; where the rest begins.

        `out` gets (index, place, kind, offset of the body in the data, its length) of each. The data was checked.
        """
        if self._done is not None:
            raise ValueError("the batch is finished")
        view = memoryview(data)
        while offset < len(view):
            if len(view) - offset < ITEM_BYTES:
                raise ValueError("the data ends inside a header")
            _, kind, length, _, _, index, epoch, previous = ITEM.unpack_from(view, offset)
            need = ITEM_BYTES + padded(length)
            if need > len(view) - offset:
                raise ValueError("the data ends inside a record")
            if index != self.first + self.count:
                raise ValueError("the record is not the next one")
            if self.size + need > size_max:
                break
            body = offset + ITEM_BYTES
            place = self.add(kind, view[body : body + length], b"", epoch, previous)
            out.append((index, place, kind, body, length))
            offset += need
        return offset

    def finish(self, synced: int, time_ms: int) -> memoryview:
        """Everything to be written, at `place`. The batch takes no further records."""
        if self._done is None:
            start = crc32c(PLACE.pack(self.place + self._lead), self._seed)
            size = len(self._data) - self._lead - ITEM_BYTES
            header = ITEM.pack(BATCH_MAGIC, 0, size, 0, self.count, self.first, synced, time_ms)
            self._data[self._lead : self._lead + ITEM_BYTES] = sealed(header, start)
            self._done = memoryview(self._data).toreadonly()
        return self._done

    def read(self, place: int, size: int) -> memoryview:
        """What lies at a place inside the batch; a copy as long as it is open."""
        offset = place - self.place
        if offset < 0 or offset + size > len(self._data):
            raise ValueError("not inside the batch")
        if self._done is not None:
            return self._done[offset : offset + size]
        return memoryview(bytes(self._data[offset : offset + size]))


def scan(data: Bytes, place: int, seed: int, start: int) -> list[Found]:
    """Everything in the bytes of a segment, which lie at `place`, from the offset `start` to the very end."""
    raw = data if isinstance(data, bytes | bytearray) else bytes(data)
    view = memoryview(raw)
    size = len(view)
    found: list[Found] = []
    position = clear = start
    while position + ITEM_BYTES <= size:
        item = item_at(view, position, place, seed)
        if item is None:
            position = _next_candidate(raw, position + ALIGN, size)
            continue
        magic, kind, length, _, body_crc, index, epoch, previous = item
        if position > clear:
            found.append((FOUND_BAD, clear, position - clear, 0, 0, 0, 0))
        if magic == BATCH_MAGIC:
            found.append((FOUND_BATCH, position, length, body_crc, index, epoch, previous))
            position += ITEM_BYTES
        else:
            body = position + ITEM_BYTES
            begin = crc32c(PLACE.pack(place + position), seed)
            good = body + length <= size and crc32c(view[body : body + length], begin) == body_crc
            what = FOUND_RECORD if good else FOUND_BODY_BAD
            found.append((what, position, length, kind, index, epoch, previous))
            position = min(body + padded(length), padded(size))
        clear = position
    clear = min(clear, size)
    found.append((FOUND_END, clear, len(bytes(view[clear:]).rstrip(b"\0")), 0, 0, 0, 0))
    return found


def read_record(data: Bytes, place: int, seed: int) -> tuple[int, int, int, int, int, bool] | None:
    """Of the record whose header begins the data: (kind, length, index, epoch, epoch before, is the body right).

    None if there is no valid record header.
    """
    view = memoryview(data)
    if len(view) < ITEM_BYTES:
        return None
    item = item_at(view, 0, place, seed)
    if item is None or item[0] != RECORD_MAGIC:
        return None
    _, kind, length, _, body_crc, index, epoch, previous = item
    good = ITEM_BYTES + length <= len(view)
    if good:
        good = crc32c(view[ITEM_BYTES : ITEM_BYTES + length], crc32c(PLACE.pack(place), seed)) == body_crc
    return kind, length, index, epoch, previous, good


def check_rows(span: Bytes, origin: int, seed: int, rows: array[int], first: int, beyond: int) -> int:
    """Are the records of these rows of an index in the span as they were written? The first that is not, or -1.

    `origin` is the place of the span's first byte.
    """
    if first < 0 or beyond > len(rows) // 5:
        raise ValueError("there are no such rows")
    view = memoryview(span)
    for row in range(first, beyond):
        _, place, both, _, flags = rows[row * 5 : row * 5 + 5]
        skip = flags >> 32
        begin, length = place - skip - ITEM_BYTES, (both & 0xFFFF_FFFF) + skip
        offset = begin - origin
        if offset < 0 or offset + ITEM_BYTES + length > len(view):
            return row
        found = read_record(view[offset : offset + ITEM_BYTES + length], begin, seed)
        if found is None or found[1] != length or not found[5]:
            return row
    return -1


def filler(seed: int, place: int, size: int, first: int, last: int, following: int) -> bytes:
    """Items without content, to be written over a stretch that a power failure left half written.

    They stand for the records `first` to `last` (0: none, only batch headers), before the record `following`.
    """
    out = bytearray()
    if first:
        for index in range(first, last + 1):
            length = size - len(out) - ITEM_BYTES if index == last else 0
            start = crc32c(PLACE.pack(place + len(out)), seed)
            body = bytes(length)
            header = ITEM.pack(RECORD_MAGIC, VOID, length, 0, crc32c(body, start), index, 0, 0)
            out += sealed(header, start) + body
    while len(out) + ITEM_BYTES <= size:
        start = crc32c(PLACE.pack(place + len(out)), seed)
        out += sealed(ITEM.pack(BATCH_MAGIC, 0, 0, 0, 0, following, 0, 0), start)
    return bytes(out)


def sealed(header: bytes, start: int) -> bytes:
    """An item's header with its checksum."""
    checksum = crc32c(header[12:], crc32c(header[:8], start))
    return header[:8] + struct.pack("<I", checksum) + header[12:]


def item_at(view: memoryview, position: int, place: int, seed: int) -> tuple[int, ...] | None:
    """The header there, if it is one; the bytes lie at `place`."""
    header = bytes(view[position : position + ITEM_BYTES])
    if header[:2] != RECORD_MAGIC_BYTES and header[:2] != BATCH_MAGIC_BYTES:
        return None
    checksum = crc32c(header[12:], crc32c(header[:8], crc32c(PLACE.pack(place + position), seed)))
    return ITEM.unpack(header) if checksum == int.from_bytes(header[8:12], "little") else None


def _next_candidate(raw: bytes | bytearray, position: int, size: int) -> int:
    """The next aligned place that begins like an item."""
    while position + ITEM_BYTES <= size:
        second = raw.find(MAGIC_SECOND, position + 1)
        if second < 0:
            return size
        position = (second - 1 + ALIGN - 1) // ALIGN * ALIGN
        if position == second - 1:
            return position
    return position
