# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries in bytes: the compiled twin of `entries.py`, which says what everything here means."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from types import MappingProxyType

from fairlead.errors import BadEntries, BadParameter
from fairlead.wire import durable, kinds
from fairlead.wire import entries as _plain
from fairlead.wire.properties import application_properties, lookup

__all__ = [
    "Delivered", "Entry", "deliveries", "details", "encode", "encode_many", "forged", "keys", "pick", "span", "survey",
]

cdef enum:
    HEAD = 16
    TIMES = 16
    CHUNK = 64
    LARGE = 48
    KEY = 1
    TIMED = 2
    IS_LARGE = 4
    VOLATILE = 8
    DEDUP = 16
    CRON = 32
    FLAGS = 63
    PRIORITY = 9
    COUNT_MAX = 65536
    SECTION_MAX = 65536
    ENTRY_MAX = 0x7FFFFFFF

cdef uint64_t TIME_MAX = 1 << 53

assert (HEAD, TIMES, CHUNK, LARGE) == (
    durable.ENTRY.size, durable.TIMES.size, durable.CHUNK.size, durable.LARGE.size)
assert (FLAGS, PRIORITY, COUNT_MAX, SECTION_MAX) == (
    durable.ENTRY_FLAGS, durable.PRIORITY_MAX, durable.COUNT_MAX, kinds.HEADER_BYTES_MAX)
assert (ENTRY_MAX, TIME_MAX) == (_plain.ENTRY_BYTES_MAX, _plain.TIME_MS_MAX)

Entry = _plain.Entry
cdef object _begin = _plain._begin
cdef object _new_tuple = tuple.__new__


cdef inline uint32_t load16(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8


cdef inline uint32_t load32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef inline uint64_t load64(const uint8_t *p) noexcept nogil:
    return <uint64_t>load32(p) | <uint64_t>load32(p + 4) << 32


cdef inline void store32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = value & 0xFF
    p[1] = (value >> 8) & 0xFF
    p[2] = (value >> 16) & 0xFF
    p[3] = value >> 24


# Faults are told by number, so that the loops over entries need no interpreter; 0 is none.
cdef tuple _FAULTS = (
    "",
    "An entry is longer than the bytes there are, or shorter than its head.",
    "An entry has flags or a priority that do not exist.",
    "An entry has a key and does not say so, or the other way round.",
    "An entry is shorter than its key and headers, or these are too long.",
    "A large message is not named as one.",
    "A time to live or a delay is longer than anybody can wait.",
    "A key is not UTF-8.",
    "A header section ends inside a name, or has an empty one.",
    "A header section ends inside a value.",
    "A header has no known type, or not the length of its type.",
    "A message without a :dedup or :cron header says it has one.",
)


cdef struct Parts:
    Py_ssize_t start
    Py_ssize_t end
    int flags
    int priority
    uint64_t ttl_ms
    uint64_t delay_ms
    Py_ssize_t key
    Py_ssize_t key_bytes
    Py_ssize_t headers
    Py_ssize_t headers_bytes
    Py_ssize_t body


cdef int take(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Parts *parts) except -1:
    """The parts of the entry there, checked but for what its headers say; the number of the fault."""
    cdef const uint8_t *p = data + at
    cdef Py_ssize_t length = load32(p) if end - at >= HEAD else 0
    cdef Py_ssize_t place
    cdef int flags
    if length < HEAD or length > end - at:
        return 1
    flags = p[4]
    if flags & ~FLAGS or p[5] > PRIORITY or load32(p + 12):
        return 2
    parts.start = at
    parts.end = at + length
    parts.flags = flags
    parts.priority = p[5]
    parts.key_bytes = load16(p + 6)
    parts.headers_bytes = load32(p + 8)
    if ((flags & KEY) != 0) != (parts.key_bytes != 0):
        return 3
    parts.key = at + HEAD + (TIMES if flags & TIMED else 0)
    parts.headers = parts.key + parts.key_bytes
    parts.body = parts.headers + parts.headers_bytes
    if parts.headers_bytes > SECTION_MAX or parts.body > parts.end:
        return 4
    if flags & IS_LARGE and parts.end - parts.body != LARGE:
        return 5
    parts.ttl_ms = parts.delay_ms = 0
    if flags & TIMED:
        parts.ttl_ms = load64(p + HEAD)
        parts.delay_ms = load64(p + HEAD + 8)
        if parts.ttl_ms > TIME_MAX or parts.delay_ms > TIME_MAX:
            return 6
    for place in range(parts.key, parts.key + parts.key_bytes):
        if data[place] >= 0x80:
            return check_text(data + parts.key, parts.key_bytes)
    return 0


cdef int check_text(const uint8_t *p, Py_ssize_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(<const char *>p, size, NULL)
    except UnicodeDecodeError:
        return 7
    return 0


cdef int check_section(const uint8_t *p, Py_ssize_t size, int flags) noexcept nogil:
    """The number of the fault; with flags it has to have the headers they promise."""
    cdef Py_ssize_t at = 0, name_end, value_at, value_bytes
    cdef int found = 0
    cdef uint8_t kind
    while at < size:
        name_end = at + 1 + p[at]
        value_at = name_end + 2
        if name_end == at + 1 or value_at > size:
            return 8
        value_bytes = load16(p + name_end)
        if value_at + value_bytes > size:
            return 9
        kind = p[value_at] if value_bytes else 0
        if not (kind == c"s" or kind == c"y"):
            if kind == c"b":
                if value_bytes != 2:
                    return 10
            elif not (kind == c"i" or kind == c"f") or value_bytes != 9:
                return 10
        if kind == c"s" and p[at + 1] == c":":
            if name_end - at == 7 and memcmp(p + at + 1, <const char *>b":dedup", 6) == 0:
                found |= DEDUP
            elif name_end - at == 6 and memcmp(p + at + 1, <const char *>b":cron", 5) == 0:
                found |= CRON
        at = value_at + value_bytes
    if flags & (DEDUP | CRON) & ~found:
        return 11
    return 0


cdef int has_server_header(const uint8_t *p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at = 0, name_end, value_at
    while at < size:
        name_end = at + 1 + p[at]
        value_at = name_end + 2
        if name_end == at + 1 or value_at > size:
            raise BadEntries(_FAULTS[8])
        if p[at + 1] == c":" and name_end - at >= 6 and (
                memcmp(p + at + 1, <const char *>b":from", 5) == 0
                or name_end - at >= 7 and memcmp(p + at + 1, <const char *>b":dead-", 6) == 0):
            return 1
        at = value_at + load16(p + name_end)
        if at > size:
            raise BadEntries(_FAULTS[9])
    return 0


cdef class Window:
    """The buffer of one call, held while it is read."""

    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    cdef int look(self, view, Py_ssize_t start, Py_ssize_t end) except -1:
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t *>self.buffer.buf
        if not 0 <= start <= end <= self.buffer.len:
            raise BadEntries(f"Entries from {start} to {end} are not within {self.buffer.len} bytes.")
        return 0

    cdef Py_ssize_t skip(self, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count) except -1:
        cdef Py_ssize_t length
        while count > 0:
            length = load32(self.data + at) if end - at >= HEAD else 0
            if length < HEAD or length > end - at:
                raise BadEntries(_FAULTS[1])
            at += length
            count -= 1
        return at

    cdef tuple select(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first, Py_ssize_t count):
        if count >= 0:
            if first < 0:
                raise BadEntries("There is no entry before the first one.")
            start = self.skip(start, end, first)
            end = self.skip(start, end, count)
        elif first:
            if first < 0:
                raise BadEntries("There is no entry before the first one.")
            start = self.skip(start, end, first)
        return start, end


cdef inline uint8_t *put_head(uint8_t *p, Py_ssize_t length, int flags, int priority, Py_ssize_t key_bytes,
                              Py_ssize_t headers_bytes) noexcept nogil:
    store32(p, <uint32_t>length)
    p[4] = <uint8_t>flags
    p[5] = <uint8_t>priority
    p[6] = key_bytes & 0xFF
    p[7] = (key_bytes >> 8) & 0xFF
    store32(p + 8, <uint32_t>headers_bytes)
    store32(p + 12, 0)
    return p + HEAD


def encode(bytes body not None, *, bytes headers not None=b"", bytes key not None=b"", priority=4, ttl_ms=0,
           delay_ms=0, flags=0):
    cdef bytes times
    cdef Py_ssize_t body_bytes = PyBytes_GET_SIZE(body), headers_bytes = PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t key_bytes = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t length
    if flags == 0 and ttl_ms == 0 and delay_ms == 0 and 0 <= priority <= PRIORITY and headers_bytes <= SECTION_MAX:
        times = b""
    else:
        flags, times = _begin(flags, priority, ttl_ms, delay_ms, headers)
    if key_bytes > 65535:
        raise BadParameter(f"A key of {key_bytes} bytes is longer than 65535.")
    length = HEAD + PyBytes_GET_SIZE(times) + key_bytes + headers_bytes + body_bytes
    if length > ENTRY_MAX:
        raise BadParameter(f"A message of {length} bytes is longer than {ENTRY_MAX}.")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, length)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    p = put_head(p, length, <int>flags | (KEY if key_bytes else 0), priority, key_bytes, headers_bytes)
    memcpy(p, PyBytes_AS_STRING(times), PyBytes_GET_SIZE(times))
    p += PyBytes_GET_SIZE(times)
    memcpy(p, PyBytes_AS_STRING(key), key_bytes)
    p += key_bytes
    memcpy(p, PyBytes_AS_STRING(headers), headers_bytes)
    memcpy(p + headers_bytes, PyBytes_AS_STRING(body), body_bytes)
    return out


def encode_many(bodies, bytes headers not None=b"", priority=4, *, flags=0, ttl_ms=0, delay_ms=0):
    cdef list items = bodies if type(bodies) is list else list(bodies)
    cdef bytes times, out
    cdef Py_ssize_t headers_bytes = PyBytes_GET_SIZE(headers), times_bytes, fixed, size, total = 0
    cdef int flag_bits, level
    cdef uint8_t *p
    flags, times = _begin(flags, priority, ttl_ms, delay_ms, headers)
    flag_bits = flags
    level = priority
    times_bytes = PyBytes_GET_SIZE(times)
    fixed = HEAD + times_bytes + headers_bytes
    for body in items:
        if not isinstance(body, bytes):
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        size = fixed + PyBytes_GET_SIZE(body)
        if size > ENTRY_MAX:
            raise BadParameter(f"A message of {size} bytes is longer than {ENTRY_MAX}.")
        total += size
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    for body in items:
        size = PyBytes_GET_SIZE(body)
        p = put_head(p, fixed + size, flag_bits, level, 0, headers_bytes)
        memcpy(p, PyBytes_AS_STRING(times), times_bytes)
        p += times_bytes
        memcpy(p, PyBytes_AS_STRING(headers), headers_bytes)
        p += headers_bytes
        memcpy(p, PyBytes_AS_STRING(body), size)
        p += size
    return out


def survey(view, Py_ssize_t start, Py_ssize_t end):
    cdef Window window = Window()
    cdef Parts parts
    cdef Py_ssize_t at = start, count = 0, checked = 0, checked_bytes = 0
    cdef int flags_or = 0, low = PRIORITY, high = 0, fault
    window.look(view, start, end)
    while at < end:
        if count == COUNT_MAX:
            raise BadEntries(f"There are more than {COUNT_MAX} messages in one frame.")
        fault = take(window.data, at, end, &parts)
        if fault == 0 and (parts.headers_bytes or parts.flags & (DEDUP | CRON)):
            # Messages sent together often have the same headers: these are checked once.
            if (parts.flags & (DEDUP | CRON) or parts.headers_bytes != checked_bytes
                    or memcmp(window.data + checked, window.data + parts.headers, checked_bytes) != 0):
                fault = check_section(window.data + parts.headers, parts.headers_bytes, parts.flags)
                checked = parts.headers
                checked_bytes = parts.headers_bytes
        if fault:
            raise BadEntries(_FAULTS[fault])
        count += 1
        flags_or |= parts.flags
        if parts.priority < low:
            low = parts.priority
        if parts.priority > high:
            high = parts.priority
        at = parts.end
    if count == 0:
        raise BadEntries("There is no message where there should be one.")
    return count, flags_or, low, high


def forged(view, Py_ssize_t start, Py_ssize_t end):
    cdef Window window = Window()
    cdef Parts parts
    cdef Py_ssize_t at = start
    cdef int fault
    window.look(view, start, end)
    while at < end:
        fault = take(window.data, at, end, &parts)
        if fault:
            raise BadEntries(_FAULTS[fault])
        if parts.headers_bytes and has_server_header(window.data + parts.headers, parts.headers_bytes):
            return True
        at = parts.end
    return False


def span(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first, Py_ssize_t count):
    cdef Window window = Window()
    cdef Py_ssize_t at
    window.look(view, start, end)
    if first < 0 or count < 0:
        raise BadEntries("There is no entry before the first one.")
    at = window.skip(start, end, first)
    return at, window.skip(at, end, count)


def details(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first=0, Py_ssize_t count=-1):
    cdef Window window = Window()
    cdef Parts parts
    cdef list found = []
    cdef int fault
    cdef bytes key, headers = b""
    cdef const uint8_t *data
    window.look(view, start, end)
    start, end = window.select(start, end, first, count)
    data = window.data
    while start < end:
        fault = take(data, start, end, &parts)
        if fault:
            raise BadEntries(_FAULTS[fault])
        key = data[parts.key:parts.headers] if parts.key_bytes else b""
        if (parts.headers_bytes != PyBytes_GET_SIZE(headers) or memcmp(
                PyBytes_AS_STRING(headers), data + parts.headers, parts.headers_bytes) != 0):
            headers = data[parts.headers:parts.body]
        found.append(_new_tuple(Entry, (parts.flags, parts.priority, key, parts.ttl_ms, parts.delay_ms, headers,
                                        parts.body, parts.end, parts.start, parts.end)))
        start = parts.end
    return found


def keys(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first=0, Py_ssize_t count=-1):
    cdef Window window = Window()
    cdef Parts parts
    cdef list found = []
    cdef int fault
    window.look(view, start, end)
    start, end = window.select(start, end, first, count)
    while start < end:
        fault = take(window.data, start, end, &parts)
        if fault:
            raise BadEntries(_FAULTS[fault])
        found.append(window.data[parts.key:parts.headers] if parts.key_bytes else b"")
        start = parts.end
    return found


cdef object value_of(const uint8_t *p, Py_ssize_t size):
    cdef uint64_t bits
    cdef double number
    if size >= 1:
        if p[0] == c"s":
            return PyUnicode_DecodeUTF8(<const char *>p + 1, size - 1, "replace")
        if p[0] == c"y":
            return p[1:size]
        if size == 9:
            bits = load64(p + 1)
            if p[0] == c"i":
                return <int64_t>bits
            if p[0] == c"f":
                memcpy(&number, &bits, 8)
                return number
        if size == 2 and p[0] == c"b":
            return p[1] != 0
    raise BadEntries(_FAULTS[10])


def pick(bytes section not None, tuple names not None):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(section)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(section), count = len(names), at = 0, name_end, value_at, value_bytes, i
    cdef list found = [None] * count
    cdef bytes name
    while at < size:
        name_end = at + 1 + p[at]
        value_at = name_end + 2
        if name_end == at + 1 or value_at > size:
            raise BadEntries(_FAULTS[8])
        value_bytes = load16(p + name_end)
        if value_at + value_bytes > size:
            raise BadEntries(_FAULTS[9])
        for i in range(count):
            name = names[i]
            if (PyBytes_GET_SIZE(name) == name_end - at - 1
                    and memcmp(PyBytes_AS_STRING(name), p + at + 1, name_end - at - 1) == 0):
                if found[i] is None:
                    found[i] = value_of(p + value_at, value_bytes)
                break
        at = value_at + value_bytes
    return found


@cython.freelist(512)
cdef class Delivered:
    cdef readonly bytes body
    cdef readonly uint64_t order
    cdef readonly uint32_t handle
    cdef readonly uint32_t delivery_count
    cdef readonly uint64_t timestamp_ms
    cdef readonly uint64_t arrival_ms
    cdef readonly int flags
    cdef readonly int priority
    cdef readonly uint64_t ttl_ms
    cdef readonly uint64_t delay_ms
    cdef readonly bytes headers_raw
    cdef public object owner
    cdef bytes _base
    cdef uint32_t _position
    cdef bytes _key
    cdef object _properties

    def __init__(self):
        raise TypeError("a Delivered is made by deliveries() alone")

    @property
    def id(self):
        low = int.from_bytes(self._base[12:]) + self._position
        return self._base[:12] + (low & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)

    @property
    def id_text(self):
        return self.id.hex()

    @property
    def key(self):
        return self._key.decode(errors="replace") if self._key else None

    @property
    def redelivered(self):
        return self.delivery_count > 1

    @property
    def persistent(self):
        return not self.flags & VOLATILE

    @property
    def properties(self):
        if self._properties is None:
            self._properties = MappingProxyType(application_properties(self.headers_raw))
        return self._properties

    def own(self, str name not None):
        return lookup(self.headers_raw, name.encode()) if self.headers_raw else None

    @property
    def correlation_id(self):
        return self._text(":correlation")

    @property
    def reply_to(self):
        return self._text(":reply-to")

    @property
    def type(self):
        return self._text(":type")

    @property
    def user(self):
        return self._text(":from")

    @property
    def body_kind(self):
        return self._text(":body") or "bytes"

    cdef object _text(self, str name):
        value = self.own(name)
        return value if isinstance(value, str) else None

    @property
    def expiration_ms(self):
        return self.arrival_ms + self.delay_ms + self.ttl_ms if self.ttl_ms else None

    @property
    def delivery_time_ms(self):
        return self.arrival_ms + self.delay_ms

    @property
    def large(self):
        return durable.LARGE.unpack(self.body) if self.flags & IS_LARGE else None

    def __repr__(self):
        return f"<Delivered {self.order} {self.id_text} {len(self.body)} bytes>"


def deliveries(body, uint32_t handle, cls=Delivered, owner=None):
    cdef Window window = Window()
    cdef Parts parts
    cdef list found = []
    cdef Py_ssize_t at = 0, end, beyond
    cdef uint32_t count, position, times
    cdef uint64_t order, sent_ms, arrival_ms
    cdef bytes base, headers = b""
    cdef const uint8_t *data
    cdef Delivered message
    cdef bint ordinary = cls is Delivered
    cdef int fault
    if not issubclass(cls, Delivered):
        raise TypeError(f"{cls.__name__} is not a kind of Delivered")
    window.look(body, 0, 0)
    data = window.data
    end = window.buffer.len
    while at < end:
        if end - at < CHUNK:
            raise BadEntries("A chunk is shorter than its head.")
        order = load64(data + at)
        count = load32(data + at + 8)
        times = load32(data + at + 12)
        sent_ms = load64(data + at + 16)
        arrival_ms = load64(data + at + 24)
        base = data[at + 32:at + 52]
        beyond = at + CHUNK + load32(data + at + 52)
        at += CHUNK
        if beyond > end:
            raise BadEntries("A chunk is longer than the frame it is in.")
        position = 0
        while at < beyond:
            fault = take(data, at, beyond, &parts)
            if fault:
                raise BadEntries(_FAULTS[fault])
            message = Delivered.__new__(Delivered) if ordinary else cls.__new__(cls)
            if parts.headers_bytes == 0:
                message.headers_raw = b""
            else:
                if (parts.headers_bytes != PyBytes_GET_SIZE(headers) or memcmp(
                        PyBytes_AS_STRING(headers), data + parts.headers, parts.headers_bytes) != 0):
                    fault = check_section(data + parts.headers, parts.headers_bytes, 0)
                    if fault:
                        raise BadEntries(_FAULTS[fault])
                    headers = data[parts.headers:parts.body]
                message.headers_raw = headers
            message.body = PyBytes_FromStringAndSize(<const char *>data + parts.body, parts.end - parts.body)
            message.order = order + position
            message.handle = handle
            message.owner = owner
            message.delivery_count = times
            message.timestamp_ms = sent_ms
            message.arrival_ms = arrival_ms
            message.flags = parts.flags
            message.priority = parts.priority
            message.ttl_ms = parts.ttl_ms
            message.delay_ms = parts.delay_ms
            message._base = base
            message._position = position
            message._key = data[parts.key:parts.headers] if parts.key_bytes else b""
            found.append(message)
            position += 1
            at = parts.end
        if position != count:
            raise BadEntries("A chunk has not as many messages as it says.")
    return found
