from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.console import series
from fairlead.console.charts import chart, chosen
from fairlead.console.history import COARSE_MS, FINE_MS, History, size_of
from fairlead.console.rates import Rates
from fairlead.console.shapes_server import Latency
from fairlead.errors import BadParameter
from tests.console.reports import manager, report

START_MS = 1_700_000_000_000


def fresh(columns: int = 4, coarse: int = 6, fine: int = 30) -> tuple[bytearray, History]:
    buffer = bytearray(size_of(columns, coarse, fine))
    return buffer, again(buffer, columns, coarse, fine)


def again(buffer: bytearray, columns: int = 4, coarse: int = 6, fine: int = 30) -> History:
    return History(buffer, columns=columns, coarse_rows=coarse, fine_rows=fine, joined=series.joined)


def fine(history: History, name: str, now_ms: int, count: int) -> list[float | None]:
    return history.read(name, history.fine, now_ms // FINE_MS - count + 1, now_ms // FINE_MS + 1)


def test_a_second_that_nobody_told_of_is_a_gap() -> None:
    _, history = fresh()
    history.put(START_MS, {"a": 1})
    history.put(START_MS + 2000, {"a": 3, "b": None})
    assert fine(history, "a", START_MS + 2000, 4) == [None, 1, None, 3]
    assert fine(history, "b", START_MS + 2000, 1) == [None]
    assert history.names == ["a"]


def test_a_second_is_told_once_and_a_clock_set_back_waits() -> None:
    _, history = fresh()
    history.put(START_MS, {"a": 1})
    history.put(START_MS + 500, {"a": 2})
    history.put(START_MS - 5000, {"a": 3})
    assert fine(history, "a", START_MS, 2) == [None, 1]


def test_whoever_comes_next_goes_on_with_the_same_rows() -> None:
    buffer, history = fresh()
    history.put(START_MS, {"a": 1, "b": 5})
    history.release()
    history = again(buffer)
    history.put(START_MS + 1000, {"a": 2})
    assert fine(history, "a", START_MS + 1000, 2) == [1, 2]
    assert fine(history, "b", START_MS + 1000, 2) == [5, None]


def test_another_shape_begins_anew() -> None:
    buffer, history = fresh(columns=4)
    history.put(START_MS, {"a": 1})
    smaller = again(buffer, columns=2)
    assert smaller.names == []
    smaller.put(START_MS + 1000, {"a": 7})
    assert fine(smaller, "a", START_MS + 1000, 2) == [None, 7]


def test_a_row_that_was_being_written_is_not_read() -> None:
    buffer, history = fresh()
    history.put(START_MS, {"a": 1})
    history.fine.set(START_MS // FINE_MS + 1, 0, 99.0)  # its writer died before it told of it
    history = again(buffer)
    assert fine(history, "a", START_MS + 1000, 2) == [1, None]
    history.put(START_MS + 1000, {"b": 1})
    assert fine(history, "a", START_MS + 1000, 2) == [1, None]


def test_the_series_not_told_of_for_longest_gives_its_place() -> None:
    _, history = fresh(columns=2)
    history.put(START_MS, {"old": 1, "steady": 1})
    history.put(START_MS + COARSE_MS, {"steady": 2})
    history.put(START_MS + 2 * COARSE_MS, {"steady": 3, "new": 9})
    assert history.names == ["new", "steady"]
    assert fine(history, "new", START_MS + 2 * COARSE_MS, 25)[:-1] == [None] * 24
    assert fine(history, "old", START_MS, 1) == [None]


def test_ten_seconds_are_their_mean_or_their_worst() -> None:
    _, history = fresh()
    for second in range(12):
        history.put(START_MS + 1000 * second, {"connections": second, "latency.p99": second})
    slot = START_MS // COARSE_MS
    assert history.read("connections", history.coarse, slot, slot + 2) == [4.5, None]
    assert history.read("latency.p99", history.coarse, slot, slot + 1) == [9]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1000), st.booleans()), max_size=60))
def test_whatever_is_put_is_read_again_while_it_is_young(steps: list[tuple[int, int, bool]]) -> None:
    buffer, history = fresh(fine=30)
    now_ms, told = START_MS, dict[int, float]()
    for seconds, value, restarts in steps:
        now_ms += seconds * 1000
        history.put(now_ms, {"a": value})
        told[now_ms // FINE_MS] = value
        if restarts:
            history = again(buffer)
    newest = now_ms // FINE_MS
    wanted = [told.get(slot) for slot in range(newest - 29, newest + 1)]
    assert fine(history, "a", now_ms, 30) == wanted


def test_a_chart_is_as_fine_as_it_can_be_and_as_long_as_is_asked() -> None:
    _, history = fresh(columns=4, coarse=60, fine=30)
    for second in range(200):
        history.put(START_MS + 1000 * second, {"messages.in": second})
    now_ms = START_MS + 199_000
    recent = chart(history, asked="messages.in", since_ms=now_ms - 20_000, step_s=0, now_ms=now_ms)
    assert (recent.step_ms, recent.series[0].values[-1], recent.series[0].unit) == (1000, 198, "messages/s")
    longer = chart(history, asked="messages.in", since_ms=START_MS, step_s=0, now_ms=now_ms)
    assert (longer.step_ms, longer.series[0].values[0]) == (10_000, 4.5)
    steps = chart(history, asked="messages.in", since_ms=START_MS, step_s=50, now_ms=now_ms)
    assert steps.step_ms == 50_000
    assert steps.start_ms % 50_000 == 0
    with pytest.raises(BadParameter):
        chart(history, asked="", since_ms=now_ms + 1, step_s=0, now_ms=now_ms)


def test_series_are_chosen_by_name_or_by_how_they_begin() -> None:
    known = ["depth", "depth/a", "depth/b", "x"]
    assert chosen("depth/*, x", known) == ["depth/a", "depth/b", "x"]
    assert chosen("unknown", known) == ["unknown"]
    assert chosen("", known) == []
    with pytest.raises(BadParameter):
        chosen("*", [str(number) for number in range(201)])


def test_every_value_of_a_second_has_a_meaning() -> None:
    rates = Rates()
    one = report(managers=[manager(0, stored_bytes=10), manager(1)])
    latency = Latency(p50_ms=1, p99_ms=2, probes=3)
    values = series.values_of(one, rates, arena_bytes=100, latency=latency, pauses_ms=[1.5, 3.0])
    assert {name for name in values if not series.meaning_of(name).unit} == set()
    assert (values["update.pause"], values["latency.p99"], values["manager/0/arena"]) == (3.0, 2, 0.1)
    assert len(values) <= series.columns_for(2, 0)


def test_evenness_is_one_where_all_are_alike() -> None:
    assert series.evenness([5, 5]) == 1
    assert series.evenness([5, 0]) == 0.5
    assert series.evenness([0, 0]) is None
