"""Framing of lines and links (docs/feeds.md, section 3): bytes in, whole frames out; and heads for blocks.

A frame that lies whole within the bytes given is a view of them: nothing is copied. Only a frame that came in several
pieces is put together, once.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fairlead.errors import LocalProtocolError, RemoteProtocolError
from fairlead.feeds.speech import encode

__all__ = [
    "ACCEPTED_BYTES_MAX",
    "BLOCK",
    "FILL",
    "HANDSHAKE_BYTES_MAX",
    "WORD",
    "Frame",
    "FrameParser",
    "block_header",
    "fill_frame",
    "fill_header",
    "word_frame",
]

Bytes: TypeAlias = bytes | bytearray | memoryview

WORD: Final = 1
BLOCK: Final = 2
FILL: Final = 3

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
ACCEPTED_BYTES_MAX: Final = 5 * 1024 * 1024
"""Of a frame without its length field: before, and after the line was accepted."""

_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<IB")  # length, kind
_BLOCK: Final = struct.Struct("<IBQ")  # length, kind, epoch
_FILL: Final = struct.Struct("<IBQB")  # length, kind, id, 1 if it is the last
_U64: Final = struct.Struct("<Q")
_BEHIND_LENGTH: Final = {WORD: 1, BLOCK: 9, FILL: 10}
"""Bytes of the head of each kind, the length field not counted; a frame cannot be shorter."""


class Frame(NamedTuple):
    """One frame. `payload` may be a view of what was fed: copy it if it is to be kept for long."""

    kind: int
    number: int  # of a BLOCK its epoch, of a FILL the id of the question
    payload: memoryview  # of a WORD its msgpack, of a BLOCK or FILL the block; an empty FILL has none
    is_last: bool = False  # of a FILL


class FrameParser:
    """Cuts what arrives on a line into frames.

    Begin with `HANDSHAKE_BYTES_MAX` where the other side is a stranger, and call `set_limit` when it is accepted. The
    dialling side may begin with `ACCEPTED_BYTES_MAX`: blocks can come right behind the welcome, in the same bytes.
    After an error the parser is of no use, and the line must be closed.
    """

    __slots__ = ("_limit", "_partial")

    def __init__(self, limit: int = HANDSHAKE_BYTES_MAX) -> None:
        self._limit = limit
        self._partial = bytearray()  # the beginning of one frame, its length field included

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame whose rest has not come."""
        return len(self._partial)

    def set_limit(self, limit: int = ACCEPTED_BYTES_MAX) -> None:
        """How long a frame may be from the next call of `feed` on."""
        self._limit = limit

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that are whole now. The bytes must not change afterwards, since frames are views of them."""
        found: list[Frame] = []
        view = memoryview(data)
        at = 0
        if self._partial:
            at = self._complete(view, found)
            if self._partial:
                return found
        end = len(view)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(view, at)
            kind = view[at + _LENGTH.size] if end - at > _LENGTH.size else None
            self._check(length, kind)
            behind = at + _LENGTH.size + length
            if behind > end:
                break
            found.append(_frame(view[at + _LENGTH.size : behind]))
            at = behind
        if at < end:
            self._partial += view[at:]
        return found

    def _complete(self, view: memoryview, found: list[Frame]) -> int:
        """Take what the unfinished frame lacks; answers how much that was."""
        taken = 0
        if len(self._partial) < _HEAD.size:  # length and kind first
            taken = min(_HEAD.size - len(self._partial), len(view))
            self._partial += view[:taken]
            if len(self._partial) < _HEAD.size:
                if len(self._partial) >= _LENGTH.size:
                    self._check(_LENGTH.unpack_from(self._partial)[0], None)
                return taken
            self._check(*_HEAD.unpack_from(self._partial))
        length: int = _LENGTH.unpack_from(self._partial)[0]
        lacking = _LENGTH.size + length - len(self._partial)
        more = min(lacking, len(view) - taken)
        self._partial += view[taken : taken + more]
        if more == lacking:
            found.append(_frame(memoryview(self._partial).toreadonly()[_LENGTH.size :]))
            self._partial = bytearray()
        return taken + more

    def _check(self, length: int, kind: int | None) -> None:
        """Before a single byte of the content is kept."""
        if length > self._limit:
            raise RemoteProtocolError(f"A frame of {length} bytes; on this line at most {self._limit} are allowed.")
        if kind is None:
            least = 1
        elif kind in _BEHIND_LENGTH:
            least = _BEHIND_LENGTH[kind]
        else:
            raise RemoteProtocolError(f"There are no frames of kind {kind}.")
        if length < least:
            raise RemoteProtocolError(f"A frame of {length} bytes is shorter than its own head.")


def _frame(content: memoryview) -> Frame:
    kind = content[0]
    if kind == WORD:
        return Frame(WORD, 0, content[1:])
    (number,) = _U64.unpack_from(content, 1)
    if kind == BLOCK:
        return Frame(BLOCK, number, content[9:])
    if content[9] > 1:
        raise RemoteProtocolError("A fill is the last one (1) or not (0).")
    return Frame(FILL, number, content[10:], content[9] == 1)


def word_frame(word: msgspec.Struct) -> bytes:
    """A word, ready for the line."""
    content = encode(word)
    if len(content) >= ACCEPTED_BYTES_MAX:
        raise LocalProtocolError(f"A word of {len(content)} bytes is too long for a line: divide it.")
    return _HEAD.pack(1 + len(content), WORD) + content


def block_header(block_length: int, epoch: int) -> bytes:
    """What goes before a block of this many bytes; the block itself is sent untouched behind it."""
    return _BLOCK.pack(9 + block_length, BLOCK, epoch)


def fill_header(block_length: int, question: int, is_last: bool) -> bytes:
    """What goes before a block that answers the Fill with this id; length 0: nothing follows."""
    return _FILL.pack(10 + block_length, FILL, question, is_last)


def fill_frame(block: Bytes, question: int, is_last: bool) -> bytes:
    """An answer to the Fill with this id in one piece; the block may be empty."""
    return fill_header(len(block), question, is_last) + block
