"""Numbers that came, came twice, came late or never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.demo.books import BIN_S, DELAYS_MAX, Book, percentiles


def filled(numbers: list[int], *, ordered: bool = True) -> Book:
    book = Book(ordered=ordered)
    book.begin(100.0)
    for place, number in enumerate(numbers, 1):
        book.enter(number, 100.0 + place)
    return book


def test_all_in_order_is_clean() -> None:
    count = filled([0, 1, 2]).count("x", 3, disconnected=0)
    assert count.is_clean
    assert (count.received, count.lost, count.doubled, count.disordered) == (3, 0, 0, 0)


def test_one_that_never_came_is_lost() -> None:
    book = filled([0, 2])
    assert book.missing(3) == [1]
    assert book.count("x", 3).lost == 1
    assert not book.count("x", 3).is_clean
    assert not book.has_all(3)


def test_the_end_of_the_flow_can_be_lost_too() -> None:
    assert filled([0, 1]).count("x", 4).lost == 2


def test_one_that_comes_twice_is_doubled_unless_it_says_so() -> None:
    book = filled([0, 1, 1])
    book.enter(0, 110.0, again=True)
    count = book.count("x", 2)
    assert (count.doubled, count.again, count.received) == (1, 1, 2)


def test_a_first_delivery_may_be_marked_as_one_more() -> None:
    book = Book()
    book.enter(0, 1.0, again=True)
    assert (book.received, book.again) == (1, 0)


def test_a_late_one_is_out_of_order_where_order_is_promised() -> None:
    assert filled([1, 0]).count("x", 2).disordered == 1
    assert not filled([1, 0]).count("x", 2).is_clean
    assert filled([1, 0], ordered=False).count("x", 2).disordered is None
    assert filled([1, 0], ordered=False).count("x", 2).is_clean


def test_a_lost_connection_is_a_fault() -> None:
    assert not filled([0]).count("x", 1, disconnected=1).is_clean


def test_the_longest_silence_is_looked_for_where_something_was_done() -> None:
    book = Book()
    book.begin(10.0)
    for at_s in (10.1, 10.2, 12.0, 12.1, 12.5):
        book.tick(at_s)
    assert book.pause(0.0, 9.0).length_s == pytest.approx(1.8)
    assert book.pause(0.0, 9.0).at_s == pytest.approx(0.2)
    assert book.pause(2.05, 9.0).length_s == pytest.approx(0.4)
    assert book.pause(1.0, 1.5).length_s == pytest.approx(1.8), "one that was under way"
    assert book.pause(8.0, 9.0, "none").length_s == 0.0


def test_rates_are_counted_in_bins() -> None:
    book = Book()
    book.begin(0.0)
    for at_s in (0.0, 0.01, 3.4 * BIN_S):
        book.tick(at_s)
    assert book.curve("x").rates == [2 / BIN_S, 0.0, 0.0, 1 / BIN_S]
    assert Book().curve("x").rates == []


def test_a_book_begins_by_itself() -> None:
    book = Book()
    book.enter(0, 50.0, sent_s=49.5)
    assert book.delays_s == [0.5]
    assert book.curve("x").rates == [1 / BIN_S]


def test_delays_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.demo.books.DELAYS_MAX", 3)
    assert DELAYS_MAX > 3
    book = Book()
    for number in range(5):
        book.enter(number, 1.0, sent_s=0.5)
    assert len(book.delays_s) == 3


def test_percentiles() -> None:
    assert percentiles([]) == {}
    found = percentiles([float(n) for n in range(100)])
    assert found == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "longest": 99.0}
    assert percentiles([2.0]) == {"p50": 2.0, "p90": 2.0, "p99": 2.0, "longest": 2.0}


@given(st.lists(st.integers(0, 40)))
def test_every_number_is_received_or_lost(numbers: list[int]) -> None:
    count = filled(numbers).count("x", 41)
    assert count.received + count.lost == 41
    assert count.doubled == len(numbers) - len(set(numbers))
    assert count.is_clean == (numbers == list(range(41)))
