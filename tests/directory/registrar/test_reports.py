from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.directory.registrar.reports import Report, Reports


def test_told_in_order_and_once() -> None:
    reports = Reports()
    reports.opened("AX", "1", "r")
    reports.opened("AX", "2")
    first, second = reports.take(10)
    assert (first, second.identity) == (Report(True, "AX", "1", "r"), "2")
    assert reports.take(10) == []
    reports.told(first)
    reports.told(second)
    assert reports.idle
    assert reports.delivered == 2


def test_what_was_not_told_is_first_again_unless_there_is_something_newer() -> None:
    reports = Reports()
    reports.opened("AX", "1")
    reports.opened("AX", "2")
    taken = reports.take(2)
    reports.opened("AX", "3")
    reports.closed("AX", "2")
    reports.not_told(taken)
    assert [(one.identity, one.opened) for one in reports.take(10)] == [("1", True), ("3", True), ("2", False)]


def test_of_one_connection_there_are_never_two_under_way() -> None:
    reports = Reports()
    reports.opened("AX", "1")
    (opened,) = reports.take(10)
    reports.closed("AX", "1")
    assert reports.take(10) == []
    reports.told(opened)
    (closed,) = reports.take(10)
    assert not closed.opened


def test_too_many_are_replaced_by_stating_everything_anew() -> None:
    reports = Reports(pending_max=3)
    for number in range(5):
        reports.opened("AX", str(number))
    assert reports.restate
    assert len(reports) <= 3
    reports.restating()
    assert reports.idle


def test_another_kind_is_told_until_it_was_heard() -> None:
    reports = Reports()
    reports.changed_kind("AX", "static")
    assert reports.next_kind() == ("AX", "static")
    reports.changed_kind("AX", "dynamic")
    reports.kind_told("AX", "static")
    assert reports.next_kind() == ("AX", "dynamic")
    reports.kind_told("AX", "dynamic")
    assert reports.idle


@given(st.lists(st.tuples(st.sampled_from(("open", "close", "tell", "fail")), st.integers(0, 3)), max_size=60))
def test_the_last_word_of_each_connection_arrives_last(steps: list[tuple[str, int]]) -> None:
    """Law: whatever fails on the way, what the directory heard last of a connection is what happened last to it."""
    reports, last, heard = Reports(), dict[str, bool](), dict[str, bool]()
    under_way: list[Report] = []
    for what, number in steps:
        if what in ("open", "close"):
            last[str(number)] = what == "open"
            (reports.opened if what == "open" else reports.closed)("AX", str(number))
        else:
            under_way += reports.take(2)
            if what == "fail":
                heard |= {one.identity: one.opened for one in under_way[:1]}  # it may have arrived all the same
                reports.not_told(under_way)
            else:
                for one in under_way:
                    heard[one.identity] = one.opened
                    reports.told(one)
            under_way = []
    while taken := reports.take(2):
        for one in taken:
            heard[one.identity] = one.opened
            reports.told(one)
    assert heard == last
    assert reports.idle
