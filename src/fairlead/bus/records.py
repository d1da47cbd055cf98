"""What nodes tell each other about themselves. All of it is MessagePack, decoded strictly."""

from __future__ import annotations

from typing import Any

import msgspec

INFO_BYTES_MAX = 1 << 20


class Info(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node about itself and what it sees, sent whenever any of it has changed."""

    since: int  # ranks are given in this order
    buses: list[str]
    channels: list[str]
    tag: dict[str, Any]
    peers: dict[str, str]  # addresses on this bus, by node
    number: int  # of its view
    members: bytes  # which nodes that view has: a digest
    gave_up: bool = False  # it had the receiver in its view and took it out as lost
    stream: bytes = b""  # of its multicasts on this bus
    position: int = 0  # the first number in it that concerns the receiver
    listener: str = ""  # how the receiver is called in it


class Distant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node on another bus, as one that is on both tells of it."""

    node: str
    start: int
    since: int
    buses: list[str]
    channels: list[str]
    tag: dict[str, Any]


class Death(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A keeper about its child."""

    node: str
    start: int


encode = msgspec.msgpack.Encoder().encode
decode_info = msgspec.msgpack.Decoder(Info).decode
decode_distant = msgspec.msgpack.Decoder(list[Distant]).decode
decode_death = msgspec.msgpack.Decoder(Death).decode
