"""Both ways of encoding a batch give the same bytes: the compiled twin and the plain one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.feeds import rows
from fairlead.feeds.schema import Schema

pytestmark = pytest.mark.skipif(rows.compiled is None, reason="there is only one twin")

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.uint32(): st.integers(0, (1 << 32) - 1),
    pa.float64(): st.floats(),
    pa.timestamp("us"): st.integers(0, 1 << 50),
    pa.decimal128(20, 4): st.decimals(-(10**9), 10**9, places=4),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Any columns, with nulls, and cut out of a larger batch."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=18))
    count = draw(st.integers(1, 20))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind) for kind in kinds
    ]
    whole = pa.record_batch(columns, names=[f"c{n}" for n in range(len(kinds))])
    first = draw(st.integers(0, count - 1))
    return whole.slice(first, draw(st.integers(0, count - first)))


@settings(deadline=None, max_examples=200)
@given(batch=batches())
def test_twins_make_the_same_bytes(batch: pa.RecordBatch) -> None:
    data, ends = rows.encode(batch)
    fast = rows.compiled
    rows.compiled = None
    try:
        plain_data, plain_ends = rows.encode(batch)
    finally:
        rows.compiled = fast
    assert data == plain_data
    assert ends.tolist() == plain_ends.tolist()
    if batch.num_rows:
        assert (
            rows.decode([data[: int(ends[0])]], Schema.of([(f.name, str(f.type)) for f in batch.schema])).num_rows == 1
        )


def test_a_null_that_hides_bytes_is_encoded_as_a_null() -> None:
    hidden = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\0\0\0\0\x03\0\0\0\x05\0\0\0"), pa.py_buffer(b"abcde")]
    )
    data, ends = rows.encode(pa.record_batch([hidden], names=["a"]))
    assert data == b"\x01\0\0\0\0" + b"\x00\x02\0\0\0de"
    assert ends.tolist() == [5, 12]


def test_buffers_that_are_too_short_are_refused() -> None:
    for column in (
        (0, 8, 0, [None, b"1234567"]),
        (2, 4, 0, [None, b"\0\0\0\0\x09\0\0\0", b"abc"]),
        (2, 4, 0, [None, b"\x02\0\0\0\x01\0\0\0", b"abc"]),
        (1, 1, 9, [None, b"\0"]),
        (0, 8, 0, [None, None]),
        (0, -8, 0, [None, b"12345678"]),
    ):
        with pytest.raises(ValueError, match=r"buffer|rise|negative"):
            rows.compiled.encode(1, [column], 1000)
    assert rows.compiled.encode(1, [(0, 8, 0, [None, b"12345678"])], 5) == (9, None, None)
