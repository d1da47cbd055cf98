"""Numbered traffic at a steady rate, and the books of those who receive it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import fairlead
from fairlead.demo.books import Book
from fairlead.demo.edge.stage import PATIENCE_S

__all__ = ["Flow", "Parties", "QueueFlow", "pack", "read", "unpack"]

BODY: Final = struct.Struct("<Qd")  # its number, and when it was sent (monotonic clock of this host)
PADDING: Final = bytes(112)
BURST_S: Final = 0.005
LATE_S: Final = 0.05
WINDOW: Final = 256
SILENCE_S: Final = 20.0

Disturb = Callable[[], Awaitable[None]]
Say = Callable[[str], None]


def pack(number: int) -> bytes:
    return BODY.pack(number, time.monotonic()) + PADDING


def unpack(body: bytes) -> tuple[int, float]:
    number, sent_s = BODY.unpack_from(body)
    return number, sent_s


class Parties:
    """Connections of the tour, and how often one of them was lost: `async with Parties() as parties`."""

    def __init__(self) -> None:
        self._open: list[fairlead.Connection] = []
        self.disconnected = 0

    async def connect(self, url: str, name: str, **options: Any) -> fairlead.Connection:
        connection = await fairlead.connect(url, name=name, **options)
        self._open.append(connection)
        connection.on_event(self._on_event)
        return connection

    def _on_event(self, event: fairlead.Event) -> None:
        self.disconnected += event.name == "lost"

    async def __aenter__(self) -> Parties:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for connection in reversed(self._open):
            await connection.close()


class Flow:
    """Broadcast from one connection to another one."""

    def __init__(self, sender: fairlead.Connection, receiver: fairlead.Connection, topic: str, say: Say) -> None:
        self._sender, self._receiver, self._topic, self._say = sender, receiver, topic, say
        self.book = Book()
        self.sent = 0
        self.began_s = 0.0

    async def run(self, messages: int, rate: float, disturb: Disturb | None = None) -> None:
        """Send so many; back when all have come, or nothing has for a long time. `disturb` goes on beside it."""
        async with (
            self._receiver.subscribe(self._topic, buffer=1 << 20) as subscription,
            _beside(read(subscription, self.book)),
        ):
            self.began_s = time.monotonic()
            self.book.begin(self.began_s)
            async with _until_done(disturb):
                await paced(messages, rate, self._send, self._say)
            await settled(lambda: self.book.received, messages)

    async def _send(self, first: int, count: int) -> None:
        await self._sender.publish_many(self._topic, [pack(number) for number in range(first, first + count)])
        self.sent = first + count


class QueueFlow:
    """Through a queue: sent with a window of unconfirmed ones, consumed and acknowledged one by one."""

    def __init__(self, sender: fairlead.Connection, receiver: fairlead.Connection, queue: str, say: Say) -> None:
        self._sender, self._receiver, self._queue, self._say = sender, receiver, queue, say
        self.book = Book(ordered=False)  # what comes again, comes late
        self.confirmed = Book(ordered=False)
        self.began_s = 0.0

    async def run(self, messages: int, rate: float, disturb: Disturb | None = None) -> None:
        """Send so many; back when every confirmed one has come, or nothing has for a long time."""
        await self._sender.queue(self._queue, create=True).send(b"")  # so that it is there for both
        async with (
            self._receiver.queue(self._queue).consume(prefetch=200) as consumer,
            _beside(self._consume(consumer)),
        ):
            self.began_s = time.monotonic()
            self.book.begin(self.began_s)
            self.confirmed.begin(self.began_s)
            async with (
                asyncio.timeout(PATIENCE_S + messages / rate),
                _until_done(disturb),
                self._sender.queue(self._queue).sender(window=WINDOW) as sender,
            ):

                async def send(first: int, count: int) -> None:
                    for number in range(first, first + count):
                        self._watch(number, await sender.send(pack(number)))

                await paced(messages, rate, send, self._say)
            await settled(lambda: self.book.received, self.confirmed.received)

    def _watch(self, number: int, receipt: asyncio.Future[Any]) -> None:
        def on_done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.confirmed.enter(number, time.monotonic())

        receipt.add_done_callback(on_done)

    async def _consume(self, consumer: fairlead.Consumer) -> None:
        async for message in consumer:
            if message.body:
                number, sent_s = unpack(message.body)
                self.book.enter(number, time.monotonic(), sent_s=sent_s, again=message.redelivered)
            await message.ack()


async def read(subscription: fairlead.Subscription, book: Book) -> None:
    """Enter all that comes, until cancelled."""
    async for batch in subscription.batches():
        now_s = time.monotonic()
        for message in batch:
            number, sent_s = unpack(message.body)
            book.enter(number, now_s, sent_s=sent_s)


async def paced(messages: int, rate: float, send: Callable[[int, int], Awaitable[None]], say: Say) -> None:
    """Hand out the numbers below `messages`, a few at a time, at this rate; what was held up is not made up for."""
    began_s, done = time.monotonic(), 0
    while done < messages:
        now_s = time.monotonic()
        began_s = max(began_s, now_s - done / rate - LATE_S)
        due = min(messages, int((now_s - began_s) * rate) + 1)
        if due > done:
            await send(done, due - done)
            done = due
            say(f"{done:,} of {messages:,} messages")
        await asyncio.sleep(BURST_S)


async def settled(received: Callable[[], int], expected: int) -> None:
    """Until so many have come, or none has for a long time."""
    before, since_s = received(), time.monotonic()
    while before < expected and time.monotonic() - since_s < SILENCE_S:
        await asyncio.sleep(0.01)
        if received() != before:
            before, since_s = received(), time.monotonic()
    await asyncio.sleep(0.1)  # what comes twice may come last


@asynccontextmanager
async def _until_done(disturb: Disturb | None) -> AsyncIterator[None]:
    """Disturb what the block does; the block is over when both are."""
    disturbing = asyncio.ensure_future(disturb() if disturb else asyncio.sleep(0))
    try:
        yield
        await disturbing
    finally:
        disturbing.cancel()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that goes on while the block does; if it fails, the block learns of it at its end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        done, _ = await asyncio.wait([task])
        for one in done:
            if not one.cancelled() and (error := one.exception()) is not None:
                raise error
