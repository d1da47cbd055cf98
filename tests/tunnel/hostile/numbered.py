"""A byte stream in which every byte has its place: what was lost, doubled or moved can be named.

It is made of lines of 1 KiB; each begins with its number and the stream's, and goes on with bytes that depend on both.
"""

from __future__ import annotations

import hashlib
import struct
from random import Random

LINE = 1024
HEAD = struct.Struct(">QQ")
FILL = Random(20_010_401).randbytes(8 * LINE)
ROTATIONS = 4093  # a prime, so that neighbouring lines and streams differ


def line(stream: int, number: int) -> bytes:
    at = (number * 31 + stream * 17) % ROTATIONS
    return HEAD.pack(stream, number) + FILL[at : at + LINE - HEAD.size]


def numbered(stream: int, at: int, size: int) -> bytes:
    """Bytes `at` to `at + size` of a stream."""
    first, offset = divmod(at, LINE)
    last = (at + size + LINE - 1) // LINE
    return b"".join([line(stream, number) for number in range(first, last)])[offset : offset + size]


class Check:
    """Takes a stream as it comes; `fault` says what was wrong at the first byte that was."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.position = 0
        self.fault = ""
        self.sum = hashlib.sha256()

    def take(self, data: bytes) -> None:
        self.sum.update(data)
        if not self.fault and data != (expected := numbered(self.stream, self.position, len(data))):
            self.fault = self.explain(data, expected)
        self.position += len(data)

    def explain(self, data: bytes, expected: bytes) -> str:
        wrong = next(at for at, (one, other) in enumerate(zip(data, expected, strict=True)) if one != other)
        place = self.position + wrong
        number = place // LINE
        for far in (*range(-2000, 0), *range(1, 2000)):
            if number + far >= 0 and data.find(HEAD.pack(self.stream, number + far), max(0, wrong - LINE)) >= 0:
                what = "again" if far < 0 else "too early: something is lost or moved"
                return f"byte {place}: line {number + far} came where line {number} belongs ({what})"
        return f"byte {place}: {data[wrong : wrong + 16].hex()} is not {expected[wrong : wrong + 16].hex()}"


def digest(stream: int, size: int) -> bytes:
    total = hashlib.sha256()
    for at in range(0, size, 1 << 20):
        total.update(numbered(stream, at, min(1 << 20, size - at)))
    return total.digest()
