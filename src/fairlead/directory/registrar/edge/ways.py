"""Where a message to an application, or an answer to a broker, goes from here: answered from what is remembered."""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.directory.delivery.routes import Route, app_queue, find_broker, find_route
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.registrar.attendance import Attendance
from fairlead.directory.registrar.edge.carrying import Carrying
from fairlead.directory.registrar.lookups import Known, Lookups
from fairlead.directory.registrar.talk import ROUTE_TO_BROKER
from fairlead.directory.rows import Broker
from fairlead.errors import FairleadError

PATIENCE_S = 1.5  # for the directory: whoever sends to an unknown name is to hear it within 2 s (DIR-77)


class Ways:
    def __init__(self, directory: DirectoryClient, carrying: Carrying, attendance: Attendance, row: Broker) -> None:
        self._directory, self._carrying, self._attendance = directory, carrying, attendance
        self._own, self._store = row.name, row.store
        self._lookups = Lookups()
        self._asked: dict[str, asyncio.Future[Known]] = {}

    async def find(self, name: str) -> dict[str, Any]:
        """What a client is told: `queue` and `to`, `unknown`, or an error."""
        to_broker = name.startswith(ROUTE_TO_BROKER)
        if not to_broker and self._attendance.count(name):
            return {"queue": app_queue(name), "to": app_queue(name)}
        try:
            known = await self._known(name)
            self._lookups.turn += 1
            if to_broker:
                route = find_broker(name.removeprefix(ROUTE_TO_BROKER), known.brokers, own=self._own, store=self._store)
            else:
                route = find_route(known.app, known.brokers, own=self._own, store=self._store, turn=self._lookups.turn)
            if route is None or not (route.is_known or to_broker):
                return {"unknown": True}
            await self._prepare(route, known, "" if to_broker else name)
        except FairleadError as error:
            return {"error": {"code": error.code, "text": error.text}}
        return {"queue": route.queue, "to": "" if to_broker else app_queue(name)}

    async def _prepare(self, route: Route, known: Known, app: str) -> None:
        """See to it that what is sent to another broker is carried there."""
        if route.broker != self._own:
            for broker in known.brokers:
                if broker.name == route.broker:
                    await self._carrying.ensure(broker, app)

    async def _known(self, name: str) -> Known:
        """Fresh if possible; of those who ask at the same time one does."""
        now_s = asyncio.get_running_loop().time
        fresh = self._lookups.fresh(name, now_s())
        if fresh is not None:
            return fresh
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._ask(name))
            asked.add_done_callback(lambda _: self._asked.pop(name, None))
        try:
            return await asyncio.shield(asked)
        except FairleadError as error:
            old = self._lookups.old(name)
            if old is None or not error.retryable:
                raise
            return old

    async def _ask(self, name: str) -> Known:
        now_s = asyncio.get_running_loop().time
        if name.startswith(ROUTE_TO_BROKER):
            rows = await self._directory.list_brokers(timeout=PATIENCE_S)
            wanted = [row for row in rows.brokers if row.name == name.removeprefix(ROUTE_TO_BROKER)]
            return self._lookups.remember(name, None, wanted, now_s())
        found = await self._directory.lookup_app(name, timeout=PATIENCE_S)
        return self._lookups.remember(name, found.app, found.brokers, now_s())
