"""Who takes part: sessions, their producers and their consumers, as a message manager knows them.

All three are transient but for a session's id, incarnation and accepted send numbers, which the journal keeps. A handle
is a number of a connection: what a client writes into the `number` of a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination

AckMode = Literal["auto", "client", "dups-ok", "individual", "transacted"]


@dataclass(slots=True, eq=False)
class Line:
    """One client connection, as the links to the managers tell of it."""

    link: int  # which manager
    index: int
    uid: int
    user: str = ""
    client: str = ""  # type/instance
    handles: dict[int, Producer | Consumer] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    next_handle: int = 1


@dataclass(slots=True, eq=False)
class Session:
    """One life of a session; `line` is None while it waits to be resumed."""

    id: bytes  # 20 bytes
    number: int  # on its line
    incarnation: int
    ack: AckMode
    line: Line | None
    client: str = ""  # part of the name of its durable subscriptions
    accepted: dict[int, int] = field(default_factory=dict)  # destination number -> last accepted send number
    producers: dict[int, Producer] = field(default_factory=dict)  # by destination number
    consumers: dict[int, Consumer] = field(default_factory=dict)  # by handle
    id_first: int = 0  # its block of message id numbers
    id_last: int = 0
    lost_ms: int = 0  # since when nobody holds it


@dataclass(slots=True, eq=False)
class Producer:
    """A session's way to send to one destination."""

    handle: int
    session: Session
    destination: Destination
    told_blocked: bool = False


@dataclass(slots=True, eq=False)
class Consumer:
    """A session's way to receive from one destination, through one of its cursors."""

    handle: int
    session: Session
    destination: Destination
    cursor: int = 0  # number of the cursor: 0 is a queue's own
    selector: Callable[[bytes], bool | None] | None = None  # over the header section and fixed facts, see cluster/select.py
    selector_text: str = ""
    no_local: bool = False
    exclusive: bool = False
    browse: bool = False  # looks without locking; ends at the last message there was
    messages: int = 0  # credit left
    bytes: int = 0
    paused: bool = False  # the client said stop
    held: int = 0  # messages handed out and not settled
