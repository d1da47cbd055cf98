"""Table 5.1 of the specification row by row, and its example."""

from __future__ import annotations

import pytest

from fairlead.feeds.events import Discontinuity, FailedOver, GapFilled, GapOpened, Lost, NoBackup, Succeeded
from fairlead.feeds.records import Place, Record
from fairlead.feeds.words import FetchAdmin, Relation, SnapshotAsk, SnapshotPart, Source, Start
from tests.feeds.arbitration_desk import Desk, admin, admin_void, message, messages, source_gap, void

S = Source(id="s")
HALF = "the adapters are scripted"


def only_messages(got: list[object]) -> list[object]:
    return [item for item in got if isinstance(item, (int, tuple, str))]


def failed_over(**options: object) -> Desk:
    """A client that has 1 to 500 and has just left `a` for `b`."""
    desk = Desk(positions={"s": (490, 1, 1)}, **options)  # type: ignore[arg-type]
    desk.send("a", messages(491, 500))
    desk.down("a")
    assert only_messages(desk.got()) == list(range(491, 501))
    desk.asks.clear()
    return desk


@pytest.mark.requirement("STR-39", half=HALF)
def test_the_example_below_the_table() -> None:
    desk = failed_over()
    desk.send("b", messages(497, 500))
    assert desk.got() == []
    assert desk.counters["duplicates"] == 4
    desk.send("b", [message(501, 500), message(504, 501)])
    assert desk.got() == [501, 504]
    desk.send("b", [message(507, 506)])
    assert desk.got() == [GapOpened(source="s", first=505, last=506)]
    assert desk.fill().word.after == (504, 1, 1)


@pytest.mark.requirement("STR-33", half=HALF)
def test_row_0_an_abandoned_line_and_an_old_epoch_are_discarded() -> None:
    desk = Desk()
    desk.send("a", messages(501, 502))
    desk.notice("ba", 2)
    assert desk.arbiter.line == "b"
    desk.got()
    desk.send("a", messages(503, 504), epoch=1)
    assert desk.got() == []
    assert desk.counters["late"] == 2
    desk.beat("b", epoch=2)
    desk.send("b", messages(503, 503), epoch=1)
    assert desk.got() == []
    assert desk.counters["late"] == 3
    desk.send("b", messages(503, 504), epoch=2, at=9)
    assert desk.got() == [503, 504]


@pytest.mark.requirement("STR-40", half=HALF)
def test_row_1_a_repeat_is_dropped_and_counted() -> None:
    desk = failed_over()
    desk.send("b", [message(498), message(500)])
    assert desk.got() == []
    assert desk.counters["duplicates"] == 2


@pytest.mark.requirement("STR-20", half=HALF)
def test_row_1_and_2_parts_of_one_message_are_told_apart() -> None:
    desk = Desk()
    desk.send("a", [message(501, part=1, parts=3)])
    desk.down("a")
    desk.send("b", [message(501, part=part, parts=3) for part in (1, 2, 3)])
    assert only_messages(desk.got()) == [(501, 1), (501, 2), (501, 3)]
    assert desk.counters["duplicates"] == 1
    desk.send("b", [message(502)])
    assert desk.got() == [502]


@pytest.mark.requirement("STR-41", half=HALF)
@pytest.mark.requirement("STR-21", half=HALF)
def test_row_2_the_direct_successor_by_its_previous_link_is_delivered() -> None:
    desk = failed_over()
    desk.send("b", [message(501), message(502), message(505, 502), void(507, 505), message(509, 507)])
    assert desk.got() == [501, 502, 505, 509]
    assert desk.arbiter.positions == {"s": Place(509)}


@pytest.mark.requirement("STR-42", half=HALF)
@pytest.mark.requirement("STR-51", half=HALF)
def test_row_3_a_gap_is_held_filled_and_gone_on_from() -> None:
    desk = failed_over()
    desk.send("b", messages(551, 560))
    assert desk.got() == [GapOpened(source="s", first=501, last=550)]
    fill = desk.fill()
    assert (fill.adapter, fill.word.after, fill.word.to) == ("b", (500, 1, 1), 551)
    desk.send("b", messages(561, 562))
    desk.answer(fill, messages(501, 551))
    assert desk.got() == [*range(501, 563), GapFilled(source="s", first=501, last=550)]
    counters = desk.counters
    assert (counters["gaps_found"], counters["gaps_filled"], counters["lost"]) == (1, 1, 0)


@pytest.mark.requirement("STR-52", half=HALF)
@pytest.mark.requirement("STR-35", half=HALF)
def test_row_3_what_nobody_has_is_lost_with_its_exact_range() -> None:
    desk = failed_over()
    desk.up("a")
    desk.send("b", messages(551, 553))
    for _ in range(2):
        desk.beat("a", positions={"s": (560, 1, 1)})
        desk.refuse(desk.fill())
    assert [item for item in desk.got() if not hasattr(item, "adapter")] == [
        GapOpened(source="s", first=501, last=550),
        Lost(source="s", first=501, last=550, why="no adapter has them"),
        *(551, 552, 553),
    ]
    assert desk.counters["lost"] == 50


def test_a_gap_that_is_not_filled_in_time_is_lost_and_later_fills_are_repeats() -> None:
    desk = failed_over()
    desk.send("b", messages(503, 504))
    fill = desk.fill()
    desk.pass_time(2.1, "b")
    lost = Lost(source="s", first=501, last=502, why="nobody had them in time")
    assert desk.got() == [GapOpened(source="s", first=501, last=502), lost, 503, 504]
    desk.answer(fill, messages(501, 503))
    assert desk.got() == []


def test_a_fill_that_has_only_some_leaves_an_exact_rest() -> None:
    desk = failed_over()
    desk.send("b", [message(511, 510)])
    desk.answer(desk.fill(), [*messages(506, 511)])
    desk.pass_time(2.1, "b")
    assert desk.got() == [
        GapOpened(source="s", first=501, last=510),
        Lost(source="s", first=501, last=505, why="nobody had them in time"),
        *range(506, 512),
    ]


@pytest.mark.requirement("STR-45", half=HALF)
@pytest.mark.parametrize("offset", [0, 100, -100])
def test_row_4_an_equivalent_line_is_judged_by_the_same_sequences(offset: int) -> None:
    other = Source(id="t", relations=(Relation(kind="equivalent", of="s", offset=offset),))
    desk = Desk(sources=[S, other])
    desk.send("a", messages(501, 503))
    desk.down("a")
    ((adapter, positions),) = [start for start in desk.starts() if start[0] == "b"]
    assert adapter == "b"
    assert positions == {"s": (503, 1, 1), "t": (503 - offset, 1, 1)}
    desk.send("b", messages(502 - offset, 506 - offset), "t")
    assert only_messages(desk.got()) == [501, 502, 503, 504, 505, 506]
    assert desk.counters["duplicates"] == 2
    desk.send("b", [message(510 - offset)], "t")
    desk.beat("b", positions={"t": (510 - offset, 1, 1)})
    desk.asks.clear()
    desk.pass_time(1.0, "b", positions={"t": (510 - offset, 1, 1)})
    fill = desk.fill().word
    assert (fill.source, fill.after[0], fill.to) == ("t", 506 - offset, 510 - offset)


@pytest.mark.requirement("STR-46", half=HALF)
@pytest.mark.requirement("STR-22", half=HALF)
def test_row_5_a_successor_begins_when_the_old_source_is_finished() -> None:
    successor = Source(id="s2", relations=(Relation(kind="successor", of="s", start=1),))
    desk = Desk(sources=[S, successor])
    desk.send("a", [message(501), message(504, 503)])
    desk.send("a", messages(1, 3), "s2")
    assert desk.got() == [501, GapOpened(source="s", first=502, last=503)]
    desk.answer(desk.fill(), messages(502, 504))
    filled = GapFilled(source="s", first=502, last=503)
    assert desk.got() == [502, 503, 504, filled, Succeeded(old="s", new="s2", start=1), 1, 2, 3]
    desk.down("a")
    desk.send("b", messages(503, 504))
    desk.send("b", messages(1, 4), "s2")
    assert only_messages(desk.got()) == [4]


@pytest.mark.requirement("STR-22", half=HALF)
def test_row_5_a_successor_the_notice_of_which_comes_later_is_waited_for() -> None:
    desk = Desk()
    desk.send("a", messages(501, 502))
    desk.send("a", messages(1, 2), "s2")
    desk.send("a", messages(3, 4), "s2")
    assert desk.got() == [501, 502]
    assert len([ask for ask in desk.asks if type(ask).__name__ == "RenewNow"]) == 1
    desk.notice("ab", 1, [S, Source(id="s2", relations=(Relation(kind="successor", of="s"),))])
    assert desk.got() == [Succeeded(old="s", new="s2", start=1), 1, 2, 3, 4]


@pytest.mark.requirement("STR-48", half=HALF)
def test_row_5_a_whole_source_that_came_and_went_unheard_of_is_a_discontinuity() -> None:
    """Its adapters were started again meanwhile: nobody can say what was in it, or that there was nothing."""
    desk = Desk()
    desk.send("a", messages(501, 502))
    later = [Source(id=f"s{n}", relations=(Relation(kind="successor", of=of),)) for n, of in ((2, "s"), (3, "s2"))]
    desk.notice("ab", 1, later)
    desk.send("a", messages(1, 2), "s3")
    assert desk.got() == [501, 502], "an adapter may still tell of it"
    desk.pass_time(2.1)
    succeeded = Succeeded(old="s", new="s3", start=1)
    assert desk.got() == [succeeded, Discontinuity(source="s3", sequence=1), 1, 2]


@pytest.mark.requirement("STR-47", half=HALF)
def test_row_6_a_sibling_has_a_position_of_its_own() -> None:
    sibling = Source(id="t", relations=(Relation(kind="sibling", of="s"),))
    desk = Desk(sources=[S, sibling])
    desk.send("a", messages(501, 502))
    desk.send("a", messages(1, 2), "t")
    desk.send("a", messages(503, 503))
    desk.down("a")
    assert desk.starts()[-1] == ("b", {"s": (503, 1, 1), "t": (2, 1, 1)})
    desk.send("b", messages(1, 3), "t")
    desk.send("b", messages(501, 504))
    assert only_messages(desk.got()) == [501, 502, 1, 2, 503, 3, 504]


@pytest.mark.requirement("STR-48", half=HALF)
@pytest.mark.requirement("STR-43", half=HALF)
def test_row_7_without_a_relation_there_is_a_discontinuity_first() -> None:
    desk = Desk(sources=[S, Source(id="other")])
    desk.send("a", messages(501, 502))
    desk.down("a")
    desk.got()
    desk.send("b", messages(495, 497), "other")
    assert desk.got() == [Discontinuity(source="other", sequence=495), 495, 496, 497]
    assert desk.counters["discontinuities"] == 1


@pytest.mark.requirement("STR-48", half=HALF)
def test_row_7_a_feed_with_snapshots_goes_on_from_one() -> None:
    desk = Desk(sources=[S, Source(id="other")], snapshots="b")
    desk.down("a")
    desk.got()
    desk.send("b", messages(40, 44), "other")
    assert desk.got() == [Discontinuity(source="other", sequence=40)]
    (ask,) = desk.said(SnapshotAsk)
    desk.word("b", SnapshotPart(id=ask.word.id, positions={}, bodies=(b"x",)))
    desk.word("b", SnapshotPart(id=ask.word.id, positions={"other": (42, 1, 1)}, bodies=(b"y",), is_last=True))
    got = desk.got()
    assert [type(item).__name__ for item in got[:4:3]] == ["SnapshotBegun", "SnapshotEnded"]
    assert got[4:] == [43, 44]


def test_row_7_an_unknown_source_without_a_notice_is_a_discontinuity_in_the_end() -> None:
    desk = Desk()
    desk.send("a", messages(501, 501))
    desk.send("a", messages(7, 8), "new")
    desk.pass_time(2.1)
    assert desk.got() == [501, Discontinuity(source="new", sequence=7), 7, 8]


@pytest.mark.requirement("STR-49", half=HALF)
def test_row_8_before_the_first_message_the_start_position_serves() -> None:
    desk = Desk()
    desk.down("a")
    assert desk.starts()[-1] == ("b", {"s": (500, 1, 1)})
    desk.send("b", messages(499, 503))
    assert only_messages(desk.got()) == [501, 502, 503]


@pytest.mark.requirement("STR-68", half=HALF)
def test_row_9_an_administrative_message_is_known_by_its_id() -> None:
    desk = Desk()
    desk.send("a", [message(501), admin("x", 501), message(502)])
    desk.down("a")
    desk.send("b", [message(501), admin("x", 501), message(502), admin("y", 502), message(503)])
    assert only_messages(desk.got()) == [501, "x", 502, "y", 503]


def test_row_9_an_administrative_message_waits_for_the_end_of_a_gap() -> None:
    desk = Desk()
    desk.send("a", [message(504, 503), admin("x", 504), message(505)])
    desk.answer(desk.fill(), messages(501, 504))
    assert only_messages(desk.got()) == [501, 502, 503, 504, "x", 505]


def test_row_9_an_administrative_message_can_be_what_shows_a_gap() -> None:
    desk = Desk()
    desk.send("a", [admin("x", 502), message(503)])
    assert desk.got() == [GapOpened(source="s", first=501, last=502)]
    desk.answer(desk.fill(), messages(501, 503))
    assert only_messages(desk.got()) == [501, 502, "x", 503]


def test_row_9_one_whose_place_is_passed_comes_late_and_one_of_before_the_start_does_not_come() -> None:
    desk = failed_over()
    desk.send("b", [admin("early", 489), message(491), admin("x", 495), message(501)])
    assert desk.got() == ["late x", 501]


@pytest.mark.requirement("STR-67", half=HALF)
def test_row_9_what_a_void_stands_for_is_fetched_once() -> None:
    desk = failed_over()
    desk.up("a")
    desk.send("b", [message(501), admin_void("x", 501), message(502)])
    (say,) = desk.said(FetchAdmin)
    assert say.adapter == "b"
    desk.refuse(say)
    (say,) = desk.said(FetchAdmin)
    assert say.adapter == "a"
    desk.fetched(say, "x", 501)
    desk.send("b", [admin_void("x", 502), message(503), admin("x", 503)])
    assert only_messages(desk.got()) == [501, 502, "late x", 503]
    assert not desk.said(FetchAdmin)


@pytest.mark.requirement("STR-15", half=HALF)
def test_a_source_gap_of_one_adapter_is_filled_by_the_other() -> None:
    desk = Desk()
    desk.send("a", [message(501), source_gap(502, 504), message(505, 504)])
    fill = desk.fill()
    while fill.adapter == "a":
        desk.refuse(fill)
        fill = desk.fill()
    desk.answer(fill, [message(502), message(505, 502)])
    assert only_messages(desk.got()) == [501, 502, 505]
    assert desk.counters["lost"] == 0


def test_a_source_gap_in_which_the_other_adapter_found_nothing_to_send_is_none() -> None:
    desk = Desk()
    desk.beat("b", positions={"s": (501, 1, 1)})
    desk.send("a", [message(501), source_gap(502, 504)])
    desk.refuse(desk.fill())
    desk.answer(desk.fill(), [])
    assert desk.arbiter.positions == {"s": Place(501)}
    desk.beat("b", positions={"s": (501, 1, 1)})
    desk.send("a", [message(505, 504)])
    assert only_messages(desk.got()) == [501, 505]
    assert desk.counters["lost"] == 0


@pytest.mark.requirement("STR-15", half=HALF)
def test_a_source_gap_of_both_adapters_is_told_with_its_range() -> None:
    desk = Desk()
    desk.send("a", [message(501), source_gap(502, 504), message(505, 504)])
    desk.beat("b", positions={"s": (505, 1, 1)})
    for _ in range(2):
        desk.answer(desk.fill(), [message(501), source_gap(502, 504), message(505, 504)])
    lost = Lost(source="s", first=502, last=504, why="no adapter has them")
    assert desk.got() == [501, GapOpened(source="s", first=502, last=504), lost, 505]
    assert desk.counters["delivered"] + desk.counters["lost"] == 5


def all_parts(sequence: int, previous: int | None = None) -> list[Record]:
    return [message(sequence, previous, part, 3) for part in (1, 2, 3)]


@pytest.mark.requirement("STR-20", half=HALF)
def test_who_begins_behind_a_source_gap_gets_no_parts_of_its_last_message() -> None:
    """The adapter that had the gap names its place as 1 of 1, since it cannot know how many parts there were."""
    desk = Desk(positions={"s": (500, 1, 1)})
    desk.down("a")
    desk.got()
    desk.send("b", [*all_parts(500), message(501)])
    assert desk.got() == [501]


@pytest.mark.requirement("STR-20", half=HALF)
@pytest.mark.requirement("STR-52", half=HALF)
def test_nothing_comes_of_a_message_that_was_lost_whole_however_many_parts_it_had() -> None:
    desk = Desk()
    desk.send("a", [message(501), source_gap(502, 504)])
    desk.beat("b", positions={"s": (501, 1, 1)})
    desk.pass_time(2.1)
    lost = Lost(source="s", first=502, last=504, why="nobody had them in time")
    assert desk.got() == [501, GapOpened(source="s", first=502, last=504), lost]
    sources = (Source(id="s2", relations=(Relation(kind="successor", of="s"),)),)
    desk.beat("b", positions={"s": (504, 3, 3)}, sources=sources)
    desk.down("a")
    desk.got()
    desk.send("b", [*all_parts(504, 501), admin("x", 504, 3, 3)])
    desk.send("b", [message(1)], "s2")
    assert desk.got() == ["x", Succeeded(old="s", new="s2", start=1), 1], "and nothing is missing at its end"


@pytest.mark.requirement("STR-53", half=HALF)
def test_a_hole_that_was_passed_ends_with_all_parts_of_its_last_message() -> None:
    desk = Desk(mode="both", gaps="mark")
    desk.send("a", [message(501), source_gap(502, 502), message(503)])
    gap = GapOpened(source="s", first=502, last=502)
    assert desk.got() == [501, gap, 503]
    desk.send("b", [message(501), *all_parts(502)[:1]])
    desk.send("b", [*all_parts(502)[1:], message(503)])
    late = [("late", (502, part)) for part in (1, 2, 3)]
    assert desk.got() == [*late, GapFilled(source="s", first=502, last=502)]


def test_the_first_event_of_a_failover_comes_before_its_messages() -> None:
    desk = failed_over()
    desk.up("a")
    desk.got()
    desk.down("b")
    ((adapter, positions),) = desk.starts()
    assert (adapter, positions) == ("a", {"s": (500, 1, 1)})
    desk.send("a", messages(499, 501))
    got = [item for item in desk.got() if not isinstance(item, NoBackup)]
    assert isinstance(got[0], FailedOver)
    assert (got[0].old, got[0].new) == ("b", "a")
    assert got[-1] == 501
    assert not desk.said(Start)
