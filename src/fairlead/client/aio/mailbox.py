"""Where things wait until somebody takes them: one wake-up per batch, none per message.

Iterating takes what is there without suspending. A mailbox that has ended is emptied first and then says
so: by the end of the iteration when the end was orderly, else by raising why. Memory is bounded by credit:
what lies here unread is not given back to the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from fairlead.client.aio.waiting import expire
from fairlead.errors import ConnectionLost

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["Mailbox"]

T = TypeVar("T")
CHUNK = 1024
"""After so many in a row credit is looked at again."""


class Mailbox(Generic[T]):
    """A queue with an end."""

    def __init__(self, carrier: Carrier, *, buffer: int = 65_536) -> None:
        self.buffer = buffer
        self.queue: deque[T] = deque()
        self._carrier = carrier
        self._waiters: list[asyncio.Future[None]] = []
        self._ended = False
        self._error: Exception | None = None

    # The side that fills it.

    def put(self, items: Iterable[T]) -> None:
        if not self._ended:
            self.queue.extend(items)
            if self._waiters:
                self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come, and this is why."""
        if not self._ended:
            self._error = error
            self.end()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._carrier.mailboxes.discard(self)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # The side that empties it.

    def _enlist(self) -> None:
        """From here on what waits unread counts against the credit, and the end of the connection ends it."""
        if not self._ended:
            self._carrier.mailboxes.add(self)

    async def start(self) -> None:
        """Overridden where something must be said to the server before anything can come."""

    async def __aiter__(self) -> AsyncIterator[T]:
        await self.start()
        queue = self.queue
        while await self._wait():
            for _ in range(min(len(queue), CHUNK)):
                if not queue:
                    break
                yield queue.popleft()
            self._carrier.consumed()

    async def batches(self) -> AsyncIterator[list[T]]:
        """Everything that is there, as a list, again and again."""
        while batch := await self.take():
            yield batch

    async def take(self, timeout: float | None = None) -> list[T]:
        """Everything that is there, at least one; nothing at an orderly end."""
        await self.start()
        if not await self._wait(timeout):
            return []
        batch = list(self.queue)
        self.queue.clear()
        self._carrier.consumed()
        return batch

    async def next(self, timeout: float | None = None) -> T:
        """The next one; RequestTimeout when none comes in time, ConnectionLost when none can come any more."""
        await self.start()
        if not self.queue and not await self._wait(timeout):
            raise self._nothing_more()
        item = self.queue.popleft()
        self._carrier.consumed()
        return item

    def _nothing_more(self) -> Exception:
        return ConnectionLost("It is closed: nothing more will come.")

    async def _wait(self, timeout: float | None = None) -> bool:
        """True when something is there; False at an orderly end."""
        if self.queue:
            return True
        loop = self._carrier.loop
        deadline = None if timeout is None else loop.time() + timeout
        while not self.queue:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            timer = None if deadline is None else loop.call_at(deadline, expire, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True
