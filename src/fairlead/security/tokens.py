"""Whom a token (JWT) stands for. PyJWT checks signature and claims; here is which keys and algorithms it may use.

Whoever shows a token that is not accepted hears one sentence, whatever is wrong with it; `NoIdentity` is for the log.
A token is its bearer's until it expires: it can be shown again, and is by every reconnect. So it is taken over TLS or
from this host only, like a password.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead.security.identity import GROUPS_MAX, Identity, NoIdentity, named
from fairlead.security.keysets import ALGORITHMS, KeySet
from fairlead.wire.handshake import TOKEN_MAX

__all__ = ["Terms", "UnknownKey", "identity_of", "said_subject"]

HEADER_MAX: Final = 2048
TRIES_MAX: Final = 8  # keys one token is tried with
SUBJECT_SHOWN: Final = 64


class UnknownKey(NoIdentity):
    """No key of that name is known; there may be a newer set of them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a token must say to be accepted from one issuer, and which claims name whom."""

    issuer: str = ""
    audiences: tuple[str, ...] = ()  # one of them must be named; none: any will do
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_s: float = 30.0
    user_claim: str = "sub"
    groups_claim: str = "groups"
    tenant_claim: str = ""


def identity_of(token: str, keys: KeySet, terms: Terms) -> Identity:
    """Who it is, at this moment; NoIdentity says why nobody, UnknownKey that newer keys may help."""
    head = _head(token)
    algorithm, kid = head.get("alg"), head.get("kid")
    if not isinstance(algorithm, str) or algorithm not in terms.algorithms or algorithm not in ALGORITHMS:
        raise NoIdentity(f"its algorithm {str(algorithm)[:40]!a} is not one of {', '.join(terms.algorithms)}")
    if not isinstance(kid, str | None):
        raise NoIdentity("the name of its key is no text")
    candidates = keys.candidates(kid, algorithm)
    if not candidates:
        raise UnknownKey(f"there is no {algorithm} key {str(kid or '')[:80]!a}")
    claims = _verified(token, algorithm, [key.material for key in candidates[:TRIES_MAX]], terms, kid)
    return _identity(claims, terms)


def said_subject(token: str) -> str:
    """Whom it names, unchecked: good for counting attempts and for nothing else. Empty if that cannot be read."""
    try:
        _, said, _ = token.split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)), type=dict[str, Any])
    except (ValueError, RecursionError):  # whatever it is, it is no token
        return ""
    return str(claims.get("sub", ""))[:SUBJECT_SHOWN]


def _head(token: str) -> dict[str, Any]:
    if not token.isascii() or len(token) > TOKEN_MAX:
        raise NoIdentity("it is no token: not text of the usual length")
    if len(token.partition(".")[0]) > HEADER_MAX:
        raise NoIdentity("it is no token: its header is too long")
    import jwt  # with its cryptography it takes a third of a manager's memory, and few managers see a token

    try:
        head = jwt.get_unverified_header(token)
    except (jwt.exceptions.PyJWTError, ValueError, RecursionError) as error:
        raise NoIdentity(f"it is no token: {_short(error)}") from None
    if "crit" in head:  # RFC 7515, section 4.1.11: what is not understood must not be let pass
        raise NoIdentity("it has critical header fields that are not understood")
    return head


def _verified(token: str, algorithm: str, keys: list[Any], terms: Terms, kid: str | None) -> dict[str, Any]:
    import jwt

    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(terms.audiences) or None,
                issuer=terms.issuer or None,
                leeway=terms.leeway_s,
                options={
                    "require": ["exp", terms.user_claim],
                    "verify_aud": bool(terms.audiences),
                    "verify_iss": bool(terms.issuer),
                },
            )
        except jwt.exceptions.InvalidSignatureError:
            continue
        except (jwt.exceptions.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise NoIdentity(f"{type(error).__name__}: {_short(error)}") from None
        return claims
    text = f"its signature was not made with a key that is known (kid {str(kid or '')[:80]!a})"
    raise UnknownKey(text) if kid is None else NoIdentity(text)


def _identity(claims: dict[str, Any], terms: Terms) -> Identity:
    user = named(claims.get(terms.user_claim), f"claim {terms.user_claim!r}")
    said = claims.get(terms.groups_claim, []) if terms.groups_claim else []
    groups = [said] if isinstance(said, str) else said
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
        raise NoIdentity(f"claim {terms.groups_claim!r} is no list of up to {GROUPS_MAX} groups")
    tenant = claims.get(terms.tenant_claim) if terms.tenant_claim else None
    try:
        expires_s = msgspec.convert(claims["exp"], float, strict=False) + terms.leeway_s
    except (msgspec.ValidationError, OverflowError):
        raise NoIdentity("claim 'exp' is no time") from None
    return Identity(
        user,
        tuple(dict.fromkeys(named(group, f"a group of claim {terms.groups_claim!r}") for group in groups)),
        "" if tenant is None else named(tenant, f"claim {terms.tenant_claim!r}"),
        "token",
        expires_s,
    )


def _short(error: Exception) -> str:
    return str(error)[:160]
