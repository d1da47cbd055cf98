"""What members and votes say to each other, and how it looks on the bus: a tagged array in msgpack.

The records of an Append or a Fetched are not looked into and not copied when they come in: `batch.data` is a view of
the received bytes, good for as long as these are.
"""

from __future__ import annotations

import struct

import msgspec

from fairlead.cluster.replication.log import Batch
from fairlead.cluster.replication.record import ControlRecord
from fairlead.errors import RemoteProtocolError

Runs = tuple[tuple[int, int], ...]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="what"):
    pass


# --- to a vote


class PromiseAsk(_Message, frozen=True, tag=1):
    """A candidate asks for an epoch of its own. `trial`: it only asks whether it would get it."""

    epoch: int
    store: str
    trial: bool = False


class RecordAsk(_Message, frozen=True, tag=2):
    """The holder of the epoch asks to record, anew or again; `start` is its process, `sent` its clock."""

    record: ControlRecord
    sent: float
    start: int


class StepDown(_Message, frozen=True, tag=3):
    """The primary of that epoch serves no more: its lease is over."""

    epoch: int
    store: str


# --- from a vote


class Promised(_Message, frozen=True, tag=4):
    voter: str
    epoch: int
    record: ControlRecord


class Recorded(_Message, frozen=True, tag=5):
    voter: str
    epoch: int
    version: int
    sent: float


class Refused(_Message, frozen=True, tag=6):
    """A vote or a member (`voter` empty) is bound to this higher epoch."""

    voter: str
    epoch: int


# --- between members


class Append(_Message, frozen=True, tag=7):
    """The primary's records from `first` on (none: a sign of life). `oldest`: what is before is only in its state."""

    epoch: int
    record: ControlRecord
    safe: int
    oldest: int
    first: int
    previous: int
    epochs: Runs
    data: memoryview

    @property
    def batch(self) -> Batch:
        return Batch(self.first, self.previous, self.epochs, self.data)


class Stored(_Message, frozen=True, tag=8):
    """So far this store is durable and agrees with the primary; `want` > 0: send from there."""

    epoch: int
    store: str
    upto: int
    want: int


class JoinAsk(_Message, frozen=True, tag=9):
    """A candidate that holds the votes asks a member of the set to take part in the choice."""

    epoch: int


class Joined(_Message, frozen=True, tag=10):
    """Bound to that epoch; so far goes our log."""

    epoch: int
    store: str
    last_epoch: int
    last: int


class FetchAsk(_Message, frozen=True, tag=11):
    """The candidate copies from us what it lacks, if our record before `first` has that epoch."""

    epoch: int
    first: int
    previous: int


class Fetched(_Message, frozen=True, tag=12):
    """Records; or none and `want`: ask from there; 0: what is asked for is only in our state, or all was sent."""

    epoch: int
    store: str
    last_epoch: int
    last: int
    oldest: int
    want: int
    first: int
    previous: int
    epochs: Runs
    data: memoryview

    @property
    def batch(self) -> Batch:
        return Batch(self.first, self.previous, self.epochs, self.data)


class TakeOver(_Message, frozen=True, tag=13):
    """Stand at once: the primary of that epoch has stepped down, or you have what a candidate lacks."""

    epoch: int


class Willing(_Message, frozen=True, tag=14):
    """A vote would promise that epoch, and has promised nothing."""

    voter: str
    epoch: int
    record: ControlRecord


Message = (
    PromiseAsk
    | RecordAsk
    | StepDown
    | Promised
    | Recorded
    | Refused
    | Append
    | Stored
    | JoinAsk
    | Joined
    | FetchAsk
    | Fetched
    | TakeOver
    | Willing
)

PIECE_BYTES = 1 << 14
NOTHING = memoryview(b"")
EMPTY_MARK = msgspec.msgpack.encode(b"")
LONG_MARK = struct.Struct(">BI")  # bin 32

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def encode_pieces(message: Message) -> tuple[bytes | memoryview, ...]:
    """The same bytes in pieces, as a bus takes them: many records are not copied."""
    if not isinstance(message, Append | Fetched) or len(message.data) < PIECE_BYTES:
        return (_encoder.encode(message),)
    head = _encoder.encode(msgspec.structs.replace(message, data=NOTHING))
    # The data is the last field: the mark of an empty one gives way to that of a long one.
    data, whole = message.data, message.data.obj
    plain = whole if type(whole) is bytes and len(whole) == len(data) else data  # `bytes` are not copied by a bus
    return head[: -len(EMPTY_MARK)] + LONG_MARK.pack(0xC6, len(data)), plain


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Raises RemoteProtocolError for what is no message."""
    try:
        message = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a message of a group: {error}") from None
    if isinstance(message, Append | Fetched) and not _is_sound(message):
        raise RemoteProtocolError("the records of a group's message are numbered wrongly")
    return message


def _is_sound(message: Append | Fetched) -> bool:
    if message.first < 1 or message.previous < 0:
        return False
    epoch = message.previous
    for count, following in message.epochs:
        if count < 1 or following < epoch:
            return False
        epoch = following
    return bool(message.epochs) == bool(len(message.data))
