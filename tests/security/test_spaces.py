"""Name spaces of tenants: whatever is said, it stays inside, and comes back as it was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import topics
from fairlead.errors import BadPattern, ConfigError
from fairlead.security import spaces
from fairlead.security.quotas import Quota
from fairlead.security.rules import ACTIONS, Rights, Rules

tenants = st.sampled_from(["red", "blue", "red-2", "r"])
texts = st.text(alphabet="abT_.*>?/:|()[]\\{}^$+-x\x1f", max_size=20)
styled = st.builds(lambda style, text: style + text, st.sampled_from(["", "glob:", "regex:"]), texts)
names = st.lists(st.sampled_from(["a", "_T", "red", "blue", "x", "_DMQ", "*", "??"]), min_size=1, max_size=4).map(
    ".".join
)


@given(tenant=tenants, other=tenants, said=st.one_of(styled, names), topic=names)
def test_a_pattern_of_one_tenant_stands_for_no_name_of_anybody_else(
    tenant: str, other: str, said: str, topic: str
) -> None:
    try:
        pattern = topics.compile(spaces.inside(tenant, said))
    except BadPattern:
        return
    foreign = [topic] if tenant == other else [topic, spaces.inside(other, topic)]
    for name in foreign:
        if spaces.owner(name) != tenant:
            assert not pattern.matches(name)


@given(tenant=tenants, said=st.one_of(styled, names))
def test_what_is_put_inside_comes_back_as_it_was_said(tenant: str, said: str) -> None:
    try:
        kept = spaces.inside(tenant, said)
    except BadPattern:
        return
    if not said.startswith(spaces.TEMPORARY):
        assert spaces.bare(tenant, kept) == said


@given(
    user=st.sampled_from(["of-red", "of-blue", "outside", "reader"]),
    said=st.one_of(styled, names),
    action=st.sampled_from(ACTIONS),
)
def test_rules_allow_nobody_anything_outside_their_own(user: str, said: str, action: str) -> None:
    rules = Rules(
        {
            "of-red": Rights(tenant="red"),
            "of-blue": Rights(tenant="blue", admin=("_ADMIN",)),
            "outside": Rights(),
            "reader": Rights(subscribe=(">", "_T.>", "_T.red.>", "glob:_*"), consume=(">", "_T.>")),
        },
        tenants={"red": Quota(), "blue": Quota()},
    )
    own = rules.tenant_of(user)
    for tenant in ("red", "blue"):
        if tenant != own:
            try:
                name = spaces.inside(tenant, said)
            except BadPattern:
                continue
            if not name.startswith(spaces.TEMPORARY):
                assert not rules.allows(user, action, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Red", "-red", "a.b", "a" * 33, "rot*", "_x"])
def test_a_tenant_has_a_name_that_means_itself_in_every_style(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a tenant"):
        spaces.check_tenant(name)


def test_temporary_names_say_whose_they_are() -> None:
    assert spaces.temporary_owner(spaces.temporary_stem("red", "00ff") + ":1") == "red"
    assert spaces.temporary_owner(spaces.temporary_stem("", "00ff") + ":1") == ""
    assert spaces.temporary_owner("temporary:red:00ff:1:2") is None


@pytest.mark.parametrize(
    ("name", "own"),
    [("_LOG", True), ("orders", False), ("_T.red.orders", False), ("_T.red._DMQ", True), ("_?.x", True)],
)
def test_what_is_the_servers_own(name: str, own: bool) -> None:
    assert spaces.is_servers(name) is own
