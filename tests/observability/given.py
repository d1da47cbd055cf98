"""A status report as a server would give it, for tests that only compute."""

from __future__ import annotations

from typing import Any

from fairlead.observability.facts import Facts
from fairlead.runtime.counters import COUNTERS
from fairlead.runtime.pauses import Pauses


def counters(role: str, **known: int) -> dict[str, int]:
    return {counter.name.lower(): 0 for counter in COUNTERS[role]} | known


def status(**changed: Any) -> dict[str, Any]:
    ring = {"bytes": 512, "capacity": 4096, "entries": 3, "counted": 2}
    posts = [("router", 0), ("dispatcher", 0), ("message-manager", 0), ("manager", 0), ("manager", 1)]
    return {
        "server_id": "00ff",
        "version": "9.9.9",
        "mode": "compiled",
        "listen": ["fairlead://127.0.0.1:7400"],
        "uptime_s": 100.0,
        "named_destinations": 200,
        "components": [{"role": "supervisor", "index": 0, "state": "serving", "version": "9.9.9", "pid": 1}],
        "posts": [
            {"role": role, "index": index, "up": True, "needed": True, "restarts": index, "reason": ""}
            for role, index in posts
        ],
        "processes": [
            {"role": role, "index": index, "state": state, "pid": 7, "rss_bytes": 1000, "cpu_s": 0.5, "threads": 1}
            for role, index, state in (("router", 0, "active"), ("router", 0, "standby"), ("router", 0, "standby"))
        ],
        "replaced": Pauses().facts(),
        "updates": [],
        "connections": [],
        "managers": [
            {
                "index": index,
                "pid": 10 + index,
                "connections": 2,
                "draining": False,
                "reading": True,
                "up": ring,
                "down": ring,
                "arena_used": 65536,
                "arena_capacity": 1 << 20,
                "stored": 4,
                "stored_bytes": 44,
                "counters": counters("manager", messages_in=100 * (index + 1), connections_open=2),
            }
            for index in (0, 1)
        ],
        "router": counters("router", last_pause_ns=1_500_000),
        "dispatcher": counters("dispatcher"),
        "messages": {
            "enabled": True,
            "state": "active",
            "sync": "always",
            **counters("message-manager", syncs=5, syncs_timed=4, sync_time_ns=8_000_000, sync_le_1ms=3, stored=7),
        },
        "links": [],
        "registrar": {"state": "switched off"},
        "streams": {"state": "switched off"},
        "tunnel": {"enabled": True, "gateway": {"state": "not needed yet"}, "broker": {"state": "not needed yet"}},
        "stored": 8,
        "stored_bytes": 88,
        "notes": [],
    } | changed


def destination(name: str = "orders", **changed: Any) -> dict[str, Any]:
    figures = ("bytes", "consumers", "blocked", "paused", "delivered", "redelivered", "acknowledged", "expired", "dead")
    row: dict[str, Any] = {"name": name, "kind": "queue", "group": "a", "depth": 3, "oldest_ms": 0, "stored": 9}
    return row | dict.fromkeys(figures, 0) | changed


def facts(**changed: Any) -> Facts:
    other = destination("?", depth=1, count=2)
    whole: dict[str, Any] = {
        "status": status(), "destinations": [destination()], "others": [other], "now_s": 1000.0,
    }  # fmt: skip
    return Facts(**(whole | changed))
