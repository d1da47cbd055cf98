# Values of headers as text, into bytes that grow, without the interpreter's lock. `columns.py` says what they look like.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc, strtod
from libc.string cimport memcpy

from fairlead.wire._entry_parts cimport is_ascii, letter, load64, store32, store64

cdef enum:
    FAULT_MEMORY = 23


cdef struct Growing:  # bytes that grow
    uint8_t *data
    Py_ssize_t used
    Py_ssize_t room


cdef inline int reserve(Growing *out, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t room = out.room
    cdef void *data
    if out.data != NULL and out.used + more <= room:
        return 0
    room = max(out.used + more, room + room // 2, 256)
    data = realloc(out.data, room)
    if data == NULL:
        return FAULT_MEMORY
    out.data = <uint8_t *>data
    out.room = room
    return 0


cdef inline int put32(Growing *out, Py_ssize_t value) noexcept nogil:
    cdef int fault = reserve(out, 4)
    if fault == 0:
        store32(out.data + out.used, <uint32_t>value)
        out.used += 4
    return fault


cdef inline int put64(Growing *out, uint64_t value) noexcept nogil:
    cdef int fault = reserve(out, 8)
    if fault == 0:
        store64(out.data + out.used, value)
        out.used += 8
    return fault


cdef inline int put_bit(Growing *out, Py_ssize_t at, bint value) noexcept nogil:
    cdef int fault
    if at & 7 == 0:
        fault = reserve(out, 1)
        if fault:
            return fault
        out.data[out.used] = 0
        out.used += 1
    if value:
        out.data[at >> 3] |= 1 << (at & 7)
    return 0


cdef inline int put_text(Growing *out, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """UTF-8 as it is; what is none becomes a replacement character, as Python's `errors="replace"` does it."""
    cdef Py_ssize_t at = 0, step
    cdef int fault
    if is_ascii(p, size):
        fault = reserve(out, size)
        if fault == 0:
            memcpy(out.data + out.used, p, size)
            out.used += size
        return fault
    fault = reserve(out, size * 3)
    if fault:
        return fault
    while at < size:
        step = letter(p + at, size - at)
        if step > 0:
            memcpy(out.data + out.used, p + at, step)
            out.used += step
            at += step
        else:
            memcpy(out.data + out.used, <const char *>b"\xef\xbf\xbd", 3)
            out.used += 3
            at -= step
    return 0


cdef inline void hex_of(uint8_t *out, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef const char *digits = b"0123456789abcdef"
    cdef Py_ssize_t at
    for at in range(size):
        out[2 * at] = digits[p[at] >> 4]
        out[2 * at + 1] = digits[p[at] & 15]


cdef inline int put_number(Growing *out, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef uint64_t rest = <uint64_t>value if value >= 0 else <uint64_t>0 - <uint64_t>value
    cdef int at = 20
    cdef int fault = reserve(out, 21)
    if fault:
        return fault
    while True:
        at -= 1
        digits[at] = 48 + <uint8_t>(rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        out.data[out.used] = c"-"
        out.used += 1
    memcpy(out.data + out.used, digits + at, 20 - at)
    out.used += 20 - at
    return 0


cdef inline bint count_up(char *text) noexcept nogil:
    """The next number of as many digits; False: there is none."""
    cdef int at = 0
    while text[at] != c"e":
        at += 1
    while at > 0:
        at -= 1
        if c"0" <= text[at] < c"9":
            text[at] += 1
            return True
        if text[at] == c"9":
            text[at] = c"0"
    return False


cdef inline int put_float(Growing *out, uint64_t bits) noexcept nogil:
    """The shortest text that gives the same number again, laid out as Python's `repr` does it."""
    cdef double value
    cdef char text[64]
    cdef char digits[20]
    cdef uint8_t *p
    cdef int precision, count, at, exponent, sign, power = (bits >> 52) & 0x7FF
    cdef bint minus = bits >> 63
    cdef int fault = reserve(out, 32)
    if fault:
        return fault
    p = out.data + out.used
    if minus and not (power == 0x7FF and bits << 12 != 0):
        p[0] = c"-"
        p += 1
    bits &= <uint64_t>0x7FFFFFFFFFFFFFFF
    memcpy(&value, &bits, 8)
    if power == 0x7FF:
        memcpy(p, <const char *>b"nan" if bits << 12 else <const char *>b"inf", 3)
        out.used = p + 3 - out.data
        return 0
    # Seventeen digits always do. Fifteen without the zeros at their end are the shortest of all where they do; but for
    # very small numbers, which have fewer digits and have to be tried one by one.
    precision = 15 if power > 0 else 1
    while True:
        snprintf(text, sizeof(text), "%.*e", precision - 1, value)
        if precision >= 17 or strtod(text, NULL) == value:
            break
        # The numbers below a power of two lie closer: what does it may be the farther neighbour.
        if bits << 12 == 0 and power > 1 and count_up(text) and strtod(text, NULL) == value:
            break
        precision += 1
    count = at = 0
    while text[at] != c"e":  # whatever the locale puts between the digits
        if c"0" <= text[at] <= c"9":
            digits[count] = text[at]
            count += 1
        at += 1
    at += 1
    sign = -1 if text[at] == c"-" else 1
    exponent = 0
    at += 1
    while text[at]:
        exponent = exponent * 10 + text[at] - 48
        at += 1
    exponent *= sign
    while count > 1 and digits[count - 1] == c"0":
        count -= 1
    if -4 <= exponent < 16:
        if exponent < 0:
            memcpy(p, <const char *>b"0.0000", 6)
            p += 1 - exponent
            memcpy(p, digits, count)
            p += count
        else:
            for at in range(max(count, exponent + 2)):
                if at == exponent + 1:
                    p[0] = c"."
                    p += 1
                p[0] = digits[at] if at < count else c"0"
                p += 1
    else:
        p[0] = digits[0]
        p += 1
        if count > 1:
            p[0] = c"."
            memcpy(p + 1, digits + 1, count - 1)
            p += count
        p += snprintf(<char *>p, 8, "e%c%02d", <int>(45 if exponent < 0 else 43), abs(exponent))
    out.used = p - out.data
    return 0


cdef inline int put_value(Growing *out, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """A header's value, of a checked section, as text."""
    cdef int fault
    if p[0] == c"s":
        return put_text(out, p + 1, size - 1)
    if p[0] == c"i":
        return put_number(out, <int64_t>load64(p + 1))
    if p[0] == c"f":
        return put_float(out, load64(p + 1))
    if p[0] == c"b":
        return put_text(out, <const uint8_t *>b"true", 4) if p[1] else put_text(out, <const uint8_t *>b"false", 5)
    fault = reserve(out, 2 * (size - 1))
    if fault == 0:
        hex_of(out.data + out.used, p + 1, size - 1)
        out.used += 2 * (size - 1)
    return fault


cdef inline uint64_t hash_of(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = 0xCBF29CE484222325
    cdef Py_ssize_t at
    for at in range(size):
        value = (value ^ p[at]) * <uint64_t>0x100000001B3
    return value ^ value >> 29
