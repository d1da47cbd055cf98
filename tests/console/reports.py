"""A status report as a small server gives it, for tests of what the console makes of one."""

from __future__ import annotations

from typing import Any

from fairlead.runtime.counters import COUNTERS


def counters(role: str, **given: int) -> dict[str, int]:
    return {one.name.lower(): 0 for one in COUNTERS[role]} | given


def component(role: str, index: int = 0, state: str = "active", **more: Any) -> dict[str, Any]:
    usual = {"version": "1", "pid": 100 + index, "started_ns": 5_000_000_000, "generation": 1, "python": "python"}
    return {"role": role, "index": index, "state": state, **usual, **more}


def ring(used: int = 0) -> dict[str, int]:
    return {"bytes": used, "capacity": 1000, "entries": 0, "counted": 0}


def manager(index: int, **given: Any) -> dict[str, Any]:
    counted = {name: given.pop(name) for name in list(given) if name in counters("manager")}
    usual = {
        "index": index,
        "pid": 200 + index,
        "connections": 1,
        "draining": False,
        "reading": True,
        "up": ring(),
        "down": ring(),
        "stored": 0,
        "stored_bytes": 0,
    }
    return usual | given | {"counters": counters("manager", **counted)}


def report(**given: Any) -> dict[str, Any]:
    """All well, two managers."""
    usual: dict[str, Any] = {
        "server_id": "0f",
        "version": "1",
        "listen": ["fairlead://127.0.0.1:7400"],
        "data": "data",
        "mode": "compiled",
        "uptime_s": 10.0,
        "components": [
            component("supervisor", state="serving"),
            component("dispatcher"),
            component("dispatcher", state="standby"),
            component("router"),
            component("router", state="standby"),
            component("manager", 0),
            component("manager", 1),
            component("message-manager"),
            component("console"),
        ],
        "updates": [],
        "connections": [],
        "managers": [manager(0), manager(1)],
        "router": counters("router"),
        "dispatcher": counters("dispatcher"),
        "messages": {"enabled": True, "state": "active", "sync": "always", **counters("message-manager")},
        "links": [],
        "registrar": {"state": "switched off"},
        "streams": {"state": "switched off"},
        "console": {"state": "active", "urls": ["http://127.0.0.1:7480"], "note": ""},
        "tunnel": {"enabled": True},
        "stored": 0,
        "stored_bytes": 0,
        "attachments": [],
        "subscriptions": 1,
        "registrations": 0,
        "requests_open": 0,
        "accounting_faults": 0,
        "safety_tick_finds": 0,
        "messages_given_up": 0,
        "notes": [],
    }
    return usual | given
