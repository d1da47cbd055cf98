"""Is the server alive, is it ready, and if not: why not? From the status report alone.

Alive is whoever answers: a supervisor that does is doing its work, and what it looks after is its own to restart.
Ready means that a client that comes now is served: router, dispatcher, at least one manager that takes connections,
and, unless it is switched off, whoever keeps messages, with room to store them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

KEEPERS: Final = ("message-manager", "agent")
READY: Final = "The server is ready."


class Check(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that was looked at; `text` is a sentence, also if all is well."""

    name: str
    ok: bool
    text: str


class Verdict(msgspec.Struct, kw_only=True, frozen=True):
    """All of it."""

    ok: bool
    checks: list[Check]

    @property
    def reasons(self) -> list[str]:
        """What is wrong."""
        return [check.text for check in self.checks if not check.ok]

    @property
    def sentence(self) -> str:
        return " ".join(self.reasons) or READY


def alive(status: dict[str, Any] | None) -> Verdict:
    """None: nobody answered."""
    if status is None:
        return _verdict([Check(name="supervisor", ok=False, text="The supervisor does not answer.")])
    return _verdict([Check(name="supervisor", ok=True, text="It answers.")])


def ready(status: dict[str, Any] | None) -> Verdict:
    """Would a client be served?"""
    if status is None:
        return alive(status)
    stage = next((one["state"] for one in status["components"] if one["role"] == "supervisor"), "gone")
    checks = [Check(name="supervisor", ok=stage == "serving", text=f"The server is {stage}.")]
    for role in ("router", "dispatcher", *KEEPERS):
        checks += [_post(post) for post in status["posts"] if post["role"] == role and post["needed"]]
    checks.append(_managers(status))
    if status["messages"]["enabled"] and status["messages"].get("store_full"):
        text = "The message store is full: nothing can be stored until there is room."
        checks.append(Check(name="store", ok=False, text=text))
    return _verdict(checks)


def _verdict(checks: list[Check]) -> Verdict:
    return Verdict(ok=all(check.ok for check in checks), checks=checks)


def _post(post: dict[str, Any]) -> Check:
    if post["up"]:
        return Check(name=post["role"], ok=True, text="It serves.")
    role = post["role"].replace("-", " ")
    return Check(name=post["role"], ok=False, text=f"There is no {role} in service: {post['reason'] or 'starting'}.")


def _managers(status: dict[str, Any]) -> Check:
    managers = [post for post in status["posts"] if post["role"] == "manager"]
    up = {post["index"] for post in managers if post["up"]}
    taking = up - {one["index"] for one in status["managers"] if one["draining"]}
    if taking:
        return Check(name="managers", ok=True, text=f"{len(taking)} of {len(managers)} take connections.")
    reason = next((str(post["reason"]) for post in managers if post["reason"]), "none is started")
    text = f"No connection manager takes connections: {'all are draining' if up else reason}."
    return Check(name="managers", ok=False, text=text)
