"""Calls and turns; connections of a pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.directory.delivery.calls import Calls, Turn
from fairlead.directory.delivery.pooled import Pooled
from fairlead.errors import BadParameter, Busy


def test_an_answer_is_for_its_call_and_a_late_one_for_nobody() -> None:
    calls: Calls[str] = Calls()
    calls.open("1", "first")
    calls.open("2", "second")
    calls.give_up("1")
    assert calls.answered("1") is None
    assert calls.late == 1
    assert calls.answered("2") == "second"
    assert calls.answered("2") is None  # the same answer again
    assert (len(calls), calls.late) == (0, 2)
    calls.open("3", "third")
    assert calls.lose_all() == ["third"]
    assert len(calls) == 0


def test_one_call_at_a_time_and_the_others_in_order() -> None:
    turn: Turn[str] = Turn()
    assert turn.take()
    assert not turn.take()
    assert isinstance(turn.refuse(), Busy)
    for waiter in ("one", "two", "three"):
        turn.wait(waiter)
    turn.leave("two")
    turn.leave("nobody")
    assert (turn.release(), turn.is_taken) == ("one", True)
    assert (turn.release(), turn.is_taken) == ("three", True)
    assert (turn.release(), turn.is_taken) == (None, False)
    assert turn.take()


@pytest.mark.parametrize(("minimum", "maximum"), [(-1, 3), (4, 3), (0, 0)])
def test_sizes_that_make_no_sense(minimum: int, maximum: int) -> None:
    with pytest.raises(BadParameter):
        Pooled(minimum, maximum)


def test_an_idle_one_first_then_a_new_one_then_wait() -> None:
    pool: Pooled[str, str] = Pooled(1, 2)
    assert pool.missing == 1
    pool.begin_opening()
    pool.opened("a", used=False)
    assert pool.missing == 0
    assert pool.ask() == "a"
    assert pool.ask() == "open"
    assert pool.ask() == "wait"  # the second one is not open yet, and counts
    pool.wait("waiter")
    assert pool.next_waiter() is None
    pool.failed()
    assert pool.next_waiter() == "waiter"  # there is room again
    assert pool.next_waiter() is None
    pool.give_back("a", broken=False)
    assert pool.ask() == "a"
    pool.give_back("a", broken=True)
    assert pool.facts() == {"idle": 0, "used": 0, "opening": 0, "waiting": 0}
    pool.wait("late")
    assert pool.next_waiter(everybody=True) == "late"


def test_the_one_used_last_is_used_again() -> None:
    pool: Pooled[str, str] = Pooled(0, 3)
    for name in "abc":
        assert pool.ask() == "open"
        pool.opened(name, used=True)
    for name in "bac":
        pool.give_back(name, broken=False)
    assert pool.ask() == "c"
    pool.drop_idle("a")
    assert pool.ask() == "b"
    assert pool.everything() == ["c", "b"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_pool_is_never_larger_than_its_maximum_and_never_hands_out_one_twice(steps: list[int]) -> None:
    pool: Pooled[int, int] = Pooled(0, 3)
    used: list[int] = []
    opening, made, waiting = 0, 0, 0
    for step in steps:
        if step <= 1:
            found: Any = pool.ask()
            if found == "open":
                opening += 1
            elif found == "wait":
                assert len(used) + opening == 3
                pool.wait(waiting)
                waiting += 1
            else:
                assert found not in used
                used.append(found)
        elif step == 2 and opening:
            opening, made = opening - 1, made + 1
            pool.opened(made, used=True)
            used.append(made)
        elif step == 3 and opening:
            opening -= 1
            pool.failed()
        elif step >= 4 and used:
            pool.give_back(used.pop(0), broken=step == 5)
        assert pool.size <= 3
        assert pool.facts()["used"] == len(used)
