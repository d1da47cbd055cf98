"""How the bytes of a journal lie in its files: docs/journal.md in constants.

Every checksum begins with the store's id and the place of what it covers (segment number and offset), so that
whatever a recycled file still holds of its former life, and whatever a message carries in its body, is never valid.
"""

from __future__ import annotations

import struct
from typing import Final

from fairlead.journal.crc import crc32c

FORMAT_VERSION: Final = 1
STORE_ID_BYTES: Final = 20

FILE_HEAD: Final = struct.Struct("<8sHHI20sIQQII")
"""Begins a segment file: magic, format version, flags, zero, store id, segment number, first index, bytes of the file,
zero, CRC32C of all before it."""
FILE_MAGIC: Final = b"FLJournl"
FILE_RECYCLED: Final = 1  # flag: the file held an older segment; what lies behind the last batch is left over from it

ITEM: Final = struct.Struct("<HHIIIQQQ")
"""A record's header: magic, kind, length of the body, CRC32C of the header, CRC32C of the body, index, epoch, epoch of
the record before. A batch's header: magic, zero, bytes of its records, CRC32C of the header, count of records, index of
the first, synced mark, time in ms."""
ITEM_BYTES: Final = 40
RECORD_MAGIC: Final = 0x7E52
BATCH_MAGIC: Final = 0x7E42
EXCHANGE_MAGIC: Final = 0x7E58  # a record on its way to another journal: its checksums begin with 0
ALIGN: Final = 8  # every item begins at a multiple of this

VOID: Final = 0  # kind of a record that stands for one a power failure took before it was safe

PLACE_SHIFT: Final = 40
OFFSET_MASK: Final = (1 << PLACE_SHIFT) - 1
SEGMENT_MAX: Final = (1 << 24) - 1

# what a scan finds
FOUND_RECORD: Final = 1  # offset of its header, length of its body, kind, index, epoch, epoch before
FOUND_BATCH: Final = 2  # offset, bytes of its records, count, first index, synced mark, time in ms
FOUND_BODY_BAD: Final = 3  # like FOUND_RECORD, but the body is not what was written
FOUND_BAD: Final = 4  # offset and length of a stretch before something valid that is neither batch nor record
FOUND_END: Final = 5  # offset behind the last item, and how many bytes from there to the last that is not zero

Found = tuple[int, int, int, int, int, int, int]
"""(what, offset, size, kind or count, index, epoch or mark, epoch before or time)."""


class NotThisFormat(ValueError):
    """A file of another format version."""


def place_of(segment: int, offset: int) -> int:
    return segment << PLACE_SHIFT | offset


def segment_of(place: int) -> int:
    return place >> PLACE_SHIFT


def offset_of(place: int) -> int:
    return place & OFFSET_MASK


def padded(size: int) -> int:
    """The next multiple of ALIGN."""
    return (size + 7) & ~7


def seed_of(store_id: bytes) -> int:
    """Where the checksums of a store begin."""
    return crc32c(store_id)


def file_head(store_id: bytes, number: int, first: int, size: int, *, recycled: bool = False) -> bytes:
    """The first bytes of a segment file."""
    flags = FILE_RECYCLED if recycled else 0
    head = FILE_HEAD.pack(FILE_MAGIC, FORMAT_VERSION, flags, 0, store_id, number, first, size, 0, 0)
    return head[:-4] + struct.pack("<I", crc32c(head[:-4]))


def read_file_head(data: bytes) -> tuple[bytes, int, int, int, bool] | None:
    """(store id, segment number, first index, bytes of the file, recycled), or None if this is no such header."""
    if len(data) < FILE_HEAD.size:
        return None
    magic, version, flags, _, store_id, number, first, size, _, checksum = FILE_HEAD.unpack_from(data)
    if magic != FILE_MAGIC or checksum != crc32c(data[: FILE_HEAD.size - 4]):
        return None
    if version != FORMAT_VERSION:
        raise NotThisFormat(
            f"the journal has format version {version}, this software reads version {FORMAT_VERSION}: "
            "start it with the release that wrote it, or see docs/journal.md, 'Upgrading'"
        )
    return store_id, number, first, size, bool(flags & FILE_RECYCLED)
