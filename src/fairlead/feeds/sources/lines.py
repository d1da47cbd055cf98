"""Bytes of a connection or a file into messages, for sources that do not number packets: lines, FIX messages, packets.

Each takes bytes as they come and keeps at most one unfinished message. What is no message is skipped and counted.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import numpy as np

from fairlead.feeds.sources.mold import HEADER_BYTES
from fairlead.feeds.sources.runs import Run, run_of

__all__ = ["LINE_BYTES_MAX", "FixSplitter", "LineSplitter", "PacketSplitter", "Splitter"]

LINE_BYTES_MAX: Final = 1 << 20
FIX_BYTES_MAX: Final = 1 << 16
_FIX_HEAD: Final = re.compile(rb"8=FIXT?\.[0-9.]{1,8}\x019=(\d{1,6})\x01")
_FIX_HEAD_BYTES_MAX: Final = 32
_FIX_TAIL_BYTES: Final = 7  # 10=nnn and its end


class Splitter(Protocol):
    """`first` is the sequence of the next message; sequences are counted."""

    first: int
    troubles: dict[str, int]

    def feed(self, data: bytes) -> Run: ...

    def end(self) -> Run: ...


class LineSplitter:
    """Every line is a message, and its number the line's. One that is too long is a message without content."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.troubles: dict[str, int] = {}
        self._rest = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> Run:
        data = self._rest + data
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        bytes_of = np.frombuffer(data, np.uint8, cut)
        (ends,) = np.nonzero(bytes_of == ord("\n"))
        lengths = np.diff(ends, prepend=-1).astype(np.int32) - 1
        kept = bytes_of != ord("\n")
        if len(lengths):
            over = lengths > LINE_BYTES_MAX
            if self._is_skipping:
                over[0] = True
                self._is_skipping = False
            for place in np.nonzero(over)[0]:
                kept[ends[place] - lengths[place] : ends[place]] = False
                self.troubles["a line that is too long"] = self.troubles.get("a line that is too long", 0) + 1
            lengths[over] = 0
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest = b""
            self._is_skipping = True
        run = Run(self.first, lengths.tobytes(), bytes_of[kept].tobytes())
        self.first += run.size
        return run

    def end(self) -> Run:
        """The last line, if nothing ended it."""
        return self.feed(b"\n") if self._rest or self._is_skipping else Run(self.first, b"", b"")


class FixSplitter:
    """A FIX message by its own body length; its checksum is the converter's business."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.troubles: dict[str, int] = {}
        self._rest = b""

    def feed(self, data: bytes) -> Run:
        data = self._rest + data
        at, bodies = 0, []
        while True:
            start = data.find(b"8=FIX", at)
            if start < 0:
                start = max(at, len(data) - 4)  # the beginning of one may be there
                self._skipped(start - at)
                break
            self._skipped(start - at)
            head = _FIX_HEAD.match(data, start)
            if head is None:
                if len(data) - start < _FIX_HEAD_BYTES_MAX and data.find(b"8=FIX", start + 1) < 0:
                    break
                at = start + 1
                self._skipped(1)
                continue
            end = head.end() + int(head[1]) + _FIX_TAIL_BYTES
            if end - start > FIX_BYTES_MAX:
                at = start + 1
                self._skipped(1)
            elif end > len(data):
                break
            elif data[end - _FIX_TAIL_BYTES : end - 4] == b"10=" and data[end - 1] == 1:
                bodies.append(data[start:end])
                at = end
            else:
                at = start + 1
                self._skipped(1)
        self._rest = data[start:]
        run = run_of(self.first, bodies)
        self.first += run.size
        return run

    def end(self) -> Run:
        self._skipped(len(self._rest))
        self._rest = b""
        return Run(self.first, b"", b"")

    def _skipped(self, count: int) -> None:
        if count:
            self.troubles["bytes that are no message"] = self.troubles.get("bytes that are no message", 0) + count


class PacketSplitter:
    """Packets of `mold` in a stream of bytes: two bytes of length before each. They have their own numbers."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Whole packets; ValueError where there is none, since nothing after that can be trusted."""
        data = self._rest + data
        at, packets = 0, []
        while len(data) - at >= 2:
            size = int.from_bytes(data[at : at + 2], "big")
            if size < HEADER_BYTES:
                raise ValueError("a packet shorter than its header")
            if len(data) - at - 2 < size:
                break
            packets.append(data[at + 2 : at + 2 + size])
            at += 2 + size
        self._rest = data[at:]
        return packets
