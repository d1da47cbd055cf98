"""The overview: a status report and the rates since the last one, as an operator thinks of the server."""

from __future__ import annotations

from typing import Any, Final

from fairlead.console.alarms import alarms, health
from fairlead.console.counting import Report, managers_of
from fairlead.console.rates import Rates
from fairlead.console.shapes_server import (
    Arena,
    Latency,
    Manager,
    Messages,
    Overview,
    Process,
    Ring,
    Router,
    Server,
    Totals,
    Update,
)
from fairlead.console.topology import talks

UPDATABLE: Final = {
    "manager": "managers",
    **{one: one for one in ("router", "dispatcher", "message-manager", "agent", "bridge", "registrar", "streams")},
    **{one: one for one in ("tunnel-gateway", "tunnel-broker")},
}
"""Which `component` a role is updated as; the console cannot answer for its own."""


def overview(
    report: Report, rates: Rates, now_ms: int, *, arena_bytes: int, node: str = "", latency: Latency | None = None
) -> Overview:
    """Everything at a glance."""
    found = alarms(report)
    return Overview(
        now_ms=now_ms,
        health=health(found),
        server=_server(report, now_ms, node),
        totals=_totals(report, rates),
        latency=latency,
        processes=[_process(one, now_ms) for one in report["components"]],
        talks=talks(report, rates),
        managers=[_manager(one, report, rates, arena_bytes) for one in report["managers"]],
        router=_router(report, rates),
        dispatcher=dict(report["dispatcher"]),
        messages=_messages(report, rates),
        links=list(report["links"]),
        registrar=dict(report["registrar"]),
        streams=dict(report["streams"]),
        tunnel=dict(report["tunnel"]),
        updates=[update(one) for one in reversed(report["updates"])],
        alarms=found,
        notes=list(report["notes"]),
    )


def update(one: dict[str, Any]) -> Update:
    return Update(
        component=one["component"],
        when_ms=one["when_ns"] // 1_000_000,
        from_version=one["from_version"],
        to_version=one["to_version"],
        pause_ms=one["pause_ms"],
        outcome=one["outcome"],
        reason=one.get("reason", ""),
    )


def _server(report: Report, now_ms: int, node: str) -> Server:
    return Server(
        id=report["server_id"],
        version=report["version"],
        node=node,
        listen=list(report["listen"]),
        console=list(report.get("console", {}).get("urls", [])),
        data=report["data"],
        mode=report["mode"],
        sync=str(report["messages"].get("sync", "")),
        started_ms=now_ms - int(report["uptime_s"] * 1000),
        uptime_s=report["uptime_s"],
    )


def _process(one: dict[str, Any], now_ms: int) -> Process:
    role, started_ms = one["role"], one["started_ns"] // 1_000_000
    return Process(
        name=f"manager {one['index']}" if role == "manager" else role,
        role=role,
        index=one["index"],
        state=one["state"],
        version=one["version"],
        pid=one["pid"],
        generation=one["generation"],
        started_ms=started_ms,
        uptime_s=max(0.0, (now_ms - started_ms) / 1000),
        updatable=UPDATABLE.get(role, ""),
    )


def state_of(report: Report, role: str, index: int = 0) -> str:
    """Of whoever serves in this role, else the best there is."""
    states = [one["state"] for one in report["components"] if one["role"] == role and one["index"] == index]
    return "active" if "active" in states else states[0] if states else "none"


def _ring(one: dict[str, Any]) -> Ring:
    return Ring(
        bytes=one["bytes"],
        capacity=one["capacity"],
        entries=one["entries"],
        counted=one["counted"],
        fill=_share(one["bytes"], one["capacity"]),
    )


def _manager(one: dict[str, Any], report: Report, rates: Rates, arena_bytes: int) -> Manager:
    key = f"manager/{one['index']}"
    taken = rates[f"{key}/messages_in"]
    total = rates.total([f"manager/{index}/messages_in" for index in managers_of(report)])
    return Manager(
        index=one["index"],
        pid=one["pid"],
        state=state_of(report, "manager", one["index"]),
        connections=one["connections"],
        draining=one["draining"],
        reading=one["reading"],
        up=_ring(one["up"]),
        down=_ring(one["down"]),
        arena=Arena(
            messages=one["stored"],
            bytes=one["stored_bytes"],
            capacity=arena_bytes,
            fill=_share(one["stored_bytes"], arena_bytes),
        ),
        messages_in=taken,
        messages_out=rates[f"{key}/messages_out"],
        bytes_in=rates[f"{key}/bytes_in"],
        bytes_out=rates[f"{key}/bytes_out"],
        share=round(taken / total, 4) if taken is not None and total else None,
        counters=dict(one["counters"]),
    )


def _router(report: Report, rates: Rates) -> Router:
    counters = report["router"]
    return Router(
        state=state_of(report, "router"),
        routed=rates["router/messages_routed"],
        deliveries=rates["router/deliveries"],
        requests_open=counters["requests_open"],
        last_pause_ms=round(counters["last_pause_ns"] / 1e6, 3),
        takeovers=counters["takeovers"],
        counters=dict(counters),
    )


def _messages(report: Report, rates: Rates) -> Messages:
    facts = report["messages"]
    return Messages(
        enabled=bool(facts["enabled"]),
        state=str(facts["state"]),
        sync=str(facts["sync"]),
        stored=rates["messages/stored"],
        delivered=rates["messages/delivered"],
        settled=rates["messages/settled"],
        destinations=facts.get("destinations", 0),
        depth=facts.get("depth", 0),
        bytes=facts.get("depth_bytes", 0),
        sessions=facts.get("sessions", 0),
        consumers=facts.get("consumers", 0),
        producers=facts.get("producers", 0),
        blocked=facts.get("blocked", 0),
        counters={name: value for name, value in facts.items() if type(value) is int},
    )


def _totals(report: Report, rates: Rates) -> Totals:
    def all_of(name: str) -> float | None:
        return rates.total([f"manager/{index}/{name}" for index in managers_of(report)])

    return Totals(
        connections=sum(one["connections"] for one in report["managers"]),
        subscriptions=report["subscriptions"],
        registrations=report["registrations"],
        requests_open=report["requests_open"],
        messages_under_way=report["stored"],
        bytes_under_way=report["stored_bytes"],
        messages_in=all_of("messages_in"),
        messages_out=all_of("messages_out"),
        bytes_in=all_of("bytes_in"),
        bytes_out=all_of("bytes_out"),
        stored=rates["messages/stored"],
        delivered=rates["messages/delivered"],
        settled=rates["messages/settled"],
        accounting_faults=report["accounting_faults"],
        safety_tick_finds=report["safety_tick_finds"],
        messages_given_up=report["messages_given_up"],
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
