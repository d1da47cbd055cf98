"""Who is active, and under which epoch: promotion, return, planned switch, restart of the administration."""

from __future__ import annotations

import pytest

from fairlead.feeds.words import Admin, Notice, Refusal, Role, SendAdmin, StreamFacts

from .administration_scene import STREAM, Scene, refusal


def test_the_first_adapter_is_active_and_the_next_ones_are_backups_with_a_link_to_it() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    assert (a.role, a.epoch, b.role, b.epoch) == ("active", 1, "backup", 1)
    role = b.told(Role)[-1]
    assert (role.active, role.active_address) == ("a", a.address)
    assert a.links[role.link_token] == "b", "the active one lets the backup's link in"


@pytest.mark.requirement("STR-5", half="the machine")
def test_an_active_adapter_that_is_cut_off_is_followed_and_comes_back_as_a_backup() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.lose(a)
    assert (b.role, b.epoch) == ("active", 2)
    assert (a.role, a.epoch) == ("active", 1), "it does not know yet"
    scene.connect(a)
    assert (a.role, a.epoch, a.told(Role)[-1].active) == ("backup", 2, "b")
    scene.tick(5)
    assert (scene.active, scene.epoch) == ("b", 2), "nothing switches back by itself"


@pytest.mark.requirement("STR-6", half="the machine")
def test_several_backups_follow_in_order_of_preference() -> None:
    scene = Scene()
    a = scene.adapter("a", preference=1)
    scene.adapter("c", preference=3)
    b = scene.adapter("b", preference=2)
    scene.kill(a)
    assert scene.active == "b"
    scene.kill(b)
    assert (scene.active, scene.epoch) == ("c", 3)


@pytest.mark.requirement("STR-73", half="the machine")
def test_a_synchronised_backup_is_promoted_before_a_preferred_one_that_lags() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.adapter("b", preference=1, synchronised=False)
    scene.adapter("c", preference=2)
    scene.kill(a)
    assert scene.active == "c"


def test_who_is_not_synchronised_is_better_than_nobody() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.adapter("b", synchronised=False)
    scene.kill(a)
    assert scene.active == "b"


def test_three_missing_reports_are_a_death_and_who_reports_again_is_a_backup() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.adapter("b")
    scene.tick(0.4, silent=(a,))
    assert scene.active == "a"
    scene.tick(0.4, silent=(a,))
    assert (scene.active, scene.epoch) == ("b", 2)
    assert a.role == "backup", "its conversation was never cut, so it was told at once"
    scene.tick(0.2)
    assert [one["alive"] for one in scene.facts()["adapters"]] == [True, True]


def test_an_administration_that_was_asleep_takes_nobody_for_dead() -> None:
    scene = Scene()
    scene.adapter("a"), scene.adapter("b")
    scene.now_s += 30.0
    scene.do(scene.machine.on_tick(scene.now_s))
    assert (scene.active, scene.epoch) == ("a", 1)
    scene.tick(1)
    assert (scene.active, scene.epoch) == ("a", 1)


def test_an_active_adapter_without_its_source_is_followed_by_one_that_has_it() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    a.source_alive = False
    scene.report(a)
    assert scene.active == "a", "it may be back in a moment"
    scene.tick(1)
    assert (scene.active, scene.epoch) == ("b", 2)
    a.source_alive, b.source_alive = False, False
    scene.tick(2)
    assert (scene.active, scene.epoch) == ("b", 2), "nobody is better off"


@pytest.mark.requirement("STR-75", half="the machine")
@pytest.mark.requirement("STR-77", half="the machine")
def test_a_restarted_active_adapter_is_a_backup_even_if_its_death_went_unnoticed() -> None:
    scene = Scene()
    old = scene.adapter("a")
    scene.adapter("b")
    again = scene.adapter("a")  # the conversation of the dead one has not ended yet
    assert refusal([again.heard[-1]]).code == "name-taken", "the one we know reports, from another address"
    scene.lose(old)
    scene.connect(again)
    assert (again.role, scene.active, scene.epoch) == ("backup", "b", 2)
    scene.tick(10)
    assert (again.role, scene.active, scene.epoch) == ("backup", "b", 2)


def test_a_restarted_adapter_at_the_same_address_takes_the_place_of_its_predecessor() -> None:
    scene = Scene()
    old = scene.adapter("a")
    scene.adapter("b")
    again = scene.puppets["a"] = type(old)("a", next(scene.incarnations))
    first = old.talk
    scene.connect(again, address=old.address)
    assert (again.role, scene.active) == ("backup", "b")
    assert first in scene.ended


def test_an_adapter_that_is_alone_is_active_again_after_its_restart_under_a_new_epoch() -> None:
    scene = Scene()
    scene.kill(scene.adapter("a"))
    again = scene.adapter("a")
    assert (again.role, again.epoch) == ("active", 2)


def test_a_moment_without_conversation_changes_nothing_if_there_is_nobody_else() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.lose(a)
    scene.tick(1)
    scene.connect(a)
    assert (a.role, a.epoch) == ("active", 1)


# --- Restart --------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("STR-7", half="the machine")
def test_who_is_active_when_the_administration_is_restarted_stays_active() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.restart()
    scene.connect(b)
    scene.tick(1)
    assert scene.active == "a"
    scene.connect(a)
    assert (a.role, a.epoch, b.role, scene.epoch) == ("active", 1, "backup", 1)
    scene.kill(a)
    assert (b.role, b.epoch) == ("active", 2), "failover works as before"


@pytest.mark.requirement("STR-7", half="the machine")
def test_after_a_restart_a_missing_active_adapter_is_waited_for_three_seconds() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    del scene.puppets["a"]
    scene.restart()
    scene.connect(b)
    scene.tick(2.8)
    assert (scene.active, scene.epoch) == ("a", 1)
    scene.tick(0.4)
    assert (scene.active, b.role, scene.epoch) == ("b", "active", 2)
    scene.puppets["a"] = a
    scene.connect(a)
    assert (a.role, a.epoch) == ("backup", 2)


def test_an_adapter_restarted_together_with_the_administration_does_not_keep_its_epoch() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.restart()
    again = scene.adapter("a")
    assert again.role == "backup"
    assert not [role for name, role in scene.told if name == "a/3" and role.role == "active" and role.epoch == 1]
    scene.connect(b)
    assert (scene.active, b.epoch) == ("b", 2)
    assert a.incarnation != again.incarnation


def test_a_promotion_that_was_kept_and_not_told_is_told_after_the_restart() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    effects = scene.machine.on_lost(a.talk, scene.now_s)
    kept = next(number for number, effect in enumerate(effects) if type(effect).__name__ == "Keep")
    scene.do(effects, crash_after=kept + 1)
    assert b.role == "backup"
    scene.restart()
    scene.connect(b)
    scene.tick(4)
    assert (b.role, b.epoch) == ("active", 2)


def test_a_promotion_that_was_not_kept_was_told_to_nobody() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    effects = scene.machine.on_lost(a.talk, scene.now_s)
    kept = next(number for number, effect in enumerate(effects) if type(effect).__name__ == "Keep")
    scene.do(effects, crash_after=kept)
    scene.restart()
    scene.connect(a)
    scene.connect(b)
    assert (a.role, b.role, scene.epoch) == ("active", "backup", 1)


@pytest.mark.requirement("STR-7", half="the machine, its store lost")
def test_a_lost_store_is_learned_from_adapters() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.kill(a)
    a = scene.adapter("a")
    client = scene.client("one")
    token = client.token
    scene.restart(damaged=True)
    scene.connect(a)
    scene.tick(1)
    assert (a.role, b.role) == ("backup", "active"), "nobody is promoted while the active one may come"
    scene.connect(b)
    assert (scene.active, scene.epoch, b.role, a.role, a.told(Role)[-1].active) == ("b", 2, "active", "backup", "b")
    assert token in a.tokens
    assert token in b.tokens, "clients that are served go on, until their tokens expire"


def test_a_lost_store_and_a_lost_active_adapter_are_followed_by_a_higher_epoch() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.kill(a)
    c = scene.adapter("c")
    scene.kill(b)
    assert c.epoch == 3
    scene.restart(damaged=True)
    c.role = "backup"  # as if it had been one
    scene.connect(c)
    scene.tick(4)
    assert (c.role, c.epoch) == ("active", 4)


def test_of_two_that_are_active_the_higher_epoch_wins_and_the_other_is_told() -> None:
    scene = Scene()
    a = scene.adapter("a")
    stranger = type(a)("b", 77, role="active", epoch=9)
    scene.puppets["b"] = stranger
    scene.connect(stranger)
    assert (scene.active, scene.epoch, a.role, a.epoch) == ("b", 9, "backup", 9)


def test_two_that_are_active_under_one_epoch_get_a_new_one() -> None:
    scene = Scene()
    a = scene.adapter("a")
    stranger = type(a)("b", 77, role="active", epoch=1)
    scene.puppets["b"] = stranger
    scene.connect(stranger)
    assert (scene.active, a.epoch, stranger.role, stranger.epoch) == ("a", 2, "backup", 2)


def test_being_cut_off_from_the_own_server_promotes_nobody() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    one = scene.client("one")
    before = len(one.heard)
    scene.do(scene.machine.on_cut(scene.now_s))
    for each in (a, b, one):
        each.talk = 0
    scene.tick(1)
    scene.connect(b)
    scene.connect(a)
    scene.client("one")
    assert (a.role, scene.active, scene.epoch) == ("active", "a", 1)
    assert one.lines == ["a", "b"]
    assert len(one.heard) == before + 1


# --- Planned switch -------------------------------------------------------------------------------------------------
@pytest.mark.requirement("STR-78", half="the order and its outcome; adapters are puppets")
def test_a_planned_switch_is_done_when_the_adapters_say_so() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    one = scene.client("one")
    answer = scene.order(do="switch")
    admin = a.told(SendAdmin)[-1].admin
    assert (admin.kind, admin.to, admin.epoch) == ("switch", "b", 2)
    assert scene.kept.groups[0].highest == 2, "the epoch is reserved before it is named"
    assert not answer
    scene.tick(0.2)
    assert (a.role, b.role, scene.active, scene.epoch) == ("backup", "active", "b", 2)
    assert isinstance(answer[-1], StreamFacts)
    assert isinstance(one.heard[-1], Notice)
    assert one.lines == ["b", "a"]
    assert (scene.facts()["switches"], scene.facts()["failovers"]) == (1, 0)


def test_a_backup_is_synchronised_with_the_new_active_adapter_when_it_says_so_under_the_new_epoch() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    scene.adapter("c")
    late = a.report()
    scene.order(do="switch", adapter="b")
    scene.report(b)
    scene.say(a.talk, late)  # under way when the roles changed
    assert refusal(scene.order(do="switch", adapter="a")).code == "unavailable"
    scene.tick(0.1)
    scene.order(do="switch", adapter="a")
    scene.tick(0.1)
    assert (scene.active, scene.epoch) == ("a", 3)


def test_a_switch_that_does_not_happen_in_time_is_given_up_and_its_epoch_is_never_used_again() -> None:
    scene = Scene()
    a, b = scene.adapter("a", obeys_switches=False), scene.adapter("b")
    answer = scene.order(do="switch", adapter="b")
    scene.tick(4)
    assert not answer
    assert refusal(scene.order(do="switch")).code == "busy"
    scene.tick(2)
    assert "did not switch" in refusal(answer).why
    scene.kill(a)
    assert (b.role, b.epoch) == ("active", 3)


def test_a_switch_that_happens_after_it_was_given_up_is_taken_as_it_is() -> None:
    scene = Scene()
    a, b = scene.adapter("a", obeys_switches=False), scene.adapter("b")
    scene.order(do="switch")
    scene.tick(6)
    a.be("backup", 2)
    b.be("active", 2)
    scene.tick(0.1)
    assert (scene.active, scene.epoch) == ("b", 2)


def test_an_adapter_that_cannot_switch_says_so() -> None:
    scene = Scene()
    a = scene.adapter("a", obeys_switches=False)
    scene.adapter("b")
    answer = scene.order(do="switch")
    scene.say(a.talk, Refusal(code="unavailable", why="b could not synchronise it"))
    assert refusal(answer).why == "b could not synchronise it"


def test_a_death_during_a_switch_is_a_failover() -> None:
    scene = Scene()
    a, b = scene.adapter("a", obeys_switches=False), scene.adapter("b", preference=1)
    scene.adapter("c", preference=2)
    answer = scene.order(do="switch", adapter="c")
    scene.kill(a)
    assert (b.role, b.epoch) == ("active", 3)
    assert "b is active" in refusal(answer).why


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"adapter": "a"}, "bad-parameter"),
        ({"adapter": "nobody"}, "bad-parameter"),
        ({"adapter": "c"}, "unavailable"),
        ({"adapter": "d"}, "no-adapter"),
        ({"stream": "other"}, "unknown-stream"),
        ({"stream": ""}, "bad-parameter"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(order: dict[str, str], code: str) -> None:
    scene = Scene()
    scene.adapter("a"), scene.adapter("b"), scene.adapter("c", synchronised=False)
    scene.kill(scene.adapter("d"))
    assert refusal(scene.order(do="switch", **order)).code == code
    assert (scene.active, scene.epoch) == ("a", 1)


def test_without_a_backup_there_is_nothing_to_switch_to() -> None:
    scene = Scene()
    a = scene.adapter("a")
    assert refusal(scene.order(do="switch")).code == "no-adapter"
    scene.kill(a)
    assert refusal(scene.order(do="switch")).code == "no-adapter"


# --- Orders to adapters -----------------------------------------------------------------------------------------------
def test_administrative_messages_go_to_the_active_adapter() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    answer = scene.order(do="send", admin=Admin(id="text-1", kind="text", body=b"hello"))
    assert isinstance(answer[-1], StreamFacts)
    assert [word.admin.id for word in a.told(SendAdmin)] == ["text-1"]
    assert not b.told(SendAdmin)


def test_a_switch_is_not_sent_as_a_message_and_nothing_is_sent_by_nobody() -> None:
    scene = Scene()
    a = scene.adapter("a")
    assert refusal(scene.order(do="send", admin=Admin(id="s", kind="switch", to="x"))).code == "bad-parameter"
    assert refusal(scene.order(do="send")).code == "bad-parameter"
    large = Admin(id="t", kind="text", body=bytes(300_000))
    assert refusal(scene.order(do="send", admin=large)).code == "bad-parameter"
    scene.kill(a)
    assert refusal(scene.order(do="send", admin=Admin(id="t", kind="text"))).code == "no-adapter"


def test_an_adapter_that_is_gone_for_good_and_a_stream_without_adapters_are_forgotten() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    link = b.told(Role)[-1].link_token
    assert refusal(scene.order(do="forget", adapter="b")).code == "bad-parameter"
    scene.kill(b)
    scene.order(do="forget", adapter="b")
    assert [one["name"] for one in scene.facts()["adapters"]] == ["a"]
    assert link not in a.links
    assert refusal(scene.order(do="forget")).code == "bad-parameter"
    scene.kill(a)
    scene.order(do="forget")
    assert not scene.machine.facts(scene.now_s)
    assert not scene.kept.groups
    assert refusal(scene.order(do="status", stream=STREAM)).code == "unknown-stream"
