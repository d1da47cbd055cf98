"""Messages between applications, by name: sending, calling, answering (DIR-68 … DIR-77).

A connection that has an application name sends to the queue its registrar names: that of the recipient, or one whose
content is carried to the recipient's broker. The surprising part is what happens when the connection is lost and goes
to another broker in between: what the first broker may have stored is handed to the new one with the word that it is to
go there, to the queue that knows its id, and nowhere else. A call is not sent again: it is lost, and says so.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fairlead.client.aio.app_message import AppMessage
from fairlead.client.aio.sealed import Sealing
from fairlead.client.durable.content import Value
from fairlead.client.durable.receipt import Receipt
from fairlead.directory.delivery.calls import Calls, Turn
from fairlead.directory.delivery.instructions import HOPS_MAX, Instructions, checked_headers, checked_recipient
from fairlead.directory.delivery.known import KnownRoutes
from fairlead.directory.delivery.routes import CARRY, Route, app_queue, carry_queue
from fairlead.errors import (
    BadParameter,
    ConnectionLost,
    ConversationLost,
    DestinationDeleted,
    FairleadError,
    HandlerFailed,
    LocalProtocolError,
    NoDestination,
    NoDirectory,
    RequestTimeout,
    SessionLost,
    Undeliverable,
)

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.client.aio.consuming import Consumer
    from fairlead.client.aio.delivery import Delivery
    from fairlead.sealing import Keyring

__all__ = ["Applications", "WhenBusy"]

WhenBusy: TypeAlias = Literal["refuse", "queue"]

ROUTE_S: Final = 2.0  # an unknown name is told within this (DIR-77)
PAUSE_S: Final = 0.05
ANSWERS_AHEAD: Final = 100
FAILED: Final = "failed"  # the `:type` of an answer that says why there is none
CARRY_PARAMETERS: Final = {"delivery_limit": 0}  # what is on its way is tried until its broker is back


class Applications:
    """One per connection: see `ApplicationConnection` for what applications call."""

    def __init__(
        self, connection: Connection, *, when_busy: WhenBusy = "refuse", keys: Keyring | None, sealed_only: bool
    ) -> None:
        if when_busy not in ("refuse", "queue"):
            raise BadParameter(f"`when_busy` is 'refuse' or 'queue', and not {when_busy!r}.")
        self._connection = connection
        self._when_busy = when_busy
        self._known = KnownRoutes()
        self._calls: Calls[asyncio.Future[AppMessage]] = Calls()
        self._turn: Turn[asyncio.Future[None]] = Turn()
        self._hearing: tuple[str, str, asyncio.Task[Any]] | None = None  # broker, queue of our answers, who reads it
        self._hearing_lock = asyncio.Lock()
        self._sending = 0
        self.held = 0  # messages the application has and has not settled
        self.sealing = Sealing(connection, keys, sealed_only=sealed_only)

    @property
    def name(self) -> str:
        """The application this connection belongs to; LocalProtocolError if there is none."""
        if not self._connection.app:
            raise LocalProtocolError(
                "This connection has no application name: connect with fairlead+directory://… and a `name`."
            )
        return self._connection.app

    @property
    def unsettled(self) -> int:
        """Messages sent or received whose outcome is open, and calls without an answer (DIR-7)."""
        return self._sending + self.held + len(self._calls)

    @property
    def late(self) -> int:
        """Answers that came after their call was given up, and were dropped."""
        return self._calls.late

    def facts(self) -> dict[str, int]:
        return {
            "unsettled": self.unsettled,
            "sending": self._sending,
            "held": self.held,
            "calls": len(self._calls),
            "late": self.late,
            "routes": len(self._known),
        }

    # Sending.

    async def send(
        self,
        to: str,
        body: Any,
        *,
        headers: Mapping[str, Value] | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - the word of the message model
        sealed: bool | str = False,
        timeout: float | None = None,
    ) -> Receipt:
        """See `Connection.send_to`."""
        deadline_s = self._deadline(timeout)
        to, headers, _ = checked_recipient(to), checked_headers(headers), self.name
        if self._is_synchronous and self._turn.is_taken:
            async with self._my_turn(deadline_s):
                pass  # it was queued behind the call; it needs no turn of its own
        options = {"ttl": ttl, "priority": priority, "key": key, "type": type}
        return await self._send(to, body, headers, options, sealed, deadline_s)

    async def call(
        self,
        to: str,
        body: Any,
        *,
        headers: Mapping[str, Value] | None = None,
        priority: int | None = None,
        type: str | None = None,  # noqa: A002
        sealed: bool | str = False,
        timeout: float | None = 30,
    ) -> AppMessage:
        """See `Connection.call`."""
        tracing = self._connection._tracing
        if tracing is None:
            return await self._call(to, body, headers, priority, type, sealed, timeout)
        with tracing.asking("call", to) as spanned:
            return await self._call(to, body, spanned.headers(headers), priority, type, sealed, timeout)

    async def _call(
        self,
        to: str,
        body: Any,
        headers: Mapping[str, Value] | None,
        priority: int | None,
        type: str | None,  # noqa: A002
        sealed: bool | str,
        timeout: float | None,
    ) -> AppMessage:
        deadline_s = self._deadline(timeout)
        to, headers, _ = checked_recipient(to), checked_headers(headers), self.name
        async with self._my_turn(deadline_s):
            correlation = secrets.token_hex(16)
            future: asyncio.Future[AppMessage] = asyncio.get_running_loop().create_future()
            options = {"ttl": timeout, "priority": priority, "type": type}
            self._calls.open(correlation, future)
            try:
                async with asyncio.timeout_at(None if deadline_s == inf else deadline_s):
                    await self._send(to, body, headers, options, sealed, deadline_s, correlation=correlation)
                    answer = await future
            except TimeoutError:
                raise RequestTimeout(f"{to!r} has not answered in {timeout:g} s; it may still act on it.") from None
            finally:
                self._calls.give_up(correlation)
                if future.done() and not future.cancelled():
                    future.exception()  # whoever gave up has an error already
        if answer.delivery.type == FAILED:
            raise HandlerFailed(answer.text())
        return answer

    async def answer(
        self, message: AppMessage, body: Any, *, headers: Mapping[str, Value] | None = None, failed: bool = False
    ) -> Receipt | None:
        """See `AppMessage.answer`. It has an id made of the call's, so that one given twice comes once."""
        if not message.wants_answer:
            raise LocalProtocolError("Nobody waits for an answer to this message: acknowledge it.")
        instructions = Instructions(
            to=message.sender or "?",
            id=f"{message.id[:128]}.answer",
            queue=message.reply_to,
            sender=self.name,
            label=self._connection.label,
        )
        options = {"type": FAILED if failed else None, "correlation_id": message.correlation}
        sealed = message.sealed_under or message.sealed
        try:
            return await self._deliver(
                f"@{message.reply_broker}", instructions, body, checked_headers(headers), options, sealed, inf
            )
        except (Undeliverable, NoDestination):
            return None

    # The way there.

    async def _send(
        self,
        to: str,
        body: Any,
        headers: Mapping[str, Value],
        options: dict[str, Any],
        sealed: bool | str,
        deadline_s: float,
        correlation: str = "",
    ) -> Receipt:
        instructions = Instructions(
            to=to,
            id=secrets.token_hex(16),
            queue=app_queue(to),
            sender=self.name,
            label=self._connection.label,
        )
        if correlation:
            options = {**options, "correlation_id": correlation}
        return await self._deliver(to, instructions, body, headers, options, sealed, deadline_s)

    async def _deliver(
        self,
        name: str,
        instructions: Instructions,
        body: Any,
        headers: Mapping[str, Value],
        options: dict[str, Any],
        sealed: bool | str,
        deadline_s: float,
    ) -> Receipt:
        """Send it to where the registrar says, and again where it turns out to be elsewhere or the line was lost."""
        loop, absent, doubt = asyncio.get_running_loop(), 0, None
        options = {option: value for option, value in options.items() if value is not None}
        is_call = "correlation_id" in options and not instructions.is_answer
        self._sending += 1
        try:
            while True:
                try:
                    queue = await self._queue(name, instructions, doubt, deadline_s)
                    if is_call:
                        options["reply_to"] = await self._reply_queue()
                        instructions = instructions._replace(reply_broker=self._connection.broker)
                    said, content = await self.sealing.seal(instructions, body, options, sealed)
                    if doubt is None:
                        doubt = (self._connection.broker, queue)
                    elif queue != doubt[1] and not instructions.is_answer:
                        said = said._replace(doubt=doubt)
                    carried = queue.startswith(CARRY)
                    parameters = CARRY_PARAMETERS if carried else None
                    return await self._connection.queue(queue, create=carried, parameters=parameters).send(
                        content,
                        properties={**headers, **said.properties()},
                        dedup=said.id,
                        timeout=None if deadline_s == inf else max(deadline_s - loop.time(), 0),
                        **options,
                    )
                except (NoDestination, DestinationDeleted):
                    self._known.forget(name)  # it has moved since we asked
                    doubt = None
                    absent += 1
                    if absent > HOPS_MAX or instructions.is_answer:
                        raise Undeliverable(f"{instructions.to!r} is nowhere to be found; nothing was sent.") from None
                except (SessionLost, ConnectionLost, ConversationLost):
                    if self._connection.closed:
                        raise
                    if is_call and doubt is not None:
                        raise ConnectionLost(
                            f"The connection was lost while the call was sent; {instructions.to!r} may act on it."
                        ) from None
                if loop.time() + PAUSE_S > deadline_s:
                    raise RequestTimeout(f"The message to {instructions.to!r} could not be sent in time.")
                await asyncio.sleep(PAUSE_S)
        finally:
            self._sending -= 1

    async def _queue(
        self, name: str, instructions: Instructions, doubt: tuple[str, str] | None, deadline_s: float
    ) -> str:
        """The queue at this broker; of a message that another broker may have, one from which it is carried there."""
        if doubt is None or instructions.is_answer:
            return (await self._route(name, deadline_s)).queue or instructions.queue
        broker, queue = doubt
        try:
            if not (await self._route(f"@{broker}", deadline_s)).queue:
                return queue  # here, or as good as here
        except Undeliverable:
            pass  # it was taken out of the directory: the registrar sees to it
        return carry_queue(broker, instructions.to)

    async def _route(self, name: str, deadline_s: float) -> Route:
        """Where a message goes; Undeliverable if nobody knows the name. What was known serves if nobody answers."""
        loop, broker = asyncio.get_running_loop(), self._connection.broker
        self._known.at(broker)
        if name == f"@{broker}":
            return Route("", broker)
        found = self._known.fresh(name, loop.time())
        if found is not None:
            return found
        registrar = self._connection._registrar
        if registrar is None:
            raise LocalProtocolError("This connection is not registered with a directory.")
        try:
            told = await registrar.ask(name, timeout=max(min(ROUTE_S, deadline_s - loop.time()), 0.001))
        except (NoDirectory, RequestTimeout, ConversationLost):
            old = self._known.old(name)
            if old is None:
                raise
            return old
        if told is None:
            self._known.forget(name)
            raise Undeliverable(f"The directory knows no application {name!r}; nothing was sent.")
        route = Route(told.queue, told.to)
        self._known.at(self._connection.broker)
        self._known.learn(name, route, loop.time())
        return route

    # Answers.

    async def _reply_queue(self) -> str:
        """The queue of this connection's answers: nobody else may read it, and it goes with the connection."""
        async with self._hearing_lock:
            broker = self._connection.broker
            if self._hearing is not None and self._hearing[0] == broker and not self._hearing[2].done():
                return self._hearing[1]
            if self._hearing is not None:
                self._hearing[2].cancel()
            queue = await self._connection.temporary_queue()
            consumer = queue.consume(prefetch=ANSWERS_AHEAD, ack="auto")
            consumer.is_inner = True
            await consumer.start()
            self._hearing = (broker, queue.name, self._connection._carrier.spawn(self._hear(consumer)))
            return queue.name

    async def _hear(self, consumer: Consumer) -> None:
        """Give each answer to its call. When the queue is lost, so are the calls that waited."""
        try:
            while (delivery := await consumer.receive()) is not None:
                await self._answered(delivery)
        except FairleadError as error:
            for waiter in self._calls.lose_all():
                if not waiter.done():
                    waiter.set_exception(ConnectionLost(f"The connection was lost before the answer came: {error}"))

    async def _answered(self, delivery: Delivery) -> None:
        waiter = self._calls.answered(delivery.correlation_id or "")
        if waiter is None or waiter.done():
            return
        try:
            answer = await self.received(delivery)
        except FairleadError as error:
            waiter.set_exception(error)
            return
        answer.ack()
        if not waiter.done():
            waiter.set_result(answer)

    async def received(self, delivery: Delivery) -> AppMessage:
        """As the application gets it; IntegrityError and the like if it was sealed and cannot be opened."""
        instructions = Instructions.of(delivery.properties)
        if instructions is None:  # not sent by `send_to`
            instructions = Instructions(to=self._connection.app, id=delivery.id, queue=delivery.destination)
        opened = await self.sealing.open(instructions, delivery)
        self.held += 1
        return AppMessage(self, delivery, instructions, opened=opened)

    # Turns.

    @property
    def _is_synchronous(self) -> bool:
        return self._connection.mode == "synchronous"

    @asynccontextmanager
    async def _my_turn(self, deadline_s: float) -> AsyncIterator[None]:
        """A synchronous connection has one call outstanding; others are refused, or wait for their turn."""
        if not self._is_synchronous:
            yield
            return
        if not self._turn.take():
            if self._when_busy == "refuse":
                raise self._turn.refuse()
            await self._wait_for_turn(deadline_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait_for_turn(self, deadline_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn.wait(waiter)
        try:
            async with asyncio.timeout_at(None if deadline_s == inf else deadline_s):
                await asyncio.shield(waiter)
        except BaseException as error:
            if waiter.done():
                self._pass_on()  # it had just become ours
            self._turn.leave(waiter)
            waiter.cancel()
            if isinstance(error, TimeoutError):
                raise self._turn.refuse() from None
            raise

    def _pass_on(self) -> None:
        following = self._turn.release()
        if following is not None:
            following.set_result(None)

    def _deadline(self, timeout: float | None) -> float:
        return inf if timeout is None else asyncio.get_running_loop().time() + timeout
