"""Keeps the directory informed of one broker: its row and lease, and what is connected there.

Nobody waits for it: while the directory is away everything that has to be told is kept, and told when it is back
(DIR-42). The lease is renewed three times in its time, and at once when the broker becomes full or has room again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from fairlead.directory.digest import links_digest
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.registrar.attendance import Attendance
from fairlead.directory.registrar.reports import Report, Reports
from fairlead.directory.rows import AppKind, Broker, BrokerState
from fairlead.errors import FairleadError, NameTaken, UnknownBroker

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
COMPLAIN_S: Final = 3.0  # a moment without the directory is nothing to talk about
WINDOW: Final = 64  # reports under way at once
FAREWELL_S: Final = 1.5


class Listener(Protocol):
    """Who hears what the directory says of connections here."""

    def on_label(self, identity: str, label: str) -> None: ...
    def on_move(self, identities: Sequence[str]) -> None: ...
    def on_close(self, identities: Sequence[str]) -> None: ...


class Registering:
    """`run` until it is cancelled. `is_first`: this server has not been registered since it was started."""

    def __init__(
        self,
        directory: DirectoryClient,
        attendance: Attendance,
        reports: Reports,
        *,
        row: Broker,
        clusters: Sequence[str],
        lease_s: float,
        grace_s: float,
        is_first: bool,
        listener: Listener,
        on_registered: Callable[[], None],
        say: Callable[[str, str], None],
    ) -> None:
        self._directory, self._attendance, self._reports = directory, attendance, reports
        self._row = row
        self._clusters = tuple(clusters) or None
        self._join = is_first
        self._is_first = is_first
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._listener = listener
        self._on_registered = on_registered
        self._say = say
        self._woken = asyncio.Event()
        self._told_state: BrokerState | None = None
        self._renewed_s = 0.0
        self._settled_s = 0.0  # before it, connections of an earlier registrar may still come back
        self._trouble_s: float | None = None  # since when
        self._complained = False
        self.registered = False
        self.error = ""
        self.restated = 0

    @property
    def lease_s(self) -> float:
        return self._lease_s

    def wake(self) -> None:
        """There is something to tell."""
        self._woken.set()

    async def run(self) -> None:
        """NameTaken if another server that lives has the name, and this one has never been registered."""
        loop = asyncio.get_running_loop()
        self._settled_s = loop.time() + self._grace_s
        self._reports.restate = True
        pause_s = PAUSE_FIRST_S
        while True:
            self._woken.clear()
            try:
                await self._turn()
            except FairleadError as error:
                if isinstance(error, NameTaken) and self._is_first:
                    raise
                self._trouble(error)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s = PAUSE_FIRST_S
            if self._complained:
                self._say("info", "the directory hears of this server again")
            self.error, self._trouble_s, self._complained = "", None, False
            await self._rest()

    def _trouble(self, error: FairleadError) -> None:
        if isinstance(error, UnknownBroker | NameTaken):
            self.registered = False
        now_s = asyncio.get_running_loop().time()
        if self._trouble_s is None:
            self._trouble_s = now_s
        self.error = f"{error.code}: {error.text}"
        if not self._complained and now_s - self._trouble_s >= COMPLAIN_S:
            self._complained = True
            self._say("warning", f"the directory does not hear of this server: {self.error}")

    async def _rest(self) -> None:
        """Until there is something to tell, or it is time."""
        now_s = asyncio.get_running_loop().time()
        until_s = self._renewed_s + self._lease_s / 3
        if self._reports.restate:
            until_s = min(until_s, self._settled_s)
        try:
            async with asyncio.timeout(max(until_s - now_s, 0)):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _turn(self) -> None:
        now_s = asyncio.get_running_loop().time
        if not self.registered:
            await self._register()
        if self._reports.restate and now_s() >= self._settled_s:
            await self._restate()
        while reports := self._reports.take(WINDOW):
            await self._tell(reports)
        while registration := self._reports.next_kind():
            await self._tell_kind(*registration)
        if now_s() >= self._renewed_s + self._lease_s / 3 or self._attendance.state != self._told_state:
            await self._renew()

    @property
    def _patience_s(self) -> float:
        return min(max(self._lease_s / 3, 0.5), 5.0)

    async def _register(self) -> None:
        state = self._attendance.state
        row = replace(self._row, state=state)
        clusters = self._clusters if self._join else None
        answer = await self._directory.put_broker(row, clusters=clusters, timeout=self._patience_s)
        if self._is_first:
            self._say("info", f"registered as broker {row.name} at {row.ip}:{row.port or row.secure_port}")
        self.registered, self._is_first, self._join = True, False, False
        self._begin_lease(answer.lease_s, state)
        self._reports.restate = True
        self._on_registered()

    def _begin_lease(self, lease_s: float, state: BrokerState) -> None:
        self._renewed_s = asyncio.get_running_loop().time()
        self._lease_s = lease_s or self._lease_s
        self._told_state = state

    async def _restate(self) -> None:
        self._reports.restating()
        try:
            answer = await self._directory.restate(
                self._row.name,
                identity=self._row.identity,
                links=tuple(self._attendance.links()),
                timeout=2 * self._patience_s,
            )
        except BaseException:
            self._reports.restate = True
            raise
        self.restated += 1
        for identity, label in answer.labels.items():
            self._listener.on_label(identity, label)

    async def _tell(self, reports: Sequence[Report]) -> None:
        """All at once. What is refused for good is not said again; a later renewal shows what is amiss."""
        results = await asyncio.gather(*(self._tell_one(report) for report in reports), return_exceptions=True)
        again, failure = [], None
        for report, result in zip(reports, results, strict=True):
            if not isinstance(result, BaseException):
                self._reports.told(report)
            elif isinstance(result, FairleadError) and not (result.retryable or isinstance(result, UnknownBroker)):
                self._reports.told(report)
                self._say("warning", f"the directory refuses a connection of {report.app}: {result.text}")
                self.error = f"{result.code}: {result.text}"
            else:
                again.append(report)
                failure = failure or result
        self._reports.not_told(again)
        if failure is not None:
            raise failure

    async def _tell_one(self, report: Report) -> None:
        patience_s = self._patience_s
        if not report.opened:
            await self._directory.connection_closed(
                app=report.app, identity=report.identity, broker=self._row.name, timeout=patience_s
            )
            return
        attending = self._attendance.here.get(report.identity)
        if attending is None:
            return  # it went meanwhile: that is told next
        answer = await self._directory.connection_opened(
            app=report.app,
            link=attending.link,
            kind=self._attendance.kinds[report.app],
            reservation=report.reservation,
            timeout=patience_s,
        )
        if answer.label:
            self._listener.on_label(report.identity, answer.label)

    async def _tell_kind(self, app: str, kind: AppKind) -> None:
        try:
            await self._directory.register_app(app=app, kind=kind, broker=self._row.name, timeout=self._patience_s)
        except FairleadError as error:
            if error.retryable or isinstance(error, UnknownBroker):
                raise
            self._say("warning", f"the directory refuses to register {app} as {kind}: {error.text}")
        self._reports.kind_told(app, kind)

    async def _renew(self) -> None:
        state, version, idle = self._attendance.state, self._attendance.version, self._reports.idle
        answer = await self._directory.renew(
            self._row.name, identity=self._row.identity, state=state, timeout=self._patience_s
        )
        if not answer.known:
            self.registered, self._join = False, True
            self.wake()
            return
        self._begin_lease(answer.lease_s, state)
        unchanged = idle and self._reports.idle and self._attendance.version == version
        if unchanged and answer.links != self._digest():
            self._reports.restate = True
            self.wake()
        if answer.move:
            self._listener.on_move(answer.move)
        if answer.close:
            self._listener.on_close(answer.close)

    def _digest(self) -> str:
        return links_digest((app, link.identity, link.label) for app, _, link in self._attendance.links())

    async def farewell(self) -> None:
        """The server stops: nobody shall be sent here, and nobody is here any more."""
        name, identity = self._row.name, self._row.identity
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._directory.renew(name, identity=identity, state="disabled", timeout=FAREWELL_S)
                await self._directory.restate(name, identity=identity, links=(), timeout=FAREWELL_S)
        except (FairleadError, TimeoutError) as error:
            self._say("info", f"could not say goodbye to the directory: {error}")
