# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Frames to bytes and back: the compiled twin of `frames.py`, which says what everything here means."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from fairlead.errors import RemoteProtocolError
from fairlead.wire import kinds
from fairlead.wire.frames import _too_large
from fairlead.wire.headers import decode_headers
from fairlead.wire.trace_context import TraceContext

__all__ = ["Message", "Parser", "encode_frame", "encode_message", "encode_publishes"]

cdef enum:
    HEAD = 32
    HEADER_MAX = 65536
    FRAGMENT_MAX = 1048576
    FRAME_MAX = 1114112
    BODY_MAX = 67108864
    PUBLISH = 0x20
    MESSAGE_LAST = 0x25
    FRAGMENT = 0x2F
    FRAGMENTED = 0x08
    IDENTITY = 0x10

assert (HEAD, HEADER_MAX, FRAGMENT_MAX) == (kinds.HEAD_BYTES, kinds.HEADER_BYTES_MAX, kinds.FRAGMENT_BYTES_MAX)

cdef dict _MODES = kinds.MODES


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


@cython.freelist(512)
@cython.no_gc  # it holds bytes, str and a dict of these: no cycles, and nothing for the collector to walk
cdef class Message:
    cdef readonly int kind
    cdef readonly int flags
    cdef readonly uint32_t number
    cdef readonly uint64_t correlation
    cdef readonly uint64_t sender
    cdef readonly str topic
    cdef readonly str topic_text
    cdef readonly bytes body
    cdef bytes _section
    cdef dict _headers

    def __init__(self, int kind, int flags, uint32_t number, uint64_t correlation, uint64_t sender,
                 str topic_text not None, bytes section not None, bytes body not None):
        self.kind = kind
        self.flags = flags
        self.number = number
        self.correlation = correlation
        self.sender = sender
        self.topic_text = topic_text
        self.topic = topic_text.split("\x1f", 1)[0]
        self.body = body
        self._section = section

    @property
    def topics(self):
        return self.topic_text.split("\x1f")

    @property
    def headers(self):
        if self._headers is None:
            if PyBytes_GET_SIZE(self._section) == 0:
                self._headers = {}
            else:
                self._headers = {key: value for key, value in decode_headers(self._section) if key[0] != ":"}
        return self._headers

    @property
    def user(self):
        if not self.flags & IDENTITY or PyBytes_GET_SIZE(self._section) == 0:
            return None
        key, value = decode_headers(self._section)[0]
        return value.decode(errors="replace") if key == ":from" else None

    @property
    def reply_to(self):
        value = self.protocol_header(":reply")
        return None if value is None else value.decode(errors="replace")

    @property
    def trace(self):
        return None if PyBytes_GET_SIZE(self._section) == 0 else TraceContext.of(self.headers)

    def span_facts(self):
        return self.topic, {"messaging.message.body.size": PyBytes_GET_SIZE(self.body)}

    @property
    def mode(self):
        return _MODES.get(self.kind, "control")

    def protocol_header(self, str key not None):
        if PyBytes_GET_SIZE(self._section) == 0:
            return None
        for name, value in decode_headers(self._section):
            if name == key:
                return value
        return None

    def __repr__(self):
        return f"<Message {self.mode} {self.topic!r} {len(self.body)} bytes from {self.sender}>"


cdef inline uint8_t *put_head(uint8_t *p, uint32_t length, int kind, int flags, uint32_t number,
                              uint64_t correlation, uint64_t peer, bytes topic, bytes headers) noexcept:
    """Write the fixed head, topic and headers; the place after them is returned."""
    cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t section_bytes = PyBytes_GET_SIZE(headers)
    store32(p, length)
    p[4] = <uint8_t>kind
    p[5] = <uint8_t>flags
    p[6] = topic_bytes & 0xFF
    p[7] = (topic_bytes >> 8) & 0xFF
    store32(p + 8, <uint32_t>section_bytes)
    store32(p + 12, number)
    store64(p + 16, correlation)
    store64(p + 24, peer)
    memcpy(p + HEAD, PyBytes_AS_STRING(topic), topic_bytes)
    memcpy(p + HEAD + topic_bytes, PyBytes_AS_STRING(headers), section_bytes)
    return p + HEAD + topic_bytes + section_bytes


cdef inline Py_ssize_t message_size(Py_ssize_t header_bytes, Py_ssize_t size, Py_ssize_t fragment) noexcept nogil:
    """How many bytes a message takes on the wire, fragments and all."""
    cdef Py_ssize_t first, rest
    if size <= fragment:
        return header_bytes + size
    first = fragment - 8 if fragment > 8 else 0
    rest = size - first
    return header_bytes + 8 + first + (rest + fragment - 1) // fragment * HEAD + rest


cdef uint8_t *put_message(uint8_t *p, int kind, int flags, uint32_t number, uint64_t correlation, uint64_t peer,
                          bytes topic, bytes headers, const uint8_t *body, Py_ssize_t size,
                          Py_ssize_t fragment) noexcept:
    cdef Py_ssize_t header_bytes = HEAD + PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t piece, at
    if size <= fragment:
        p = put_head(p, <uint32_t>(header_bytes + size), kind, flags, number, correlation, peer, topic, headers)
        memcpy(p, body, size)
        return p + size
    at = fragment - 8 if fragment > 8 else 0
    p = put_head(p, <uint32_t>(header_bytes + 8 + at), kind, flags | FRAGMENTED, number, correlation, peer,
                 topic, headers)
    store64(p, <uint64_t>size)
    memcpy(p + 8, body, at)
    p += 8 + at
    while at < size:
        piece = min(fragment, size - at)
        p = put_head(p, <uint32_t>(HEAD + piece), FRAGMENT, 0, 0, 0, 0, b"", b"")
        memcpy(p, body + at, piece)
        p += piece
        at += piece
    return p


cdef int check(Py_ssize_t header_bytes, Py_ssize_t length) except -1:
    if header_bytes > HEADER_MAX or length > FRAME_MAX:
        raise _too_large(header_bytes, length)
    return 0


def encode_frame(int kind, int flags, uint32_t number, uint64_t correlation, uint64_t peer,
                 bytes topic not None, bytes headers not None, body):
    cdef bytes content = body if type(body) is bytes else bytes(body)
    cdef Py_ssize_t header_bytes = HEAD + PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(content)
    check(header_bytes, header_bytes + size)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, header_bytes + size)
    cdef uint8_t *p = put_head(<uint8_t *>PyBytes_AS_STRING(out), <uint32_t>(header_bytes + size), kind, flags,
                               number, correlation, peer, topic, headers)
    memcpy(p, PyBytes_AS_STRING(content), size)
    return out


def encode_message(int kind, int flags, uint32_t number, uint64_t correlation, uint64_t peer,
                   bytes topic not None, bytes headers not None, body, Py_ssize_t fragment=FRAGMENT_MAX):
    cdef bytes content = body if type(body) is bytes else bytes(body)
    cdef Py_ssize_t header_bytes = HEAD + PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(content)
    check(header_bytes, header_bytes + min(size, max(fragment, 8)))
    cdef bytes out = PyBytes_FromStringAndSize(NULL, message_size(header_bytes, size, fragment))
    put_message(<uint8_t *>PyBytes_AS_STRING(out), kind, flags, number, correlation, peer, topic, headers,
                <const uint8_t *>PyBytes_AS_STRING(content), size, fragment)
    return out


def encode_publishes(bytes topic not None, bytes headers not None, bodies, Py_ssize_t fragment=FRAGMENT_MAX):
    cdef list items = bodies if type(bodies) is list else list(bodies)
    cdef Py_ssize_t header_bytes = HEAD + PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(headers)
    cdef Py_ssize_t total = 0
    cdef bytes body, out
    cdef uint8_t *p
    check(header_bytes, header_bytes)
    for body in items:
        if body is None:
            raise TypeError("a body must be bytes, not None")
        total += message_size(header_bytes, PyBytes_GET_SIZE(body), fragment)
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    for body in items:
        p = put_message(p, PUBLISH, 0, 0, 0, 0, topic, headers, <const uint8_t *>PyBytes_AS_STRING(body),
                        PyBytes_GET_SIZE(body), fragment)
    return out


cdef class Parser:
    cdef readonly Py_ssize_t frame_max
    cdef readonly Py_ssize_t body_max
    cdef readonly object fault
    cdef bytearray _rest
    cdef Message _unfinished
    cdef bytes _body
    cdef Py_ssize_t _body_have
    cdef bytes _topic_raw
    cdef str _topic_text
    cdef str _topic
    cdef bytes _section
    cdef list _run
    cdef int _run_kind
    cdef str _run_topic

    def __init__(self, Py_ssize_t frame_max=FRAME_MAX, Py_ssize_t body_max=BODY_MAX):
        self.frame_max = frame_max
        self.body_max = body_max
        self._rest = bytearray()
        self._topic_raw = b""
        self._topic_text = ""
        self._topic = ""
        self._section = b""

    @property
    def buffered(self):
        return len(self._rest)

    def feed(self, data):
        return self._feed(data, False)

    def runs(self, data):
        return self._feed(data, True)

    cdef list _feed(self, data, bint grouped):
        if self.fault is not None:
            raise self.fault
        cdef list found = []
        cdef const uint8_t[::1] view = data
        if view.shape[0] == 0:
            return found
        self._run = None
        try:
            self._take(&view[0], view.shape[0], found, grouped)
        except RemoteProtocolError as fault:
            self.fault = fault
            self._rest = bytearray()
            if not found:
                raise
        finally:
            self._run = None
            self._run_topic = None
        return found

    cdef int _take(self, const uint8_t *data, Py_ssize_t size, list found, bint grouped) except -1:
        cdef Py_ssize_t at = 0, length, wanted, piece
        cdef bytearray frame
        while PyByteArray_GET_SIZE(self._rest) > 0 and at < size:
            if PyByteArray_GET_SIZE(self._rest) < HEAD:
                wanted = HEAD
            else:
                wanted = self._length(<const uint8_t *>PyByteArray_AS_STRING(self._rest))
            piece = min(wanted - PyByteArray_GET_SIZE(self._rest), size - at)
            self._keep(data + at, piece)
            at += piece
            if PyByteArray_GET_SIZE(self._rest) >= HEAD:
                length = self._length(<const uint8_t *>PyByteArray_AS_STRING(self._rest))
                if PyByteArray_GET_SIZE(self._rest) == length:
                    frame = self._rest
                    self._rest = bytearray()
                    self._frame(<const uint8_t *>PyByteArray_AS_STRING(frame), length, found, grouped)
        while size - at >= HEAD:
            length = self._length(data + at)
            if size - at < length:
                break
            self._frame(data + at, length, found, grouped)
            at += length
        if at < size:
            self._keep(data + at, size - at)
        return 0

    cdef int _keep(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t before = PyByteArray_GET_SIZE(self._rest)
        self._rest += <bytes>PyBytes_FromStringAndSize(<const char *>data, size)
        assert PyByteArray_GET_SIZE(self._rest) == before + size
        return 0

    cdef Py_ssize_t _length(self, const uint8_t *head) except -1:
        cdef Py_ssize_t length = load32(head)
        if length < HEAD:
            raise RemoteProtocolError(f"A frame of {length} bytes is shorter than its head.")
        if length > self.frame_max:
            raise RemoteProtocolError(f"A frame of {length} bytes exceeds {self.frame_max}.", code="frame-too-large")
        return length

    cdef int _frame(self, const uint8_t *p, Py_ssize_t length, list found, bint grouped) except -1:
        cdef int kind = p[4]
        cdef int flags = p[5]
        cdef Py_ssize_t topic_bytes = p[6] | <Py_ssize_t>p[7] << 8
        cdef Py_ssize_t section_bytes = load32(p + 8)
        cdef Py_ssize_t body_at = HEAD + topic_bytes + section_bytes
        cdef uint64_t total
        cdef Message message
        if body_at > HEADER_MAX:
            raise RemoteProtocolError(f"A header of {body_at} bytes exceeds the limit.", code="header-too-large")
        if body_at > length:
            raise RemoteProtocolError("A frame is shorter than its topic and headers.")
        if kind == FRAGMENT:
            return self._fragment(p + body_at, length - body_at, found, grouped)
        message = Message.__new__(Message)
        message.kind = kind
        message.flags = flags
        message.number = load32(p + 12)
        message.correlation = load64(p + 16)
        message.sender = load64(p + 24)
        if topic_bytes != PyBytes_GET_SIZE(self._topic_raw) or memcmp(
                p + HEAD, PyBytes_AS_STRING(self._topic_raw), topic_bytes) != 0:
            self._new_topic(p + HEAD, topic_bytes)
        message.topic = self._topic
        message.topic_text = self._topic_text
        if section_bytes != PyBytes_GET_SIZE(self._section) or memcmp(
                p + HEAD + topic_bytes, PyBytes_AS_STRING(self._section), section_bytes) != 0:
            self._new_section(p + HEAD + topic_bytes, section_bytes)
        message._section = self._section
        p += body_at
        length -= body_at
        if PUBLISH <= kind <= MESSAGE_LAST:
            if self._unfinished is not None:
                raise RemoteProtocolError("A message begins before the fragments of the last one are in.")
            if flags & FRAGMENTED:
                if length < 8:
                    raise RemoteProtocolError("A fragmented message does not tell its length.")
                total = load64(p)
                if total > <uint64_t>self.body_max:
                    raise RemoteProtocolError(f"A body of {total} bytes exceeds {self.body_max}.",
                                              code="body-too-large")
                message.flags = flags & ~FRAGMENTED
                self._unfinished = message
                self._body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
                self._body_have = 0
                return self._fragment(p + 8, length - 8, found, grouped)
        message.body = PyBytes_FromStringAndSize(<const char *>p, length)
        self._hand_out(message, found, grouped)
        return 0

    cdef inline int _hand_out(self, Message message, list found, bint grouped) except -1:
        if not grouped:
            found.append(message)
        elif self._run is not None and self._run_kind == message.kind and (
                self._run_topic is message.topic_text or self._run_topic == message.topic_text):
            self._run.append(message)
        else:
            self._run = [message]
            self._run_kind = message.kind
            self._run_topic = message.topic_text
            found.append(self._run)
        return 0

    cdef int _fragment(self, const uint8_t *piece, Py_ssize_t size, list found, bint grouped) except -1:
        cdef Message message = self._unfinished
        if message is None:
            raise RemoteProtocolError("A fragment belongs to no message.")
        if size > PyBytes_GET_SIZE(self._body) - self._body_have:
            raise RemoteProtocolError("The fragments are longer than the message they belong to.")
        # Nobody else has seen these bytes yet, so they may still be written.
        memcpy(PyBytes_AS_STRING(self._body) + self._body_have, piece, size)
        self._body_have += size
        if self._body_have == PyBytes_GET_SIZE(self._body):
            message.body = self._body
            self._unfinished = None
            self._body = None
            self._hand_out(message, found, grouped)
        return 0

    cdef int _new_topic(self, const uint8_t *raw, Py_ssize_t size) except -1:
        cdef str text
        try:
            text = PyUnicode_DecodeUTF8(<char *>raw, size, NULL)
        except UnicodeDecodeError:
            raise RemoteProtocolError("A topic is not UTF-8.") from None
        self._topic_text = text
        self._topic = text.split("\x1f", 1)[0] if size and memchr(raw, 0x1F, size) != NULL else text
        self._topic_raw = PyBytes_FromStringAndSize(<const char *>raw, size)
        return 0

    cdef int _new_section(self, const uint8_t *raw, Py_ssize_t size) except -1:
        """Walk the pairs once; `decode_headers` is asked only where something looks wrong."""
        cdef Py_ssize_t at = 0, i, key_end, value_end
        cdef bint doubt = False
        cdef bytes section = PyBytes_FromStringAndSize(<const char *>raw, size)
        while at < size:
            key_end = at + 1 + raw[at]
            if raw[at] == 0 or key_end + 2 > size:
                doubt = True
                break
            for i in range(at + 1, key_end):
                doubt |= raw[i] >= 0x80
            value_end = key_end + 2 + (raw[key_end] | <Py_ssize_t>raw[key_end + 1] << 8)
            if value_end > size or doubt:
                doubt = True
                break
            at = value_end
        if doubt:
            decode_headers(section)
        self._section = section
        return 0
