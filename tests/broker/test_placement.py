"""Which manager gets a new connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.placement import order


@pytest.mark.requirement("SRV-26")
def test_the_fewest_connections_come_first() -> None:
    assert order([3, 1, 2], [False] * 3, 10) == [1, 2, 0]


def test_equals_keep_their_order() -> None:
    assert order([1, 1, 1], [False] * 3, 10) == [0, 1, 2]


@pytest.mark.requirement("SRV-4", state="half")
def test_draining_and_full_ones_get_nothing() -> None:
    assert order([0, 5, 1], [True, False, False], 5) == [2]
    assert order([5], [False], 5) == []


@given(st.integers(1, 8), st.integers(0, 200))
def test_loads_stay_within_one_of_each_other(managers: int, connections: int) -> None:
    loads = [0] * managers
    for _ in range(connections):
        loads[order(loads, [False] * managers, 1000)[0]] += 1
    assert max(loads) - min(loads) <= 1
