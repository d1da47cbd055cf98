# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled twin of `itch_columns.read`: one pass to check, one to write, no object per message."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    HEAD = 17
    NOTICE_MAX = 96
    EMPTY = 1
    UNKNOWN = 2
    LENGTH = 3
    TIME = 4
    SYMBOL = 5
    SIDE = 6
    NUMBER = 7
    QUANTITY = 8
    EVENT = 9
    # where the numbers of a row go
    ORDER = 0
    AMOUNT = 1
    PRICE = 2
    MATCH = 3
    BID = 4
    BID_AMOUNT = 5
    ASK = 6
    ASK_AMOUNT = 7
    NUMBERS = 8

cdef uint64_t DAY_NS = 86400ULL * 1000000000ULL
cdef uint64_t NUMBER_MAX = (1ULL << 63) - 1
cdef uint32_t QUANTITY_MAX = 0x7FFFFFFF

cdef list NAMES = [b"add", b"cancel", b"delete", b"execute", b"quote", b"system", b"trade"]
cdef enum:
    ADD = 0
    CANCEL = 1
    DELETE = 2
    EXECUTE = 3
    QUOTE = 4
    SYSTEM = 5
    TRADE = 6


cdef inline uint64_t big8(const uint8_t* at) noexcept nogil:
    return (<uint64_t>big4(at) << 32) | big4(at + 4)


cdef inline uint32_t big4(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline bint bad_number(uint64_t value) noexcept nogil:
    return value == 0 or value > NUMBER_MAX


cdef inline bint bad_quantity(uint32_t value) noexcept nogil:
    return value == 0 or value > QUANTITY_MAX


cdef inline bint bad_side(uint8_t side) noexcept nogil:
    return side != 66 and side != 83


cdef inline int size_of(uint8_t kind) noexcept nogil:
    if kind == 83:  # S
        return 18
    if kind == 65:  # A
        return 34
    if kind == 69:  # E
        return 37
    if kind == 88:  # X
        return 29
    if kind == 68:  # D
        return 25
    if kind == 85:  # U
        return 42
    if kind == 80:  # P
        return 34
    if kind == 67:  # C
        return 49
    if kind == 81:  # Q
        return 33
    return 0


cdef int symbol_size(const uint8_t* at) noexcept nogil:
    """Its letters, -1 if it has others or a space between."""
    cdef int i, size = 8
    while size and at[size - 1] == 32:
        size -= 1
    for i in range(size):
        if at[i] <= 32 or at[i] > 126:
            return -1
    return size


cdef int fault_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """What is wrong with a message, in the order of its fields."""
    cdef uint8_t kind
    cdef const uint8_t* body = at + HEAD
    cdef int letters
    if size == 0:
        return EMPTY
    kind = at[0]
    if kind == 78:  # N
        return LENGTH if size > NOTICE_MAX else 0
    if size_of(kind) == 0:
        return UNKNOWN
    if size != size_of(kind):
        return LENGTH
    if big8(at + 1) >= DAY_NS:
        return TIME
    letters = symbol_size(at + 9)
    if letters < 0 or (letters == 0 and kind != 83):
        return SYMBOL
    if kind == 83:
        return 0 if body[0] == 79 or body[0] == 81 or body[0] == 77 or body[0] == 67 else EVENT
    if kind == 65:
        if bad_number(big8(body)):
            return NUMBER
        if bad_side(body[8]):
            return SIDE
        return QUANTITY if bad_quantity(big4(body + 9)) else 0
    if kind == 69:
        if bad_number(big8(body)):
            return NUMBER
        if bad_quantity(big4(body + 8)):
            return QUANTITY
        return NUMBER if bad_number(big8(body + 12)) else 0
    if kind == 88:
        if bad_number(big8(body)):
            return NUMBER
        return QUANTITY if bad_quantity(big4(body + 8)) else 0
    if kind == 68:
        return NUMBER if bad_number(big8(body)) else 0
    if kind == 85:
        if bad_number(big8(body)) or bad_number(big8(body + 8)):
            return NUMBER
        if bad_side(body[16]):
            return SIDE
        return QUANTITY if bad_quantity(big4(body + 17)) else 0
    if kind == 80:
        if bad_side(body[0]):
            return SIDE
        if bad_quantity(big4(body + 1)):
            return QUANTITY
        return NUMBER if bad_number(big8(body + 9)) else 0
    if kind == 67:
        if bad_number(big8(body)) or bad_number(big8(body + 8)):
            return NUMBER
        if bad_quantity(big4(body + 16)):
            return QUANTITY
        return NUMBER if bad_number(big8(body + 24)) else 0
    if big4(body + 4) > QUANTITY_MAX or big4(body + 12) > QUANTITY_MAX:
        return QUANTITY
    return 0


cdef class Table:
    """Arrow buffers while they are written, one row at a time."""

    cdef Py_ssize_t row, rows
    cdef int64_t* sequences
    cdef int64_t* times
    cdef uint8_t* kinds
    cdef uint8_t* sides
    cdef uint8_t* events
    cdef int32_t* symbol_ends
    cdef uint8_t* symbols
    cdef uint8_t* symbol_bits
    cdef Py_ssize_t symbol_bytes
    cdef int64_t* wide[NUMBERS]
    cdef int32_t* narrow[NUMBERS]
    cdef uint8_t* bits[NUMBERS]
    cdef Py_ssize_t known[NUMBERS]
    cdef Py_ssize_t named
    cdef list buffers
    cdef list bitmaps
    cdef bytearray sequence_data, time_data, kind_codes, side_codes, event_codes, ends_data, symbol_data, symbol_map

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t symbol_bytes):
        cdef int i
        cdef bytearray made
        self.rows = rows
        self.row = 0
        self.named = 0
        self.symbol_bytes = 0
        self.sequence_data = bytearray(8 * rows)
        self.time_data = bytearray(8 * rows)
        self.kind_codes = bytearray(rows)
        self.side_codes = bytearray(rows)
        self.event_codes = bytearray(rows)
        self.ends_data = bytearray(4 * (rows + 1))
        self.symbol_data = bytearray(symbol_bytes)
        self.symbol_map = bytearray((rows + 7) // 8)
        self.sequences = <int64_t*>PyByteArray_AS_STRING(self.sequence_data)
        self.times = <int64_t*>PyByteArray_AS_STRING(self.time_data)
        self.kinds = <uint8_t*>PyByteArray_AS_STRING(self.kind_codes)
        self.sides = <uint8_t*>PyByteArray_AS_STRING(self.side_codes)
        self.events = <uint8_t*>PyByteArray_AS_STRING(self.event_codes)
        self.symbol_ends = <int32_t*>PyByteArray_AS_STRING(self.ends_data)
        self.symbols = <uint8_t*>PyByteArray_AS_STRING(self.symbol_data)
        self.symbol_bits = <uint8_t*>PyByteArray_AS_STRING(self.symbol_map)
        self.buffers = []
        self.bitmaps = []
        for i in range(NUMBERS):
            is_narrow = i == AMOUNT or i == BID_AMOUNT or i == ASK_AMOUNT
            made = bytearray((4 if is_narrow else 8) * rows)
            self.wide[i] = <int64_t*>PyByteArray_AS_STRING(made)
            self.narrow[i] = <int32_t*>PyByteArray_AS_STRING(made)
            self.buffers.append(made)
            made = bytearray((rows + 7) // 8)
            self.bits[i] = <uint8_t*>PyByteArray_AS_STRING(made)
            self.bitmaps.append(made)
            self.known[i] = 0

    cdef inline void head(self, int64_t sequence, const uint8_t* at, uint8_t kind, uint8_t side, uint8_t event) noexcept:
        cdef int letters = symbol_size(at + 9)
        self.sequences[self.row] = sequence
        self.times[self.row] = <int64_t>big8(at + 1)
        self.kinds[self.row] = kind
        self.sides[self.row] = side
        self.events[self.row] = event
        if letters > 0:
            memcpy(self.symbols + self.symbol_bytes, at + 9, letters)
            self.symbol_bytes += letters
            self.symbol_bits[self.row >> 3] |= <uint8_t>(1 << (self.row & 7))
            self.named += 1
        self.symbol_ends[self.row + 1] = <int32_t>self.symbol_bytes

    cdef inline void put(self, int column, uint64_t value) noexcept:
        if column == AMOUNT or column == BID_AMOUNT or column == ASK_AMOUNT:
            self.narrow[column][self.row] = <int32_t>value
        else:
            self.wide[column][self.row] = <int64_t>value
        self.bits[column][self.row >> 3] |= <uint8_t>(1 << (self.row & 7))
        self.known[column] += 1

    cdef void write(self, int64_t sequence, const uint8_t* at) noexcept:
        """The records of one message that has no fault."""
        cdef const uint8_t* body = at + HEAD
        cdef uint8_t kind = at[0]
        cdef int part
        if kind == 83:
            self.head(sequence, at, SYSTEM, 0, body[0])
        elif kind == 65:
            self.head(sequence, at, ADD, body[8], 0)
            self.put(ORDER, big8(body))
            self.put(AMOUNT, big4(body + 9))
            self.put(PRICE, big4(body + 13))
        elif kind == 69:
            self.head(sequence, at, EXECUTE, 0, 0)
            self.put(ORDER, big8(body))
            self.put(AMOUNT, big4(body + 8))
            self.put(MATCH, big8(body + 12))
        elif kind == 88:
            self.head(sequence, at, CANCEL, 0, 0)
            self.put(ORDER, big8(body))
            self.put(AMOUNT, big4(body + 8))
        elif kind == 68:
            self.head(sequence, at, DELETE, 0, 0)
            self.put(ORDER, big8(body))
        elif kind == 80:
            self.head(sequence, at, TRADE, body[0], 0)
            self.put(AMOUNT, big4(body + 1))
            self.put(PRICE, big4(body + 5))
            self.put(MATCH, big8(body + 9))
        elif kind == 81:
            self.head(sequence, at, QUOTE, 0, 0)
            self.put(BID, big4(body))
            self.put(BID_AMOUNT, big4(body + 4))
            self.put(ASK, big4(body + 8))
            self.put(ASK_AMOUNT, big4(body + 12))
        elif kind == 85:
            self.head(sequence, at, DELETE, 0, 0)
            self.put(ORDER, big8(body))
            self.row += 1
            self.head(sequence, at, ADD, body[16], 0)
            self.put(ORDER, big8(body + 8))
            self.put(AMOUNT, big4(body + 17))
            self.put(PRICE, big4(body + 21))
        else:  # a cross
            for part in range(3):
                self.head(sequence, at, TRADE if part == 2 else EXECUTE, 0 if part == 2 else (66 if part == 0 else 83), 0)
                if part < 2:
                    self.put(ORDER, big8(body + 8 * part))
                self.put(AMOUNT, big4(body + 16))
                self.put(PRICE, big4(body + 20))
                self.put(MATCH, big8(body + 24))
                if part < 2:
                    self.row += 1
        self.row += 1

    cdef list columns(self):
        """Buffers as Arrow has them, for each column in the order of the schema."""
        cdef list found = [[None, self.sequence_data], [None, self.time_data], named(self.kind_codes, self.rows)]
        cdef int i
        found.append([None if self.named == self.rows else self.symbol_map, self.ends_data, self.symbol_data])
        found.append(lettered(self.side_codes, self.rows))
        for i in range(NUMBERS):
            found.append([None if self.known[i] == self.rows else self.bitmaps[i], self.buffers[i]])
        found.append(lettered(self.event_codes, self.rows))
        return found


cdef list named(bytearray codes, Py_ssize_t rows):
    """The names of the kinds as a column of strings."""
    cdef bytearray ends_data = bytearray(4 * (rows + 1))
    cdef int32_t* ends = <int32_t*>PyByteArray_AS_STRING(ends_data)
    cdef const uint8_t* each = <const uint8_t*>PyByteArray_AS_STRING(codes)
    cdef const char* texts[7]
    cdef int sizes[7]
    cdef Py_ssize_t i, at = 0
    for i in range(7):
        texts[i] = <const char*><bytes>NAMES[i]
        sizes[i] = <int>len(NAMES[i])
    for i in range(rows):
        at += sizes[each[i]]
        ends[i + 1] = <int32_t>at
    cdef bytearray data = bytearray(at)
    cdef char* out = PyByteArray_AS_STRING(data)
    for i in range(rows):
        memcpy(out + ends[i], texts[each[i]], sizes[each[i]])
    return [None, ends_data, data]


cdef list lettered(bytearray codes, Py_ssize_t rows):
    """A column of single letters, null where there is none."""
    cdef bytearray ends_data = bytearray(4 * (rows + 1))
    cdef bytearray bitmap = bytearray((rows + 7) // 8)
    cdef bytearray data = bytearray(rows)
    cdef int32_t* ends = <int32_t*>PyByteArray_AS_STRING(ends_data)
    cdef uint8_t* bits = <uint8_t*>PyByteArray_AS_STRING(bitmap)
    cdef char* out = PyByteArray_AS_STRING(data)
    cdef const uint8_t* each = <const uint8_t*>PyByteArray_AS_STRING(codes)
    cdef Py_ssize_t i, at = 0
    for i in range(rows):
        if each[i]:
            out[at] = <char>each[i]
            at += 1
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
        ends[i + 1] = <int32_t>at
    return [None if at == rows else bitmap, ends_data, data]


def read(const int32_t[::1] offsets not None, const uint8_t[::1] data not None, const int64_t[::1] sequences not None):
    """Faults (a byte for each message), how many rows there are, and the buffers of each column."""
    cdef Py_ssize_t count = sequences.shape[0]
    cdef Py_ssize_t i, rows = 0, symbol_bytes = 0, parts, size
    cdef int fault
    cdef bytearray faults_data = bytearray(count)
    cdef uint8_t* faults = <uint8_t*>PyByteArray_AS_STRING(faults_data)
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    cdef const uint8_t* at
    if offsets.shape[0] != count + 1:
        raise ValueError("an offset more than sequences")
    for i in range(count):
        if offsets[i] < 0 or offsets[i + 1] < offsets[i] or offsets[i + 1] > data.shape[0]:
            raise ValueError("offsets within the data")
        size = offsets[i + 1] - offsets[i]
        fault = fault_of(start + offsets[i], size)
        faults[i] = <uint8_t>fault
        if not fault and start[offsets[i]] != 78:
            parts = 2 if start[offsets[i]] == 85 else 3 if start[offsets[i]] == 67 else 1
            rows += parts
            symbol_bytes += 8 * parts
    cdef Table table = Table(rows, symbol_bytes)
    for i in range(count):
        if not faults[i]:
            at = start + offsets[i]
            if at[0] != 78:
                table.write(sequences[i], at)
    return bytes(faults_data), rows, table.columns()
