"""A stream as an application sees it: one message after the other, whatever happens to adapters (docs/feeds.md).

::

    async with connection.stream("prices.emea") as stream:
        async for message in stream:
            print(message.sequence, message.record())
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast

from fairlead.client.aio.feed_desk import FeedDesk
from fairlead.client.aio.feed_options import StreamOptions
from fairlead.client.aio.feed_tray import Entry
from fairlead.client.aio.waiting import expire
from fairlead.errors import LocalProtocolError
from fairlead.feeds.arbitration.standing import State
from fairlead.feeds.events import Event
from fairlead.feeds.records import Place
from fairlead.feeds.schema import Schema

if TYPE_CHECKING:
    from fairlead.client.aio.connection import Connection
    from fairlead.feeds.blocks import StreamMessage

__all__ = ["Stream"]

Item = TypeVar("Item")
"""StreamMessage; or that and Event, for those who ask for events."""

CHUNK_MAX: Final = 1024
TURN_S: Final = 0.01
"""An application that works without a pause lets the lines be read after about so long."""
BATCH: Final = 4096
ENTRIES_MAX: Final = 256


class Stream(Generic[Item]):
    """Made by `Connection.stream`; begins when it is entered, iterated over or asked for a batch.

    One task takes from it at a time. Leaving the loop early loses nothing: the next one goes on behind.
    """

    def __init__(
        self,
        connection: Connection,
        options: StreamOptions,
        *,
        events: bool,
        on_event: Callable[[Event], object] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.name = options.stream
        self.client = f"{connection.address}/{secrets.token_hex(4)}"
        """By which the administration and adapters know this stream of this program."""
        self._connection = connection
        self._options = options
        self._with_events = events
        self._on_event = on_event
        self._waiters: list[asyncio.Future[None]] = []
        self._is_over = False
        self._error: Exception | None = None
        self._starting: asyncio.Future[None] | None = None
        self._desk = FeedDesk(
            connection, options, client=self.client, tls=tls or connection._tls, wake=self._wake, end=self._end
        )
        self._tray = self._desk.tray

    # Its life.

    async def start(self) -> None:
        """Be introduced to adapters; raises why not: UnknownStream, NotAllowed, NoReceiver without administration."""
        if self._starting is None:
            self._connection._streams.add(self)
            self._starting = asyncio.ensure_future(self._desk.begin(self._options.timeout))
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._starting.cancelled():
                raise LocalProtocolError("The stream was closed while it was being started.") from None
            raise
        except BaseException:
            self._connection._streams.discard(self)
            raise

    async def aclose(self) -> None:
        """Have no more of it; what waits is not handed out."""
        self._connection._streams.discard(self)
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if not self._starting.cancelled():
                self._starting.exception()
        await self._desk.close()
        self._tray.clear()
        self._end(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # How it is.

    @property
    def state(self) -> State:
        """`starting`; `normal`; `no-backup`: one adapter only; `stale`: what comes is old; `down`: no adapter can be
        reached; `revoked`."""
        return self._desk.arbiter.state

    @property
    def position(self) -> dict[str, Place]:
        """What the application was given last, by source: keep it, and go on from it with `start=` (STR-24)."""
        return self._tray.position

    @property
    def schema(self) -> Schema | None:
        """Of the records; None if the stream has none, or is not started."""
        return self._desk.schema

    @property
    def counters(self) -> dict[str, int]:
        """Delivered, duplicates, gaps and so on, as docs/feeds.md lists them."""
        return {**self._desk.arbiter.counters, "waiting": self._tray.messages}

    @property
    def line(self) -> str:
        """The adapter messages are taken from at the moment; empty: none."""
        return self._desk.arbiter.line

    @property
    def epoch(self) -> int:
        return self._desk.arbiter.epoch

    @property
    def closed(self) -> bool:
        return self._is_over

    # What it gives.

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Messages; with `events=True` events among them, each where it happened."""
        await self.start()
        tray, time = self._tray, asyncio.get_running_loop().time
        chunk = 64
        while True:
            began_s = time()
            for message in islice(tray.rest, chunk):
                tray.last = message
                yield message
            if time() - began_s > TURN_S:
                chunk = max(chunk // 2, 1)
                await asyncio.sleep(0)
            elif chunk < CHUNK_MAX:
                chunk *= 2
            if tray.is_run_done:
                if not await self._wait():
                    return
                event = self._next()
                if event is not None and self._with_events:
                    yield cast(Item, event)

    async def batch(self, max: int = BATCH, timeout: float | None = None) -> list[Item]:  # noqa: A002
        """What is there, at least one and at most `max`; empty at the end. RequestTimeout when nothing comes in time.

        With `events=True` events are in the list, each in its place.
        """
        await self.start()
        loop, tray = asyncio.get_running_loop(), self._tray
        until_s = None if timeout is None else loop.time() + timeout
        found: list[StreamMessage | Event] = list(tray.take(max))
        while len(found) < max:
            if not tray and (found or not await self._wait(until_s)):
                break
            event = self._next()
            if event is None:
                found += tray.take(max - len(found))
            elif self._with_events:
                found.append(event)
        return cast(list[Item], found)

    async def next(self, timeout: float | None = None) -> Item | None:
        """The next one; None at the end."""
        found = await self.batch(1, timeout)
        return found[0] if found else None

    async def entries(self, timeout: float | None = None) -> list[Entry]:
        """Runs and events as they are, for another tray that hands them out; none at the end."""
        await self.start()
        found: list[Entry] = []
        until_s = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if await self._wait(until_s):
            messages = 0
            while self._tray and len(found) < ENTRIES_MAX and messages < BATCH:
                found.append(entry := self._tray.pop())
                messages += len(entry) if isinstance(entry, list) else 0
            self._desk.taken()
        return found

    def _next(self) -> Event | None:
        event = self._tray.next()
        self._desk.taken()
        if event is not None and self._on_event is not None:
            self._on_event(event)
        return event

    async def _wait(self, until_s: float | None = None) -> bool:
        """True when there is something in the tray; False at an orderly end."""
        if self._tray:
            return True
        loop = asyncio.get_running_loop()
        while not self._tray:
            if self._is_over:
                if self._error is not None:
                    raise self._error
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            timer = None if until_s is None else loop.call_at(until_s, expire, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True
