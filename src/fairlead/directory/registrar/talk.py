"""What a client and its broker's registrar say to each other (docs/directory.md, section 4)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from fairlead.directory.rows import AppKind, Link
from fairlead.errors import BadParameter

APP_PATTERN: Final = r"^[A-Za-z0-9._\-/:]{1,200}$"  # `app.NAME` has to be the name of a queue
AUTHENTICATION: Final = "authentication"
WRONG: Final = "Authentication failed: the application name, user id or password is wrong."
"""The one text for a wrong name, a wrong user and a wrong password (DIR-24)."""
FULL: Final = "full"
ROUTE_TO_BROKER: Final = "@"  # begins a route to a broker itself, where an answer goes


class Register(Struct, frozen=True, kw_only=True):
    """The first thing a connection says."""

    app: Annotated[str, Meta(pattern=APP_PATTERN)]
    identity: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    kind: AppKind = "dynamic"
    client: Annotated[str, Meta(max_length=255)] = ""
    mode: Literal["synchronous", "asynchronous"] = "asynchronous"
    secure: bool = False
    cluster: Annotated[str, Meta(max_length=255)] = ""
    reservation: Annotated[str, Meta(max_length=255)] = ""

    def link(self, broker: str, user: str) -> Link:
        return Link(
            identity=self.identity,
            broker=broker,
            client=self.client,
            user=user,
            kind=self.mode,
            secure=self.secure,
            cluster=self.cluster,
        )


class Wish(Struct, frozen=True, kw_only=True):
    """What it says later: one of these."""

    kind: AppKind | None = None
    deregister: Literal["refuse", "close"] | None = None
    route: Annotated[str, Meta(max_length=256)] | None = None
    number: int = 0


_register = msgspec.json.Decoder(Register)
_wish = msgspec.json.Decoder(Wish)
_encode = msgspec.json.Encoder().encode


def read_register(body: bytes) -> Register:
    """BadParameter if it is none."""
    try:
        return _register.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadParameter(f"A connection begins by registering: {fault}.") from None


def read_wish(body: bytes) -> Wish:
    try:
        return _wish.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadParameter(f"The registrar does not understand this: {fault}.") from None


def ok(**facts: Any) -> bytes:
    return _encode({"ok": True, **facts})


def labelled(label: str) -> bytes:
    return _encode({"label": label})


def refusal(code: str, text: str) -> bytes:
    return _encode({"error": {"code": code, "text": text}})


def closed(text: str) -> bytes:
    return _encode({"closed": text})


def move() -> bytes:
    return _encode({"move": True})


def route(wish: Wish, **answer: Any) -> bytes:
    return _encode({"route": wish.route, "number": wish.number, **answer})
