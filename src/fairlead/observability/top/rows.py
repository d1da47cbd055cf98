"""The rows of each view, with rates between two moments. A counter that fell has begun anew: its rate is unknown, 0."""

from __future__ import annotations

from typing import Any

from fairlead.observability.facts import Facts

Row = dict[str, Any]


class Pair:
    """Two moments of one server; the first may be missing."""

    def __init__(self, before: Facts | None, now: Facts) -> None:
        self.now = now
        self._known = now if before is None or before.status["server_id"] != now.status["server_id"] else before
        self.span_s = now.now_s - self._known.now_s
        self._managers = {one["index"]: one["counters"] for one in self._known.status["managers"]}
        self._named = {(one["group"], one["name"]): one for one in self._known.destinations}
        self._others = {one["group"]: one for one in self._known.others}
        self._processes = {one["pid"]: one for one in self._known.status["processes"]}

    def rate(self, before: dict[str, Any] | None, now: dict[str, Any], key: str) -> float:
        """A second."""
        if before is None or self.span_s <= 0:
            return 0.0
        grown: float = now.get(key, 0) - before.get(key, 0)
        return max(grown, 0.0) / self.span_s

    def totals(self) -> Row:
        """Of the whole server."""
        status = self.now.status
        managers, destinations = self.managers(), self.destinations()
        return {
            "in": sum(one["in"] for one in managers),
            "out": sum(one["out"] for one in managers),
            "stored": sum(one["in"] for one in destinations),
            "acknowledged": sum(one["acknowledged"] for one in destinations),
            "sync_ms": status["messages"].get("last_sync_ns", 0) / 1e6,
            "depth": sum(one["depth"] for one in destinations),
            "connections": sum(one["connections"] for one in managers),
        }

    def managers(self) -> list[Row]:
        found = []
        for one in self.now.status["managers"]:
            before, counters = self._managers.get(one["index"]), one["counters"]
            state = "draining" if one["draining"] else "reading" if one["reading"] else "STOPPED"
            found.append(
                {
                    "manager": one["index"],
                    "connections": one["connections"],
                    "in": self.rate(before, counters, "messages_in"),
                    "out": self.rate(before, counters, "messages_out"),
                    "bytes": self.rate(before, counters, "bytes_in") + self.rate(before, counters, "bytes_out"),
                    "under way": one["stored"],
                    "up": one["up"]["bytes"] / one["up"]["capacity"],
                    "down": one["down"]["bytes"] / one["down"]["capacity"],
                    "arena": one["arena_used"] / one["arena_capacity"],
                    "state": state,
                }
            )
        return found

    def destinations(self) -> list[Row]:
        found = []
        for one in self.now.destinations:
            before = self._named.get((one["group"], one["name"]))
            found.append(self._destination(one, before, one["name"], one["kind"]))
        for one in self.now.others:
            if one["count"]:
                before = self._others.get(one["group"])
                found.append(self._destination(one, before, f"({one['count']:,} others)", ""))
        return found

    def _destination(self, one: Row, before: Row | None, name: str, kind: str) -> Row:
        age_s = self.now.now_s - one["oldest_ms"] / 1000 if one["oldest_ms"] else 0.0
        remarks = [word for word in ("blocked", "paused") if one.get(word)]
        return {
            "destination": name,
            "kind": kind,
            "group": one["group"],
            "depth": one["depth"],
            "oldest": max(age_s, 0.0),
            "in": self.rate(before, one, "stored"),
            "out": self.rate(before, one, "delivered"),
            "acknowledged": self.rate(before, one, "acknowledged"),
            "again": one["redelivered"],
            "dead": one["dead"],
            "consumers": one["consumers"],
            "remark": ", ".join(remarks),
        }

    def processes(self) -> list[Row]:
        components = {one["pid"]: one for one in self.now.status["components"]}
        restarts = {(one["role"], one["index"]): one["restarts"] for one in self.now.status["posts"]}
        found = []
        for one in self.now.status["processes"]:
            known = components.get(one["pid"], {})
            name = f"manager {one['index']}" if one["role"] == "manager" else one["role"]
            found.append(
                {
                    "process": name,
                    "state": one["state"],
                    "pid": one["pid"],
                    "cpu": self.rate(self._processes.get(one["pid"]), one, "cpu_s"),
                    "memory": one["rss_bytes"],
                    "threads": one["threads"],
                    "restarts": restarts.get((one["role"], one["index"]), 0),
                    "version": known.get("version", ""),
                    "age": max(self.now.now_s - known.get("started_ns", 0) / 1e9, 0.0) if known else 0.0,
                }
            )
        return found

    def connections(self) -> list[Row]:
        return [
            {
                "connection": one["uid"],
                "manager": one["manager"],
                "state": one["state"],
                "peer": one["peer"],
                "user": one["user"],
                "type": one["type"],
                "instance": one["instance"],
                "age": max(self.now.now_s - one["opened_ns"] / 1e9, 0.0),
            }
            for one in self.now.status["connections"]
        ]

    def updates(self) -> list[Row]:
        """And takeovers after deaths; the newest has the smallest age."""
        return [
            {
                "component": one["component"],
                "outcome": one["outcome"],
                "pause": one["pause_ms"] / 1000,
                "from": one["from_version"],
                "to": one["to_version"],
                "age": max(self.now.now_s - one["when_ns"] / 1e9, 0.0),
                "reason": one["reason"],
            }
            for one in self.now.status["updates"]
        ]
