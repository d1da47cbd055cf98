"""Every metric there is: its name, what kind of number it is, its labels and its sentence.

What a process counts (runtime/counters.py) becomes a metric by rule, so a new counter is exposed without a word here:
it grows, unless it is named below as something that is so now. All other metrics are listed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from fairlead.runtime.counters import (
    Counter,
    DispatcherCounter,
    ManagerCounter,
    MessageManagerCounter,
    RouterCounter,
)

Kind = Literal["counter", "gauge", "histogram", "info"]


class Metric(NamedTuple):
    """`name` is without the `_total` or `_info` that its kind adds to it."""

    name: str
    kind: Kind
    sentence: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """As it is written in queries."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


class Row(NamedTuple):
    """The counters of one role, and what they are called outside."""

    role: str
    prefix: str
    counters: type[Counter]
    labels: tuple[str, ...] = ()


ROWS: Final = (
    Row("manager", "fairlead_manager_", ManagerCounter, ("manager",)),
    Row("router", "fairlead_router_", RouterCounter),
    Row("dispatcher", "fairlead_dispatcher_", DispatcherCounter),
    Row("message-manager", "fairlead_messages_", MessageManagerCounter),
)

M, R, D, Q = ManagerCounter, RouterCounter, DispatcherCounter, MessageManagerCounter

SO_NOW: Final[frozenset[tuple[type[Counter], int]]] = frozenset(
    (type(one), int(one))
    for one in (
        *(M.CONNECTIONS_OPEN, M.READING_STOPPED, M.LINK_WAITING, M.LINKED),
        *(R.REQUESTS_OPEN, R.LAST_PAUSE_NS),
        *(Q.DESTINATIONS, Q.DEPTH, Q.DEPTH_BYTES, Q.SESSIONS, Q.CONSUMERS, Q.PRODUCERS, Q.LINKS, Q.BLOCKED),
        *(Q.TASKS_WAITING, Q.SAFE_INDEX, Q.PENDING_RECORDS, Q.LAST_SYNC_NS, Q.SEGMENTS, Q.JOURNAL_BYTES),
        *(Q.TICK_GAP_MAX_NS, Q.STORE_FULL, Q.RECOVERY_NS, Q.WORK_WAITING, Q.GROUPS_UP),
    )
)
"""Numbers that can fall: gauges. All others only grow."""

NOT_SHOWN: Final[frozenset[tuple[type[Counter], int]]] = frozenset(
    (type(one), int(one))
    for one in (R.LAST_TURN_NS, Q.SYNCS_TIMED, Q.SYNC_TIME_NS, *(one for one in Q if one.name.startswith("SYNC_LE_")))
)
"""A moment of the machine's own clock, and the parts of a histogram."""

OF_AGENTS: Final = frozenset((Q.GROUPS_UP, Q.INTERRUPTIONS, Q.CHOKES, Q.BYTES_IN, Q.BYTES_OUT))
OF_BOTH: Final = frozenset((Q.LOOP_PROGRESS, Q.COMMANDS, Q.DROPPED, Q.DESTINATIONS, Q.LINKS))
"""Of the message manager's row: what an agent in its place counts. It keeps no messages and tells nothing of them."""


def is_counted(row: Row, counter: Counter, *, by_agent: bool) -> bool:
    """Does whoever stands in this place count that?"""
    if row.role != "message-manager" or counter in OF_BOTH:
        return True
    return (counter in OF_AGENTS) == by_agent


OTHER_NAMES: Final[dict[tuple[type[Counter], int], str]] = {
    (Q, Q.SAFE_INDEX): "fairlead_journal_safe_index",
    (Q, Q.PENDING_RECORDS): "fairlead_journal_pending_records",
    (Q, Q.SYNCS): "fairlead_journal_syncs",
    (Q, Q.LAST_SYNC_NS): "fairlead_journal_last_sync_seconds",
    (Q, Q.SEGMENTS): "fairlead_journal_files",
    (Q, Q.JOURNAL_BYTES): "fairlead_journal_bytes",
    (Q, Q.WRITTEN_BYTES): "fairlead_journal_written_bytes",
    (Q, Q.CHECKPOINTS): "fairlead_journal_checkpoints",
    (Q, Q.RECOVERY_NS): "fairlead_journal_recovery_seconds",
}


def metric_of(row: Row, counter: Counter) -> Metric | None:
    """What a counter is outside; None: it is not shown by itself."""
    key = (row.counters, int(counter))
    if key in NOT_SHOWN:
        return None
    word = counter.name.lower()
    if word.endswith("_ns"):
        word = word.removesuffix("_ns") + "_seconds"
    kind: Kind = "gauge" if key in SO_NOW else "counter"
    name = OTHER_NAMES.get(key, row.prefix + word)
    return Metric(name.removesuffix("_total"), kind, counter.sentence, row.labels)


PROCESS: Final = ("role", "index")
DESTINATION: Final = ("destination", "kind", "group")
MEMBER: Final = ("group", "node")

BUILD = Metric("fairlead_build", "info", "What runs: always 1.", ("version", "mode", "server"))
READY = Metric("fairlead_ready", "gauge", "1 while the server can serve clients, else 0; `fairlead status --check`.")
START_TIME = Metric("fairlead_start_time_seconds", "gauge", "When the server was started, in seconds since 1970.")
SCRAPE_TIME = Metric("fairlead_scrape_duration_seconds", "gauge", "How long it took to ask for these figures.")
UNANSWERED = Metric("fairlead_scrape_unanswered", "gauge", "Parts of the server that did not answer this time.")

UP = Metric("fairlead_process_up", "gauge", "1 while a process serves in this place, else 0.", PROCESS)
RESTARTS = Metric("fairlead_process_restarts", "counter", "Processes of this place that ended unasked.", PROCESS)
MEMORY = Metric(
    "fairlead_process_resident_memory_bytes", "gauge", "Memory a process occupies.", (*PROCESS, "state")
)  # fmt: skip
CPU = Metric(
    "fairlead_process_cpu_seconds", "counter", "Processor time a process has used.", (*PROCESS, "state")
)  # fmt: skip
THREADS = Metric("fairlead_process_threads", "gauge", "Threads of a process.", (*PROCESS, "state"))

UPDATES = Metric("fairlead_updates", "counter", "Replacements of programs by outcome.", ("component", "outcome"))
PAUSES = Metric(
    "fairlead_update_pause_seconds", "histogram", "How long clients felt the replacement of a program.", ("component",)
)

RING_BYTES = Metric(
    "fairlead_manager_ring_bytes",
    "gauge",
    "Bytes waiting in a ring between manager and router; `ring` is up or down.",
    ("manager", "ring"),
)
RING_CAPACITY = Metric(
    "fairlead_manager_ring_capacity_bytes", "gauge", "Size of a ring between manager and router.", ("manager", "ring")
)
RING_ENTRIES = Metric("fairlead_manager_ring_entries", "gauge", "Entries waiting in a ring.", ("manager", "ring"))
ARENA_USED = Metric(
    "fairlead_manager_arena_used_bytes", "gauge", "Bytes of the blocks of a manager's arena in use.", ("manager",)
)
ARENA_CAPACITY = Metric("fairlead_manager_arena_capacity_bytes", "gauge", "Size of a manager's arena.", ("manager",))
UNDER_WAY = Metric(
    "fairlead_manager_messages_under_way", "gauge", "Transient messages stored now, until all have them.", ("manager",)
)
UNDER_WAY_BYTES = Metric(
    "fairlead_manager_bytes_under_way", "gauge", "Bytes of transient messages stored now.", ("manager",)
)
DRAINING = Metric("fairlead_manager_draining", "gauge", "1 while a manager is taken out of service.", ("manager",))

SYNC_TIME = Metric(
    "fairlead_journal_sync_seconds", "histogram", "How long flushes of the journal to stable storage took."
)

DEPTH = Metric("fairlead_destination_depth", "gauge", "Messages waiting in a queue or topic.", DESTINATION)
BYTES = Metric("fairlead_destination_bytes", "gauge", "Bytes waiting in a queue or topic.", DESTINATION)
CONSUMERS = Metric("fairlead_destination_consumers", "gauge", "Consumers of a queue or topic.", DESTINATION)
BLOCKED = Metric("fairlead_destination_blocked", "gauge", "1 while producers are asked to wait, else 0.", DESTINATION)
PAUSED = Metric("fairlead_destination_paused", "gauge", "1 while nothing is delivered, by order, else 0.", DESTINATION)
OLDEST = Metric(
    "fairlead_destination_oldest_seconds", "gauge", "Age of the oldest message waiting; 0: none waits.", DESTINATION
)
STORED = Metric("fairlead_destination_stored", "counter", "Messages stored in a queue or topic.", DESTINATION)
DELIVERED = Metric("fairlead_destination_delivered", "counter", "Messages handed to consumers.", DESTINATION)
REDELIVERED = Metric(
    "fairlead_destination_redelivered", "counter", "Messages handed out not for the first time.", DESTINATION
)
ACKNOWLEDGED = Metric("fairlead_destination_acknowledged", "counter", "Messages settled by consumers.", DESTINATION)
EXPIRED = Metric("fairlead_destination_expired", "counter", "Messages expired before they were taken.", DESTINATION)
DEAD = Metric("fairlead_destination_dead", "counter", "Messages moved to a dead message queue.", DESTINATION)
UNNAMED = Metric(
    "fairlead_destinations_unnamed", "gauge", "Queues and topics shown together as `_other`.", ("group",)
)  # fmt: skip

LINK_UP = Metric("fairlead_link_up", "gauge", "1 while the link to another server is up, else 0.", ("parent",))
LINK_IN = Metric("fairlead_link_messages_in", "counter", "Messages that came over a link.", ("parent",))
LINK_OUT = Metric("fairlead_link_messages_out", "counter", "Messages that went over a link.", ("parent",))
LINK_QUEUED = Metric("fairlead_link_queued", "gauge", "Messages waiting for a link.", ("parent",))
LINK_DROPPED = Metric("fairlead_link_dropped", "counter", "Messages given up because a link was away.", ("parent",))

TUNNELS = Metric("fairlead_tunnels", "gauge", "Tunnels through HTTP that are open.")
TUNNEL_CONNECTIONS = Metric("fairlead_tunnel_http_connections", "gauge", "HTTP connections at the gateway of tunnels.")
TUNNEL_LINKED = Metric("fairlead_tunnel_links_up", "gauge", "Links to gateways that are up.")
TUNNEL_LINKS = Metric("fairlead_tunnel_links", "gauge", "Links to gateways there should be.")

STREAMS = Metric("fairlead_streams", "gauge", "Streams the administration looks after.")
STREAM_ADAPTERS = Metric("fairlead_stream_adapters", "gauge", "Feed adapters that are alive.")
STREAM_CLIENTS = Metric("fairlead_stream_clients", "gauge", "Programs that read streams.")
STREAMS_NO_ACTIVE = Metric("fairlead_streams_without_active", "gauge", "Streams nobody feeds.")
STREAMS_NO_BACKUP = Metric("fairlead_streams_without_backup", "gauge", "Streams with nobody to take over.")
STREAM_FAILOVERS = Metric("fairlead_stream_failovers", "counter", "Streams another adapter took over.")
STREAM_SWITCHES = Metric("fairlead_stream_switches", "counter", "Streams switched by an operator.")

BROKER_REGISTERED = Metric("fairlead_broker_registered", "gauge", "1 while the directory knows this broker, else 0.")
BROKER_CONNECTIONS = Metric("fairlead_broker_connections", "gauge", "Connections of applications at this broker.")
BROKER_LIMIT = Metric(
    "fairlead_broker_connections_limit", "gauge", "Connections of applications this broker takes at most."
)
BROKER_APPLICATIONS = Metric("fairlead_broker_applications", "gauge", "Applications at this broker.")
BROKER_PENDING = Metric("fairlead_broker_reports_pending", "gauge", "Reports the directory has not confirmed yet.")

NODES = Metric("fairlead_cluster_nodes", "gauge", "Nodes of the cluster that answered.")
NODES_MISSING = Metric("fairlead_cluster_nodes_missing", "gauge", "Nodes that are there and did not answer.")
GROUP_SERVED = Metric("fairlead_group_served", "gauge", "1 while a node leads the group, else 0.", ("group",))
GROUP_EPOCH = Metric("fairlead_group_epoch", "gauge", "How often the group had another leader.", ("group",))
GROUP_IN_SYNC = Metric("fairlead_group_members_in_sync", "gauge", "Members that have everything.", ("group",))
GROUP_COPIES = Metric("fairlead_group_copies_wanted", "gauge", "Copies there should be of every message.", ("group",))
GROUP_DEGRADED = Metric(
    "fairlead_group_degraded", "gauge", "1 while it confirms with fewer copies than it should.", ("group",)
)
MEMBER_SERVING = Metric("fairlead_member_serving", "gauge", "1 for the node that leads the group, else 0.", MEMBER)
MEMBER_IN_SYNC = Metric("fairlead_member_in_sync", "gauge", "1 while the member has everything, else 0.", MEMBER)
MEMBER_LAG = Metric("fairlead_member_lag_records", "gauge", "Records the member is behind the leader.", MEMBER)
MEMBER_STORED = Metric(
    "fairlead_member_stored", "counter", "Messages a member stored for clients while it led the group.", MEMBER
)
MEMBER_SYNCS = Metric("fairlead_member_journal_syncs", "counter", "Flushes of a member's journal.", MEMBER)
MEMBER_JOURNAL = Metric("fairlead_member_journal_bytes", "gauge", "Bytes of the files of a member's journal.", MEMBER)
MEMBER_SYNC_TIME = Metric(
    "fairlead_member_journal_sync_seconds", "histogram", "How long flushes of a member's journal took.", MEMBER
)
MEMBER_DEPTH = Metric("fairlead_member_depth", "gauge", "Messages waiting in the member's copy.", MEMBER)

LISTED: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))


def everything() -> Iterator[Metric]:
    """All metrics, in the order in which they are told."""
    yield from LISTED
    for row in ROWS:
        for counter in row.counters:
            if (metric := metric_of(row, counter)) is not None:
                yield metric
