"""Messages of the durable road in bytes: entries (docs/durable.md, section 3), and what a client makes of DELIVER.

This is the plain twin, which says what everything means; `_entries.pyx` is the compiled one, and `entry_codec.py`
chooses. Whoever takes entries from a peer has them surveyed first; everything here keeps inside `start` and `end`
whatever the bytes say, and raises BadEntries where they are not entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, overload

from fairlead.errors import BadEntries, BadParameter, HeaderTooLarge
from fairlead.wire.durable import (
    CHUNK,
    COUNT_MAX,
    ENTRY,
    ENTRY_CRON,
    ENTRY_DEDUP,
    ENTRY_FLAGS,
    ENTRY_KEY,
    ENTRY_LARGE,
    ENTRY_TIMED,
    ENTRY_VOLATILE,
    LARGE,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    TIMES,
)
from fairlead.wire.kinds import HEADER_BYTES_MAX
from fairlead.wire.properties import (
    SERVER_PREFIXES,
    Value,
    application_properties,
    check_section,
    decode_value,
    lookup,
    pairs,
)

__all__ = [
    "Delivered",
    "Entry",
    "deliveries",
    "details",
    "encode",
    "encode_many",
    "forged",
    "keys",
    "pick",
    "span",
    "survey",
]

Bytes = bytes | bytearray | memoryview

KEY_BYTES_MAX: Final = 65_535
ENTRY_BYTES_MAX: Final = 0x7FFF_FFFF
TIME_MS_MAX: Final = 1 << 53  # so that times can be added without a thought
_CHOSEN: Final = ENTRY_FLAGS & ~(ENTRY_KEY | ENTRY_TIMED)


class Entry(NamedTuple):
    """What an entry says; where it and its body are, as offsets into the buffer it was read from."""

    flags: int
    priority: int
    key: bytes
    ttl_ms: int
    delay_ms: int
    headers: bytes
    body_start: int
    body_end: int
    start: int
    end: int


def encode(
    body: bytes,
    *,
    headers: bytes = b"",
    key: bytes = b"",
    priority: int = PRIORITY_DEFAULT,
    ttl_ms: int = 0,
    delay_ms: int = 0,
    flags: int = 0,
) -> bytes:
    """One entry. The flags KEY and TIMED come of themselves; headers are a section made by `encode_properties`."""
    flags, times = _begin(flags, priority, ttl_ms, delay_ms, headers)
    if key:
        if len(key) > KEY_BYTES_MAX:
            raise BadParameter(f"A key of {len(key)} bytes is longer than {KEY_BYTES_MAX}.")
        flags |= ENTRY_KEY
    length = ENTRY.size + len(times) + len(key) + len(headers) + len(body)
    if length > ENTRY_BYTES_MAX:
        raise BadParameter(f"A message of {length} bytes is longer than {ENTRY_BYTES_MAX}.")
    return b"".join((ENTRY.pack(length, flags, priority, len(key), len(headers), 0), times, key, headers, body))


def encode_many(
    bodies: Sequence[bytes],
    headers: bytes = b"",
    priority: int = PRIORITY_DEFAULT,
    *,
    flags: int = 0,
    ttl_ms: int = 0,
    delay_ms: int = 0,
) -> bytes:
    """Entries that differ in their bodies only, one behind the other."""
    flags, times = _begin(flags, priority, ttl_ms, delay_ms, headers)
    fixed = ENTRY.size + len(times) + len(headers)
    parts: list[bytes] = []
    for body in bodies:
        if not isinstance(body, bytes):
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        if fixed + len(body) > ENTRY_BYTES_MAX:
            raise BadParameter(f"A message of {fixed + len(body)} bytes is longer than {ENTRY_BYTES_MAX}.")
        parts += (ENTRY.pack(fixed + len(body), flags, priority, 0, len(headers), 0), times, headers, body)
    return b"".join(parts)


def _begin(flags: int, priority: int, ttl_ms: int, delay_ms: int, headers: bytes) -> tuple[int, bytes]:
    """The flags, with TIMED if there are times, and these packed."""
    if flags & ~_CHOSEN:
        raise BadParameter(f"The flags {flags:#x} cannot be chosen.")
    if not 0 <= priority <= PRIORITY_MAX:
        raise BadParameter(f"A priority is 0 to {PRIORITY_MAX}, not {priority}.")
    if len(headers) > HEADER_BYTES_MAX:
        raise HeaderTooLarge(
            f"All properties together take {len(headers)} bytes, more than {HEADER_BYTES_MAX}.",
            size=len(headers),
            limit=HEADER_BYTES_MAX,
        )
    if not (ttl_ms or delay_ms):
        return flags, b""
    if not (0 <= ttl_ms <= TIME_MS_MAX and 0 <= delay_ms <= TIME_MS_MAX):
        raise BadParameter(f"Time to live and delay are 0 to {TIME_MS_MAX} ms, not {ttl_ms} and {delay_ms}.")
    return flags | ENTRY_TIMED, TIMES.pack(ttl_ms, delay_ms)


def survey(view: Bytes, start: int, end: int) -> tuple[int, int, int, int]:
    """Check what a peer sent, to the last byte: how many, flags of all or-ed, lowest and highest priority."""
    count, flags_or, low, high = 0, 0, PRIORITY_MAX, 0
    checked = b""
    for entry in _walk(view, start, end):
        if count == COUNT_MAX:
            raise BadEntries(f"There are more than {COUNT_MAX} messages in one frame.")
        if entry.headers and (entry.headers != checked or entry.flags & (ENTRY_DEDUP | ENTRY_CRON)):
            _check_headers(entry)
            checked = entry.headers
        elif not entry.headers and entry.flags & (ENTRY_DEDUP | ENTRY_CRON):
            _check_headers(entry)
        count += 1
        flags_or |= entry.flags
        low = min(low, entry.priority)
        high = max(high, entry.priority)
    if not count:
        raise BadEntries("There is no message where there should be one.")
    return count, flags_or, low, high


def _check_headers(entry: Entry) -> None:
    check_section(entry.headers)
    for flag, name in ((ENTRY_DEDUP, b":dedup"), (ENTRY_CRON, b":cron")):
        if entry.flags & flag and not any(n == name and v[0] == 0x73 for n, v in pairs(entry.headers)):
            raise BadEntries(f"A message without a {name.decode()} header says it has one.")


def forged(view: Bytes, start: int, end: int) -> bool:
    """Does any of them bring a header that only the server may set?"""
    return any(
        name.startswith(SERVER_PREFIXES)
        for entry in _walk(view, start, end)
        if entry.headers
        for name, _ in pairs(entry.headers)
    )


def span(view: Bytes, start: int, end: int, first: int, count: int) -> tuple[int, int]:
    """Where `count` entries begin and end, from the one numbered `first` of those between `start` and `end`."""
    if first < 0 or count < 0:
        raise BadEntries("There is no entry before the first one.")
    _check_bounds(view, start, end)
    at = _skip(view, start, end, first)
    return at, _skip(view, at, end, count)


def details(view: Bytes, start: int, end: int, first: int = 0, count: int = -1) -> list[Entry]:
    """Everything about `count` entries (-1: all) from the one numbered `first`."""
    if count >= 0:
        start, end = span(view, start, end, first, count)
    elif first:
        start, _ = span(view, start, end, first, 0)
    return list(_walk(view, start, end))


def keys(view: Bytes, start: int, end: int, first: int = 0, count: int = -1) -> list[bytes]:
    """Only their keys; empty: it has none."""
    return [entry.key for entry in details(view, start, end, first, count)]


def pick(section: bytes, names: tuple[bytes, ...]) -> list[Value | None]:
    """The values of these names, each one different, in a header section; None where it has none."""
    found: list[Value | None] = [None] * len(names)
    for name, value in pairs(section):
        if name in names and found[names.index(name)] is None:
            found[names.index(name)] = decode_value(value)
    return found


def _check_bounds(view: Bytes, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(view):
        raise BadEntries(f"Entries from {start} to {end} are not within {len(view)} bytes.")


def _skip(view: Bytes, at: int, end: int, count: int) -> int:
    for _ in range(count):
        length = int.from_bytes(view[at : at + 4], "little") if end - at >= ENTRY.size else 0
        if not ENTRY.size <= length <= end - at:
            raise BadEntries("An entry is longer than the bytes there are, or shorter than its head.")
        at += length
    return at


def _walk(view: Bytes, start: int, end: int) -> Iterator[Entry]:
    """Each entry, checked but for what its headers say."""
    _check_bounds(view, start, end)
    at = start
    while at < end:
        beyond = _skip(view, at, end, 1)
        _, flags, priority, key_bytes, section_bytes, zero = ENTRY.unpack_from(view, at)
        if flags & ~ENTRY_FLAGS or zero or priority > PRIORITY_MAX:
            raise BadEntries("An entry has flags or a priority that do not exist.")
        if bool(flags & ENTRY_KEY) != bool(key_bytes):
            raise BadEntries("An entry has a key and does not say so, or the other way round.")
        key_at = at + ENTRY.size + (TIMES.size if flags & ENTRY_TIMED else 0)
        body_at = key_at + key_bytes + section_bytes
        if section_bytes > HEADER_BYTES_MAX or body_at > beyond:
            raise BadEntries("An entry is shorter than its key and headers, or these are too long.")
        if flags & ENTRY_LARGE and beyond - body_at != LARGE.size:
            raise BadEntries("A large message is not named as one.")
        ttl_ms, delay_ms = TIMES.unpack_from(view, at + ENTRY.size) if flags & ENTRY_TIMED else (0, 0)
        if ttl_ms > TIME_MS_MAX or delay_ms > TIME_MS_MAX:
            raise BadEntries("A time to live or a delay is longer than anybody can wait.")
        key = bytes(view[key_at : key_at + key_bytes])
        if not key.isascii():
            try:
                key.decode()
            except UnicodeDecodeError:
                raise BadEntries("A key is not UTF-8.") from None
        headers = bytes(view[key_at + key_bytes : body_at])
        yield Entry(flags, priority, key, ttl_ms, delay_ms, headers, body_at, beyond, at, beyond)
        at = beyond


class Delivered:
    """A message as a consumer gets it; headers are read when asked for.

    A client makes a subclass (with empty `__slots__`) for what can be done with a message, and gives itself as `owner`.
    """

    __slots__ = (
        "_base", "_key", "_position", "_properties", "arrival_ms", "body", "delay_ms", "delivery_count", "flags",
        "handle", "headers_raw", "order", "owner", "priority", "timestamp_ms", "ttl_ms",
    )  # fmt: skip

    body: bytes
    order: int  # its number at its destination
    handle: int  # the consumer it came through
    delivery_count: int  # 1: the first time
    timestamp_ms: int  # sent, by the clock of the sender
    arrival_ms: int  # taken by the server, by its clock
    flags: int
    priority: int
    ttl_ms: int
    delay_ms: int
    headers_raw: bytes
    owner: Any  # whoever asked for it; nothing here looks at it
    _base: bytes
    _position: int
    _key: bytes
    _properties: Mapping[str, Value] | None

    def __init__(self) -> None:
        raise TypeError("a Delivered is made by deliveries() alone")

    @property
    def id(self) -> bytes:
        """The message id, 20 bytes."""
        low = int.from_bytes(self._base[12:]) + self._position
        return self._base[:12] + (low & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)

    @property
    def id_text(self) -> str:
        """The message id in 40 hexadecimal digits."""
        return self.id.hex()

    @property
    def key(self) -> str | None:
        """The grouping key."""
        return self._key.decode(errors="replace") if self._key else None

    @property
    def redelivered(self) -> bool:
        """Was it delivered before, to anybody?"""
        return self.delivery_count > 1

    @property
    def persistent(self) -> bool:
        """Does it outlive a crash of the server?"""
        return not self.flags & ENTRY_VOLATILE

    @property
    def properties(self) -> Mapping[str, Value]:
        """What the application that sent it set."""
        if self._properties is None:
            self._properties = MappingProxyType(application_properties(self.headers_raw))
        return self._properties

    def own(self, name: str) -> Value | None:
        """One of Fairlead's own headers (`:type` …)."""
        return lookup(self.headers_raw, name.encode()) if self.headers_raw else None

    @property
    def correlation_id(self) -> str | None:
        """What this message is an answer to, or belongs to, as its sender said."""
        return self._text(":correlation")

    @property
    def reply_to(self) -> str | None:
        """Where an answer should be sent."""
        return self._text(":reply-to")

    @property
    def type(self) -> str | None:
        """The kind of message, in the words of the application."""
        return self._text(":type")

    @property
    def user(self) -> str | None:
        """Who sent it: set by the server."""
        return self._text(":from")

    @property
    def body_kind(self) -> str:
        """`text`, `bytes`, `map` or `list`."""
        return self._text(":body") or "bytes"

    def _text(self, name: str) -> str | None:
        value = self.own(name)
        return value if isinstance(value, str) else None

    @property
    def expiration_ms(self) -> int | None:
        """When it expires, by the server's clock; None: never."""
        return self.arrival_ms + self.delay_ms + self.ttl_ms if self.ttl_ms else None

    @property
    def delivery_time_ms(self) -> int:
        """From when on it could be delivered, by the server's clock."""
        return self.arrival_ms + self.delay_ms

    @property
    def large(self) -> tuple[int, int, bytes] | None:
        """Transfer number, length and SHA-256 of a body that has to be fetched; None: the body is here."""
        return LARGE.unpack(self.body) if self.flags & ENTRY_LARGE else None

    def __repr__(self) -> str:
        return f"<Delivered {self.order} {self.id_text} {len(self.body)} bytes>"


D = TypeVar("D", bound=Delivered)


@overload
def deliveries(body: Bytes, handle: int) -> list[Delivered]: ...
@overload
def deliveries(body: Bytes, handle: int, cls: type[D], owner: object = None) -> list[D]: ...
def deliveries(body: Bytes, handle: int, cls: type[Delivered] = Delivered, owner: object = None) -> list[Any]:
    """All messages in the body of a DELIVER frame, in their order, as objects of `cls`."""
    found: list[Delivered] = []
    at, end = 0, len(body)
    headers = b""
    while at < end:
        if end - at < CHUNK.size:
            raise BadEntries("A chunk is shorter than its head.")
        order, count, times, sent_ms, arrival_ms, base, size, _ = CHUNK.unpack_from(body, at)
        at += CHUNK.size
        if size > end - at:
            raise BadEntries("A chunk is longer than the frame it is in.")
        entries = list(_walk(body, at, at + size))
        at += size
        if len(entries) != count:
            raise BadEntries("A chunk has not as many messages as it says.")
        for position, entry in enumerate(entries):
            if entry.headers and entry.headers != headers:
                check_section(entry.headers)
                headers = entry.headers
            message = cls.__new__(cls)
            message.body = bytes(body[entry.body_start : entry.body_end])
            message.order = (order + position) & 0xFFFF_FFFF_FFFF_FFFF
            message.handle = handle
            message.owner = owner
            message.delivery_count = times
            message.timestamp_ms = sent_ms
            message.arrival_ms = arrival_ms
            message.flags = entry.flags
            message.priority = entry.priority
            message.ttl_ms = entry.ttl_ms
            message.delay_ms = entry.delay_ms
            message.headers_raw = entry.headers
            message._base = base
            message._position = position
            message._key = entry.key
            message._properties = None
            found.append(message)
    return found
