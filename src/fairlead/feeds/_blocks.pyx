# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Blocks of records: the compiled twin of `blocks.py`, which says what everything here means."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from array import array
from zlib import crc32

from fairlead.errors import LocalProtocolError
from fairlead.feeds import blocks
from fairlead.feeds.blocks import _bad
from fairlead.feeds.records import Place, Record

__all__ = ["Block", "StreamMessage", "pack", "pack_columns", "with_first"]

cdef enum:
    HEAD = 24
    RECORD = 32
    RECORDS_MAX = 65535
    BODY_MAX = 1048576
    BLOCK_MAX = 4194304
    MESSAGE = 1
    ADMIN = 2
    VOID = 3
    ADMIN_VOID = 4
    SOURCE_GAP = 5
    SNAPSHOT = 6

cdef int64_t SEQUENCE_MAX = 0x7FFFFFFFFFFFFFFF

assert (HEAD, RECORD, RECORDS_MAX) == (blocks.HEAD_BYTES, blocks.RECORD_BYTES, blocks.RECORDS_MAX)
assert (BODY_MAX, BLOCK_MAX, SEQUENCE_MAX) == (blocks.BODY_BYTES_MAX, blocks.BLOCK_BYTES_MAX, blocks.SEQUENCE_MAX)

cdef dict _KINDS = {MESSAGE: "", ADMIN: " admin", SNAPSHOT: " snapshot"}
cdef object _make_place = Place._make
cdef uint32_t _CRC[8][256]


cdef void _fill_tables() noexcept:
    cdef uint32_t value
    cdef int i, j
    for i in range(256):
        value = i
        for j in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else <uint32_t>0)
        _CRC[0][i] = value
    for i in range(256):
        for j in range(1, 8):
            _CRC[j][i] = (_CRC[j - 1][i] >> 8) ^ _CRC[0][_CRC[j - 1][i] & 0xFF]


_fill_tables()


cdef uint32_t crc_of(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """CRC-32 of a body, eight bytes at a step; most are too short for a call into zlib to pay."""
    cdef uint32_t crc = 0xFFFFFFFF
    cdef uint32_t low, high
    while size >= 8:
        low = crc ^ load32(p)
        high = load32(p + 4)
        crc = (
            _CRC[7][low & 0xFF] ^ _CRC[6][(low >> 8) & 0xFF] ^ _CRC[5][(low >> 16) & 0xFF] ^ _CRC[4][low >> 24]
            ^ _CRC[3][high & 0xFF] ^ _CRC[2][(high >> 8) & 0xFF] ^ _CRC[1][(high >> 16) & 0xFF] ^ _CRC[0][high >> 24]
        )
        p += 8
        size -= 8
    while size:
        crc = (crc >> 8) ^ _CRC[0][(crc ^ p[0]) & 0xFF]
        p += 1
        size -= 1
    return ~crc


cdef inline uint16_t load16(const uint8_t *p) noexcept nogil:
    return <uint16_t>p[0] | <uint16_t>p[1] << 8


cdef inline uint32_t load32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef inline uint64_t load64(const uint8_t *p) noexcept nogil:
    return <uint64_t>load32(p) | <uint64_t>load32(p + 4) << 32


cdef inline void store16(uint8_t *p, uint16_t value) noexcept nogil:
    p[0] = value & 0xFF
    p[1] = value >> 8


cdef inline void store32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = value & 0xFF
    p[1] = (value >> 8) & 0xFF
    p[2] = (value >> 16) & 0xFF
    p[3] = value >> 24


cdef inline void store64(uint8_t *p, uint64_t value) noexcept nogil:
    store32(p, <uint32_t>value)
    store32(p + 4, <uint32_t>(value >> 32))


cdef inline int64_t moved(uint64_t sequence, int64_t offset) noexcept nogil:
    if offset > 0 and <int64_t>sequence > SEQUENCE_MAX - offset:
        return SEQUENCE_MAX
    return <int64_t>sequence + offset


@cython.freelist(1024)
@cython.no_gc  # it holds bytes, str, an Admin and a schema: no cycles, and nothing for the collector to walk
cdef class StreamMessage:
    cdef readonly object number
    cdef readonly int kind
    cdef readonly str source
    cdef readonly int64_t sequence
    cdef readonly int part
    cdef readonly int parts
    cdef readonly bytes body
    cdef readonly bint late
    cdef readonly object admin
    cdef readonly object schema

    def __init__(
        self, number, int kind, str source, int64_t sequence, int part, int parts, bytes body, bint late=False,
        admin=None, schema=None
    ):
        self.number = number
        self.kind = kind
        self.source = source
        self.sequence = sequence
        self.part = part
        self.parts = parts
        self.body = body
        self.late = late
        self.admin = admin
        self.schema = schema

    @property
    def snapshot(self):
        """Is it part of a snapshot?"""
        return self.kind == SNAPSHOT

    def record(self):
        """The body by the stream's schema."""
        if self.schema is None or self.kind == ADMIN:
            raise LocalProtocolError("This message has no typed record: read `body`, or `admin` of administrative ones")
        return self.schema.decode(self.body)

    def __repr__(self):
        late = " late" if self.late else ""
        kind = _KINDS.get(self.kind, "")
        return f"<StreamMessage {self.number} {self.source}:{self.sequence} {self.part}/{self.parts}{kind}{late}>"


@cython.no_gc
cdef class Block:
    cdef readonly bytes data
    cdef readonly str source
    cdef readonly int64_t first
    cdef readonly int64_t last
    cdef readonly int count
    cdef readonly int mask
    cdef const uint8_t *_start
    cdef uint32_t *_offsets

    def __init__(self):
        raise TypeError("Use Block.parse")

    def __dealloc__(self):
        PyMem_Free(self._offsets)

    @staticmethod
    def parse(data):
        """Raises RemoteProtocolError for anything that is not exactly one block."""
        cdef bytes content = data if type(data) is bytes else bytes(data)
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(content)
        cdef Py_ssize_t total = PyBytes_GET_SIZE(content)
        if total < HEAD or total > BLOCK_MAX:
            raise _bad(f"it has {total} bytes")
        if p[0] != 0x46 or p[1] != 0x42 or p[2] != 1:
            raise _bad("it does not begin like one")
        cdef uint32_t length = p[3], count = load32(p + 4), size = load32(p + 8)
        cdef uint64_t first = load64(p + 16)
        if not length or <uint64_t>HEAD + length + size != <uint64_t>total or count < 1 or count > RECORDS_MAX:
            raise _bad("its sizes contradict each other")
        if first < 1 or first > <uint64_t>SEQUENCE_MAX - count:
            raise _bad("its number is out of range")
        if crc32(memoryview(content)[HEAD:]) != load32(p + 12):
            raise _bad("its checksum is wrong")
        cdef Block block = Block.__new__(Block)
        try:
            block.source = content[HEAD:HEAD + length].decode()
        except UnicodeDecodeError as error:
            raise _bad("its source id is not UTF-8") from error
        block.data = content
        block.first = <int64_t>first
        block.count = <int>count
        block.last = <int64_t>(first + count - 1)
        block._start = p
        block._offsets = <uint32_t *>PyMem_Malloc(count * sizeof(uint32_t))
        if block._offsets == NULL:
            raise MemoryError
        cdef str why = block._index(HEAD + length, total)
        if why is not None:
            raise _bad(why)
        return block

    cdef str _index(self, Py_ssize_t at, Py_ssize_t total):
        cdef int i, kind, mask = 0
        cdef const uint8_t *p
        cdef uint32_t size, part, parts
        cdef uint64_t sequence, previous
        for i in range(self.count):
            if at + RECORD > total:
                return "a record reaches beyond its end"
            p = self._start + at
            size = load32(p)
            kind = p[4]
            part = load16(p + 6)
            parts = load16(p + 8)
            if kind < MESSAGE or kind > SOURCE_GAP or p[5] or load16(p + 10) or part < 1 or part > parts:
                return "a record's fields are out of range"
            sequence = load64(p + 12)
            previous = load64(p + 20)
            if sequence > <uint64_t>SEQUENCE_MAX or previous > <uint64_t>SEQUENCE_MAX:
                return "a record's place is out of range"
            if previous >= sequence and kind != ADMIN and kind != ADMIN_VOID:
                return "a record's previous link does not lead back"
            if size > BODY_MAX or at + RECORD + <Py_ssize_t>size > total:
                return "a record reaches beyond its end"
            mask |= 1 << kind
            self._offsets[i] = <uint32_t>at
            at += RECORD + size
        if at != total:
            return "there is more than its records"
        self.mask = mask
        return None

    cdef const uint8_t *_at(self, Py_ssize_t i) except NULL:
        if i < 0 or i >= self.count:
            raise IndexError(f"there is no record {i} among {self.count}")
        return self._start + self._offsets[i]

    cdef int _range(self, Py_ssize_t i, Py_ssize_t j) except -1:
        if i < 0 or i > j or j > self.count:
            raise IndexError(f"there is no range {i} to {j} among {self.count} records")
        return 0

    def kind(self, Py_ssize_t i):
        return self._at(i)[4]

    def place(self, Py_ssize_t i):
        cdef const uint8_t *p = self._at(i)
        return _make_place((load64(p + 12), load16(p + 6), load16(p + 8)))

    def body(self, Py_ssize_t i):
        cdef const uint8_t *p = self._at(i)
        return PyBytes_FromStringAndSize(<const char *>p + RECORD, load32(p))

    def number(self, Py_ssize_t i):
        self._at(i)
        return self.first + i

    def record(self, Py_ssize_t i):
        cdef const uint8_t *p = self._at(i)
        return Record(
            self.first + i, p[4], self.source, load64(p + 12), load16(p + 6), load16(p + 8), load64(p + 20),
            PyBytes_FromStringAndSize(<const char *>p + RECORD, load32(p)), load32(p + 28)
        )

    def find(self, uint64_t sequence, uint64_t part):
        """The first record whose place is beyond this one; `count` if there is none."""
        cdef int low = 0, high = self.count, middle
        cdef const uint8_t *p
        cdef uint64_t s
        while low < high:
            middle = (low + high) // 2
            p = self._start + self._offsets[middle]
            s = load64(p + 12)
            if s < sequence or (s == sequence and load16(p + 6) <= part):
                low = middle + 1
            else:
                high = middle
        return low

    def scan(self, Py_ssize_t i, Py_ssize_t end, int64_t sequence, int part, int parts, int64_t offset=0):
        """Judge records from `i` against a position: (begin, next, dropped, and the new position's three).

        Those before `begin` repeat what was delivered (`dropped` of them are messages); those from `begin` to before
        `next` follow the position directly. The one at `next` needs a decision, if it is before `end`.
        """
        cdef const uint8_t *p
        cdef int kind, k
        cdef int64_t s
        cdef uint64_t previous
        cdef Py_ssize_t begin, dropped = 0
        self._range(i, end)
        while i < end:
            p = self._start + self._offsets[i]
            kind = p[4]
            s = moved(load64(p + 12), offset)
            if (kind != MESSAGE and kind != VOID) or s > sequence or (s == sequence and load16(p + 6) > part):
                break
            if kind == MESSAGE:
                dropped += 1
            i += 1
        begin = i
        while i < end:
            p = self._start + self._offsets[i]
            kind = p[4]
            if kind != MESSAGE and kind != VOID:
                break
            s = moved(load64(p + 12), offset)
            k = load16(p + 6)
            if s == sequence:
                if k != part + 1 or part >= parts:
                    break
            else:
                if part < parts or k != 1 or s < sequence:
                    break
                previous = load64(p + 20)
                if previous and moved(previous, offset) > sequence:
                    break
            sequence = s
            part = k
            parts = load16(p + 8)
            i += 1
        return begin, i, dropped, sequence, part, parts

    def messages(self, Py_ssize_t i, Py_ssize_t j, schema=None, source=None, int64_t offset=0, bint late=False):
        """The messages of a range, without voids; `source` and `offset` if it goes by the name of an equivalent one."""
        cdef const uint8_t *p
        cdef StreamMessage message
        cdef str name = self.source if source is None else source
        cdef list made
        cdef Py_ssize_t index
        self._range(i, j)
        made = []
        for index in range(i, j):
            p = self._start + self._offsets[index]
            if p[4] != MESSAGE:
                continue
            message = StreamMessage.__new__(StreamMessage)
            message.number = self.first + index
            message.kind = MESSAGE
            message.source = name
            message.sequence = moved(load64(p + 12), offset)
            message.part = load16(p + 6)
            message.parts = load16(p + 8)
            message.body = PyBytes_FromStringAndSize(<const char *>p + RECORD, load32(p))
            message.late = late
            message.schema = schema
            made.append(message)
        return made

    def diverging(
        self, Py_ssize_t i, Py_ssize_t j, Block other, Py_ssize_t a, Py_ssize_t b, int64_t offset=0,
        int64_t other_offset=0
    ):
        """How many messages of a range have, in a range of another block, another content at the same place.

        And the index of the first one here; both ranges are in the order of the source.
        """
        cdef const uint8_t *p
        cdef const uint8_t *q
        cdef int64_t s, s2
        cdef int k, k2
        cdef Py_ssize_t count = 0, found = -1
        self._range(i, j)
        other._range(a, b)
        while i < j and a < b:
            p = self._start + self._offsets[i]
            q = other._start + other._offsets[a]
            s = moved(load64(p + 12), offset)
            s2 = moved(load64(q + 12), other_offset)
            k = load16(p + 6)
            k2 = load16(q + 6)
            if p[4] != MESSAGE or s < s2 or (s == s2 and k < k2):
                i += 1
            elif q[4] != MESSAGE or s2 < s or (s == s2 and k2 < k):
                a += 1
            else:
                if load32(p + 28) != load32(q + 28):
                    if not count:
                        found = i
                    count += 1
                i += 1
                a += 1
        return count, found


def pack(str source, first, records):
    """Records (their numbers and sources are not looked at) as one block."""
    listed = list(records)
    cdef list bodies = [record.body for record in listed]
    cdef list ends = []
    cdef Py_ssize_t end = 0
    for body in bodies:
        end += len(body)
        ends.append(end)
    return pack_columns(
        source,
        first,
        [record.kind for record in listed],
        [record.sequence for record in listed],
        [record.previous for record in listed],
        [record.part for record in listed],
        [record.parts for record in listed],
        b"".join(bodies),
        ends,
    )


cdef _column(str code, column):
    """A list (of plain numbers) becomes a buffer; what is one is read where it lies."""
    if not isinstance(column, (list, tuple)):
        return column
    try:
        return array(code, column)
    except OverflowError:
        raise ValueError("a record's fields are out of range") from None


def pack_columns(str source, first, kinds, sequences, previous, part, parts, data, ends):
    """Columns as one block; body i is `data[ends[i - 1]:ends[i]]`. Raises ValueError for what no block can hold."""
    cdef const uint8_t[:] kind = _column("B", kinds)
    cdef const uint64_t[:] sequence = _column("Q", sequences)
    cdef const uint64_t[:] back = _column("Q", previous)
    cdef const uint16_t[:] k = _column("H", part)
    cdef const uint16_t[:] of = _column("H", parts)
    cdef const uint64_t[:] stop = _column("Q", ends)
    cdef const uint8_t[::1] body = data if isinstance(data, (bytes, bytearray)) else memoryview(data).cast("B")
    cdef Py_ssize_t count = kind.shape[0], total = body.shape[0], i, room
    cdef bytes name = source.encode()
    cdef uint64_t begin = 0, end = 0, opening
    cdef uint8_t *p
    cdef const uint8_t *bodies = &body[0] if total else NULL
    cdef bytes made
    if (
        count < 1 or count > RECORDS_MAX or sequence.shape[0] != count or back.shape[0] != count
        or k.shape[0] != count or of.shape[0] != count or stop.shape[0] != count
    ):
        raise ValueError(f"a block has 1 to {RECORDS_MAX} records, and as many of each field")
    if not 1 <= len(name) <= 255 or not 1 <= first <= SEQUENCE_MAX - count:
        raise ValueError("a source id has 1 to 255 bytes, and numbers count from 1")
    for i in range(count):
        end = stop[i]
        if end < begin or end > <uint64_t>total or end - begin > BODY_MAX:
            raise ValueError(f"a body has 0 to {BODY_MAX} bytes, and they lie one behind the other in the data")
        if kind[i] < MESSAGE or kind[i] > SOURCE_GAP or k[i] < 1 or k[i] > of[i]:
            raise ValueError("a record's fields are out of range")
        if (
            sequence[i] > <uint64_t>SEQUENCE_MAX or back[i] > <uint64_t>SEQUENCE_MAX
            or (back[i] >= sequence[i] and kind[i] != ADMIN and kind[i] != ADMIN_VOID)
        ):
            raise ValueError("a record's place is out of range, or its previous link does not lead back")
        begin = end
    room = HEAD + len(name) + RECORD * count + <Py_ssize_t>end
    if room > BLOCK_MAX:
        raise ValueError(f"a block has at most {BLOCK_MAX} bytes")
    made = PyBytes_FromStringAndSize(NULL, room)
    p = <uint8_t *>PyBytes_AS_STRING(made)
    opening = first
    p[0] = 0x46
    p[1] = 0x42
    p[2] = 1
    p[3] = <uint8_t>len(name)
    store32(p + 4, <uint32_t>count)
    store32(p + 8, <uint32_t>(room - HEAD - len(name)))
    store64(p + 16, opening)
    memcpy(p + HEAD, PyBytes_AS_STRING(name), len(name))
    p += HEAD + len(name)
    begin = 0
    for i in range(count):
        end = stop[i]
        store32(p, <uint32_t>(end - begin))
        p[4] = kind[i]
        p[5] = 0
        store16(p + 6, k[i])
        store16(p + 8, of[i])
        store16(p + 10, 0)
        store64(p + 12, sequence[i])
        store64(p + 20, back[i])
        if end > begin:
            store32(p + 28, crc_of(bodies + begin, <Py_ssize_t>(end - begin)))
            memcpy(p + RECORD, bodies + begin, <size_t>(end - begin))
        else:
            store32(p + 28, 0)
        p += RECORD + (end - begin)
        begin = end
    p = <uint8_t *>PyBytes_AS_STRING(made)
    store32(p + 12, <uint32_t>crc32(memoryview(made)[HEAD:]))
    return made


def with_first(block, first):
    """The same block, numbered from `first`."""
    if not 1 <= first <= SEQUENCE_MAX - RECORDS_MAX:
        raise ValueError("numbers count from 1")
    return b"".join((block[:16], first.to_bytes(8, "little"), block[24:]))
