# Entries and their texts read in C, without the interpreter's lock. `entries.py` says what everything means.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    ENTRY_HEAD = 16
    ENTRY_TIMES = 16
    ENTRY_LARGE_BYTES = 48
    F_KEY = 1
    F_TIMED = 2
    F_LARGE = 4
    F_DEDUP = 16
    F_CRON = 32
    F_ALL = 63
    PRIORITY_HIGHEST = 9
    SECTION_BYTES_MAX = 65536
    # Faults are told by number; the words for them are the caller's.
    FAULT_LENGTH = 1
    FAULT_FLAGS = 2
    FAULT_KEY = 3
    FAULT_PARTS = 4
    FAULT_LARGE = 5
    FAULT_TIMES = 6
    FAULT_TEXT = 7
    FAULT_NAME = 8
    FAULT_VALUE = 9
    FAULT_TYPE = 10


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


cdef inline void store64(uint8_t *p, uint64_t value) noexcept nogil:
    store32(p, <uint32_t>value)
    store32(p + 4, <uint32_t>(value >> 32))


cdef inline bint is_ascii(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef Py_ssize_t at = 0
    while at + 8 <= size:
        memcpy(&word, p + at, 8)
        if word & <uint64_t>0x8080808080808080:
            return False
        at += 8
    while at < size:
        if p[at] >= 0x80:
            return False
        at += 1
    return True


cdef inline Py_ssize_t letter(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """How many bytes the UTF-8 letter there has; below 0: so many bytes are none, and stand for one that is missing."""
    cdef uint8_t lead = p[0], low = 0x80, high = 0xBF
    cdef Py_ssize_t more, at
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return -1
    if lead < 0xE0:
        more = 1
    elif lead < 0xF0:
        more = 2
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    else:
        more = 3
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    for at in range(1, more + 1):
        if at == size or p[at] < low or p[at] > high:
            return -at
        low = 0x80
        high = 0xBF
    return more + 1


cdef inline bint is_text(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Is it UTF-8?"""
    cdef Py_ssize_t at = 0, step
    if is_ascii(p, size):
        return True
    while at < size:
        step = letter(p + at, size - at)
        if step < 0:
            return False
        at += step
    return True


cdef inline int check_entry(const uint8_t *p, Py_ssize_t room) noexcept nogil:
    """Is there an entry within so many bytes, but for what its headers say? The number of the fault, or 0."""
    cdef Py_ssize_t length = load32(p) if room >= ENTRY_HEAD else 0
    cdef Py_ssize_t key_bytes, key_at, body_at
    cdef uint32_t headers_bytes
    cdef int flags
    if length < ENTRY_HEAD or length > room:
        return FAULT_LENGTH
    flags = p[4]
    if flags & ~F_ALL or p[5] > PRIORITY_HIGHEST or load32(p + 12):
        return FAULT_FLAGS
    key_bytes = load16(p + 6)
    if ((flags & F_KEY) != 0) != (key_bytes != 0):
        return FAULT_KEY
    headers_bytes = load32(p + 8)
    key_at = ENTRY_HEAD + (ENTRY_TIMES if flags & F_TIMED else 0)
    body_at = key_at + key_bytes + <Py_ssize_t>headers_bytes
    if headers_bytes > SECTION_BYTES_MAX or body_at > length:
        return FAULT_PARTS
    if flags & F_LARGE and length - body_at != ENTRY_LARGE_BYTES:
        return FAULT_LARGE
    if flags & F_TIMED and (load64(p + ENTRY_HEAD) > <uint64_t>1 << 53 or load64(p + ENTRY_HEAD + 8) > <uint64_t>1 << 53):
        return FAULT_TIMES
    if key_bytes and not is_text(p + key_at, key_bytes):
        return FAULT_TEXT
    return 0


cdef inline bint is_named(const uint8_t *name, Py_ssize_t size, const char *wanted, Py_ssize_t wanted_bytes) noexcept nogil:
    return size == wanted_bytes and memcmp(name, wanted, size) == 0


cdef inline int check_headers(const uint8_t *p, Py_ssize_t size, int *flags) noexcept nogil:
    """Are all names and values well-formed? The number of the fault; `flags`: DEDUP and CRON where it has such headers."""
    cdef Py_ssize_t at = 0, name_end, value_at, value_bytes
    cdef uint8_t kind
    flags[0] = 0
    while at < size:
        name_end = at + 1 + p[at]
        value_at = name_end + 2
        if name_end == at + 1 or value_at > size:
            return FAULT_NAME
        value_bytes = load16(p + name_end)
        if value_at + value_bytes > size:
            return FAULT_VALUE
        kind = p[value_at] if value_bytes else 0
        if kind == c"s":
            if is_named(p + at + 1, name_end - at - 1, b":dedup", 6):
                flags[0] |= F_DEDUP
            elif is_named(p + at + 1, name_end - at - 1, b":cron", 5):
                flags[0] |= F_CRON
        elif kind == c"b":
            if value_bytes != 2:
                return FAULT_TYPE
        elif kind == c"i" or kind == c"f":
            if value_bytes != 9:
                return FAULT_TYPE
        elif kind != c"y":
            return FAULT_TYPE
        at = value_at + value_bytes
    return 0
