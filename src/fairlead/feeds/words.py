"""What clients, adapters and the stream administration say to each other (docs/feeds.md, sections 3 to 5).

Each is a msgpack map with its name under `say`; fields that are not known are ignored, so that versions can differ.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = [
    "Admin",
    "AdminKind",
    "Admit",
    "Anchor",
    "Announce",
    "AskAnchor",
    "AskedAdmin",
    "Beat",
    "Brokered",
    "ClientReport",
    "Closing",
    "Decided",
    "EXACT_KINDS",
    "FetchAdmin",
    "Fetched",
    "Fill",
    "Final",
    "Hello",
    "LineOffer",
    "LinkHello",
    "Missed",
    "Notice",
    "Order",
    "Placed",
    "Refusal",
    "Register",
    "Registered",
    "Relation",
    "Renew",
    "Report",
    "Revoke",
    "Revoked",
    "Role",
    "SendAdmin",
    "SnapshotAsk",
    "SnapshotPart",
    "Source",
    "Start",
    "Stop",
    "StreamFacts",
    "Subscribe",
    "Unavailable",
    "Welcome",
]

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Placed = tuple[Count, Count, Count]
"""A `records.Place` on the wire: source sequence, part, parts."""
Positions = Annotated[dict[Name, Placed], Meta(max_length=1024)]
"""By source stream id."""

RoleName = Literal["active", "backup"]
AdminKind = Literal["opening", "closing", "phase", "directory", "format", "switch", "entitlement", "text"]
EXACT_KINDS: frozenset[str] = frozenset({"format", "switch"})
"""Synchronised only at their exact place (STR-61)."""


class Word(Struct, tag_field="say", frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation or a line."""


class Admin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an ADMIN record: made by an adapter, without a counterpart in the source (STR-55, STR-68)."""

    id: Name  # unique in the group
    kind: AdminKind
    body: bytes = b""
    intended: Count = 0  # N, if it is displaced (STR-64); 0: it is at its place
    to: str = ""  # of a planned switch: the adapter that is active from N + 1
    epoch: Count = 0  # of a planned switch: the epoch from N + 1


class Relation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one source stream relates to another (STR-44)."""

    kind: Literal["equivalent", "successor", "sibling"]
    of: Name
    offset: int = 0  # equivalent: this source's sequence + offset = the sequence in `of`
    start: Count = 1  # successor: the first sequence of this source


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source stream that goes into an output stream."""

    id: Name
    relations: Annotated[tuple[Relation, ...], Meta(max_length=64)] = ()


# On a line: client to adapter.


class Hello(Word, tag="hello", frozen=True, kw_only=True):
    """The first word of a client on a line. The token is the one it was given with the brokering."""

    stream: Name
    token: Name
    client: Name
    epoch: Count = 0  # the highest the client knows


class Start(Word, tag="start", frozen=True, kw_only=True):
    """Send from here on (STR-34). `positions`: what is after them, or a little more; else see `at`."""

    epoch: Count = 0
    positions: Positions = {}
    at: Literal["positions", "new", "oldest", "number"] = "positions"
    number: Count = 0  # at="number": the first one wanted


class Stop(Word, tag="stop", frozen=True, kw_only=True):
    """Send heartbeats only."""


class Fill(Word, tag="fill", frozen=True, kw_only=True):
    """A range again (STR-14, STR-51): by source position `after` … `to` inclusive, or by number `first` … `last`.

    By position the answer includes all records of the source message `to`: their previous links close the range.
    """

    id: Count
    source: str = ""
    after: Placed = (0, 1, 1)
    to: Count = 0
    first: Count = 0
    last: Count = 0


class SnapshotAsk(Word, tag="snapshot", frozen=True, kw_only=True):
    id: Count


class FetchAdmin(Word, tag="fetch-admin", frozen=True, kw_only=True):
    """An administrative message by its id (STR-67)."""

    id: Count
    admin: Name


# On a line: adapter to client.


class Welcome(Word, tag="welcome", frozen=True, kw_only=True):
    """The line is accepted. `incarnation` changes when the adapter's numbering begins anew."""

    adapter: Name
    stream: Name
    incarnation: Count
    epoch: Count
    role: RoleName
    first: Count  # oldest number in the retained buffer
    last: Count  # newest number
    heartbeat_s: float
    has_snapshots: bool = False


class Beat(Word, tag="beat", frozen=True, kw_only=True):
    """A heartbeat (STR-29)."""

    epoch: Count
    incarnation: Count
    role: RoleName
    last: Count
    positions: Positions = {}
    source_alive: bool = True
    synchronised: bool = True
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)] = ()  # the newest ones, so that a reset needs nobody
    admins: Annotated[tuple[tuple[Name, Name, Placed], ...], Meta(max_length=64)] = ()
    """The newest administrative messages in this stream, and where: a client that comes from another line, and was
    already past such a place there, fetches it (STR-67)."""


class Missed(Word, tag="missed", frozen=True, kw_only=True):
    """The client was so slow that these numbers left the retained buffer before they were sent to it."""

    first: Count
    last: Count


class Unavailable(Word, tag="unavailable", frozen=True, kw_only=True):
    """A Fill, SnapshotAsk or FetchAdmin that cannot be answered (in full: what there was has been sent before)."""

    id: Count
    why: Text
    first: Count = 0  # the oldest number there is


class SnapshotPart(Word, tag="snapshot-part", frozen=True, kw_only=True):
    """The state at `positions`: bodies of the newest record of each key. `is_last` ends it."""

    id: Count
    positions: Positions
    bodies: Annotated[tuple[bytes, ...], Meta(max_length=100_000)] = ()
    keys: Annotated[tuple[bytes, ...], Meta(max_length=100_000)] = ()  # on the link only, for a backup that joins
    is_last: bool = False


class Fetched(Word, tag="fetched", frozen=True, kw_only=True):
    """The administrative message asked for, and the source position before it."""

    id: Count
    admin: Admin
    source: str
    place: Placed


class Refusal(Word, tag="refused", frozen=True, kw_only=True):
    """The line, subscription or registration is not accepted; `code` is that of an error in docs/errors.md."""

    code: Name
    why: Text


class Closing(Word, tag="closing", frozen=True, kw_only=True):
    why: Text


# Between adapters (the link): the backup dials the active one.


class LinkHello(Word, tag="link", frozen=True, kw_only=True):
    stream: Name
    token: Name
    adapter: Name
    incarnation: Count
    epoch: Count


class AskAnchor(Word, tag="ask-anchor", frozen=True, kw_only=True):
    """Which number has this record of yours? Answered when the active has processed it (STR-19)."""

    source: Name
    place: Placed


class Anchor(Word, tag="anchor", frozen=True, kw_only=True):
    """The record at `place` has `number`. Also sent by itself with each heartbeat, as a check.

    `admins`: the administrative messages still outstanding, for a backup that joins (STR-75).
    """

    epoch: Count
    source: str
    place: Placed
    number: Count  # 0: it is no longer in the active's buffer, ask for a later one
    admins: Annotated[tuple[Announce, ...], Meta(max_length=1024)] = ()


class Announce(Word, tag="announce", frozen=True, kw_only=True):
    """The active will send this at number `n` (STR-56). The same id again with a higher `revision` replaces it."""

    epoch: Count
    n: Count
    admin: Admin
    revision: Count = 0


class Decided(Word, tag="decided", frozen=True, kw_only=True):
    """The backup's answer: N, B and T as it saw them (STR-58), and where it sends it."""

    admin: Name
    revision: Count
    n: Count
    b: int
    t: int
    result: Literal["kept", "exact", "displaced", "refused"]
    number: Count = 0  # exact and displaced: where it was sent


class Final(Word, tag="final", frozen=True, kw_only=True):
    """The active has sent it at `n`, there will be no further revision: whoever refused it sends a void (STR-66)."""

    admin: Name
    n: Count


class AskedAdmin(Word, tag="asked-admin", frozen=True, kw_only=True):
    """Administrative messages that were sent while the link was down (STR-70), with their numbers.

    Number 0: a backup was told of it by a former active, or was that itself, and nobody is known to have sent it.
    """

    sent: Annotated[tuple[tuple[int, Admin, str, Placed], ...], Meta(max_length=1024)] = ()


# With the stream administration: adapters.


class Register(Word, tag="register", frozen=True, kw_only=True):
    """An adapter begins (or comes back). `epoch`, `role`, `number` are what it last had, 0 if it is new."""

    stream: Name
    adapter: Name
    incarnation: Count
    address: Name  # HOST:PORT of its lines
    epoch: Count = 0
    role: RoleName = "backup"
    last: Count = 0
    preference: int = 100  # the lower one is promoted first
    threshold: int = 8
    heartbeat_s: float = 0.2
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)] = ()
    schema: Annotated[str, Meta(max_length=65536)] = ""  # of the records, as JSON
    tokens: Annotated[tuple[Name, ...], Meta(max_length=100_000)] = ()  # clients it already serves


class Registered(Word, tag="registered", frozen=True, kw_only=True):
    """The answer to Register; a Role follows."""

    token_life_s: float


class Report(Word, tag="report", frozen=True, kw_only=True):
    """How an adapter is, with each heartbeat interval."""

    epoch: Count
    role: RoleName
    incarnation: Count
    last: Count
    positions: Positions = {}
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)] | None = None  # only when they changed
    source_alive: bool = True
    synchronised: bool = True
    counters: dict[str, int] = {}
    admitted: Annotated[str, Meta(max_length=255)] = ""  # the newest token of a client it was told; reported at once


class Role(Word, tag="role", frozen=True, kw_only=True):
    """What an adapter is from now on. A backup dials `active` with `link_token`; the active admits those tokens."""

    epoch: Count
    role: RoleName
    active: str = ""  # name of the active adapter
    active_address: str = ""
    link_token: str = ""
    anchor: Count = 1  # of the group's first active: the number of its first record


class Admit(Word, tag="admit", frozen=True, kw_only=True):
    """Let this client in with this token until it expires; the same token again moves the time."""

    token: Name
    client: Name
    life_s: float
    link: bool = False  # it is an adapter, for a link


class Revoke(Word, tag="revoke", frozen=True, kw_only=True):
    token: Name
    why: Text = ""


class SendAdmin(Word, tag="send-admin", frozen=True, kw_only=True):
    """Send this administrative message; a planned switch carries `to` and `epoch`."""

    admin: Admin


class Order(Word, tag="order", frozen=True, kw_only=True):
    """From an operator; answered by StreamFacts or Refusal. `revoke` takes one `client`, or all of a `user`."""

    do: Literal["status", "switch", "send", "revoke", "permit", "forget"]
    stream: str = ""
    adapter: str = ""  # switch: to whom; empty: the best backup. forget: which
    admin: Admin | None = None  # send
    client: str = ""
    user: str = ""


# With the stream administration: clients.


class Subscribe(Word, tag="subscribe", frozen=True, kw_only=True):
    stream: Name
    client: Name
    start: Literal["new", "oldest", "snapshot", "positions"] = "new"
    positions: Positions = {}
    mode: Literal["single", "both"] = "single"


class LineOffer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the streams a client may have."""

    adapter: Name
    address: Name
    token: Name
    incarnation: Count
    role: RoleName


class Brokered(Word, tag="brokered", frozen=True, kw_only=True):
    """Both streams (STR-4): `lines` has the active first, then the backups in order of preference."""

    stream: Name
    epoch: Count
    lines: Annotated[tuple[LineOffer, ...], Meta(max_length=64)]
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)]
    positions: Positions
    """Where the stream is now, as the active last reported: the start position of somebody who wants what is new."""
    threshold: int
    heartbeat_s: float
    token_life_s: float
    schema: Annotated[str, Meta(max_length=65536)] = ""


class Notice(Word, tag="notice", frozen=True, kw_only=True):
    """Roles, adapters or sources have changed."""

    epoch: Count
    lines: Annotated[tuple[LineOffer, ...], Meta(max_length=64)]
    sources: Annotated[tuple[Source, ...], Meta(max_length=1024)]


class Renew(Word, tag="renew", frozen=True, kw_only=True):
    """The client wants its tokens to live on; answered by a Notice."""


class Revoked(Word, tag="revoked", frozen=True, kw_only=True):
    """The right is gone; both streams end."""

    why: Text


class ClientReport(Word, tag="client-report", frozen=True, kw_only=True):
    """How a client is: after a change, and every few seconds."""

    line: str = ""  # the adapter it takes messages from; empty: none
    local: bool = False  # it failed over by itself (STR-31)
    counters: dict[str, int] = {}


class StreamFacts(Word, tag="stream-facts", frozen=True, kw_only=True):
    """The answer to Order: what `fairlead streams status` shows, a map for each stream."""

    streams: Annotated[tuple[dict[str, object], ...], Meta(max_length=10_000)] = ()
