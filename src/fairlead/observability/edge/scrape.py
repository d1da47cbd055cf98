"""Asking a running server for its figures, over the socket only its own user can open.

Nothing of it touches the way of messages: the status report is read from the segments by the supervisor, destinations
are counted by the message manager between two turns. What does not answer in time is named, and left out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from fairlead.cluster.configuration.overview import overview
from fairlead.errors import Unavailable
from fairlead.observability.facts import Facts
from fairlead.runtime.admin import answer_of

ANSWER_S: Final = 5.0  # below the ten seconds after which Prometheus gives up
NODES_S: Final = 2.0


def gather(run: Path, *, destinations: int | None = None, timeout_s: float = ANSWER_S, brief: bool = True) -> Facts:
    """Everything that is known now; Unavailable if there is no server.

    `destinations`: so many by name, instead of the number set for the server.
    """
    began_s = time.monotonic()
    status = answer_of(run, "status", timeout_s=timeout_s, brief=brief)["status"]
    facts = Facts(status=status)
    if status["messages"]["enabled"]:
        count = status["named_destinations"] if destinations is None else destinations
        found = _ask(run, facts, "figures", {"count": count}, timeout_s)
        for group in found.get("groups", {"": found}).values():
            if "destinations" in group:
                label = {"group": group["group"]}
                facts.destinations += [one | label for one in group["destinations"]]
                facts.others.append(group["other"] | label)
        facts.unanswered += [f"group {name}" for name in found.get("missing", [])]
    if any(post["role"] == "agent" and post["up"] for post in status["posts"]):
        found = _ask(run, facts, "cluster-status", {"patience_s": NODES_S}, timeout_s)
        facts.cluster = overview(found) if found else None
    facts.now_s = time.time()
    facts.took_s = round(time.monotonic() - began_s, 6)
    return facts


def _ask(run: Path, facts: Facts, name: str, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = answer_of(run, "admin", timeout_s=timeout_s, name=name, args=args)["result"]
    except Unavailable as error:
        facts.unanswered.append(f"{name}: {error}")
        return {}
    return found
