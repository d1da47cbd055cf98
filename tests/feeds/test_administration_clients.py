"""What clients are brokered, who may have what, and how a right ends."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.feeds.administration import Tell
from fairlead.feeds.source_relations import configured
from fairlead.feeds.words import (
    Admit,
    Brokered,
    ClientReport,
    Notice,
    Refusal,
    Relation,
    Renew,
    Report,
    Revoke,
    Revoked,
    Role,
    Source,
    StreamFacts,
    Subscribe,
    Word,
)

from .administration_scene import STREAM, Scene, refusal


# --- Brokering ------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("STR-1", half="the machine")
@pytest.mark.requirement("STR-2", half="the machine")
@pytest.mark.requirement("STR-4", half="the exchange, in the machine")
def test_both_streams_are_brokered_and_both_adapters_know_the_client_first() -> None:
    scene = Scene()
    a, b = scene.adapter("a", last=41), scene.adapter("b")
    effects = scene.machine.on_word(900, "", Subscribe(stream=STREAM, client="one"), scene.now_s)
    told = [(effect.talk, type(effect.word)) for effect in effects if isinstance(effect, Tell)]
    assert told == [(a.talk, Admit), (b.talk, Admit)]
    assert type(effects[0]).__name__ == "Keep", "a token is durable before anybody has it"
    scene.do(effects)
    (offer,) = scene.others[900]  # when both had said that they know it
    assert isinstance(offer, Brokered)
    assert [(line.adapter, line.role, line.address) for line in offer.lines] == [
        ("a", "active", a.address),
        ("b", "backup", b.address),
    ]
    assert (offer.epoch, offer.threshold, offer.positions) == (1, 8, {"line": (41, 1, 1)})
    assert {line.token for line in offer.lines} <= a.tokens.keys() & b.tokens.keys()


@pytest.mark.requirement("STR-4", half="the machine")
@pytest.mark.requirement("STR-76", half="the machine")
@pytest.mark.requirement("STR-79", half="the machine")
def test_without_a_backup_there_is_one_line_and_a_notice_when_there_are_two_again() -> None:
    scene = Scene()
    a = scene.adapter("a")
    one = scene.client("one")
    assert one.lines == ["a"]
    b = scene.adapter("b")
    assert one.lines == ["a", "b"]
    assert one.token in b.tokens, "known to it before any failover (STR-81)"
    scene.kill(b)
    assert one.lines == ["a"]
    scene.adapter("b")
    scene.kill(a)
    assert (one.lines, one.offer.epoch) == (["b"], 2)
    scene.adapter("a")
    assert (one.lines, one.offer.epoch) == (["b", "a"], 2)
    assert len(one.told(Brokered)) == 1, "all with one subscription"


def test_a_client_begins_where_the_stream_is_when_adapters_know_it() -> None:
    scene = Scene()
    a, b = scene.adapter("a", answers=False), scene.adapter("b", answers=False)
    one = scene.client("one")
    scene.report(b)
    a.admitted, a.last = "", 500
    scene.report(a)
    assert not one.heard, "that report was under way before it heard of the client"
    a.admitted, a.last = b.admitted, 700
    scene.report(a)
    assert (one.offer.positions, one.lines) == ({"line": (700, 1, 1)}, ["a", "b"])  # type: ignore[union-attr]


def test_an_adapter_that_does_not_answer_delays_a_client_for_one_interval_only() -> None:
    scene = Scene()
    scene.adapter("a")
    b = scene.adapter("b", answers=False)
    one = scene.client("one")
    scene.tick(0.1, silent=(b,))
    assert not one.heard
    scene.tick(0.1, silent=(b,))
    assert one.lines == ["a", "b"]


def test_an_adapter_that_dies_meanwhile_is_not_waited_for() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b", answers=False)
    one, two = scene.client("one"), scene.client("two")
    scene.lose(two)
    scene.kill(b)
    assert one.lines == ["a"]
    assert not two.heard
    a.answers = False
    three = scene.client("three")
    scene.kill(a)
    assert refusal(three.heard).code == "no-adapter"


def test_notices_come_only_when_something_has_changed() -> None:
    scene = Scene()
    scene.adapter("a"), scene.adapter("b")
    one = scene.client("one")
    scene.tick(20)
    assert len(one.heard) == 1


def test_a_new_incarnation_and_new_sources_are_told() -> None:
    scene = Scene()
    scene.adapter("a")
    b = scene.adapter("b")
    one = scene.client("one")
    b.incarnation = 99
    scene.report(b)
    assert {line.adapter: line.incarnation for line in one.offer.lines}["b"] == 99
    new = Source(id="line:2", relations=(Relation(kind="successor", of="line"),))
    said = b.report()
    scene.say(b.talk, Report(**{name: getattr(said, name) for name in said.__struct_fields__} | {"sources": (new,)}))
    assert new in one.offer.sources


def test_an_unknown_stream_and_one_without_adapters_are_told_apart() -> None:
    scene = Scene()
    scene.tick(4)
    assert refusal(scene.client("one").heard).code == "unknown-stream"
    scene.kill(scene.adapter("a"))
    assert refusal(scene.client("one").heard).code == "no-adapter"
    assert not scene.facts()["passes"], "who got nothing leaves nothing"


def test_a_subscriber_whose_adapters_all_went_is_served_again_when_one_is_back() -> None:
    scene = Scene()
    a = scene.adapter("a")
    one = scene.client("one")
    scene.kill(a)
    assert one.lines == []
    scene.adapter("b")
    assert one.lines == ["b"]


def test_who_comes_in_the_first_seconds_of_a_new_administration_waits() -> None:
    scene = Scene()
    one = scene.client("one")
    assert not one.heard
    scene.adapter("a")
    assert one.lines == ["a"]


def test_after_a_restart_subscriptions_wait_for_adapters_and_have_their_tokens_again() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    one = scene.client("one")
    token = one.token
    scene.restart()
    scene.client("one")
    two = scene.client("two")
    scene.connect(b)
    assert len(one.heard) == 1
    assert not two.heard
    scene.connect(a)
    assert (one.lines, one.token) == (["a", "b"], token)
    assert two.lines == ["a", "b"]
    assert two.token in a.tokens
    assert not [word for word in (*a.heard, *b.heard) if isinstance(word, Revoke)], "nobody is disturbed"


def test_after_a_restart_all_who_waited_are_served_at_once() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.restart()
    crowd = [scene.client(f"c{number}") for number in range(50)]
    scene.connect(a)
    assert all(one.lines == ["a"] for one in crowd)


def test_after_a_restart_nobody_waits_longer_than_the_grace() -> None:
    scene = Scene()
    a = scene.adapter("a")
    scene.adapter("b")
    del scene.puppets["b"]
    scene.restart()
    scene.connect(a)
    one = scene.client("one")
    scene.tick(2.5)
    assert not one.heard
    scene.tick(1)
    assert one.lines == ["a"]


def test_two_subscriptions_of_one_client_share_a_token_and_end_each_for_itself() -> None:
    scene = Scene()
    a = scene.adapter("a")
    first = scene.client("one")
    talk = first.talk
    scene.client("one")
    assert len(a.tokens) == 1
    scene.do(scene.machine.on_lost(talk, scene.now_s))
    assert len(scene.facts()["clients"]) == 1


@pytest.mark.requirement("STR-31", half="the machine")
def test_a_client_that_failed_over_by_itself_changes_nothing_for_the_others() -> None:
    scene = Scene()
    scene.adapter("a"), scene.adapter("b")
    one, two = scene.client("one"), scene.client("two")
    scene.say(one.talk, ClientReport(line="b", local=True, counters={"failovers": 1}))
    assert (scene.active, scene.epoch, len(two.heard)) == ("a", 1, 1)
    shown = {each["client"]: (each["line"], each["local"]) for each in scene.facts()["clients"]}
    assert shown["one"] == ("b", True)


# --- Relations ------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("STR-44", half="what the client is told")
def test_relations_come_from_adapters_and_from_the_configuration() -> None:
    lines = [f"{STREAM}: y equivalent x offset 1000", f"{STREAM}: z sibling x", "other: q sibling x"]
    scene = Scene(relations=configured(lines))
    said = (Source(id="x"), Source(id="y", relations=(Relation(kind="sibling", of="x"),)))
    scene.adapter("a", sources=said)
    scene.adapter("b", sources=(Source(id="w", relations=(Relation(kind="successor", of="x", start=5),)),))
    found = {one.id: one.relations for one in scene.client("one").offer.sources}
    assert found == {
        "x": (),
        "y": (Relation(kind="equivalent", of="x", offset=1000),),
        "z": (Relation(kind="sibling", of="x"),),
        "w": (Relation(kind="successor", of="x", start=5),),
    }


# --- Rights ---------------------------------------------------------------------------------------------------------
class Rights:
    """user -> actions."""

    def __init__(self, **rights: str) -> None:
        self.rights = rights

    def __call__(self, user: str, action: str, name: str) -> bool:
        assert name == f"stream.{STREAM}"
        return action in self.rights.get(user, "").split()


@pytest.mark.requirement("STR-80", half="the server's side, in the machine")
def test_rights_are_asked_for_before_anything_is_said_about_a_stream() -> None:
    scene = Scene(Rights(feed="publish", reader="subscribe", boss="admin"))
    scene.tick(4)
    denied = scene.client("one", "feed")
    assert (refusal(denied.heard).code, "subscribe stream.prices.emea" in refusal(denied.heard).why) == (
        "not-allowed",
        True,
    )
    a = scene.adapter("a", user="reader")
    assert refusal(a.heard).code == "not-allowed"
    assert not scene.machine.facts(scene.now_s)
    scene.adapter("a", user="feed")
    assert scene.client("two", "reader").lines == ["a"]
    assert refusal(scene.order("feed", do="status")).code == "not-allowed"
    (mine,) = scene.order("reader", do="status")
    (whole,) = scene.order("boss", do="status")
    assert isinstance(mine, StreamFacts)
    assert isinstance(whole, StreamFacts)
    assert ([one["clients"] for one in mine.streams], mine.streams[0]["active"]) == ([[]], "a")
    assert len(whole.streams[0]["clients"]) == 1  # type: ignore[arg-type]
    for order in ("switch", "send", "forget"):
        assert refusal(scene.order("reader", do=order)).code == "not-allowed"


def test_an_operator_without_a_stream_sees_those_it_may_see() -> None:
    scene = Scene(lambda user, action, name: action == "publish" or name == "stream.mine")
    scene.adapter("a", stream="mine"), scene.adapter("b", stream="theirs")
    (answer,) = scene.order(do="status", stream="")
    assert isinstance(answer, StreamFacts)
    assert [one["name"] for one in answer.streams] == ["mine"]


@pytest.mark.requirement("STR-82", half="the machine")
@pytest.mark.parametrize("order", [{"client": "one"}, {"user": "u"}])
def test_revoking_ends_both_streams_and_keeps_the_client_out(order: dict[str, str]) -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    one, two = scene.client("one", "u"), scene.client("two", "v")
    token, talk = one.token, one.talk
    scene.order(do="revoke", **order)
    assert isinstance(one.heard[-1], Revoked)
    assert talk in scene.ended
    assert (token in a.tokens, token in b.tokens) == (False, False)
    assert two.token in a.tokens
    scene.kill(a)
    assert isinstance(one.heard[-1], Revoked), "a failover brings nothing back"
    assert refusal(scene.client("one", "u").heard).code == "not-allowed"
    scene.restart()
    scene.connect(b)
    scene.tick(4)
    assert refusal(scene.client("one", "u").heard).code == "not-allowed", "a restart neither"
    scene.order(do="permit", **order)
    assert scene.client("one", "u").lines == ["b"]


@pytest.mark.requirement("STR-82", half="the machine")
def test_an_adapter_that_was_away_hears_of_a_revocation_when_it_is_back() -> None:
    scene = Scene()
    scene.adapter("a")
    b = scene.adapter("b")
    token = scene.client("one").token
    scene.lose(b)
    scene.order(do="revoke", client="one")
    assert token in b.tokens
    scene.connect(b)
    assert token not in b.tokens


@pytest.mark.requirement("STR-82", half="the machine")
def test_withdrawn_rights_end_streams_and_adapters() -> None:
    rights = Rights(feed="publish", other="publish", reader="subscribe", late="subscribe")
    scene = Scene(rights)
    a, b = scene.adapter("a", user="feed"), scene.adapter("b", user="other")
    one, two = scene.client("one", "reader"), scene.client("two", "late")
    token, gone = one.token, two.token
    scene.lose(two)
    scene.do(scene.machine.on_rules(Rights(other="publish", reader=""), scene.now_s))
    assert isinstance(one.heard[-1], Revoked)
    assert token not in b.tokens
    assert gone not in b.tokens, "also of a client that is away"
    assert isinstance(a.heard[-1], Refusal)
    assert (scene.active, b.role) == ("b", "active")


def test_rules_that_change_nothing_disturb_nobody() -> None:
    scene = Scene()
    a = scene.adapter("a")
    one = scene.client("one")
    before = len(a.heard), len(one.heard)
    scene.do(scene.machine.on_rules(scene.allows, scene.now_s))
    assert (len(a.heard), len(one.heard)) == before


@pytest.mark.requirement("STR-80", half="the server's side, in the machine")
def test_tokens_are_renewed_by_clients_and_forgotten_without_them() -> None:
    scene = Scene(token_life_s=60.0)
    a = scene.adapter("a")
    one, two = scene.client("one"), scene.client("two")
    assert a.told(Admit)[-1].life_s == 60.0
    scene.lose(two)
    for _ in range(4):
        scene.tick(20)
        before = len(one.told(Notice))
        scene.say(one.talk, Renew())
        assert len(one.told(Notice)) == before + 1
    assert [each.client for each in scene.kept.groups[0].passes] == ["one"]
    again = scene.adapter("b")
    assert set(again.tokens.values()) == {"one"}


def test_a_clock_that_was_set_back_lets_no_token_live_longer() -> None:
    scene = Scene(token_life_s=60.0)
    a = scene.adapter("a")
    scene.client("one")
    scene.tick(4)
    scene.restart()
    scene.now_s -= 500
    scene.machine = scene._make()
    scene.connect(a)
    assert a.told(Admit)[-1].life_s <= 60.0


def test_links_are_renewed_without_anybody_asking() -> None:
    scene = Scene(token_life_s=30.0)
    a, b = scene.adapter("a"), scene.adapter("b")
    token = b.told(Role)[-1].link_token
    before = len([word for word in a.told(Admit) if word.token == token])
    scene.tick(25)
    assert len([word for word in a.told(Admit) if word.token == token]) > before


# --- Bounds and bad manners -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", [Renew(), ClientReport(), Report(epoch=1, role="active", incarnation=1, last=1)])
def test_a_conversation_begins_with_what_it_is_about(word: Word) -> None:
    scene = Scene()
    scene.say(500, word)
    assert refusal(scene.others[500]).code == "bad-parameter"
    assert 500 in scene.ended


def test_a_word_out_of_place_ends_that_conversation_only() -> None:
    scene = Scene()
    a, b = scene.adapter("a"), scene.adapter("b")
    one = scene.client("one")
    scene.say(a.talk, Renew())
    assert refusal(a.heard).code == "bad-parameter"
    assert (scene.active, one.lines) == ("b", ["b"])
    scene.say(one.talk, b.report())
    assert refusal(one.heard).code == "bad-parameter"
    assert (b.role, scene.facts()["clients"]) == ("active", [])


def test_nonsense_ends_the_conversation() -> None:
    scene = Scene()
    one = scene.client("one")
    scene.do(scene.machine.on_nonsense(one.talk, "no msgpack", scene.now_s))
    assert refusal(one.heard).code == "bad-parameter"
    assert not scene.machine.talking


def test_streams_adapters_clients_and_conversations_are_bounded() -> None:
    scene = Scene(streams_max=2, adapters_max=2, passes_max=2, talks_max=9)
    scene.adapter("a")
    scene.adapter("a2", stream="s2")
    assert refusal(scene.adapter("a3", stream="s3").heard).code == "too-many"
    scene.adapter("b")
    assert refusal(scene.adapter("c").heard).code == "too-many"
    one, _ = scene.client("one"), scene.client("two")
    assert refusal(scene.client("three").heard).code == "too-many"
    scene.lose(one)
    assert scene.client("three").lines == ["a", "b"], "who has gone makes room"
    for number in range(20):
        scene.client(f"x{number}")
        scene.order(do="status")
    assert scene.machine.talking <= 9
    assert len(scene.facts()["clients"]) == 2


def test_names_and_counters_of_others_are_bounded() -> None:
    scene = Scene()
    scene.adapter("a")
    one = scene.client("one")
    scene.say(one.talk, ClientReport(counters={f"{number}" * 100: number for number in range(1000)}))
    counters = scene.facts()["clients"][0]["counters"]
    assert len(counters) <= 64
    assert max(map(len, counters)) == 64


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"threshold": 3}, "threshold"),
        ({"schema": "[]"}, "schema"),
        ({"heartbeat_s": 0.0}, "interval"),
        ({"heartbeat_s": float("nan")}, "interval"),
        ({"epoch": 1 << 62 | 1}, "Epoch"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(facts: dict[str, Any], why: str) -> None:
    scene = Scene()
    scene.adapter("a")
    b = scene.puppets["b"] = type(scene.puppets["a"])("b", 50)
    scene.connect(b, **facts)
    assert refusal(b.heard).code == "bad-parameter"
    assert why in refusal(b.heard).why
    assert (scene.active, scene.epoch) == ("a", 1)


def test_a_group_whose_adapters_all_went_may_have_another_threshold() -> None:
    scene = Scene()
    scene.kill(scene.adapter("a"))
    b = scene.puppets["b"] = type(scene.adapter("c", stream="x"))("b", 50)
    scene.connect(b, threshold=0)
    assert (b.role, scene.facts()["threshold"]) == ("active", 0)


def test_revoking_takes_one_client_or_one_user() -> None:
    scene = Scene()
    scene.adapter("a")
    assert refusal(scene.order(do="revoke")).code == "bad-parameter"
    assert refusal(scene.order(do="revoke", client="a", user="b")).code == "bad-parameter"
    assert refusal(scene.order(do="permit", client="x" * 300)).code == "bad-parameter"
