"""Records of messages to column batches: what bulk reading does to every message.

This is the plain twin, which says what everything means; `_columns.pyx` is the compiled one, and `column_codec.py`
chooses. The layout of a batch is in `column_batch.py`; the way back is in `entry_columns.py`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from fairlead.errors import BadEntries, BadParameter
from fairlead.wire.column_batch import (
    ARRIVED,
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    BODY,
    DELIVERY_COUNT,
    EXPIRES,
    FOREVER,
    HEADER_BYTES,
    HEADERS,
    KEY,
    KEY_OFFSETS,
    KEY_VALUES,
    MESSAGE_ID,
    NAMES,
    OFFSETS,
    ORDER_NUMBER,
    PRIORITY,
    PROPERTIES,
    PUBLISHED,
    RECORD_HEAD,
    SIZE,
    STREAM_ID,
    STREAM_SEQUENCE,
    TIME_MS_LAST,
    VALIDITY,
    VALUE_OFFSETS,
    VALUE_VALUES,
    VALUES,
    VARIABLE,
    Bytes,
    Columns,
    assemble,
    check_asked,
    cost_of,
    parse_with,
)
from fairlead.wire.durable import (
    ENTRY_CRON,
    ENTRY_LARGE,
    ENTRY_TIMED,
    LARGE,
    PRIORITY_MAX,
)
from fairlead.wire.entries import TIME_MS_MAX, Entry, _skip, _walk
from fairlead.wire.properties import check_section, decode_value, lookup, pairs

__all__ = ["ColumnBuilder", "Columns", "parse"]

TABLE_COLUMNS: Final = 5
"""A row of a table is one of a destination's index (journal/index.py): order number of the first message; place;
size of the record | count << 32; time of arrival; flags | skip << 32."""
LOW: Final = 0xFFFF_FFFF
SECTIONS: Final = sum(
    1 << column for column in (HEADERS, PROPERTIES, HEADER_BYTES, EXPIRES, STREAM_ID, STREAM_SEQUENCE)
)
"""Columns for which header sections are looked into."""


class _Row(NamedTuple):
    order: int
    entry: Entry
    view: memoryview
    sent_ms: int
    arrival_ms: int
    id_text: bytes
    deliveries: int


class ColumnBuilder:
    """Gathers messages until it is full, then makes one batch of them.

    Spans are kept until `finish` and must not change meanwhile: bodies are copied once, from there into the batch.
    """

    def __init__(
        self,
        columns: int,
        *,
        keys: Collection[bytes] | None = None,
        priority: tuple[int, int] = (0, PRIORITY_MAX),
        arrived_ms: tuple[int, int] = (0, FOREVER),
        sent_ms: tuple[int, int] = (0, FOREVER),
        ttl_ms: int = 0,
        most_rows: int = BATCH_ROWS_MAX,
        most_bytes: int = BATCH_BYTES_MAX,
    ) -> None:
        """Priorities are from one to another, times from one to before another; `ttl_ms` is the destination's own."""
        check_asked(columns, priority, arrived_ms, sent_ms, ttl_ms, most_rows, most_bytes)
        self._columns = columns
        self._keys = None if keys is None else frozenset(keys)
        self._priority = priority
        self._arrived_ms, self._sent_ms = _open_ended(arrived_ms), _open_ended(sent_ms)
        self._ttl_ms = ttl_ms
        self._most = (most_rows, most_bytes)
        self._cost = cost_of(columns)
        self._rows: list[_Row] = []
        self.bytes = 0
        self.full = False

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return len(self._rows)

    def add_span(
        self,
        span: Bytes,
        table: Bytes | array[int],
        ranges: Bytes | array[int],
        counts: Bytes | array[int] = b"",
        *,
        origin: int = 0,
        row: int = 0,
        order: int = 0,
    ) -> tuple[int, int]:
        """Take the messages of a piece of a journal file; how far it came: table row, order number.

        `table` are rows of u64 (TABLE_COLUMNS), `origin` is the place of the span's first byte. `ranges` are u64 pairs,
        rising: the order numbers to take, from one to before another. `counts` are u64 pairs, rising: order number and
        deliveries, where there were any. If it stops before the end of the table it is full: make a batch and go on
        with `row` and `order` as they were returned. Schedules are left out. BadEntries: a record is damaged; what was
        taken before it is good.
        """
        if row < 0:
            raise BadParameter("There is no row before the first one.")
        view = memoryview(span).cast("B").toreadonly()
        places = _numbers(table, TABLE_COLUMNS)
        wanted, times = _numbers(ranges, 2), _numbers(counts, 2)
        deliveries = dict(zip(times[::2], times[1::2], strict=True))
        total = len(places) // TABLE_COLUMNS
        for number in range(row, total):
            base, place, size, arrival_ms, _ = places[number * TABLE_COLUMNS : (number + 1) * TABLE_COLUMNS]
            least = order if number == row else 0
            stopped = self._add(
                view, place - origin, size & LOW, base, size >> 32, arrival_ms, wanted, deliveries, least
            )
            if stopped >= 0:
                return number, stopped
        return total, 0

    def _add(
        self,
        view: memoryview,
        start: int,
        size: int,
        base: int,
        count: int,
        arrival_ms: int,
        wanted: Sequence[int],
        deliveries: dict[int, int],
        least: int,
    ) -> int:
        """One record. -1, or the order number of the first message there was no room for."""
        if start < 0 or size < RECORD_HEAD.size or start + size > len(view) or base + count > FOREVER:
            raise BadEntries("A record does not lie within the bytes that were read.")
        facts = RECORD_HEAD.unpack_from(view, start)
        sent_ms, id_first, length = facts[9], facts[11], facts[12]
        end = start + size
        at = end - length
        if at < start + RECORD_HEAD.size:
            raise BadEntries("A record is shorter than its messages.")
        if arrival_ms not in self._arrived_ms or sent_ms not in self._sent_ms:
            return -1
        reached = base
        for low, high in _within(wanted, max(base, least), base + count):
            at = _skip(view, at, end, low - reached)
            entries = _walk(view, at, end)
            for reached in range(low, high):
                entry = next(entries, None)
                if entry is None:
                    raise BadEntries("A record has fewer messages than it says.")
                at = entry.end
                if self._is_wanted(entry) and not self._take(
                    reached, entry, view, sent_ms, arrival_ms, id_first, reached - base, deliveries.get(reached, 0)
                ):
                    return reached
            reached = high
        return -1

    def _is_wanted(self, entry: Entry) -> bool:
        if entry.headers and self._columns & SECTIONS:
            check_section(entry.headers)
        return (
            not entry.flags & ENTRY_CRON
            and self._priority[0] <= entry.priority <= self._priority[1]
            and (self._keys is None or entry.key in self._keys)
        )

    def _take(
        self,
        order: int,
        entry: Entry,
        view: memoryview,
        sent_ms: int,
        arrival_ms: int,
        id_first: bytes,
        position: int,
        deliveries: int,
    ) -> bool:
        fixed, weight = self._cost
        cost = fixed + len(entry.headers) * weight
        if self._columns >> KEY & 1:
            cost += len(entry.key)
        if self._columns >> BODY & 1 and not entry.flags & ENTRY_LARGE:
            cost += entry.body_end - entry.body_start
        rows_max, bytes_max = self._most
        if self._rows and (len(self._rows) >= rows_max or self.bytes + cost > bytes_max):
            self.full = True
            return False
        id_low = (int.from_bytes(id_first[12:]) + position) & 0xFFFF_FFFF_FFFF_FFFF
        id_text = (id_first[:12] + id_low.to_bytes(8)).hex().encode()
        self._rows.append(_Row(order, entry, view, sent_ms, arrival_ms, id_text, deliveries))
        self.bytes += cost
        return True

    def finish(self, next_position: int, end: bool) -> bytearray:
        """The batch (docs/durable.md, section 8); the builder is empty again."""
        rows, self._rows, self.bytes, self.full = self._rows, [], 0, False
        buffers: list[tuple[int, int, Bytes]] = []
        for column in range(len(NAMES)):
            if self._columns >> column & 1:
                for part, data in self._column(column, rows):
                    buffers.append((column, part, data))
        return assemble(len(rows), next_position, end, buffers)

    def _column(self, column: int, rows: list[_Row]) -> Iterator[tuple[int, Bytes]]:
        if column in (HEADERS, PROPERTIES):
            yield from _map([texts_of(row.entry.headers, own=column == HEADERS) for row in rows])
        elif column in VARIABLE:
            pieces = [self._piece(column, row) for row in rows]
            if None in pieces:
                yield VALIDITY, _bitmap([piece is not None for piece in pieces])
            yield from zip((OFFSETS, VALUES), _ragged([piece or b"" for piece in pieces]), strict=True)
        else:
            numbers = [self._number(column, row) for row in rows]
            if None in numbers:
                yield VALIDITY, _bitmap([number is not None for number in numbers])
            small = column in (PRIORITY, DELIVERY_COUNT)
            yield VALUES, array("i" if small else "q", [number or 0 for number in numbers]).tobytes()

    def _piece(self, column: int, row: _Row) -> Bytes | None:
        entry = row.entry
        if column == MESSAGE_ID:
            return row.id_text
        if column == KEY:
            return entry.key or None
        if column == BODY:
            return None if entry.flags & ENTRY_LARGE else row.view[entry.body_start : entry.body_end]
        if column == HEADER_BYTES:
            return entry.headers
        stream = lookup(entry.headers, b":stream")
        return stream.encode() if isinstance(stream, str) else None

    def _number(self, column: int, row: _Row) -> int | None:
        entry = row.entry
        if column == ORDER_NUMBER:
            return row.order
        if column == PRIORITY:
            return entry.priority
        if column == PUBLISHED:
            return _microseconds(row.sent_ms)
        if column == ARRIVED:
            return _microseconds(row.arrival_ms)
        if column == DELIVERY_COUNT:
            return min(row.deliveries, 0x7FFF_FFFF)
        if column == EXPIRES:
            ttl_ms = entry.ttl_ms or self._ttl_ms
            return _microseconds(_due_ms(row) + ttl_ms) if ttl_ms else None
        if column == SIZE:
            if entry.flags & ENTRY_LARGE:
                return min(int(LARGE.unpack_from(row.view, entry.body_start)[1]), FOREVER)
            return entry.body_end - entry.body_start
        sequence = lookup(entry.headers, b":sequence")
        return sequence if isinstance(sequence, int) and not isinstance(sequence, bool) else None


def _due_ms(row: _Row) -> int:
    """When it became available (cluster/times.py)."""
    due = row.arrival_ms + row.entry.delay_ms
    if row.entry.flags & ENTRY_TIMED:
        at = lookup(row.entry.headers, b":due")
        if isinstance(at, int):
            due = max(due, min(at, TIME_MS_MAX))
    return due


def _open_ended(times: tuple[int, int]) -> range:
    return range(times[0], times[1] if times[1] < FOREVER else 1 << 64)


def _microseconds(ms: int) -> int:
    return min(ms, TIME_MS_LAST) * 1000


def _numbers(data: Bytes | array[int], group: int) -> list[int]:
    numbers = memoryview(data).cast("B").cast("Q").tolist()
    if len(numbers) % group:
        raise BadParameter(f"{len(numbers)} numbers are not groups of {group}.")
    return numbers


def _within(ranges: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """What of these order numbers is in the ranges."""
    at = bisect_right(ranges[1::2], low)
    while at * 2 < len(ranges) and ranges[at * 2] < high:
        if (first := max(low, ranges[at * 2])) < (beyond := min(high, ranges[at * 2 + 1])):
            yield first, beyond
        at += 1


def texts_of(section: bytes, *, own: bool) -> dict[bytes, bytes]:
    """Fairlead's headers (without the colon) or the application's, as text."""
    found: dict[bytes, bytes] = {}
    for name, value in pairs(section):
        if (name[0] == 0x3A) == own:
            found.setdefault(name[own:].decode(errors="replace").encode(), text_of(value))
    return found


def text_of(value: bytes) -> bytes:
    """A header's value as text."""
    content = decode_value(value)
    if isinstance(content, bool):
        return b"true" if content else b"false"
    if isinstance(content, bytes):
        return content.hex().encode()
    return (repr(content) if isinstance(content, float) else str(content)).encode()


def _bitmap(bits: Sequence[bool]) -> bytes:
    return sum(1 << at for at, bit in enumerate(bits) if bit).to_bytes((len(bits) + 7) // 8, "little")


def _ragged(pieces: Sequence[Bytes]) -> tuple[bytes, bytes]:
    offsets, at = array("i", [0]), 0
    for piece in pieces:
        at += len(piece)
        offsets.append(at)
    return offsets.tobytes(), b"".join(pieces)


def _map(maps: list[dict[bytes, bytes]]) -> Iterator[tuple[int, Bytes]]:
    offsets = array("i", [0])
    for one in maps:
        offsets.append(offsets[-1] + len(one))
    yield OFFSETS, offsets.tobytes()
    names, texts = [name for one in maps for name in one], [text for one in maps for text in one.values()]
    yield from zip((KEY_OFFSETS, KEY_VALUES), _ragged(names), strict=True)
    yield from zip((VALUE_OFFSETS, VALUE_VALUES), _ragged(texts), strict=True)


def parse(blob: Bytes) -> Columns:
    """The batch in these bytes, checked so that whoever reads its buffers never leaves them; BadEntries."""
    return parse_with(blob, _rising, _texts)


def _rising(offsets: Bytes, last: int) -> bool:
    numbers = memoryview(offsets).cast("i").tolist()
    return numbers[0] == 0 and numbers[-1] == last and all(low <= high for low, high in pairwise(numbers))


def _texts(offsets: Bytes, values: Bytes) -> bool:
    data = bytes(values)
    try:
        for low, high in pairwise(memoryview(offsets).cast("i").tolist()):
            data[low:high].decode()
    except UnicodeDecodeError:
        return False
    return True
