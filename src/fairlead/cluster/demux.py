"""A link's bytes to frames: the plain twin of `_demux.pyx`, and its specification.

A frame comes as a tuple of its facts and places in the buffer; no byte of a body is copied or looked at. What is
wrong with a single frame is told with it, as kind -1, and the next one is found by the envelope. Only an envelope
that cannot be right ends the link: from there on nothing can be found.
"""

from __future__ import annotations

import struct
from typing import Final

from fairlead.errors import RemoteProtocolError
from fairlead.wire.durable import ENVELOPE, KIND_ANSWER, KIND_COMMAND
from fairlead.wire.kinds import FRAME_BYTES_MAX, HEAD_BYTES, KIND_ERROR, KIND_PUBLISH

LINK_FRAME_MAX: Final = ENVELOPE.size + FRAME_BYTES_MAX
MALFORMED: Final = -1
LOOKED_AT: Final = -1
GROUP_SHIFT: Final = 24
"""Handles and session numbers of group i are i << 24 | n (docs/cluster.md, section 5)."""

_BOTH: Final = struct.Struct("<IIQIBBHIIQQ")

Frame = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""uid, index, kind, flags, number, correlation, peer, then places: of the topic, the headers, the body, the end."""


def scan(buffer: bytearray | memoryview, start: int, end: int) -> tuple[list[Frame], int]:
    """All whole frames between these places, and where the first that is not whole begins."""
    found: list[Frame] = []
    while end - start >= _BOTH.size:
        (whole, index, uid, length, kind, flags, topic_bytes, header_bytes, number, correlation, peer) = (
            _BOTH.unpack_from(buffer, start)
        )
        if not _BOTH.size <= whole <= LINK_FRAME_MAX:
            raise RemoteProtocolError(f"An envelope says {whole} bytes; a frame has {_BOTH.size} to {LINK_FRAME_MAX}.")
        beyond = start + whole
        if beyond > end:
            break
        topic = start + _BOTH.size
        headers = topic + topic_bytes
        body = headers + header_bytes
        if length != whole - ENVELOPE.size or body > beyond:
            kind, topic, headers, body = MALFORMED, beyond, beyond, beyond
        found.append((uid, index, kind, flags, number, correlation, peer, topic, headers, body, beyond))
        start = beyond
    return found, start


def runs(buffer: bytearray | memoryview, start: int, end: int, apart: bool) -> tuple[list[tuple[int, int, int]], int]:
    """The same frames as slices that can be passed on whole: (group, start, beyond), and where the rest begins.

    Consecutive frames for handles of one group are one slice; unless `apart`, of all groups. Those that an agent has
    to look at come one by one, as group -1: what is about the link itself, COMMAND, ANSWER, ERROR and PUBLISH, and
    what is malformed.
    """
    found: list[tuple[int, int, int]] = []
    group, first = LOOKED_AT, start
    while end - start >= _BOTH.size:
        whole, _, uid, length, kind, _, topic_bytes, header_bytes, number, _, _ = _BOTH.unpack_from(buffer, start)
        if not _BOTH.size <= whole <= LINK_FRAME_MAX:
            raise RemoteProtocolError(f"An envelope says {whole} bytes; a frame has {_BOTH.size} to {LINK_FRAME_MAX}.")
        beyond = start + whole
        if beyond > end:
            break
        is_sound = length == whole - ENVELOPE.size and _BOTH.size + topic_bytes + header_bytes <= whole
        if not uid or not is_sound or kind in (KIND_COMMAND, KIND_ANSWER, KIND_ERROR, KIND_PUBLISH):
            its = LOOKED_AT
        else:
            its = number >> GROUP_SHIFT if apart else 0
        if its != group or its == LOOKED_AT:
            if start > first:
                found.append((group, first, start))
            group, first = its, start
        start = beyond
    if start > first:
        found.append((group, first, start))
    return found, start


assert _BOTH.size == ENVELOPE.size + HEAD_BYTES
