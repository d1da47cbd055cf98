"""Who uses the server: connections, sessions, tunnels, feeds, the directory's tables, pipelines."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fairlead.console.shapes import Count


class Connection(Struct, kw_only=True):
    """A client connection of this server. `id` is its uid, in decimal digits."""

    id: str
    manager: int
    state: str
    peer: str
    user: str
    type: str
    instance: str
    org: str
    opened_ms: int
    age_s: float
    subscriptions: int | None
    registrations: int | None
    inside: bool  # one of the server's own programs


class Connections(Struct, kw_only=True):
    connections: list[Connection]
    total: Count
    next: str | None


class Session(Struct, kw_only=True):
    """A session of queues and topics; without a connection it waits to be resumed."""

    id: str
    user: str
    client: str
    connection: str | None  # null: waits to be resumed
    manager: int | None
    opened_ms: int
    waiting_ms: int
    producers: Count
    consumers: Count
    held: Count
    temporary: Count


class Sessions(Struct, kw_only=True):
    sessions: list[Session]
    total: Count
    next: str | None
    complete: bool


class Tunnels(Struct, kw_only=True):
    """Clients that come through HTTP; `tunnels` are the gateway's own words."""

    enabled: bool
    gateway: dict[str, Any]
    broker: dict[str, Any]
    passed_on: Count
    turned_away: Count
    tunnels: list[dict[str, Any]]
    links: list[dict[str, Any]]
    note: str  # why the lists are empty, if they are


class Adapter(Struct, kw_only=True):
    name: str
    role: str  # active or backup
    alive: bool
    source_alive: bool
    synchronised: bool
    address: str
    last: int  # newest message number
    lag: int
    positions: dict[str, Any]  # by source stream: newest source sequence number


class Feed(Struct, kw_only=True):
    """A stream with its adapters."""

    name: str
    epoch: int
    active: str
    switching_to: str
    settling: bool
    failovers: Count
    switches: Count
    gaps: Count
    adapters: list[Adapter]
    clients: list[dict[str, Any]]
    clients_total: Count
    decisions: list[Any]  # what was decided last, and why


class Feeds(Struct, kw_only=True):
    serving: bool  # is this server the stream administration?
    feeds: list[Feed]
    note: str


class Directory(Struct, kw_only=True):
    """The three tables of the directory this server keeps or is a broker of."""

    serving: bool
    broker: dict[str, Any]  # what the registrar of this server says
    brokers: list[dict[str, Any]]
    clusters: list[dict[str, Any]]
    applications: list[dict[str, Any]]
    revision: int | None
    stale: bool
    note: str


class Cursor(Struct, kw_only=True):
    """How far a program that reads in bulk has come."""

    destination: str
    name: str
    kind: str
    at: int  # committed up to
    reserved: int  # given up to
    lag: int  # messages between
    lag_bytes: int
    opened_ms: int
    used_ms: int


class Sink(Struct, kw_only=True):
    """The last batch a query published."""

    query: str
    batch: int
    user: str
    published_ms: int
    messages: int


class Stage(Struct, kw_only=True):
    """What is staged and not published."""

    query: str
    batch: int
    stage: str
    user: str
    opened_ms: int
    active_ms: int
    messages: int
    bytes: int
    destinations: dict[str, int]


class Job(Struct, kw_only=True):
    """A pipeline of the server's user on this host, as it notes itself."""

    name: str
    job: str
    state: str  # starting, running, waiting, stopping, done, failed, dead
    pid: int
    began_ms: int
    updated_ms: int
    rows: int
    bytes: int
    batches: int
    last_batch: int | None
    rate: float
    lag: int | None
    destination: str


class Pipelines(Struct, kw_only=True):
    cursors: list[Cursor]
    sinks: list[Sink]
    stages: list[Stage]
    jobs: list[Job]
    complete: bool
