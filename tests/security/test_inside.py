"""The logins of a server's own programs: nobody else gets in under their names, nor serves their topics."""

from __future__ import annotations

import pytest

from fairlead.broker import attendance
from fairlead.security import inside
from fairlead.security.rules import ACTIONS, REGISTRAR, STREAMS, Rights, Rules

SECRET = b"s" * 32


def test_only_who_knows_the_secret_is_the_registrar() -> None:
    password = inside.password_of(SECRET, inside.REGISTRAR)
    assert inside.is_own(SECRET, inside.REGISTRAR, password)
    assert not inside.is_own(SECRET, "somebody", password)
    assert not inside.is_own(b"t" * 32, inside.REGISTRAR, password)
    for wrong in ("", "\udcff", password + "0"):
        assert not inside.is_own(SECRET, inside.REGISTRAR, wrong)


@pytest.mark.parametrize(
    "rules",
    [
        Rules.open(),
        Rules({"u": Rights(), inside.REGISTRAR: Rights(serve=(), consume=())}),
        attendance.Rules(),
    ],
)
def test_only_the_registrar_serves_its_topic(rules: Rules | attendance.Rules) -> None:
    assert rules.allows(inside.REGISTRAR, "serve", REGISTRAR)
    assert not rules.allows("u", "serve", REGISTRAR)
    assert not rules.allows("", "serve", REGISTRAR)


def test_the_registrar_may_what_it_has_to_whatever_the_users_file_says() -> None:
    rules = Rules({inside.REGISTRAR: Rights(consume=(), send=(), admin=())})
    assert rules.allows(inside.REGISTRAR, "consume", "carry.B")
    assert rules.allows(inside.REGISTRAR, "send", "app.AX")
    assert rules.allows(inside.REGISTRAR, "publish", "_ADMIN")
    assert rules.allows(inside.REGISTRAR, "serve", "_BROKER.A")
    assert not rules.allows(inside.REGISTRAR, "send", "_DMQ")


def test_the_stream_administration_has_a_login_of_its_own_and_only_its_topic() -> None:
    password = inside.password_of(SECRET, inside.STREAMS)
    assert inside.is_own(SECRET, inside.STREAMS, password)
    assert not inside.is_own(SECRET, inside.REGISTRAR, password)
    for rules in (Rules.open(), Rules({"u": Rights(), inside.STREAMS: Rights()})):
        assert rules.allows(inside.STREAMS, "serve", STREAMS)
        assert not rules.allows("u", "serve", STREAMS)
        assert not rules.allows(inside.REGISTRAR, "serve", STREAMS)
        for action in ACTIONS:
            assert not rules.allows(inside.STREAMS, action, "prices")
            assert not rules.allows(inside.STREAMS, action, "_ADMIN")
    assert not attendance.Rules().allows("u", "serve", STREAMS)
    assert Rules({"u": Rights(publish=(), subscribe=())}).allows("u", "publish", STREAMS)


def test_everybody_may_talk_with_it() -> None:
    rules = Rules({"u": Rights(publish=(), subscribe=())})
    assert rules.allows("u", "publish", REGISTRAR)
    assert not rules.allows("nobody", "publish", REGISTRAR)
