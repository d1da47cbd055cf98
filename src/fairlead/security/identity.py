"""Who somebody is, once that has been shown: the answer of every way to log in, and all that rules are asked about.

The groups are those the proof itself named (a claim of a token, an organisational unit of a certificate); what the
users file says about a name is added by the rules, since it can change while a connection lives.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

How = Literal["anonymous", "password", "certificate", "token", "inside"]
"""By what it was shown. `inside`: a program of the server itself, see `fairlead.security.inside`."""


class Identity(NamedTuple):
    """A user as one connection has shown to be; a renewed proof gives a new one."""

    user: str
    groups: tuple[str, ...] = ()
    tenant: str = ""
    how: How = "password"
    expires_s: float | None = None  # seconds since 1970; None: as long as the connection


NOBODY = Identity("", how="anonymous")
"""A client that gave no name, where those are let in."""
