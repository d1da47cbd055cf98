"""What bridges tell each other about servers: an advert says what one server's clients want and whom it is linked to.

Adverts go from bridge to bridge over all servers (`_LINK`), the newest of each server counts. A server's own bridge
speaks for it; for one that has none, the bridge that has been attached there for longest does.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import RemoteProtocolError

Id = Annotated[str, Meta(min_length=1, max_length=64)]


class Advert(Struct, frozen=True, kw_only=True):
    """One server, as the newest word has it."""

    server: Id
    number: Annotated[int, Meta(ge=0)]
    links: list[Id] = []  # the servers whose bridges are attached to it
    parents: list[Id] = []  # those its own bridge reaches
    held: list[Id] = []  # those it has lost a moment ago: broadcasts for them are kept
    subscribed: list[str] = []
    served: dict[str, int] = {}  # topic: receivers
    named: list[str] = []

    def says_more_than(self, other: Advert | None) -> bool:
        """Two bridges may have spoken for one server: all keep the same then, and its speaker says it anew."""
        if other is None or self.number != other.number:
            return other is None or self.number > other.number
        return self != other and _encode(self) > _encode(other)


class Feed(Struct, frozen=True, kw_only=True):
    """A piece of what a server's router says of its clients: INTEREST, docs/protocol.md section 10."""

    whole: bool = False
    done: bool = False
    links: dict[str, str | None] = {}
    subscribed: dict[str, int] = {}
    served: dict[str, int] = {}
    named: dict[str, int] = {}


class Wishes:
    """What one server's clients want, put together from the feed."""

    def __init__(self) -> None:
        self.links: dict[int, str] = {}  # uid: the server whose bridge it is
        self.subscribed: dict[str, int] = {}
        self.served: dict[str, int] = {}
        self.named: dict[str, int] = {}
        self.complete = False

    def take(self, body: bytes) -> None:
        """RemoteProtocolError if it is none."""
        try:
            feed = _FEED.decode(body)
            links = {int(uid): server for uid, server in feed.links.items()}
        except (msgspec.DecodeError, ValueError) as error:
            raise RemoteProtocolError(f"INTEREST cannot be read: {error}") from None
        if feed.whole:
            self.__init__()  # type: ignore[misc]
        self.complete = self.complete or feed.done
        for uid, server in links.items():
            if server is None:
                self.links.pop(uid, None)
            else:
                self.links[uid] = server
        for ours, theirs in (
            (self.subscribed, feed.subscribed),
            (self.served, feed.served),
            (self.named, feed.named),
        ):
            for key, count in theirs.items():
                if count > 0:
                    ours[key] = count
                else:
                    ours.pop(key, None)


_FEED = msgspec.json.Decoder(Feed)
_ADVERTS = msgspec.json.Decoder(list[Advert])
_encode = msgspec.json.Encoder().encode


def encode(adverts: list[Advert]) -> bytes:
    return _encode(adverts)


def decode(body: bytes) -> list[Advert]:
    """RemoteProtocolError if they are none."""
    try:
        return _ADVERTS.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"Adverts cannot be read: {error}") from None
