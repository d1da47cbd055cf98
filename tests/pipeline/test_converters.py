"""One function, two engines (`fairlead.pipeline.converters`): here the live one, in test_decode.py Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.pipeline.converters import Reject, as_map_in_arrow, converter, load, output_schema, run

TAKES = pa.schema([pa.field("order_number", pa.int64(), nullable=False), ("body", pa.binary())])
GIVES = pa.schema([("order_number", pa.int64()), ("number", pa.int64())])


@converter(takes=TAKES, gives=GIVES)
def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every body is a decimal number; one that is not raises for all."""
    values = pc.cast(pc.cast(batch["body"], pa.string()), pa.int64())
    return pa.record_batch([batch["order_number"], values], schema=GIVES)


@converter(takes=TAKES, gives=GIVES)
def naming(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same, by one that says which rows it refuses, and gives a batch for each row."""
    bad = {row: "not a number" for row, body in enumerate(batch["body"].to_pylist()) if not body.isdigit()}
    if bad:
        raise Reject(bad)
    for row in range(batch.num_rows):
        yield numbers(batch.slice(row, 1))


def batch_of(bodies: list[bytes]) -> pa.RecordBatch:
    orders = pa.array(range(1, len(bodies) + 1), pa.int64())
    return pa.record_batch([pa.array(bodies, pa.binary()), orders], names=["body", "order_number"])


@pytest.mark.parametrize("function", [numbers, naming])
@settings(deadline=None)
@given(bodies=st.lists(st.sampled_from([b"1", b"23", b"x", b"\xff", b""]), max_size=40))
def test_every_row_is_converted_or_refused_with_a_reason(function: object, bodies: list[bytes]) -> None:
    (result,) = run(load(function), [batch_of(bodies)])  # type: ignore[arg-type]
    good = {row["order_number"]: row["number"] for part in result.rows for row in part.to_pylist()}
    bad = {row["order_number"]: row["reason"] for row in result.rejected.to_pylist()}
    assert good == {n: int(body) for n, body in enumerate(bodies, 1) if body.isdigit()}
    assert set(bad) == {n for n, body in enumerate(bodies, 1) if not body.isdigit()}
    assert all(bad.values())
    assert [row["body"] for row in result.rejected.to_pylist()] == [body for body in bodies if not body.isdigit()]


def test_for_spark_good_and_bad_rows_come_in_one_frame() -> None:
    one = load("tests.pipeline.test_converters:numbers")
    rows = [row for part in as_map_in_arrow(one)(iter([batch_of([b"7", b"x"])])) for row in part.to_pylist()]
    assert rows[0] == {"order_number": 1, "number": 7, "rejected": None}
    assert rows[1]["number"] is None
    assert rows[1]["rejected"]["body"] == b"x"
    assert rows[1]["rejected"]["reason"].startswith("ArrowInvalid")
    assert output_schema(one).names == ["order_number", "number", "rejected"]


def test_what_a_function_gives_is_held_against_what_it_declares() -> None:
    @converter(takes=TAKES, gives=GIVES)
    def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([batch["order_number"]], names=["order_number"])

    (result,) = run(load(other), [batch_of([b"1"])])
    assert "no column 'number'" in result.rejected["reason"][0].as_py()


def test_columns_that_are_not_there_are_the_callers_fault() -> None:
    with pytest.raises(ConfigError, match="no column 'order_number'"):
        list(run(load(numbers), [pa.record_batch([pa.array([b"1"])], names=["body"])]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("numbers", "module:function"),
        ("no.such.module:x", "There is no converter"),
        ("tests.pipeline.test_converters:nothing", "There is no converter"),
        ("tests.pipeline.test_converters:batch_of", "declare it with @converter"),
    ],
)
def test_a_name_that_is_no_converter(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(name)


def test_names_that_are_taken() -> None:
    with pytest.raises(ConfigError, match="'rejected'"):
        converter(takes=TAKES, gives=pa.schema([("rejected", pa.string())]))
