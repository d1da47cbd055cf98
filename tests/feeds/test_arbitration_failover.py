"""When a client leaves a line, which one it takes, and what its program is told (sections 4.4 and 4.5)."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.errors import RemoteProtocolError
from fairlead.feeds.arbitration.asks import Dial, Drop, ReportNow
from fairlead.feeds.events import (
    BackupAgain,
    Divergence,
    Down,
    FailedOver,
    Fresh,
    GapFilled,
    GapOpened,
    Lost,
    NoBackup,
    Resumed,
    Revoked,
    Stale,
)
from fairlead.feeds.records import Place
from fairlead.feeds.words import (
    Closing,
    FetchAdmin,
    Fill,
    Missed,
    Relation,
    SnapshotAsk,
    SnapshotPart,
    Source,
    Start,
    Stop,
)
from tests.feeds.arbitration_desk import Desk, admin, message, messages

HALF = "the adapters are scripted"


def kinds(got: list[Any]) -> list[str]:
    return [type(item).__name__ for item in got if not isinstance(item, (int, tuple, str))]


def failovers(got: list[Any]) -> list[tuple[str, str, bool]]:
    return [(item.old, item.new, item.local) for item in got if isinstance(item, FailedOver)]


@pytest.mark.requirement("STR-30", half=HALF)
class TestDetecting:
    def test_the_line_ends(self) -> None:
        desk = Desk()
        desk.down("a")
        assert failovers(desk.got()) == [("a", "b", True)]

    def test_nothing_is_heard_for_three_intervals(self) -> None:
        desk = Desk()
        desk.pass_time(0.55, "b")
        assert desk.got() == []
        desk.pass_time(0.1, "b")
        assert failovers(desk.got()) == [("a", "b", True)]
        assert [type(ask) for ask in desk.asks if isinstance(ask, (Drop, Dial))][-2:] == [Drop, Dial]

    def test_it_has_lost_its_source_and_the_other_has_not(self) -> None:
        desk = Desk()
        desk.beat("b")
        desk.beat("a", source_alive=False)
        assert failovers(desk.got()) == [("a", "b", True)]
        assert [say.adapter for say in desk.said(Stop)] == ["a"]

    def test_the_administration_says_so(self) -> None:
        desk = Desk()
        desk.notice("ba", 2)
        assert failovers(desk.got()) == [("a", "b", False)]

    @pytest.mark.requirement("STR-78", half=HALF)
    def test_a_planned_switch_is_followed_at_its_place(self) -> None:
        desk = Desk()
        desk.starts()
        desk.send("a", [message(501), admin("x", 501, kind="switch", to="b", epoch=2)])
        got = desk.got()
        assert got[:2] == [501, "x"]
        assert failovers(got) == [("a", "b", False)]
        assert desk.starts() == [("b", {"s": (501, 1, 1)})]
        assert desk.arbiter.epoch == 2
        desk.epoch = 2
        desk.send("b", [admin("x", 501, kind="switch", to="b", epoch=2), message(502)])
        assert desk.got() == [502]
        assert desk.counters["failovers"] == 1

    def test_it_says_that_it_closes(self) -> None:
        desk = Desk()
        desk.word("a", Closing(why="stopped"))
        assert failovers(desk.got()) == [("a", "b", True)]

    def test_a_client_that_was_asleep_itself_blames_nobody(self) -> None:
        desk = Desk()
        desk.pass_time(0.3)
        desk.got()
        desk.now_s += 30
        desk.arbiter.on_tick(desk.now_s)
        desk.collect()
        assert desk.got() == []
        assert desk.arbiter.line == "a"

    def test_a_line_the_edge_does_not_read_is_not_dead(self) -> None:
        desk = Desk()
        for _ in range(40):
            desk.arbiter.on_paused("a", desk.now_s)
            desk.pass_time(0.05, "b")
        assert desk.arbiter.line == "a"


def test_a_line_that_sends_what_is_no_block_is_the_edges_to_close() -> None:
    desk = Desk()
    with pytest.raises(RemoteProtocolError):
        desk.arbiter.on_block("a", 1, b"nonsense", desk.now_s)


@pytest.mark.requirement("STR-31", half=HALF)
def test_a_local_failover_is_reported_and_not_taken_back() -> None:
    desk = Desk()
    desk.said(ReportNow)
    desk.down("a")
    assert desk.said(ReportNow) == [ReportNow(True)]
    assert desk.arbiter.is_local
    desk.up("a")
    desk.notice("ab", 1)
    assert desk.arbiter.line == "b"
    desk.notice("ab", 2)
    assert desk.arbiter.line == "a"
    assert not desk.arbiter.is_local


@pytest.mark.requirement("STR-32", half=HALF)
def test_all_that_was_received_is_judged_before_the_other_line_is_asked() -> None:
    desk = Desk()
    desk.send("a", messages(501, 502))
    desk.send("a", messages(505, 506), at=5)  # numbers 3 and 4 are missing: held, and asked for
    assert desk.got() == [501, 502]
    assert desk.fill().word.first == 3
    desk.down("a")
    got = desk.got()
    assert next(item for item in got if isinstance(item, (GapOpened, FailedOver))) == GapOpened(
        source="s", first=503, last=504
    )
    assert desk.starts()[-1] == ("b", {"s": (502, 1, 1)})
    desk.send("b", messages(501, 507))
    assert [item for item in desk.got() if isinstance(item, int)] == [503, 504, 505, 506, 507]


@pytest.mark.requirement("STR-36", half=HALF)
def test_a_backup_that_is_behind_makes_the_stream_stale_until_it_has_passed_the_position() -> None:
    desk = Desk()
    desk.send("a", messages(501, 520))
    desk.down("a")
    desk.got()
    desk.beat("b", positions={"s": (510, 1, 1)})
    assert [item for item in desk.got() if isinstance(item, Stale)] == [Stale(why="the adapter is behind")]
    assert desk.arbiter.state == "stale"
    desk.now_s += 0.1
    desk.send("b", messages(511, 520))
    assert desk.got() == []
    desk.send("b", messages(521, 522))
    assert desk.got() == [521, 522, Fresh()]
    assert desk.arbiter.state == "no-backup"
    assert desk.counters["duplicates"] == 10
    assert 50 <= desk.counters["stale_ms"] <= 500


def test_a_backup_that_sends_nothing_but_repeats_makes_the_stream_stale_too() -> None:
    desk = Desk()
    desk.send("a", messages(501, 600))
    desk.down("a")
    for sequence in range(501, 541):
        desk.now_s += 0.02
        desk.send("b", [message(sequence)])
        desk.arbiter.on_tick(desk.now_s)
    desk.collect()
    assert "Stale" in kinds(desk.got())


@pytest.mark.requirement("STR-37", half=HALF)
def test_fifty_alternating_failovers() -> None:
    desk = Desk()
    sent, line, other = 500, "a", "b"
    for _ in range(50):
        desk.send(line, messages(max(sent - 2, 1), sent + 5))
        sent += 5
        desk.down(line)
        desk.up(line)
        line, other = other, line
    desk.send(line, messages(sent, sent + 1))
    assert [item for item in desk.got() if isinstance(item, int)] == list(range(501, sent + 2))
    assert desk.counters["failovers"] == 50


@pytest.mark.requirement("STR-38", half=HALF)
def test_both_lines_dead_and_one_comes_back() -> None:
    desk = Desk()
    desk.send("a", messages(501, 502))
    desk.down("a")
    desk.down("b")
    assert kinds(desk.got())[-1] == "Down"
    assert desk.arbiter.state == "down"
    assert desk.arbiter.positions == {"s": Place(502)}
    desk.pass_time(30, "")
    assert desk.got() == []
    desk.starts()
    desk.up("a")
    got = desk.got()
    assert failovers(got) == [("b", "a", False)]
    assert Resumed(adapter="a") in got
    assert desk.starts() == [("a", {"s": (502, 1, 1)})]
    desk.send("a", messages(502, 504))
    assert desk.got()[-2:] == [503, 504]


@pytest.mark.requirement("STR-79", half=HALF)
def test_the_loss_of_the_backup_alone_is_told_and_nothing_else() -> None:
    desk = Desk()
    desk.send("a", messages(501, 501))
    desk.down("b")
    desk.send("a", messages(502, 502))
    assert desk.got() == [501, NoBackup(why="no other adapter can be reached"), 502]
    assert desk.arbiter.state == "no-backup"
    desk.up("b")
    assert desk.got() == [BackupAgain(adapter="b")]
    assert desk.arbiter.state == "normal"


@pytest.mark.requirement("STR-4", half=HALF)
def test_a_subscription_without_a_backup_is_served_and_told() -> None:
    desk = Desk(lines="a")
    desk.send("a", messages(501, 501))
    assert desk.got() == [NoBackup(why="there is no other adapter"), 501]
    desk.notice("ab", 1)
    assert [ask.offer.adapter for ask in desk.said(Dial)][-1] == "b"
    desk.up("b")
    assert desk.got() == [BackupAgain(adapter="b")]


def test_at_the_start_the_active_one_is_waited_for_and_not_for_ever() -> None:
    desk = Desk(up="b")
    assert desk.arbiter.state == "starting"
    assert not desk.said(Start)
    desk.up("a")
    assert desk.arbiter.line == "a"
    assert "FailedOver" not in kinds(desk.got())
    desk = Desk(up="b")
    desk.pass_time(1.1, "b")
    assert desk.arbiter.line == "b"


@pytest.mark.requirement("STR-3", half=HALF)
def test_a_line_that_lives_is_kept_though_the_administration_has_lost_sight_of_the_adapter() -> None:
    desk = Desk()
    desk.notice("b", 1)
    desk.send("a", messages(501, 502))
    assert desk.got() == [501, 502]
    assert desk.arbiter.line == "a"
    desk.down("a")
    assert desk.arbiter.line == "b"
    assert [ask.adapter for ask in desk.said(Drop)] == ["a"]


@pytest.mark.requirement("STR-82", half=HALF)
def test_revoked() -> None:
    desk = Desk()
    desk.said(Dial)
    desk.arbiter.on_revoked("moved on", desk.now_s)
    desk.collect()
    assert desk.got() == [Revoked(why="moved on")]
    assert desk.arbiter.state == "revoked"
    assert {ask.adapter for ask in desk.said(Drop)} == {"a", "b"}
    desk.notice("ab", 3)
    assert not desk.said(Dial)


@pytest.mark.requirement("STR-26", half=HALF)
def test_numbers_of_different_lines_are_never_compared() -> None:
    desk = Desk()
    desk.send("a", messages(501, 510), at=1)
    desk.down("a")
    desk.send("b", messages(505, 515), at=12)  # shifted by 7
    assert [item for item in desk.got() if isinstance(item, int)] == list(range(501, 516))
    assert desk.counters["duplicates"] == 6
    assert desk.counters["gaps_found"] == 0


@pytest.mark.requirement("STR-25", half=HALF)
class TestLossWithinALine:
    def test_a_hole_in_the_numbers_is_filled_by_number_and_all_comes_in_order(self) -> None:
        desk = Desk()
        desk.send("a", [message(501)], at=1)
        desk.send("a", [message(504)], at=4)
        desk.send("a", [message(505)], at=5)
        fill = desk.fill()
        assert (fill.adapter, fill.word.first, fill.word.last) == ("a", 2, 3)
        desk.answer(fill, [message(502), admin("x", 502), message(503)], first=2)
        assert desk.got() == [501, 502, "x", 503, 504, 505]
        assert desk.counters["gaps_found"] == 0

    def test_a_hole_the_line_cannot_fill_is_asked_of_the_other_by_source_position(self) -> None:
        desk = Desk()
        desk.send("a", messages(501, 501), at=1)
        desk.send("a", messages(504, 504), at=4)
        desk.refuse(desk.fill())
        fills = [desk.fill()]
        while fills[-1].adapter != "b":
            desk.refuse(fills[-1])
            fills.append(desk.fill())
        desk.answer(fills[-1], messages(502, 504))
        assert [item for item in desk.got() if isinstance(item, int)] == [501, 502, 503, 504]

    def test_a_heartbeat_names_a_number_that_did_not_come(self) -> None:
        desk = Desk()
        desk.send("a", messages(501, 501), at=1)
        desk.starts()
        desk.pass_time(0.5, last=3)
        says = desk.said(Start)
        assert [(say.adapter, say.word.at, say.word.number) for say in says] == [("a", "number", 2)] * len(says)
        assert says

    def test_numbers_that_left_the_adapters_buffer_are_a_gap_for_the_others(self) -> None:
        desk = Desk()
        desk.send("a", messages(501, 501), at=1)
        desk.word("a", Missed(first=2, last=3))
        desk.send("a", messages(504, 504), at=4)
        assert desk.got() == [501, GapOpened(source="s", first=502, last=503)]

    def test_a_number_that_cannot_be_is_forgotten_with_the_next_heartbeat(self) -> None:
        desk = Desk()
        desk.send("a", messages(501, 502), at=1)
        desk.send("a", messages(503, 503), at=1 << 27)  # the first number is outside a block's checksum
        desk.refuse(desk.fill())
        desk.starts()
        desk.pass_time(0.7, last=5, positions={"s": (505, 1, 1)})
        assert ("a", {"s": (503, 1, 1)}) in desk.starts()
        assert desk.got() == [501, 502, 503]

    def test_a_new_incarnation_counts_anew(self) -> None:
        desk = Desk()
        desk.send("a", messages(501, 502), at=1)
        desk.beat("a", incarnation=2)
        desk.send("a", messages(503, 504), at=900)
        assert desk.got() == [501, 502, 503, 504]
        assert not desk.said(Fill)


@pytest.mark.requirement("STR-13", half=HALF)
def test_both_mode_takes_the_first_copy_and_single_mode_asks_the_backup_for_nothing() -> None:
    desk = Desk()
    assert [adapter for adapter, _ in desk.starts()] == ["a"]
    desk = Desk(mode="both")
    assert sorted(adapter for adapter, _ in desk.starts()) == ["a", "b"]
    desk.send("b", messages(501, 503))
    desk.send("a", messages(501, 505))
    desk.send("b", messages(504, 506))
    assert desk.got() == [501, 502, 503, 504, 505, 506]
    assert desk.counters["duplicates"] == 5
    desk.down("a")
    assert desk.starts() == []  # it is already sending
    desk.send("b", messages(507, 507))
    assert desk.got()[-1] == 507


@pytest.mark.requirement("STR-53", half=HALF)
class TestMark:
    def test_messages_go_on_and_the_fill_comes_late_and_marked(self) -> None:
        desk = Desk(gaps="mark")
        desk.send("a", [message(501), message(505)])
        assert desk.got() == [501, GapOpened(source="s", first=502, last=504), 505]
        fill = desk.fill()
        desk.send("a", [message(506)])
        desk.answer(fill, messages(501, 505))
        late = [("late", 502), ("late", 503), ("late", 504)]
        assert desk.got() == [506, *late, GapFilled(source="s", first=502, last=504)]
        desk.answer(fill, messages(501, 505))
        assert desk.got() == []

    def test_what_does_not_come_is_lost_with_its_range(self) -> None:
        desk = Desk(gaps="mark")
        desk.send("a", [message(501), message(510)])
        desk.answer(desk.fill(), messages(505, 510))
        desk.pass_time(2.2)
        assert desk.got() == [
            *(501, GapOpened(source="s", first=502, last=509), 510),
            Lost(source="s", first=502, last=504, why="nobody had them in time"),
            *[("late", sequence) for sequence in range(505, 510)],
        ]

    def test_nothing_else_was_in_the_hole(self) -> None:
        desk = Desk(gaps="mark")
        desk.send("a", [message(501), message(510, 509)])
        desk.answer(desk.fill(), [message(503, 501), message(510, 503)])
        assert desk.got()[2:] == [510, ("late", 503), GapFilled(source="s", first=502, last=509)]


@pytest.mark.requirement("STR-51", half=HALF)
def test_what_is_held_is_bounded_and_what_was_let_go_is_asked_for_again() -> None:
    desk = Desk(hold_messages=100)
    desk.send("a", [message(502)])
    fill = desk.fill()
    for first in range(503, 1503, 50):
        desk.send("a", messages(first, first + 49))
    desk.starts()
    desk.answer(fill, messages(501, 502))
    got = [item for item in desk.got() if isinstance(item, int)]
    assert got == list(range(501, got[-1] + 1))
    assert 550 <= got[-1] <= 610
    assert desk.starts() == [("a", {"s": (got[-1], 1, 1)})]
    desk.send("a", messages(got[-1] - 3, got[-1] + 3), at=50)
    assert [item for item in desk.got() if isinstance(item, int)] == [got[-1] + n for n in (1, 2, 3)]
    assert desk.counters["lost"] == 0


@pytest.mark.requirement("STR-50", half=HALF)
def test_a_repeat_with_another_content_is_a_divergence_and_nothing_changes() -> None:
    desk = Desk()
    desk.send("a", messages(501, 520))
    desk.down("a")
    desk.got()
    desk.send("b", [message(n, body=b"wrong" if n in (505, 507) else b"") for n in range(501, 522)])
    got = desk.got()
    divergences = [item for item in got if isinstance(item, Divergence)]
    assert divergences == [Divergence(source="s", sequence=505, part=1, adapter="b")]
    assert desk.counters["divergences"] == 2
    assert got[-1] == 521


@pytest.mark.requirement("STR-74", half=HALF)
class TestJoining:
    def test_only_what_is_new(self) -> None:
        desk = Desk()
        assert desk.starts() == [("a", {"s": (500, 1, 1)})]

    def test_from_a_position(self) -> None:
        desk = Desk(start="positions", wanted={"s": Place(420, 1, 2)})
        assert desk.starts() == [("a", {"s": (420, 1, 2)})]
        desk.send("a", [message(420, part=2, parts=2), message(421)])
        assert desk.got() == [(420, 2), 421]

    def test_from_the_oldest(self) -> None:
        desk = Desk(start="oldest")
        (say,) = desk.said(Start)
        assert say.word.at == "oldest"
        desk.send("a", messages(301, 303))
        assert desk.got() == [301, 302, 303]
        desk.down("a")
        assert desk.starts() == [("b", {"s": (303, 1, 1)})]

    @pytest.mark.requirement("STR-54", half=HALF)
    def test_a_snapshot_and_what_follows(self) -> None:
        desk = Desk(start="snapshot", snapshots="ab")
        assert not desk.said(Start)
        (say,) = desk.said(SnapshotAsk)
        desk.word("a", SnapshotPart(id=say.word.id, positions={}, bodies=(b"1", b"2")))
        assert desk.got() == []
        desk.down("a")  # half of it is of no use
        (say,) = desk.said(SnapshotAsk)
        assert say.adapter == "b"
        desk.word("b", SnapshotPart(id=say.word.id, positions={"s": (507, 1, 1)}, bodies=(b"3",), is_last=True))
        assert desk.starts() == [("b", {"s": (507, 1, 1)})]
        desk.send("b", messages(505, 509))
        assert [item.body for item in desk.out if getattr(item, "snapshot", False)] == [b"3"]
        assert desk.got()[-2:] == [508, 509]

    def test_without_any_snapshot_it_begins_with_what_is_new_and_says_so(self) -> None:
        desk = Desk(start="snapshot")
        assert "Discontinuity" in kinds(desk.got())
        assert desk.starts() == [("a", {"s": (500, 1, 1)})]

    def test_what_was_succeeded_before_the_start_is_not_wanted(self) -> None:
        sources = [Source(id="s"), Source(id="s2", relations=(Relation(kind="successor", of="s"),))]
        desk = Desk(sources=sources, positions={"s2": (5, 1, 1)}, mode="both")
        assert desk.starts()[0][1]["s"][0] > 1 << 60
        desk.send("b", messages(700, 702))
        desk.send("b", messages(4, 6), "s2")
        assert desk.got() == [6]


@pytest.mark.requirement("STR-68", half=HALF)
def test_an_administrative_message_at_a_place_that_was_passed_on_the_other_line_is_fetched() -> None:
    desk = Desk()
    desk.send("a", messages(501, 520))  # ahead of the other
    desk.beat("b", positions={"s": (510, 1, 1)}, admins=(("x", "s", (505, 1, 1)), ("old", "s", (499, 1, 1))))
    assert not desk.said(FetchAdmin)
    desk.down("a")
    (say,) = desk.said(FetchAdmin)
    assert (say.adapter, say.word.admin) == ("b", "x")
    desk.fetched(say, "x", 505)
    desk.beat("b", admins=(("x", "s", (505, 1, 1)),))
    assert [item for item in desk.got() if isinstance(item, str)] == ["late x"]
    assert not desk.said(FetchAdmin)


@pytest.mark.requirement("STR-68", half=HALF)
def test_one_that_was_passed_in_a_source_that_is_over_is_fetched() -> None:
    desk = Desk()
    desk.send("a", messages(501, 520))
    sources = (Source(id="s2", relations=(Relation(kind="successor", of="s"),)),)
    desk.beat("b", positions={"s": (520, 1, 1)}, sources=sources)
    desk.send("a", messages(1, 2), "s2")
    desk.beat("b", positions={"s": (520, 1, 1)}, admins=(("x", "s", (505, 1, 1)), ("y", "s", (520, 1, 1))))
    desk.down("a")
    assert [say.word.admin for say in desk.said(FetchAdmin)] == ["x", "y"]


@pytest.mark.requirement("STR-22", half=HALF)
def test_a_source_is_left_only_at_the_end_that_any_adapter_has_told_of() -> None:
    desk = Desk()
    desk.send("a", messages(501, 510))
    sources = (Source(id="s2", relations=(Relation(kind="successor", of="s"),)),)
    desk.beat("b", positions={"s": (513, 1, 1)}, sources=sources)
    desk.send("a", messages(1, 2), "s2")
    assert desk.got() == [*range(501, 511), GapOpened(source="s", first=511, last=513)]
    desk.refuse(desk.fill())
    fill = desk.fill()
    assert fill.adapter == "b"
    desk.answer(fill, messages(511, 513))
    assert [item for item in desk.got() if isinstance(item, int)] == [511, 512, 513, 1, 2]


@pytest.mark.requirement("STR-83", half=HALF)
def test_delivered_and_lost_are_what_the_source_sent() -> None:
    desk = Desk()
    desk.send("a", messages(501, 600))
    desk.down("a")
    desk.send("b", messages(651, 700))
    desk.pass_time(2.2, "b")
    desk.send("b", messages(690, 750))
    counters = desk.counters
    assert counters["delivered"] + counters["lost"] == 250
    assert counters["lost"] == 50
    wanted = {"duplicates", "gaps_found", "gaps_filled", "gaps_lost", "failovers", "discontinuities", "divergences"}
    assert wanted | {"late", "stale_ms", "epoch"} <= set(counters)
    assert Down not in map(type, desk.out)
