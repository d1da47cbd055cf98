"""The source and the converter that these tests count with."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fairlead.pipeline.converters import load, run
from fairlead.testing.feed_numbers import FILTERED, MALFORMED, TAKES, NumberedSource, body, scripted


def batch(first: int, bodies: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(first, first + len(bodies)), pa.int64()), pa.array(bodies)], schema=TAKES
    )


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_parts_malformed_and_filtered_ones(cut: int) -> None:
    whole = batch(
        7, [body(7, parts=3), body(8), body(9, fault=MALFORMED), body(10, fault=FILTERED), b"short", body(12)]
    )
    (converted,) = run(load(scripted), [whole.slice(cut)])
    rows = pa.Table.from_batches(converted.rows).to_pylist()
    made = [(row["source_sequence"], row["number"], row["part"]) for row in rows]
    assert made == [(7, 7, 1), (7, 7, 2), (7, 7, 3), (8, 8, 1), (12, 12, 1)][{0: 0, 1: 3, 3: 4}[cut] :]
    refused = [row["source_sequence"] for row in converted.rejected.to_pylist()]
    assert refused == [one for one in (9, 11) if one >= 7 + cut]


def test_bodies_are_the_same_whenever_they_are_asked_for() -> None:
    with NumberedSource() as source, NumberedSource(offset=1000) as other:
        source.send(20)
        source.send_bodies([body(21, parts=2)])
        source.wait_sent(21)
        assert source.bodies(1, 21) == [*(body(n) for n in range(1, 21)), body(21, parts=2)]
        assert other.bodies(1001, 1020) == source.bodies(1, 20)
        source.run_stamped(1000)
        source.wait_sent(40)
        assert source.bodies(30, 40) == source.bodies(30, 40)
