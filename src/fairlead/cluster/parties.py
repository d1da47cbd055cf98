"""Who takes part: sessions, their producers and their consumers, as a message manager knows them.

All three are transient but for a session's id, incarnation and accepted send numbers, which the journal keeps. A handle
is a number of a connection: what a client writes into the `number` of a frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fairlead.cluster.allowances import Allowance
    from fairlead.cluster.deliveries import Taker
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.staged import Stage
    from fairlead.selector import Selector

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
    gone: bool = False  # it ended; nothing new begins on it


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
    id_last: int = 0  # one beyond
    lost_ms: int = 0  # since when nobody holds it
    secret: bytes = b""  # hash of what a client must know to resume it
    user: str = ""
    opened_ms: int = 0
    older_ids: list[tuple[int, int]] = field(default_factory=list)  # blocks given before: first, one beyond
    temporary: set[int] = field(default_factory=set)  # numbers of the destinations that die with it
    stopped: bool = False  # the client asked for no deliveries at all

    def has_ids(self, first: int, count: int) -> bool:
        """Were these message id numbers given to this session (CLU-92)?"""
        beyond = first + count
        return self.id_first <= first <= beyond <= self.id_last or any(
            low <= first <= beyond <= high for low, high in self.older_ids
        )


@dataclass(slots=True, eq=False)
class Producer:
    """A session's way to send to one destination."""

    handle: int
    session: Session
    destination: Destination
    told_blocked: bool = False
    allowances: tuple[Allowance, ...] = ()  # quotas of its user and tenant
    uploads: int = 0  # very large messages of which all is here but not all is on disk; sends wait behind them (CLU-99)


@dataclass(slots=True, eq=False)
class Stager(Producer):
    """A connection's way to fill a stage for one destination. Its session is a stand-in, for the line and the id."""

    stage: Stage = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Consumer:
    """A session's way to receive from one destination, through one of its cursors."""

    handle: int
    session: Session
    destination: Destination
    cursor: int = 0  # number of the cursor: 0 is a queue's own
    selector: Selector | None = None  # compiled when it is attached, see cluster/select.py
    selector_text: str = ""
    no_local: bool = False
    exclusive: bool = False
    browse: bool = False  # looks without locking; ends at the last message there was
    replay: bool = False  # reads again what is kept, without locking; goes on with what comes
    messages: int = 0  # credit left
    bytes: int = 0
    paused: bool = False  # the client said stop
    stalled: bool = False  # its link has no room: nothing more until it drains (CLU-102)
    held: int = 0  # messages handed out and not settled
    own: int = 0  # its number in its session, by its client, the same when it is opened again; 0: not said
    holds: list[tuple[int, int]] | None = None  # opened again: what the application has of before; None: not said
    taker: Taker | None = None  # what is remembered of who got something
