"""Who talks to whom: the lines between processes, as a status report implies them."""

from __future__ import annotations

from typing import Any

from fairlead.console.counting import Report
from fairlead.console.rates import Rates
from fairlead.console.shapes_server import Talk


def talks(report: Report, rates: Rates) -> list[Talk]:
    """Lines between those that serve; a standby talks to nobody."""
    serving = {_name(one) for one in report["components"] if one["state"] in ("active", "loading", "serving")}
    keeper = next((role for role in ("message-manager", "agent") if role in serving), "")
    found: list[Talk] = []
    for manager in report["managers"]:
        name = f"manager {manager['index']}"
        key = f"manager/{manager['index']}"
        found.append(Talk(source="dispatcher", target=name, by="hand-over", rate=rates[f"{key}/connections_total"]))
        fill = max(_fill(manager["up"]), _fill(manager["down"]))
        found.append(Talk(source=name, target="router", by="ring", rate=rates[f"{key}/messages_in"], fill=fill))
        if keeper:
            found.append(Talk(source=name, target=keeper, by="link", rate=rates[f"{key}/durable_in"]))
    found += [
        Talk(source=role, target="manager 0", by="client")
        for role in ("bridge", "registrar", "streams", "console", "tunnel-broker")
        if role in serving
    ]
    if "tunnel-gateway" in serving:
        found.append(Talk(source="tunnel-gateway", target="tunnel-broker", by="link"))
    found += [
        Talk(source="bridge", target=str(one.get("url", one.get("name", "?"))), by="bridge")
        for one in report.get("links", [])
        if "bridge" in serving
    ]
    return [one for one in found if one.source in serving]


def _fill(ring: dict[str, Any]) -> float:
    return round(ring["bytes"] / ring["capacity"], 4) if ring["capacity"] else 0.0


def _name(component: dict[str, Any]) -> str:
    role = str(component["role"])
    return f"manager {component['index']}" if role == "manager" else role
