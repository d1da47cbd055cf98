"""Rows of a schema: one at a time and whole Arrow batches agree byte for byte, and hostile bodies are refused alike."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadParameter, BadRow, FairleadError
from fairlead.feeds import rows
from fairlead.feeds.schema import COLUMNS_MAX, Schema

DAY_US = 86_400_000_000


def whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


TYPES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    **{f"int{bits}": whole(bits, True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": whole(bits, False) for bits in (8, 16, 32, 64)},
    "halffloat": st.floats(width=16),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date32[day]": whole(32, True),
    **{f"timestamp[{unit}]": whole(64, True) for unit in ("s", "ms", "us", "ns")},
    "timestamp[us, tz=UTC]": whole(64, True),
    "timestamp[ns, tz=Europe/Berlin]": whole(64, True),
    "time64[us]": st.integers(0, DAY_US - 1),
    "time64[ns]": st.integers(0, DAY_US * 1000 - 1),
    "decimal128(38, 10)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, digits(n), -10))),
    "decimal128(5, 0)": st.integers(-99999, 99999).map(Decimal),
    "decimal128(3, -2)": st.integers(-999, 999).map(lambda n: Decimal((n < 0, digits(n), 2))),
    "fixed_size_binary[3]": st.binary(min_size=3, max_size=3),
    "string": st.text(max_size=12),
    "binary": st.binary(max_size=12),
}
INTEGERS_IN_ARROW = {"date32": pa.int32(), "timestamp": pa.int64(), "time64": pa.int64()}


def digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


def arrow_column(schema: Schema, index: int, values: list[Any]) -> pa.Array:
    """As somebody would make it who knows nothing of us; whole numbers stand for times."""
    kind = rows.arrow_schema(schema).types[index]
    stand_in = INTEGERS_IN_ARROW.get(schema.columns[index].kind)
    if stand_in is not None:
        return pa.array(values, stand_in).view(kind)
    if kind == pa.float16():
        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    return pa.array(values, kind)


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other and type(one) is type(other)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=12))
    schema = Schema.of((f"c{index}", kind) for index, kind in enumerate(kinds))
    row = st.fixed_dictionaries({f"c{index}": st.none() | TYPES[kind] for index, kind in enumerate(kinds)})
    return schema, draw(st.lists(row, min_size=1, max_size=6))


@settings(deadline=None)
@given(tables(), st.integers(0, 3))
def test_one_at_a_time_and_in_batches_the_bytes_are_the_same(
    table: tuple[Schema, list[dict[str, Any]]], cut: int
) -> None:
    schema, values = table
    one_by_one = [schema.encode(row) for row in values]
    for body, row in zip(one_by_one, values, strict=True):
        assert all(same(found, row[name]) for name, found in schema.decode(body).items())
        assert schema.decode_tuple(memoryview(body)) is not None

    columns = [
        arrow_column(schema, index, [row[name] for row in values])
        for index, name in enumerate(schema.names)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(columns, schema=rows.arrow_schema(schema))
    data, ends = rows.encode(batch)
    pieces = [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert b"".join(pieces) == data
    if not any(column.type in (pa.float16(), pa.float32()) for column in batch.columns):
        assert pieces == one_by_one  # of a NaN, narrower floats may keep other bits
    for piece, row in zip(pieces, values, strict=True):
        assert all(same(found, row[name]) for name, found in schema.decode(piece).items())

    back = rows.decode(pieces, schema)
    assert back.schema == batch.schema
    assert rows.encode(back)[0] == data
    sliced = rows.decode(pa.array(pieces).slice(cut), schema)
    assert rows.encode(sliced)[0] == b"".join(pieces[cut:])
    assert rows.encode(batch.slice(cut))[0] == b"".join(pieces[cut:])


@settings(deadline=None)
@given(tables(), st.data())
def test_both_refuse_the_same_hostile_bodies(
    table: tuple[Schema, list[dict[str, Any]]], data: st.DataObject
) -> None:  # fmt: skip
    schema, values = table
    bodies = []
    for row in values:
        body = bytearray(schema.encode(row))
        for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=3)):
            body[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        size = data.draw(st.sampled_from([len(body)] * 4 + [len(body) - 1, 0]))
        bodies.append(bytes(body[:size]) + data.draw(st.sampled_from([b""] * 4 + [b"x"])))
    wrong = []
    for number, body in enumerate(bodies):
        try:
            schema.decode(body)
        except BadRow:
            wrong.append(number)
    if wrong:
        with pytest.raises(BadRow, match=f"Row {wrong[0]}: "):
            rows.decode(bodies, schema)
    else:
        assert rows.decode(bodies, schema).num_rows == len(bodies)


@given(st.binary(max_size=80))
def test_whatever_the_bytes_a_body_is_a_row_or_refused(body: bytes) -> None:
    schema = Schema.of(
        {"a": "string", "b": "bool", "c": "decimal128(9, 2)", "d": "binary", "e": "time64[us]", "f": "float"}
    )
    try:
        row = schema.decode(body)
    except BadRow:
        return
    assert schema.decode(schema.encode(row)).keys() == row.keys()


QUOTE = Schema.of({"symbol": "string", "bid": "int64", "ask": "int64", "is_open": "bool"})


def test_the_bytes_are_those_of_the_page() -> None:
    body = QUOTE.encode({"symbol": "AB", "bid": 7, "is_open": True})
    assert body == b"\x04" + struct.pack("<IqqB", 2, 7, 0, 1) + b"AB"
    assert QUOTE.decode(body) == {"symbol": "AB", "bid": 7, "ask": None, "is_open": True}
    assert QUOTE.decode_tuple(body) == ("AB", 7, None, True)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "0 bytes are not a row"),
        (b"\x10" + struct.pack("<IqqB", 0, 0, 0, 0), "more nulls"),
        (b"\x00" + struct.pack("<IqqB", 3, 0, 0, 0) + b"AB", "symbol of a row does not lie within"),
        (b"\x00" + struct.pack("<IqqB", 0xFFFFFFFF, 0, 0, 0), "symbol of a row does not lie within"),
        (b"\x01" + struct.pack("<IqqB", 2, 0, 0, 0) + b"AB", "symbol of a row does not lie within"),
        (b"\x00" + struct.pack("<IqqB", 1, 0, 0, 0) + b"AB", "1 bytes that belong to no column"),
        (b"\x00" + struct.pack("<IqqB", 2, 0, 0, 0) + b"\xff\xff", "not UTF-8"),
        (b"\x00" + struct.pack("<IqqB", 0, 0, 0, 2), "neither true nor false"),
    ],
)
def test_a_body_that_is_no_row_says_why(body: bytes, text: str) -> None:
    good = QUOTE.encode({"symbol": "Ä"})
    with pytest.raises(BadRow, match=text):
        QUOTE.decode(body)
    with pytest.raises(BadRow, match=f"Row 2: .*{text}"):
        rows.decode([good, good, body, good], QUOTE)


def test_a_missing_body_is_no_row() -> None:
    with pytest.raises(BadRow, match="Row 1: there is no body"):
        rows.decode(pa.array([QUOTE.encode({}), None]), QUOTE)


@pytest.mark.parametrize(
    "row",
    [
        {"symbol": b"AB"},
        {"symbol": "\ud800"},
        {"bid": 1 << 63},
        {"bid": 1.5},
        {"bid": "1"},
        {"is_open": 1},
        {"other": 1},
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(BadParameter):
        QUOTE.encode(row)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal128(4, 2)", Decimal("100")),
        ("decimal128(4, 2)", Decimal("0.001")),
        ("decimal128(4, 2)", Decimal("NaN")),
        ("decimal128(4, 2)", Decimal("1E+999999")),
        ("decimal128(4, 2)", "much"),
        ("time64[us]", DAY_US),
        ("time64[us]", -1),
        ("fixed_size_binary[2]", b"abc"),
        ("float", 1e39),
        ("binary", 5),
    ],
)
def test_a_value_its_type_cannot_have_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(BadParameter):
        Schema.of({"x": kind}).encode({"x": value})


def test_zero_fits_every_decimal_however_it_is_written() -> None:
    schema = Schema.of({"x": "decimal128(4, 2)"})
    assert schema.decode(schema.encode({"x": Decimal("0E+500")}))["x"] == 0


def test_a_schema_is_json_with_the_names_of_arrow() -> None:
    schema = rows.schema_of(
        pa.schema([("a", pa.float32()), ("b", pa.timestamp("us", "UTC")), ("c", pa.decimal128(5, 2))])
    )
    assert json.loads(schema.to_json()) == [["a", "float"], ["b", "timestamp[us, tz=UTC]"], ["c", "decimal128(5, 2)"]]
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.of({"a": "float32", "b": "timestamp[us, tz=UTC]", "c": "decimal128(5, 2)"}) == schema
    assert rows.arrow_schema(schema) == pa.schema(
        [("a", pa.float32()), ("b", pa.timestamp("us", "UTC")), ("c", pa.decimal128(5, 2))]
    )


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_type_comes_back_from_arrow(kind: str) -> None:
    schema = Schema.of({"x": kind})
    assert str(rows.arrow_schema(schema).types[0]) == schema.columns[0].type == kind
    assert rows.schema_of(rows.arrow_schema(schema)) == schema


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", '[["a"]]', '[["a", "list<int64>"]]', '[["a", "int64"], ["a", "int64"]]', '[["", "int64"]]'),
        *('[["a", "decimal128(39, 0)"]]', '[["a", "decimal128(0, 0)"]]', '[["a", "fixed_size_binary[0]"]]'),
        *('[["a", "fixed_size_binary[9999999]"]]', '[["a", "timestamp[ps]"]]', "[" * 50_000),
        json.dumps([[str(number), "int8"] for number in range(COLUMNS_MAX + 1)]),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        Schema.from_json(text)


@given(st.text(max_size=60) | st.lists(st.tuples(st.text(max_size=4), st.text(max_size=12))).map(json.dumps))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        assert Schema.from_json(Schema.from_json(text).to_json()) == Schema.from_json(text)
    except FairleadError as error:
        assert isinstance(error, BadParameter)


def test_a_batch_that_is_not_sound_is_not_published() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")])
    with pytest.raises(BadParameter, match="not sound"):
        rows.encode(pa.RecordBatch.from_arrays([bad], names=["x"]))
    with pytest.raises(BadParameter, match="cannot be of type 'list<"):
        rows.encode(pa.RecordBatch.from_pydict({"x": [[1]]}))


def test_other_kinds_of_bodies_are_taken_too() -> None:
    bodies = [QUOTE.encode({"symbol": "A" * size, "bid": size}) for size in range(5)]
    expected = rows.decode(bodies, QUOTE)
    for kind in (pa.large_binary(), pa.binary_view()):
        assert rows.decode(pa.array(bodies, kind), QUOTE) == expected
    assert rows.decode(pa.chunked_array([bodies[:2], bodies[2:]], pa.binary()), QUOTE) == expected
    assert rows.decode([], QUOTE).num_rows == 0
    assert rows.encode(expected.slice(0, 0)) == (b"", pytest.approx([]))
    with pytest.raises(BadParameter, match="binary, not int64"):
        rows.decode(pa.array([1]), QUOTE)


def test_nothing_under_a_null_is_believed_and_nulls_give_the_same_bytes() -> None:
    garbage = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(struct.pack("<qq", 99, 1))])
    data, _ = rows.encode(pa.RecordBatch.from_arrays([garbage], names=["x"]))
    assert data == b"\x01" + bytes(8) + b"\x00" + struct.pack("<q", 1)
    schema = Schema.of({"x": "bool", "y": "time64[us]"})
    body = b"\x03\xff" + b"\xff" * 8
    assert schema.decode(body) == {"x": None, "y": None}
    assert rows.decode([body], schema).to_pylist() == [{"x": None, "y": None}]
