"""What is written beside a sealed segment: where its messages are, so that a start need not read their bodies."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from fairlead.journal.crc import crc32c
from fairlead.journal.facts import Facts
from fairlead.journal.usage import Row

MAGIC: Final = b"FLSideca"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sHHI20sIQQII")
"""magic, version, zero, count of rows, store id, segment number, first index, last index, zero, CRC32C of it all (this
field zero)."""
ROW: Final = struct.Struct("<HHIQQQIIIIQQ")
"""kind, zero, destination, index, place, order number of the first, count, size, flags, skip, arrival, source."""


def packed(row: Row) -> bytes:
    """One row."""
    kind, index, place, (destination, base, count, size, flags, arrival_ms, skip, source) = row
    return ROW.pack(kind, 0, destination, index, place, base, count, size, flags, skip, arrival_ms, source)


def encode(store_id: bytes, number: int, first: int, last: int, body: bytes | bytearray) -> bytes:
    """The whole file; the body is packed rows."""
    head = HEAD.pack(MAGIC, VERSION, 0, len(body) // ROW.size, store_id, number, first, last, 0, 0)
    return head[:-4] + struct.pack("<I", crc32c(body, crc32c(head))) + body


class Sidecar:
    """A sidecar that was read; rows are made as they are asked for."""

    def __init__(self, first: int, last: int, data: bytes) -> None:
        self.first = first
        self.last = last
        self._data = data

    def rows(self) -> Iterator[Row]:
        for values in ROW.iter_unpack(memoryview(self._data)[HEAD.size :]):
            kind, _, destination, index, place, base, count, size, flags, skip, arrival_ms, source = values
            yield Row(kind, index, place, Facts(destination, base, count, size, flags, arrival_ms, skip, source))


def decode(data: bytes, store_id: bytes, number: int) -> Sidecar | None:
    """None if this is not, or no longer, the sidecar of that segment: then the segment itself is read."""
    if len(data) < HEAD.size:
        return None
    magic, version, _, count, store, segment, first, last, _, checksum = HEAD.unpack_from(data)
    if (magic, version, store, segment) != (MAGIC, VERSION, store_id, number):
        return None
    if len(data) != HEAD.size + count * ROW.size:
        return None
    zeroed = data[: HEAD.size - 4] + bytes(4)
    if crc32c(memoryview(data)[HEAD.size :], crc32c(zeroed)) != checksum:
        return None
    return Sidecar(first, last, data)
