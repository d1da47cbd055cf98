"""What goes over a line: blocks of frames. A block is what was flushed at once, sealed as one; a frame is one message.

Block: `<I` length of the body, the seal (16 bytes, or none), the body. Frame: `<IBBH` length behind this head, kind,
length of the channel's name, length of the port's name; then channel, port and content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from fairlead.bus.config import MESSAGE_BYTES_MAX
from fairlead.bus.port import Bytes

MESSAGE: Final = 1  # to one node
CAST: Final = 2
INFO: Final = 3  # records.Info
ACCEPT: Final = 4  # this line counts
REFUSE: Final = 5  # it does not; content says why
PING: Final = 6
BYE: Final = 7
SWITCH: Final = 8  # from now on messages of this sender come on this line
DISTANT: Final = 9  # list of records.Distant
RELAY: Final = 10  # records.Relay as the channel's name, see relay.py
DEAD: Final = 11  # records.Death
HEARD: Final = 12  # answer to DEAD
TAP: Final = 13  # headers, one line of text each
REPORT: Final = 14  # how far we are in the multicast stream of the other
REMOVED: Final = 15  # among multicasts: that listener is one no more

BLOCK: Final = Struct("<I")
FRAME: Final = Struct("<IBBH")
SEAL_BYTES: Final = 16
BLOCK_BYTES: Final = 256 << 10  # a block is closed when it has this much
BLOCK_BYTES_MAX: Final = MESSAGE_BYTES_MAX + BLOCK_BYTES + (64 << 10)
NAME_BYTES_MAX: Final = 255
JOIN_BYTES: Final = 8 << 10  # of pieces that have less on average, one copy is cheaper than many pieces


class Malformed(ValueError):
    """The other side does not speak as a node does."""


def pack(kind: int, channel: str = "", port: str = "", pieces: Sequence[Bytes] = ()) -> tuple[list[bytes], int]:
    """The frame as pieces that nobody will change, and its length."""
    to, at = channel.encode(), port.encode()
    size = len(to) + len(at) + sum(map(len, pieces))
    if len(to) > NAME_BYTES_MAX or len(at) > NAME_BYTES_MAX:
        raise ValueError(f"the name of a channel or port has at most {NAME_BYTES_MAX} bytes")
    if size > MESSAGE_BYTES_MAX + 2 * NAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes is too large for the bus: at most {MESSAGE_BYTES_MAX}")
    head = FRAME.pack(size, kind, len(to), len(at)) + to + at
    if size <= JOIN_BYTES * (len(pieces) or 1):
        return [b"".join((head, *pieces))], size + FRAME.size
    return [head, *(piece if type(piece) is bytes else bytes(piece) for piece in pieces)], size + FRAME.size


def parse(body: memoryview) -> Iterable[tuple[int, bytes, bytes, memoryview]]:
    """Kind, channel, port and content of every frame of a block."""
    at, end = 0, len(body)
    while at < end:
        if end - at < FRAME.size:
            raise Malformed("a block ends within the head of a frame")
        size, kind, to_size, port_size = FRAME.unpack_from(body, at)
        at += FRAME.size
        names = at + to_size + port_size
        if at + size > end or names > at + size:
            raise Malformed("a frame is longer than its block")
        yield kind, bytes(body[at : at + to_size]), bytes(body[at + to_size : names]), body[names : at + size]
        at += size
