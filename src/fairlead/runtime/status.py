"""The status report (SRV-127): what every part of the server is doing, read from its segments.

The supervisor maps them read-only, so the report is the same whether the processes run, are stopped, or are being
replaced. What the router knows is read from its log in the store; when that cannot be read the report says so and
goes on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.runtime.storehouse import Peek
from fairlead.runtime.usage import Usage
from fairlead.store import layout
from fairlead.store.census import census, describe, handles, room
from fairlead.store.fill import fill

HANDLES_SHOWN = 10


class Component(msgspec.Struct, kw_only=True):
    """One process."""

    role: str
    index: int
    state: str
    version: str
    pid: int
    started_ns: int
    generation: int
    python: str


class UpdateRecord(msgspec.Struct, kw_only=True):
    """One replacement of a program: asked for, or after a death."""

    component: str
    when_ns: int
    from_version: str
    to_version: str
    pause_ms: float
    outcome: str  # done, failed, rolled back, took over, moved, drained
    reason: str = ""


class ConnectionStatus(msgspec.Struct, kw_only=True):
    """One entry of the connection table (SRV-11)."""

    uid: int
    manager: int
    index: int
    state: str
    descriptor: int
    opened_ns: int
    peer: str
    user: str
    type: str
    instance: str
    org: str


class RingStatus(msgspec.Struct, kw_only=True):
    """How full a queue is."""

    bytes: int
    capacity: int
    entries: int
    counted: int


class ManagerStatus(msgspec.Struct, kw_only=True):
    """One connection manager; `queue` counts all entries towards the router, `counted` the clients' messages among
    them."""

    index: int
    pid: int
    connections: int
    draining: bool
    reading: bool
    queue: int
    counted: int
    instructions: int
    up: RingStatus
    down: RingStatus
    stored: int
    stored_bytes: int
    arena_used: int  # bytes of its blocks that are in use, some of them in part
    arena_capacity: int
    handles: list[int]  # of stored messages, some of them: what to ask about
    counters: dict[str, int]


class PostStatus(msgspec.Struct, kw_only=True):
    """One place a process has to fill; `restarts` counts those that ended unasked."""

    role: str
    index: int
    up: bool
    needed: bool  # the server is not in service without it
    restarts: int
    reason: str = ""  # why nobody is in it


class Status(msgspec.Struct, kw_only=True):
    """The whole report."""

    server_id: str
    version: str
    listen: list[str]
    data: str
    store: str
    mode: str
    uptime_s: float
    named_destinations: int  # [metrics] destinations
    components: list[Component]
    posts: list[PostStatus]
    processes: list[Usage]
    replaced: dict[str, Any]  # counts and pauses of all replacements (runtime/pauses.py)
    updates: list[UpdateRecord]
    connections: list[ConnectionStatus]
    managers: list[ManagerStatus]
    router: dict[str, int]
    dispatcher: dict[str, int]
    messages: dict[str, Any]  # the message manager: its state, its sync mode and its counters
    links: list[dict[str, Any]]  # to parents, as the bridge last reported them
    registrar: dict[str, Any]  # of a broker: what it told the directory, and how that is
    streams: dict[str, Any]  # the stream administration, and how many streams, adapters and clients it has
    console: dict[str, Any]  # its state, where it is, who looks on
    tunnel: dict[str, Any]  # through HTTP: the state of its processes, and counts
    stored: int
    stored_bytes: int
    message: dict[str, Any] | None  # what is known of the handle asked for
    attachments: list[dict[str, Any]] | None  # None: could not be read just now
    subscriptions: int | None
    registrations: int | None
    requests_open: int | None
    accounting_faults: int
    safety_tick_finds: int
    messages_given_up: int
    notes: list[str]


class StoreView(msgspec.Struct, kw_only=True):
    """The part of the report that comes out of the store."""

    connections: list[ConnectionStatus]
    managers: list[ManagerStatus]
    router: dict[str, int]
    dispatcher: dict[str, int]
    messages: dict[str, int]
    message: dict[str, Any] | None
    routing: dict[str, Any]
    notes: list[str]


def look(peek: Peek, handle: int | None = None, *, brief: bool = False) -> StoreView:
    """Read the store; `brief` leaves out the long lists."""
    notes: list[str] = []
    table = peek.connections()
    connections = []
    if not brief:
        for entry in table.read_all():
            connections.append(
                ConnectionStatus(
                    uid=entry.uid,
                    manager=entry.manager,
                    index=entry.index,
                    state=entry.state,
                    descriptor=entry.descriptor,
                    opened_ns=entry.opened_ns,
                    peer=entry.peer,
                    user=entry.user,
                    type=entry.type,
                    instance=entry.instance,
                    org=entry.org,
                )
            )
    managers = []
    for i in range(peek.managers):
        counters = peek.counters("manager", i).as_dict()
        up, down = _ring(peek.up(i)), _ring(peek.down(i))
        stored, stored_bytes = census(peek.arena(i))
        arena_used, arena_capacity = room(peek.arena(i))
        managers.append(
            ManagerStatus(
                index=i,
                pid=table.pid(i),
                connections=table.load(i),
                draining=table.draining(i),
                reading=not counters["reading_stopped"],
                queue=up.entries,
                counted=up.counted,
                instructions=counters["instructions"],
                up=up,
                down=down,
                stored=stored,
                stored_bytes=stored_bytes,
                arena_used=arena_used,
                arena_capacity=arena_capacity,
                handles=[] if brief else handles(peek.arena(i), i, HANDLES_SHOWN),
                counters=counters,
            )
        )
    message = None
    if handle is not None:
        arena = handle >> layout.HANDLE_ARENA_SHIFT
        found = describe(peek.arena(arena), handle) if arena < peek.managers else None
        message = {"handle": handle, "stored": False} if found is None else {**found._asdict(), "stored": True}
    routing: dict[str, Any] = {}
    if not brief:
        try:
            routing = read_routing(peek.routing())
        except Exception as error:  # a report with a gap is worth more than none
            notes.append(f"The router's state could not be read: {error}.")
    return StoreView(
        connections=connections,
        managers=managers,
        router=peek.counters("router").as_dict(),
        dispatcher=peek.counters("dispatcher").as_dict(),
        messages=peek.counters("message-manager").as_dict(),
        message=message,
        routing=routing,
        notes=notes,
    )


def _ring(view: memoryview) -> RingStatus:
    found = fill(view)
    return RingStatus(bytes=found.waiting_bytes, capacity=found.capacity, entries=found.entries, counted=found.counted)


def read_routing(segment: memoryview) -> dict[str, Any]:
    """Attachments, subscriptions and open requests as the newest commit has them."""
    from fairlead.broker.routing_log import read_state  # only when asked for: it needs the whole router's vocabulary

    state = read_state(segment)
    attachments: list[dict[str, Any]] = state["attachments"]
    return {
        "attachments": attachments,
        "subscriptions": sum(len(one["subscriptions"]) for one in attachments),
        "registrations": sum(len(one["registrations"]) for one in attachments),
        "requests_open": state["requests_open"] + state["requests_held"],
    }
