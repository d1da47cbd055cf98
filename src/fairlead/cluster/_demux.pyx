# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A link's bytes to frames: the compiled twin of `demux.py`, which says what it does."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairlead.errors import RemoteProtocolError

cdef packed struct Head:
    uint32_t whole
    uint32_t index
    uint64_t uid
    uint32_t length
    uint8_t kind
    uint8_t flags
    uint16_t topic_bytes
    uint32_t header_bytes
    uint32_t number
    uint64_t correlation
    uint64_t peer

cdef enum:
    HEADS = 48
    ENVELOPE = 16
    FRAME_MAX = 65536 + 1048576

LINK_FRAME_MAX = ENVELOPE + FRAME_MAX
MALFORMED = -1
LOOKED_AT = -1

cdef enum:
    ERROR = 0x44
    PUBLISH = 0x20
    COMMAND = 0x60
    ANSWER = 0x70
    GROUP_SHIFT = 24


def scan(const uint8_t[::1] buffer, Py_ssize_t start, Py_ssize_t end):
    cdef Head head
    cdef Py_ssize_t topic, headers, body, beyond
    cdef int kind
    cdef list found = []
    if start < 0 or end > buffer.shape[0]:
        raise ValueError("outside of the buffer")
    while end - start >= HEADS:
        memcpy(&head, &buffer[start], HEADS)
        if head.whole < HEADS or head.whole > ENVELOPE + FRAME_MAX:
            raise RemoteProtocolError(
                f"An envelope says {head.whole} bytes; a frame has {HEADS} to {ENVELOPE + FRAME_MAX}."
            )
        beyond = start + head.whole
        if beyond > end:
            break
        topic = start + HEADS
        headers = topic + head.topic_bytes
        body = headers + <Py_ssize_t>head.header_bytes
        kind = head.kind
        if head.length != head.whole - ENVELOPE or body > beyond:
            kind = -1
            topic = headers = body = beyond
        found.append((
            head.uid, head.index, kind, head.flags, head.number, head.correlation, head.peer, topic, headers, body, beyond
        ))
        start = beyond
    return found, start


def runs(const uint8_t[::1] buffer, Py_ssize_t start, Py_ssize_t end, bint apart):
    cdef Head head
    cdef Py_ssize_t beyond, first = start
    cdef int its, group = -1
    cdef list found = []
    if start < 0 or end > buffer.shape[0]:
        raise ValueError("outside of the buffer")
    while end - start >= HEADS:
        memcpy(&head, &buffer[start], HEADS)
        if head.whole < HEADS or head.whole > ENVELOPE + FRAME_MAX:
            raise RemoteProtocolError(
                f"An envelope says {head.whole} bytes; a frame has {HEADS} to {ENVELOPE + FRAME_MAX}."
            )
        beyond = start + head.whole
        if beyond > end:
            break
        if (
            head.uid == 0
            or head.length != head.whole - ENVELOPE
            or <Py_ssize_t>HEADS + head.topic_bytes + <Py_ssize_t>head.header_bytes > <Py_ssize_t>head.whole
            or head.kind == COMMAND
            or head.kind == ANSWER
            or head.kind == ERROR
            or head.kind == PUBLISH
        ):
            its = -1
        else:
            its = head.number >> GROUP_SHIFT if apart else 0
        if its != group or its == -1:
            if start > first:
                found.append((group, first, start))
            group = its
            first = start
        start = beyond
    if start > first:
        found.append((group, first, start))
    return found, start
