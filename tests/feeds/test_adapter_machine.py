"""The adapter machine: roles and epochs, finding its place, planned switches, snapshots, what it says of itself."""

from __future__ import annotations

import pytest

from fairlead.feeds.adapter import Limits
from fairlead.feeds.adapter.actions import Renumbered, RoleChanged, StopLines, Wake
from fairlead.feeds.records import ADMIN, ADMIN_VOID, Place
from fairlead.feeds.words import (
    Admin,
    Anchor,
    Announce,
    AskAnchor,
    Beat,
    Decided,
    FetchAdmin,
    Fetched,
    Fill,
    Final,
    Refusal,
    Relation,
    Report,
    Role,
    SnapshotAsk,
    SnapshotPart,
    Source,
    Start,
    Unavailable,
)
from tests.feeds.adapter_scene import Group, admin_of, batch, differences, records_of, stream_of


def pair(at: int = 50, **limits: object) -> Group:
    group = Group("a", "b", limits=Limits(**limits))  # type: ignore[arg-type]
    group.role("a")
    group.feed("a", range(1, at + 1))
    group.feed("b", range(1, at + 1))
    group.talk()
    group.tick(0.2)
    assert group["b"].synchronised
    return group


# Finding one's place.


@pytest.mark.requirement("STR-19", half="the machine, without processes")
@pytest.mark.requirement("STR-75", half="the machine, without processes")
def test_a_backup_that_joins_late_gives_the_same_numbers_after_each_of_ten_restarts() -> None:
    group = pair()
    at = 51
    for restart in range(10):
        group.kill("b")
        group.feed("a", range(at, at + 20))
        group.send("a", f"m{restart}")
        group.start("b", 1000 * (restart + 2))
        group.role("a")
        group.feed("b", range(at + 10, at + 40), first=at + 10)  # it is ahead of the active by now
        group.talk()
        assert not group["b"].synchronised
        group.feed("a", range(at + 20, at + 40))
        group.talk()
        assert group["b"].synchronised
        assert group["b"].incarnation == 1000 * (restart + 2) + 1, "other numbers, another incarnation"
        at += 40
        for name in "ab":
            group.feed(name, range(at, at + 10))
        at += 10
        assert group["a"].last == group["b"].last
        assert differences(group["a"], group["b"], group["a"].last - 9) == []


def test_a_backup_without_any_record_finds_its_place_while_the_source_rests() -> None:
    group = pair()
    group.kill("b")
    group.send("a", "x")
    group.start("b", 1000)
    group.role("a")
    group.quiet()
    assert group["b"].synchronised
    assert group["b"].last == group["a"].last == 51
    group.send("a", "y")
    group.quiet()
    assert [(r.number, admin_of(r).id) for r in stream_of(group["b"])] == [(52, "y")]
    for name in "ab":
        group.feed(name, range(51, 60), first=51)
    group.quiet()
    assert group["b"].incarnation == 1001
    assert differences(group["a"], group["b"]) == []
    assert group["a"].last == group["b"].last


def test_an_empty_group_is_aligned_from_the_start() -> None:
    group = Group("a", "b")
    group.role("a")
    group.send("a", "opening", "opening")
    group.quiet()
    assert group["b"].synchronised
    for name in "ab":
        group.feed(name, range(1, 5))
    group.quiet()
    assert differences(group["a"], group["b"]) == []
    assert group["a"].last == group["b"].last == 5


@pytest.mark.requirement("STR-19", half="the machine, without processes")
def test_a_drift_is_found_with_the_next_heartbeat_and_numbers_are_moved() -> None:
    group = pair()
    group.perform("b", group["b"].on_source_gap("S", 51, 53, group.now_s))
    group.feed("a", range(51, 60))
    group.feed("b", range(54, 60))
    assert group["b"].last == group["a"].last - 2
    group.tick(0.2)
    assert group.actions("b", Renumbered) == [Renumbered(2, 2)]
    assert group["b"].last == group["a"].last
    assert group["b"].synchronised
    assert differences(group["a"], group["b"], 54) == []


def test_an_active_that_lost_something_moves_its_backup_too() -> None:
    group = pair()
    group.perform("a", group["a"].on_source_gap("S", 51, 53, group.now_s))
    group.feed("b", range(51, 60))
    group.feed("a", range(54, 60))
    group.tick(0.2)
    assert group.actions("b", Renumbered) == [Renumbered(2, -2)]
    assert differences(group["a"], group["b"], 52) == []


def test_a_drift_is_found_although_the_end_of_the_former_source_was_lost() -> None:
    group = pair()
    group.feed("a", range(51, 54), parts={53: 3})
    group.perform("b", group["b"].on_source_gap("S", 51, 53, group.now_s))
    group.quiet()
    for name in "ab":
        group.feed(name, range(1, 5), source="S2")
    assert group["b"].last != group["a"].last
    group.quiet()
    assert group["b"].last == group["a"].last
    assert differences(group["a"], group["b"], 56) == []


@pytest.mark.requirement("STR-12", half="the machine, without processes")
def test_merged_sources_may_interleave_differently_for_a_moment() -> None:
    limits = Limits(is_merged=True)
    group = Group("a", "b", limits=limits, sources=(Source(id="S"), Source(id="T")))
    group.role("a")
    for name in "ab":
        group.feed(name, range(1, 3), source="S")
    group.quiet()
    for turn in range(20):
        for name, order in (("a", "ST"), ("b", "TS" if turn % 2 else "ST")):
            for source in order:
                group.feed(name, range(3 + 5 * turn, 8 + 5 * turn), source=source)
        group.tick(0.2)
    assert group["b"].incarnation == 1
    assert group["b"].last == group["a"].last
    group.feed("b", [1000], source="S")  # the active filters it: from here on the backup is one ahead
    for turn in range(30):
        for name in "ab":
            group.feed(name, range(2000 + turn, 2001 + turn), source="ST"[turn % 2])
        group.tick(0.2)
    assert group["b"].last == group["a"].last
    assert group["b"].incarnation == 2


def test_an_equivalent_line_is_anchored_by_its_offset() -> None:
    group = Group("a", "b")
    equivalent = Source(id="B", relations=(Relation(kind="equivalent", of="S", offset=1000),))
    group.role("a")
    group.perform("b", group["b"].on_source(equivalent, group.now_s))
    group.feed("a", range(1001, 1011), first=1001)
    group.feed("b", range(5, 11), source="B", first=5)
    group.quiet()
    assert group["b"].synchronised
    assert group["b"].last == group["a"].last == 10


def test_the_active_answers_when_it_has_got_there() -> None:
    group = pair()
    group["a"].on_link_word("b", AskAnchor(source="S", place=(55, 1, 1)), group.now_s)
    group.perform("a", group["a"].on_made(batch(range(51, 54)), group.now_s))
    assert not [word for word in group.seen.get("b", []) if isinstance(word, Anchor) and word.place[0] == 55]
    group.feed("a", range(54, 58))
    group.talk()
    (anchor,) = [word for word in group.seen["b"] if isinstance(word, Anchor) and word.place[0] == 55]
    assert anchor.number == 55
    group.perform("a", group["a"].on_link_word("b", AskAnchor(source="S", place=(55, 7, 7)), group.now_s))
    group.talk()
    assert [word for word in group.seen["b"] if isinstance(word, Anchor)][-1].number == 0


@pytest.mark.requirement("STR-75", half="the machine, without processes")
def test_a_backup_that_joins_obtains_the_outstanding_announcements() -> None:
    group = pair(lead=40)
    group.send("a", "x")  # at 90
    group.cut("a", "b")
    group.kill("b")
    group.start("b", 1000)
    group.role("a")
    group.feed("b", range(40, 61), first=40)
    group.feed("a", range(51, 61))
    group.talk()
    assert group["b"].decisions[-1][2:4] == (90, 60)
    assert group["b"].decisions[-1].result == "kept"
    for name in "ab":
        group.feed(name, range(61, 100))
    assert [record.number for record in stream_of(group["b"]) if record.kind == ADMIN] == [90]
    assert differences(group["a"], group["b"]) == []


# Roles.


@pytest.mark.requirement("STR-5", half="the machine, without processes")
def test_an_active_that_hears_of_a_higher_epoch_is_active_no_more() -> None:
    group = pair()
    group.done.clear()
    group.perform("a", group["a"].on_epoch(1, group.now_s))
    assert group["a"].role == "active"
    group.perform("a", group["a"].on_epoch(2, group.now_s))
    assert (group["a"].role, group["a"].epoch) == ("backup", 2)
    kinds = [type(action) for name, action in group.done if name == "a"]
    assert StopLines in kinds
    assert RoleChanged in kinds
    stale = Role(epoch=1, role="active", active="a")
    assert group["a"].on_role(stale, group.now_s) == []
    assert group["a"].role == "backup", "an epoch that is past is not listened to"
    group.perform("a", group["a"].on_role(Role(epoch=3, role="active", active="a"), group.now_s))
    assert group["a"].role == "active"


def test_nonsense_for_an_epoch_does_not_depose_anybody() -> None:
    group = pair()
    assert group["a"].on_epoch(1 << 62, group.now_s) == []
    assert group["a"].role == "active"


@pytest.mark.requirement("STR-5", half="the machine, without processes")
def test_words_of_an_active_that_is_past_are_not_listened_to() -> None:
    group = pair()
    group.perform("b", group["b"].on_role(Role(epoch=5, role="backup", active="a"), group.now_s))
    announce = Announce(epoch=1, n=60, admin=Admin(id="x", kind="text"))
    assert group["b"].on_link_word("a", announce, group.now_s) == []
    assert group["b"].on_link_word("stranger", announce, group.now_s) == []
    assert group["b"].decisions == ()


def test_the_first_active_begins_at_the_anchor_it_is_given() -> None:
    group = Group("a")
    group.feed("a", range(1, 4))
    group.perform("a", group["a"].on_role(Role(epoch=1, role="active", active="a", anchor=5000), group.now_s))
    assert (group["a"].first, group["a"].last) == (5000, 5002)
    group.perform("a", group["a"].on_role(Role(epoch=2, role="active", active="a", anchor=1), group.now_s))
    assert group["a"].first == 5000, "only once"


def test_numbers_of_an_adapter_that_takes_over_unprepared_are_beyond_all_others() -> None:
    """So that a backup with another history can be numbered after it without losing what it retains."""
    group = pair()
    group.start("c", 5)
    group.feed("c", range(48, 51), first=48)
    group.kill("a")
    group.role("c")
    assert group["c"].first == 2 << 32
    group.quiet()
    assert group["b"].synchronised
    assert len(stream_of(group["b"])) == 50
    assert group["b"].last == group["c"].last


def test_the_same_role_again_disturbs_nothing() -> None:
    group = pair()
    group.done.clear()
    role = Role(epoch=group.epoch, role="backup", active="a", active_address="x:1")
    group.perform("b", group["b"].on_role(role, group.now_s))
    assert group.actions("b", RoleChanged) == []
    assert group["b"].synchronised


@pytest.mark.requirement("STR-73", half="the machine, without processes")
def test_when_a_backup_is_synchronised() -> None:
    group = pair(lag_max=100)
    backup = group["b"]
    group.perform("b", backup.on_source_alive(False, group.now_s))
    assert not backup.synchronised
    assert isinstance(group.told[-1][1], Report), "the administration is told at once"
    group.perform("b", backup.on_source_alive(True, group.now_s))
    assert backup.synchronised
    group.feed("a", range(51, 151))
    group.tick(0.2)
    assert not backup.synchronised, "it lags by 100"
    assert backup.counters()["lag"] == 100
    group.feed("b", range(51, 100))
    group.tick(0.2)
    assert backup.synchronised
    group.tick(0.7, talk=False)
    group.perform("b", backup.on_tick(group.now_s + 1.0))
    assert not backup.synchronised, "the active is silent"
    group.tick(0.2)
    assert backup.synchronised
    group.cut("a", "b")
    assert not backup.synchronised


@pytest.mark.requirement("STR-6", half="the machine, without processes")
def test_three_adapters_and_two_deaths() -> None:
    group = Group("a", "b", "c")
    group.role("a")
    for name in "abc":
        group.feed(name, range(1, 51))
    group.quiet()
    assert group["b"].synchronised
    assert group["c"].synchronised
    group.send("a", "x")
    group.deliver("a", "b")  # c does not hear of it from this active
    group.queues["a", "c"].clear()
    group.kill("a")
    group.role("b")
    group.talk()
    for name in "bc":
        group.feed(name, range(51, 101))
    group.quiet()
    assert differences(group["b"], group["c"]) == []
    assert [admin_of(r).id for r in stream_of(group["c"]) if r.kind == ADMIN] == ["x"]
    group.kill("b")
    group.role("c")
    group.feed("c", range(101, 151))
    assert group["c"].last == 151


# Planned switch.


@pytest.mark.requirement("STR-78", half="the machine, without processes")
@pytest.mark.parametrize("ahead", [-5, 0, 30])
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_planned_switch(ahead: int, is_quiet: bool) -> None:
    group = pair()
    active, backup = group["a"], group["b"]
    if ahead > 0:
        group.feed("b", range(51, 51 + ahead))
    if ahead < 0:
        group.feed("a", range(51, 51 - ahead))
    at = {"a": 51 - min(ahead, 0), "b": 51 + max(ahead, 0)}
    group.send("a", "go", "switch", to="b", epoch=2)
    for _ in range(40):
        group.talk()
        assert not (active.role == backup.role == "active")
        group.tick(0.02)
        if not is_quiet or ahead:
            for name in "ab":
                group.feed(name, range(at[name], at[name] + 2))
                at[name] += 2
    assert (active.role, backup.role) == ("backup", "active")
    assert active.epoch == backup.epoch == 2
    (switch,) = [record for record in stream_of(active) if record.kind == ADMIN]
    assert group.actions("a", StopLines) == [StopLines(switch.number)]
    assert [record.number for record in stream_of(backup) if record.kind == ADMIN] == [switch.number]
    assert differences(active, backup) == []
    group.role("b")
    group.quiet()
    assert active.synchronised
    assert active.incarnation == 1


@pytest.mark.requirement("STR-78", half="the machine, without processes")
def test_a_switch_waits_for_its_adapter_to_be_synchronised_and_not_for_ever() -> None:
    group = pair()
    group.perform("b", group["b"].on_source_alive(False, group.now_s))
    group.tick(0.2)
    group.send("a", "go", "switch", to="b", epoch=2)
    group.send("a", "go", "switch", to="b", epoch=2)
    for turn in range(11):
        group.feed("a", range(51 + 10 * turn, 61 + 10 * turn))
        assert not isinstance(group.told[-1][1], Refusal)
        group.tick(0.18)
    group.tick(0.18)
    assert isinstance(group.told[-1][1], Refusal)
    group.perform("b", group["b"].on_source_alive(True, group.now_s))
    group.quiet()
    assert group["a"].last == 160, "nothing was announced, nothing is in the stream"
    group.feed("b", range(51, 161))
    group.perform("b", group["b"].on_source_alive(False, group.now_s))
    group.tick(0.2)
    group.send("a", "go", "switch", to="b", epoch=2)
    group.perform("b", group["b"].on_source_alive(True, group.now_s))
    group.quiet()
    assert (group["a"].role, group["b"].role) == ("backup", "active")
    assert differences(group["a"], group["b"]) == []


def test_a_switch_that_is_refused_to_the_end_is_taken_over_at_its_void() -> None:
    group = pair(threshold=-200)
    group.send("a", "go", "switch", to="b", epoch=2)
    group.talk()
    group.feed("a", range(51, 200))
    group.talk()
    group.feed("b", range(51, 200))
    assert (group["a"].role, group["b"].role) == ("backup", "active")
    assert [record.kind for record in stream_of(group["b"]) if record.kind in (ADMIN, ADMIN_VOID)] == [ADMIN_VOID]
    assert group["b"].last == group["a"].last


def test_a_copy_that_stands_too_early_is_repeated_as_a_void() -> None:
    """An active that moves a place on, although a backup has used it, would let clients miss the message."""
    group = pair()
    for revision, n in ((0, 51), (1, 60)):
        announce = Announce(epoch=1, n=n, admin=Admin(id="x", kind="text"), revision=revision)
        group.perform("b", group["b"].on_link_word("a", announce, group.now_s))
    assert group["b"].decisions[-1].number == 51
    group.feed("b", range(51, 70))
    group.perform("b", group["b"].on_link_word("a", Final(admin="x", n=60), group.now_s))
    places = [(r.number, r.kind) for r in stream_of(group["b"]) if r.kind in (ADMIN, ADMIN_VOID)]
    assert places == [(51, ADMIN), (71, ADMIN_VOID)]


def test_a_switch_is_given_up_with_the_link() -> None:
    group = pair()
    group.send("a", "go", "switch", to="b", epoch=2)
    group.talk()
    assert group["b"].decisions[-1].result == "kept"
    group.cut("a", "b")
    group.feed("a", range(51, 100))
    group.feed("b", range(51, 100))
    assert [admin_of(r).kind for r in stream_of(group["a"]) if r.kind == ADMIN] == ["text"]
    assert (group["a"].role, group["b"].role) == ("active", "backup")
    group.link("b", "a")
    group.quiet()
    assert group["b"].role == "backup"
    assert group["b"].synchronised


@pytest.mark.parametrize("to", ["a", "nobody"])
def test_a_switch_to_nobody_is_refused(to: str) -> None:
    group = pair()
    group.send("a", "go", "switch", to=to, epoch=2)
    group.quiet()
    assert group["a"].last == 50
    assert isinstance(group.told[-1][1], Refusal)


def test_a_switch_to_somebody_else_does_not_outlive_its_active() -> None:
    group = Group("a", "b", "c", limits=Limits(lead=100))
    group.role("a")
    for name in "abc":
        group.feed(name, range(1, 51))
    group.quiet()
    group.send("a", "go", "switch", to="c", epoch=2)
    group.deliver("a", "b")
    group.kill("a")
    group.role("b", "c")
    group.feed("b", range(51, 200))
    (record,) = [record for record in stream_of(group["b"]) if record.kind == ADMIN]
    assert admin_of(record).kind == "text"


def test_the_administration_may_be_faster_than_the_link() -> None:
    """Its role reaches the adapter that takes over before the switch record, which comes at its place all the same."""
    group = pair()
    group.send("a", "go", "switch", to="b", epoch=2)
    group.deliver("a", "b")
    group.feed("a", range(51, 100))
    assert group["a"].role == "backup"
    role = Role(epoch=2, role="active", active="b")
    group.perform("b", group["b"].on_role(role, group.now_s))
    assert (group["b"].role, group["b"].last) == ("active", 50)
    group.feed("b", range(51, 100))
    assert (group["b"].role, group["b"].epoch) == ("active", 2)
    assert differences(group["a"], group["b"]) == []
    assert group["a"].last == group["b"].last


def test_what_only_a_backup_has_is_sent_by_an_active_that_never_heard_of_it() -> None:
    group = pair()
    group.send("a", "go", "switch", to="b", epoch=2)
    group.feed("a", range(51, 100))
    group.queues["a", "b"].clear()  # announcement and Final are lost, the administration is faster
    group.role("b")
    group.feed("b", range(51, 100))
    group.quiet()
    assert [admin_of(r).id for r in stream_of(group["b"]) if r.kind == ADMIN] == ["go"]
    assert (group["a"].role, group["b"].role) == ("backup", "active")
    for _ in range(3):
        group.quiet()
    assert group["a"].synchronised
    assert group["a"].last == group["b"].last


@pytest.mark.requirement("STR-19", half="the machine, without processes")
def test_what_an_active_announced_that_was_none_any_more_is_sent_by_the_one_that_is() -> None:
    """In the stream of its adapter alone, which says that it is synchronised, it would shift all that follows."""
    group = pair()
    group.send("a", "late")
    group.queues["a", "b"].clear()
    group.role("b")
    group.talk()
    for at in range(51, 100):
        group.feed("a", [at])
        group.feed("b", [at])
        group.talk()
        assert group["a"].last == group["b"].last
    assert group["a"].synchronised
    assert differences(group["a"], group["b"]) == []
    assert [admin_of(r).id for r in stream_of(group["b"]) if r.kind == ADMIN] == ["late"]


@pytest.mark.requirement("STR-69", half="the machine, without processes")
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize(("ahead", "result"), [(51, "kept"), (75, "refused")])
def test_what_only_another_backup_was_told_of_is_sent_by_the_one_that_is_promoted(
    ahead: int, result: str, is_new: bool
) -> None:
    group = Group("a", "b", "c")
    group.role("a", "c" if is_new else "b", "c")
    for name in "abc":
        group.feed(name, range(1, 51))
    group.quiet()
    group.feed("c", range(51, ahead))
    group.send("a", "x")
    group.deliver("a", "c")
    assert group["c"].decisions[-1].result == result
    group.queues.pop(("a", "b"), None)
    group.kill("a")
    group.role("b", "c")
    group.talk()
    group.feed("b", range(51, 100))
    group.feed("c", range(ahead, 100))
    group.quiet()
    assert group["c"].synchronised
    assert group["c"].last == group["b"].last
    assert [admin_of(r).id for r in stream_of(group["b"]) if r.kind == ADMIN] == ["x"]
    assert sum(r.kind in (ADMIN, ADMIN_VOID) for r in stream_of(group["c"])) == 1


@pytest.mark.requirement("STR-69", half="the machine, without processes")
def test_an_active_that_was_never_linked_repeats_what_was_sent_while_it_was_there() -> None:
    """Clients that came over to it have passed that place. What is older would only be told to everybody again."""
    group = Group("a", "b")
    group.role("a", link=False)
    group.feed("a", range(1, 30))
    group.send("a", "old")  # behind source message 29
    group.feed("b", range(31, 41), first=31)
    group.feed("a", range(30, 36))
    group.send("a", "x")
    group.feed("a", range(36, 41))
    group.role("b")
    for name in "ab":
        group.feed(name, range(41, 60))
    group.quiet()
    assert [admin_of(r).id for r in stream_of(group["b"]) if r.kind == ADMIN] == ["x"]
    assert group["a"].synchronised
    assert group["a"].last == group["b"].last


def test_a_promoted_backup_that_missed_a_revision_is_believed_all_the_same() -> None:
    group = Group("a", "b", "c")
    group.role("a")
    for name in "ab":
        group.feed(name, range(1, 51))
    group.feed("c", range(1, 41))
    group.quiet()
    group.send("a", "x")
    group.talk()
    group.tick(0.06, talk=False)  # revised, and sent: number 51
    group.deliver("a", "c")
    group.queues["a", "b"].clear()
    group.kill("a")
    group.role("b", "c")
    group.talk()
    group.feed("b", range(51, 100))
    group.feed("c", range(41, 100))
    group.talk()
    assert differences(group["b"], group["c"]) == []
    assert [(r.number, admin_of(r).id) for r in stream_of(group["c"]) if r.kind == ADMIN] == [(66, "x")]


@pytest.mark.requirement("STR-67", half="the adapter's part only")
def test_a_backup_tells_of_what_was_sent_just_before_its_oldest_record() -> None:
    """Clients that were on its line meanwhile have passed that place, and will not meet it there."""
    group = pair()
    group.kill("b")
    group.send("a", "x")  # behind source message 50
    group.start("b", 2000)
    group.feed("b", range(51, 60), first=51)
    group.role("a")
    group.feed("a", range(51, 60))
    group.quiet()
    assert group["b"].synchronised
    assert not [record for record in stream_of(group["b"]) if record.kind in (ADMIN, ADMIN_VOID)]
    assert group["b"].beat().admins == (("x", "S", Place(50)),)
    assert isinstance(group["b"].fetch(FetchAdmin(id=1, admin="x")), Fetched)


def test_a_backup_may_dial_before_we_know_that_we_are_active() -> None:
    group = Group("a", "b")
    group.perform("b", group["b"].on_role(Role(epoch=1, role="backup", active="a"), group.now_s))
    group.link("b", "a")
    for name in "ab":
        group.feed(name, range(1, 10))
    group.talk()
    assert not group["b"].synchronised
    group.perform("a", group["a"].on_role(Role(epoch=1, role="active", active="a"), group.now_s))
    group.quiet()
    assert group["b"].synchronised


# What lines ask for.


@pytest.mark.requirement("STR-74", half="the adapter's part only")
def test_the_kinds_of_start() -> None:
    adapter = pair()["a"]

    def first(start: Start) -> int:
        blocks = adapter.read(adapter.cursor(start), 1 << 60).blocks
        return records_of(blocks)[0].number if blocks else 0

    assert first(Start(at="oldest")) == 1
    assert first(Start(at="new")) == 0
    assert first(Start(at="number", number=7)) == 1, "the block that has it"
    assert first(Start(at="positions", positions={"S": (50, 1, 1)})) == 1
    assert first(Start(at="positions", positions={"S": (51, 1, 1)})) == 1, "or a little more"


def test_answers_to_a_fill() -> None:
    adapter = pair()["a"]
    assert adapter.fill(Fill(id=1, first=3, last=5)).is_complete
    assert adapter.fill(Fill(id=1, source="S", after=(3, 1, 1), to=50)).is_complete
    assert not adapter.fill(Fill(id=1, source="S", after=(3, 1, 1), to=51)).is_complete
    assert not adapter.fill(Fill(id=1, source="T", after=(3, 1, 1), to=4)).is_complete
    assert isinstance(adapter.fetch(FetchAdmin(id=1, admin="x")), Unavailable)


@pytest.mark.requirement("STR-54", half="the adapter's part only")
@pytest.mark.parametrize("joins_at", [1, 20, 41])
def test_a_backup_that_joins_late_has_the_whole_state(joins_at: int) -> None:
    group = Group("a", limits=Limits(has_snapshots=True))
    group.role("a")

    def feed(name: str, first: int, last: int) -> None:
        group.feed(name, range(first, last), keys=[b"k%d" % (n % 17 if n < 40 else n % 3) for n in range(first, last)])

    feed("a", 1, 40)
    group.start("b", 1000)
    group.role("a")
    answer = group["b"].snapshot(SnapshotAsk(id=1))
    assert isinstance(answer, Unavailable)
    feed("b", joins_at, 45) if joins_at < 41 else feed("b", 41, 60)
    feed("a", 40, 60)
    group.talk()
    assert group["b"].counters()["anchored"] == 1
    assert not group["b"].synchronised, "it knows its place, and not yet the state"
    group.quiet()
    feed("b", 45, 60)
    group.quiet()
    states = []
    for name in "ab":
        answer = group[name].snapshot(SnapshotAsk(id=9))
        assert not isinstance(answer, Unavailable)
        parts = list(answer)
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[0].positions == {"S": (59, 1, 1)}
        states.append(sorted(body for part in parts for body in part.bodies))
    assert states[0] == states[1]
    assert len(states[0]) == 17
    assert group["b"].welcome().has_snapshots


def test_a_big_snapshot_comes_in_parts_and_stays_as_it_was() -> None:
    group = Group("a", limits=Limits(has_snapshots=True))
    group.role("a")
    group.feed("a", range(1, 25_001), keys=[b"%d" % n for n in range(1, 25_001)])
    answer = group["a"].snapshot(SnapshotAsk(id=1))
    assert not isinstance(answer, Unavailable)
    first = next(answer)
    group.feed("a", range(25_001, 25_003), keys=[b"1", b"2"])
    parts = [first, *answer]
    assert len(parts) == 3
    assert sum(len(part.bodies) for part in parts) == 25_000
    assert all(part.positions == {"S": (25_000, 1, 1)} for part in parts)
    assert b"1/1" in parts[0].bodies


# What it says of itself.


@pytest.mark.requirement("STR-29", half="the machine, without processes")
@pytest.mark.requirement("STR-83", half="adapters' counters, without processes")
def test_heartbeats_and_reports() -> None:
    group = pair(threshold=3)
    group.feed("b", range(51, 60))
    beat = group["b"].beat()
    assert beat == Beat(
        epoch=1,
        incarnation=1,
        role="backup",
        last=59,
        positions={"S": Place(59)},
        source_alive=True,
        synchronised=True,
        sources=(Source(id="S"),),
    )
    report = group["b"].report()
    assert (report.last, report.role, report.counters["records"], report.counters["last"]) == (59, "backup", 59, 59)
    assert report.sources == (Source(id="S"),)
    assert group["b"].report().sources is None, "only when they have changed"
    group.perform("b", group["b"].on_source(Source(id="T"), group.now_s))
    assert group.told[-1][1].sources == (Source(id="S"), Source(id="T"))  # type: ignore[attr-defined]
    group.send("a", "x")
    group.deliver("a", "b")
    assert group["b"].counters()["kept"] == 1
    assert group["b"].decisions[0] == ("x", 0, 66, 59, 3, -6, "kept", 0)


def test_lines_are_woken_only_when_there_is_something_new() -> None:
    group = pair()
    group.done.clear()
    group.quiet()
    assert group.actions("a", Wake) == []
    group.feed("a", [51])
    assert group.actions("a", Wake) == [Wake()]


def test_a_source_gap_is_a_record() -> None:
    group = pair()
    group.perform("a", group["a"].on_source_gap("S", 51, 60, group.now_s))
    assert stream_of(group["a"])[-1].sequence == 60
    assert group["a"].counters()["source_gaps"] == 1


# Nobody can be hurt by what comes over a link.


def test_nonsense_on_a_link_is_survived() -> None:
    group = pair()
    admin = Admin(id="x", kind="text")
    nonsense = [
        Final(admin="unknown", n=3),
        Final(admin="x", n=0),
        Announce(epoch=1, n=0, admin=admin),
        Announce(epoch=1, n=(1 << 63) - 1, admin=Admin(id="far", kind="text")),
        Anchor(epoch=1, source="S", place=(1, 1, 1), number=(1 << 62)),
        Anchor(epoch=1, source="?", place=(0, 0, 0), number=1),
        Anchor(epoch=1, source="S", place=(50, 1, 1), number=1),
        Beat(epoch=1, incarnation=1, role="active", last=0),
        SnapshotPart(id=4, positions={}, bodies=(b"x",), is_last=True),
        Decided(admin="x", revision=9, n=1, b=-5, t=9, result="refused"),
        AskAnchor(source="?", place=(9, 9, 9)),
        SnapshotAsk(id=3),
        Unavailable(id=1, why="no"),
    ]
    for word in nonsense:
        for name, peer in (("a", "b"), ("b", "a")):
            group.perform(name, group[name].on_link_word(peer, word, group.now_s))
    group.talk()
    group.cut("a", "b")
    group.link("b", "a")
    for name in "ab":
        group.feed(name, range(51, 100))
    group.quiet()
    assert group["b"].last == group["a"].last
    assert group["b"].synchronised


def test_announcements_without_end_are_bounded() -> None:
    group = pair()
    for turn in range(3000):
        announce = Announce(epoch=1, n=10_000 + turn, admin=Admin(id=f"n{turn}", kind="text"))
        group["b"].on_link_word("a", announce, group.now_s)
    assert group["b"].counters()["kept"] == 1024
    for turn in range(2000):
        group.send("a", f"m{turn}")
    assert len([word for _, word in group.told if isinstance(word, Refusal)]) == 1000


def test_sent_messages_that_are_kept_for_fetching_are_bounded() -> None:
    group = Group("a")
    group.role("a")
    group.feed("a", [1])
    for turn in range(5000):
        group.send("a", f"m{turn}")
    assert isinstance(group["a"].fetch(FetchAdmin(id=1, admin="m4999")), Fetched)
    assert isinstance(group["a"].fetch(FetchAdmin(id=1, admin="m1")), Unavailable)
    assert not [record for record in stream_of(group["a"]) if record.kind == ADMIN_VOID]
