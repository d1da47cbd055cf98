"""Sending with many messages under way: a window, receipts in order, and waiting only for room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from fairlead.client.durable.producer import Producer
from fairlead.client.durable.receipt import Receipt
from fairlead.errors import Blocked, LocalProtocolError

if TYPE_CHECKING:
    from fairlead.client.aio.destinations import Destination

__all__ = ["Gatherer", "OnBlocked", "Sender"]

SMALL_BYTES = 65_536
OnBlocked: TypeAlias = Literal["wait", "raise"]


class Gatherer:
    """A ticket for many messages: done when the last receipt is in, or with the first failure."""

    __slots__ = ("_error", "_future", "_left", "_receipts")

    def __init__(self, future: asyncio.Future[list[Receipt]], count: int) -> None:
        self._future = future
        self._left = count
        self._receipts: list[Receipt] = []
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, receipt: Receipt) -> None:
        self._receipts.append(receipt)
        self._count()

    def set_exception(self, error: Exception) -> None:
        self._error = self._error or error
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left and not self._future.done():
            if self._error is not None:
                self._future.set_exception(self._error)
            else:
                self._future.set_result(self._receipts)


class Sender:
    """`send` waits only for room in the window; its future is done when the message is durable.

    Leaving `async with` waits for all receipts, and raises the first failure nobody has looked at.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        window: int,
        on_receipt: Callable[[Receipt], object] | None,
        options: dict[str, Any],
    ) -> None:
        if window < 1:
            raise LocalProtocolError("A window has room for one message at least.")
        self._destination = destination
        self._tracing = destination.tracing
        self._window = window
        self._on_receipt = on_receipt
        self._like, _ = destination.content(b"", options)
        self._options = options
        self._under_way: deque[asyncio.Future[Receipt]] = deque()
        self._producer: Producer | None = None
        self._create_future: Callable[[], asyncio.Future[Receipt]] = destination.courier.loop.create_future
        self._failed: Exception | None = None

    async def send(self, body: Any, **options: Any) -> asyncio.Future[Receipt]:
        """Send one; the future resolves to its receipt, in the order of sending."""
        producer, under_way = self._producer, self._under_way
        if options or type(body) is not bytes or len(body) > SMALL_BYTES:
            like, data = self._destination.content(body, {**self._options, **options})
            if not like.fits(len(data)):
                raise LocalProtocolError("A very large message is sent with `send` of its queue or topic.")
        else:
            like, data = self._like, body
        if producer is None or len(under_way) >= self._window or not producer.is_gathering:
            producer = await self._room()
        future = self._create_future()
        if self._tracing is not None:
            given = (self._options | options).get("properties")
            spanned = self._tracing.sending("send", self._destination.name, len(data), given)
            like = spanned.content(like, len(data))
            future.add_done_callback(spanned.ended)
        producer.add(data, like, future)
        under_way.append(future)
        if self._on_receipt is not None:
            future.add_done_callback(self._tell)
        return future

    async def flush(self) -> None:
        """Wait until everything sent so far is durable, or raise why it is not."""
        while self._under_way:
            self._sweep()
            if self._under_way:
                await asyncio.wait([self._under_way[-1]])
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    async def close(self) -> None:
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            await self.close()
        for future in self._under_way:
            future.add_done_callback(_seen)

    async def _room(self) -> Producer:
        while True:
            self._sweep()
            self._producer = producer = await self._destination.room(inf, "wait")
            if len(self._under_way) < self._window:
                return producer
            await self._destination.courier.changed()

    def _sweep(self) -> None:
        under_way = self._under_way
        while under_way and under_way[0].done():
            try:
                under_way.popleft().result()
            except asyncio.CancelledError:
                pass
            except Exception as error:
                self._failed = self._failed or error

    def _tell(self, future: asyncio.Future[Receipt]) -> None:
        if self._on_receipt is not None and not future.cancelled() and future.exception() is None:
            self._on_receipt(future.result())


def _seen(future: asyncio.Future[Receipt]) -> None:
    """Whoever gave up sending has an error already."""
    if not future.cancelled():
        future.exception()


def blocked(name: str) -> Blocked:
    return Blocked(f"{name!r} is full: it takes messages again when some are consumed.")
