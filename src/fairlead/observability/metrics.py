"""The metrics of a server: from what is known of it to the text a monitoring system reads.

    body, content_type = render(facts, request.headers["accept"])

The text has as many lines as the server has parts, and a bounded number for destinations: those beyond the bound are
one line more, `_other`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from fairlead.journal.sync_times import SPANS_US, SyncTimes
from fairlead.observability import catalogue as m
from fairlead.observability.facts import Facts
from fairlead.observability.health import ready
from fairlead.observability.sheet import Sheet
from fairlead.runtime.pauses import PAUSE_ENDS_MS

OTHER: Final = "_other"
TEXT: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


def render(facts: Facts, accept: str = TEXT) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for whoever accepts it, else the older plain text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(sheet_of(facts))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def sheet_of(facts: Facts) -> Sheet:
    """All figures."""
    sheet, status = Sheet(m.everything()), facts.status
    sheet.put(m.BUILD, 1, status["version"], status["mode"], status["server_id"])
    sheet.put(m.READY, ready(status).ok)
    sheet.put(m.START_TIME, round(facts.now_s - status["uptime_s"], 1))
    sheet.put(m.SCRAPE_TIME, facts.took_s)
    sheet.put(m.UNANSWERED, len(facts.unanswered))
    _processes(sheet, status)
    _managers(sheet, status["managers"])
    by_agent = any(post["role"] == "agent" for post in status["posts"])
    _counted(sheet, status, by_agent)
    if not by_agent:
        _journal(sheet, status["messages"])
    for row in facts.destinations:
        _destination(sheet, row, facts.now_s)
    for row in facts.others:
        _destination(sheet, row | {"name": OTHER, "kind": ""}, facts.now_s)
        sheet.put(m.UNNAMED, row["count"], row["group"])
    _beside(sheet, status)
    if facts.cluster is not None:
        _cluster(sheet, facts.cluster)
    return sheet


def _processes(sheet: Sheet, status: dict[str, Any]) -> None:
    for post in status["posts"]:
        sheet.put(m.UP, post["up"], post["role"], str(post["index"]))
        sheet.put(m.RESTARTS, post["restarts"], post["role"], str(post["index"]))
    for process in status["processes"]:
        labels = process["role"], str(process["index"]), process["state"]
        sheet.put(m.MEMORY, process["rss_bytes"], *labels)
        sheet.put(m.CPU, process["cpu_s"], *labels)
        sheet.put(m.THREADS, process["threads"], *labels)
    for component, outcome, count in status["replaced"]["outcomes"]:
        sheet.put(m.UPDATES, count, component, outcome)
    for component, found in status["replaced"]["pauses"].items():
        at_most = list(accumulate(found["spans"]))
        ends_s = [end / 1000 for end in PAUSE_ENDS_MS]
        sheet.spans(m.PAUSES, ends_s, at_most[:-1], at_most[-1], found["total_ms"] / 1000, component)


def _managers(sheet: Sheet, managers: list[dict[str, Any]]) -> None:
    for manager in managers:
        number = str(manager["index"])
        for ring in ("up", "down"):
            found = manager[ring]
            sheet.put(m.RING_BYTES, found["bytes"], number, ring)
            sheet.put(m.RING_CAPACITY, found["capacity"], number, ring)
            sheet.put(m.RING_ENTRIES, found["entries"], number, ring)
        sheet.put(m.ARENA_USED, manager["arena_used"], number)
        sheet.put(m.ARENA_CAPACITY, manager["arena_capacity"], number)
        sheet.put(m.UNDER_WAY, manager["stored"], number)
        sheet.put(m.UNDER_WAY_BYTES, manager["stored_bytes"], number)
        sheet.put(m.DRAINING, manager["draining"], number)


def _counted(sheet: Sheet, status: dict[str, Any], by_agent: bool) -> None:
    """What the processes count themselves (runtime/counters.py)."""
    found: dict[str, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
        "manager": [(one["counters"], (str(one["index"]),)) for one in status["managers"]],
        "router": [(status["router"], ())],
        "dispatcher": [(status["dispatcher"], ())],
        "message-manager": [(status["messages"], ())] if status["messages"]["enabled"] else [],
    }
    for row in m.ROWS:
        for counter in row.counters:
            metric = m.metric_of(row, counter)
            if metric is None or not m.is_counted(row, counter, by_agent=by_agent):
                continue
            word = counter.name.lower()
            for counters, labels in found[row.role]:
                value = counters.get(word)  # an older server does not count everything
                if value is not None:
                    sheet.put(metric, value / 1e9 if word.endswith("_ns") else value, *labels)


def _journal(sheet: Sheet, counters: dict[str, Any]) -> None:
    if not counters["enabled"] or "syncs_timed" not in counters:
        return
    # The message manager may have been writing the row while it was read: what is a little torn must not fall.
    names = [name for name in counters if name.startswith("sync_le_")]
    *at_most, count = accumulate((*(counters[name] for name in names), counters["syncs_timed"]), max)
    ends_s = [end / 1e6 for end in SPANS_US]
    sheet.spans(m.SYNC_TIME, ends_s, at_most, count, counters["sync_time_ns"] / 1e9)


def _destination(sheet: Sheet, row: dict[str, Any], now_s: float) -> None:
    labels = row["name"], row["kind"], row["group"]
    sheet.put(m.DEPTH, row["depth"], *labels)
    sheet.put(m.BYTES, row["bytes"], *labels)
    sheet.put(m.CONSUMERS, row["consumers"], *labels)
    sheet.put(m.BLOCKED, row["blocked"], *labels)
    sheet.put(m.PAUSED, row.get("paused"), *labels)
    age_s = now_s - row["oldest_ms"] / 1000 if row["oldest_ms"] else 0.0
    sheet.put(m.OLDEST, round(max(age_s, 0.0), 3), *labels)
    sheet.put(m.STORED, row["stored"], *labels)
    sheet.put(m.DELIVERED, row["delivered"], *labels)
    sheet.put(m.REDELIVERED, row["redelivered"], *labels)
    sheet.put(m.ACKNOWLEDGED, row["acknowledged"], *labels)
    sheet.put(m.EXPIRED, row["expired"], *labels)
    sheet.put(m.DEAD, row["dead"], *labels)


def _beside(sheet: Sheet, status: dict[str, Any]) -> None:
    """Links, tunnels, streams, the directory: what a server may have or not."""
    for link in status["links"]:
        parent = str(link["parent"]).rpartition("@")[2]  # a URL may bring a password
        sheet.put(m.LINK_UP, link["state"] == "up", parent)
        sheet.put(m.LINK_IN, link["messages_in"], parent)
        sheet.put(m.LINK_OUT, link["messages_out"], parent)
        sheet.put(m.LINK_QUEUED, link["queued"], parent)
        sheet.put(m.LINK_DROPPED, link["dropped"], parent)
    tunnel = status["tunnel"]
    if tunnel["enabled"]:
        sheet.put(m.TUNNELS, tunnel["broker"].get("tunnels", 0))
        sheet.put(m.TUNNEL_CONNECTIONS, tunnel["gateway"].get("connections", 0))
        sheet.put(m.TUNNEL_LINKED, tunnel["broker"].get("linked", 0))
        sheet.put(m.TUNNEL_LINKS, tunnel["broker"].get("links", 0))
    streams = status["streams"]
    for metric, key in (
        (m.STREAMS, "streams"),
        (m.STREAM_ADAPTERS, "adapters"),
        (m.STREAM_CLIENTS, "clients"),
        (m.STREAMS_NO_ACTIVE, "without_active"),
        (m.STREAMS_NO_BACKUP, "without_backup"),
        (m.STREAM_FAILOVERS, "failovers"),
        (m.STREAM_SWITCHES, "switches"),
    ):
        sheet.put(metric, streams.get(key))
    registrar = status["registrar"]
    if "name" in registrar:
        sheet.put(m.BROKER_REGISTERED, registrar["registered"])
        sheet.put(m.BROKER_CONNECTIONS, registrar["connections"])
        sheet.put(m.BROKER_LIMIT, registrar["limit"])
        sheet.put(m.BROKER_APPLICATIONS, registrar["applications_total"])
        sheet.put(m.BROKER_PENDING, registrar["pending"])


def _cluster(sheet: Sheet, found: dict[str, Any]) -> None:
    sheet.put(m.NODES, len(found["nodes"]))
    sheet.put(m.NODES_MISSING, len(found["missing"]))
    for group in found["groups"]:
        name = group["group"]
        sheet.put(m.GROUP_SERVED, bool(group["primary"]), name)
        sheet.put(m.GROUP_EPOCH, group["epoch"], name)
        sheet.put(m.GROUP_IN_SYNC, len(group["in_sync"]), name)
        sheet.put(m.GROUP_COPIES, group["copies"], name)
        sheet.put(m.GROUP_DEGRADED, group["degraded"], name)
        for member in group["members"]:
            labels = name, member["node"]
            sheet.put(m.MEMBER_SERVING, member["serving"], *labels)
            sheet.put(m.MEMBER_IN_SYNC, member["in_sync"], *labels)
            sheet.put(m.MEMBER_LAG, member["lag"], *labels)
            sheet.put(m.MEMBER_DEPTH, member["depth"], *labels)
            sheet.put(m.MEMBER_STORED, member["stored"], *labels)
            if member["journal"]:
                _member_journal(sheet, member["journal"], labels)


def _member_journal(sheet: Sheet, journal: dict[str, Any], labels: tuple[str, str]) -> None:
    sheet.put(m.MEMBER_SYNCS, journal["syncs"], *labels)
    sheet.put(m.MEMBER_JOURNAL, journal["disk_bytes"], *labels)
    if "sync_times" in journal:  # a node of an older version has none
        times = SyncTimes(journal["sync_times"])
        ends_s = [end / 1e6 for end in SPANS_US]
        sheet.spans(m.MEMBER_SYNC_TIME, ends_s, times.at_most(), times.count, times.total_ns / 1e9, *labels)
