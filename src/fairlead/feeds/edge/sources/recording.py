"""A made-up trading day written to a file of packets, such as a source of kind "file" replays."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead.feeds.sources import mold
from fairlead.feeds.sources.day import TradingDay
from fairlead.feeds.sources.mold_codec import pack

__all__ = ["write_day"]

CHUNK: Final = 8192


def write_day(path: Path, day: TradingDay, session: str) -> int:
    """The bytes written. A file that is there is replaced."""
    name = session.encode("ascii", "replace")[: mold.SESSION_BYTES].ljust(mold.SESSION_BYTES)
    size = 0
    with path.open("wb") as file:
        for first in range(1, day.messages + 1, CHUNK):
            run = day.run(first, CHUNK)
            packets = pack(name, run.first, run.lengths, run.data)
            size += file.write(b"".join([part for packet in packets for part in (_length(packet), packet)]))
        end = mold.heartbeat(name, day.messages + 1, is_end=True)
        size += file.write(_length(end) + end)
    return size


def _length(packet: bytes) -> bytes:
    return len(packet).to_bytes(2, "big")
