"""`security/expiry.py`: who is asked to renew, and who is cut off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.security.expiry import Due, Expiry


def test_a_long_login_is_asked_a_minute_before_its_end() -> None:
    expiry = Expiry()
    expiry.add(1, 7, 3600.0, 0.0)
    assert expiry.due(3539.0) == []
    assert expiry.due(3540.0) == [Due(1, 7, "renew", 60.0)]
    assert expiry.due(3600.0) == [Due(1, 7, "end", 0.0)]
    assert not len(expiry)


def test_a_short_login_is_asked_when_most_of_it_is_over_and_a_very_short_one_not_at_all() -> None:
    expiry = Expiry()
    expiry.add(1, 7, 10.0, 0.0)
    expiry.add(2, 8, 0.5, 0.0)
    assert expiry.due(0.6) == [Due(2, 8, "end", 0.0)]
    assert expiry.due(7.0) == [Due(1, 7, "renew", 3.0)]


def test_a_login_without_an_end_is_none_of_our_business() -> None:
    expiry = Expiry()
    expiry.add(1, 7, None, 0.0)
    assert expiry.due(1e12) == []


def test_another_connection_in_the_same_place_is_not_cut_off_for_the_one_before_it() -> None:
    expiry = Expiry()
    expiry.add(1, 7, 10.0, 0.0)
    expiry.forget(1)
    expiry.add(1, 8, 100.0, 0.0)
    assert [due.uid for due in expiry.due(1000.0)] == [8, 8]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1000)), max_size=400))
def test_what_is_kept_does_not_grow_with_connections_that_are_gone(steps: list[tuple[int, float]]) -> None:
    expiry = Expiry()
    for uid, (place, end_s) in enumerate(steps):
        expiry.forget(place)
        expiry.add(place, uid, end_s, 0.0)
    assert len(expiry) <= 4 * 6 + 64 + 2
