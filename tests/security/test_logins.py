"""`security/logins.py`: the whole table of what a CONNECT proves."""

from __future__ import annotations

import itertools

import pytest

from fairlead.security.identity import NOBODY, Identity
from fairlead.security.logins import Admit, Check, Claim, Policy, Refuse, agreed, decide

ANN = Identity("ann", ("traders",), how="certificate", expires_s=200.0)
CLOSED = Policy(anonymous=False, passwords=True, tokens=True, certificates="ask")
OPEN = Policy(anonymous=True, passwords=False, tokens=False)


def code(answer: object) -> str:
    assert isinstance(answer, Refuse)
    return answer.code


def test_where_nothing_is_asked_for_everybody_gets_in_as_nobody() -> None:
    assert decide(OPEN, Claim()) == Admit(NOBODY)
    assert decide(OPEN, Claim(password="of nobody")) == Admit(NOBODY)
    assert code(decide(OPEN, Claim("ann", "x"))) == "bad-credentials"


def test_a_certificate_is_a_login_of_its_own() -> None:
    assert decide(CLOSED, Claim(shown=ANN)) == Admit(ANN)
    assert decide(CLOSED, Claim("ann", shown=ANN)) == Admit(ANN)
    assert decide(CLOSED, Claim("ann", "pw", shown=ANN)) == Check("password")
    assert code(decide(CLOSED, Claim("bob", "pw", shown=ANN))) == "bad-credentials"
    assert code(decide(CLOSED, Claim("bob", shown=ANN))) == "bad-credentials"


def test_passwords_and_tokens_are_checked_over_safe_lines_only() -> None:
    assert decide(CLOSED, Claim("ann", "pw")) == Check("password")
    assert decide(CLOSED, Claim(token="t")) == Check("token")
    assert code(decide(CLOSED, Claim("ann", "pw", may_send_secrets=False))) == "not-allowed"
    assert code(decide(CLOSED, Claim(token="t", may_send_secrets=False))) == "not-allowed"
    assert code(decide(CLOSED, Claim("ann", "pw", "t"))) == "bad-request"
    assert code(decide(OPEN, Claim(token="t"))) == "bad-credentials"
    assert code(decide(CLOSED, Claim())) == "bad-credentials"


@pytest.mark.parametrize("user", ["", "ann"])
@pytest.mark.parametrize("password", ["", "pw"])
@pytest.mark.parametrize("token", ["", "t"])
def test_where_certificates_are_required_nothing_else_gets_in(user: str, password: str, token: str) -> None:
    for anonymous, passwords, tokens in itertools.product((True, False), repeat=3):
        policy = Policy(anonymous, passwords, tokens, "require")
        assert code(decide(policy, Claim(user, password, token))) == "bad-credentials"


def test_every_claim_has_an_answer_and_nobody_is_admitted_unproven() -> None:
    flags = (True, False)
    for anonymous, passwords, tokens, safe in itertools.product(flags, flags, flags, flags):
        for mode, user, password, token, shown in itertools.product(
            ("off", "ask", "require"), ("", "ann", "bob"), ("", "pw"), ("", "t"), (None, ANN)
        ):
            answer = decide(Policy(anonymous, passwords, tokens, mode), Claim(user, password, token, shown, safe))  # type: ignore[arg-type]
            if isinstance(answer, Admit):
                assert answer.identity == ANN if shown else (answer.identity == NOBODY and anonymous and not user)
            if isinstance(answer, Check):
                assert safe
                assert token if answer.what == "token" else (password or not shown)


def test_two_proofs_must_be_of_the_same_user() -> None:
    token = Identity("ann", ("admins",), "acme", "token", 100.0)
    assert agreed(Claim(), token) == token
    assert code(agreed(Claim("bob"), token)) == "bad-credentials"
    assert code(agreed(Claim(shown=ANN), token._replace(user="bob"))) == "bad-credentials"
    both = agreed(Claim(shown=ANN), token)
    assert both == Identity("ann", ("admins", "traders"), "acme", "token", 100.0)
    assert agreed(Claim("ann", shown=ANN), Identity("ann")) == ANN


def test_a_claim_shows_no_secret() -> None:
    assert "secret" not in repr(Claim("ann", "secret", "secret"))
