# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of `rows.encode`: Arrow's buffers to rows in one pass, whatever the batch is."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef enum:
    FIXED = 0
    BOOL = 1
    VARIABLE = 2

cdef struct Column:
    int kind
    Py_ssize_t width
    Py_ssize_t offset
    const uint8_t* validity
    const uint8_t* values
    const int32_t* ends
    const uint8_t* data


cdef inline bint is_null(const Column* column, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t at = column.offset + row
    return column.validity != NULL and not (column.validity[at >> 3] >> (at & 7)) & 1


cdef const uint8_t* pointer(object buffer, Py_ssize_t wanted) except? NULL:
    """To a buffer that has so many bytes at least; whoever calls keeps it alive."""
    cdef Py_buffer view
    cdef const uint8_t* found
    if buffer is None:
        if wanted:
            raise ValueError("a buffer is missing")
        return NULL
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    found = <const uint8_t*>view.buf if view.len >= wanted else NULL
    PyBuffer_Release(&view)
    if found == NULL and wanted:
        raise ValueError("a buffer is too short")
    return found


def encode(Py_ssize_t count, list columns not None, Py_ssize_t size_max):
    """Of each column: kind, width, offset, and its buffers. The bodies, one behind the other, and their ends (uint64)."""
    cdef Py_ssize_t n = len(columns)
    cdef Column* each = <Column*>malloc(max(n, 1) * sizeof(Column))
    if each == NULL:
        raise MemoryError
    try:
        return _encode(count, columns, n, each, size_max)
    finally:
        free(each)


cdef tuple _encode(Py_ssize_t count, list columns, Py_ssize_t n, Column* each, Py_ssize_t size_max):
    cdef Py_ssize_t i, row, fixed = (n + 7) // 8, total, length, first, at, tail
    cdef Column* column
    cdef char* out
    cdef uint64_t* ends
    for i in range(n):
        kind, width, offset, buffers = columns[i]
        column = &each[i]
        column.kind, column.width, column.offset = kind, width, offset
        column.values = column.data = NULL
        column.ends = NULL
        if column.width < 0 or column.offset < 0:
            raise ValueError("widths and offsets are not negative")
        column.validity = pointer(buffers[0], (column.offset + count + 7) // 8) if buffers[0] is not None else NULL
        if column.kind == VARIABLE:
            column.ends = <const int32_t*>pointer(buffers[1], 4 * (column.offset + count + 1))
            length = column.ends[column.offset + count]
            column.data = pointer(buffers[2], length)
            for row in range(count):
                if column.ends[column.offset + row] < 0 or column.ends[column.offset + row + 1] < column.ends[column.offset + row]:
                    raise ValueError("offsets that do not rise")
        elif column.kind == BOOL:
            column.values = pointer(buffers[1], (column.offset + count + 7) // 8)
        else:
            column.values = pointer(buffers[1], column.width * (column.offset + count))
        fixed += column.width
    total = fixed * count
    for i in range(n):
        column = &each[i]
        if column.kind == VARIABLE:
            for row in range(count):
                if not is_null(column, row):
                    total += column.ends[column.offset + row + 1] - column.ends[column.offset + row]
    if total > size_max:
        return total, None, None
    cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
    cdef bytes made_ends = PyBytes_FromStringAndSize(NULL, 8 * count)
    out = PyBytes_AS_STRING(made)
    ends = <uint64_t*>PyBytes_AS_STRING(made_ends)
    first = 0
    for row in range(count):
        memset(out + first, 0, (n + 7) // 8)
        at = first + (n + 7) // 8
        tail = first + fixed
        for i in range(n):
            column = &each[i]
            if is_null(column, row):
                out[first + (i >> 3)] |= <char>(1 << (i & 7))
                memset(out + at, 0, column.width)
            elif column.kind == VARIABLE:
                length = column.ends[column.offset + row + 1] - column.ends[column.offset + row]
                out[at] = <char>(length & 0xFF)
                out[at + 1] = <char>((length >> 8) & 0xFF)
                out[at + 2] = <char>((length >> 16) & 0xFF)
                out[at + 3] = <char>((length >> 24) & 0xFF)
                memcpy(out + tail, column.data + column.ends[column.offset + row], length)
                tail += length
            elif column.kind == BOOL:
                out[at] = <char>((column.values[(column.offset + row) >> 3] >> ((column.offset + row) & 7)) & 1)
            else:
                memcpy(out + at, column.values + column.width * (column.offset + row), column.width)
            at += column.width
        first = tail
        ends[row] = <uint64_t>first
    return total, made, made_ends
