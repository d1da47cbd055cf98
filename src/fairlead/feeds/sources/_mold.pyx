# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of `mold.split` and `mold.pack`: one pass over a packet, no object per message."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from fairlead.feeds.sources.mold import BadPacket

cdef enum:
    HEADER_BYTES = 20
    SESSION_BYTES = 10
    END_OF_SESSION = 0xFFFF
    COUNT_MAX = 0xFFFE

cdef unsigned long long SEQUENCE_MAX = (1ULL << 63) - 1 - 0xFFFF


cdef inline unsigned long long _big(const unsigned char* at, int size) noexcept nogil:
    cdef unsigned long long value = 0
    cdef int i
    for i in range(size):
        value = (value << 8) | at[i]
    return value


def split(bytes packet not None):
    """Session, sequence, count, lengths, data; see the plain twin."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(packet)
    cdef const unsigned char* start = <const unsigned char*>PyBytes_AS_STRING(packet)
    cdef Py_ssize_t at = HEADER_BYTES
    cdef Py_ssize_t length
    cdef unsigned long long sequence
    cdef unsigned int count, i
    cdef int* lengths
    cdef char* data
    if size < HEADER_BYTES:
        raise BadPacket("shorter than its header")
    sequence = _big(start + SESSION_BYTES, 8)
    count = <unsigned int>_big(start + 18, 2)
    if not 1 <= sequence <= SEQUENCE_MAX:
        raise BadPacket("a sequence out of range")
    cdef bytes session = packet[:SESSION_BYTES]
    if count == 0 or count == END_OF_SESSION:
        if size != at:
            raise BadPacket("more bytes than its messages have")
        return session, sequence, count, b"", b""
    if size - at < 2 * <Py_ssize_t>count:
        # The twin reads on until it finds out; so that both say the same, find out here without writing.
        for i in range(count):
            if size - at < 2:
                raise BadPacket("fewer messages than it counts")
            length = <Py_ssize_t>_big(start + at, 2)
            at += 2
            if size - at < length:
                raise BadPacket("a message longer than the packet")
            at += length
        raise BadPacket("fewer messages than it counts")
    cdef bytes made_lengths = PyBytes_FromStringAndSize(NULL, 4 * <Py_ssize_t>count)
    cdef bytes made_data = PyBytes_FromStringAndSize(NULL, size - at - 2 * <Py_ssize_t>count)
    lengths = <int*>PyBytes_AS_STRING(made_lengths)
    data = PyBytes_AS_STRING(made_data)
    cdef Py_ssize_t room = size - at - 2 * <Py_ssize_t>count
    cdef Py_ssize_t filled = 0
    for i in range(count):
        if size - at < 2:
            raise BadPacket("fewer messages than it counts")
        length = <Py_ssize_t>_big(start + at, 2)
        at += 2
        if size - at < length:
            raise BadPacket("a message longer than the packet")
        lengths[i] = <int>length
        if length <= room - filled:
            memcpy(data + filled, start + at, length)
        filled += length
        at += length
    if at != size:
        raise BadPacket("more bytes than its messages have")
    return session, sequence, count, made_lengths, made_data


def pack(bytes session not None, unsigned long long first, bytes lengths not None, bytes data not None,
         Py_ssize_t count_max=COUNT_MAX, Py_ssize_t bytes_max=1400):
    """Packets of at most so many messages and, unless a single one is longer, so many bytes."""
    cdef Py_ssize_t total = PyBytes_GET_SIZE(lengths) // 4
    cdef const int* each = <const int*>PyBytes_AS_STRING(lengths)
    cdef const char* source = PyBytes_AS_STRING(data)
    cdef Py_ssize_t available = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t i = 0, j, k, size, at = 0, put
    cdef unsigned char* out
    cdef bytes made
    cdef list packets = []
    if PyBytes_GET_SIZE(session) != SESSION_BYTES:
        raise ValueError("a session has ten bytes")
    while i < total:
        size = HEADER_BYTES
        j = i
        while j < total and (j == i or (size + 2 + each[j] <= bytes_max and j - i < count_max)):
            if each[j] < 0 or each[j] > 0xFFFF:
                raise ValueError("a message has at most 65,535 bytes")
            size += 2 + each[j]
            j += 1
        made = PyBytes_FromStringAndSize(NULL, size)
        out = <unsigned char*>PyBytes_AS_STRING(made)
        memcpy(out, PyBytes_AS_STRING(session), SESSION_BYTES)
        for k in range(8):
            out[10 + k] = <unsigned char>(((first + <unsigned long long>i) >> (56 - 8 * k)) & 0xFF)
        out[18] = <unsigned char>(((j - i) >> 8) & 0xFF)
        out[19] = <unsigned char>((j - i) & 0xFF)
        put = HEADER_BYTES
        for k in range(i, j):
            if each[k] > available - at:
                raise ValueError("fewer bytes than the lengths say")
            out[put] = <unsigned char>(each[k] >> 8)
            out[put + 1] = <unsigned char>(each[k] & 0xFF)
            memcpy(out + put + 2, source + at, each[k])
            put += 2 + each[k]
            at += each[k]
        packets.append(made)
        i = j
    return packets
