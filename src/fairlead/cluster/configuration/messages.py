"""What nodes say to each other on the port `config`: who holds which files, and the vote on the next settings.

A settings document travels in its canonical form. `slot` is the revision a vote is about; a ballot is a round and the
name of the node that began it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from fairlead.cluster.configuration.documents import SETTINGS_BYTES_MAX

Ballot = tuple[int, str]
NONE: Final[Ballot] = (0, "")
HISTORY_MAX: Final = 64

Word = Annotated[str, Meta(max_length=128)]
Digest = Annotated[str, Meta(max_length=64)]
Data = Annotated[bytes, Meta(max_length=SETTINGS_BYTES_MAX)]
Round = Annotated[int, Meta(ge=0, le=1 << 60)]


class Claim(Struct, tag="claim", frozen=True, kw_only=True):
    """What a node has. `decided`: by vote or taken over, not edited by hand. `answer`: tell me yours."""

    kind: Word
    essential: Digest
    revision: Round
    digest: Digest
    history: Annotated[list[Digest], Meta(max_length=HISTORY_MAX)] = []
    decided: bool = False
    checked: bool = False
    slot: Round = 0  # the highest revision it has voted on
    remembers: bool = False  # it has every vote it ever gave
    machine: Word = ""
    buses: Annotated[list[Word], Meta(max_length=64)] = []
    groups: Annotated[list[Word], Meta(max_length=256)] = []
    answer: bool = False


class Fetch(Struct, tag="fetch", frozen=True):
    """Send me the settings of this digest."""

    digest: Digest


class Document(Struct, tag="document", frozen=True):
    """Here they are, with the digests of those before them."""

    data: Data
    history: Annotated[list[Digest], Meta(max_length=HISTORY_MAX)]


class Prepare(Struct, tag="prepare", frozen=True):
    """Will you promise to accept nothing older for this revision?"""

    slot: Round
    ballot: tuple[Round, Word]


class Promise(Struct, tag="promise", frozen=True):
    """I will; and this is what I accepted for it before, if anything."""

    slot: Round
    ballot: tuple[Round, Word]
    accepted: tuple[Round, Word] = NONE
    data: Data = b""


class Accept(Struct, tag="accept", frozen=True):
    """Let this be the settings of that revision."""

    slot: Round
    ballot: tuple[Round, Word]
    data: Data


class Accepted(Struct, tag="accepted", frozen=True):
    """Durably noted."""

    slot: Round
    ballot: tuple[Round, Word]


class Refuse(Struct, tag="refuse", frozen=True):
    """I have promised this ballot to somebody else, or do not vote on that revision, for this reason."""

    slot: Round
    ballot: tuple[Round, Word]
    promised: tuple[Round, Word]
    reason: Annotated[str, Meta(max_length=400)] = ""


class Decided(Struct, tag="decided", frozen=True):
    """A majority has accepted: these are the settings now."""

    data: Data
    history: Annotated[list[Digest], Meta(max_length=HISTORY_MAX)]


Message = Claim | Fetch | Document | Prepare | Promise | Accept | Accepted | Refuse | Decided

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message | None:
    """None: not one of ours, whoever sent it."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
