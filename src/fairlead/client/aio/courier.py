"""Carries the durable road: when it flushes, what time it is, and who waits for something to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.client.aio.waiting import expire
from fairlead.client.durable.commands import Command, Facts, Reply
from fairlead.client.durable.road import Road
from fairlead.errors import RequestTimeout

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["Courier"]

T = TypeVar("T")


class Courier:
    """One per connection; everything the road has to say in one turn of the loop is written together."""

    def __init__(self, carrier: Carrier, *, client_name: str, limit_s: float) -> None:
        self.carrier = carrier
        self.loop = carrier.loop
        self.tracing = carrier.tracing
        self.road = Road(
            carrier.session,
            client_name=client_name,
            limit_s=limit_s,
            now_ms=_now_ms,
            later=self._later,
            wake=self._wake,
            write=carrier.flush,
        )
        self.road.listeners.append(self._changed)
        carrier.session.road = self.road
        self._scheduled = False
        self._waiters: list[asyncio.Future[None]] = []
        self._timers: set[asyncio.TimerHandle] = set()
        if carrier.session.is_live:
            self.road.on_connected()

    # What the road asks for.

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self.road.flush()
        self.carrier.flush()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            action()

        timer = self.loop.call_later(delay_s, due)
        self._timers.add(timer)

    def stop(self) -> None:
        """No more timers: the connection is closed."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # Waiting.

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, deadline_s: float = inf) -> None:
        """Until something changed: room in a window, the state of a session, a destination unblocked."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline_s == inf else self.loop.call_at(deadline_s, expire, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def reply(self) -> tuple[asyncio.Future[Facts], Reply]:
        """A future, and the callback that resolves it."""
        future: asyncio.Future[Facts] = self.loop.create_future()

        def told(facts: Facts, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(facts)
                else:
                    future.set_exception(error)

        return future, told

    async def ask(self, do: str, fields: dict[str, Any], timeout: float | None = None) -> Facts:
        """A command that belongs to no session; asked again if the line is lost before its answer."""
        future, told = self.reply()
        self.road.ask(Command(do, fields, told))
        if not self.road.is_live:
            self.road.missed()
        return await limited(future, timeout)

    async def ask_once(self, do: str, fields: dict[str, Any], timeout: float | None = None) -> Facts:
        """A command for whoever has the line; ConnectionLost if that is lost before the answer."""
        future, told = self.reply()
        self.road.ask(Command(do, fields, told, on_loss="fail", apart=True))
        try:
            return await limited(future, timeout)
        finally:
            future.cancel()  # whoever gave up does not want to hear of it later


async def limited(future: asyncio.Future[T], timeout: float | None) -> T:
    """Wait, but not longer than this; what was asked may still happen."""
    if timeout is None:
        return await future
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(future)
    except TimeoutError as late:
        if future.done() and not future.cancelled():
            return future.result()
        raise RequestTimeout("No answer arrived in time; what was asked may still happen.") from late


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
