"""What is due comes once, never early, never late, and not when it was cleared."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tunnel.gateway.deadlines import Deadlines

steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 40)),
        st.tuples(st.just("clear"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 10)),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(steps)
def test_it_behaves_like_a_dictionary_that_is_searched(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    now_s = 0.0
    for step, key, number in steps:
        if step == "set":
            deadlines.set(key, now_s + number)
            model[key] = now_s + number
        elif step == "clear":
            deadlines.clear(key)
            model.pop(key, None)
        else:
            now_s += number
            due = list(deadlines.due(now_s))
            assert sorted(due) == sorted(key for key, at_s in model.items() if at_s <= now_s)
            for key in due:
                del model[key]
        assert len(deadlines) == len(model)
        assert deadlines.next_at() <= min(model.values(), default=inf)
        assert (deadlines.next_at() == inf) is not bool(model)


def test_what_is_cleared_while_others_are_due_does_not_come() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "abc":
        deadlines.set(key, 1.0)
    came = []
    for key in deadlines.due(1.0):
        came.append(key)
        deadlines.clear("b")
    assert came == ["a", "c"]


def test_a_deadline_that_is_moved_on_again_and_again_takes_one_place() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for number in range(10_000):
        deadlines.set("a", float(number))
        deadlines.set(str(number), 5.0)
        deadlines.clear(str(number))
    assert len(deadlines._heap) < 100
    assert list(deadlines.due(9998.0)) == []
    assert list(deadlines.due(9999.0)) == ["a"]
