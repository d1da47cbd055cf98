"""Who is let in: gatekeeping, logins, authority."""

from __future__ import annotations

import pytest

from fairlead.console import authority
from fairlead.console.gatekeeping import Gate, check_csrf, check_json, host_of
from fairlead.console.logins import Logins
from fairlead.console.problems import Denied
from fairlead.errors import NotAllowed
from fairlead.security.rules import Rights, Rules

GATE = Gate(["Console.example.org", "other.example.org:8443"])


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:7480", "[::1]:7480", "[::1]", "localhost", "localhost:1", "10.1.2.3:80"),
        *("console.example.org", "CONSOLE.example.org:7480", "other.example.org:8443"),
    ],
)
def test_addresses_and_configured_names_are_ours(host: str) -> None:
    GATE.check_host({"host": host})


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:7480"),
        *("other.example.org", "[::1", "[::1]x", "127.0.0.1:x", "127.0.0.1:99999", ":7480", "127.0.0.1:80:80"),
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    with pytest.raises(Denied) as caught:
        GATE.check_host({"host": host})
    assert caught.value.status == 421


def test_a_host_without_a_name_is_none() -> None:
    assert host_of("") is None
    assert host_of("name") == "name"


@pytest.mark.parametrize(
    ("method", "headers", "ok"),
    [
        ("POST", {}, True),
        ("POST", {"origin": "http://127.0.0.1:7480"}, True),
        ("POST", {"origin": "http://127.0.0.1:7481"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "http://[::1"}, False),
        ("POST", {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:7480"}, True),
        ("POST", {"sec-fetch-site": "none"}, True),
        ("POST", {"sec-fetch-site": "cross-site"}, False),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site"}, False),
        ("GET", {"sec-fetch-site": "same-site"}, False),
    ],
)
def test_only_our_own_page_or_no_page_gets_in(method: str, headers: dict[str, str], ok: bool) -> None:
    given = {"host": "127.0.0.1:7480", **headers}
    if ok:
        GATE.check_origin(method, given)
    else:
        with pytest.raises(Denied):
            GATE.check_origin(method, given)


def test_a_change_has_to_show_the_token_of_its_login() -> None:
    check_csrf({"x-fairlead-csrf": "abc"}, "abc")
    check_csrf({"x-fairlead-csrf": "anything"}, None)
    for headers, expected in (({}, None), ({"x-fairlead-csrf": "abd"}, "abc"), ({"x-fairlead-csrf": "é"}, "abc")):
        with pytest.raises(Denied):
            check_csrf(headers, expected)


def test_only_json_is_a_body() -> None:
    check_json({"content-type": "Application/JSON; charset=utf-8"})
    with pytest.raises(Denied):
        check_json({"content-type": "text/plain"})


def begin(logins: Logins, number: int, now_s: float = 0.0, user: str = "ann") -> None:
    logins.begin(user, token=f"token {number}", csrf="c", proof="p", now_s=now_s)


def test_a_login_lasts_as_long_as_it_is_used_and_not_for_ever() -> None:
    logins = Logins(10.0, longest_s=25.0)
    begin(logins, 1)
    assert logins.find("token 1", 9.0) is not None
    assert logins.find("token 1", 18.0) is not None
    assert logins.find("token 1", 25.5) is None
    begin(logins, 2, 30.0)
    assert logins.find("token 2", 41.0) is None
    assert len(logins) == 0


def test_logins_are_bounded_and_those_used_longest_ago_go_first() -> None:
    logins = Logins(100.0, most=3, per_user=2)
    begin(logins, 1)
    begin(logins, 2)
    logins.find("token 1", 1.0)
    begin(logins, 3, 2.0)
    assert logins.find("token 2", 2.0) is None
    begin(logins, 4, 2.0, "bob")
    begin(logins, 5, 2.0, "eve")
    assert len(logins) == 3


def test_logins_end_with_their_user_his_password_or_his_wish() -> None:
    logins = Logins(100.0)
    begin(logins, 1)
    begin(logins, 2, user="bob")
    login = logins.find("token 1", 0.0)
    assert login in logins
    logins.keep({"ann": "another", "bob": "p"})
    assert login not in logins
    assert logins.find("token 2", 0.0) is not None
    logins.end("token 2")
    assert logins.find("token 2", 0.0) is None
    assert logins.find("", 0.0) is None


RULES = Rules(
    {
        "root": Rights(admin=("_ADMIN",), send=()),
        "clerk": Rights(send=("orders.>",), consume=(), browse=("orders.in",), create=(), admin=()),
        "free": Rights(),
        "keeper": Rights(send=(), consume=(), browse=(), create=(), admin=("orders.>",)),
    }
)


@pytest.mark.parametrize(
    ("user", "right", "name", "answer"),
    [
        ("root", "admin", "", True),
        ("root", "browse", "any", True),
        ("root", "create", "any", True),
        ("root", "see", "_DMQ", True),
        ("root", "send", "any", False),
        ("clerk", "admin", "", False),
        ("clerk", "send", "orders.x", True),
        ("clerk", "send", "other", False),
        ("clerk", "browse", "orders.in", True),
        ("clerk", "browse", "orders.out", False),
        ("clerk", "see", "orders.out", True),
        ("clerk", "see", "other", False),
        ("clerk", "create", "orders.x", False),
        ("clerk", "user", "", True),
        ("free", "admin", "", False),  # no list is not a right to the server's own names
        ("free", "send", "any", True),
        ("free", "see", "_LOG", False),
        ("keeper", "admin", "orders.in", True),
        ("keeper", "browse", "orders.in", True),
        ("keeper", "admin", "other", False),
        ("keeper", "admin", "", False),
        ("keeper", "send", "orders.in", False),
        ("stranger", "see", "any", False),
        ("stranger", "anybody", "", True),
    ],
)
def test_nobody_may_more_than_as_a_client(user: str, right: authority.Right, name: str, answer: bool) -> None:
    assert authority.may(RULES, user, right, name) is answer
    if answer:
        authority.check(RULES, user, right, name)
    else:
        with pytest.raises(NotAllowed):
            authority.check(RULES, user, right, name)


def test_without_users_everything_is_allowed() -> None:
    assert authority.is_admin(Rules.open(), "")
    assert authority.rights_of(Rules.open(), "", "orders") == ["send", "consume", "create", "browse", "admin"]
