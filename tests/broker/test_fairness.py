"""Stop, one more, go on: the decision alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.fairness import Admission

STEPS = st.lists(st.one_of(st.integers(0, 9).map(lambda client: ("send", client)), st.just(("pop", 0))), max_size=300)


@pytest.mark.requirement("SRV-102")
@pytest.mark.requirement("SRV-103")
@given(STEPS, st.integers(1, 12), st.integers(1, 12))
def test_the_queue_never_exceeds_the_limit_by_more_than_one_for_each_client(
    steps: list[tuple[str, int]], limit: int, resume_below: int
) -> None:
    admission = Admission(limit=limit, resume_below=resume_below)
    waiting = 0
    extra: dict[int, int] = {}
    for what, client in steps:
        if what == "pop":
            waiting = max(0, waiting - 1)
            if admission.on_length(waiting):
                assert waiting < min(resume_below, limit)
                extra = {}
        elif admission.may_take(client, waiting):
            if admission.stopped:
                extra[client] = extra.get(client, 0) + 1
            admission.taken(client)
            waiting += 1
        else:
            assert admission.stopped
            assert extra.get(client) == 1, "a client that had not had its one more was refused"
        assert waiting <= limit + 10
        assert all(count == 1 for count in extra.values())


@given(st.integers(1, 50), st.integers(1, 50))
def test_reading_goes_on_only_below_the_low_mark(limit: int, resume_below: int) -> None:
    admission = Admission(limit=limit, resume_below=resume_below)
    admission.may_take(1, limit)
    assert admission.stopped
    low = min(resume_below, limit)
    assert not admission.on_length(low)
    assert admission.on_length(low - 1)
    assert not admission.stopped


def test_a_new_client_with_the_index_of_a_lost_one_has_its_own_one_more() -> None:
    admission = Admission(limit=1, resume_below=1)
    assert admission.may_take(4, 1)
    admission.taken(4)
    assert not admission.may_take(4, 2)
    admission.forget(4)
    assert admission.may_take(4, 2)
