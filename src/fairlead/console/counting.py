"""The counters of a status report under one name each, so that rates and history speak of the same things.

`manager/0/messages_in`, `router/deliveries`, `dispatcher/accepted`, `messages/stored`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]


def counters_of(report: Report) -> dict[str, int]:
    """Every counter there is."""
    found: dict[str, int] = {}
    for manager in report.get("managers", []):
        found |= _named(f"manager/{manager['index']}", manager.get("counters", {}))
    for part in ("router", "dispatcher", "messages"):
        found |= _named(part, report.get(part, {}))
    return found


def managers_of(report: Report) -> list[int]:
    return [int(one["index"]) for one in report.get("managers", [])]


def _named(prefix: str, counters: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{prefix}/{name}": value
        for name, value in counters.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
