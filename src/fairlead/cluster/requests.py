"""What a client may ask in a COMMAND: one struct per `do` (docs/durable.md, section 2), checked first."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from fairlead.cluster.parties import AckMode
from fairlead.errors import LocalProtocolError

Name = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=8192)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Credit = Annotated[int, Meta(ge=0, le=2**40)]
Start = str | Number | dict[str, Number]
"""Where reading begins: "new", "first", an order number, or {"ms": time}."""


class Resume(Struct, kw_only=True):
    id: str
    secret: str
    incarnation: Number


class OpenSession(Struct, kw_only=True):
    ack: AckMode = "individual"
    resume: Resume | None = None
    client_name: Name = ""


class OfSession(Struct, kw_only=True):
    """`end-session` and `ids`."""

    session: Number


class OfTransaction(Struct, kw_only=True):
    """`rollback` and `outcome`."""

    session: Number
    transaction: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Commit(OfTransaction, kw_only=True):
    sends: dict[str, Number] = {}


class Produce(Struct, kw_only=True):
    session: Number
    destination: Name
    kind: str = ""
    create: bool = False
    parameters: dict[str, Any] = {}


class Consume(Struct, kw_only=True):
    session: Number
    destination: Annotated[str, Meta(max_length=512)]
    kind: str = ""
    create: bool = False
    parameters: dict[str, Any] = {}
    selector: Text = ""
    exclusive: bool = False
    messages: Credit = 0
    bytes: Credit = 0
    durable: Name = ""
    shared: bool = False
    no_local: bool = False
    start: Start = "new"
    browse: bool = False
    replay: Start | None = None
    holds: Annotated[list[tuple[Number, Number]], Meta(max_length=10_000)] | None = None


class OfHandle(Struct, kw_only=True):
    handle: Number


class Flow(Struct, kw_only=True):
    stop: bool
    session: Number | None = None
    handle: Number | None = None


class Unsubscribe(Struct, kw_only=True):
    name: Name
    session: Number | None = None


class Transfer(Struct, kw_only=True):
    session: Number
    producer: Number = 0
    transfer: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    length: Number | None = None
    resume: bool = False
    drop: bool = False  # no message will ever name it


class Temporary(Struct, kw_only=True):
    session: Number
    kind: str = "queue"


class OfDestination(Struct, kw_only=True):
    """`locate` and `schedules`."""

    destination: Name


class Cancel(OfDestination, kw_only=True):
    order: Number


T = TypeVar("T", bound=Struct)


def read(request: dict[str, Any], shape: type[T]) -> T:
    """The request in its shape, or LocalProtocolError that names the field at fault."""
    try:
        return msgspec.convert(request, shape)
    except msgspec.ValidationError as fault:
        raise LocalProtocolError(f"The command {request.get('do')!r} cannot be read: {fault}") from None
