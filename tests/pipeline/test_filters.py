"""Which conditions go to the server (`fairlead.pipeline.filters`): never too narrow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from fairlead.pipeline.filters import Narrowing, narrowing

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = 1_767_225_600_000


def test_nothing_said_is_nothing_narrowed() -> None:
    assert narrowing([IsNotNull(("key",)), Not(EqualTo(("key",), "a")), EqualTo(("value", "x"), 1)]) == Narrowing()
    assert Narrowing().where() == {}
    assert not Narrowing().is_empty


def test_conditions_that_contradict_one_another_leave_nothing() -> None:
    assert narrowing([EqualTo(("key",), "a"), EqualTo(("key",), "b")]).is_empty
    assert narrowing([LessThan(("order_number",), 5), GreaterThan(("order_number",), 10)]).is_empty
    assert narrowing([GreaterThan(("priority",), 20)]).is_empty
    assert narrowing([EqualTo(("destination",), "a"), In(("destination",), ("b",))]).is_empty


def test_as_a_scan_takes_it() -> None:
    found = narrowing(
        [
            In(("key",), ("b", "a")),
            GreaterThanOrEqual(("arrived",), START + timedelta(microseconds=1500)),
            LessThan(("arrived",), START + timedelta(seconds=1)),
            LessThanOrEqual(("published",), START),
            GreaterThan(("priority",), 4),
        ]
    )
    assert found.where() == {
        "keys": ["a", "b"],
        "priority": [4, 9],
        "arrived_ms": [START_MS + 1, START_MS + 1001],
        "sent_ms": [0, START_MS + 1],
    }


def test_values_of_another_type_are_left_to_spark() -> None:
    odd = [EqualTo(("order_number",), "x"), EqualTo(("key",), None), GreaterThan(("arrived",), 3), EqualTo(("key",), 1)]
    assert narrowing(odd) == Narrowing()


NUMBERS = st.integers(-5, 15)
TIMES = st.integers(0, 10_000).map(lambda us: START + timedelta(microseconds=us))
KINDS = {EqualTo: "==", LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}
ONE = st.one_of(
    st.tuples(st.sampled_from(list(KINDS)), st.sampled_from(["order_number", "priority"]), NUMBERS),
    st.tuples(st.sampled_from(list(KINDS)), st.sampled_from(["arrived", "published"]), TIMES),
    st.tuples(st.just(EqualTo), st.sampled_from(["key", "destination"]), st.sampled_from("ab")),
    st.tuples(st.just(In), st.sampled_from(["order_number", "priority"]), st.lists(NUMBERS, min_size=1).map(tuple)),
    st.tuples(st.just(In), st.just("key"), st.lists(st.sampled_from("abc"), min_size=1).map(tuple)),
)
ROWS = st.fixed_dictionaries(
    {
        "order_number": st.integers(0, 12),
        "priority": st.integers(0, 9),
        "arrived": TIMES,
        "published": TIMES,
        "key": st.sampled_from("abc"),
        "destination": st.sampled_from("ab"),
    }
)


@settings(deadline=None)
@given(st.lists(ONE, max_size=4), ROWS)
def test_no_row_that_is_wanted_is_left_out(conditions: list[tuple[Any, str, Any]], row: dict[str, Any]) -> None:
    filters: list[Filter] = [kind((name,), value) for kind, name, value in conditions]
    if not all(holds(kind, row[name], value) for kind, name, value in conditions):
        return
    found = narrowing(filters)
    assert not found.is_empty
    assert found.destinations is None or row["destination"] in found.destinations
    assert found.keys is None or row["key"] in found.keys
    assert found.order[0] <= row["order_number"] < found.order[1]
    assert found.priority[0] <= row["priority"] <= found.priority[1]
    for name, (low, high) in (("arrived", found.arrived_ms), ("published", found.sent_ms)):
        assert low <= (row[name] - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1) < high


def holds(kind: type[Filter], left: Any, right: Any) -> bool:
    if kind is In:
        return left in right
    return {"==": left == right, "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[
        KINDS[kind]
    ]
