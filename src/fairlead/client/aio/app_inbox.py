"""What others sent to an application: read by a loop, or served by a handler.

All connections of an application read one queue at their broker, each with a small window, so that one that is idle
gets the next message (DIR-75). When the connection has gone to another broker, it goes on with the queue there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from fairlead.client.aio.app_message import AppMessage
from fairlead.client.durable.receipt import Receipt
from fairlead.directory.delivery.routes import app_queue
from fairlead.errors import (
    BadParameter,
    ConnectionLost,
    DestinationDeleted,
    FairleadError,
    IntegrityError,
    LocalProtocolError,
    NoDestination,
    NoDirectory,
    NoKey,
    NoMessageManager,
    SessionLost,
    Unavailable,
)

if TYPE_CHECKING:
    from fairlead.client.aio.applications import Applications
    from fairlead.client.aio.connection import Connection
    from fairlead.client.aio.consuming import Consumer
    from fairlead.client.aio.delivery import Delivery
    from fairlead.client.aio.spanned import Spanned

__all__ = ["AppHandler", "AppInbox", "AppService"]

AppHandler: TypeAlias = Callable[[AppMessage], Any]
PAUSE_S: Final = 0.05
WINDOW_MAX: Final = 10_000
PASSES: Final = (ConnectionLost, DestinationDeleted, NoDestination, NoMessageManager, SessionLost)
"""The queue, or the way to it, is gone: there is another one as soon as the connection is registered again."""


class AppInbox:
    """Open inside `async with`. `window`: how many messages come ahead of being asked for."""

    def __init__(self, connection: Connection, owner: Applications, *, window: int) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise BadParameter(f"A window is 1 to {WINDOW_MAX} messages, and not {window!r}.")
        self._connection = connection
        self._owner = owner
        self._window = window
        self._consumer: Consumer | None = None
        self._closed = False
        self.name = owner.name

    async def __aenter__(self) -> Self:
        await self._opened(inf)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what was not looked at; other connections of the application get it."""
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    @property
    def lost(self) -> Exception | None:
        """Why its connection has ended, if it has."""
        return self._connection._carrier.ended

    async def receive(self, timeout: float | None = None) -> AppMessage | None:
        """The next message; None when none comes in `timeout` seconds.

        IntegrityError (and its like) when one came that was changed on its way: it is in the dead message queue, and
        the next call goes on behind it.
        """
        loop = asyncio.get_running_loop()
        deadline_s = inf if timeout is None else loop.time() + timeout
        while True:
            delivery = await self._next(deadline_s)
            if delivery is None:
                return None
            return await self._owner.received(delivery)

    async def __aiter__(self) -> AsyncIterator[AppMessage]:
        while (message := await self.receive()) is not None:
            yield message

    async def _next(self, deadline_s: float) -> Delivery | None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            try:
                consumer = await self._opened(deadline_s)
                left_s = None if deadline_s == inf else max(deadline_s - loop.time(), 0)
                delivery = await consumer.receive(left_s)
                if delivery is not None or loop.time() >= deadline_s:
                    return delivery
            except TimeoutError:
                return None
            except PASSES:
                if self._connection.closed:
                    raise
            await self._drop()
            await asyncio.sleep(PAUSE_S)
        raise LocalProtocolError("The inbox is closed.")

    async def _opened(self, deadline_s: float) -> Consumer:
        """The consumer of the queue; made anew where it was lost."""
        loop = asyncio.get_running_loop()
        while self._consumer is None:
            queue = self._connection.queue(app_queue(self.name), create=False)
            consumer = queue.consume(prefetch=self._window, ack="individual")
            consumer.is_inner = True
            try:
                async with asyncio.timeout_at(None if deadline_s == inf else deadline_s):
                    await consumer.start()
            except PASSES:
                if self._connection.closed or loop.time() > deadline_s:
                    raise
                await asyncio.sleep(PAUSE_S)
            except BaseException:
                await consumer.close()
                raise
            else:
                self._consumer = consumer
        return self._consumer

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()


class AppService:
    """Calls `handler(message)` for each message, and answers calls with what it returns. Ends with `close`.

    A handler that raises makes its caller get HandlerFailed; a message nobody waits for comes again.
    """

    def __init__(self, inbox: AppInbox, handler: AppHandler, *, concurrency: int) -> None:
        if concurrency < 1:
            raise BadParameter("`concurrency` is at least 1.")
        self._inbox = inbox
        self._handler = handler
        self._room = asyncio.Semaphore(concurrency)
        self._working: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self.failed = 0  # messages that could not be handled or answered
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """Why no more messages come: the connection is lost for good, or they are refused."""
        return self._error or self._inbox.lost

    async def start(self, spawn: Callable[[Any], asyncio.Task[None]]) -> Self:
        await self._inbox.__aenter__()
        self._spawn = spawn
        self._reading = spawn(self._read())
        return self

    async def close(self) -> None:
        """No more messages; those that are worked on are finished."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._inbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            try:
                message = await self._inbox.receive()
            except (IntegrityError, NoKey):  # told as an event, and put aside
                message = None
            except NoDirectory:  # who could name the sender's key is away: the message comes again
                message = None
                await asyncio.sleep(PAUSE_S)
            except FairleadError as error:
                self._room.release()
                self._error = error
                return
            if message is None:
                self._room.release()
                continue
            task = self._spawn(self._work(message))
            self._working.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._room.release()

    async def _work(self, message: AppMessage) -> None:
        tracing = message.delivery._consumer.tracing
        if tracing is None:
            await self._handle(message, None)
        else:
            with tracing.serving(message) as spanned, tracing.use(spanned.span):
                await self._handle(message, spanned)

    async def _handle(self, message: AppMessage, spanned: Spanned | None) -> None:
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            self.failed += 1
            if spanned is not None:
                spanned.failed(error)
            await self._failed(message, error)
            return
        if message._settled:
            return
        if message.wants_answer:
            await self._answer(message, b"" if result is None else result)
        else:
            message.ack()

    async def _failed(self, message: AppMessage, error: Exception) -> None:
        if message._settled:
            return
        if not message.wants_answer:
            message.retry()
            return
        try:
            await message.fail(f"{type(error).__name__}: {error}")
        except FairleadError:
            message.retry()

    async def _answer(self, message: AppMessage, result: Any) -> Receipt | None:
        try:
            return await message.answer(result)
        except Unavailable:
            self.failed += 1
            message.retry()
            return None
        except FairleadError as error:  # such as a body that cannot be sent
            self.failed += 1
            await self._failed(message, error)
            return None
