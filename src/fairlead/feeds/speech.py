"""Words as bytes and back, by who speaks to whom: a word that is not for the hearer's ears is as wrong as garbage."""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from fairlead.errors import RemoteProtocolError
from fairlead.feeds import words

__all__ = [
    "ANY_LINK",
    "FROM_ADMINISTRATION_TO_ADAPTER",
    "FROM_ADMINISTRATION_TO_CLIENT",
    "FROM_ADMINISTRATION_TO_OPERATOR",
    "TO_ADAPTER",
    "TO_ADMINISTRATION",
    "TO_CLIENT",
    "AdapterHears",
    "AdministrationHears",
    "ClientHears",
    "Hearing",
    "LinkHears",
    "ToldAdapter",
    "ToldClient",
    "ToldOperator",
    "decode_admin",
    "encode",
]

AdapterHears: TypeAlias = (
    words.Hello | words.LinkHello | words.Start | words.Stop | words.Fill | words.SnapshotAsk | words.FetchAdmin
)
"""On a line, until a LinkHello makes a link of it."""

ClientHears: TypeAlias = (
    words.Welcome
    | words.Refusal
    | words.Beat
    | words.Missed
    | words.Unavailable
    | words.SnapshotPart
    | words.Fetched
    | words.Closing
)

LinkHears: TypeAlias = (
    words.Welcome
    | words.Refusal
    | words.Beat
    | words.AskAnchor
    | words.Anchor
    | words.Announce
    | words.Decided
    | words.Final
    | words.AskedAdmin
    | words.SnapshotAsk
    | words.SnapshotPart
    | words.Fill
    | words.FetchAdmin
    | words.Fetched
    | words.Unavailable
    | words.Closing
)
"""Either side of a link, once LinkHello was said."""

AdministrationHears: TypeAlias = (
    words.Register
    | words.Report
    | words.Decided
    | words.Refusal
    | words.Subscribe
    | words.Renew
    | words.ClientReport
    | words.Order
)
ToldAdapter: TypeAlias = (
    words.Registered | words.Role | words.Admit | words.Revoke | words.SendAdmin | words.Refusal | words.Closing
)
ToldClient: TypeAlias = words.Brokered | words.Notice | words.Revoked | words.Refusal | words.Closing
ToldOperator: TypeAlias = words.StreamFacts | words.Refusal

_Heard = TypeVar("_Heard")

_to_msgpack = msgspec.msgpack.Encoder()


def encode(word: msgspec.Struct) -> bytes:
    """A word (or `words.Admin`, the body of an ADMIN record) as msgpack."""
    return _to_msgpack.encode(word)


class Hearing(Generic[_Heard]):
    """Makes words of bytes somebody sent; RemoteProtocolError if they are none, or not meant for this hearer."""

    __slots__ = ("_decoder", "_who")

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Heard], who: str) -> None:
        self._decoder = decoder
        self._who = who

    def decode(self, data: bytes | bytearray | memoryview) -> _Heard:
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"This is no word {self._who} understands: {error}.") from None


TO_ADAPTER: Final = Hearing[AdapterHears](msgspec.msgpack.Decoder(AdapterHears), "an adapter")
TO_CLIENT: Final = Hearing[ClientHears](msgspec.msgpack.Decoder(ClientHears), "a client on a line")
ANY_LINK: Final = Hearing[LinkHears](msgspec.msgpack.Decoder(LinkHears), "an adapter on a link")
TO_ADMINISTRATION: Final = Hearing[AdministrationHears](
    msgspec.msgpack.Decoder(AdministrationHears), "the stream administration"
)
FROM_ADMINISTRATION_TO_ADAPTER: Final = Hearing[ToldAdapter](
    msgspec.msgpack.Decoder(ToldAdapter), "an adapter takes from the administration and"
)
FROM_ADMINISTRATION_TO_CLIENT: Final = Hearing[ToldClient](
    msgspec.msgpack.Decoder(ToldClient), "a client takes from the administration and"
)
FROM_ADMINISTRATION_TO_OPERATOR: Final = Hearing[ToldOperator](
    msgspec.msgpack.Decoder(ToldOperator), "an operator takes from the administration and"
)

_ADMIN: Final = Hearing[words.Admin](msgspec.msgpack.Decoder(words.Admin), "a reader of administrative records")


def decode_admin(body: bytes | bytearray | memoryview) -> words.Admin:
    """The body of an ADMIN record; RemoteProtocolError."""
    return _ADMIN.decode(body)
