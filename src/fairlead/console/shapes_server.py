"""The server as a whole: its processes, who talks to whom, how full they are, what was updated, what is wrong."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fairlead.console.shapes import Count, Rate

Health = Literal["ok", "warning", "error"]


class Server(Struct, kw_only=True):
    id: str
    version: str
    node: str  # of a cluster; empty: a single server
    listen: list[str]
    console: list[str]  # where this console is
    data: str
    mode: str  # compiled or plain modules
    sync: str  # how records reach the disk: `always` or `memory`
    started_ms: int
    uptime_s: float


class Process(Struct, kw_only=True):
    """One process. `name` is unique among those that serve: `router`, `manager 0`; a standby has the same."""

    name: str
    role: str
    index: int
    state: str  # loading, active, standby, parked, stopping; of the supervisor: serving …
    version: str
    pid: int
    generation: int
    started_ms: int
    uptime_s: float
    updatable: str  # the `component` to name in POST /api/v1/update; empty: none


class Talk(Struct, kw_only=True):
    """Who talks to whom: a line of the topology. Names are those of processes, nodes, or addresses elsewhere."""

    source: str
    target: str
    by: Literal["hand-over", "ring", "link", "client", "bus", "bridge"]
    rate: Rate = None  # messages or frames a second, where they are counted
    fill: float | None = None  # 0 to 1: of the fuller of the two rings


class Ring(Struct, kw_only=True):
    bytes: Count
    capacity: Count
    entries: Count
    counted: Count  # clients' messages among them
    fill: float  # 0 to 1


class Arena(Struct, kw_only=True):
    """Where the bodies of messages under way are."""

    messages: Count
    bytes: Count
    capacity: Count
    fill: float  # 0 to 1


class Manager(Struct, kw_only=True):
    """A connection manager."""

    index: int
    pid: int
    state: str
    connections: Count
    draining: bool
    reading: bool  # false: its clients wait, since its queue is at the limit
    up: Ring  # towards the router
    down: Ring  # from the router
    arena: Arena
    messages_in: Rate
    messages_out: Rate
    bytes_in: Rate
    bytes_out: Rate
    share: float | None  # of all messages taken in the last seconds, 0 to 1
    counters: dict[str, int]


class Router(Struct, kw_only=True):
    state: str
    routed: Rate
    deliveries: Rate
    requests_open: Count
    last_pause_ms: float
    takeovers: Count
    counters: dict[str, int]


class Messages(Struct, kw_only=True):
    """The message manager, or the agent in its place on a client manager of a cluster."""

    enabled: bool
    state: str  # active, none …
    sync: str
    stored: Rate
    delivered: Rate
    settled: Rate
    destinations: Count
    depth: Count
    bytes: Count
    sessions: Count
    consumers: Count
    producers: Count
    blocked: Count
    counters: dict[str, int]


class Latency(Struct, kw_only=True):
    """Round trips of a tiny message through the server, of the last minute."""

    p50_ms: float
    p99_ms: float
    probes: int


class Update(Struct, kw_only=True):
    """A program was replaced: asked for, or after a death."""

    component: str
    when_ms: int
    from_version: str
    to_version: str
    pause_ms: float
    outcome: str  # done, failed, rolled back, took over, moved, drained
    reason: str


class Alarm(Struct, kw_only=True):
    """Something an operator should look at; the worst first."""

    level: Health
    code: str
    text: str
    about: str  # the process, destination or node it is about; may be empty


class Totals(Struct, kw_only=True):
    connections: Count
    subscriptions: int | None  # null: could not be read just now
    registrations: int | None
    requests_open: int | None
    messages_under_way: Count
    bytes_under_way: Count
    messages_in: Rate
    messages_out: Rate
    bytes_in: Rate
    bytes_out: Rate
    stored: Rate
    delivered: Rate
    settled: Rate
    accounting_faults: Count
    safety_tick_finds: Count
    messages_given_up: Count


class Overview(Struct, kw_only=True):
    """GET /api/v1/overview, and the event `overview`."""

    now_ms: int
    health: Health
    server: Server
    totals: Totals
    latency: Latency | None
    processes: list[Process]
    talks: list[Talk]
    managers: list[Manager]
    router: Router
    dispatcher: dict[str, int]
    messages: Messages
    links: list[dict[str, Any]]  # to other servers, as the bridge reports them
    registrar: dict[str, Any]  # of a broker of a directory
    streams: dict[str, Any]  # the stream administration in short
    tunnel: dict[str, Any]
    updates: list[Update]  # the newest first
    alarms: list[Alarm]
    notes: list[str]


class NewUpdate(Struct, kw_only=True, forbid_unknown_fields=True):
    component: Annotated[str, Meta(pattern="^[a-z-]{1,40}$")]  # router, dispatcher, managers, message-manager, all …


class UpdateDone(Struct, kw_only=True):
    updates: list[Update]


class Member(Struct, kw_only=True):
    """A node's copy of a group."""

    node: str
    role: str
    epoch: int | None
    serving: bool
    in_sync: bool
    lag: int | None  # records behind the primary
    depth: int | None
    remark: str  # what it copies or waits for


class Group(Struct, kw_only=True):
    group: str
    primary: str  # empty: nobody leads it
    epoch: int | None
    copies: int | None
    degraded: bool  # confirms with fewer copies than it should
    members: list[Member]


class Node(Struct, kw_only=True):
    node: str
    kind: str  # client-manager, message-manager, witness
    state: str
    pid: int | None
    machine: str
    carrier: str
    revision: int | None  # of the settings it has
    hosts: list[str]  # groups


class Cluster(Struct, kw_only=True):
    """GET /api/v1/cluster; of a single server everything is empty."""

    clustered: bool
    nodes: list[Node]
    groups: list[Group]
    missing: list[str]
    warnings: list[str]
