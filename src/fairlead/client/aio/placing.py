"""Chooses a broker for each connection: carries out what `directory.placing` decides.

All connections of a client (an event loop, unless `client` says otherwise) to one directory share their `Places`: one
cached copy, one place in each rotation, one memory of failures. It talks to the directory while a connection is open,
and keeps what it knows when none is.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fairlead.client.aio.contact import Contact
from fairlead.client.target import DirectoryTarget
from fairlead.directory.placing.attempts import Dial, Fail, Fetch, Pause, Pick, Report, Request, Wish
from fairlead.directory.placing.knowledge import Knowledge
from fairlead.directory.placing.mode import HEURISTICS, Auto, Placement
from fairlead.directory.placing.options import Options
from fairlead.directory.rows import Broker, Link
from fairlead.errors import BadCredentials, FairleadError, NoDirectory, NoneAvailable, NotAllowed, UnknownCluster

if TYPE_CHECKING:
    from fairlead.directory.edge.client import DirectoryClient

__all__ = ["Places", "Scope", "forget", "places_of"]

logger = logging.getLogger("fairlead.client")

NEWS_S = 1.0
"""How old a copy may be when an answer shows that the directory has changed."""
PROBE_S = 5.0
"""How often the directory is asked how it does while `auto` chooses here."""


class Shared:
    """What outlives event loops: connections of `fairlead.sync` have one each."""

    def __init__(self, options: Options) -> None:
        self.lock = threading.Lock()
        self.client = options.client or secrets.token_hex(8)
        self.knowledge = Knowledge(
            random.random, auto=Auto(latency_max_s=options.latency_max_s, stable_s=options.stable_s)
        )


class Places:
    """`options` are those of the first connection that needed it."""

    def __init__(self, target: DirectoryTarget, shared: Shared, options: Options, tls: ssl.SSLContext | None) -> None:
        self.target = target
        self.shared = shared
        self.client = shared.client
        self.placement: Placement | None = None
        """For requests that say nothing themselves; may be changed at any time (DIR-57)."""
        self._knowledge = shared.knowledge
        self._lock = shared.lock
        self._options = options
        self._contact = Contact(target, tls, shared.knowledge.auto, shared.lock)
        self._users = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._mode = ""
        if options.cache is not None:
            self._load(Path(options.cache))

    # Its life.

    def acquire(self, user: str = "", password: str = "") -> None:
        """A connection with this login needs it, until `release`."""
        self._contact.offer(user, password)
        self._users += 1
        if self._users == 1:
            self._refreshing = asyncio.create_task(self._refresh_again_and_again())

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            tasks = [*self._fetches.values(), *([self._refreshing] if self._refreshing else [])]
            self._fetches.clear()
            self._refreshing = None
            self._closing = asyncio.create_task(self._stop(tasks, self._contact.part(), self._closing))

    async def settled(self, within_s: float | None = None) -> None:
        """When the last connection is closed, so is the one to the directory."""
        if self._closing is not None and not self._users:
            await asyncio.wait([self._closing], timeout=within_s)

    async def _stop(
        self,
        tasks: list[asyncio.Task[None]],
        close: Callable[[], Awaitable[None]],
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close()
        if self._closing is asyncio.current_task():
            self._closing = None  # a task knows its loop, and the loop is the key we are kept under

    @property
    def directory(self) -> DirectoryClient:
        """The directory's client: also for whoever wants to ask something else."""
        return self._contact.directory

    @property
    def is_reporting(self) -> bool:
        return self._contact.is_saying

    # Placing.

    async def place(self, wish: Wish, dial: Callable[[Dial], Awaitable[None]], *, avoid: str = "") -> Broker:
        """Find a broker that accepts; `dial` connects and registers, or raises why not."""
        now_s = asyncio.get_running_loop().time
        if wish.placement is None and self.placement is not None:
            wish = wish._replace(placement=HEURISTICS[self.placement])
        with self._lock:
            request = Request(wish, self._knowledge, random.random, now_s(), avoid=avoid)
        while True:
            with self._lock:
                step = request.step(now_s())
                self._mode = request.mode()
            match step:
                case Fetch(timeout_s):
                    await self._fetch_for(request, timeout_s)
                case Pick(exclude, timeout_s):
                    picked = await self._pick_for(request, exclude, timeout_s)
                    if picked is not None and await self._try(request, picked, dial):
                        return picked.broker
                case Dial():
                    if await self._try(request, step, dial):
                        return step.broker
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Fail(error):
                    raise error

    async def _try(self, request: Request, step: Dial, dial: Callable[[Dial], Awaitable[None]]) -> bool:
        try:
            await dial(step)
        except (FairleadError, OSError) as error:
            with self._lock:
                report = request.on_failed(error, asyncio.get_running_loop().time())
            if report is not None:
                self._report(request.wish.app, report)
            return False
        with self._lock:
            request.on_reached()
        return True

    def _report(self, app: str, report: Report) -> None:
        self._contact.beside(
            self.directory.report_failure(
                app=app,
                broker=report.broker,
                client=self.client,
                reason=report.reason[:200],
                reservation=report.reservation,
            )
        )

    async def _fetch_for(self, request: Request, timeout_s: float) -> None:
        try:
            await self.refresh(request.wish.cluster, timeout_s)
        except UnknownCluster as error:
            request.on_unknown(error)
        except NoDirectory as error:
            request.on_no_directory(error)
        except BadCredentials as error:
            request.on_refused(error)
        else:
            request.on_copy()

    async def _pick_for(self, request: Request, exclude: tuple[str, ...], timeout_s: float) -> Dial | None:
        wish = request.wish
        try:
            picked = await self._contact.ask(
                lambda directory: directory.pick_broker(
                    app=wish.app,
                    cluster=wish.cluster,
                    exclude=exclude,
                    secure=wish.secure,
                    rule=wish.rule,
                    timeout=timeout_s,
                )
            )
        except UnknownCluster as error:
            request.on_unknown(error)
        except NoneAvailable:
            request.on_none()
        except (NotAllowed, BadCredentials) as error:
            request.on_refused(error)
        except NoDirectory as error:
            request.on_no_directory(error)
        else:
            now_s = asyncio.get_running_loop().time()
            with self._lock:
                copy = self._knowledge.copies.get(wish.cluster)
                made = request.on_picked(picked.broker, picked.reservation, now_s)
            if copy is not None and copy.revision != picked.revision and copy.age_s(now_s) > NEWS_S:
                # The heuristic may be another one by now; whoever chooses here will learn it by the periodic refresh.
                self._contact.beside(self.refresh(wish.cluster))
            return made
        return None

    # The copy.

    async def refresh(self, cluster: str = "", timeout_s: float | None = None) -> None:
        """Renew the copy of a cluster now, or of all; UnknownCluster and NoDirectory are raised, the copy stays."""
        if not cluster:
            for copy in self._knowledge.copies:
                await self.refresh(copy.cluster, timeout_s)
            return
        task = self._fetches.get(cluster)
        if task is None:
            task = self._fetches[cluster] = asyncio.create_task(self._fetch(cluster))
            task.add_done_callback(lambda done: self._fetched(cluster, done))
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise NoDirectory(f"directory unreachable: no answer within {timeout_s:.3g} s")
        if task.cancelled():
            raise NoDirectory("directory unreachable: the connection was closed")
        task.result()

    def _fetched(self, cluster: str, task: asyncio.Task[None]) -> None:
        if self._fetches.get(cluster) is task:
            del self._fetches[cluster]
        if not task.cancelled():
            task.exception()  # whoever waits is told; nobody need be

    async def _fetch(self, cluster: str) -> None:
        knowledge = self._knowledge
        known = knowledge.copies.get(cluster)
        knowledge.fetches += 1
        try:
            view = await self._contact.ask(
                lambda directory: directory.get_cluster(
                    cluster=cluster,
                    newer_than=known.revision if known is not None else None,
                    timeout=self._options.directory_timeout_s,
                )
            )
        except UnknownCluster:
            knowledge.copies.drop(cluster)
            raise
        except FairleadError as error:
            knowledge.copies.fail(cluster, str(error))
            raise
        now_s = asyncio.get_running_loop().time()
        with self._lock:
            if view.unchanged and known is not None:
                knowledge.copies.confirm(cluster, now_s)
            else:
                knowledge.copies.take(
                    cluster,
                    view.brokers,
                    heuristic=view.heuristic,
                    rule=view.rule,
                    revision=view.revision,
                    now_s=now_s,
                )
        self._save()

    async def _refresh_again_and_again(self) -> None:
        """Each client at another moment, and never later than `refresh_s`; more often while the directory is away."""
        loop, auto = asyncio.get_running_loop(), self._knowledge.auto
        due_s = self._next_refresh_s()
        while True:
            probe_s = min(PROBE_S, max(auto.stable_s / 4, 0.05))
            await asyncio.sleep(min(max(due_s - loop.time(), 0.0), probe_s))
            if loop.time() < due_s and auto.is_centralised:
                continue
            due_s = self._next_refresh_s()
            for copy in self._knowledge.copies:
                try:
                    await self.refresh(copy.cluster, self._options.directory_timeout_s)
                except FairleadError as error:
                    logger.debug("The copy of cluster %s could not be renewed: %s", copy.cluster, error)

    def _next_refresh_s(self) -> float:
        return asyncio.get_running_loop().time() + self._options.refresh_s * random.uniform(0.7, 0.95)

    # The file.

    def _load(self, path: Path) -> None:
        now_s = asyncio.get_running_loop().time()
        try:
            self._knowledge.copies.load(path.read_bytes(), now_s, time.time(), age_max_s=self._options.cache_age_s)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("The directory's cache %s cannot be used: %s", path, error)

    def _save(self) -> None:
        if self._options.cache is None:
            return
        path = Path(self._options.cache)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            part.write_bytes(self._knowledge.copies.save(asyncio.get_running_loop().time(), time.time()))
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            logger.warning("The directory's cache %s cannot be written: %s", path, error)

    # Reports of our own (DIR-16).

    def opened(self, app: str, link: Link, kind: Any, reservation: str) -> None:
        self._contact.beside(self.directory.connection_opened(app=app, link=link, kind=kind, reservation=reservation))

    def closed(self, app: str, identity: str, broker: str) -> None:
        self._contact.beside(self.directory.connection_closed(app=app, identity=identity, broker=broker))

    def left(self, broker: str) -> None:
        """A connection to it has ended."""
        with self._lock:
            self._knowledge.copies.count(broker, -1)

    def facts(self) -> dict[str, Any]:
        """For the status (DIR-81)."""
        with self._lock:
            facts = self._knowledge.facts(asyncio.get_running_loop().time())
        return {"client": self.client, "mode": self._mode, "directory": self._contact.facts(), **facts}


class Scope:
    """Whose connections belong together."""


SYNC = Scope()
_shared: WeakKeyDictionary[Any, dict[Any, Shared]] = WeakKeyDictionary()
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Places]] = WeakKeyDictionary()
_finding = threading.Lock()


def places_of(
    target: DirectoryTarget, options: Options, tls: ssl.SSLContext | None, scope: Scope | None = None, user: str = ""
) -> Places:
    """Those of this client, made when they are first needed; another user has others, for it has other rights."""
    loop = asyncio.get_running_loop()
    whose: Any = scope or loop
    key = (target.targets, target.user or user, options.client)
    with _finding:
        shared = _shared.setdefault(whose, {}).get(key)
        if shared is None:
            shared = _shared[whose][key] = Shared(options)
        ours = _places.setdefault(loop, {})
        found = ours.get((whose, key) if scope else key)
        if found is None:
            found = ours[(whose, key) if scope else key] = Places(target, shared, options, tls)
    return found


def forget(places: Places) -> None:
    """Nobody else is to use these: what they know goes with the last connection that does."""
    with _finding:
        for by_key in (_shared.get(asyncio.get_running_loop(), {}), _places.get(asyncio.get_running_loop(), {})):
            for key in [key for key, found in by_key.items() if found in (places, places.shared)]:
                del by_key[key]
