"""Destinations and what is in them: figures, messages, dead messages, schedules, and what may be done to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fairlead.console.shapes import Count, Rate

Kind = Literal["queue", "topic"]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Selector = Annotated[str, Meta(max_length=4096)]
Order = Annotated[int, Meta(ge=0, le=2**63 - 1)]
As = Literal["auto", "text", "json", "hex"]
Sort = Literal["name", "depth", "bytes", "rate_in", "rate_out", "consumers", "oldest_ms", "ready", "locked", "delayed"]
ORDERS_MAX = 1000


class Destination(Struct, kw_only=True):
    """A queue or topic in figures."""

    name: str
    kind: Kind
    group: str  # of message managers, which keeps it
    own: bool  # one of the server's own: its name begins with an underscore
    depth: Count  # waiting messages
    bytes: Count
    ready: Count
    locked: Count  # held by consumers
    delayed: Count
    aside: Count  # dead, on their way to the dead queue
    schedules: Count
    transactions: Count
    consumers: Count
    producers: int | None
    subscriptions: Count
    first: Count  # order number of the oldest that is kept
    next: Count  # order number the next one gets
    kept: Count  # readable, consumed or not
    kept_bytes: Count
    redelivered: int | None  # deliveries that were not the first, since its message manager serves it
    dropped: Count
    oldest_ms: int | None  # for how long the oldest waiting message has been there
    blocked: bool  # its producers are held back
    paused: bool  # nothing is delivered
    rate_in: Rate  # messages a second
    rate_out: Rate


class Destinations(Struct, kw_only=True):
    """A page of them; `after` of the next request is `next` of this one."""

    destinations: list[Destination]
    total: Count  # that match
    next: str | None
    complete: bool  # false: there are more destinations than are looked at, or a group did not answer


class Subscription(Struct, kw_only=True):
    name: str
    client: str
    selector: str
    shared: bool
    pattern: str
    depth: int


class Consumer(Struct, kw_only=True):
    session: str
    user: str
    selector: str
    exclusive: bool
    browse: bool
    credit_messages: int
    held: int
    paused: bool
    stalled: bool


class DestinationDetail(Struct, kw_only=True):
    """GET /api/v1/destinations/{name}."""

    destination: Destination
    parameters: dict[str, Any]
    subscriptions: list[Subscription]
    consumers: list[Consumer]
    temporary: bool
    may: list[str]  # what this user may do with it: send, browse, consume, create, admin


class NewDestination(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/destinations/{name}; parameters are those of docs/configuration.md."""

    kind: Kind = "queue"
    parameters: dict[str, Any] = {}


class Created(Struct, kw_only=True):
    name: str
    existed: bool


class Purge(Struct, kw_only=True, forbid_unknown_fields=True):
    selector: Selector = ""


class NewMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST …/send. `encoding` says how `body` is to be read."""

    body: Annotated[str, Meta(max_length=1_000_000)] = ""
    encoding: Literal["text", "base64"] = "text"
    properties: Annotated[dict[str, str | int | float | bool], Meta(max_length=100)] = {}
    key: Annotated[str, Meta(max_length=255)] = ""
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    ttl_ms: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    count: Annotated[int, Meta(ge=1, le=1000)] = 1


class Sent(Struct, kw_only=True):
    """Stored: what is confirmed is on stable storage."""

    messages: int
    ids: list[str]


class Message(Struct, kw_only=True):
    """A message as browsing shows it; `body` is at most the preview's length."""

    order: Count
    id: str
    state: str  # ready, locked, delayed, dead, consumed
    deliveries: int
    priority: int
    key: str | None
    persistent: bool
    sent_ms: int
    arrival_ms: int
    ttl_ms: int | None
    delay_ms: int | None
    properties: dict[str, Any]
    headers: dict[str, Any]  # Fairlead's own: type, correlation, dead-reason …
    bytes: Count
    body: str | None  # null: too large to be shown
    shown_as: Literal["text", "json", "hex", "none"]
    cut: bool  # there is more of it than is shown


class MessagePage(Struct, kw_only=True):
    """`after` of the next request is `next` of this one; `waits`: the rest is being read from disk, ask again."""

    messages: list[Message]
    next: str | None
    waits: bool


class Move(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST …/move: by order numbers, else by selector."""

    to: Name
    orders: Annotated[list[Order], Meta(max_length=ORDERS_MAX)] = []
    selector: Selector = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    dry_run: bool = False


class Moved(Struct, kw_only=True):
    messages: Count  # moved, or with `dry_run` what would be
    dry_run: bool
    more: bool  # there are more: say it again


class DeadReason(Struct, kw_only=True):
    reason: str
    origin: str  # where it was addressed first
    messages: Count


class DeadPage(Struct, kw_only=True):
    """GET /api/v1/dead: dead messages by reason and origin, and a page of those asked for."""

    queues: list[str]  # `_DMQ`, in a cluster one for each group
    total: Count
    reasons: list[DeadReason]
    counted: Count  # how many were looked at for `reasons`
    messages: list[Message]
    next: str | None
    waits: bool


class Redrive(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/dead/redrive. Do it with `dry_run` first."""

    queue: Name = "_DMQ"
    orders: Annotated[list[Order], Meta(max_length=ORDERS_MAX)] = []
    reason: Annotated[str, Meta(max_length=255)] = ""
    origin: Annotated[str, Meta(max_length=255)] = ""
    selector: Selector = ""
    to: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=20_000)] = 1000
    dry_run: bool = True


class Redriven(Struct, kw_only=True):
    moved: Count
    to: dict[str, int]  # how many went where
    failed: dict[str, int]  # how many did not, by reason
    dry_run: bool
    more: bool


class Schedule(Struct, kw_only=True):
    destination: str
    order: Count
    due_ms: int
    cron: str
    bytes: Count
    id: str


class Schedules(Struct, kw_only=True):
    schedules: list[Schedule]
    complete: bool
