"""Is the server alive, is it ready, and if not: why not? From the status report alone.

Alive is whoever answers: a supervisor that does is doing its work, and what it looks after is its own to restart.
Ready means that a client that comes now is served: router, dispatcher, at least one manager that takes connections,
and, unless it is switched off, whoever keeps messages.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

KEEPERS: Final = ("message-manager", "agent")


class Verdict(msgspec.Struct, kw_only=True, frozen=True):
    """`reasons` say what is missing, each in a sentence; `checks` what was looked at and whether it was well."""

    ok: bool
    checks: dict[str, bool] = {}
    reasons: list[str] = []

    @property
    def sentence(self) -> str:
        return "The server is ready." if self.ok else " ".join(self.reasons)


def alive(status: dict[str, Any] | None) -> Verdict:
    """None: nobody answered."""
    if status is None:
        return Verdict(ok=False, checks={"supervisor": False}, reasons=["The supervisor does not answer."])
    return Verdict(ok=True, checks={"supervisor": True})


def ready(status: dict[str, Any] | None) -> Verdict:
    """Would a client be served?"""
    if status is None:
        return alive(status)
    posts: list[dict[str, Any]] = status["posts"]
    reasons: list[str] = []
    checks: dict[str, bool] = {}
    stage = next((one["state"] for one in status["components"] if one["role"] == "supervisor"), "gone")
    checks["supervisor"] = stage == "serving"
    if stage != "serving":
        reasons.append(f"The server is {stage}.")
    for role in ("router", "dispatcher", *KEEPERS):
        for post in posts:
            if post["role"] == role and post["needed"]:
                checks[role] = post["up"]
                if not post["up"]:
                    reasons.append(f"There is no {role.replace('-', ' ')} in service: {post['reason'] or 'starting'}.")
    drained = {one["index"] for one in status["managers"] if one["draining"]}
    managers = [post for post in posts if post["role"] == "manager"]
    checks["managers"] = any(post["up"] and post["index"] not in drained for post in managers)
    if not checks["managers"]:
        why = "all are draining" if any(post["up"] for post in managers) else _first_reason(managers)
        reasons.append(f"No connection manager takes connections: {why}.")
    if status["messages"]["enabled"] and status["messages"].get("store_full"):
        checks["store"] = False
        reasons.append("The message store is full: nothing can be stored until there is room.")
    return Verdict(ok=not reasons, checks=checks, reasons=reasons)


def _first_reason(posts: list[dict[str, Any]]) -> str:
    return next((str(post["reason"]) for post in posts if post["reason"]), "none is started")
