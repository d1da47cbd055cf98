"""The table of the admin API: every operation once. Requests are routed by it, rights checked, and the description at
/api/openapi.json and the table of docs/api.md are made from it.

Paths are matched before they are decoded, so that a name with a slash in it stays one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from fairlead.console import queries, shapes, shapes_messages, shapes_server, shapes_time, shapes_users
from fairlead.console.authority import Right
from fairlead.console.problems import Denied

SMALL: Final = 64 << 10
LARGE: Final = 2 << 20


class Operation(NamedTuple):
    """One thing that can be asked."""

    method: str
    path: str
    name: str  # of its handler, and its operationId
    text: str
    answer: type[Struct] | str  # a struct, or the media type of something else
    right: Right = "admin"
    query: type[Struct] = queries.Nothing
    body: type[Struct] | None = None
    body_bytes_max: int = SMALL
    needs: tuple[str, ...] = ()  # further rights that the handler looks for itself, in words

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def variables(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


_ = Operation
_D: Final = "/api/v1/destinations/{name}"
_M, _U, _T, _S = shapes_messages, shapes_users, shapes_time, shapes_server

OPERATIONS: Final[tuple[Operation, ...]] = (
    _("GET", "/api/v1/me", "me", "Who is asking, and what he may do.", shapes.Me, "anybody"),
    _("POST", "/api/v1/login", "login", "Log in: sets a cookie.", shapes.Me, "anybody", body=shapes.Login),
    _("POST", "/api/v1/logout", "logout", "Log out.", shapes.Done, "anybody"),
    _("GET", "/api/v1/overview", "overview", "The server at a glance.", _S.Overview),
    _("GET", "/api/v1/cluster", "cluster", "Nodes and groups; empty on a single server.", _S.Cluster),
    _(
        *("GET", "/api/v1/destinations", "destinations", "Queues and topics in figures."),
        _M.Destinations,
        "user",
        queries.DestinationsQuery,
        needs=("of what this user may browse, consume from or send to",),
    ),
    _("GET", _D, "destination", "Everything about one destination.", _M.DestinationDetail, "see"),
    _("POST", _D, "create", "Create a queue or topic.", _M.Created, "create", body=_M.NewDestination),
    _("DELETE", _D, "delete", "Delete it with its messages.", shapes.Counted, query=queries.DeleteQuery),
    _("POST", f"{_D}/pause", "pause", "Stop deliveries; sends go on.", shapes.Done),
    _("POST", f"{_D}/resume", "resume", "Deliver again.", shapes.Done),
    _("POST", f"{_D}/purge", "purge", "Remove what nobody holds.", shapes.Counted, body=_M.Purge),
    _(
        *("POST", f"{_D}/send", "send", "Send a message, or some of the same."),
        _M.Sent,
        "send",
        body=_M.NewMessage,
        body_bytes_max=LARGE,
    ),
    _("POST", f"{_D}/move", "move", "Move messages elsewhere; try it with `dry_run`.", _M.Moved, body=_M.Move),
    _("GET", f"{_D}/messages", "browse", "Look at messages.", _M.MessagePage, "browse", queries.MessagesQuery),
    _("GET", f"{_D}/messages/{{order}}", "message", "One message.", _M.Message, "browse", queries.MessageQuery),
    _("DELETE", f"{_D}/messages/{{order}}", "drop", "Remove one message.", shapes.Counted),
    _("GET", "/api/v1/dead", "dead", "Dead messages by reason.", _M.DeadPage, "admin", queries.DeadQuery),
    _("POST", "/api/v1/dead/redrive", "redrive", "Send them back; first as a dry run.", _M.Redriven, body=_M.Redrive),
    _(
        "GET",
        "/api/v1/schedules",
        "schedules",
        "What is sent later.",
        _M.Schedules,
        "admin",
        queries.SchedulesQuery,
    ),
    _("DELETE", "/api/v1/schedules/{name}/{order}", "cancel_schedule", "End a schedule.", shapes.Done),
    _("GET", "/api/v1/connections", "connections", "Clients.", _U.Connections, "admin", queries.ConnectionsQuery),
    _("DELETE", "/api/v1/connections/{id}", "disconnect", "Cut a client off.", shapes.Done),
    _(
        "GET",
        "/api/v1/sessions",
        "sessions",
        "Sessions of clients.",
        _U.Sessions,
        "admin",
        queries.SessionsQuery,
    ),
    _("GET", "/api/v1/tunnels", "tunnels", "Clients that come through HTTP.", _U.Tunnels),
    _("GET", "/api/v1/feeds", "feeds", "Streams and their adapters.", _U.Feeds),
    _("GET", "/api/v1/directory", "directory", "The tables of the directory.", _U.Directory),
    _("GET", "/api/v1/pipelines", "pipelines", "Programs that read and write in bulk.", _U.Pipelines),
    _("GET", "/api/v1/history", "history", "How figures went.", _T.History, "admin", queries.HistoryQuery),
    _("GET", "/api/v1/events", "events", "The event log, the newest first.", _T.Events, "admin", queries.EventsQuery),
    _("POST", "/api/v1/update", "update", "Replace programs live.", _S.UpdateDone, body=_S.NewUpdate),
    _("GET", "/api/v1/live", "live", "Server-sent events.", "text/event-stream", "admin", queries.LiveQuery),
    _("GET", "/health/live", "alive", "Does the console answer?", _T.Health, "anybody"),
    _("GET", "/health/ready", "ready", "Does the server serve? 503 if it does not.", _T.Health, "anybody"),
)


class Found(NamedTuple):
    operation: Operation
    values: dict[str, str]  # of the pieces in braces


class Routes:
    """Finds the operation of a request."""

    def __init__(self, operations: tuple[Operation, ...] = OPERATIONS) -> None:
        self._by_path: dict[tuple[str, ...], dict[str, Operation]] = {}
        for one in operations:
            self._by_path.setdefault(tuple(one.path.split("/")), {})[one.method] = one

    def find(self, method: str, raw_path: str) -> Found:
        """Denied with 404 or 405 if there is none; the latter names the methods there are."""
        allowed: set[str] = set()
        pieces = raw_path.split("/")
        for path, methods in self._by_path.items():
            values = _match(path, pieces)
            if values is None:
                continue
            if method in methods:
                return Found(methods[method], values)
            allowed |= methods.keys()
        if allowed:
            raise WrongMethod(sorted(allowed))
        raise Denied(404, "There is nothing here; /api/openapi.json says what there is.", code="bad-request")


class WrongMethod(Denied):
    """There is such a path, but not for this."""

    def __init__(self, allowed: list[str]) -> None:
        super().__init__(405, f"Only {' and '.join(allowed)} can be done here.")
        self.allowed = allowed


def _match(path: tuple[str, ...], pieces: list[str]) -> dict[str, str] | None:
    if len(path) != len(pieces):
        return None
    values: dict[str, str] = {}
    for wanted, piece in zip(path, pieces, strict=True):
        if wanted.startswith("{"):
            if not piece:
                return None
            values[wanted[1:-1]] = decoded(piece)
        elif wanted != piece:
            return None
    return values


def decoded(piece: str) -> str:
    try:
        return unquote_to_bytes(piece).decode("utf-8")
    except UnicodeDecodeError:
        raise Denied(400, "The path is not UTF-8.") from None


def structs() -> Iterator[type[Struct]]:
    """Every struct the operations speak of."""
    seen: set[Any] = set()
    for one in OPERATIONS:
        for kind in (one.answer, one.body, one.query):
            if isinstance(kind, type) and kind not in seen:
                seen.add(kind)
                yield kind
