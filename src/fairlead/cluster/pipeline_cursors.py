"""Named cursors for programs that work in bulk: the commands `cursor-open`, `-reserve`, `-commit`, `-release`.

On a queue a cursor is a ledger of reservations (reserving.py), on a topic a durable subscription nobody consumes from
(subscriptions.py). Both outlive every connection; who knows the name and may consume from the destination may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.cluster import gathering, records, requests, reserving, settling
from fairlead.cluster.admin_arguments import ListCursors, ReleaseCursor
from fairlead.cluster.names import check_name
from fairlead.cluster.positions import NO_LIMIT, found, plan
from fairlead.errors import (
    BadName,
    BadParameter,
    DestinationDeleted,
    FairleadError,
    NotAllowed,
    OffsetGone,
)

if TYPE_CHECKING:
    from fairlead.cluster.bulk import Handler
    from fairlead.cluster.core import Core
    from fairlead.cluster.cursor import Cursor
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Line


class PipelineCursors:
    """The cursors of all destinations of one message manager."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.commands: Mapping[str, Handler] = {
            "cursor-open": self._open,
            "cursor-reserve": self._reserve,
            "cursor-commit": self._commit,
            "cursor-release": self._release,
        }
        core.admin.register("cursors", ListCursors, self.cursors)
        core.admin.register("release-cursor", ReleaseCursor, self.release_cursor, changes=True)

    # ------------------------------------------------------------------ commands

    def _open(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.OpenCursor)
        check_name(asked.name)

        def opened(home: Destination) -> dict[str, Any]:
            if home.kind == "queue":
                one = reserving.make(home, asked.name) if asked.create else reserving.find(home, asked.name)
                return {"kind": "queue", "at": one.at, "reserved": one.reserved}
            subscriptions = self._core.sessions.subscriptions
            if asked.create:
                cursor = subscriptions.open_cursor(home, asked.name, asked.start)
            else:
                cursor = self._cursor(home, asked.name)
            return {"kind": "topic", "at": cursor.floor, "reserved": max(cursor.floor, home.visible)}

        self._post(line, number, asked.destination, opened)

    def _reserve(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.Reserve)

        def begin(home: Destination) -> dict[str, Any] | None:
            at, beyond = self._bounds(home, asked.name)
            if asked.start > beyond:
                raise BadParameter(f"The cursor {asked.name!r} has reserved up to {beyond}, not up to {asked.start}.")
            if asked.start < at:
                raise OffsetGone(f"The cursor {asked.name!r} has committed up to {at}. lost: [{asked.start}, {at}]")
            if home.kind == "topic":
                limits = asked.messages or NO_LIMIT, asked.bytes or NO_LIMIT
                return {"end": plan(home, asked.start, beyond, *limits)}
            one = reserving.find(home, asked.name)

            def done(end: int | FairleadError) -> None:
                if isinstance(end, FairleadError):
                    self._core.error(line, number, end.code, end.text)
                else:
                    self._core.after(one.index, lambda: self._core.answer(line, number, {"end": end}))

            gathering.ask(home, gathering.Asked(line, one, asked.start, asked.messages, asked.bytes, done))
            return None

        self._post(line, number, asked.destination, begin)

    def _commit(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.CommitCursor)

        def committed(home: Destination) -> dict[str, Any]:
            at, beyond = self._bounds(home, asked.name)
            if asked.end > beyond:
                raise BadParameter(f"The cursor {asked.name!r} has reserved up to {beyond}, not up to {asked.end}.")
            if home.kind == "queue":
                reserving.commit(home, reserving.find(home, asked.name), asked.end)
            elif asked.end > at:
                cursor = self._cursor(home, asked.name)
                settling.write(home, cursor, [(at, asked.end, records.GONE, 0, 0)])
            return {"at": self._bounds(home, asked.name)[0]}

        self._post(line, number, asked.destination, committed)

    def _release(self, line: Line, number: int, request: dict[str, Any]) -> None:
        asked = requests.read(request, requests.OfCursor)
        self._post(line, number, asked.destination, lambda home: {"released": self.release(home, asked.name)})

    def _post(self, line: Line, number: int, name: str, action: Callable[[Destination], dict[str, Any] | None]) -> None:
        """Do this behind what the destination has to do before, and answer when it is safe."""
        destination = found(self._core, name)
        owner = self._core.sessions.owners.get(destination.number)
        if owner is not None and all(session.id != owner for session in line.sessions.values()):
            raise NotAllowed(f"{name!r} is temporary; only the connection that made it may consume from it.")

        def act() -> None:
            try:
                if self._core.destinations.get(destination.number) is not destination:
                    raise DestinationDeleted(f"{name!r} was deleted.")
                facts = action(destination)
            except FairleadError as refusal:
                self._core.error(line, number, refusal.code, refusal.text)
                return
            if facts is not None:
                self._core.after(self._core.last_index, lambda: self._core.answer(line, number, facts))

        self._core.post(destination, act)

    # ------------------------------------------------------------------ what there is

    def _cursor(self, home: Destination, name: str) -> Cursor:
        cursor = self._core.sessions.subscriptions.find_cursor(home, name)
        if cursor is None:
            raise BadName(f"{home.name!r} has no cursor {name!r}.")
        cursor.used_ms = self._core.now_ms
        return cursor

    def _bounds(self, home: Destination, name: str) -> tuple[int, int]:
        """From where to where positions can be read."""
        if home.kind == "queue":
            one = reserving.find(home, name)
            one.used_ms = self._core.now_ms
            return one.at, one.reserved
        cursor = self._cursor(home, name)
        return cursor.floor, max(cursor.floor, home.visible)

    def release(self, home: Destination, name: str) -> int:
        """The end of a cursor; how many messages it had not committed."""
        if home.kind == "queue":
            return reserving.release(home, reserving.find(home, name))
        cursor = self._cursor(home, name)
        count = cursor.depth(home.visible)
        self._core.sessions.subscriptions.release_cursor(home, name)
        return count

    # ------------------------------------------------------------------ what goes away

    def on_gone(self, line: Line) -> None:
        """Nothing: what waits for a reservation sees it by itself."""

    def on_deleted(self, destination: Destination, reason: str) -> None:
        if destination.ledger is not None:
            waiting, destination.ledger.asked = destination.ledger.asked, []
            for asked in waiting:
                asked.done(DestinationDeleted(reason))

    # ------------------------------------------------------------------ administration

    def cursors(self, asked: ListCursors) -> dict[str, Any]:
        """The named cursors of a destination, or of all: what each has reserved and not committed."""
        homes = [found(self._core, asked.destination)] if asked.destination else self._core.destinations.values()
        return {"cursors": [facts for home in homes for facts in _facts(home)]}

    def release_cursor(self, asked: ReleaseCursor) -> dict[str, Any]:
        """Give back what a cursor has reserved and end it; a program that uses it fails."""
        return {"released": self.release(found(self._core, asked.destination), asked.name)}


def _facts(home: Destination) -> list[dict[str, Any]]:
    rows = []
    for one in home.ledger.by_name.values() if home.ledger is not None else ():
        size = sum(settling.bytes_of(home, low, high) for low, high in one.spans(one.at, one.reserved))
        rows.append((one.name, one.at, one.reserved, size, one.made_ms, one.used_ms))
    for cursor in home.cursors.values():
        if cursor.opened_ms:
            end = max(cursor.floor, home.visible)
            size = settling.bytes_of(home, cursor.floor, end)
            rows.append((cursor.name, cursor.floor, end, size, cursor.opened_ms, cursor.used_ms))
    return [
        {
            "destination": home.name,
            "name": name,
            "kind": home.kind,
            "at": at,
            "reserved": reserved,
            "rows": reserved - at,
            "bytes": size,
            "opened_ms": opened_ms,
            "used_ms": used_ms,
        }
        for name, at, reserved, size, opened_ms, used_ms in rows
    ]
