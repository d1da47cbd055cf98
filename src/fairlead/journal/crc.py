"""CRC32C (Castagnoli) for what is small or plain; the hot loops have it compiled in (`_records.pyx`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["crc32c", "table_crc32c"]

Bytes = bytes | bytearray | memoryview


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


TABLE: Final = _table()


def table_crc32c(data: Bytes, crc: int = 0) -> int:
    """Byte by byte; `crc` is that of the bytes before."""
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _fastest() -> Callable[[Bytes, int], int]:
    try:
        import google_crc32c  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return table_crc32c
    extend = google_crc32c.extend
    return lambda data, crc: int(extend(crc, bytes(data)))


_crc32c = _fastest()


def crc32c(data: Bytes, crc: int = 0) -> int:
    """Of the data, behind bytes whose CRC32C is `crc`."""
    return _crc32c(data, crc)
