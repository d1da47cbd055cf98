"""Administrative messages at the same place on two streams: every row of table 5.2, and what follows each outcome."""

from __future__ import annotations

import pytest

from fairlead.feeds.adapter import Limits
from fairlead.feeds.adapter.actions import ToLink, Wake
from fairlead.feeds.records import ADMIN, ADMIN_VOID
from fairlead.feeds.words import Admin, Announce, Decided, FetchAdmin, Fetched, Final
from tests.feeds.adapter_scene import Group, admin_of, differences, essence, stream_of


def pair(*, threshold: int = 8, lead: int = 16, at: int = 0, **options: object) -> Group:
    """Active `a` and synchronised backup `b`, both with `at` messages."""
    group = Group("a", "b", limits=Limits(threshold=threshold, lead=lead, **options))  # type: ignore[arg-type]
    group.role("a")
    if at:
        group.feed("a", range(1, at + 1))
        group.feed("b", range(1, at + 1))
    group.talk()
    group.tick(0.2)
    assert group["b"].synchronised
    return group


def last_decision(group: Group, name: str = "b") -> tuple[object, ...]:
    decision = group[name].decisions[-1]
    return decision.n, decision.b, decision.t, decision.p, decision.result, decision.number


ROWS = [
    # B, p, can with T = -2, 0, 3; what it does then, and the number it has there
    (90, -9, (True, True, True), "kept", 100),
    (97, -2, (True, True, True), "kept", 100),
    (98, -1, (False, True, True), "kept", 100),
    (99, 0, (False, True, True), "exact", 100),
    (100, 1, (False, False, True), "displaced", 101),
    (102, 3, (False, False, True), "displaced", 103),
    (103, 4, (False, False, False), "", 0),
]


@pytest.mark.requirement("STR-58", half="the machine, without processes")
@pytest.mark.requirement("STR-60", half="the machine, without processes")
@pytest.mark.requirement("STR-61", half="the machine, without processes")
@pytest.mark.requirement("STR-62", half="the machine, without processes")
@pytest.mark.requirement("STR-63", half="the machine, without processes")
@pytest.mark.requirement("STR-64", half="the machine, without processes")
@pytest.mark.requirement("STR-66", half="the machine, without processes")
@pytest.mark.parametrize("threshold", [-2, 0, 3])
@pytest.mark.parametrize(("b", "p", "can", "result", "number"), ROWS, ids=lambda value: str(value))
def test_row_of_table_5_2(b: int, p: int, can: tuple[bool, ...], result: str, number: int, threshold: int) -> None:
    group = pair(threshold=threshold, at=84)  # 84 + 16 = 100
    group.feed("b", range(85, b + 1))
    group.send("a", "x")
    group.deliver("a", "b")
    can_it = can[(-2, 0, 3).index(threshold)]
    if can_it:
        assert last_decision(group) == (100, b, threshold, p, result, 0 if result == "kept" else number)
    else:
        assert last_decision(group) == (100, b, threshold, p, "refused", 0)
        assert group["b"].last == b, "a refusal sends nothing by itself"
        group.queues["b", "a"].clear()  # the active hears nothing: it sends at N as planned, and the refusal is final
    group.feed("a", range(85, 101))
    assert [record.number for record in stream_of(group["a"]) if record.kind == ADMIN] == [100]
    at_final = group["b"].last
    group.deliver("a", "b")
    group.feed("b", range(b + 1, 111))
    group.feed("a", range(101, 111))
    records = {record.number: record for record in stream_of(group["b"])}
    special = [record for record in records.values() if record.kind in (ADMIN, ADMIN_VOID)]
    assert len(special) == 1
    if can_it:
        assert (special[0].kind, special[0].number) == (ADMIN, number)
        assert admin_of(special[0]).intended == (100 if result == "displaced" else 0)
        assert special[0].sequence == number - 1, "it has the place of the source message before it"
    else:
        assert (special[0].kind, special[0].body) == (ADMIN_VOID, b"x")
        assert special[0].number == (100 if at_final < 100 else at_final + 1)
    after = max(special[0].number, 100)
    both = {record.number: essence(record) for record in stream_of(group["a"])}
    for one, record in records.items():  # the table below 5.2
        if one < 100 or one > after:
            assert both[one] == essence(record)
        elif one < special[0].number:
            assert both[one + 1] == essence(record), "each one number lower"
    assert group["a"].last == group["b"].last == 111
    group.quiet()
    assert group["b"].incarnation == 1, "nobody took the shift between the places for a drift"
    assert group["b"].synchronised


@pytest.mark.requirement("STR-61", half="the machine, without processes")
@pytest.mark.parametrize("kind", ["format", "switch"])
def test_an_exact_kind_is_refused_one_place_too_late(kind: str) -> None:
    group = pair(threshold=8, at=84)
    group.feed("b", range(85, 101))
    group.send("a", "x", kind, to="b", epoch=2)
    group.deliver("a", "b")
    assert last_decision(group) == (100, 100, 0, 1, "refused", 0)


@pytest.mark.requirement("STR-65", half="the machine, without processes")
def test_a_refusal_is_told_and_a_later_place_is_accepted() -> None:
    group = pair(threshold=3, at=84)
    group.feed("b", range(85, 104))
    group.send("a", "x")
    group.deliver("a", "b")
    (told,) = [word for name, word in group.told if name == "b" and isinstance(word, Decided)]
    assert (told.n, told.b, told.result) == (100, 103, "refused")
    assert not group["b"].synchronised, "a refusal is unresolved"
    group.talk()
    assert last_decision(group)[:2] == (119, 103)
    assert last_decision(group)[4] == "kept"
    assert group["b"].synchronised
    group.feed("a", range(85, 130))
    group.feed("b", range(104, 130))
    assert [record.number for record in stream_of(group["b"]) if record.kind == ADMIN] == [119]
    assert not [record for record in stream_of(group["b"]) if record.kind == ADMIN_VOID], "nothing at the former N"
    assert differences(group["a"], group["b"]) == []


@pytest.mark.requirement("STR-65", half="the machine, without processes")
def test_after_three_revisions_it_is_sent_as_planned() -> None:
    group = pair(threshold=-200, at=84)  # this backup refuses whatever is announced
    group.send("a", "x")
    group.talk()
    revisions = [word.revision for word in group.seen["b"] if isinstance(word, Announce)]
    assert revisions == [0, 1, 2, 3]
    group.feed("a", range(85, 150))
    group.talk()
    group.feed("b", range(85, 150))
    assert [right[0] for _number, _left, right in differences(group["a"], group["b"])] == [ADMIN_VOID]
    assert group["b"].synchronised


@pytest.mark.requirement("STR-56", half="the machine, without processes")
def test_it_is_announced_before_lines_are_woken_for_it() -> None:
    group = pair(at=84)
    group.done.clear()
    group.send("a", "x")
    group.feed("a", range(85, 120))
    actions = [action for name, action in group.done if name == "a"]
    announced = [type(action) for action in actions if isinstance(action, Wake | ToLink)]
    assert announced[0] is ToLink
    assert announced.index(Wake) > 0
    assert any(isinstance(action, ToLink) and isinstance(action.word, Final) for action in actions)


@pytest.mark.requirement("STR-57", half="the machine, without processes")
def test_a_quiet_source_does_not_hold_it_up() -> None:
    group = pair(at=84)
    group.send("a", "x")
    group.talk()
    assert group["a"].next_s is not None
    assert group["a"].next_s <= group.now_s + 0.05
    group.tick(0.049)
    assert group["a"].last == 84
    group.tick(0.002)
    assert group["a"].last == group["b"].last == 85
    assert differences(group["a"], group["b"]) == []
    assert last_decision(group) == (85, 84, 8, 0, "exact", 85)


@pytest.mark.requirement("STR-71", half="the machine, without processes")
def test_several_have_adjacent_places_in_the_same_order() -> None:
    group = pair(at=84)
    for id_ in "vwxyz":
        group.send("a", id_)
    group.talk()
    group.feed("b", range(85, 130))
    group.feed("a", range(85, 130))
    for name in "ab":
        sent = [(record.number, admin_of(record).id) for record in stream_of(group[name]) if record.kind == ADMIN]
        assert sent == [(100, "v"), (101, "w"), (102, "x"), (103, "y"), (104, "z")]
    assert differences(group["a"], group["b"]) == []


@pytest.mark.requirement("STR-71", half="the machine, without processes")
def test_two_at_one_place_are_not_believed() -> None:
    group = pair(at=10)
    for id_ in ("x", "y"):
        announce = Announce(epoch=1, n=20, admin=Admin(id=id_, kind="text"))
        group.perform("b", group["b"].on_link_word("a", announce, group.now_s))
    assert [decision.result for decision in group["b"].decisions] == ["kept", "refused"]


@pytest.mark.requirement("STR-69", half="the machine, without processes")
@pytest.mark.parametrize("was_sent", [False, True])
@pytest.mark.parametrize("ahead", [0, 40])
def test_the_active_dies_after_announcing(was_sent: bool, ahead: int) -> None:
    """Kept or refused: the message is in the backup's stream once, in no case as a void."""
    group = pair(at=84)
    group.feed("b", range(85, 85 + ahead))
    group.send("a", "x")
    group.deliver("a", "b", 1)
    if was_sent:
        group.feed("a", range(85, 120))
        group.queues["a", "b"].clear()  # the Final is lost with it
    group.kill("a")
    group.role("b")
    group.feed("b", range(85 + ahead, 200))
    (record,) = [record for record in stream_of(group["b"]) if record.kind in (ADMIN, ADMIN_VOID)]
    assert record.kind == ADMIN
    assert record.number == (100 if not ahead else 125)
    assert admin_of(record).intended == (0 if not ahead else 100)


@pytest.mark.requirement("STR-69", half="the machine, without processes")
def test_a_kept_one_goes_out_soon_if_the_source_is_quiet_after_the_promotion() -> None:
    group = pair(at=84)
    group.send("a", "x")
    group.deliver("a", "b")
    group.kill("a")
    group.role("b")
    assert group["b"].last == 84
    group.tick(0.06)
    assert group["b"].last == 85


@pytest.mark.requirement("STR-67", half="the machine, without processes")
def test_what_a_void_stands_for_can_be_fetched_from_the_backup() -> None:
    group = pair(threshold=-200, at=84)
    group.send("a", "x", body=b"hello")
    group.feed("a", range(85, 200))
    group.talk()
    group.kill("a")
    answer = group["b"].fetch(FetchAdmin(id=7, admin="x"))
    assert isinstance(answer, Fetched)
    assert (answer.id, answer.admin.body, answer.source) == (7, b"hello", "S")
    assert not isinstance(group["b"].fetch(FetchAdmin(id=7, admin="y")), Fetched)


@pytest.mark.requirement("STR-70", half="the machine, without processes")
def test_the_active_does_not_wait_for_a_link_that_is_down() -> None:
    group = pair(at=84)
    group.cut("a", "b")
    assert not group["b"].synchronised
    for id_ in "xyz":
        group.send("a", id_)
        assert group["a"].last == {"x": 85, "y": 86, "z": 87}[id_], "at once"
    group.feed("a", range(85, 100))
    group.feed("b", range(85, 100))
    group.link("b", "a")
    group.talk()
    assert group["b"].synchronised
    assert group["b"].incarnation == 1, "three voids, and nothing had to be renumbered"
    group.feed("a", range(100, 110))
    group.feed("b", range(100, 110))
    assert group["a"].last == group["b"].last
    assert differences(group["a"], group["b"], first=103) == []
    for id_ in "xyz":
        assert isinstance(group["b"].fetch(FetchAdmin(id=1, admin=id_)), Fetched)


def test_one_that_is_ordered_twice_is_sent_once() -> None:
    group = pair(at=84)
    group.send("a", "x")
    group.send("a", "x")
    group.feed("a", range(85, 120))
    group.send("a", "x")
    assert len([record for record in stream_of(group["a"]) if record.kind == ADMIN]) == 1


def test_a_backup_sends_nothing_it_was_not_told_by_the_active() -> None:
    group = pair(at=84)
    group.send("b", "x")
    group.quiet()
    assert group["b"].last == 84
    assert any(name == "b" for name, _ in group.told)


@pytest.mark.requirement("STR-59", half="the machine, without processes")
@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_many_announcements_with_a_small_lead_under_load(count: int) -> None:
    """Never two records with one number, and never one at another place than the decision that was logged."""
    group = pair(at=1, lead=2, threshold=2, retained_messages=10**6)
    active, backup = group["a"], group["b"]
    placed: dict[str, int] = {}
    sequence = {"a": 2, "b": 2}
    for turn in range(count):
        group.send("a", str(turn))
        for name, rows in (("b", turn * 7 % 5), ("a", turn * 11 % 6)):
            if name == "b" and turn % 5 == 0:  # it catches up, and now and then it runs ahead
                rows = max(0, sequence["a"] + turn % 17 - sequence["b"])
            group.feed(name, range(sequence[name], sequence[name] + rows))
            sequence[name] += rows
            group.deliver("a", "b")
            if turn % 3:
                group.deliver("b", "a")
        for decision in list(backup.decisions)[-4:]:
            if decision.number:
                placed[decision.admin] = decision.number
        if turn % 1000 == 999:
            group.talk()
    group.feed("b", range(sequence["b"], 3 * count))
    group.feed("a", range(sequence["a"], 3 * count))
    group.quiet()
    for adapter in (active, backup):
        numbers = [record.number for record in stream_of(adapter)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    where = {admin_of(r).id: r.number for r in stream_of(backup) if r.kind == ADMIN}
    assert {id_: number for id_, number in placed.items() if where.get(id_) != number} == {}
    ids = [admin_of(r).id for r in stream_of(active) if r.kind == ADMIN]
    assert len(ids) == len(set(ids)) == count
    assert len(where) + sum(r.kind == ADMIN_VOID for r in stream_of(backup)) == count
    assert backup.incarnation == 1
    assert active.last == backup.last
    results = {result: backup.counters()[result] for result in ("kept", "exact", "displaced", "refused")}
    assert min(results.values()) > 100, "all kinds of decisions were met"
