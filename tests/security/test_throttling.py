from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.security.throttling import FREE, PAUSE_MAX_S, Throttle, is_local, source_of


def test_a_few_wrong_ones_are_free_and_then_each_costs_twice_the_pause() -> None:
    throttle = Throttle()
    for _ in range(FREE):
        assert throttle.wait_s("u", "10.0.0.1", 0) == 0
        throttle.wrong("u", "10.0.0.1", 0)
    assert throttle.wait_s("u", "10.0.0.1", 0) == 0
    throttle.wrong("u", "10.0.0.1", 0)
    assert throttle.wait_s("u", "10.0.0.1", 0) == 1
    assert throttle.wait_s("u", "10.0.0.1", 1) == 0
    throttle.wrong("u", "10.0.0.1", 1)
    assert throttle.wait_s("u", "10.0.0.1", 1) == 2


def test_nobody_else_waits() -> None:
    throttle = Throttle()
    for _ in range(10):
        throttle.wrong("u", "10.0.0.1", 0)
    assert throttle.wait_s("u", "10.0.0.1", 0) > 0
    assert throttle.wait_s("u", "10.0.0.2", 0) == 0
    assert throttle.wait_s("v", "10.0.0.1", 0) == 0


def test_the_right_password_after_the_pause_clears_it() -> None:
    throttle = Throttle()
    for _ in range(FREE + 1):
        throttle.wrong("u", "h", 0)
    throttle.right("u", "h")
    throttle.wrong("u", "h", 2)
    assert throttle.wait_s("u", "h", 2) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100)), max_size=60))
def test_a_pause_is_never_longer_than_the_longest_and_memory_is_bounded(attempts: list[tuple[str, float]]) -> None:
    throttle, now_s = Throttle(remembered_max=2), 0.0
    for user, passed_s in attempts:
        now_s += passed_s
        throttle.wrong(user, "h", now_s)
        assert throttle.wait_s(user, "h", now_s) <= PAUSE_MAX_S
        assert len(throttle) <= 2


@pytest.mark.parametrize(
    ("peer", "source", "local"),
    [
        ("127.0.0.1:5000", "127.0.0.1", True),
        ("[::1]:5000", "::1", True),
        ("[::ffff:127.0.0.1]:5000", "127.0.0.1", True),
        ("unix", "unix", True),
        ("10.1.2.3:5000", "10.1.2.3", False),
        ("[fe80::1%eth0]:5000", "fe80::/64", False),
        ("[2001:db8::7:1]:5000", "2001:db8::/64", False),
        ("nonsense", "nonsense", False),
    ],
)
def test_where_a_client_comes_from(peer: str, source: str, local: bool) -> None:
    assert source_of(peer) == source
    assert is_local(peer) is local
