# Columns that come of headers, while they are made: maps, and values that not every message has.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from fairlead.wire._column_text cimport FAULT_MEMORY, Growing, hash_of, put32, put64, put_bit, put_text, put_value, reserve
from fairlead.wire._entry_parts cimport is_named, load16, load32

cdef enum:
    NAME_SLOTS = 32768  # three times as many as a section can have names


cdef struct Names:  # which names the map of one row has already: of two headers with one name the first counts
    uint32_t *pairs
    uint32_t *rounds  # a slot counts only in the round it was filled in
    uint32_t now


cdef struct Map:
    Growing offsets
    Growing key_offsets
    Growing keys
    Growing value_offsets
    Growing values
    Py_ssize_t pairs


cdef struct Sparse:  # of each row a value or none
    Growing validity
    Growing offsets
    Growing values
    Py_ssize_t nulls


cdef inline int open_names(Names *names) noexcept nogil:
    names.pairs = <uint32_t *>calloc(NAME_SLOTS, 4)
    names.rounds = <uint32_t *>calloc(NAME_SLOTS, 4)
    names.now = 0
    return FAULT_MEMORY if names.pairs == NULL or names.rounds == NULL else 0


cdef inline void free_names(Names *names) noexcept nogil:
    free(names.pairs)
    free(names.rounds)


cdef inline bint is_new(Names *names, const Growing *offsets, const Growing *values, Py_ssize_t pair) noexcept nogil:
    """Is the name put last, which is to be this pair's, not one of this round?"""
    cdef Py_ssize_t low = load32(offsets.data + 4 * pair), other_low, other_high
    cdef const uint8_t *name = values.data + low
    cdef Py_ssize_t size = values.used - low
    cdef uint32_t slot = hash_of(name, size) & (NAME_SLOTS - 1)
    while names.rounds[slot] == names.now:
        other_low = load32(offsets.data + 4 * names.pairs[slot])
        other_high = load32(offsets.data + 4 * names.pairs[slot] + 4)
        if other_high - other_low == size and memcmp(values.data + other_low, name, size) == 0:
            return False
        slot = (slot + 1) & (NAME_SLOTS - 1)
    names.rounds[slot] = names.now
    names.pairs[slot] = <uint32_t>pair
    return True


cdef inline int open_map(Map *column, Py_ssize_t rows) noexcept nogil:
    return (reserve(&column.offsets, 4 * (rows + 1)) or put32(&column.offsets, 0)
            or put32(&column.key_offsets, 0) or put32(&column.value_offsets, 0))


cdef inline void free_map(Map *column) noexcept nogil:
    free(column.offsets.data)
    free(column.key_offsets.data)
    free(column.keys.data)
    free(column.value_offsets.data)
    free(column.values.data)


cdef inline int add_headers(Map *column, const uint8_t *p, Py_ssize_t size, bint own, Names *names) noexcept nogil:
    """One row: Fairlead's headers, or the application's, of a checked section."""
    cdef Py_ssize_t at = 0, name_bytes, value_at, value_bytes
    cdef int fault
    if size:
        names.now += 1
        if names.now == 0:
            memset(names.rounds, 0, NAME_SLOTS * 4)
            names.now = 1
    while at < size:
        name_bytes = p[at]
        value_at = at + name_bytes + 3
        value_bytes = load16(p + value_at - 2)
        if (p[at + 1] == c":") == own:
            fault = put_text(&column.keys, p + at + 1 + own, name_bytes - own)
            if fault:
                return fault
            if is_new(names, &column.key_offsets, &column.keys, column.pairs):
                fault = (put32(&column.key_offsets, column.keys.used)
                         or put_value(&column.values, p + value_at, value_bytes)
                         or put32(&column.value_offsets, column.values.used))
                if fault:
                    return fault
                column.pairs += 1
            else:
                column.keys.used = load32(column.key_offsets.data + 4 * column.pairs)
        at = value_at + value_bytes
    return put32(&column.offsets, column.pairs)


cdef inline void free_sparse(Sparse *column) noexcept nogil:
    free(column.validity.data)
    free(column.offsets.data)
    free(column.values.data)


cdef inline int add_text(Sparse *column, Py_ssize_t row, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """NULL: this row has none."""
    cdef int fault = 0
    if p == NULL:
        column.nulls += 1
    else:
        fault = put_text(&column.values, p, size)
    return fault or put_bit(&column.validity, row, p != NULL) or put32(&column.offsets, column.values.used)


cdef inline int add_number(Sparse *column, Py_ssize_t row, bint known, int64_t value) noexcept nogil:
    if not known:
        column.nulls += 1
    return put_bit(&column.validity, row, known) or put64(&column.values, <uint64_t>value if known else 0)


cdef inline const uint8_t *header_of(
        const uint8_t *p, Py_ssize_t size, const char *name, Py_ssize_t name_bytes, Py_ssize_t *value_bytes) noexcept nogil:
    """The value of the first header of this name in a checked section, or NULL."""
    cdef Py_ssize_t at = 0, value_at
    while at < size:
        value_at = at + p[at] + 3
        value_bytes[0] = load16(p + value_at - 2)
        if is_named(p + at + 1, p[at], name, name_bytes):
            return p + value_at
        at = value_at + value_bytes[0]
    return NULL
