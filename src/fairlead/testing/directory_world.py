"""A directory, its brokers and their clusters as real processes, for tests: started, hurt, looked at and stopped.

    with World("ABC", servers=2) as world:
        ...  # fairlead.connect(world.url("cluster-A"), name="AX")

Unless `clusters` says otherwise there is cluster-A with all brokers in this order, and for each broker a cluster
`only-NAME`, by which a test chooses where an application is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fairlead.directory.edge.client import DirectoryClient
from fairlead.errors import FairleadError
from fairlead.runtime.local_cluster import descendants
from fairlead.testing.directory import DirectorySet
from fairlead.testing.server import Server

if TYPE_CHECKING:
    from fairlead.directory.answers import Status
    from fairlead.directory.rows import Application, Broker, Cluster, Link

PATIENCE_S = 40.0
MAIN = "cluster-A"
SCHEME = "fairlead+directory"


class View(ABC):
    """The tables of a directory, asked of any of its servers or of one of them; `authorities` are their host:port."""

    def __init__(self, admin: tuple[str, str] | None = None) -> None:
        self._admin = dict(zip(("user", "password"), admin or (), strict=False))

    @property
    @abstractmethod
    def authorities(self) -> list[str]: ...

    def url(
        self, cluster: str = "", server: int | None = None, login: str = "", scheme: str = SCHEME, **options: Any
    ) -> str:
        """Where clients ask: all servers of the directory, or one of them alone, counted from 1.

        `login` is user:password, `scheme` such as http+directory; `options` are those behind the question mark.
        """
        authority = f"{login}@" * bool(login) + ",".join(
            self.authorities if server is None else [self.authorities[server - 1]]
        )
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://{authority}/{cluster}{'?' * bool(query)}{query}"

    def open(self, server: int | None = None, **options: Any) -> DirectoryClient:
        """A directory client that is not open yet: `async with world.open() as directory`."""
        return DirectoryClient(self.url(server=server), **self._admin | options)

    async def application(self, app: str, server: int | None = None) -> Application | None:
        """An application as the directory has it; None if it is not registered."""
        async with self.open(server) as directory:
            return next((one for one in (await directory.list_apps(app=app)).apps if one.name == app), None)

    async def rows(self, app: str, server: int | None = None) -> tuple[Link, ...]:
        """Rows of the application table, by the number of their label."""
        found = await self.application(app, server)
        return tuple(sorted(found.links, key=_number)) if found else ()

    async def tables(self, server: int | None = None) -> tuple[list[Broker], list[Cluster], list[Application]]:
        """All three, sorted by name."""
        async with self.open(server) as directory:
            brokers, clusters = (await directory.list_brokers()).brokers, (await directory.list_clusters()).clusters
            apps = (await directory.list_apps()).apps
        return (
            sorted(brokers, key=lambda one: one.name),
            sorted(clusters, key=lambda one: one.name),
            sorted(apps, key=lambda one: one.name),
        )

    async def status(self, server: int | None = None) -> Status:
        async with self.open(server) as directory:
            return await directory.status()

    async def until(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """Look again and again, at something that may have to be awaited; what it was in the end."""
        deadline_s, last = time.monotonic() + timeout_s, ""
        while True:
            try:
                found = condition()
                found = await found if asyncio.iscoroutine(found) else found
                if found:
                    return found
            except FairleadError as error:
                last = f"; the last error was: {error}"
            assert time.monotonic() < deadline_s, f"not in {timeout_s:g} s: {what}{last}"
            await asyncio.sleep(0.03)

    async def labelled(self, app: str, count: int, server: int | None = None) -> tuple[Link, ...]:
        """The rows of an application, as soon as there are so many."""

        async def there() -> tuple[Link, ...] | None:
            rows = await self.rows(app, server)
            return rows if len(rows) == count else None

        found: tuple[Link, ...] = await self.until(there, f"{app} has {count} rows")
        return found


class World(View):
    """`servers` directory servers (0: the first broker keeps the directory too) and a server for each broker.

    `settings` are those of every broker, `own` those of single ones by name, `directory` those of the directory's
    servers, `admin` the user and password with which a test looks at the tables where there are users; `scheme` is
    how brokers reach the directory. The order of a cluster is that in which `clusters` names its brokers.
    """

    def __init__(
        self,
        brokers: Iterable[str] = "ABC",
        *,
        servers: int = 2,
        clusters: Mapping[str, Iterable[str]] | None = None,
        settings: Mapping[str, Any] | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        directory: Mapping[str, Any] | None = None,
        admin: tuple[str, str] | None = None,
        scheme: str = SCHEME,
        managers: int = 1,
    ) -> None:
        super().__init__(admin)
        names = list(brokers)
        given = {MAIN: names} if clusters is None else clusters
        self.clusters = {name: tuple(members) for name, members in given.items()}
        self.clusters |= {f"only-{name}": (name,) for name in names}
        self.directories = DirectorySet(servers=servers, **(directory or {})) if servers else None
        self._settings = dict(settings or {})
        self._own = {name: dict((own or {}).get(name, {})) for name in names}
        self._managers = managers
        self._scheme = scheme
        self._frozen: dict[str, list[int]] = {}
        self.brokers: dict[str, Server] = {}
        if not servers:
            self._own[names[0]] |= {"directory.serve": "true", **(directory or {})}

    # -- life

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._frozen):
            self.thaw(name)
        faults: list[BaseException] = []
        ends: list[Callable[[], None]] = [_ender(server) for server in self.brokers.values()]
        if self.directories is not None:
            ends.append(lambda: self.directories.__exit__(None, None, None))  # type: ignore[union-attr]
        for end in ends:
            try:
                end()
            except BaseException as fault:  # the others must stop all the same
                faults.append(fault)
        if faults and error is None:
            raise faults[0]

    def start(self) -> Self:
        """The directory, then all brokers at once; returns when all of them can be picked, and in order."""
        names = list(self._own)
        if self.directories is not None:
            self.directories.__enter__()
        else:
            self._start_broker(names.pop(0))
        with ThreadPoolExecutor(len(names) or 1) as pool:
            list(pool.map(self._start_broker, names))
        asyncio.run(self._order())
        return self

    def _start_broker(self, name: str) -> None:
        facts: dict[str, Any] = {
            "directory.name": name,
            "directory.clusters": ",".join(one for one, members in self.clusters.items() if name in members),
        }
        if self.directories is not None or name != next(iter(self._own)):
            facts["directory.servers"] = self.url(scheme=self._scheme)
        server = Server(managers=self._managers, **facts, **self._settings, **self._own[name])
        self.brokers[name] = server
        server.start()

    async def _order(self) -> None:
        """They joined as they happened to come up."""
        async with self.open() as directory:
            await self.until(lambda: self._all_available(directory), "all brokers are available")
            for cluster, members in self.clusters.items():
                for position, name in enumerate(members):
                    await directory.join_cluster(cluster=cluster, broker=name, position=position)

    async def _all_available(self, directory: DirectoryClient) -> bool:
        answer = await directory.list_brokers()
        return {row.name for row in answer.brokers if row.available} >= set(self._own)

    @property
    def authorities(self) -> list[str]:
        urls = self.directories.urls if self.directories is not None else [self.brokers[next(iter(self._own))].url]
        return [url.partition("://")[2].strip("/") for url in urls]

    # -- hurting it

    def kill(self, name: str) -> None:
        """SIGKILL for all processes of a broker: as if its host had lost power. Its lease goes on until it ends."""
        self._frozen.pop(name, None)
        self.brokers[name].kill_everything()

    def start_again(self, name: str) -> None:
        """A broker that was killed or stopped: the same data, and any port."""
        self.brokers[name].start()

    def stop(self, name: str) -> None:
        """A broker, in order."""
        assert self.brokers[name].stop() == 0

    def freeze(self, name: str) -> None:
        """Stop all processes of a broker where they are: its port still takes connections, and nobody answers."""
        process = self.brokers[name].process
        assert process is not None
        self._frozen[name] = [process.pid, *descendants(process.pid)]
        for pid in self._frozen[name]:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        for pid in reversed(self._frozen.pop(name)):
            os.kill(pid, signal.SIGCONT)


def _number(row: Link) -> int:
    return int(row.label.rpartition("-")[2] or 0)


def _ender(server: Server) -> Callable[[], None]:
    return lambda: server.__exit__(None, None, None)
