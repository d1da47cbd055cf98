"""What a client may ask in a COMMAND: one struct per `do` (docs/durable.md, section 2), checked first."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from fairlead.cluster.parties import AckMode
from fairlead.errors import LocalProtocolError

Name = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=8192)]
Label = Annotated[str, Meta(min_length=1, max_length=512)]
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


TransactionId = Annotated[str, Meta(pattern="^[0-9a-f]{56}$")]
"""Session id and transaction number of the decider's part, hex."""
Group = Annotated[str, Meta(min_length=1, max_length=64)]


class Prepare(Commit, kw_only=True):
    """By the agent, for a client."""

    id: TransactionId
    decider: Group
    groups: Annotated[list[Group], Meta(min_length=1, max_length=128)]


class ById(Struct, kw_only=True):
    """`outcome` by a client that knows the id."""

    id: TransactionId


class OfDecision(Struct, kw_only=True):
    """`final`, `abandon` and `outcome` about the link, by the agent."""

    id: TransactionId
    decider: Group


class Settle(Struct, kw_only=True):
    """What groups say to each other about a transaction."""

    do: Literal["ask", "decide", "done"]
    id: TransactionId
    outcome: Literal["", "committed", "rolled-back"] = ""


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
    own: Number = 0
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


class Positions(Struct, kw_only=True):
    destination: Annotated[str, Meta(max_length=512)]
    ms: Number | None = None


class Plan(OfDestination, kw_only=True):
    first: Number
    messages: Number = 0  # 0: no limit
    bytes: Number = 0


class Where(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a scan shows of what it reads; times are from one to before the other."""

    keys: Annotated[list[Annotated[str, Meta(max_length=65_535)]], Meta(max_length=10_000)] | None = None
    priority: tuple[Annotated[int, Meta(ge=0, le=9)], Annotated[int, Meta(ge=0, le=9)]] = (0, 9)
    arrived_ms: tuple[Number, Number] = (0, 2**63 - 1)
    sent_ms: tuple[Number, Number] = (0, 2**63 - 1)


class Scan(OfDestination, kw_only=True):
    first: Number
    beyond: Number
    columns: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    cursor: Name = ""
    waiting: bool = False
    where: Where | None = None
    rows: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    bytes: Annotated[int, Meta(ge=65_536, le=16 << 20)] = 4 << 20
    jump: bool = False


class OfCursor(OfDestination, kw_only=True):
    """`cursor-release`."""

    name: Name


class OpenCursor(OfCursor, kw_only=True):
    start: Start = "new"
    create: bool = False


class Reserve(OfCursor, kw_only=True):
    start: Number
    messages: Number = 0  # 0: no limit
    bytes: Number = 0


class CommitCursor(OfCursor, kw_only=True):
    end: Number


class OpenStage(Struct, kw_only=True):
    """`stage`."""

    destination: Name
    kind: str = ""
    create: bool = False
    parameters: dict[str, Any] = {}
    stage: Label
    query: Label
    batch: Number


class Publish(Struct, kw_only=True):
    query: Label
    batch: Number
    stages: Annotated[list[tuple[Label, dict[Name, Number]]], Meta(max_length=10_000)]
    part: Number = 0
    more: bool = False


class Abandon(Struct, kw_only=True):
    query: Label
    batch: Number


T = TypeVar("T", bound=Struct)


def read(request: dict[str, Any], shape: type[T]) -> T:
    """The request in its shape, or LocalProtocolError that names the field at fault."""
    try:
        return msgspec.convert(request, shape)
    except msgspec.ValidationError as fault:
        raise LocalProtocolError(f"The command {request.get('do')!r} cannot be read: {fault}") from None
