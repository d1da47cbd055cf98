from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import topics
from fairlead.security.rules import ACTIONS, ANONYMOUS, Action, Rights, Rules, covered

words = st.sampled_from(["a", "b", "ab", "ba"])
topic_texts = st.lists(words, min_size=1, max_size=4).map(".".join)
pattern_texts = st.builds(
    lambda inner, last: ".".join([*inner, *last]),
    st.lists(st.sampled_from(["a", "b", "ab", "*", "?", "a?", "??"]), max_size=3),
    st.sampled_from([[">"], ["*"], ["a"], ["a?"]]),
)


@given(wanted=pattern_texts, allowed=pattern_texts, topic=topic_texts)
def test_what_is_covered_matches_nothing_that_is_not_allowed(wanted: str, allowed: str, topic: str) -> None:
    if covered(wanted, [allowed]) and topics.compile(wanted).matches(topic):
        assert topics.compile(allowed).matches(topic)


@given(topic=topic_texts, allowed=pattern_texts)
def test_a_plain_topic_is_covered_exactly_when_it_matches(topic: str, allowed: str) -> None:
    assert covered(topic, [allowed]) == topics.compile(allowed).matches(topic)


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("prices.eur", "prices.>"),
        ("prices.>", "prices.>"),
        ("prices.eur.>", "prices.>"),
        ("prices.*", "prices.>"),
        ("*", ">"),
        (">", ">"),
        ("a.*.c", "a.*.*"),
        ("a.b?.c", "a.*.c"),
        ("a.bc", "a.b?"),
        ("a.?x", "a.??"),
        ("regex:.*", ">"),
        ("regex:a|b", "regex:a|b"),
        ("glob:a*", "glob:a*"),
        ("prices.eur", "glob:prices.*"),
        ("prices.eur", r"regex:prices\.[a-z]+"),
    ],
)
def test_inside(wanted: str, allowed: str) -> None:
    assert covered(wanted, ["nothing.like.it", allowed])


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("prices.>", "prices.eur.*"),
        ("prices", "prices.>"),
        (">", "*"),
        ("*", "a"),
        ("a.>", "a.*"),
        ("a.*", "a.?"),
        ("a.??", "a.?x"),
        ("a.b.c", "a.*"),
        ("a", "a.*"),
        ("regex:a", "a"),
        ("glob:prices.*", "prices.>"),
        ("prices.*", "glob:prices.*"),
        ("orders", "glob:prices.*"),
    ],
)
def test_outside(wanted: str, allowed: str) -> None:
    assert not covered(wanted, [allowed])


@pytest.mark.requirement("SRV-125", state="half", note="the decision, without a server")
def test_an_absent_list_allows_everything_and_an_empty_one_nothing() -> None:
    rules = Rules({"bob": Rights(publish=("a.>",), subscribe=())})
    assert rules.allows("bob", "publish", "a.b")
    assert not rules.allows("bob", "publish", "b")
    assert not rules.allows("bob", "subscribe", "a.b")
    assert rules.allows("bob", "serve", "anything")
    assert [action for action in ACTIONS if rules.unrestricted("bob", action)] == ["serve", "create", "admin"]


def test_every_one_of_several_topics_must_be_allowed() -> None:
    rules = Rules({"bob": Rights(publish=("a.>", "b"))})
    assert rules.allows("bob", "publish", "a.b\x1fb")
    assert not rules.allows("bob", "publish", "a.b\x1fc")
    assert not rules.allows("bob", "subscribe", "a.b\x1fc") or rules.unrestricted("bob", "subscribe")


def test_somebody_unknown_may_do_nothing() -> None:
    rules = Rules({"bob": Rights()})
    assert not any(rules.allows("eve", action, "a") or rules.unrestricted("eve", action) for action in ACTIONS)


def test_a_client_without_a_name_has_the_rights_of_anonymous() -> None:
    assert Rules.open().allows("", "publish", "a")
    rules = Rules({ANONYMOUS: Rights(publish=())})
    assert not rules.allows("", "publish", "a")
    assert rules.allows("", "subscribe", "a")


def test_answers_are_remembered_but_not_without_bound() -> None:
    rules = Rules({"bob": Rights(publish=("a.>",))})
    for number in range(40_000):
        assert rules.allows("bob", "publish", f"a.{number}")
    assert len(rules._answers) <= 16_384


@pytest.mark.requirement("CLU-205", state="half", note="the decision, without a server")
@pytest.mark.parametrize(
    ("rights", "action", "name", "allowed"),
    [
        (Rights(), "send", "orders", True),
        (Rights(publish=("a",)), "send", "orders", False),
        (Rights(publish=("a",), send=("orders",)), "send", "orders", True),
        (Rights(subscribe=()), "consume", "orders", False),
        (Rights(subscribe=()), "browse", "orders", False),
        (Rights(subscribe=(), browse=("orders",)), "browse", "orders", True),
        (Rights(consume=("a.>",)), "consume", "a.*", True),
        (Rights(consume=("a.b",)), "consume", "a.*", False),
        (Rights(publish=(), subscribe=()), "create", "orders", False),
        (Rights(publish=(), subscribe=("orders",)), "create", "orders", True),
        (Rights(create=()), "create", "orders", False),
    ],
)
def test_rights_on_destinations(rights: Rights, action: Action, name: str, allowed: bool) -> None:
    assert Rules({"ann": rights}).allows("ann", action, name) is allowed


@pytest.mark.requirement("CLU-205", state="half", note="the decision, without a server")
def test_names_with_an_underscore_need_a_pattern_with_one() -> None:
    rules = Rules(
        {
            "all": Rights(),
            "wide": Rights(*[(">", "*", "glob:*", "regex:.*")] * len(ACTIONS)),
            "own": Rights(*[("_LOG", "_DMQ", "_ADMIN", "_x.>")] * len(ACTIONS)),
        }
    )
    for action in ACTIONS:
        for name in ("_LOG", "_DMQ", "_ADMIN", "_x.y"):
            assert not rules.allows("all", action, name)
            assert not rules.allows("wide", action, name)
            never = action in ("publish", "send", "create") and name in ("_LOG", "_DMQ")
            assert rules.allows("own", action, name) is not never
    assert not rules.allows("wide", "subscribe", "regex:_.*")
    assert not rules.allows("wide", "subscribe", "_x.>")
    assert rules.allows("own", "subscribe", "_x.>")
    assert not rules.allows("own", "subscribe", ">")


def test_to_publish_to_the_administrations_topic_is_to_administer() -> None:
    rules = Rules({"ann": Rights(admin=("_ADMIN",)), "bob": Rights(publish=("_ADMIN",))})
    assert rules.allows("ann", "publish", "_ADMIN")
    assert not rules.allows("bob", "publish", "_ADMIN")
    assert not rules.allows("ann", "publish", "_ADMIN\x1f_LOG")


def test_without_users_the_log_and_the_dead_can_be_read_and_the_server_administered() -> None:
    rules = Rules.open()
    for action, name in (("consume", "_LOG"), ("browse", "_DMQ"), ("consume", "_DMQ"), ("publish", "_ADMIN")):
        assert rules.allows("", action, name)  # type: ignore[arg-type]
    for action, name in (("publish", "_LOG"), ("send", "_DMQ"), ("consume", "_ADMIN"), ("consume", "_other")):
        assert not rules.allows("", action, name)  # type: ignore[arg-type]
    assert not Rules({}).allows("", "consume", "_LOG")


@given(pattern=pattern_texts, topic=topic_texts)
def test_no_pattern_without_an_underscore_stands_for_a_name_with_one(pattern: str, topic: str) -> None:
    reserved = "_" + topic
    index: topics.PatternIndex[int] = topics.PatternIndex()
    index.add(pattern, 1)
    assert not topics.compile(pattern).matches(reserved)
    assert not index.match(reserved)
    own = "_" + pattern if pattern[0] not in "*>" else "_a." + pattern
    index.add(own, 2)
    assert (2 in index.match("_a." + topic)) == topics.compile(own).matches("_a." + topic)


@pytest.mark.requirement("CLU-178", state="half", note="rights of the names")
@pytest.mark.parametrize("group", ["b", "orders-2"])
def test_the_log_and_the_dead_of_further_groups_are_as_those_of_the_first(group: str) -> None:
    log, dead = f"_LOG.{group}", f"_DMQ.{group}"
    root = Rights(consume=(">", "_DMQ", "_LOG"), subscribe=("_LOG",), admin=("_ADMIN",))
    plain = Rights(consume=(">",), subscribe=(">",))
    one = Rights(consume=(log,))
    rules = Rules({"root": root, "plain": plain, "one": one})
    for name in (log, dead):
        assert rules.allows("root", "consume", name)
        assert rules.allows("root", "browse", name)
        assert not rules.allows("plain", "consume", name)
        assert not rules.allows("root", "send", name)
        assert not Rules.open().allows("", "send", name)
        assert not Rules.open().allows("", "publish", name)
        assert Rules.open().allows("", "consume", name)
    assert rules.allows("one", "consume", log)
    assert not rules.allows("one", "consume", "_LOG")
    assert rules.allows("root", "subscribe", log)
    assert not rules.allows("root", "consume", "_LOGS")


def test_without_a_users_file_who_has_logged_in_may_do_what_anybody_may() -> None:
    rules = Rules.open()
    for user in ("", "ann"):
        assert rules.unrestricted(user, "publish")
        assert rules.allows(user, "consume", "orders")
        assert not rules.allows(user, "send", "_LOG")
    assert not Rules({}).allows("ann", "consume", "orders")
