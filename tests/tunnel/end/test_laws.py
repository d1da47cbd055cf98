"""Whatever a carrier and two programs do: every byte arrives once and in order, or the end says that it ended.

The laws are those of `model.py` and `watch.py`: no first transmission above the edge, bounded memory, an ACK in time
and true, a close after its data, rest when there is nothing to do, no timer that stays due.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tunnel.end.model import Plan, Work, run
from tests.tunnel.end.simulate import plan_of, simulate

SHORT = st.sampled_from([0.0, 0.01, 0.1])
RATE = st.sampled_from([0.0, 0.1, 0.3, 0.6])
WORKS = st.builds(
    Work,
    writes=st.integers(0, 40),
    chunk=st.integers(1, 200),
    write_gap_s=SHORT,
    read_chunk=st.integers(10, 2000),
    read_gap_s=SHORT,
    asleep_until_s=st.sampled_from([0.0, 1.0, 30.0, 350.0]),
    closes_at_s=st.just(inf),
    aborts_at_s=st.just(inf),
    is_early=st.booleans(),
    option=st.integers(0, 3),
)
CLOSES = st.tuples(st.sampled_from([0.0, 1.0, 50.0, inf]), st.sampled_from([0.0, 1.0, 50.0, inf]))


def with_times(works: tuple[Work, Work], closes: tuple[float, float]) -> tuple[Work, Work]:
    return works[0]._replace(closes_at_s=closes[0]), works[1]._replace(closes_at_s=closes[1])


def silence(begin: float, length: float) -> tuple[tuple[float, float], ...]:
    return ((begin, begin + length),)


PLANS = st.builds(
    Plan,
    seed=st.integers(0, 2**16),
    version=st.sampled_from([1, 2]),
    first_sequence=st.one_of(st.just(1), st.integers(2**32 - 30, 2**32 - 1), st.integers(2**31 - 30, 2**31)),
    capacities=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    transmit_max=st.integers(1, 40),
    payload_max=st.integers(20, 200),
    loss=RATE,
    duplicate=RATE,
    flip=st.sampled_from([0.0, 0.1]),
    delay_s=st.sampled_from([0.0, 0.01, 0.3]),
    jitter_s=st.sampled_from([0.0, 0.05, 2.0]),
    bodies=st.booleans(),
    room=st.sampled_from([1, 300, 1 << 16]),
    busy_s=SHORT,
    silences=st.one_of(st.just(()), st.builds(silence, st.floats(0, 10), st.floats(0, 40))),
    heals_at_s=st.sampled_from([0.0, 10.0, 50.0]),
    works=st.builds(with_times, st.tuples(WORKS, WORKS), CLOSES),
)
RULES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.requirement("TUN-5")
@pytest.mark.requirement("TUN-80")
@pytest.mark.requirement("TUN-85", state="half", note="the ends; the gateway's memory is tested with it")
@settings(RULES, max_examples=40)
@given(PLANS)
def test_two_ends_over_any_carrier(plan: Plan) -> None:
    run(plan)


@pytest.mark.requirement("TUN-98")
@settings(RULES, max_examples=30)
@given(PLANS, st.integers(0, 1), st.floats(0, 20))
def test_an_abort_at_any_time(plan: Plan, side: int, at: float) -> None:
    works = [work._replace(closes_at_s=60.0) for work in plan.works]  # it is answered, should the abort be lost
    works[side] = works[side]._replace(aborts_at_s=at)
    run(plan._replace(works=(works[0], works[1])))


@pytest.mark.requirement("TUN-90")
@settings(RULES, max_examples=20)
@given(PLANS)
def test_both_close_at_once(plan: Plan) -> None:
    world = run(plan._replace(works=with_times(plan.works, (0.0, 0.0))))
    assert all(side.end.is_eof() and side.read == side.other.written for side in world.sides)


def test_a_few_seeds_of_the_simulation() -> None:
    assert simulate(1, 30) == {}


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, second = run(plan_of(7)), run(plan_of(7))
    assert first.describe() == second.describe()
    assert first.steps == second.steps


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_seeds_of_the_simulation() -> None:
    assert simulate(1000, 1000) == {}
