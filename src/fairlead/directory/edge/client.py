"""The directory, from a program: every operation is a method, and any server of it will do.

::

    async with fairlead.directory.open_directory("fairlead+directory://d1,d2,d3") as directory:
        for broker in (await directory.list_brokers()).brokers:
            print(broker.name, broker.ip, broker.port)

Arguments are those of `directory/operations.py`. Every operation takes `timeout`, the seconds it may take over all
servers (0: each of them is asked once), and raises NoDirectory when none of them answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self, TypeVar, Unpack

from msgspec import Struct, structs

from fairlead.client.target import DirectoryTarget
from fairlead.directory import answers, operations
from fairlead.directory.answers import Answer, Done
from fairlead.directory.edge.asking import Asking
from fairlead.directory.restating import pieces
from fairlead.directory.rows import AppKind, Broker, BrokerState, Heuristic, Link, Rule
from fairlead.tunnel.options import TunnelOptions

if TYPE_CHECKING:
    from fairlead.client.aio.access import Shown

__all__ = ["DirectoryClient", "open_directory"]

A = TypeVar("A", bound=Answer)


class DirectoryClient(Asking):
    """One connection to each server that was needed; closed by `close`, or at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _say(self, op: str, arguments: Struct, kind: type[A], timeout: float | None) -> A:
        return await self.ask(op, structs.asdict(arguments), kind, timeout)

    # Brokers and clusters.

    async def put_broker(
        self, broker: Broker, *, clusters: Iterable[str] | None = None, timeout: float | None = None
    ) -> answers.Admitted:
        """Make or change the row of a broker, and begin its lease; `clusters`: join exactly these."""
        joined = None if clusters is None else tuple(clusters)
        return await self._say("put_broker", operations.PutBroker(broker, joined), answers.Admitted, timeout)

    async def renew(
        self, name: str, *, identity: str, state: BrokerState = "up", timeout: float | None = None
    ) -> answers.Renewed:
        """Renew the lease of a broker."""
        arguments = operations.Renew(name=name, identity=identity, state=state)
        return await self._say("renew", arguments, answers.Renewed, timeout)

    async def restate(
        self, name: str, *, identity: str, links: Iterable[tuple[str, AppKind, Link]], timeout: float | None = None
    ) -> answers.Restated:
        """All links of a broker as they are: application, how it is registered, row. Many are said in pieces."""
        labels: dict[str, str] = {}
        for piece in pieces(name, identity, links):
            answer = await self._say("restate", piece, answers.Restated, timeout)
            labels |= answer.labels
        return answers.Restated(labels=labels, revision=answer.revision, stale=answer.stale)

    async def remove_broker(self, name: str, *, timeout: float | None = None) -> Done:
        """Take a broker out of all tables."""
        return await self._say("remove_broker", operations.RemoveBroker(name), Done, timeout)

    async def join_cluster(
        self, cluster: str, broker: str, *, position: int | None = None, timeout: float | None = None
    ) -> Done:
        """Put a broker into a cluster, which is made if there is none; `position` counts from 0, None: the end."""
        return await self._say("join_cluster", operations.JoinCluster(cluster, broker, position), Done, timeout)

    async def leave_cluster(self, cluster: str, broker: str, *, timeout: float | None = None) -> Done:
        """Take a broker out of a cluster; the connections it has stay."""
        return await self._say("leave_cluster", operations.LeaveCluster(cluster, broker), Done, timeout)

    async def set_cluster(
        self,
        cluster: str = "",
        *,
        heuristic: Heuristic | Literal["default"] | None = None,
        rule: Rule | Literal["default"] | None = None,
        timeout: float | None = None,
    ) -> Done:
        """How brokers of a cluster are chosen; without a cluster, of all that say nothing themselves.

        None leaves it as it is; `default` takes back what was said.
        """
        return await self._say("set_cluster", operations.SetCluster(cluster, heuristic, rule), Done, timeout)

    async def get_cluster(
        self, cluster: str, *, newer_than: int | None = None, timeout: float | None = None
    ) -> answers.ClusterView:
        """The brokers of a cluster in order; `unchanged` if nothing of it is newer than that revision."""
        arguments = operations.GetCluster(cluster=cluster, newer_than=newer_than)
        return await self._say("get_cluster", arguments, answers.ClusterView, timeout)

    async def rebalance(self, cluster: str, *, timeout: float | None = None) -> answers.Moves:
        """Ask connections to move until all brokers of the cluster have about as many."""
        return await self._say("rebalance", operations.Rebalance(cluster), answers.Moves, timeout)

    # Placing a connection.

    async def pick_broker(
        self,
        *,
        app: str,
        cluster: str,
        request: str | None = None,
        exclude: Iterable[str] = (),
        secure: bool = False,
        rule: Rule | None = None,
        timeout: float | None = None,
    ) -> answers.Picked:
        """The broker for one new connection. The same `request` gets the same one; without it, it is a new one."""
        arguments = operations.PickBroker(
            app=app,
            cluster=cluster,
            request=request or secrets.token_hex(16),
            exclude=tuple(exclude),
            secure=secure,
            rule=rule,
        )
        return await self._say("pick_broker", arguments, answers.Picked, timeout)

    async def report_failure(
        self,
        *,
        app: str,
        broker: str,
        client: str,
        reason: str,
        reservation: str = "",
        timeout: float | None = None,
    ) -> Done:
        """An attempt at a broker failed."""
        arguments = operations.ReportFailure(
            app=app, broker=broker, client=client, reason=reason, reservation=reservation
        )
        return await self._say("report_failure", arguments, Done, timeout)

    # Applications and their connections.

    async def register_app(
        self, *, app: str, kind: AppKind, broker: str, user: str = "", timeout: float | None = None
    ) -> Done:
        """Register an application, or change how it is registered."""
        arguments = operations.RegisterApp(app=app, kind=kind, broker=broker, user=user)
        return await self._say("register_app", arguments, Done, timeout)

    async def deregister_app(
        self,
        app: str,
        *,
        broker: str = "",
        links: Literal["refuse", "close"] = "refuse",
        timeout: float | None = None,
    ) -> Done:
        """Take an application out; `links` says what about its open connections."""
        arguments = operations.DeregisterApp(app=app, broker=broker, links=links)
        return await self._say("deregister_app", arguments, Done, timeout)

    async def connection_opened(
        self,
        *,
        app: str,
        link: Link,
        kind: AppKind = "dynamic",
        reservation: str = "",
        timeout: float | None = None,
    ) -> answers.Opened:
        """A connection of an application, and its label."""
        arguments = operations.ConnectionOpened(app=app, link=link, kind=kind, reservation=reservation)
        return await self._say("connection_opened", arguments, answers.Opened, timeout)

    async def connection_closed(self, *, app: str, identity: str, broker: str, timeout: float | None = None) -> Done:
        """It is closed."""
        arguments = operations.ConnectionClosed(app=app, identity=identity, broker=broker)
        return await self._say("connection_closed", arguments, Done, timeout)

    async def publish_key(self, app: str, key: Mapping[str, str], *, timeout: float | None = None) -> Done:
        """Publish a public key of an application."""
        return await self._say("publish_key", operations.PublishKey(app, dict(key)), Done, timeout)

    # Reading.

    async def lookup_app(self, app: str, *, timeout: float | None = None) -> answers.Found:
        """Where an application is."""
        return await self._say("lookup_app", operations.LookupApp(app), answers.Found, timeout)

    async def list_brokers(self, *, timeout: float | None = None) -> answers.Brokers:
        return await self._say("list_brokers", operations.Nothing(), answers.Brokers, timeout)

    async def list_clusters(self, *, timeout: float | None = None) -> answers.Clusters:
        return await self._say("list_clusters", operations.Nothing(), answers.Clusters, timeout)

    async def list_apps(self, app: str = "", *, timeout: float | None = None) -> answers.Apps:
        """All applications, or the one of this name."""
        return await self._say("list_apps", operations.ListApps(app), answers.Apps, timeout)

    async def totals(self, app: str, cluster: str = "", *, timeout: float | None = None) -> answers.Counted:
        """How many connections an application has in a cluster, or anywhere, and at which brokers."""
        return await self._say("totals", operations.Totals(app, cluster), answers.Counted, timeout)

    async def status(self, *, timeout: float | None = None) -> answers.Status:
        """Counters, rotations, reservations, failures and leases of the directory."""
        return await self._say("status", operations.Nothing(), answers.Status, timeout)


def open_directory(
    url: str | Sequence[str] | DirectoryTarget,
    *,
    user: str | None = None,
    password: str | None = None,
    tunnel: TunnelOptions | None = None,
    timeout_s: float = 5.0,
    deadline_s: float = 20.0,
    **shown: Unpack[Shown],
) -> DirectoryClient:
    """A client of the directory, for `async with`; connections are made when they are needed.

    `fairlead+directory://d1,d2,d3` names its servers; `timeout_s` is how long one of them may take before the next one
    is asked, `deadline_s` how long an operation goes on trying. What is shown to get in (`token`, `certificate`, `key`,
    `ca`, `tls`) is as for `fairlead.connect`.
    """
    return DirectoryClient(
        url,
        user=user,
        password=password,
        tunnel=tunnel,
        timeout_s=timeout_s,
        deadline_s=deadline_s,
        **shown,
    )
