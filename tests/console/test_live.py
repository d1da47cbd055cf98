from __future__ import annotations

import pytest

from fairlead.console.live import REMEMBERED, WAITING_MAX, Hub, Told, encoded, read_id, topics_of
from fairlead.console.problems import Denied


def test_of_each_kind_only_the_newest_waits_and_events_all() -> None:
    hub = Hub(2)
    one = hub.join(["overview", "event"], admin=True)
    assert hub.tell("overview", b"1") == [one]
    assert hub.tell("overview", b"2") == []  # it was woken already
    assert hub.tell("history", b"3") == []
    hub.tell_event(5, b"a")
    hub.tell_event(5, b"b")
    assert [(told.topic, told.data) for told in one.take()] == [("event", b"a"), ("event", b"b"), ("overview", b"2")]
    assert one.take() == []


def test_who_does_not_read_costs_a_bounded_number_of_events() -> None:
    hub = Hub(1)
    one = hub.join(["event"], admin=True)
    for number in range(WAITING_MAX + 10):
        hub.tell_event(number, b"%d" % number)
    assert one.missed == 10
    found = one.take()
    assert (len(found), found[0].data) == (WAITING_MAX, b"10")


def test_who_comes_back_is_told_what_he_missed() -> None:
    hub = Hub(3)
    for ms, data in ((10, b"a"), (10, b"b"), (9, b"c"), (20, b"d")):  # times of several nodes need not grow
        hub.tell_event(ms, data)
    assert [told.data for told in hub.join(["event"], admin=True, last_id="10.0").take()] == [b"b", b"c", b"d"]
    assert [told.id for told in hub.join(["event"], admin=True, last_id="10.2").take()] == ["20.0"]
    assert hub.join(["event"], admin=True, last_id="nonsense").take() == []


def test_what_is_remembered_is_bounded() -> None:
    hub = Hub(1)
    for number in range(REMEMBERED + 5):
        hub.tell_event(number, b"x")
    assert len(hub.join(["event"], admin=True, last_id="0.0").take()) == REMEMBERED


def test_too_many_are_turned_away_until_one_leaves() -> None:
    hub = Hub(1)
    one = hub.join(["overview"], admin=True)
    assert hub.wanted == {"overview"}
    with pytest.raises(Denied) as caught:
        hub.join(["overview"], admin=True)
    assert (caught.value.status, caught.value.code) == (503, "server-full")
    hub.leave(one)
    assert hub.wanted == frozenset()
    hub.join(["overview"], admin=True)


def test_topics_and_ids_are_read_with_care() -> None:
    assert topics_of("overview, event") == ["overview", "event"]
    assert len(topics_of("")) == 5
    with pytest.raises(Denied):
        topics_of("overview,nothing")
    assert read_id("12.3") == (12, 3)
    for text in ("", "12", "12.", ".3", "-1.0", "1.x", "9" * 16 + ".0", "²."):
        assert read_id(text) is None


def test_an_event_is_three_lines_and_an_empty_one() -> None:
    assert encoded(Told("event", b"{}", "1.0")) == b"event: event\nid: 1.0\ndata: {}\n\n"
    assert encoded(Told("overview", b"{}")) == b"event: overview\ndata: {}\n\n"
