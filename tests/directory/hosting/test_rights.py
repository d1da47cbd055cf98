"""For whom a user may speak in the directory (docs/directory.md, section 3)."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.directory.operations import OPERATIONS
from fairlead.directory.rights import granted, is_read
from fairlead.security.rules import Rights, Rules

USERS = Rules(
    {
        "root": Rights(admin=("_DIRECTORY",), consume=(), serve=()),
        "broker-a": Rights(serve=("_BROKER.A",), consume=()),
        "fleet": Rights(serve=("_BROKER.*",), consume=()),
        "ax": Rights(consume=("app.AX",), serve=()),
        "plain": Rights(),
    }
)
OPEN = Rules.open()


def may(user: str, rules: Rules = USERS, **request: Any) -> list[str]:
    return granted(rules, user, request)


@pytest.mark.requirement("DIR-34", state="half", note="the rules alone; real users in tests/processes/directory")
def test_a_user_may_what_its_rights_name() -> None:
    assert may("broker-a", name="A") == ["_BROKER.A"]
    assert may("broker-a", name="B") == []
    assert may("broker-a", broker={"name": "A", "ip": "x"}) == ["_BROKER.A"]
    assert may("broker-a", app="AX", link={"broker": "A"}) == ["_BROKER.A"]
    assert may("broker-a", app="AX", link={"broker": "B"}) == []
    assert may("fleet", broker="B", app="AX") == ["_BROKER.B"]
    assert may("ax", app="AX", broker="A") == ["app.AX"]
    assert may("ax", app="AY", broker="A") == []
    assert may("root", name="B") == ["_DIRECTORY"]


def test_who_has_all_rights_on_ordinary_names_speaks_for_no_broker() -> None:
    assert may("plain", name="A", app="AX") == ["app.AX"]


@pytest.mark.requirement("DIR-34", state="half", note="the rules alone; real users in tests/processes/directory")
def test_without_a_name_nothing_may_be_changed_where_there_are_users() -> None:
    assert may("", name="A", app="AX") == []
    assert may("", OPEN, name="A", app="AX") == ["_DIRECTORY", "_BROKER.A", "app.AX"]
    assert may("nobody-we-know", name="A", app="AX") == []


def test_what_stands_where_a_name_should_is_no_name() -> None:
    wrong: tuple[Any, ...] = (5, None, [], {}, {"name": 7}, "")
    for strange in wrong:
        assert may("", OPEN, broker=strange, name=strange, link=strange, app=strange if strange != "" else 1) == [
            "_DIRECTORY"
        ]


def test_what_is_no_operation_is_no_read() -> None:
    assert [op for op in OPERATIONS if is_read(op)] == [op for op, one in OPERATIONS.items() if not one.writes]
    for strange in ("nonsense", None, 5, ["list_apps"]):
        assert not is_read(strange)


def test_the_registrar_may_be_spoken_to_by_everybody() -> None:
    for user in ("root", "ax", "plain"):
        assert USERS.allows(user, "publish", "_REGISTRAR")
    assert not USERS.allows("plain", "serve", "_BROKER.A")
