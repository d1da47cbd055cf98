"""Who somebody is, once that has been shown: the answer of every way to log in, and all that rules are asked about.

The groups are those the proof itself named (a claim of a token, an organisational unit of a certificate); what the
users file says about a name is added by the rules, since it can change while a connection lives.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

How = Literal["anonymous", "password", "certificate", "token", "inside"]
"""By what it was shown. `inside`: a program of the server itself, see `fairlead.security.inside`."""
USER_BYTES_MAX: Final = 64
GROUPS_MAX: Final = 64
ANONYMOUS: Final = "anonymous"


class Identity(NamedTuple):
    """A user as one connection has shown to be; a renewed proof gives a new one."""

    user: str
    groups: tuple[str, ...] = ()
    tenant: str = ""
    how: How = "password"
    expires_s: float | None = None  # seconds since 1970; None: as long as the connection


NOBODY = Identity("", how="anonymous")
"""A client that gave no name, where those are let in."""


class NoIdentity(ValueError):
    """A proof that is no proof of anybody. The text is for the server's log: whoever showed it is not told why."""


def may_be_named(name: str) -> bool:
    """Can others vouch for somebody of this name? Not for the server's own programs, nor for clients without one."""
    return (
        0 < len(name.encode("utf-8", "replace")) <= USER_BYTES_MAX
        and name.isprintable()
        and name == name.strip()
        and not name.startswith("_")
        and name != ANONYMOUS
    )


def named(name: object, what: str) -> str:
    """The name, if it can be that of a user, group or tenant of somebody who comes from outside; or NoIdentity."""
    if not isinstance(name, str) or not may_be_named(name):
        raise NoIdentity(f"{what} is no name that can be used here: {str(name)[:80]!a}")
    return name
