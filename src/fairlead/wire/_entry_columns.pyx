# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns to entries: the compiled twin of `entry_columns.py`, which says what everything here means."""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairlead.wire._columns cimport Held
from fairlead.wire._entry_parts cimport (
    ENTRY_HEAD, ENTRY_TIMES, F_KEY, F_TIMED, PRIORITY_HIGHEST, SECTION_BYTES_MAX, check_headers, is_text, load32, load64,
    store32, store64,
)

from fairlead.errors import BadParameter
from fairlead.wire import durable, entries
from fairlead.wire import entry_columns as _plain

__all__ = ["entries_of"]

cdef enum:
    COUNT_MAX = 65536
    KEY_MAX = 65535

cdef uint64_t TIME_MAX = 1 << 53
cdef Py_ssize_t ENTRY_MAX = 0x7FFFFFFF

assert COUNT_MAX == durable.COUNT_MAX
assert (ENTRY_MAX, KEY_MAX, TIME_MAX) == (entries.ENTRY_BYTES_MAX, entries.KEY_BYTES_MAX, entries.TIME_MS_MAX)


@cython.final
cdef class Ragged:
    """One column of pieces, held."""

    cdef Held offsets
    cdef Held values
    cdef Held validity
    cdef bint wide

    def __cinit__(self, column, Py_ssize_t rows):
        offsets, values, validity = column
        self.offsets = Held(offsets, PyBUF_ND | PyBUF_FORMAT)
        self.values = Held(values)
        self.validity = None if validity is None else Held(validity)
        self.wide = self.offsets.width == 8
        if self.offsets.width not in (4, 8) or self.offsets.size < (rows + 1) * self.offsets.width:
            raise BadParameter(f"The offsets of {rows} rows are one more, of 32 or 64 bits.")
        if self.validity is not None and self.validity.size < (rows + 7) // 8:
            raise BadParameter(f"A bitmap is shorter than {rows} rows.")

    cdef int look(self, Py_ssize_t row, const uint8_t **data, Py_ssize_t *size) noexcept nogil:
        """Where a piece lies; NULL: it is null. 1: it does not lie within the values."""
        cdef int64_t low, high
        data[0] = NULL
        size[0] = 0
        if self.validity is not None and not self.validity.data[row >> 3] >> (row & 7) & 1:
            return 0
        if self.wide:
            low = <int64_t>load64(self.offsets.data + 8 * row)
            high = <int64_t>load64(self.offsets.data + 8 * row + 8)
        else:
            low = <int32_t>load32(self.offsets.data + 4 * row)
            high = <int32_t>load32(self.offsets.data + 4 * row + 4)
        if low < 0 or high < low or high > self.values.size:
            return 1
        data[0] = self.values.data + low
        size[0] = high - low
        return 0


cdef Held fixed(data, Py_ssize_t width, Py_ssize_t rows):
    cdef Held held
    if data is None:
        return None
    held = Held(data)
    if held.size < rows * width:
        raise BadParameter(f"A column of {held.size} bytes is shorter than {rows} rows.")
    return held


cdef struct Message:  # what becomes an entry
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *key
    Py_ssize_t key_bytes
    const uint8_t *headers
    Py_ssize_t headers_bytes
    int flags
    int64_t priority
    int64_t ttl_ms
    int64_t delay_ms
    Py_ssize_t length


@cython.final
cdef class Source:
    """The columns of one call."""

    cdef Ragged body
    cdef Ragged key
    cdef Ragged headers
    cdef Held priority
    cdef Held ttl_ms
    cdef Held delay_ms

    cdef int look(self, Py_ssize_t row, Message *one) noexcept nogil:
        """One row, checked. The number of the fault."""
        one.key = one.headers = NULL
        one.key_bytes = one.headers_bytes = 0
        one.flags = 0
        if (self.body.look(row, &one.body, &one.body_bytes)
                or self.key is not None and self.key.look(row, &one.key, &one.key_bytes)
                or self.headers is not None and self.headers.look(row, &one.headers, &one.headers_bytes)):
            return 1
        one.priority = 4 if self.priority is None else <int32_t>load32(self.priority.data + 4 * row)
        one.ttl_ms = 0 if self.ttl_ms is None else <int64_t>load64(self.ttl_ms.data + 8 * row)
        one.delay_ms = 0 if self.delay_ms is None else <int64_t>load64(self.delay_ms.data + 8 * row)
        if one.body == NULL:
            return 2
        if one.key_bytes > KEY_MAX:
            return 3
        if one.key_bytes and not is_text(one.key, one.key_bytes):
            return 4
        if one.priority < 0 or one.priority > PRIORITY_HIGHEST:
            return 5
        if <uint64_t>one.ttl_ms > TIME_MAX or <uint64_t>one.delay_ms > TIME_MAX:
            return 6
        if one.headers_bytes > SECTION_BYTES_MAX:
            return 7
        if one.headers_bytes and check_headers(one.headers, one.headers_bytes, &one.flags):
            return 8
        one.length = ENTRY_HEAD + one.key_bytes + one.headers_bytes + one.body_bytes
        if one.key_bytes:
            one.flags |= F_KEY
        if one.ttl_ms or one.delay_ms:
            one.flags |= F_TIMED
            one.length += ENTRY_TIMES
        return 9 if one.length > ENTRY_MAX else 0


def entries_of(Py_ssize_t rows, *, body, key=None, priority=None, ttl_ms=None, delay_ms=None, headers=None,
               Py_ssize_t first=0, Py_ssize_t most_bytes, numbers=None):
    cdef Source source = Source()
    cdef Held names
    cdef Message one
    cdef Py_ssize_t row = first, size = 0, beyond
    cdef int fault = 0
    cdef uint8_t *out
    if not 0 <= first <= rows:
        raise BadParameter(f"There is no row {first} of {rows}.")
    source.body = Ragged(body, rows)
    source.key = None if key is None else Ragged(key, rows)
    source.headers = None if headers is None else Ragged(headers, rows)
    source.priority = fixed(priority, 4, rows)
    source.ttl_ms = fixed(ttl_ms, 8, rows)
    source.delay_ms = fixed(delay_ms, 8, rows)
    names = fixed(numbers, 8, rows)
    beyond = min(rows, first + COUNT_MAX)
    with nogil:
        while row < beyond:
            fault = source.look(row, &one)
            if fault or row > first and size + one.length > most_bytes:
                break
            size += one.length
            row += 1
    if fault:
        number = row if names is None else <int64_t>load64(names.data + 8 * row)
        raise BadParameter(f"Row {number}: {_plain.FAULTS[fault]}.")
    blob = PyByteArray_FromStringAndSize(NULL, size)
    out = <uint8_t *>PyByteArray_AS_STRING(blob)
    beyond = row
    with nogil:
        for row in range(first, beyond):
            source.look(row, &one)
            out = put_entry(out, &one)
    return blob, beyond - first


cdef uint8_t *put_entry(uint8_t *out, const Message *one) noexcept nogil:
    store32(out, <uint32_t>one.length)
    out[4] = <uint8_t>one.flags
    out[5] = <uint8_t>one.priority
    out[6] = one.key_bytes & 0xFF
    out[7] = (one.key_bytes >> 8) & 0xFF
    store32(out + 8, <uint32_t>one.headers_bytes)
    store32(out + 12, 0)
    out += ENTRY_HEAD
    if one.flags & F_TIMED:
        store64(out, one.ttl_ms)
        store64(out + 8, one.delay_ms)
        out += ENTRY_TIMES
    if one.key_bytes:
        memcpy(out, one.key, one.key_bytes)
        out += one.key_bytes
    if one.headers_bytes:
        memcpy(out, one.headers, one.headers_bytes)
        out += one.headers_bytes
    memcpy(out, one.body, one.body_bytes)
    return out + one.body_bytes
