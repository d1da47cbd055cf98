"""The queues `app.NAME` of the applications at a broker: made for the first connection, given up after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from fairlead.client.aio import Connection
from fairlead.directory.delivery.routes import app_queue, is_here
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.registrar.attendance import Attendance
from fairlead.directory.registrar.edge.carrying import Carrying
from fairlead.directory.rows import Broker
from fairlead.errors import FairleadError

LINGER_S: Final = 1.0  # a client that was cut off comes back within this, most of the time
TIDY_S: Final = 300.0
TIDY_AT_ONCE: Final = 100
AGAIN_S: Final = 1.0  # after a question that nobody answered
PAGE: Final = 500


class Queues:
    """What is left in a queue when nobody of the application is here any more is the affair of `Carrying`."""

    def __init__(
        self,
        own: Connection,
        directory: DirectoryClient,
        attendance: Attendance,
        carrying: Carrying,
        row: Broker,
        say: Callable[[str, str], None],
    ) -> None:
        self._own, self._directory, self._attendance, self._carrying = own, directory, attendance, carrying
        self._row = row
        self._say = say
        self._made: set[str] = set()
        self._making: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, app: str) -> None:
        """The queue is there, and stays while the application has a connection here."""
        leaving = self._leaving.pop(app, None)
        if leaving is not None:
            leaving.cancel()
            await asyncio.wait([leaving])
        while app not in self._made:
            making = self._making.get(app)
            if making is None:
                making = self._making[app] = asyncio.get_running_loop().create_task(self._make(app))
                making.add_done_callback(lambda _: self._making.pop(app, None))
            await asyncio.shield(making)

    async def _make(self, app: str) -> None:
        await self._own.admin.create(destination=app_queue(app), kind="queue")
        self._made.add(app)

    def left(self, app: str) -> None:
        """The last connection here has gone; it may come back in a moment."""
        if app not in self._leaving:
            task = self._leaving[app] = asyncio.get_running_loop().create_task(self._leave(app))
            task.add_done_callback(lambda done: self._forget(app, done))

    def _forget(self, app: str, task: asyncio.Task[None]) -> None:
        if self._leaving.get(app) is task:
            del self._leaving[app]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say("warning", f"the queue of {app} is not given up: {type(error).__name__}: {error}")

    async def _leave(self, app: str) -> None:
        await asyncio.sleep(LINGER_S)
        if not self._attendance.count(app) and not await self._is_wanted(app):
            self._made.discard(app)
            await self._carrying.leave(app)

    async def _is_wanted(self, app: str) -> bool:
        """Do messages for it wait here: is it registered here for good, or connected where the queues are the same?"""
        while True:
            try:
                found = await self._directory.lookup_app(app)
                break
            except FairleadError:
                await asyncio.sleep(AGAIN_S)
        if found.app is None:
            return False
        rows = {row.name: row for row in found.brokers}
        places = {link.broker for link in found.app.links} - {self._row.name}
        if found.app.kind == "static" and not places:
            places = {found.app.broker}
        return any(is_here(name, rows, own=self._row.name, store=self._row.store) for name in places)

    async def tidy(self) -> None:
        """Now and then, and first soon after the start: queues of applications that have gone unnoticed."""
        await asyncio.sleep(2 * LINGER_S)
        while True:
            try:
                unattended = await self._unattended()
                for at in range(0, len(unattended), TIDY_AT_ONCE):
                    for app in unattended[at : at + TIDY_AT_ONCE]:
                        self.left(app)
                    await asyncio.sleep(2 * LINGER_S)
            except FairleadError as error:
                self._say("debug", f"the queues of applications cannot be listed: {error}")
            await asyncio.sleep(TIDY_S)

    async def _unattended(self) -> list[str]:
        found: list[str] = []
        place: dict[str, Any] = {}
        while True:
            answer = await self._own.admin.destinations(pattern=app_queue(">"), kind="queue", count=PAGE, **place)
            names = [one["name"].removeprefix(app_queue("")) for one in answer.get("destinations", ())]
            found += [app for app in names if not self._attendance.count(app)]
            place = {"page": answer.get("next")}
            if place["page"] is None:
                return found

    async def close(self) -> None:
        tasks = [*self._leaving.values(), *self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
