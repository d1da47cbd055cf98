"""Whom an adapter lets in, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.feeds.adapter import admission
from fairlead.feeds.adapter.admission import Admission
from fairlead.feeds.words import Admit


def admit(token: str = "t", life_s: float = 10.0, *, link: bool = False) -> Admit:
    return Admit(token=token, client="c", life_s=life_s, link=link)


def test_a_token_lets_in_until_it_runs_out() -> None:
    doors = Admission()
    assert doors.find("t", 0.0) is None
    doors.admit(admit(), 0.0)
    found = doors.find("t", 9.9)
    assert found is not None
    assert found.client == "c"
    assert not found.is_link
    assert doors.find("t", 10.0) is None
    assert doors.expire(10.0) == ["t"]
    assert len(doors) == 0


def test_the_same_token_again_moves_the_time() -> None:
    doors = Admission()
    doors.admit(admit(), 0.0)
    doors.admit(admit(), 8.0)
    assert doors.expire(12.0) == []
    assert doors.find("t", 17.9) is not None
    assert doors.expire(18.0) == ["t"]


def test_a_shorter_life_counts_too() -> None:
    doors = Admission()
    doors.admit(admit(life_s=100), 0.0)
    doors.admit(admit(life_s=1), 0.0)
    assert doors.expire(1.0) == ["t"]
    assert doors.expire(100.0) == []


def test_a_revoked_token_is_gone() -> None:
    doors = Admission()
    doors.admit(admit(), 0.0)
    assert doors.revoke("t")
    assert not doors.revoke("t")
    assert doors.find("t", 0.0) is None


def test_links_are_not_told_as_programs() -> None:
    doors = Admission()
    doors.admit(admit("program"), 0.0)
    doors.admit(admit("adapter", link=True), 0.0)
    assert doors.tokens() == ("program",)


def test_an_endless_life_has_an_end() -> None:
    doors = Admission()
    doors.admit(admit(life_s=float("inf")), 0.0)
    assert doors.find("t", 8 * 86_400.0) is None


def test_tokens_are_bounded() -> None:
    doors = Admission()
    for number in range(admission.TOKENS_MAX):
        assert doors.admit(admit(str(number)), 0.0)
    assert not doors.admit(admit("one more"), 0.0)
    assert doors.admit(admit("17"), 0.0)  # whoever is in may stay


def test_renewals_leave_nothing_behind() -> None:
    doors = Admission()
    for second in range(10_000):
        doors.admit(admit(), float(second))
    assert len(doors._expiries) < 3000
    assert doors.expire(10_008.9) == []
    assert doors.expire(10_009.0) == ["t"]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["admit", "revoke", "expire"]), st.integers(0, 5)), max_size=50
    )
)
def test_nobody_comes_in_without_a_living_token(steps: list[tuple[str, str, int]]) -> None:
    doors, until_s, now_s = Admission(), {"a": 0.0, "b": 0.0}, 0.0
    for token, step, number in steps:
        now_s += 1.0
        if step == "admit":
            doors.admit(admit(token, float(number)), now_s)
            until_s[token] = now_s + number
        elif step == "revoke":
            doors.revoke(token)
            until_s[token] = 0.0
        else:
            doors.expire(now_s)
        for one in "ab":
            assert (doors.find(one, now_s) is not None) == (until_s[one] > now_s)
