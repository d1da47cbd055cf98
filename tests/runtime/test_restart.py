"""When a child that ended is started again, and when no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.runtime.restart import (
    CANNOT_START,
    PAUSE_LAST_S,
    QUICK_ENDS_MAX,
    QUICK_S,
    REFUSED,
    Halt,
    Start,
    describe,
    on_exit,
)

statuses = st.integers(-64, 255)


def test_one_that_served_for_long_is_followed_at_once() -> None:
    assert on_exit(1, QUICK_S, attempts=4) == Start(0.0, 0)


def test_a_kill_from_outside_says_nothing_against_the_program() -> None:
    assert on_exit(-9, 0.01, attempts=5) == Start(0.0, 0)
    assert on_exit(-15, 0.01, attempts=5) == Start(0.0, 0)


def test_a_kill_before_it_was_ready_counts() -> None:
    assert on_exit(-9, 0.0, attempts=0) == Start(0.1, 1)


def test_quick_ends_get_doubling_pauses() -> None:
    pauses = [on_exit(1, 0.0, attempts) for attempts in range(4)]
    assert [one.after_s for one in pauses if isinstance(one, Start)] == [0.1, 0.2, 0.4, 0.8]


def test_what_cannot_start_is_not_retried_at_once() -> None:
    assert on_exit(CANNOT_START, 0.0, 0) == Start(PAUSE_LAST_S, 1)
    answer = on_exit(CANNOT_START, 0.0, 2)
    assert isinstance(answer, Halt)
    assert "could not start" in answer.reason


def test_status_3_of_one_that_had_been_ready_is_a_quick_end_like_others() -> None:
    assert on_exit(CANNOT_START, 0.5, 0) == Start(0.1, 1)


def test_statuses_are_told_in_words() -> None:
    assert describe(-11) == "by signal 11"
    assert describe(2) == "with status 2"


@given(st.lists(statuses, min_size=QUICK_ENDS_MAX, max_size=20))
def test_a_child_that_cannot_boot_is_not_retried_for_ever(ends: list[int]) -> None:
    attempts, waited_s = 0, 0.0
    for number, status in enumerate(ends):
        answer = on_exit(status, 0.0, attempts)
        if isinstance(answer, Halt):
            assert number < QUICK_ENDS_MAX
            assert waited_s <= QUICK_ENDS_MAX * PAUSE_LAST_S
            return
        assert answer.after_s > 0
        assert answer.attempts == attempts + 1
        attempts, waited_s = answer.attempts, waited_s + answer.after_s
    raise AssertionError("never halted")


@given(statuses.filter(lambda status: status != REFUSED), st.floats(QUICK_S, 1e6), st.integers(0, 100))
def test_a_long_life_wipes_the_slate_clean(status: int, lived_s: float, attempts: int) -> None:
    assert on_exit(status, lived_s, attempts) == Start(0.0, 0)


def test_whose_configuration_is_refused_is_not_started_again() -> None:
    assert isinstance(on_exit(REFUSED, 0.0, 0), Halt)
    assert isinstance(on_exit(REFUSED, 100.0, 0), Halt)
