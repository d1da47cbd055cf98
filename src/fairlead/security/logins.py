"""What a CONNECT proves, and what has still to be checked: one table of all ways to log in.

A certificate has been checked by TLS before; passwords and tokens are checked by others, since that takes a while. Who
shows two proofs must be the same by both. Refusals say what a client that belongs here needs to know, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairlead.security.identity import NOBODY, How, Identity

__all__ = ["Admit", "Check", "Claim", "Policy", "Refuse", "agreed", "decide"]

NO_CERTIFICATE = (
    "This server asks for a client certificate: connect with fairleads:// and `certificate=` and `key=` "
    "(--certificate and --certificate-key)."
)
NO_LOGIN = "This server asks for a user and a password, a token or a client certificate."
NO_USERS = "This server has no users; connect without a name."
NO_TOKENS = "This server takes no tokens."
PLAIN = "This server takes {} over TLS only: connect with fairleads://."
BOTH = "Give a password or a token, not both."
OTHER = "The login is another user's than the certificate."


@dataclass(frozen=True, slots=True)
class Policy:
    """How one server lets in. `plain`: may this client send secrets over this line?"""

    anonymous: bool
    passwords: bool  # there are users
    tokens: bool
    certificates: Literal["off", "ask", "require"] = "off"


class Claim(NamedTuple):
    """What a client says, and what TLS has found out about it."""

    user: str = ""
    password: str = ""
    token: str = ""
    shown: Identity | None = None  # by its certificate
    may_send_secrets: bool = True  # over this line

    def __repr__(self) -> str:
        return f"Claim({self.user!r})"  # a secret must not get into a log by way of an error


class Admit(NamedTuple):
    identity: Identity


class Check(NamedTuple):
    what: Literal["password", "token"]


class Refuse(NamedTuple):
    code: str
    text: str


def decide(policy: Policy, claim: Claim) -> Admit | Check | Refuse:
    """Who is it, or what has to be checked to know?"""
    shown = claim.shown
    if policy.certificates == "require" and shown is None:
        return Refuse("bad-credentials", NO_CERTIFICATE)
    if claim.token:
        if claim.password:
            return Refuse("bad-request", BOTH)
        if not policy.tokens:
            return Refuse("bad-credentials", NO_TOKENS)
        return Check("token") if claim.may_send_secrets else Refuse("not-allowed", PLAIN.format("tokens"))
    if shown is not None and claim.user and claim.user != shown.user:
        return Refuse("bad-credentials", OTHER)
    if shown is not None and not claim.password:
        return Admit(shown)
    if not claim.user:
        return Admit(NOBODY) if policy.anonymous and shown is None else Refuse("bad-credentials", NO_LOGIN)
    if not policy.passwords:
        return Refuse("bad-credentials", NO_LOGIN if policy.tokens or policy.certificates != "off" else NO_USERS)
    return Check("password") if claim.may_send_secrets else Refuse("not-allowed", PLAIN.format("passwords"))


def agreed(claim: Claim, proven: Identity) -> Identity | Refuse:
    """After the check: the identity it gives, if nothing else the client says speaks against it."""
    shown = claim.shown
    if claim.user and claim.user != proven.user:
        return Refuse("bad-credentials", "")
    if shown is None:
        return proven
    if shown.user != proven.user:
        return Refuse("bad-credentials", OTHER)
    ends = [one for one in (shown.expires_s, proven.expires_s) if one is not None]
    groups = tuple(dict.fromkeys((*proven.groups, *shown.groups)))
    how: How = "token" if proven.how == "token" else "certificate"
    return Identity(proven.user, groups, proven.tenant, how, min(ends) if ends else None)
