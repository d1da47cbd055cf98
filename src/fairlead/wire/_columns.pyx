# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records to columns and columns to entries: the compiled twin of `columns.py`, which says what everything here means.

`add_span` surveys: it keeps forty bytes a message and the span it lies in. `finish` then knows the size of the batch and
copies every body once, to where it stays. Both work without the interpreter's lock.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from fairlead.wire._column_maps cimport (
    Map, Names, Sparse, add_headers, add_number, add_text, free_map, free_names, free_sparse, header_of, open_map, open_names,
)
from fairlead.wire._column_rows cimport (
    ARRIVED, BODY, COLUMNS, DELIVERY_COUNT, EXPIRES, HEADER_BYTES, HEADERS, ID_DIGITS, KEY, MESSAGE_ID, ORDER_NUMBER,
    PRIORITY, PROPERTIES, PUBLISHED, SIZE, STREAM_ID, STREAM_SEQUENCE, Record, Row, body_bytes_of, body_of, headers_of,
    key_of, microseconds, put_ids, put_numbers, put_offsets, put_pieces, put_validity, time_ms_last,
)
from fairlead.wire._column_text cimport FAULT_MEMORY, Growing, hash_of, put32
from fairlead.wire._entry_parts cimport (
    ENTRY_HEAD, ENTRY_TIMES, F_CRON, F_LARGE, F_TIMED, PRIORITY_HIGHEST, SECTION_BYTES_MAX, check_entry, check_headers,
    is_ascii, is_text, load16, load32, load64, store32, store64,
)

from fairlead.errors import BadEntries, BadParameter
from fairlead.wire import column_batch as _batch
from fairlead.wire import columns as _plain
from fairlead.wire import durable, entries, kinds

__all__ = ["ColumnBuilder", "Columns", "parse"]

cdef enum:
    VALIDITY, OFFSETS, VALUES, KEY_OFFSETS, KEY_VALUES, VALUE_OFFSETS, VALUE_VALUES

cdef enum:
    BATCH_BYTES = 64
    BUFFER_BYTES = 16
    ALIGN = 64
    PIECES_MAX = 96
    RECORD_BYTES = 104
    RECORD_SENT = 64
    RECORD_ID = 80
    RECORD_LENGTH = 100
    TABLE_BYTES = 40
    PAIR_BYTES = 16

    FAULT_PLACE = 20
    FAULT_RECORD = 21
    FAULT_FEWER = 22

cdef uint64_t TIME_MAX = 1 << 53
cdef uint64_t FOREVER = 0x7FFFFFFFFFFFFFFF
cdef unsigned int SECTIONS = _plain.SECTIONS

assert tuple(range(COLUMNS)) == tuple(getattr(_batch, name.upper()) for name in _batch.NAMES)
assert (BATCH_BYTES, BUFFER_BYTES, ALIGN) == (_batch.BATCH.size, _batch.BUFFER.size, _batch.ALIGN)
assert (RECORD_BYTES, RECORD_ID) == (_batch.RECORD_HEAD.size, _batch.RECORD_ID_AT)
assert (time_ms_last(), FOREVER, ID_DIGITS) == (_batch.TIME_MS_LAST, _batch.FOREVER, _batch.ID_DIGITS)
assert (ENTRY_HEAD, ENTRY_TIMES, PRIORITY_HIGHEST) == (durable.ENTRY.size, durable.TIMES.size, durable.PRIORITY_MAX)
assert (TIME_MAX, SECTION_BYTES_MAX) == (entries.TIME_MS_MAX, kinds.HEADER_BYTES_MAX)
assert TABLE_BYTES == _plain.TABLE_COLUMNS * 8

Columns = _batch.Columns

cdef dict _FAULTS = {
    1: "An entry is longer than the bytes there are, or shorter than its head.",
    2: "An entry has flags or a priority that do not exist.",
    3: "An entry has a key and does not say so, or the other way round.",
    4: "An entry is shorter than its key and headers, or these are too long.",
    5: "A large message is not named as one.",
    6: "A time to live or a delay is longer than anybody can wait.",
    7: "A key is not UTF-8.",
    8: "A header section ends inside a name, or has an empty one.",
    9: "A header section ends inside a value.",
    10: "A header has no known type, or not the length of its type.",
    FAULT_PLACE: "A record does not lie within the bytes that were read.",
    FAULT_RECORD: "A record is shorter than its messages.",
    FAULT_FEWER: "A record has fewer messages than it says.",
}


cdef struct Piece:  # one buffer of the batch
    int column
    int part
    Py_ssize_t length
    Py_ssize_t at
    const uint8_t *source  # NULL: it is made in place


cdef struct Made:  # the columns that come of headers
    Map headers
    Map properties
    Sparse expires
    Sparse stream
    Sparse sequence


cdef class Held:
    """A buffer that is held while it is read."""

    def __cinit__(self, data, int flags=0):
        PyObject_GetBuffer(data, &self.buffer, flags)
        self.held = True
        self.data = <const uint8_t *>self.buffer.buf
        self.size = self.buffer.len
        self.width = self.buffer.itemsize

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


@cython.final
cdef class Wanted:
    """A set of keys that can be asked without the interpreter."""

    cdef tuple keys
    cdef const uint8_t **slots
    cdef Py_ssize_t *sizes
    cdef uint64_t mask
    cdef bint nothing  # the empty key, which means none, is one of them

    def __cinit__(self, keys):
        cdef uint64_t room = 16, slot
        cdef bytes key
        self.keys = tuple({bytes(key) for key in keys})
        while room < 2 * len(self.keys):
            room *= 2
        self.slots = <const uint8_t **>calloc(room, sizeof(void *))
        self.sizes = <Py_ssize_t *>calloc(room, sizeof(Py_ssize_t))
        if self.slots == NULL or self.sizes == NULL:
            raise MemoryError
        self.mask = room - 1
        for key in self.keys:
            if not key:
                self.nothing = True
                continue
            slot = hash_of(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & self.mask
            while self.slots[slot] != NULL:
                slot = (slot + 1) & self.mask
            self.slots[slot] = <const uint8_t *>PyBytes_AS_STRING(key)
            self.sizes[slot] = PyBytes_GET_SIZE(key)

    def __dealloc__(self):
        free(self.slots)
        free(self.sizes)

    cdef bint has(self, const uint8_t *key, Py_ssize_t size) noexcept nogil:
        cdef uint64_t slot
        if size == 0:
            return self.nothing
        slot = hash_of(key, size) & self.mask
        while self.slots[slot] != NULL:
            if self.sizes[slot] == size and memcmp(self.slots[slot], key, size) == 0:
                return True
            slot = (slot + 1) & self.mask
        return False


cdef inline Py_ssize_t first_beyond(const uint8_t *pairs, Py_ssize_t count, Py_ssize_t column, uint64_t value) noexcept nogil:
    """The first of rising pairs whose number in this column is above the value."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if load64(pairs + PAIR_BYTES * middle + 8 * column) > value:
            high = middle
        else:
            low = middle + 1
    return low


cdef class ColumnBuilder:
    cdef unsigned int columns
    cdef int low
    cdef int high
    cdef uint64_t arrived_from, arrived_before, sent_from, sent_before
    cdef bint arrived_open, sent_open  # no end
    cdef uint64_t ttl_ms
    cdef Py_ssize_t most_rows, most_bytes, fixed, weight
    cdef Wanted wanted
    cdef Names names
    cdef list spans
    cdef Row *row
    cdef Py_ssize_t row_room
    cdef Record *record
    cdef Py_ssize_t record_count, record_room
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t bytes
    cdef readonly bint full

    def __init__(self, unsigned int columns, *, keys=None, priority=(0, 9), arrived_ms=(0, FOREVER), sent_ms=(0, FOREVER),
                 ttl_ms=0, most_rows=_batch.BATCH_ROWS_MAX, most_bytes=_batch.BATCH_BYTES_MAX):
        _batch.check_asked(columns, priority, arrived_ms, sent_ms, ttl_ms, most_rows, most_bytes)
        self.columns = columns
        self.low, self.high = priority
        self.arrived_from, self.arrived_before = arrived_ms
        self.sent_from, self.sent_before = sent_ms
        self.arrived_open = self.arrived_before == FOREVER
        self.sent_open = self.sent_before == FOREVER
        self.ttl_ms = ttl_ms
        self.most_rows = most_rows
        self.most_bytes = most_bytes
        self.fixed, self.weight = _batch.cost_of(columns)
        self.wanted = None if keys is None else Wanted(keys)
        if columns & (1 << HEADERS | 1 << PROPERTIES) and self.names.pairs == NULL and open_names(&self.names):
            raise MemoryError
        self.spans = []
        self.rows = self.bytes = self.record_count = 0
        self.full = False

    def __dealloc__(self):
        free(self.row)
        free(self.record)
        free_names(&self.names)

    def add_span(self, span, table, ranges, counts=b"", *, uint64_t origin=0, Py_ssize_t row=0, uint64_t order=0):
        cdef Held held = Held(span), rows = Held(table), pairs = Held(ranges), times = Held(counts)
        cdef Py_ssize_t total = rows.size // TABLE_BYTES, taken = self.rows
        cdef uint64_t reached = 0
        cdef int fault = 0
        if row < 0:
            raise BadParameter("There is no row before the first one.")
        if rows.size % TABLE_BYTES or pairs.size % PAIR_BYTES or times.size % PAIR_BYTES:
            raise BadParameter("A table is rows of five numbers, ranges and counts are pairs of numbers.")
        with nogil:
            while row < total and not fault:
                fault = self.add(held, rows.data + TABLE_BYTES * row, pairs, times, origin, order, &reached)
                if self.full:
                    break
                row += 1
                order = 0
        if self.rows > taken:
            self.spans.append(held)
        if fault == FAULT_MEMORY:
            raise MemoryError
        if fault:
            raise BadEntries(_FAULTS[fault])
        return row, reached

    cdef int add(self, Held span, const uint8_t *facts, Held ranges, Held counts, uint64_t origin, uint64_t least,
                 uint64_t *reached) noexcept nogil:
        """One record. The number of the fault, or 0; if it gets full, `reached` is the first it had no room for."""
        cdef uint64_t base = load64(facts), place = load64(facts + 8), arrival_ms = load64(facts + 24)
        cdef uint64_t size = load32(facts + 16), beyond = load32(facts + 20), sent_ms, order, low, high
        cdef const uint8_t *head
        cdef const uint8_t *p
        cdef const uint8_t *end
        cdef Py_ssize_t at, times_at
        cdef bint known = False
        cdef int fault
        if (place < origin or size < RECORD_BYTES or place - origin > <uint64_t>span.size
                or size > <uint64_t>span.size - (place - origin) or base > FOREVER - beyond):
            return FAULT_PLACE
        head = span.data + (place - origin)
        end = head + size
        if load32(head + RECORD_LENGTH) > size - RECORD_BYTES:
            return FAULT_RECORD
        sent_ms = load64(head + RECORD_SENT)
        if (arrival_ms < self.arrived_from or not (self.arrived_open or arrival_ms < self.arrived_before)
                or sent_ms < self.sent_from or not (self.sent_open or sent_ms < self.sent_before)):
            return 0
        beyond += base
        p = end - load32(head + RECORD_LENGTH)
        order = base
        low = max(base, least)
        at = first_beyond(ranges.data, ranges.size // PAIR_BYTES, 1, low)
        times_at = first_beyond(counts.data, counts.size // PAIR_BYTES, 0, low)
        if times_at > 0 and load64(counts.data + PAIR_BYTES * (times_at - 1)) == low:
            times_at -= 1
        while at < ranges.size // PAIR_BYTES and load64(ranges.data + PAIR_BYTES * at) < beyond:
            low = max(low, load64(ranges.data + PAIR_BYTES * at))
            high = min(beyond, load64(ranges.data + PAIR_BYTES * at + 8))
            at += 1
            if low >= high:
                continue
            while order < low:
                if end - p < ENTRY_HEAD or load32(p) < ENTRY_HEAD or load32(p) > end - p:
                    return 1
                p += load32(p)
                order += 1
            while order < high:
                if p == end:
                    return FAULT_FEWER
                fault = check_entry(p, end - p)
                if fault:
                    return fault
                while times_at < counts.size // PAIR_BYTES and load64(counts.data + PAIR_BYTES * times_at) < order:
                    times_at += 1
                fault = self.take(
                    p, order, load64(counts.data + PAIR_BYTES * times_at + 8)
                    if times_at < counts.size // PAIR_BYTES and load64(counts.data + PAIR_BYTES * times_at) == order
                    else 0, &known, base, sent_ms, arrival_ms, head + RECORD_ID)
                if fault:
                    return fault
                if self.full:
                    reached[0] = order
                    return 0
                p += load32(p)
                order += 1
        return 0

    cdef int take(self, const uint8_t *p, uint64_t order, uint64_t deliveries, bint *known, uint64_t base, uint64_t sent_ms,
                  uint64_t arrival_ms, const uint8_t *id_first) noexcept nogil:
        """One message. `known`: its record was noted before."""
        cdef Row row
        cdef Record *record
        cdef Py_ssize_t cost
        cdef int fault, promised
        row.entry = p
        row.order = order
        row.length = load32(p)
        row.flags = p[4]
        row.priority = p[5]
        row.key_bytes = load16(p + 6)
        row.headers_bytes = load32(p + 8)
        if row.headers_bytes and self.columns & SECTIONS:
            fault = check_headers(headers_of(&row), row.headers_bytes, &promised)
            if fault:
                return fault
        if (row.flags & F_CRON or row.priority < self.low or row.priority > self.high
                or self.wanted is not None and not self.wanted.has(key_of(&row), row.key_bytes)):
            return 0
        cost = self.fixed + self.weight * <Py_ssize_t>row.headers_bytes
        if self.columns >> KEY & 1:
            cost += row.key_bytes
        if self.columns >> BODY & 1 and not row.flags & F_LARGE:
            cost += body_bytes_of(&row)
        if self.rows and (self.rows >= self.most_rows or self.bytes + cost > self.most_bytes):
            self.full = True
            return 0
        if not known[0]:
            if self.record_count == self.record_room:
                fault = grow(<void **>&self.record, &self.record_room, sizeof(Record))
                if fault:
                    return fault
            record = &self.record[self.record_count]
            record.base = base
            record.sent_ms = sent_ms
            record.arrival_ms = arrival_ms
            record.id_first = id_first
            self.record_count += 1
            known[0] = True
        if self.rows == self.row_room:
            fault = grow(<void **>&self.row, &self.row_room, sizeof(Row))
            if fault:
                return fault
        row.record = <uint32_t>(self.record_count - 1)
        row.deliveries = <uint32_t>(deliveries if deliveries < 0x7FFFFFFF else 0x7FFFFFFF)
        self.row[self.rows] = row
        self.rows += 1
        self.bytes += cost
        return 0

    def finish(self, uint64_t next_position, bint end):
        cdef Piece pieces[PIECES_MAX]
        cdef Made made
        cdef int count = 0, fault
        cdef Py_ssize_t size
        cdef uint8_t *out
        memset(&made, 0, sizeof(Made))
        try:
            with nogil:
                fault = self.gather(&made)
                if fault == 0:
                    count = self.plan(pieces, &made)
            if fault:
                raise MemoryError
            size = pieces[count - 1].at + aligned(pieces[count - 1].length) if count else BATCH_BYTES
            blob = PyByteArray_FromStringAndSize(NULL, size)
            out = <uint8_t *>PyByteArray_AS_STRING(blob)
            with nogil:
                self.fill(out, size, pieces, count, next_position, end)
        finally:
            free_map(&made.headers)
            free_map(&made.properties)
            free_sparse(&made.expires)
            free_sparse(&made.stream)
            free_sparse(&made.sequence)
        self.spans = []
        self.rows = self.bytes = self.record_count = 0
        self.full = False
        return blob

    cdef int gather(self, Made *made) noexcept nogil:
        """The columns that come of headers."""
        cdef Py_ssize_t at, size = 0
        cdef const Row *row
        cdef const uint8_t *section
        cdef const uint8_t *value
        cdef unsigned int columns = self.columns
        cdef int fault = 0
        if not columns & SECTIONS & ~(1 << HEADER_BYTES):
            return 0
        if columns >> HEADERS & 1:
            fault = open_map(&made.headers, self.rows)
        if columns >> PROPERTIES & 1 and not fault:
            fault = open_map(&made.properties, self.rows)
        if columns >> STREAM_ID & 1 and not fault:
            fault = put32(&made.stream.offsets, 0)
        for at in range(self.rows):
            if fault:
                break
            row = &self.row[at]
            section = headers_of(row)
            if columns >> HEADERS & 1:
                fault = add_headers(&made.headers, section, row.headers_bytes, True, &self.names)
            if columns >> PROPERTIES & 1 and not fault:
                fault = add_headers(&made.properties, section, row.headers_bytes, False, &self.names)
            if columns >> EXPIRES & 1 and not fault:
                fault = self.add_expiry(&made.expires, at, row)
            if columns >> STREAM_ID & 1 and not fault:
                value = header_of(section, row.headers_bytes, b":stream", 7, &size)
                if value == NULL or value[0] != c"s":
                    fault = add_text(&made.stream, at, NULL, 0)
                else:
                    fault = add_text(&made.stream, at, value + 1, size - 1)
            if columns >> STREAM_SEQUENCE & 1 and not fault:
                value = header_of(section, row.headers_bytes, b":sequence", 9, &size)
                if value == NULL or value[0] != c"i":
                    fault = add_number(&made.sequence, at, False, 0)
                else:
                    fault = add_number(&made.sequence, at, True, <int64_t>load64(value + 1))
        return fault

    cdef int add_expiry(self, Sparse *expires, Py_ssize_t at, const Row *row) noexcept nogil:
        cdef uint64_t ttl_ms = 0, due_ms = min(self.record[row.record].arrival_ms, time_ms_last())
        cdef int64_t asked
        cdef Py_ssize_t size = 0
        cdef const uint8_t *value
        if row.flags & F_TIMED:
            ttl_ms = load64(row.entry + ENTRY_HEAD)
            due_ms += load64(row.entry + ENTRY_HEAD + 8)
            value = header_of(headers_of(row), row.headers_bytes, b":due", 4, &size)
            if value != NULL and (value[0] == c"i" or value[0] == c"b"):
                asked = <int64_t>load64(value + 1) if value[0] == c"i" else value[1] != 0
                if asked > 0:
                    due_ms = max(due_ms, min(<uint64_t>asked, TIME_MAX))
        if ttl_ms == 0:
            ttl_ms = self.ttl_ms
        return add_number(expires, at, ttl_ms != 0, microseconds(due_ms + min(ttl_ms, time_ms_last())))

    cdef int plan(self, Piece *pieces, const Made *made) noexcept nogil:
        """What buffers there will be, how long, and where; how many."""
        cdef Py_ssize_t at, keys = 0, key_bytes = 0, large = 0, body_bytes = 0, header_bytes = 0, rows = self.rows
        cdef Py_ssize_t bitmap = (rows + 7) // 8, offsets = 4 * (rows + 1)
        cdef const Row *row
        cdef int column, count = 0
        for at in range(rows):
            row = &self.row[at]
            keys += row.key_bytes != 0
            key_bytes += row.key_bytes
            header_bytes += row.headers_bytes
            if row.flags & F_LARGE:
                large += 1
            else:
                body_bytes += body_bytes_of(row)
        for column in range(COLUMNS):
            if not self.columns >> column & 1:
                continue
            if column == MESSAGE_ID:
                count = piece(pieces, count, column, OFFSETS, offsets, NULL)
                count = piece(pieces, count, column, VALUES, rows * ID_DIGITS, NULL)
            elif column == KEY:
                if keys < rows:
                    count = piece(pieces, count, column, VALIDITY, bitmap, NULL)
                count = piece(pieces, count, column, OFFSETS, offsets, NULL)
                count = piece(pieces, count, column, VALUES, key_bytes, NULL)
            elif column == BODY:
                if large:
                    count = piece(pieces, count, column, VALIDITY, bitmap, NULL)
                count = piece(pieces, count, column, OFFSETS, offsets, NULL)
                count = piece(pieces, count, column, VALUES, body_bytes, NULL)
            elif column == HEADERS:
                count = map_pieces(pieces, count, column, &made.headers)
            elif column == PROPERTIES:
                count = map_pieces(pieces, count, column, &made.properties)
            elif column == HEADER_BYTES:
                count = piece(pieces, count, column, OFFSETS, offsets, NULL)
                count = piece(pieces, count, column, VALUES, header_bytes, NULL)
            elif column == EXPIRES:
                count = sparse_pieces(pieces, count, column, &made.expires)
            elif column == STREAM_ID:
                count = sparse_pieces(pieces, count, column, &made.stream)
            elif column == STREAM_SEQUENCE:
                count = sparse_pieces(pieces, count, column, &made.sequence)
            else:
                count = piece(pieces, count, column, VALUES,
                              rows * (4 if column == PRIORITY or column == DELIVERY_COUNT else 8), NULL)
        at = aligned(BATCH_BYTES + BUFFER_BYTES * count)
        for column in range(count):
            pieces[column].at = at
            at += aligned(pieces[column].length)
        return count

    cdef void fill(self, uint8_t *out, Py_ssize_t size, const Piece *pieces, int count, uint64_t next_position,
                   bint end) noexcept nogil:
        cdef Py_ssize_t at = BATCH_BYTES
        cdef int number
        cdef const Piece *one
        memset(out, 0, BATCH_BYTES)
        memcpy(out, <const char *>b"FLCB", 4)
        out[4] = 1
        out[6] = end
        store32(out + 8, <uint32_t>self.rows)
        store32(out + 12, count)
        store64(out + 16, next_position)
        store64(out + 24, size)
        for number in range(count):
            one = &pieces[number]
            out[at] = one.column
            out[at + 1] = one.part
            out[at + 2] = out[at + 3] = 0
            store32(out + at + 4, <uint32_t>one.length)
            store64(out + at + 8, one.at)
            at += BUFFER_BYTES
        memset(out + at, 0, aligned(at) - at)
        for number in range(count):
            one = &pieces[number]
            if one.source != NULL:
                memcpy(out + one.at, one.source, one.length)
            elif one.part == OFFSETS:
                put_offsets(out + one.at, one.column, self.row, self.rows)
            elif one.part == VALIDITY:
                put_validity(out + one.at, one.column, self.row, self.rows)
            elif one.column == MESSAGE_ID:
                put_ids(out + one.at, self.row, self.rows, self.record)
            elif one.column == KEY or one.column == BODY or one.column == HEADER_BYTES:
                put_pieces(out + one.at, one.column, self.row, self.rows)
            else:
                put_numbers(out + one.at, one.column, self.row, self.rows, self.record)
            memset(out + one.at + one.length, 0, aligned(one.length) - one.length)


cdef int grow(void **data, Py_ssize_t *room, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t more = max(1024, room[0] * 2)
    cdef void *moved = realloc(data[0], more * size)
    if moved == NULL:
        return FAULT_MEMORY
    data[0] = moved
    room[0] = more
    return 0


cdef inline Py_ssize_t aligned(Py_ssize_t size) noexcept nogil:
    return (size + ALIGN - 1) & ~<Py_ssize_t>(ALIGN - 1)


cdef int piece(Piece *pieces, int count, int column, int part, Py_ssize_t length, const uint8_t *source) noexcept nogil:
    pieces[count].column = column
    pieces[count].part = part
    pieces[count].length = length
    pieces[count].source = source
    return count + 1


cdef uint8_t *NOTHING = b""


cdef inline int grown(Piece *pieces, int count, int column, int part, const Growing *data) noexcept nogil:
    return piece(pieces, count, column, part, data.used, data.data if data.data != NULL else NOTHING)


cdef int map_pieces(Piece *pieces, int count, int column, const Map *data) noexcept nogil:
    count = grown(pieces, count, column, OFFSETS, &data.offsets)
    count = grown(pieces, count, column, KEY_OFFSETS, &data.key_offsets)
    count = grown(pieces, count, column, KEY_VALUES, &data.keys)
    count = grown(pieces, count, column, VALUE_OFFSETS, &data.value_offsets)
    return grown(pieces, count, column, VALUE_VALUES, &data.values)


cdef int sparse_pieces(Piece *pieces, int count, int column, const Sparse *data) noexcept nogil:
    if data.nulls:
        count = grown(pieces, count, column, VALIDITY, &data.validity)
    if column == STREAM_ID:
        count = grown(pieces, count, column, OFFSETS, &data.offsets)
    return grown(pieces, count, column, VALUES, &data.values)


def parse(blob):
    return _batch.parse_with(blob, rising, texts)


def rising(offsets, Py_ssize_t last):
    cdef Held held = Held(offsets)
    cdef Py_ssize_t at, count = held.size // 4
    cdef int64_t before = 0, now
    cdef bint sound
    with nogil:
        sound = load32(held.data) == 0
        for at in range(1, count):
            now = <int32_t>load32(held.data + 4 * at)
            if now < before:
                sound = False
                break
            before = now
    return bool(sound and before == last)


def texts(offsets, values):
    cdef Held places = Held(offsets), held = Held(values)
    cdef Py_ssize_t at
    cdef uint32_t low, high
    cdef bint sound = True
    with nogil:
        if not is_ascii(held.data, held.size):
            for at in range(places.size // 4 - 1):
                low = load32(places.data + 4 * at)
                high = load32(places.data + 4 * at + 4)
                if not is_text(held.data + low, high - low):
                    sound = False
                    break
    return bool(sound)
