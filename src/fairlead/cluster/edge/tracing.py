"""The commands `trace` and `find-trace`: what a message manager knows of one message (docs/tracing.md).

The journal is read by another process (life_reader.py); what is only in memory is added when it has answered: who has
the message now, who was given it of late, how far the copies are. What nobody wrote down is not made up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from fairlead.cluster import care, ids
from fairlead.cluster.admin import Later
from fairlead.cluster.core import Core
from fairlead.cluster.destination import Destination
from fairlead.cluster.edge.eventlog import tail
from fairlead.cluster.edge.life_reader import ask
from fairlead.errors import BadParameter

__all__ = ["FindTrace", "Trace", "Traces"]

LINES_MAX: Final = 50  # of the event log, in one answer
LOG_MAX: Final = 10_000
"""Lines of the event log that are looked at."""
READING_MAX: Final = 2
"""Journals are not read by more processes than this at a time."""


class Trace(Struct, kw_only=True):
    """One message by its id."""

    id: Annotated[str, Meta(max_length=64)]


class FindTrace(Struct, kw_only=True):
    """The messages of a trace."""

    trace: Annotated[str, Meta(max_length=64)]


class Traces:
    """Offers the command."""

    def __init__(self, core: Core, folder: Path, log: Path) -> None:
        self._core = core
        self._folder = folder
        self._log = log
        self._reading = 0
        core.admin.register("trace", Trace, self.trace)
        core.admin.register("find-trace", FindTrace, self.find_trace)

    def trace(self, asked: Trace) -> Later:
        """The life of one message: received, stored, delivered, settled, as far as it is on record."""
        id_ = _digits("The id of a message", asked.id.lower().removeprefix("id:"), 2 * ids.ID_BYTES)
        return self._asked({"id": id_}, lambda found: self._of_message(id_, found))

    def find_trace(self, asked: FindTrace) -> Later:
        """The stored messages of an OpenTelemetry trace."""
        return self._asked({"trace": _digits("The id of a trace", asked.trace.lower(), 32)}, self._of_trace)

    def _asked(self, question: dict[str, str], finish: Callable[[dict[str, Any]], dict[str, Any]]) -> Later:
        if self._reading >= READING_MAX:
            raise BadParameter(f"{READING_MAX} messages are being traced already: ask again in a moment.")
        self._reading += 1

        def begin(then: Callable[[Any], None]) -> None:
            def done(found: Any) -> None:
                self._reading -= 1
                then(found if isinstance(found, Exception) else finish(found))

            self._core.work(lambda: self._read(question), done)

        return Later(begin)

    def _read(self, question: dict[str, str]) -> dict[str, Any]:
        """What is on disk; in a thread."""
        found = ask(self._folder, question)
        first_ms = min((event["ms"] for event in found.get("events", ())), default=0)
        found["log"] = tail(self._log, lines=LOG_MAX, since_ms=first_ms) if first_ms else []
        return found

    # --- What is added ----------------------------------------------------------------------------------------------
    def _where(self) -> dict[str, Any]:
        return {"node": self._core.admin.node, "group": self._core.group, "epoch": self._core.epoch}

    def _of_trace(self, found: dict[str, Any]) -> dict[str, Any]:
        for one in found["messages"]:
            self._name(one, "destination", found["names"])
        return {**self._where(), "messages": found["messages"], "cut": found["cut"], "looked": found["looked"]}

    def _of_message(self, id_: str, found: dict[str, Any]) -> dict[str, Any]:
        core = self._core
        events: list[dict[str, Any]] = found["events"]
        for place in found["places"]:
            events += self._deliveries(place["destination"], place["order"])
        for event in events:
            self._name(event, "destination", found["names"])
            self._name(event, "to", found["names"])
            self._name_session(event)
        events.sort(key=lambda event: (event["ms"], event.get("index") or 0))
        made = ids.decode(bytes.fromhex(id_))
        return {
            **self._where(),
            "id": id_,
            "made": {"address": made.address, "port": made.port, "start_s": made.start_s, "number": made.sequence},
            "found": bool(events),
            "message": found["message"],
            "events": events,
            "log": self._events(found["log"], events),
            "now": [self._now(place) for place in found["places"] if not place["left"]],
            "copies": self._copies([place["index"] for place in found["places"]]),
            "deliveries_since_ms": core.deliveries.since_ms or core.started_ms,
            "cut": found["cut"],
            "looked": found["looked"],
        }

    def _events(self, lines: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Lines of the event log that name a destination it has been in: commands of administrators among them."""
        names = {event.get(key) for event in events for key in ("destination", "to")} - {None}
        found = []
        for line in lines:
            args = line.get("args")
            said = {line.get("destination"), *(args.values() if isinstance(args, dict) else ())}
            if any(isinstance(one, str) and one in names for one in said):
                found.append(line)
        return found[-LINES_MAX:]

    def _deliveries(self, number: int, order: int) -> list[dict[str, Any]]:
        """Those of late: the journal does not have them."""
        return [
            {
                "ms": one.ms,
                "what": one.how,
                "destination": number,
                "order": order,
                "cursor": one.cursor,
                "count": one.count,
                "session": one.session,
                "user": one.user or None,
                "client": one.client or None,
            }
            for one in self._core.deliveries.of(number, order)
        ]

    def _now(self, place: dict[str, Any]) -> dict[str, Any]:
        """What is with it at this moment, in one destination."""
        home, order = self._core.destinations.get(place["destination"]), place["order"]
        if home is None:
            return {"destination": None, "order": order, "state": "gone"}
        facts: dict[str, Any] = {"destination": home.name, "order": order, "state": "gone"}
        if order >= home.visible:
            return facts | {"state": "not visible yet"}
        if order >= home.first:
            facts |= {"state": care.state(home, order), "deliveries": home.deliveries(order)}
        holders = [
            {
                "session": share.consumer.session.id.hex(),
                "user": share.consumer.session.user or None,
                "client": share.consumer.session.line.client if share.consumer.session.line else None,
                "subscription": cursor.name or None,
            }
            for cursor in home.cursors.values()
            for share in cursor.all_shares()
            if share.locked.covered(order, order + 1)
        ]
        if holders:
            facts["held_by"] = holders
        due = [cursor.delayed[order] for cursor in home.cursors.values() if order in cursor.delayed]
        if due:
            facts["due_ms"] = min(due)
        return facts

    def _copies(self, indexes: list[int]) -> dict[str, Any]:
        """Up to where each copy of the journal is on stable storage, and whether that includes this message."""
        if not indexes:
            return {}
        last = max(indexes)
        facts: dict[str, Any] = {"index": last, "confirmed": last <= self._core.safe}
        holders = self._core.holders()
        if holders:
            facts["nodes"] = [
                {"node": node, "synced": upto >= last, "upto": upto, "in_sync": in_sync}
                for node, (upto, in_sync) in sorted(holders.items())
            ]
        return facts

    def _name(self, facts: dict[str, Any], key: str, names: dict[str, str]) -> None:
        number = facts.get(key)
        if not isinstance(number, int):
            return
        home = self._core.destinations.get(number)
        facts[key] = names.get(str(number), f"(deleted, number {number})") if home is None else home.name
        if home is not None and key == "destination":
            self._name_cursor(facts, home)

    def _name_cursor(self, facts: dict[str, Any], home: Destination) -> None:
        number = facts.pop("cursor", 0)
        if number:
            cursor = home.cursors.get(number)
            facts["subscription"] = cursor.name if cursor is not None and cursor.name else f"number {number}"

    def _name_session(self, facts: dict[str, Any]) -> None:
        """A session that is still known says whose it is."""
        text = facts.get("session")
        if not text or "client" in facts:
            return
        session = self._core.sessions.by_id.get(bytes.fromhex(text))
        if session is not None:
            facts["user"] = session.user or None
            facts["client"] = session.line.client if session.line is not None else session.client or None


def _digits(what: str, text: str, count: int) -> str:
    if len(text) != count or not all(letter in "0123456789abcdef" for letter in text):
        raise BadParameter(f"{what} has {count} hexadecimal digits; {text!r:.60} is none.")
    return text
