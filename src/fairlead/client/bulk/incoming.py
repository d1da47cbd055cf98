"""Bytes from the socket to frames, without a copy on the way: it says where the next bytes belong.

The edge puts what arrives into `space` and tells how much that was. Most frames are gathered here; the pieces of a
batch of columns go straight to their place in it (`Receiver`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fairlead.errors import RemoteProtocolError
from fairlead.wire.kinds import FRAME_BYTES_MAX, HEAD_BYTES, HEADER_BYTES_MAX

__all__ = ["HEAD", "Frame", "Head", "Incoming", "Receiver"]

HEAD = struct.Struct("<IBBHIIQQ")


class Head(NamedTuple):
    """The fixed part of a frame (docs/protocol.md, section 2)."""

    length: int
    kind: int
    flags: int
    topic_bytes: int
    section_bytes: int
    number: int
    correlation: int
    peer: int

    @property
    def rest_bytes(self) -> int:
        """What follows it: topic, headers, body."""
        return self.length - HEAD_BYTES


class Frame(NamedTuple):
    """One whole frame; without section and body when its body went to a receiver."""

    head: Head
    section: bytes = b""
    body: bytes = b""


class Receiver(Protocol):
    """Takes what follows the head of a frame itself."""

    def room(self, head: Head, done: int) -> memoryview:
        """Where the bytes from `done` on go: at least one, and none beyond the frame; or RemoteProtocolError."""


class Incoming:
    """`receiver_of` is asked for each head: who takes the rest of the frame; None: it is gathered here."""

    def __init__(self, receiver_of: Callable[[Head], Receiver | None]) -> None:
        self._receiver_of = receiver_of
        self._fixed = memoryview(bytearray(HEAD_BYTES))
        self._head: Head | None = None
        self._receiver: Receiver | None = None
        self._rest = bytearray()
        self._done = 0
        self.space = self._fixed
        """Where the next bytes belong; never empty."""

    def on_bytes(self, count: int) -> Frame | None:
        """So many were put into `space`. The frame that is whole with them, if any."""
        if count < len(self.space):
            self.space = self.space[count:]
            if self._head is not None:
                self._done += count
            return None
        if self._head is None:
            self._head = head = read_head(self._fixed)
            self._receiver = self._receiver_of(head)
            if self._receiver is None:
                self._rest = bytearray(head.rest_bytes)
        else:
            head = self._head
            self._done += count
        if self._done < head.rest_bytes:
            if self._receiver is None:
                self.space = memoryview(self._rest)
            else:
                self.space = self._receiver.room(head, self._done)
            return None
        return self._finish(head)

    def _finish(self, head: Head) -> Frame:
        frame = Frame(head)
        if self._receiver is None:
            section_at = head.topic_bytes
            body_at = section_at + head.section_bytes
            frame = Frame(head, bytes(self._rest[section_at:body_at]), bytes(self._rest[body_at:]))
        self._head = self._receiver = None
        self._done = 0
        self.space = self._fixed
        return frame


def read_head(data: memoryview) -> Head:
    """A head that makes sense, or RemoteProtocolError."""
    head = Head(*HEAD.unpack(data))
    header_bytes = HEAD_BYTES + head.topic_bytes + head.section_bytes
    if head.length > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"A frame of {head.length} bytes exceeds {FRAME_BYTES_MAX}.", code="frame-too-large")
    if head.length < header_bytes:
        raise RemoteProtocolError(f"A frame of {head.length} bytes is shorter than its head, topic and headers.")
    if header_bytes > HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"A header of {header_bytes} bytes exceeds the limit.", code="header-too-large")
    return head
