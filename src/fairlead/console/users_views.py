"""Who uses the server: rows of connections and sessions, out of the status report and administration."""

from __future__ import annotations

from typing import Any

from fairlead.console.counting import Report
from fairlead.console.shapes_users import Connection, Connections, Session
from fairlead.errors import BadParameter
from fairlead.security import inside


def connections(report: Report, *, now_ms: int, text: str = "", limit: int = 200, after: str = "") -> Connections:
    """The newest first."""
    below = after_number(after)
    wanted = text.lower()
    known = {one.get("uid"): one for one in report.get("attachments") or []}
    found = [one for one in report["connections"] if not wanted or wanted in _words(one)]
    found.sort(key=lambda one: -int(one["uid"]))
    rest = [one for one in found if below is None or one["uid"] < below]
    rows = [_connection(one, known.get(one["uid"]), now_ms) for one in rest[:limit]]
    return Connections(connections=rows, total=len(found), next=rows[-1].id if len(rest) > limit else None)


def _words(one: dict[str, Any]) -> str:
    return " ".join(str(one[key]) for key in ("user", "type", "instance", "peer", "org", "uid")).lower()


def _connection(one: dict[str, Any], attached: dict[str, Any] | None, now_ms: int) -> Connection:
    opened_ms = one["opened_ns"] // 1_000_000
    return Connection(
        id=str(one["uid"]),
        manager=one["manager"],
        state=one["state"],
        peer=one["peer"],
        user=one["user"],
        type=one["type"],
        instance=one["instance"],
        org=one["org"],
        opened_ms=opened_ms,
        age_s=max(0.0, (now_ms - opened_ms) / 1000),
        subscriptions=len(attached["subscriptions"]) if attached else None,
        registrations=len(attached["registrations"]) if attached else None,
        inside=one["user"] in inside.USERS,
    )


def session(one: dict[str, Any]) -> Session:
    line = one.get("connection")
    return Session(
        id=one["id"],
        user=one["user"],
        client=one["client"],
        connection=str(line["uid"]) if line else None,
        manager=line["manager"] if line else None,
        opened_ms=one["opened_ms"],
        waiting_ms=max(0, one["waiting_ms"]),
        producers=one["producers"],
        consumers=one["consumers"],
        held=one["held"],
        temporary=one["temporary"],
    )


def after_number(after: str) -> int | None:
    """`after` where it is a number; None: from the beginning."""
    if not after:
        return None
    if not (after.isascii() and after.isdigit() and len(after) <= 20):
        raise BadParameter("`after` is not the `next` of a page.")
    return int(after)
