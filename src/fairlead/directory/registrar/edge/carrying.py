"""Carries messages from one broker to the brokers of their recipients, in the registrar's process.

What clients sent to `carry.C::AZ` is taken from there, stored at broker C under its id, and acknowledged when C has it
on stable storage: a registrar or broker that is killed loses nothing, and what is sent twice is stored once. What is
left in the queue of an application that has gone elsewhere is sent after it; what nobody can get is a dead message.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fairlead.client.aio.connection import Connection
from fairlead.client.aio.delivery import Delivery
from fairlead.directory.answers import Found
from fairlead.directory.delivery.instructions import Instructions
from fairlead.directory.delivery.queues import CARRY, Carried, carried_to, carry_queue
from fairlead.directory.delivery.routes import Route, find_route
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.registrar.edge.lane import Lane, send
from fairlead.directory.registrar.edge.leftovers import LINGER_S, UNREAD_S, Leftovers
from fairlead.directory.registrar.onward import PATIENCE_S, Outcome, fault_of, next_step
from fairlead.directory.rows import Broker
from fairlead.errors import FairleadError

__all__ = ["Carrying"]

BATCH_MAX: Final = 256
PAUSE_S: Final = (0.1, 1.0)
LATER_S: Final = 0.5
LOOKED_S: Final = 0.3  # so long an answer of the directory serves for other messages to the same application
LOOK_UP_S: Final = 5.0
FOUND_S: Final = 0.5
IDLE_S: Final = 300.0  # a queue in which nothing came for so long goes
LOOKED_MAX: Final = 1000
PARAMETERS: Final = {"delivery_limit": 0}
PAGE: Final = 500


class Ferry(NamedTuple):
    """Carries the content of one queue; `ready` when the queue is there."""

    task: asyncio.Task[None]
    ready: asyncio.Event


class Carrying:
    """`ensure` where messages may have to go to; `leave` when the last connection of an application has gone."""

    def __init__(
        self,
        own: Connection,
        directory: DirectoryClient,
        broker: str,
        store: str,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        say: Callable[[str, str], None] = lambda level, text: None,
        patience_s: float = PATIENCE_S,
        linger_s: float = LINGER_S,
        unread_s: float = UNREAD_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._own = own
        self._directory = directory
        self._broker = broker
        self._store = store
        self._login: dict[str, Any] = {"user": user, "password": password, "tls": tls}
        self._say = say
        self._patience_s = patience_s
        self._lanes: dict[str, Lane] = {}
        self._ferries: dict[Carried, Ferry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_s = idle_s
        self._looked: dict[str, tuple[float, asyncio.Future[Found | None]]] = {}
        self._found_s: dict[str, float] = {}
        self._leftovers = Leftovers(
            self, own, broker, store, patience_s=patience_s, linger_s=linger_s, unread_s=unread_s
        )
        self._turn = 0
        self.carried = 0
        self.dead = 0
        self.dropped = 0

    async def start(self) -> None:
        """Go on with what is left from before."""
        await self.find_queues()
        self._leftovers.start()

    async def find_queues(self) -> None:
        """Begin to carry what waits where nobody reads: from before a restart, or sent by way of an old route."""
        page: int | None = 0
        while page is not None:
            answer = await self._own.admin.destinations(
                pattern=f"{CARRY}>", kind="queue", sort="depth", descending=True, count=PAGE, page=page
            )
            waiting = [one for one in answer.get("destinations", ()) if one["depth"] and not one["consumers"]]
            for one in waiting:
                carried = carried_to(str(one["name"]))
                if carried is not None:
                    self._begin(carried)
            page = answer.get("next") if waiting else None

    async def ensure(self, row: Broker, app: str = "") -> str:
        """The queue for what goes to an application at this broker; without one, for answers.

        It is there, and is being carried, when this returns.
        """
        carried = Carried(row.name, app)
        await self._lane(row.name).at(row)
        await self._begin(carried).ready.wait()
        return carry_queue(*carried)

    def facts(self) -> dict[str, Any]:
        return {
            "carried": self.carried,
            "dead": self.dead,
            "dropped": self.dropped,
            "leaving": sorted(self._leftovers.leaving)[:100],
            "queues": len(self._ferries),
            "brokers": {
                name: {"connected": lane.connected, "sent": lane.sent, "error": lane.error}
                for name, lane in sorted(self._lanes.items())[:200]
            },
        }

    async def close(self) -> None:
        """What is under way comes again, to the next registrar."""
        await self._leftovers.close()
        for task in set(self._tasks):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()), return_exceptions=True)
        looking = [asked for _, asked in self._looked.values()]
        for asked in looking:
            asked.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    # To other brokers.

    def _lane(self, broker: str) -> Lane:
        if broker not in self._lanes:
            self._lanes[broker] = Lane(self._broker, None, **self._login)
        return self._lanes[broker]

    def _begin(self, carried: Carried) -> Ferry:
        found = self._ferries.get(carried)
        if found is None:
            ready = asyncio.Event()
            task = asyncio.get_running_loop().create_task(self._ferry(carried, ready))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            found = self._ferries[carried] = Ferry(task, ready)
        return found

    async def _ferry(self, carried: Carried, ready: asyncio.Event) -> None:
        """What is in the queue goes to its broker, or where its recipient has gone; until nothing has come for long."""
        pause_s, told, is_idle = PAUSE_S[0], "", False
        while not is_idle:
            try:
                queue = self._own.queue(carry_queue(*carried), parameters=PARAMETERS)
                async with queue.consume(prefetch=BATCH_MAX) as consumer:
                    ready.set()
                    pause_s = PAUSE_S[0]
                    while batch := await consumer.receive_many(BATCH_MAX, timeout=self._idle_s):
                        await asyncio.gather(*(self._carry(message, carried) for message in batch))
                    is_idle = not consumer.closed
            except FairleadError as error:
                if str(error) != told:
                    told = str(error)
                    self._say("warning", f"nothing is carried to {carried.broker} for now: {error}")
            if not is_idle:
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(2 * pause_s, PAUSE_S[1])
        del self._ferries[carried]  # who needs it from now on begins another one, which keeps the queue from going
        try:
            await self._own.admin.delete(destination=carry_queue(*carried), unused=True)
        except FairleadError:
            pass  # it is in use again, or will be found again

    async def _carry(self, message: Delivery, carried: Carried) -> None:
        """One message of a carry queue, until it is settled."""
        instructions = Instructions.of(message.properties)
        fault = fault_of(instructions, carried.app)
        if fault or instructions is None:
            self.bury(message, fault)
            return
        await self.send(message, instructions, carried.broker)

    async def send(self, message: Delivery, instructions: Instructions, at: str, *, hold: bool = False) -> None:
        """Until it is settled. `hold`: not to be given back in between, for where it is that would count against it."""
        # Somebody who carried it before us, or its sender, may have got as far as storing it there.
        in_doubt = message.redelivered or instructions.doubt is not None
        pause_s = PAUSE_S[0]
        while True:
            outcome, why = await self._attempt(message, instructions, at)
            route, is_gone = None, False
            if outcome in (Outcome.DOUBTFUL, Outcome.UNREACHABLE):
                is_gone = not await self._find(at)
            if not instructions.is_answer and (is_gone or outcome in (Outcome.ABSENT, Outcome.UNREACHABLE)):
                route = await self.route(instructions.to)
            step = next_step(
                outcome,
                instructions,
                at=at,
                route=route,
                in_doubt=in_doubt,
                is_gone=is_gone,
                age_s=(datetime.now(UTC) - message.arrival).total_seconds(),
                patience_s=self._patience_s,
            )
            match step.do:
                case "done":
                    message.ack()
                    self.carried += 1
                    return
                case "send":
                    again = instructions.again or (is_gone and (in_doubt or outcome is Outcome.DOUBTFUL))
                    instructions = instructions._replace(doubt=None, again=again)
                    at, in_doubt = step.broker, False
                case "later" if not hold:
                    message.retry(LATER_S)
                    return
                case "wait" | "later":
                    in_doubt = in_doubt or outcome is Outcome.DOUBTFUL
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S[1])
                case "drop":
                    message.ack()
                    self.dropped += 1
                    return
                case "dead":
                    self.bury(message, f"{step.reason} {why}".strip())
                    return

    async def _attempt(self, message: Delivery, instructions: Instructions, at: str) -> tuple[Outcome, str]:
        onward, queue = instructions.onward(at), instructions.queue_at(at)
        if at == self._broker:
            return await send(self._own, message, onward, queue)
        return await self._lane(at).send(message, onward, queue)

    def bury(self, message: Delivery, reason: str) -> None:
        self.dead += 1
        message.reject()
        self._say("warning", f"a message in {message.destination} is dead: {reason}")

    # What the directory says.

    async def route(self, app: str) -> Route | None:
        """Where the application is now; None if nobody can say."""
        found = await self.look_up(app)
        if found is None:
            return None
        self._turn += 1
        for row in found.brokers:
            if row.name != self._broker:
                await self._lane(row.name).at(row)
        return find_route(found.app, found.brokers, own=self._broker, store=self._store, turn=self._turn)

    async def look_up(self, app: str) -> Found | None:
        """One question serves all who ask at the same time."""
        now_s = asyncio.get_running_loop().time()
        asked_s, asked = self._looked.get(app, (0.0, None))
        if asked is None or (asked.done() and now_s - asked_s > LOOKED_S):
            if len(self._looked) > LOOKED_MAX:
                self._looked = {name: one for name, one in self._looked.items() if not one[1].done()}
            asked = asyncio.ensure_future(self._ask(app))
            self._looked[app] = (now_s, asked)
        return await asyncio.shield(asked)

    async def _ask(self, app: str) -> Found | None:
        try:
            return await self._directory.lookup_app(app, timeout=LOOK_UP_S)
        except FairleadError:
            return None

    async def _find(self, broker: str) -> bool:
        """It does not answer: perhaps it is somewhere else now. Not if it was taken out of the directory for good."""
        now_s = asyncio.get_running_loop().time()
        if broker == self._broker or now_s - self._found_s.get(broker, 0.0) < FOUND_S:
            return True
        self._found_s[broker] = now_s
        try:
            answer = await self._directory.list_brokers(timeout=LOOK_UP_S)
        except FairleadError:
            return True
        for row in answer.brokers:
            if row.name == broker:
                await self._lane(broker).at(row)
                return True
        return answer.stale

    # What is left here of an application that has gone.

    async def leave(self, app: str) -> None:
        """Send after it what is left in its queue, or bury it; then delete the queue, unless it is registered here.

        If the application is here again, or its messages are to wait here, this ends at once.
        """
        await self._leftovers.leave(app)
