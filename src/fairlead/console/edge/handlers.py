"""What each operation does, first part: the server as a whole, its clients, its past."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from fairlead.cluster.configuration.overview import overview as cluster_overview
from fairlead.console import charts, log_views, views
from fairlead.console.authority import is_admin
from fairlead.console.edge.asking import UPDATE_S, Supervisor
from fairlead.console.edge.doorman import Doorman
from fairlead.console.edge.own_client import OwnClient
from fairlead.console.edge.request import Request, number
from fairlead.console.edge.watching import Watcher, now_ms
from fairlead.console.problems import Denied
from fairlead.console.shapes import Counted, Done, Me
from fairlead.console.shapes_server import Cluster, Overview, UpdateDone
from fairlead.console.shapes_time import Check, Events, Health, History
from fairlead.console.shapes_users import Connections, Sessions
from fairlead.console.users_views import after_number, connections, session
from fairlead.errors import FairleadError
from fairlead.observability.health import ready
from fairlead.runtime.version import VERSION

CLUSTER_S: Final = 5.0
LOG_LINES: Final = 1000
ITSELF: Final = frozenset({"console", "all"})


class Handlers:
    """The operations about the whole server. A method for each name in the table."""

    def __init__(
        self,
        supervisor: Supervisor,
        watcher: Watcher,
        doorman: Doorman,
        client: OwnClient,
        *,
        node: str,
        clustered: bool,
    ) -> None:
        self.supervisor, self.watcher, self.doorman, self.client = supervisor, watcher, doorman, client
        self.node, self.clustered = node, clustered

    # --- Who is asking --------------------------------------------------------------------------------------------
    async def me(self, asked: Request) -> Me:
        return self.describe(asked)

    def describe(self, asked: Request) -> Me:
        caller, doorman = asked.caller, self.doorman
        return Me(
            user=caller.user,
            open=doorman.is_open,
            logged_in=caller.known,
            admin=caller.known and is_admin(doorman.rules, caller.user),
            csrf="open" if doorman.is_open else caller.login.csrf if caller.login is not None else "",
            expires_ms=doorman.expires_ms(caller.login) if caller.login is not None else None,
            version=VERSION,
            node=self.node,
        )

    # --- The whole ------------------------------------------------------------------------------------------------
    async def overview(self, asked: Request) -> Overview:
        return await self.watcher.overview()

    async def cluster(self, asked: Request) -> Cluster:
        if not self.clustered:
            return Cluster(clustered=False, nodes=[], groups=[], missing=[], warnings=[])
        found = await self.supervisor.administer("cluster", do="status", patience_s=CLUSTER_S)
        return log_views.cluster(cluster_overview(found))

    async def update(self, asked: Request) -> UpdateDone:
        component = asked.body.component
        if component in ITSELF:
            raise Denied(
                409,
                "The console cannot answer while it is replaced itself: update the others one by one, and it with "
                "`fairlead update console`.",
                code="refused",
            )
        answer = await self.supervisor.ask("update", component=component, timeout_s=UPDATE_S)
        return UpdateDone(updates=[views.update(one) for one in answer.get("updates", [])])

    async def alive(self, asked: Request) -> Health:
        return Health(ok=True, checks=[Check(name="console", ok=True, text="It answers.")])

    async def ready(self, asked: Request) -> Health:
        """As `fairlead status --check` has it."""
        try:
            report = await self.watcher.report(brief=True)
        except FairleadError as error:
            return Health(ok=False, checks=[Check(name="supervisor", ok=False, text=str(error))])
        verdict = ready(report)
        # Everybody may ask; the reasons behind the colons, with paths and the like in them, are for those on the host.
        checks = [Check(name=one.name, ok=one.ok, text=one.text.partition(":")[0]) for one in verdict.checks]
        return Health(ok=verdict.ok, checks=checks)

    async def history(self, asked: Request) -> History:
        query = asked.query
        return charts.chart(
            self.watcher.history,
            asked=query.series,
            since_ms=query.since_ms,
            step_s=query.step_s,
            now_ms=now_ms(),
        )

    async def events(self, asked: Request) -> Events:
        query = asked.query
        answer = await self.supervisor.administer(
            "log", lines=LOG_LINES, level=query.level, code=query.code, since_ms=query.since_ms
        )
        return log_views.events(answer["lines"], text=query.text, limit=query.limit, looked=LOG_LINES)

    # --- Who uses it ----------------------------------------------------------------------------------------------
    async def connections(self, asked: Request) -> Connections:
        report = await self.watcher.report()
        query = asked.query
        return connections(report, now_ms=now_ms(), text=query.text, limit=query.limit, after=query.after)

    async def disconnect(self, asked: Request) -> Done:
        uid = number(asked.values["id"], "The id of a connection")
        report = await self.watcher.report(fresh_s=0.0)
        if not any(one["uid"] == uid for one in report["connections"]):
            raise Denied(404, f"There is no connection {uid}.", code="no-receiver")
        text = f"{asked.caller.user or 'An administrator'} ended this connection from the console."
        await self.supervisor.ask("disconnect", uid=uid, text=text)
        return Done()

    async def sessions(self, asked: Request) -> Sessions:
        query = asked.query
        page = after_number(query.after) or 0
        answer = await self.supervisor.administer("sessions", user=query.user, page=page, count=query.limit)
        following = answer.get("next")
        return Sessions(
            sessions=[session(one) for one in answer["sessions"]],
            total=answer["total"],
            next=None if following is None else str(following),
            complete=not answer.get("incomplete"),
        )

    # --- Helpers --------------------------------------------------------------------------------------------------
    async def counted(self, work: Awaitable[dict[str, Any]]) -> Counted:
        answer = await work
        return Counted(messages=answer["messages"], more=answer.get("next") is not None)
