"""The bytes of a checkpoint: blobs under keys, each with its checksum, and an end that says how many they are."""

from __future__ import annotations

import struct
from typing import Final

from fairlead.journal.crc import crc32c

MAGIC: Final = b"FLSnapsh"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sHHI20s")
"""magic, version, zero, zero, store id."""
BLOB: Final = struct.Struct("<IIQI")
"""length of the key, length of the blob, its number from 1, CRC32C of the three, key and blob."""
END: Final = struct.Struct("<IIQQQI")
"""zero, zero, zero, count of blobs, index covered, CRC32C of all this behind the CRC32C of the last blob."""


def head(store_id: bytes) -> bytes:
    return HEAD.pack(MAGIC, VERSION, 0, 0, store_id)


class Encoder:
    """Makes the pieces; the checksum of each goes on from the one before, so that none can be missing or swapped."""

    def __init__(self, store_id: bytes) -> None:
        self._crc = crc32c(head(store_id))
        self.count = 0

    def blob(self, key: bytes, blob: bytes) -> bytes:
        if not key:
            raise ValueError("a blob has a key")
        self.count += 1
        start = BLOB.pack(len(key), len(blob), self.count, 0)[:-4]
        self._crc = crc32c(blob, crc32c(key, crc32c(start, self._crc)))
        return start + struct.pack("<I", self._crc) + key + blob

    def end(self, covers: int) -> bytes:
        start = END.pack(0, 0, 0, self.count, covers, 0)[:-4]
        return start + struct.pack("<I", crc32c(start, self._crc))


class Decoder:
    """Reads the pieces again; whoever reads the file feeds it what it asks for."""

    def __init__(self, store_id: bytes) -> None:
        self._crc = crc32c(head(store_id))
        self.count = 0
        self.covers = -1  # known at the end

    def lengths(self, start: bytes) -> tuple[int, int] | None:
        """Of key and blob, from the first BLOB.size bytes; (0, 0): the end. None: not what was written."""
        if len(start) < BLOB.size:
            return None
        key, blob, number, _ = BLOB.unpack_from(start)
        if key and number != self.count + 1:
            return None
        return key, blob

    def blob(self, start: bytes, key: bytes, blob: bytes) -> bool:
        """Is it what was written?"""
        self._crc = crc32c(blob, crc32c(key, crc32c(start[: BLOB.size - 4], self._crc)))
        self.count += 1
        return self._crc == int(BLOB.unpack_from(start)[3])

    def end(self, data: bytes) -> bool:
        """The last END.size bytes of the file."""
        if len(data) != END.size:
            return False
        zero, nothing, none, count, covers, checksum = END.unpack(data)
        if (zero, nothing, none, count) != (0, 0, 0, self.count) or checksum != crc32c(data[:-4], self._crc):
            return False
        self.covers = covers
        return True
