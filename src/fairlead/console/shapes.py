"""What all answers of the admin API share: the words they are made of, problems, and who is asking.

Where a name ends in `_ms` it is milliseconds: since 1970 if it is a moment (`when_ms`, `opened_ms`), else a length of
time (`pause_ms`, `oldest_ms`). Rates are per second, and null until two samples are known.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Level = Literal["debug", "info", "warning", "error"]
Rate = Annotated[float, Meta(ge=0)] | None


class Problem(Struct, kw_only=True):
    """What went wrong, as RFC 9457 has it (application/problem+json)."""

    type: str  # `about:blank`, or the place of the code in docs/errors.md
    title: str  # the same for every problem of this code
    status: int
    detail: str  # a sentence one can act on
    code: str  # the stable code of docs/errors.md, such as `no-destination`


class Done(Struct, kw_only=True):
    """It was done."""

    ok: Literal[True] = True


class Counted(Struct, kw_only=True):
    """It was done to so many messages."""

    messages: Count
    more: bool = False  # there are more: say it again


class Login(Struct, kw_only=True, forbid_unknown_fields=True):
    user: Annotated[str, Meta(min_length=1, max_length=256)]
    password: Annotated[str, Meta(max_length=1024)]


class Me(Struct, kw_only=True):
    """Who is asking, and what the page may offer him."""

    user: str  # empty: nobody has to log in here
    open: bool  # there are no users: whoever reaches this console may do everything
    logged_in: bool
    admin: bool  # may see the whole server and change it
    csrf: str  # to be sent as X-Fairlead-CSRF with whatever changes something; empty: log in first
    expires_ms: int | None  # when the session ends; null: it does not
    version: str
    node: str  # of a cluster; empty: a single server
