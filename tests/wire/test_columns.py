"""Column batches: both twins, one by one and against each other, and any bytes at all."""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.records import STORE_RECORD
from fairlead.cluster.stored import Head, id_plus
from fairlead.cluster.times import expires_ms
from fairlead.errors import BadEntries, BadParameter
from fairlead.journal.index import COLUMNS as INDEX_COLUMNS
from fairlead.wire import column_batch as layout
from fairlead.wire import columns as plain
from fairlead.wire import durable, entry_codec
from fairlead.wire.column_batch import BATCH, BUFFER, EVERY, NAMES, Columns
from fairlead.wire.entries import TIME_MS_MAX
from fairlead.wire.properties import OWN_NAMES, Value, application_properties, decode, encode_properties

try:
    from fairlead.wire import _columns as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [plain] if compiled is None else [plain, compiled]
twin = pytest.mark.parametrize("twin", BOTH, ids=lambda module: module.__name__.rpartition(".")[2])
two = pytest.mark.skipif(compiled is None, reason="the extension is not built")

ALL_ORDERS = array("Q", (0, 1 << 62))
ID = bytes(range(12)) + (2 << 56 | 1000).to_bytes(8)

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
SECTIONS = st.builds(
    encode_properties,
    st.dictionaries(st.sampled_from(["a", "amount", "é", "x-y", "_1"]), VALUES, max_size=3),
    st.dictionaries(st.sampled_from([":type", ":stream", ":sequence", ":due", ":dedup"]), VALUES, max_size=3),
)
TIMES = st.one_of(st.just(0), st.integers(0, 10_000), st.integers(0, TIME_MS_MAX))
MESSAGES = st.fixed_dictionaries(
    {"body": st.binary(max_size=40)},
    optional={
        "headers": SECTIONS,
        "key": st.text(max_size=3).map(str.encode),
        "priority": st.integers(0, 9),
        "ttl_ms": TIMES,
        "delay_ms": TIMES,
        "flags": st.sampled_from([0, 0, durable.ENTRY_VOLATILE, durable.ENTRY_CRON]),
    },
)
RECORDS = st.lists(st.lists(MESSAGES, min_size=1, max_size=5), min_size=1, max_size=5)
CLOCKS = st.one_of(st.integers(0, 2**41), st.integers(0, 2**64 - 1))


def record(
    messages: list[dict[str, Any]], order: int, *, sent_ms: int = 1_000, between: bytes = b"", id_first: bytes = ID
) -> bytes:
    """The body of a record of messages; `between` is what some kinds have before their entries."""
    entries = b"".join(entry_codec.encode(**message) for message in messages)
    head = Head(1, 0, order, len(messages), bytes(20), 0, 0, 4, 4, sent_ms, 7, id_first, len(entries))
    return head.pack() + between + entries


def span_of(bodies: list[bytes], firsts: list[int], counts: list[int], arrivals: list[int], origin: int = 0) -> Any:
    """A piece of a journal file with these records, and the index of it."""
    span, table = bytearray(b"head"), array("Q")
    for body, first, count, arrival_ms in zip(bodies, firsts, counts, arrivals, strict=True):
        table.extend((first, origin + len(span), len(body) | count << 32, arrival_ms, 0))
        span += body + b"\xff" * 13
    return bytes(span), table


def one_record(messages: list[dict[str, Any]], first: int = 10, **facts: Any) -> tuple[bytes, array[int]]:
    return span_of([record(messages, first, **facts)], [first], [len(messages)], [5_000])  # type: ignore[no-any-return]


def build(module: ModuleType, messages: list[dict[str, Any]], columns: int = EVERY, **facts: Any) -> Columns:
    span, table = one_record(messages)
    builder = module.ColumnBuilder(columns, **facts)
    assert builder.add_span(span, table, ALL_ORDERS) == (1, 0)
    return module.parse(builder.finish(99, True))  # type: ignore[no-any-return]


def numbers(found: Columns, column: int, kind: str = "q") -> list[int]:
    return found.buffers[column, layout.VALUES].cast(kind).tolist()  # type: ignore[call-overload,no-any-return]


def pieces(found: Columns, column: int, parts: tuple[int, int] = (layout.OFFSETS, layout.VALUES)) -> list[bytes | None]:
    offsets = found.buffers[column, parts[0]].cast("i").tolist()
    data = bytes(found.buffers[column, parts[1]])
    return [data[low:high] for low, high in pairwise(offsets)]


def nulls(found: Columns, column: int) -> list[bool]:
    bitmap = found.buffers.get((column, layout.VALIDITY))
    return [bitmap is not None and not bitmap[at >> 3] >> (at & 7) & 1 for at in range(found.rows)]


def maps(found: Columns, column: int) -> list[dict[str, str]]:
    offsets = found.buffers[column, layout.OFFSETS].cast("i").tolist()
    names = pieces(found, column, (layout.KEY_OFFSETS, layout.KEY_VALUES))
    texts = pieces(found, column, (layout.VALUE_OFFSETS, layout.VALUE_VALUES))
    pairs = [(name.decode(), text.decode()) for name, text in zip(names, texts, strict=True)]  # type: ignore[union-attr]
    found_maps = [dict(pairs[low:high]) for low, high in pairwise(offsets)]
    assert sum(map(len, found_maps)) == len(pairs)  # no name twice
    return found_maps


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (BadEntries, BadParameter) as error:
        return str(error) if "numbers" not in str(error) else type(error)


def as_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return repr(value) if isinstance(value, float) else str(value)


def test_the_layout_is_that_of_the_records_and_of_the_index() -> None:
    assert layout.RECORD_HEAD.format == STORE_RECORD.format
    assert STORE_RECORD.pack(*([0] * 4), b"", *([0] * 6), b"id", 0).index(b"id") == layout.RECORD_ID_AT
    assert plain.TABLE_COLUMNS == INDEX_COLUMNS
    assert {":stream", ":sequence"} <= OWN_NAMES


@twin
@given(st.lists(MESSAGES, min_size=1, max_size=6), CLOCKS, st.sampled_from([0, 60_000]))
def test_every_column_says_what_the_message_says(
    twin: ModuleType, messages: list[dict[str, Any]], sent_ms: int, ttl_ms: int
) -> None:
    span, table = one_record(messages, sent_ms=sent_ms)
    builder = twin.ColumnBuilder(EVERY, ttl_ms=ttl_ms)
    assert builder.add_span(span, table, ALL_ORDERS, array("Q", (11, 3))) == (1, 0)
    shown = [at for at, message in enumerate(messages) if not message.get("flags", 0) & durable.ENTRY_CRON]
    assert builder.rows == len(shown)
    found = twin.parse(builder.finish(10 + len(messages), False))
    assert (found.rows, found.next, found.end, found.mask) == (len(shown), 10 + len(messages), False, EVERY)
    assert (builder.rows, builder.bytes) == (0, 0)
    chosen = [messages[at] for at in shown]
    sections = [message.get("headers", b"") for message in chosen]
    entries = [entry_codec.details(one := entry_codec.encode(**message), 0, len(one))[0] for message in chosen]
    last_us = layout.TIME_MS_LAST * 1000
    assert numbers(found, layout.ORDER_NUMBER) == [10 + at for at in shown]
    assert pieces(found, layout.MESSAGE_ID) == [id_plus(ID, at).hex().encode() for at in shown]
    assert pieces(found, layout.KEY) == [message.get("key", b"") for message in chosen]
    assert nulls(found, layout.KEY) == [not message.get("key") for message in chosen]
    assert pieces(found, layout.BODY) == [message["body"] for message in chosen]
    assert not any(nulls(found, layout.BODY))
    assert pieces(found, layout.HEADER_BYTES) == sections
    assert numbers(found, layout.PRIORITY, "i") == [message.get("priority", 4) for message in chosen]
    assert numbers(found, layout.PUBLISHED) == [min(sent_ms * 1000, last_us)] * len(shown)
    assert numbers(found, layout.ARRIVED) == [5_000_000] * len(shown)
    assert numbers(found, layout.DELIVERY_COUNT, "i") == [3 * (at == 1) for at in shown]
    assert numbers(found, layout.SIZE) == [len(message["body"]) for message in chosen]
    expiries = [expires_ms(entry, 5_000, ttl_ms) for entry in entries]
    assert numbers(found, layout.EXPIRES) == [min(at * 1000, last_us) for at in expiries]
    assert nulls(found, layout.EXPIRES) == [not at for at in expiries]
    own = [decode(section) for section in sections]
    assert maps(found, layout.PROPERTIES) == [
        {name: as_text(value) for name, value in application_properties(section).items()} for section in sections
    ]
    assert maps(found, layout.HEADERS) == [
        {name[1:]: as_text(value) for name, value in one.items() if name[0] == ":"} for one in own
    ]
    streams = [one.get(":stream") for one in own]
    assert nulls(found, layout.STREAM_ID) == [not isinstance(stream, str) for stream in streams]
    assert [(one or b"").decode() for one in pieces(found, layout.STREAM_ID)] == [
        stream if isinstance(stream, str) else "" for stream in streams
    ]
    sequences = [value if type(value := one.get(":sequence")) is int else None for one in own]
    assert nulls(found, layout.STREAM_SEQUENCE) == [sequence is None for sequence in sequences]
    assert numbers(found, layout.STREAM_SEQUENCE) == [sequence or 0 for sequence in sequences]


@two
@given(
    RECORDS,
    st.integers(0, EVERY),
    st.lists(st.integers(0, 24), max_size=6, unique=True).map(sorted),
    st.fixed_dictionaries(
        {},
        optional={
            "keys": st.lists(st.sampled_from([b"", b"a", b"0", "é".encode()])),
            "priority": st.sampled_from([(0, 9), (4, 4), (5, 9), (9, 0)]),
            "arrived_ms": st.sampled_from([(0, 2**63 - 1), (102, 104)]),
            "sent_ms": st.sampled_from([(0, 2**63 - 1), (1_001, 2_000)]),
            "ttl_ms": st.sampled_from([0, 1, 2**63 - 1]),
            "most_rows": st.integers(1, 8),
            "most_bytes": st.integers(1, 400),
        },
    ),
    st.booleans(),
)
def test_the_twins_agree_and_go_on_where_they_were_full(
    records: list[list[dict[str, Any]]], columns: int, bounds: list[int], facts: dict[str, Any], whole: bool
) -> None:
    firsts, at = [], 0
    for messages in records:
        firsts.append(at)
        at += len(messages)
    bodies = [
        record(messages, first, sent_ms=1_000 + number, between=b"between" * number)
        for number, (messages, first) in enumerate(zip(records, firsts, strict=True))
    ]
    span, table = span_of(bodies, firsts, list(map(len, records)), list(range(100, 100 + len(records))), 1 << 40)
    ranges = ALL_ORDERS if whole else array("Q", bounds[: len(bounds) // 2 * 2])
    counts = array("Q", [number for order in bounds for number in (order, order + 1)])
    batches = []
    for module in BOTH:
        builder = module.ColumnBuilder(columns, **facts)
        row, order, found = 0, 0, []
        while True:
            row, order = builder.add_span(span, table, ranges, counts, origin=1 << 40, row=row, order=order)
            assert builder.full == (row < len(records))
            found.append((row, order, builder.rows, builder.bytes, bytes(builder.finish(at, not builder.full))))
            if row == len(records):
                break
            assert found[-1][2] >= 1
            assert len(found) <= 25
        batches.append(found)
    assert batches[0] == batches[1]
    if whole and not facts.keys() - {"most_rows", "most_bytes"}:
        shown = sum(not message.get("flags", 0) & durable.ENTRY_CRON for messages in records for message in messages)
        assert sum(found[2] for found in batches[0]) == shown


@twin
def test_many_spans_make_one_batch(twin: ModuleType) -> None:
    builder = twin.ColumnBuilder(EVERY)
    for first in (30, 10, 20):  # a reservation has its own order
        span, table = one_record([{"body": b"%d" % first, "key": b"k"}, {"body": b"!"}], first)
        builder.add_span(span, table, array("Q", (first, first + 1)))
    found = twin.parse(builder.finish(3, True))
    assert numbers(found, layout.ORDER_NUMBER) == [30, 10, 20]
    assert pieces(found, layout.BODY) == [b"30", b"10", b"20"]
    assert found.end


@twin
def test_nothing_makes_an_empty_batch(twin: ModuleType) -> None:
    for columns in (0, EVERY, 1 << layout.STREAM_ID):
        found = twin.parse(twin.ColumnBuilder(columns).finish(7, True))
        assert (found.rows, found.next, found.end, found.mask) == (0, 7, True, columns)


@twin
def test_only_what_is_asked_for_is_in_it(twin: ModuleType) -> None:
    messages = [{"body": b"x" * 50, "headers": encode_properties({"a": 1.5})}]
    for column in range(len(NAMES)):
        found = build(twin, messages, 1 << column)
        assert {one for one, _ in found.buffers} == {column}
        assert found.rows == 1
    assert build(twin, messages, 0).rows == 1


@twin
def test_a_batch_is_full_by_bytes_and_never_empty(twin: ModuleType) -> None:
    span, table = one_record([{"body": bytes(100)}] * 5)
    builder = twin.ColumnBuilder(1 << layout.BODY, most_bytes=250)
    assert builder.add_span(span, table, ALL_ORDERS) == (0, 12)
    assert (builder.rows, builder.bytes, builder.full) == (2, 208, True)
    builder.finish(12, False)
    builder = twin.ColumnBuilder(1 << layout.BODY, most_bytes=1)
    assert builder.add_span(span, table, ALL_ORDERS) == (0, 11)
    assert builder.rows == 1


@twin
def test_a_very_large_message_has_no_body_but_a_size(twin: ModuleType) -> None:
    body = durable.LARGE.pack(7, 5 << 30, bytes(32))
    found = build(twin, [{"body": body, "flags": durable.ENTRY_LARGE}, {"body": b"abc"}])
    assert nulls(found, layout.BODY) == [True, False]
    assert pieces(found, layout.BODY) == [b"", b"abc"]
    assert numbers(found, layout.SIZE) == [5 << 30, 3]


@twin
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=6), st.binary(max_size=12)), max_size=6))
def test_text_that_is_none_is_mended_and_names_stay_single(twin: ModuleType, pairs: list[tuple[bytes, bytes]]) -> None:
    section = b"".join(
        bytes((len(name),)) + name + struct.pack("<H", len(text) + 1) + b"s" + text for name, text in pairs
    )
    found = build(twin, [{"body": b"", "headers": section}])
    own, others = maps(found, layout.HEADERS)[0], maps(found, layout.PROPERTIES)[0]
    expected: list[dict[str, str]] = [{}, {}]
    for name, text in pairs:
        is_own = name[:1] == b":"
        expected[not is_own].setdefault(name[is_own:].decode(errors="replace"), text.decode(errors="replace"))
    assert [own, others] == expected


@twin
def test_as_many_names_as_a_section_can_have(twin: ModuleType) -> None:
    section = b"".join(b"\x04%04x\x02\x00b\x01" % at for at in range(7_000))
    found = build(twin, [{"body": b"", "headers": section}] * 3)
    assert found.buffers[layout.PROPERTIES, layout.OFFSETS].cast("i").tolist() == [0, 7_000, 14_000, 21_000]


@twin
@given(st.floats())
def test_a_float_is_written_as_python_writes_it(twin: ModuleType, value: float) -> None:
    found = build(twin, [{"body": b"", "headers": encode_properties({"f": value})}], 1 << layout.PROPERTIES)
    assert maps(found, layout.PROPERTIES) == [{"f": repr(value)}]


@two
def test_every_power_of_two_and_ten_is_written_as_python_writes_it() -> None:
    values = [math.ldexp(1.0, power) for power in range(-1074, 1024)]
    values += [float(f"{digits}e{power}") for power in range(-324, 309) for digits in ("1", "9.999999999999999", "1.1")]
    draw = random.Random(1)
    values += [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(20_000)]
    values += [math.nextafter(value, at) for value in values[:2098] for at in (0.0, math.inf)]
    values += [draw.randrange(10**9) / 10 ** draw.randrange(9) for _ in range(5_000)]
    for start in range(0, len(values), 1000):
        some = values[start : start + 1000]
        messages = [{"body": b"", "headers": encode_properties({"f": value})} for value in some]
        found = build(compiled, messages, 1 << layout.PROPERTIES)
        assert [one["f"] for one in maps(found, layout.PROPERTIES)] == list(map(repr, some))


@twin
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"columns": EVERY + 1}, "columns"),
        ({"priority": (0, 300)}, "priorities"),
        ({"sent_ms": (-1, 5)}, "time"),
        ({"arrived_ms": (0, 1 << 63)}, "time"),
        ({"most_rows": 0}, "rows"),
        ({"most_bytes": 1 << 29}, "bytes"),
    ],
)
def test_what_a_builder_cannot_do_it_says(twin: ModuleType, facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadParameter, match=reason):
        twin.ColumnBuilder(**{"columns": 1, **facts})


@twin
@pytest.mark.parametrize(
    "row",
    [
        (0, 4, 50 | 1 << 32, 0, 0),  # shorter than a head
        (0, 4, 500 | 1 << 32, 0, 0),  # beyond the span
        (0, 1 << 63, 150 | 1 << 32, 0, 0),
        (0, 3, (1 << 32) - 1, 0, 0),
        (0, 4, 124 | 3 << 32, 0, 0),  # more messages than there are
        ((1 << 63) - 1, 4, 124 | 1 << 32, 0, 0),  # order numbers nobody has
    ],
)
def test_a_table_that_is_not_the_records_is_found_out(twin: ModuleType, row: tuple[int, ...]) -> None:
    span, _ = one_record([{"body": b"abcd"}], 0)
    builder = twin.ColumnBuilder(EVERY)
    with pytest.raises(BadEntries):
        builder.add_span(span, array("Q", row), array("Q", (0, 1 << 63)))
    with pytest.raises(BadEntries):
        builder.add_span(span, array("Q", (0, 2, 124 | 1 << 32, 0, 0)), ALL_ORDERS, origin=3)
    assert twin.parse(builder.finish(0, True)).rows in (0, 1)


@twin
def test_what_is_no_table_is_refused(twin: ModuleType) -> None:
    builder = twin.ColumnBuilder(EVERY)
    for arguments in (((0,) * 4, ()), ((0,) * 5, (1,))):
        with pytest.raises(BadParameter):
            builder.add_span(b"", *(array("Q", one) for one in arguments))
    with pytest.raises(BadParameter):
        builder.add_span(b"", array("Q"), array("Q"), row=-1)


@two
@settings(max_examples=150)
@given(RECORDS, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_found_by_both_or_by_none(records: list[list[dict[str, Any]]], damage: list[tuple[int, int]]) -> None:
    firsts = [5 * at for at in range(len(records))]
    bodies = [record(messages, first) for messages, first in zip(records, firsts, strict=True)]
    span, table = span_of(bodies, firsts, list(map(len, records)), [0] * len(records))
    hurt = bytearray(span)
    for place, value in damage:
        hurt[place % len(hurt)] = value

    def run(module: ModuleType) -> Any:
        builder = module.ColumnBuilder(EVERY)
        try:
            builder.add_span(hurt, table, ALL_ORDERS)
        except BadEntries as error:
            return str(error), bytes(builder.finish(0, False))
        return bytes(builder.finish(0, False))

    assert run(plain) == run(compiled)


@twin
@settings(max_examples=150)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255))))
def test_any_bytes_are_a_batch_or_refused(
    twin: ModuleType, messages: list[dict[str, Any]], damage: list[tuple[int, int]]
) -> None:
    span, table = one_record(messages)
    builder = plain.ColumnBuilder(EVERY)
    builder.add_span(span, table, ALL_ORDERS)
    blob = builder.finish(5, False)
    for place, value in damage:
        blob[place % len(blob)] = value
    reading(twin, blob)


@twin
@given(st.binary(max_size=400))
def test_noise_is_refused(twin: ModuleType, noise: bytes) -> None:
    reading(twin, noise)
    reading(twin, BATCH.pack(b"FLCB", 1, 0, 1, 1, 0, 64 + len(noise), bytes(32)) + noise)


def reading(module: ModuleType, blob: bytes | bytearray) -> None:
    """Whatever it accepts can be read to the last byte."""
    found = outcome(lambda: module.parse(blob))
    if BOTH[-1] is not module:
        other = outcome(lambda: BOTH[-1].parse(blob))
        assert str(other) == str(found) or (other.buffers.keys(), other.rows) == (found.buffers.keys(), found.rows)
    if not isinstance(found, Columns):
        return
    for column in range(len(NAMES)):
        if found.mask >> column & 1:
            if column in layout.MAPS:
                maps_of(found, column)
            elif column in layout.VARIABLE:
                assert len(pieces(found, column)) == found.rows
                nulls(found, column)
            else:
                assert len(numbers(found, column, "i" if layout.WIDTHS[column] == 4 else "q")) == found.rows


def maps_of(found: Columns, column: int) -> None:
    names = pieces(found, column, (layout.KEY_OFFSETS, layout.KEY_VALUES))
    texts = pieces(found, column, (layout.VALUE_OFFSETS, layout.VALUE_VALUES))
    offsets = found.buffers[column, layout.OFFSETS].cast("i").tolist()
    assert offsets[-1] == len(names) == len(texts)
    for one in (*names, *texts):
        (one or b"").decode()


@twin
def test_each_part_of_a_batch_is_checked(twin: ModuleType) -> None:
    messages = [{"body": b"abc", "key": b"k", "headers": encode_properties({"a": "b"}, {":type": "t"})}, {"body": b""}]
    span, table = one_record(messages)
    builder = twin.ColumnBuilder(EVERY)
    builder.add_span(span, table, ALL_ORDERS)
    good = builder.finish(5, False)
    assert twin.parse(bytes(good)).rows == 2
    count = BATCH.unpack_from(good)[4]
    for number in range(count):
        at = BATCH.size + BUFFER.size * number
        column, part, _, length, place = BUFFER.unpack_from(good, at)
        for changed in (
            (15, part, 0, length, place),
            (column, 7, 0, length, place),
            (column, part, 1, length, place),
            (column, part, 0, length + 1, place),
            (column, part, 0, length, place + 8),
            (column, part, 0, length, 1 << 63),
            (column, part, 0, length, 0),
            ((column + 1) % 15, part or 7, 0, length, place),
        ):
            bad = bytearray(good)
            BUFFER.pack_into(bad, at, *changed)
            with pytest.raises(BadEntries):
                twin.parse(bad)
        if part in (layout.OFFSETS, layout.KEY_OFFSETS, layout.VALUE_OFFSETS):
            for numbers_there in ((1, 1), (0, -1), (0, 1 << 30), (0, 100, 1)):
                bad = bytearray(good)
                struct.pack_into(f"<{len(numbers_there)}i", bad, place, *numbers_there)
                with pytest.raises(BadEntries):
                    twin.parse(bad)
        if (column, part) in ((layout.KEY, layout.VALUES), (layout.HEADERS, layout.KEY_VALUES)):
            bad = bytearray(good)
            bad[place] = 0xFF
            with pytest.raises(BadEntries):
                twin.parse(bad)
    for changed_head in ((b"FLCC", 1, 0), (b"FLCB", 2, 0), (b"FLCB", 1, 2)):
        bad = bytearray(good)
        struct.pack_into("<4sHH", bad, 0, *changed_head)
        with pytest.raises(BadEntries):
            twin.parse(bad)
    for bad in (good[:-1], good + b"\0", good[:63], b""):
        with pytest.raises(BadEntries):
            twin.parse(bad)
