"""A cursor against a plain model: every message beyond the floor is in exactly one place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.cursor import Cursor
from fairlead.cluster.priorities import Priorities

LAST = 40
ranges = st.tuples(st.integers(1, LAST), st.integers(1, 8)).map(lambda pair: (pair[0], min(pair[0] + pair[1], LAST)))


@given(st.lists(st.tuples(st.sampled_from(["settle", "open", "take"]), ranges), max_size=40))
def test_settled_and_ready_are_what_a_set_would_say(steps: list[tuple[str, tuple[int, int]]]) -> None:
    cursor = Cursor(0, 1, Priorities(), durable=True)
    settled: set[int] = set()
    ready: set[int] = set()
    for step, (low, high) in steps:
        orders = set(range(low, high))
        if step == "settle":
            cursor.settle(low, high)
            settled |= orders
            ready -= orders
        elif step == "open":
            for first, beyond in cursor.unsettled(low, high):
                cursor.open(first, beyond)
            ready |= orders - settled
        else:
            cursor.take_out(low, high)
            ready -= orders
        assert {order for first, beyond in cursor.unsettled(1, LAST) for order in range(first, beyond)} == (
            set(range(1, LAST)) - settled
        )
        assert cursor.waiting() == len(ready)
        assert all(cursor.is_settled(order) == (order in settled) for order in range(1, LAST))
        assert cursor.floor == min(set(range(1, LAST + 1)) - settled)
        assert cursor.depth(LAST) == LAST - 1 - len(settled)


@given(
    st.dictionaries(st.integers(1, LAST), st.integers(0, 3)),
    st.integers(1, LAST),
    ranges.filter(lambda pair: pair[0] < pair[1]),
)
def test_runs_of_equal_count_cover_the_range(counts: dict[int, int], again_below: int, span: tuple[int, int]) -> None:
    cursor = Cursor(0, 1, Priorities(), durable=True)
    cursor.counts, cursor.again_below = counts, again_below
    runs = list(cursor.alike(*span))
    assert [order for low, high, _ in runs for order in range(low, high)] == list(range(*span))
    assert all(cursor.count(order) == count for low, high, count in runs for order in range(low, high))


@given(st.lists(st.tuples(ranges, st.integers(0, 9)), max_size=10), ranges)
def test_runs_of_equal_priority_cover_the_range(
    given_: list[tuple[tuple[int, int], int]], span: tuple[int, int]
) -> None:
    priorities, model = Priorities(), dict.fromkeys(range(LAST + 10), 4)
    taken: set[int] = set()
    for (low, high), priority in given_:
        for order in range(low, high):
            if order not in taken:  # a message has one priority for good
                taken.add(order)
                priorities.set(order, order + 1, priority)
                model[order] = priority
    runs = list(priorities.runs(*span))
    assert [order for _, low, high in runs for order in range(low, high)] == list(range(*span))
    assert all(model[order] == priority for priority, low, high in runs for order in range(low, high))
    copy = Priorities()
    copy.restore(priorities.snapshot())
    assert list(copy.runs(1, LAST)) == list(priorities.runs(1, LAST))


def test_a_delay_that_was_changed_falls_due_once() -> None:
    cursor = Cursor(0, 1, Priorities(), durable=True)
    cursor.delay(5, 100)
    cursor.delay(5, 200)
    cursor.delay(6, 150)
    assert cursor.next_due_ms == 150
    assert cursor.fall_due(160) == [6]
    assert cursor.fall_due(300) == [5]
    assert cursor.next_due_ms == 0
