"""Counts of what went through a message manager since it started."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fairlead.cluster.port import Bytes
from fairlead.wire.durable import CHUNK, STORED_AGAIN, STORED_REFUSED

_COUNT: Final = struct.Struct("<I")
_COUNT_AT: Final = 8  # where a chunk's head says how many messages it has
_BYTES_AT: Final = CHUNK.size - 12


class Tally:
    """Plain numbers that only grow."""

    __slots__ = ("delivered", "delivered_bytes", "refused", "repeats", "settled", "stored", "stored_bytes")

    def __init__(self) -> None:
        self.stored = 0
        self.stored_bytes = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.settled = 0
        self.repeats = 0
        self.refused = 0

    def receipt(self, status: int, count: int) -> None:
        if status == STORED_AGAIN:
            self.repeats += count
        elif status == STORED_REFUSED:
            self.refused += count
        else:
            self.stored += count

    def deliver(self, pieces: Sequence[Bytes], size: int) -> None:
        """A delivery: chunks, each a head and its entries."""
        self.delivered_bytes += size
        missing = 0
        for piece in pieces:
            if missing <= 0:
                self.delivered += _COUNT.unpack_from(piece, _COUNT_AT)[0]
                missing = _COUNT.unpack_from(piece, _BYTES_AT)[0] + CHUNK.size
            missing -= len(piece)

    def facts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
