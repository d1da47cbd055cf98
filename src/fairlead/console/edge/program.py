"""The console's process at work: its HTTP server, its look at the server, and its own connection as a client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fairlead.broker.edge.tls import make_context
from fairlead.console.edge.app import AllHandlers, ConsoleApp
from fairlead.console.edge.around_handlers import DirectoryAccess
from fairlead.console.edge.asking import Supervisor
from fairlead.console.edge.doorman import Doorman
from fairlead.console.edge.own_client import OwnClient
from fairlead.console.edge.watching import Watcher
from fairlead.console.gatekeeping import Gate
from fairlead.console.live import Hub
from fairlead.console.log_views import event
from fairlead.errors import FairleadError
from fairlead.runtime.settings import Console as Wishes
from fairlead.security.auditing import Ledger
from fairlead.security.rules import Rules
from fairlead.security.throttling import is_local
from fairlead.tunnel.edge.gateway.patience import PatientHttp

if TYPE_CHECKING:
    from fairlead.observability.edge.web import Pages

PATIENCE_S: Final = 10.0  # for headers to arrive and answers to be read
CONNECTIONS_MAX: Final = 512
CONNECTIONS_PER_ADDRESS: Final = 128
KEEP_ALIVE_S: Final = 30
LEAVE_S: Final = 2
NODE_S: Final = 1.0  # between two questions for the name of this node
HISTORY_FILE: Final = "history"

Note = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What this console is to be."""

    sockets: list[socket.socket]
    run_dir: Path
    folder: Path  # in the data directory, for what it keeps
    own: str  # URL of the server
    user: str
    password: str
    users_file: Path | None
    wishes: Wishes
    managers: int
    arena_bytes: int
    certificate: str = ""
    key: str = ""
    plain_passwords: str = "local"
    node: str = ""
    clustered: bool = False
    directory: DirectoryAccess | None = field(default=None)


class Console:
    """All parts of one console."""

    def __init__(self, settings: Settings, *, note: Note) -> None:
        self._settings, self._note = settings, note
        self._pages: Pages | None = None
        self._refusals = Ledger(note)  # whoever is refused again and again washes nothing out of the log
        wishes = settings.wishes
        self._supervisor = Supervisor(settings.run_dir)
        self._hub = Hub(wishes.live_clients)
        self._doorman = Doorman(settings.users_file, wishes.session_s)
        self._client = OwnClient(
            settings.own,
            user=settings.user,
            password=settings.password,
            probe_s=wishes.probe_s,
            on_event=self._on_event,
        )
        self._watcher = Watcher(
            self._supervisor,
            self._hub,
            lambda listeners: self._app.wake(listeners),
            file=settings.folder / HISTORY_FILE,
            managers=settings.managers,
            arena_bytes=settings.arena_bytes,
            history_s=wishes.history_s,
            destinations=wishes.destinations,
            node=settings.node,
            latency=self._client.latency,
            on_logs=self._client.follow,
        )
        self._handlers = handlers = AllHandlers(
            self._supervisor,
            self._watcher,
            self._doorman,
            self._client,
            node=settings.node,
            clustered=settings.clustered,
        )
        handlers.run_dir, handlers.directory_access = settings.run_dir, settings.directory
        self._app = ConsoleApp(
            handlers,
            self._hub,
            Gate(wishes.hosts),
            self._audit,
            secure=is_secure,
            metrics=self._metrics,
            open_metrics=wishes.open_metrics,
            plain_passwords=settings.plain_passwords,
        )
        self._servers = [QuietServer(config) for config in configs(self._app, settings)]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watcher.run())
            group.create_task(self._client.run())
            if self._settings.clustered:
                group.create_task(self._learn_node())
            for server, sock in zip(self._servers, self._settings.sockets, strict=True):
                group.create_task(server.serve([sock]))

    async def _learn_node(self) -> None:
        """What this node is called in its cluster; the agent knows it."""
        while not self._watcher.node:
            with contextlib.suppress(FairleadError):
                found = await self._supervisor.administer("agent")
                self._watcher.node = self._handlers.node = str(found.get("node", "")) or "?"
            await asyncio.sleep(NODE_S)

    def facts(self) -> dict[str, Any]:
        """For the status report."""
        return {"looking_on": len(self._hub.listeners), "logins": len(self._doorman)}

    def reload(self, users: Rules | Path | None) -> None:
        """Users and rules were changed."""
        assert not isinstance(users, Rules)  # whoever checks passwords needs the file itself
        self._doorman.reload(users)

    async def close(self) -> None:
        self._app.close()
        for server in self._servers:
            server.should_exit = True
        await self._client.close()
        self._doorman.close()
        self._watcher.close()

    def _on_event(self, record: dict[str, Any]) -> None:
        told = event(record)
        self._app.wake(self._hub.tell_event(told.ms, msgspec.json.encode(told)))

    async def _metrics(self, http: Request) -> Response:
        if self._pages is None:
            from fairlead.observability.edge.web import Pages  # only where somebody gathers them

            self._pages = Pages.of(self._settings.run_dir)
        return await self._pages.metrics(http)

    async def _audit(self, user: str, action: str, about: str, outcome: str) -> None:
        """Into the event log, as the server's other audit events; where there is none just now, into its log."""
        what = f" of {about[:200]!r}" if about else ""
        text = f"{user or 'somebody'} ordered {action!r}{what} through the console: {outcome}."
        facts = {"action": action, "object": about[:512], "outcome": outcome}
        if outcome == "done":
            self._note({"level": "info", "code": "audit", "text": text, "user": user[:64], **facts})
        else:
            self._refusals.note("audit", text, time.monotonic(), level="warning", user=user, **facts)


class QuietServer(uvicorn.Server):
    """Signals are the supervisor's to give."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def configs(app: ConsoleApp, settings: Settings) -> list[uvicorn.Config]:
    """One for each socket: those that the network reaches speak TLS where there is a certificate."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    patience = {
        "patience_s": PATIENCE_S,
        "connections_max": CONNECTIONS_MAX,
        "connections_per_address": CONNECTIONS_PER_ADDRESS,
        "addresses": Counter[str](),
    }
    found = []
    for sock in settings.sockets:
        config = uvicorn.Config(
            app,
            http=type("Http", (PatientHttp,), patience),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=LEAVE_S,
        )
        config.load()
        config.ssl = tls_of(sock, settings)
        found.append(config)
    return found


def tls_of(sock: socket.socket, settings: Settings) -> ssl.SSLContext | None:
    if not settings.certificate or sock.family == socket.AF_UNIX or is_local(f"[{sock.getsockname()[0]}]:0"):
        return None
    context = make_context(settings.certificate, settings.key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def is_secure(scope: Scope) -> bool:
    return bool(scope.get("scheme") == "https")
