# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Batches of records into bytes and back, compiled; the plain twin is `records.py`, the layout docs/journal.md."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>

    static uint32_t fl_crc_table[8][256];

    static uint32_t fl_crc_soft(uint32_t crc, const uint8_t* data, size_t size) {
        while (size >= 8) {
            uint32_t low, high;
            memcpy(&low, data, 4);
            memcpy(&high, data + 4, 4);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
            low = __builtin_bswap32(low);
            high = __builtin_bswap32(high);
    #endif
            low ^= crc;
            crc = fl_crc_table[7][low & 0xFF] ^ fl_crc_table[6][(low >> 8) & 0xFF]
                ^ fl_crc_table[5][(low >> 16) & 0xFF] ^ fl_crc_table[4][low >> 24]
                ^ fl_crc_table[3][high & 0xFF] ^ fl_crc_table[2][(high >> 8) & 0xFF]
                ^ fl_crc_table[1][(high >> 16) & 0xFF] ^ fl_crc_table[0][high >> 24];
            data += 8;
            size -= 8;
        }
        while (size--) crc = fl_crc_table[0][(crc ^ *data++) & 0xFF] ^ (crc >> 8);
        return crc;
    }

    #define FL_CRC_STRETCH 256
    static uint32_t fl_crc_zeros[4][256];

    /* What a sum becomes behind a stretch of zeros. */
    static inline uint32_t fl_crc_moved(uint32_t crc) {
        return fl_crc_zeros[0][crc & 0xFF] ^ fl_crc_zeros[1][(crc >> 8) & 0xFF]
            ^ fl_crc_zeros[2][(crc >> 16) & 0xFF] ^ fl_crc_zeros[3][crc >> 24];
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    /* The processor's own instruction, in this function only: nothing else is compiled for a newer processor. */
    __attribute__((target("sse4.2")))
    static uint32_t fl_crc_hard(uint32_t crc, const uint8_t* data, size_t size) {
        uint64_t wide = crc;
        /* The instruction can begin three times while it ends once: three stretches at a time, joined by what their
           zeros would have done to the sums of those before. */
        while (size >= 3 * FL_CRC_STRETCH) {
            uint64_t second = 0, third = 0;
            for (size_t at = 0; at < FL_CRC_STRETCH; at += 8) {
                uint64_t one, two, three;
                memcpy(&one, data + at, 8);
                memcpy(&two, data + FL_CRC_STRETCH + at, 8);
                memcpy(&three, data + 2 * FL_CRC_STRETCH + at, 8);
                wide = __builtin_ia32_crc32di(wide, one);
                second = __builtin_ia32_crc32di(second, two);
                third = __builtin_ia32_crc32di(third, three);
            }
            wide = fl_crc_moved(fl_crc_moved((uint32_t)wide) ^ (uint32_t)second) ^ (uint32_t)third;
            data += 3 * FL_CRC_STRETCH;
            size -= 3 * FL_CRC_STRETCH;
        }
        while (size >= 8) {
            uint64_t word;
            memcpy(&word, data, 8);
            wide = __builtin_ia32_crc32di(wide, word);
            data += 8;
            size -= 8;
        }
        crc = (uint32_t)wide;
        while (size--) crc = __builtin_ia32_crc32qi(crc, *data++);
        return crc;
    }
    static int fl_crc_is_hard(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse4.2"); }
    #else
    #define fl_crc_hard fl_crc_soft
    static int fl_crc_is_hard(void) { return 0; }
    #endif

    static uint32_t (*fl_crc_used)(uint32_t, const uint8_t*, size_t) = fl_crc_soft;

    static int fl_crc_start(int soft) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t value = n;
            for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0);
            fl_crc_table[0][n] = value;
        }
        for (int row = 1; row < 8; row++)
            for (int n = 0; n < 256; n++) {
                uint32_t value = fl_crc_table[row - 1][n];
                fl_crc_table[row][n] = fl_crc_table[0][value & 0xFF] ^ (value >> 8);
            }
        static const uint8_t zeros[FL_CRC_STRETCH];
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t n = 0; n < 256; n++)
                fl_crc_zeros[byte][n] = fl_crc_soft(n << (8 * byte), zeros, FL_CRC_STRETCH);
        int hard = !soft && fl_crc_is_hard();
        fl_crc_used = hard ? fl_crc_hard : fl_crc_soft;
        return hard;
    }

    static inline uint32_t fl_crc(uint32_t crc, const void* data, size_t size) {
        return ~fl_crc_used(~crc, (const uint8_t*)data, size);
    }
    """
    int fl_crc_start(int) nogil
    uint32_t fl_crc(uint32_t, const void*, size_t) noexcept nogil

cdef enum:
    HEADER = 40
    MAGIC_RECORD = 0x7E52
    MAGIC_BATCH = 0x7E42
    MAGIC_EXCHANGE = 0x7E58
    RECORD = 1
    BATCH = 2
    BODY_BAD = 3
    BAD = 4
    END = 5

cdef packed struct Item:
    uint16_t magic
    uint16_t kind
    uint32_t length
    uint32_t checksum
    uint32_t body
    uint64_t index
    uint64_t epoch
    uint64_t previous

HARDWARE = bool(fl_crc_start(0))


def use_software(bint soft):
    """For tests: take the tables instead of the processor's instruction. Whether the instruction is in use now."""
    return bool(fl_crc_start(soft))


def crc32c(const uint8_t[::1] data not None, uint32_t crc=0):
    """Of the data, behind bytes whose CRC32C is `crc`."""
    return fl_crc(crc, &data[0], data.shape[0]) if data.shape[0] else crc


cdef inline uint32_t start_at(uint32_t seed, uint64_t place) noexcept nogil:
    return fl_crc(seed, &place, 8)


cdef inline uint32_t header_sum(const uint8_t* header, uint32_t start) noexcept nogil:
    return fl_crc(fl_crc(start, header, 8), header + 12, HEADER - 12)


cdef class Batch:
    """Records that will be written together. `lead` is what is written in front of them (a segment's file header)."""

    cdef uint8_t* data
    cdef size_t used, room, lead
    cdef uint32_t seed
    cdef bint done
    cdef readonly uint64_t place
    cdef readonly uint64_t first
    cdef readonly uint32_t count

    def __cinit__(self, uint32_t seed, uint64_t place, uint64_t first, bytes lead=b""):
        self.seed = seed
        self.place = place
        self.first = first
        self.lead = len(lead)
        self.room = 8192 + self.lead
        self.data = <uint8_t*>malloc(self.room)
        if self.data == NULL:
            raise MemoryError
        memcpy(self.data, <const char*>lead, self.lead)
        memset(self.data + self.lead, 0, HEADER)
        self.used = self.lead + HEADER

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.done:
            raise BufferError("the batch is still open")
        PyBuffer_FillInfo(view, self, self.data, self.used, 1, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass

    @property
    def size(self):
        return self.used

    cdef int grow(self, size_t need) except -1:
        cdef size_t room = self.room
        cdef uint8_t* data
        while room < self.used + need:
            room *= 2
        data = <uint8_t*>realloc(self.data, room)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.room = room
        return 0

    def add(self, uint16_t kind, head, payload, uint64_t epoch, uint64_t previous):
        """Copy a record into the batch; where its first byte will lie."""
        cdef Py_buffer first, second
        cdef size_t length, need
        cdef uint64_t place
        cdef uint32_t start
        cdef uint8_t* to
        cdef Item* item
        if self.done:
            raise ValueError("the batch is finished")
        PyObject_GetBuffer(head, &first, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(payload, &second, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&first)
            raise
        try:
            length = first.len + second.len
            if length > <size_t>0xFFFFFFFF:
                raise ValueError("a record's body is shorter than 4 GiB")
            need = HEADER + ((length + 7) & ~<size_t>7)
            if self.used + need > self.room:
                self.grow(need)
            place = self.place + self.used
            start = start_at(self.seed, place)
            to = self.data + self.used
            memcpy(to + HEADER, first.buf, first.len)
            memcpy(to + HEADER + first.len, second.buf, second.len)
            memset(to + HEADER + length, 0, need - HEADER - length)
            item = <Item*>to
            item.magic = MAGIC_RECORD
            item.kind = kind
            item.length = <uint32_t>length
            item.body = fl_crc(start, to + HEADER, length)
            item.index = self.first + self.count
            item.epoch = epoch
            item.previous = previous
            item.checksum = header_sum(to, start)
            self.used += need
            self.count += 1
            return place + HEADER
        finally:
            PyBuffer_Release(&second)
            PyBuffer_Release(&first)

    def take(self, const uint8_t[::1] data not None, size_t offset, size_t size_max, list out not None):
        """Copy records of another journal into the batch while it is not larger than that; where the rest begins.

        `out` gets (index, place, kind, offset of the body in the data, its length) of each. The data was checked.
        """
        cdef size_t size = data.shape[0], length, need
        cdef const Item* source
        cdef Item* item
        cdef uint8_t* to
        cdef uint64_t place
        cdef uint32_t start
        if self.done:
            raise ValueError("the batch is finished")
        while offset < size:
            if size - offset < HEADER:
                raise ValueError("the data ends inside a header")
            source = <const Item*>(&data[0] + offset)
            length = source.length
            need = HEADER + ((length + 7) & ~<size_t>7)
            if need > size - offset:
                raise ValueError("the data ends inside a record")
            if source.index != self.first + self.count:
                raise ValueError("the record is not the next one")
            if self.used + need > size_max:
                break
            if self.used + need > self.room:
                self.grow(need)
            place = self.place + self.used
            start = start_at(self.seed, place)
            to = self.data + self.used
            memcpy(to, source, HEADER + length)
            memset(to + HEADER + length, 0, need - HEADER - length)
            item = <Item*>to
            item.magic = MAGIC_RECORD
            item.body = fl_crc(start, to + HEADER, length)
            item.checksum = header_sum(to, start)
            self.used += need
            self.count += 1
            out.append((item.index, place + HEADER, item.kind, offset + HEADER, length))
            offset += need
        return offset

    def finish(self, uint64_t synced, uint64_t time_ms):
        """Everything to be written, at `place`. The batch takes no further records."""
        cdef Item* item = <Item*>(self.data + self.lead)
        if not self.done:
            item.magic = MAGIC_BATCH
            item.kind = 0
            item.length = <uint32_t>(self.used - self.lead - HEADER)
            item.body = self.count
            item.index = self.first
            item.epoch = synced
            item.previous = time_ms
            item.checksum = header_sum(<uint8_t*>item, start_at(self.seed, self.place + self.lead))
            self.done = True
            self.shrink()
        return memoryview(self)

    cdef void shrink(self) noexcept:
        """Finished batches are kept for a while: give back the room that was meant for more."""
        cdef uint8_t* data
        if self.room - self.used > 1024:
            data = <uint8_t*>realloc(self.data, self.used)
            if data != NULL:
                self.data = data
                self.room = self.used

    def read(self, uint64_t place, size_t size):
        """What lies at a place inside the batch; a copy as long as it is open."""
        cdef uint64_t offset = place - self.place
        if place < self.place or offset > self.used or size > self.used - offset:
            raise ValueError("not inside the batch")
        if self.done:
            return memoryview(self)[offset:offset + size]
        return memoryview(PyBytes_FromStringAndSize(<char*>self.data + offset, size))


cdef inline bint is_item(const uint8_t* data, uint64_t place, uint32_t seed) noexcept nogil:
    cdef const Item* item = <const Item*>data
    if item.magic != MAGIC_RECORD and item.magic != MAGIC_BATCH:
        return False
    return header_sum(data, start_at(seed, place)) == item.checksum


def scan(const uint8_t[::1] data not None, uint64_t place, uint32_t seed, size_t start):
    """Everything in the bytes of a segment, which lie at `place`, from the offset `start` to the very end."""
    cdef size_t size = data.shape[0]
    cdef size_t position = start, clear = start, length, last
    cdef const uint8_t* base = &data[0] if size else NULL
    cdef const Item* item
    cdef bint good
    found = []
    while position + HEADER <= size:
        with nogil:
            while position + HEADER <= size and not is_item(base + position, place + position, seed):
                position += 8
        if position + HEADER > size:
            break
        item = <const Item*>(base + position)
        if position > clear:
            found.append((BAD, clear, position - clear, 0, 0, 0, 0))
        if item.magic == MAGIC_BATCH:
            found.append((BATCH, position, item.length, item.body, item.index, item.epoch, item.previous))
            position += HEADER
        else:
            length = item.length
            good = length <= size - position - HEADER
            if good:
                with nogil:
                    good = fl_crc(start_at(seed, place + position), base + position + HEADER, length) == item.body
            found.append(
                (RECORD if good else BODY_BAD, position, length, item.kind, item.index, item.epoch, item.previous)
            )
            if length > size - position - HEADER:
                position = size
            else:
                position += HEADER + ((length + 7) & ~<size_t>7)
        clear = position
    if clear > size:
        clear = size
    last = size
    with nogil:
        while last > clear and base[last - 1] == 0:
            last -= 1
    found.append((END, clear, last - clear, 0, 0, 0, 0))
    return found


def read_record(const uint8_t[::1] data not None, uint64_t place, uint32_t seed):
    """Of the record whose header begins the data: (kind, length, index, epoch, epoch before, is the body right).

    None if there is no valid record header.
    """
    cdef size_t size = data.shape[0]
    cdef const Item* item
    cdef bint good
    if size < HEADER or not is_item(&data[0], place, seed):
        return None
    item = <const Item*>&data[0]
    if item.magic != MAGIC_RECORD:
        return None
    good = item.length <= size - HEADER
    if good:
        with nogil:
            good = fl_crc(start_at(seed, place), &data[0] + HEADER, item.length) == item.body
    return item.kind, item.length, item.index, item.epoch, item.previous, good


def check_rows(
    const uint8_t[::1] span not None,
    uint64_t origin,
    uint32_t seed,
    const uint64_t[::1] rows not None,
    Py_ssize_t first,
    Py_ssize_t beyond,
):
    """Are the records of these rows of an index in the span as they were written? The first that is not, or -1."""
    cdef Py_ssize_t row, bad = -1
    cdef uint64_t size = span.shape[0], begin, length, offset, skip
    cdef const uint8_t* at
    cdef const Item* item
    if first < 0 or beyond > rows.shape[0] // 5:
        raise ValueError("there are no such rows")
    with nogil:
        for row in range(first, beyond):
            skip = rows[row * 5 + 4] >> 32
            length = (rows[row * 5 + 2] & 0xFFFFFFFFULL) + skip
            begin = rows[row * 5 + 1] - skip - HEADER
            offset = begin - origin
            if begin < origin or offset > size or size - offset < HEADER or length > size - offset - HEADER:
                bad = row
                break
            at = &span[0] + offset
            item = <const Item*>at
            if item.magic != MAGIC_RECORD or item.length != length or not is_item(at, begin, seed):
                bad = row
                break
            if fl_crc(start_at(seed, begin), at + HEADER, length) != item.body:
                bad = row
                break
    return bad


def walk(
    const uint8_t[::1] data not None,
    size_t offset,
    uint64_t place,
    uint32_t seed,
    uint64_t first,
    uint64_t last,
    size_t most_bytes,
):
    """Records from index `first` to `last` in bytes that lie at `place`: what they are, and where it stopped."""
    cdef size_t size = data.shape[0], length, need, gathered = 0
    cdef const uint8_t* at
    cdef const Item* item
    found = []
    while offset < size and size - offset >= HEADER:
        at = &data[0] + offset
        item = <const Item*>at
        if not is_item(at, place + offset, seed):
            break
        if item.magic == MAGIC_BATCH:
            offset += HEADER
            continue
        length = item.length
        need = HEADER + ((length + 7) & ~<size_t>7)
        if need > size - offset or item.index > last:
            break
        if item.index >= first:
            if gathered and gathered + need > most_bytes:
                break
            if fl_crc(start_at(seed, place + offset), at + HEADER, length) != item.body:
                break
            found.append((item.index, place + offset + HEADER, item.kind, offset + HEADER, length, item.epoch))
            gathered += need
        offset += need
    return found, offset


def export(
    const uint8_t[::1] data not None,
    size_t offset,
    uint64_t place,
    uint32_t seed,
    uint64_t first,
    uint64_t last,
    size_t most_bytes,
    bint verify,
):
    """The same records as they go to another journal: the bytes, how many, and where it stopped in the data."""
    cdef size_t size = data.shape[0], length, need, at = offset, begin = offset, gathered = 0
    cdef const uint8_t* base = &data[0] if size else NULL
    cdef const Item* item
    cdef Item* made
    cdef uint8_t* to
    cdef Py_ssize_t count = 0
    with nogil:
        while at < size and size - at >= HEADER:
            item = <const Item*>(base + at)
            if verify:
                if not is_item(base + at, place + at, seed):
                    break
            elif item.magic != MAGIC_RECORD and item.magic != MAGIC_BATCH:
                break
            if item.magic == MAGIC_BATCH:
                at += HEADER
                continue
            length = item.length
            need = HEADER + ((length + 7) & ~<size_t>7)
            if need > size - at or item.index > last:
                break
            if item.index >= first:
                if count and gathered + need > most_bytes:
                    break
                if verify and fl_crc(start_at(seed, place + at), base + at + HEADER, length) != item.body:
                    break
                if not count:
                    begin = at
                gathered += need
                count += 1
            at += need
    out = PyBytes_FromStringAndSize(NULL, gathered)
    to = <uint8_t*><char*>out
    if count:
        with nogil:
            offset = begin
            while offset < at:
                item = <const Item*>(base + offset)
                if item.magic == MAGIC_BATCH:
                    offset += HEADER
                    continue
                need = HEADER + ((<size_t>item.length + 7) & ~<size_t>7)
                memcpy(to, item, need)
                made = <Item*>to
                made.magic = MAGIC_EXCHANGE
                made.body = fl_crc(0, to + HEADER, made.length)
                made.checksum = header_sum(to, 0)
                to += need
                offset += need
    return out, count, at


def check_export(const uint8_t[::1] data not None, size_t skip):
    """Of records of another journal: (first index, epoch before it, runs of epochs, longest body, where to go on).

    Where to go on: behind the first `skip` of them. Raises ValueError when anything is not as it was sent.
    """
    cdef size_t size = data.shape[0], offset = 0, length, need, longest = 0, start = 0, count = 0
    cdef const uint8_t* at
    cdef const Item* item
    cdef uint64_t first = 0, before = 0, epoch = 0, run = 0
    cdef bint good
    runs = []
    while offset < size:
        if size - offset < HEADER:
            raise ValueError(f"the data ends inside a header, at {offset}")
        at = &data[0] + offset
        item = <const Item*>at
        if item.magic != MAGIC_EXCHANGE or header_sum(at, 0) != item.checksum:
            raise ValueError(f"there is no record at {offset}")
        length = item.length
        need = HEADER + ((length + 7) & ~<size_t>7)
        if need > size - offset:
            raise ValueError(f"the data ends inside the record at {offset}")
        with nogil:
            good = fl_crc(0, at + HEADER, length) == item.body
        if not good:
            raise ValueError(f"the record at {offset} is not what was sent")
        if count == 0:
            first, before = item.index, item.previous
            if first == 0:
                raise ValueError("indexes begin with 1")
        elif item.index != first + count or item.previous != epoch:
            raise ValueError(f"the record at {offset} does not follow the one before it")
        if run and item.epoch != epoch:
            runs.append((run, epoch))
            run = 0
        epoch = item.epoch
        run += 1
        count += 1
        offset += need
        if count == skip:
            start = offset
        if length > longest:
            longest = length
    if skip > count:
        raise ValueError(f"there are only {count} records")
    if run:
        runs.append((run, epoch))
    return first, before, tuple(runs), longest, start
