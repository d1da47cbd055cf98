from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.console import series
from fairlead.console.destinations import Ledger, page
from fairlead.console.shapes_messages import Destination
from fairlead.errors import BadParameter, BadPattern

NUMBERS = (
    *("depth", "bytes", "ready", "locked", "delayed", "aside", "schedules", "transactions", "consumers"),
    *("subscriptions", "first", "next", "kept", "kept_bytes", "dropped"),
)


def facts(name: str, **given: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "kind": "queue",
        "group": "a",
        "blocked": False,
        "paused": False,
        **dict.fromkeys(NUMBERS, 0),
    }
    return usual | given


def rows(*found: dict[str, Any]) -> list[Destination]:
    return Ledger().rows(found, 0.0, 1000)


def test_rates_come_from_two_looks_that_are_far_enough_apart() -> None:
    ledger = Ledger()
    (one,) = ledger.rows([facts("q", next=10, delivered=4)], 0.0, 0)
    assert (one.rate_in, one.rate_out) == (None, None)
    (one,) = ledger.rows([facts("q", next=1000, delivered=4)], 0.1, 100)
    assert one.rate_in is None
    (one,) = ledger.rows([facts("q", next=30, delivered=8)], 2.0, 2000)
    assert (one.rate_in, one.rate_out) == (10, 2)
    (one,) = ledger.rows([facts("q", next=1, delivered=0)], 4.0, 4000)  # it was made anew
    assert (one.rate_in, one.rate_out) == (None, None)
    assert ledger.rows([], 5.0, 5000) == []
    assert ledger.rows([facts("q", next=50)], 6.0, 6000)[0].rate_in is None  # forgotten meanwhile


def test_the_age_of_the_oldest_is_counted_from_its_arrival() -> None:
    one, none = Ledger().rows([facts("q", oldest_ms=400), facts("r", oldest_ms=0)], 0.0, 1000)
    assert (one.oldest_ms, none.oldest_ms) == (600, None)


def test_destinations_have_their_depth_and_their_rates_the_busiest_first() -> None:
    ledger = Ledger()
    ledger.rows([facts("busy"), facts("calm"), facts("_LOG")], 0.0, 0)
    rows = ledger.rows([facts("busy", next=100), facts("calm", depth=3), facts("_LOG", next=999)], 10.0, 10_000)
    values = series.of_destinations(rows, 2)
    assert values["in/busy"] == 10.0
    assert values["depth/calm"] == 3.0
    assert "depth/_LOG" not in values
    assert {name for name in values if not series.meaning_of(name).unit} == set()
    assert len(values) <= series.columns_for(0, 2) - series.columns_for(0, 0)


def test_names_are_found_by_pattern_or_by_a_part_of_them() -> None:
    found = rows(facts("orders.in"), facts("orders.out"), facts("_LOG", kind="topic"))
    assert [one.name for one in page(found, pattern="orders.*").destinations] == ["orders.in", "orders.out"]
    assert [one.name for one in page(found, pattern="OUT").destinations] == ["orders.out"]
    assert [one.name for one in page(found, kind="topic").destinations] == ["_LOG"]
    with pytest.raises(BadPattern):
        page(found, pattern="a..*")


@given(
    depths=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 3), max_size=20),
    limit=st.integers(1, 5),
    sort=st.sampled_from(["name", "depth", "oldest_ms"]),
    descending=st.sampled_from([None, True, False]),
)
def test_pages_together_are_everything_once_and_in_order(
    depths: dict[str, int], limit: int, sort: Any, descending: bool | None
) -> None:
    found = rows(*(facts(name, depth=depth) for name, depth in depths.items()))
    whole = page(found, sort=sort, descending=descending, limit=1000).destinations
    assert {one.name for one in whole} == depths.keys()
    pieces: list[Destination] = []
    after: str | None = ""
    while after is not None:
        part = page(found, sort=sort, descending=descending, limit=limit, after=after)
        assert part.total == len(depths)
        pieces += part.destinations
        after = part.next
    assert pieces == whole


@pytest.mark.parametrize("after", ["x", "====", "WzFd", "bnVsbA", "é"])
def test_what_is_no_place_in_a_list_is_refused(after: str) -> None:
    with pytest.raises(BadParameter):
        page(rows(facts("q")), after=after)


def test_a_place_of_another_order_is_refused() -> None:
    found = rows(facts("a"), facts("b"))
    by_name = page(found, limit=1).next
    assert by_name
    with pytest.raises(BadParameter):
        page(found, sort="depth", after=by_name)
