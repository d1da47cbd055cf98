"""Events and the cluster's state as the API tells of them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlead.console.shapes_server import Cluster, Group, Member, Node
from fairlead.console.shapes_time import Event, Events

Facts = dict[str, Any]
LEVELS: Final = ("debug", "info", "warning", "error")
KNOWN: Final = frozenset({"ms", "level", "code", "text", "node", "module", "user"})


def event(one: Facts) -> Event:
    level = str(one.get("level", "info"))
    return Event(
        ms=int(one.get("ms", 0)),
        level=level if level in LEVELS else "info",  # type: ignore[arg-type]
        code=str(one.get("code", "")),
        text=str(one.get("text", "")),
        node=str(one.get("node", "")),
        module=str(one.get("module", "")),
        user=str(one.get("user", "") or ""),
        facts={key: value for key, value in one.items() if key not in KNOWN},
    )


def events(lines: list[Facts], *, text: str, limit: int, looked: int) -> Events:
    """The newest first; `looked` is how many were asked for."""
    wanted = text.lower()
    whole = {msgspec.json.encode(one): one for one in reversed(lines)}  # groups on one node tell the same ones
    found = [event(one) for raw, one in whole.items() if not wanted or wanted in raw.decode().lower()]
    found.sort(key=lambda one: -one.ms)
    return Events(events=found[:limit], complete=len(lines) < looked and len(found) <= limit)


def cluster(found: Facts) -> Cluster:
    return Cluster(
        clustered=True,
        nodes=[_node(one) for one in found["nodes"]],
        groups=[_group(one) for one in found["groups"]],
        missing=[str(name) for name in found["missing"]],
        warnings=[str(text) for text in found["warnings"]],
    )


def _node(one: Facts) -> Node:
    return Node(
        node=str(one["node"]),
        kind=str(one["kind"]),
        state=str(one["state"]),
        pid=one.get("pid"),
        machine=str(one.get("machine") or ""),
        carrier=str(one.get("carrier") or ""),
        revision=one.get("revision"),
        hosts=[str(name) for name in one.get("hosts", [])],
    )


def _group(one: Facts) -> Group:
    return Group(
        group=str(one["group"]),
        primary=str(one["primary"]),
        epoch=one.get("epoch"),
        copies=one.get("copies"),
        degraded=bool(one["degraded"]),
        members=[
            Member(
                node=str(row["node"]),
                role=str(row["role"]),
                epoch=row.get("epoch"),
                serving=bool(row["serving"]),
                in_sync=bool(row["in_sync"]),
                lag=row.get("lag"),
                depth=row.get("depth"),
                remark=str(row.get("sync") or row.get("waiting") or ""),
            )
            for row in one["members"]
        ],
    )
