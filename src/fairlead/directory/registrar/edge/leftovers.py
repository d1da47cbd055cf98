"""What is in the queue of an application and nobody at this broker reads: it is sent after the application.

Either the application has gone from here, or its connections here do not read while others, elsewhere, may. In that
case a message goes once to each of the other brokers until somebody reads it, and waits at the last one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairlead.client.aio.connection import Connection
from fairlead.client.aio.delivery import Delivery
from fairlead.directory.delivery.instructions import Instructions
from fairlead.directory.delivery.routes import app_queue, is_here
from fairlead.directory.registrar.onward import fault_of, next_reader, unread_selector
from fairlead.errors import FairleadError, NoDestination, Unavailable

if TYPE_CHECKING:
    from fairlead.directory.registrar.edge.carrying import Carrying

__all__ = ["Leftovers"]

T = TypeVar("T")
BATCH_MAX: Final = 256
PAUSE_S: Final = 0.5
LINGER_S: Final = 10.0  # an empty queue stays so long: it knows the ids of messages that may be sent again
FINISH_S: Final = 5.0
UNREAD_S: Final = 1.0  # for a connection to begin to read
UNREAD_MAX_S: Final = 60.0
PAGE: Final = 100


class Leftovers:
    """`leave` is called for one application at a time; those nobody reads are found by looking now and then."""

    def __init__(
        self,
        carrying: Carrying,
        own: Connection,
        broker: str,
        store: str,
        *,
        patience_s: float,
        linger_s: float,
        unread_s: float,
    ) -> None:
        self._carrying = carrying
        self._own = own
        self._broker = broker
        self._store = store
        self._patience_s = patience_s
        self._linger_s = linger_s
        self._unread_s = unread_s
        self._looking: asyncio.Task[None] | None = None
        self._unread: dict[str, tuple[float, float]] = {}  # when to look again, and how long after that
        self.leaving: set[str] = set()

    def start(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    # Applications that have gone.

    async def leave(self, app: str) -> None:
        """See `Carrying.leave`."""
        self.leaving.add(app)
        try:
            await self._clear(app)
        finally:
            self.leaving.discard(app)

    async def _clear(self, app: str) -> None:
        loop = asyncio.get_running_loop()
        begun_s = empty_s = loop.time()
        while True:
            route = await self._carrying.route(app)
            if route is not None and route.broker == self._broker:
                return
            try:
                depth = int((await self._own.admin.destination(destination=app_queue(app)))["depth"])
            except NoDestination:
                return
            if depth:
                empty_s = loop.time()
            if depth and route is not None and route.is_known:
                await self._send_all(app, route.broker)
            elif depth and route is not None and loop.time() - begun_s > self._patience_s:
                await self._bury_all(app)
            is_over = not depth and loop.time() - empty_s > self._linger_s
            if is_over and (await self._is_at_home(app) or await self._delete(app)):
                return
            await asyncio.sleep(PAUSE_S)

    async def _is_at_home(self, app: str) -> bool:
        """Is it registered here for good? Then its messages wait here when it is connected nowhere."""
        found = await self._carrying.look_up(app)
        if found is None:
            return True  # as far as we know
        one = found.app
        if one is None or one.kind != "static":
            return False
        rows = {row.name: row for row in found.brokers}
        return is_here(one.broker, rows, own=self._broker, store=self._store)

    async def _send_all(self, app: str, broker: str) -> None:
        """Until nothing more comes for a moment."""
        async with self._own.queue(app_queue(app), create=False).consume(prefetch=BATCH_MAX) as consumer:
            while batch := await consumer.receive_many(BATCH_MAX, timeout=PAUSE_S):
                await finished(asyncio.gather(*(self._send(app, message, broker) for message in batch)))

    async def _bury_all(self, app: str) -> None:
        async with self._own.queue(app_queue(app), create=False).consume(prefetch=BATCH_MAX) as consumer:
            while batch := await consumer.receive_many(BATCH_MAX, timeout=PAUSE_S):
                for message in batch:
                    self._carrying.bury(message, f"{app} is gone")

    async def _send(self, app: str, message: Delivery, broker: str) -> None:
        instructions = self._instructions(app, message)
        if fault := fault_of(instructions):
            self._carrying.bury(message, fault)
        else:
            await self._carrying.send(message, instructions, broker, hold=True)

    def _instructions(self, app: str, message: Delivery) -> Instructions:
        """Its own, or what they would be if it was sent to the queue as to any other; and whether it was given out."""
        found = Instructions.of(message.properties) or Instructions(to=app, id=message.id, queue=app_queue(app))
        return found._replace(via=found.via or (self._broker,), again=found.again or message.redelivered)

    async def _delete(self, app: str) -> bool:
        """If nothing has come meanwhile. Not given up half-way: whoever makes the queue anew must know it is gone."""
        try:
            await finished(asyncio.ensure_future(self._own.admin.delete(destination=app_queue(app), unused=True)))
        except NoDestination:
            return True
        except Unavailable:
            return False
        return True

    # Applications that are here, and do not read.

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._unread_s)
            try:
                await self._look_once()
            except FairleadError:
                pass  # the next time

    async def _look_once(self) -> None:
        await self._carrying.find_queues()
        answer: dict[str, Any] = await self._own.admin.destinations(
            pattern=app_queue(">"), kind="queue", sort="depth", descending=True, count=PAGE
        )
        now_s = asyncio.get_running_loop().time()
        unread: dict[str, tuple[float, float]] = {}
        for facts in answer.get("destinations", ()):
            app = str(facts["name"]).removeprefix(app_queue(""))
            if facts["depth"] and not facts["consumers"] and app not in self.leaving:
                unread[app] = self._unread.get(app, (now_s + self._unread_s / 2, self._unread_s))
        self._unread = unread
        for app, (due_s, pause_s) in list(unread.items()):
            if now_s >= due_s:
                moved = await self._pass_on(app)
                pause_s = self._unread_s if moved else min(2 * pause_s, UNREAD_MAX_S)
                self._unread[app] = (now_s + pause_s, pause_s)

    async def _pass_on(self, app: str) -> bool:
        """To brokers where it has connections and where the message has not been; did any go?"""
        found = await self._carrying.look_up(app)
        if found is None or found.app is None:
            return False
        rows = {row.name: row for row in found.brokers}
        places = {link.broker for link in found.app.links}
        here = {name for name in places if is_here(name, rows, own=self._broker, store=self._store)}
        others = sorted(places - here)
        if not here or not others:
            return False  # it has gone, or is nowhere else
        await self._carrying.route(app)  # which learns the addresses
        moved = False
        queue = self._own.queue(app_queue(app), create=False)
        async with queue.consume(unread_selector(others), prefetch=BATCH_MAX) as consumer:
            while batch := await consumer.receive_many(BATCH_MAX, timeout=PAUSE_S):
                moved = True
                await finished(asyncio.gather(*(self._share(app, message, others) for message in batch)))
        return moved

    async def _share(self, app: str, message: Delivery, others: list[str]) -> None:
        reader = next_reader(self._instructions(app, message), others)
        if reader:
            await self._send(app, message, reader)
        else:
            message.retry()


async def finished(work: asyncio.Future[T]) -> T:
    """Wait for it, and when cancelled, still let it finish: half done, a message could come twice. But not for ever."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work], timeout=FINISH_S)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise
