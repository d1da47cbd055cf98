# Messages as a builder remembers them, and the buffers that are made straight of them.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fairlead.wire._column_text cimport hex_of
from fairlead.wire._entry_parts cimport ENTRY_HEAD, ENTRY_TIMES, F_KEY, F_LARGE, F_TIMED, load64, store32, store64

cdef enum:
    ORDER_NUMBER, MESSAGE_ID, KEY, BODY, HEADERS, PROPERTIES, HEADER_BYTES, PRIORITY
    PUBLISHED, ARRIVED, EXPIRES, DELIVERY_COUNT, STREAM_ID, STREAM_SEQUENCE, SIZE, COLUMNS

cdef enum:
    ID_DIGITS = 40


cdef struct Row:
    const uint8_t *entry
    uint64_t order
    uint32_t length
    uint32_t headers_bytes
    uint32_t record
    uint32_t deliveries
    uint32_t key_bytes
    uint8_t flags
    uint8_t priority


cdef struct Record:
    uint64_t base
    uint64_t sent_ms
    uint64_t arrival_ms
    const uint8_t *id_first


cdef inline const uint8_t *key_of(const Row *row) noexcept nogil:
    return row.entry + ENTRY_HEAD + (ENTRY_TIMES if row.flags & F_TIMED else 0)


cdef inline const uint8_t *headers_of(const Row *row) noexcept nogil:
    return key_of(row) + row.key_bytes


cdef inline const uint8_t *body_of(const Row *row) noexcept nogil:
    return headers_of(row) + row.headers_bytes


cdef inline Py_ssize_t body_bytes_of(const Row *row) noexcept nogil:
    return row.length - (body_of(row) - row.entry)


cdef inline uint64_t time_ms_last() noexcept nogil:
    return <uint64_t>253402300799999


cdef inline int64_t microseconds(uint64_t ms) noexcept nogil:
    return <int64_t>(min(ms, time_ms_last()) * 1000)


cdef inline void put_offsets(uint8_t *out, int column, const Row *rows, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint32_t sum = 0
    store32(out, 0)
    for at in range(count):
        if column == MESSAGE_ID:
            sum += ID_DIGITS
        elif column == KEY:
            sum += rows[at].key_bytes
        elif column == HEADER_BYTES:
            sum += rows[at].headers_bytes
        elif not rows[at].flags & F_LARGE:
            sum += <uint32_t>body_bytes_of(&rows[at])
        store32(out + 4 * at + 4, sum)


cdef inline void put_validity(uint8_t *out, int column, const Row *rows, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at
    cdef int flag = F_KEY if column == KEY else F_LARGE
    memset(out, 0, (count + 7) // 8)
    for at in range(count):
        if ((rows[at].flags & flag) != 0) == (column == KEY):
            out[at >> 3] |= 1 << (at & 7)


cdef inline void put_pieces(uint8_t *out, int column, const Row *rows, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at, size
    cdef const Row *row
    for at in range(count):
        row = &rows[at]
        if column == BODY:
            size = 0 if row.flags & F_LARGE else body_bytes_of(row)
            memcpy(out, body_of(row), size)
        elif column == KEY:
            size = row.key_bytes
            memcpy(out, key_of(row), size)
        else:
            size = row.headers_bytes
            memcpy(out, headers_of(row), size)
        out += size


cdef inline void put_ids(uint8_t *out, const Row *rows, Py_ssize_t count, const Record *records) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint64_t low
    cdef uint8_t tail[8]
    cdef const Record *record
    cdef int place
    for at in range(count):
        record = &records[rows[at].record]
        hex_of(out, record.id_first, 12)
        low = 0
        for place in range(12, 20):
            low = low << 8 | record.id_first[place]
        low += rows[at].order - record.base
        for place in range(8):
            tail[place] = (low >> (56 - 8 * place)) & 0xFF
        hex_of(out + 24, tail, 8)
        out += ID_DIGITS


cdef inline void put_numbers(uint8_t *out, int column, const Row *rows, Py_ssize_t count, const Record *records) noexcept nogil:
    cdef Py_ssize_t at
    cdef const Row *row
    for at in range(count):
        row = &rows[at]
        if column == PRIORITY:
            store32(out + 4 * at, row.priority)
        elif column == DELIVERY_COUNT:
            store32(out + 4 * at, row.deliveries)
        elif column == ORDER_NUMBER:
            store64(out + 8 * at, row.order)
        elif column == PUBLISHED:
            store64(out + 8 * at, microseconds(records[row.record].sent_ms))
        elif column == ARRIVED:
            store64(out + 8 * at, microseconds(records[row.record].arrival_ms))
        elif row.flags & F_LARGE:
            store64(out + 8 * at, min(load64(body_of(row) + 8), <uint64_t>0x7FFFFFFFFFFFFFFF))
        else:
            store64(out + 8 * at, body_bytes_of(row))
