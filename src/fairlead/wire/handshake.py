"""What the two sides tell each other at the beginning, and when a client is asked to move: JSON, checked here.

Unknown fields are let pass, so that a newer peer can say more than an older one understands.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fairlead.errors import RemoteProtocolError
from fairlead.wire.kinds import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, VERSION

__all__ = ["TOKEN_MAX", "Confirm", "Connect", "GoAway", "Welcome", "decode", "encode", "is_name"]

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029/]{1,64}")
_SHOWN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")

U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
U64 = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Text = Annotated[str, Meta(max_length=1024)]
TOKEN_MAX = 8192  # half of what a connection may say before it is welcome
Token = Annotated[str, Meta(max_length=TOKEN_MAX)]


def is_name(text: str) -> bool:
    """May this be the type or instance of a client? 1 to 64 characters without control characters or `/`."""
    return _NAME.fullmatch(text) is not None


class Connect(Struct, frozen=True, kw_only=True):
    """Who the client is, and how it wants to be treated."""

    type: str
    instance: str
    version: U32 = VERSION
    org: Text = ""
    user: Text = ""
    password: Text = ""
    token: Token = ""
    credit: U32 = 0
    keep_alive_s: Seconds = 30
    resume: Text | UnsetType = UNSET
    software: Text = ""

    def __post_init__(self) -> None:
        for name in (self.type, self.instance):
            if not is_name(name):
                raise ValueError(f"{name[:80]!a} is not 1 to 64 characters without control characters or '/'")
        for text in (self.org, self.software):  # people get to see these in tables and logs
            if not _SHOWN.fullmatch(text):
                raise ValueError(f"{text[:80]!a} holds control characters")

    def __repr__(self) -> str:
        return f"Connect({self.type}/{self.instance}, user {self.user!r})"  # whatever else it says is a secret


class Confirm(Struct, frozen=True, kw_only=True):
    """Who the server is, and what it takes."""

    uid: U64
    server: str = ""
    version: U32 = VERSION
    software: str = ""
    frame_max: Annotated[int, Meta(ge=1024)] = FRAME_BYTES_MAX
    body_max: Annotated[int, Meta(ge=0)] = BODY_BYTES_MAX
    header_max: Annotated[int, Meta(ge=64)] = HEADER_BYTES_MAX
    auth: list[str] = []


class Welcome(Struct, frozen=True, kw_only=True):
    """The connection is live."""

    uid: U64
    user: str = ""
    keep_alive_s: Seconds = 30
    resumed: bool = False


class GoAway(Struct, frozen=True, kw_only=True):
    """Please move to another connection, with this token, in this time; or to another server (`host:port`).

    `renew`: because the login of this one is about to expire; who has no fresh one may as well stay.
    """

    token: Annotated[str, Meta(min_length=1, max_length=1024)]
    within_s: Seconds = 30
    elsewhere: Annotated[list[Text], Meta(max_length=16)] = []
    renew: bool = False


S = TypeVar("S", bound=Struct)
_DECODERS: dict[type[Struct], msgspec.json.Decoder[Struct]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Connect, Confirm, Welcome, GoAway)
}


def encode(said: Struct) -> bytes:
    return msgspec.json.encode(said)


def decode(kind: type[S], body: bytes) -> S:
    """Raise RemoteProtocolError unless `body` is the JSON of such a thing."""
    try:
        said = _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.__name__.upper()} cannot be read: {error}") from None
    assert isinstance(said, kind)
    return said
