"""Groups, denials, and which line decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead import topics
from fairlead.security.covering import covered, overlaps
from fairlead.security.quotas import Quota
from fairlead.security.rules import ACTIONS, Rights, Rules, principal
from tests.security.test_rules import pattern_texts, topic_texts


@given(one=pattern_texts, other=pattern_texts, topic=topic_texts)
def test_patterns_that_do_not_overlap_have_no_topic_in_common(one: str, other: str, topic: str) -> None:
    if topics.compile(one).matches(topic) and topics.compile(other).matches(topic):
        assert overlaps(one, other)
        assert overlaps(other, one)


@given(topic=topic_texts, allow=st.lists(pattern_texts, max_size=4), deny=st.lists(pattern_texts, max_size=3))
def test_a_denial_beats_every_allowance_whoever_gives_it(topic: str, allow: list[str], deny: list[str]) -> None:
    lines = tuple(("publish", pattern) for pattern in deny)
    users = {
        "own": Rights(publish=tuple(allow), deny=lines),  # type: ignore[arg-type]
        "member": Rights(publish=tuple(allow), groups=("g",)),
    }
    rules = Rules(users, groups={"g": Rights(deny=lines)})  # type: ignore[arg-type]
    expected = covered(topic, allow) and not covered(topic, deny)
    for user in users:
        assert rules.allows(user, "publish", topic) == expected
        assert rules.allows(user, "send", topic) == expected


def test_groups_add_up_and_say_nothing_where_they_are_silent() -> None:
    groups = {"a": Rights(publish=("a.>",)), "b": Rights(publish=("b.>",), consume=())}
    rules = Rules({"u": Rights(groups=("a", "b")), "w": Rights(publish=("w",), groups=("a",))}, groups=groups)
    assert [rules.allows("u", "publish", topic) for topic in ("a.x", "b.x", "c.x")] == [True, True, False]
    assert [rules.allows("w", "publish", topic) for topic in ("a.x", "w", "b.x")] == [True, True, False]
    assert rules.allows("u", "serve", "anything")
    assert not rules.allows("u", "consume", "q")
    assert not rules.unrestricted("u", "publish")


def test_a_proof_brings_groups_and_a_tenant_and_contradictions_bring_nothing() -> None:
    rules = Rules(
        {"ann": Rights(publish=(), tenant="red")},
        groups={"desk": Rights(publish=("news",))},
        tenants={"red": Quota(), "blue": Quota()},
    )
    assert rules.allows(principal("stranger", ("desk",)), "publish", "news")
    assert not rules.allows(principal("stranger", ("unknown",)), "publish", "news")
    assert rules.allows(principal("ann", ("desk",)), "publish", "_T.red.news")
    assert not rules.knows(principal("ann", ("desk",), "blue"))
    assert not rules.knows(principal("stranger", ("desk",), "green"))
    assert rules.tenant_of(principal("stranger", ("desk",), "blue")) == "blue"


def test_the_verdict_names_the_line() -> None:
    rules = Rules(
        {"ann": Rights(groups=("desk",))},
        groups={"desk": Rights(subscribe=("prices.>",), deny=(("subscribe", "prices.secret.>"),))},
    )
    denied = rules.verdict("ann", "browse", "prices.secret.x")
    assert (denied.allowed, str(denied.line)) == (False, "group desk: deny subscribe prices.secret.>")
    allowed = rules.verdict("ann", "consume", "prices.eur")
    assert (allowed.allowed, str(allowed.line)) == (True, "group desk: allow subscribe prices.>")
    assert not rules.verdict("nobody", "publish", "x").allowed
    for action in ACTIONS:
        assert rules.verdict("ann", action, "x").why


def test_a_pattern_that_reaches_into_something_denied_is_let_in_and_filtered() -> None:
    rules = Rules({"u": Rights(deny=(("subscribe", "a.secret.>"),))})
    assert rules.allows("u", "subscribe", "a.>")
    assert rules.filters("u")
    assert not rules.allows("u", "subscribe", "a.secret.*")
    assert rules.exceptions("u", "a.>") == ("a.secret.>",)
    assert rules.exceptions("u", "b.>") == ()


def test_administrators_of_some_destinations_are_not_administrators_of_the_rest() -> None:
    rules = Rules({"u": Rights(admin=("orders.>",)), "root": Rights(admin=("_ADMIN",)), "plain": Rights()})
    assert rules.allows("u", "admin", "orders.eu")
    assert not rules.allows("u", "admin", "prices")
    assert not rules.allows("u", "publish", "_ADMIN")
    assert rules.allows("root", "admin", "prices")
    assert not rules.allows("plain", "admin", "prices")
    assert rules.allows("u", "subscribe", "admin-reply." + "0" * 24)
    assert not Rules({"u": Rights(subscribe=())}).allows("u", "subscribe", "admin-reply." + "0" * 24)
