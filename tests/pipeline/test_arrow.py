"""Columns as Arrow sees them, and rows that become messages."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas import types

from fairlead.errors import BadParameter, BodyTooLarge, ConfigError
from fairlead.pipeline.arrow import SCHEMA, entries_from, mask_of, record_batch, schema_of
from fairlead.pipeline.outgoing import ACCEPTED, ENTRIES_BYTES_MAX, TOLD
from fairlead.wire import durable
from fairlead.wire.column_codec import EVERY, NAMES, ColumnBuilder, Columns, parse
from fairlead.wire.entry_codec import Entry, details
from fairlead.wire.properties import decode, encode_properties
from tests.wire.test_columns import ALL_ORDERS, ID, MESSAGES, one_record

NOW_MS = 1_800_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


def columns_of(messages: list[dict[str, Any]], columns: int = EVERY) -> Columns:
    span, table = one_record(messages)
    builder = ColumnBuilder(columns)
    builder.add_span(span, table, ALL_ORDERS, array("Q", (10, 2)))
    return parse(builder.finish(99, True))


def entries(batch: Any, **facts: Any) -> dict[str, list[tuple[Entry, bytes]]]:
    """What goes where: entries and their bodies."""
    found: dict[str, list[tuple[Entry, bytes]]] = {}
    for destination, some, count in entries_from(batch, now_ms=NOW_MS, **facts):
        one = details(some, 0, len(some))
        assert len(one) == count
        found.setdefault(destination, []).extend((e, bytes(some[e.body_start : e.body_end])) for e in one)
    return found


def only(batch: Any, **facts: Any) -> list[tuple[Entry, bytes]]:
    (found,) = entries(batch, also="q", **facts).values()
    return found


def batch_of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


# ---------------------------------------------------------------------- out


def test_the_schema_is_one_that_spark_gives_back_unchanged() -> None:
    assert SCHEMA.names == ["destination", *NAMES]
    spark = types.from_arrow_schema(SCHEMA)
    assert types.to_arrow_schema(spark, timezone="UTC").equals(SCHEMA)
    assert [field.nullable for field in spark] == [field.nullable for field in SCHEMA]


def test_a_message_with_everything() -> None:
    headers = encode_properties(
        {"n": 5, "f": 1.5, "b": True, "y": b"\x01"}, {":type": "t", ":stream": "s", ":sequence": 7}
    )
    large = durable.LARGE.pack(1, 1 << 40, bytes(32))
    found = columns_of(
        [
            {"body": b"one", "key": b"k", "headers": headers, "priority": 9, "ttl_ms": 1_000},
            {"body": large, "flags": durable.ENTRY_LARGE},
        ]
    )
    batch = record_batch(found, "trades", SCHEMA.names)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    one, other = batch.to_pylist()
    assert one == {
        "destination": "trades",
        "order_number": 10,
        "message_id": ID.hex(),
        "key": "k",
        "body": b"one",
        "headers": [("type", "t"), ("stream", "s"), ("sequence", "7")],
        "properties": [("n", "5"), ("f", "1.5"), ("b", "true"), ("y", "01")],
        "header_bytes": headers,
        "priority": 9,
        "published": datetime.fromtimestamp(1, UTC),
        "arrived": datetime.fromtimestamp(5, UTC),
        "expires": datetime.fromtimestamp(6, UTC),
        "delivery_count": 2,
        "stream_id": "s",
        "stream_sequence": 7,
        "size": 3,
    }
    assert other["size"] == 1 << 40
    assert {name for name, value in other.items() if value is None} == {
        *("body", "key", "expires", "stream_id", "stream_sequence")
    }
    assert (other["headers"], other["properties"], other["header_bytes"]) == ([], [], b"")


def test_nothing_is_copied() -> None:
    found = columns_of([{"body": b"x" * 1000}])
    batch = record_batch(found, "q", ["body", "order_number"])
    start = pa.py_buffer(found.buffers[3, 2]).address
    assert batch.column("body").buffers()[2].address == start
    del found
    assert batch.column("body")[0].as_py() == b"x" * 1000


@given(st.lists(MESSAGES, max_size=5), st.lists(st.sampled_from(SCHEMA.names), unique=True))
def test_any_columns_of_any_messages_are_valid_arrow(messages: list[dict[str, Any]], names: list[str]) -> None:
    batch = record_batch(columns_of(messages, mask_of(names)), "d", names)
    batch.validate(full=True)
    assert batch.schema.equals(schema_of(names))
    assert batch.schema.names == names


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no column 'bdy'. There are: destination"):
        mask_of(["bdy"])
    with pytest.raises(ConfigError, match="twice"):
        schema_of(["body", "body"])
    with pytest.raises(ConfigError, match="key was not asked for"):
        record_batch(columns_of([{"body": b""}], mask_of(["body"])), "q", ["key"])


# ---------------------------------------------------------------------- in


@pytest.mark.parametrize(
    "kind",
    ["binary", "string", "large_binary", "large_string", "binary_view", "string_view", pa.binary(3)],
    ids=str,
)
def test_a_body_of_any_type_of_bytes(kind: Any) -> None:
    kind = getattr(pa, kind)() if isinstance(kind, str) else kind
    bodies = pa.array([b"abc", b"def", b"ghi"]).cast(kind)
    for column in (bodies, bodies.slice(1)):
        for name in ("body", "value"):
            found = only(pa.RecordBatch.from_arrays([column], [name]))
            assert [body for _, body in found] == [b"abc", b"def", b"ghi"][-len(column) :]
            assert all((entry.flags, entry.priority, entry.headers) == (0, 4, b"") for entry, _ in found)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "body": st.binary(max_size=6),
                "key": st.one_of(st.none(), st.text(max_size=2)),
                "priority": st.one_of(st.none(), st.integers(0, 9)),
                "ttl_ms": st.one_of(st.none(), st.integers(0, 99)),
                "delay_ms": st.one_of(st.none(), st.integers(0, 99)),
                "destination": st.sampled_from(["a", "b", "ü"]),
            }
        ),
        max_size=12,
    ),
    st.integers(0, 3),
    st.integers(20, 120),
)
def test_each_destination_gets_its_rows_in_order(rows: list[dict[str, Any]], skipped: int, most_bytes: int) -> None:
    schema = pa.schema(
        {
            "body": pa.binary(),
            "key": pa.string(),
            "priority": pa.int64(),
            "ttl_ms": pa.int32(),
            "delay_ms": pa.int64(),
            "destination": pa.string(),
        }
    )
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(skipped)
    found = entries(batch, most_bytes=max(most_bytes, 80))
    expected: dict[str, list[Any]] = {}
    for row in rows[skipped:]:
        priority = 4 if row["priority"] is None else row["priority"]
        expected.setdefault(row["destination"], []).append(
            (row["body"], (row["key"] or "").encode(), priority, row["ttl_ms"] or 0, row["delay_ms"] or 0)
        )
    assert expected == {
        name: [(body, e.key, e.priority, e.ttl_ms, e.delay_ms) for e, body in some] for name, some in found.items()
    }


def test_times_are_counted_from_now() -> None:
    second = timedelta(seconds=1)
    found = only(
        batch_of(
            body=[b""] * 5,
            expires=[NOW + 9 * second, NOW - second, None, NOW + 9 * second, NOW + second],
            deliver_at=[None, None, NOW + second, NOW + 2 * second, NOW + 2 * second],
        )
    )
    assert [(e.ttl_ms, e.delay_ms) for e, _ in found] == [(9_000, 0), (1, 0), (0, 1_000), (7_000, 2_000), (1, 2_000)]


def test_headers_are_those_a_sender_may_set() -> None:
    maps = pa.map_(pa.string(), pa.string())
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"1", b"2", b"3"]),
            pa.array(
                [[("type", "t"), ("dedup", "d"), ("due", "12"), ("from", "me"), ("dead-reason", "r")], None, []], maps
            ),
            pa.array([[("a", "1"), ("b", None)], [("x", "ü")], None], maps),
            pa.array([None, "feed", None]),
            pa.array([None, 77, None], pa.int32()),
        ],
        ["body", "headers", "properties", "stream_id", "stream_sequence"],
    )
    expected = [
        {":type": "t", ":dedup": "d", ":due": 12, "a": "1"},
        {"x": "ü", ":stream": "feed", ":sequence": 77},
        {},
    ]
    for first in range(3):
        found = only(batch.slice(first))
        assert [decode(e.headers) for e, _ in found] == expected[first:]
        assert [e.flags for e, _ in found] == [durable.ENTRY_DEDUP, 0, 0][first:]


def test_what_lies_behind_a_null_is_not_sent() -> None:
    names, texts = pa.array(["a", "b"]), pa.array(["1", "2"])
    kind = pa.map_(pa.string(), pa.string())
    pairs = pa.StructArray.from_arrays([names, texts], fields=[kind.key_field, kind.item_field])
    hidden = pa.Array.from_buffers(
        kind, 2, [pa.py_buffer(b"\x02"), pa.array([0, 1, 2], pa.int32()).buffers()[1]], children=[pairs]
    )
    found = only(batch_of(body=[b"1", b"2"], properties=hidden))
    assert [decode(e.headers) for e, _ in found] == [{}, {"b": "2"}]


def test_the_column_of_a_stream_counts_before_its_header() -> None:
    section = encode_properties({"a": 1}, {":stream": "old", ":sequence": 1, ":from": "me"})
    found = only(batch_of(body=[b""], header_bytes=[section], stream_id=["new"], stream_sequence=[2]))
    assert decode(found[0][0].headers) == {":stream": "new", ":sequence": 2, "a": 1}


def test_what_was_read_can_be_written_as_it_is_or_changed() -> None:
    headers = encode_properties({"n": 5, "f": 1.5}, {":type": "t", ":from": "somebody", ":sequence": 4, ":dead-ms": 5})
    found = record_batch(
        columns_of([{"body": b"x", "key": b"k", "headers": headers, "priority": 7}]), "q", SCHEMA.names
    )
    ((entry, body),) = entries(found)["q"]
    kept = {"n": 5, "f": 1.5, ":type": "t", ":sequence": 4}
    assert (body, entry.key, entry.priority) == (b"x", b"k", 7)
    assert decode(entry.headers) == kept
    maps = pa.map_(pa.string(), pa.string())
    at = found.schema.get_field_index("properties")
    changed = found.set_column(at, "properties", pa.array([[("n", "6"), ("f", "1.5"), ("z", "!")]], maps))
    ((entry, _),) = entries(changed)["q"]
    assert decode(entry.headers) == {**kept, "n": "6", "z": "!"}


@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_there_and_back(messages: list[dict[str, Any]]) -> None:
    names = ["destination", "body", "key", "header_bytes", "priority"]
    messages = [{**one, "flags": 0, "ttl_ms": 0, "delay_ms": 0} for one in messages]
    found = entries(record_batch(columns_of(messages), "q", names))["q"]
    for message, (entry, body) in zip(messages, found, strict=True):
        assert (body, entry.key, entry.priority) == (
            message["body"],
            message.get("key", b""),
            message.get("priority", 4),
        )
        assert entry.headers == message.get("headers", b"")


def test_where_to() -> None:
    assert list(entries(batch_of(body=["a"]), also="here")) == ["here"]
    assert list(entries(batch_of(body=["a", "b"], destination=["x", None]), also="here")) == ["x", "here"]
    assert list(entries(batch_of(body=["a", "b"], destination=["x", "x"]), also="here")) == ["x"]
    assert list(entries(batch_of(body=["a"], destination=pa.array(["x"]).dictionary_encode()))) == ["x"]
    with pytest.raises(BadParameter, match="neither a column nor an option 'destination'"):
        entries(batch_of(body=["a"]))
    with pytest.raises(BadParameter, match="Row 1: the destination is null"):
        entries(batch_of(body=["a", "b"], destination=["x", None]))
    assert entries(batch_of(body=pa.array([], pa.binary())), also="q") == {}


def test_a_thousand_destinations() -> None:
    names = [f"d{at % 1000}" for at in range(10_000)]
    found = entries(batch_of(body=[b"%d" % at for at in range(10_000)], destination=names))
    assert len(found) == 1000
    assert [body for _, body in found["d7"]] == [b"%d" % at for at in range(7, 10_000, 1000)]


def maps(*rows: list[tuple[str, str]]) -> Any:
    return pa.array(list(rows), pa.map_(pa.string(), pa.string()))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": None}, "no column 'body'"),
        ({"body": [1, 2]}, "Column body has to be binary or a string, not int64"),
        ({"body": pa.nulls(2)}, "no column 'body'"),
        ({"body": ["a", None]}, "Row 1: the body is null"),
        ({"value": ["a", "b"]}, "body and value say the same"),
        ({"colour": ["a", "b"]}, "no column 'colour'. There are: body, value"),
        ({"key": [1, 2]}, "Column key has to be"),
        ({"key": [b"a", b"\xff"]}, "Row 1: the key is not UTF-8"),
        ({"key": ["a", "b" * 70_000]}, "Row 1: the key is longer"),
        ({"priority": ["a", "b"]}, "Column priority has to be an integer"),
        ({"priority": [1, 10]}, "Row 1: the priority"),
        ({"priority": [1, 1 << 40]}, "Column priority does not fit"),
        ({"ttl_ms": [1, -1]}, "Row 1: time to live"),
        ({"expires": pa.array([1, 2], pa.timestamp("us"))}, "Column expires has to be a timestamp with a time zone"),
        ({"ttl_ms": [1, 2], "expires": pa.array([1, 2], pa.timestamp("us", "UTC"))}, "expires and ttl_ms say the same"),
        ({"properties": ["a", "b"]}, "Column properties has to be a map of strings"),
        ({"properties": maps([], [("a b", "c")])}, "Row 1: The property 'a b'"),
        ({"properties": maps([], [(":from", "me")])}, "Row 1: The property ':from'"),
        (
            {"headers": maps([], [("colour", "red")])},
            "Row 1: There is no header 'colour'. There are: body",
        ),
        ({"headers": maps([], [("due", "noon")])}, "Row 1: The header 'due' is a whole number"),
        ({"header_bytes": [b"", b"\x05a"]}, "Row 1: the headers are not a header section"),
        ({"properties": maps([], [(f"p{at}", "x" * 20_000) for at in range(4)])}, "Row 1: all headers"),
        ({"destination": ["x", "y"], "key": [None, b"\xff"]}, "Row 1: the key is not UTF-8"),
        ({"destination": ["y", "x"], "key": [b"\xff", None]}, "Row 0: the key is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], reason: str) -> None:
    given_columns = {name: column for name, column in {"body": ["a", "b"], **columns}.items() if column is not None}
    with pytest.raises(BadParameter, match=reason):
        entries(batch_of(**given_columns), also="q")


def test_a_message_too_long_for_a_frame() -> None:
    with pytest.raises(BodyTooLarge, match=f"Row 1: the message takes {ENTRIES_BYTES_MAX + 1} bytes"):
        entries(batch_of(body=[b"", bytes(ENTRIES_BYTES_MAX - 15)]), also="q")
    found = only(batch_of(body=[b"", bytes(ENTRIES_BYTES_MAX - 16), b"x"]))
    assert [len(body) for _, body in found] == [0, ENTRIES_BYTES_MAX - 16, 1]


def test_every_column_that_is_read_may_be_written_or_left_in() -> None:
    assert set(SCHEMA.names) <= ACCEPTED.keys() | TOLD
