"""A producer and a consumer of the queue `bench`, as a Python user would write them for each system.

`send` returns when the message is confirmed; it repeats a send whose answer was lost, with the system's own means
against doubles (JetStream: message id; Fairlead: the library's; RabbitMQ: none).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

RETRY_S = 0.05
OnMessage = Callable[[bytes], None]


class Peer:
    """One connection."""

    def __init__(self, url: Any) -> None:
        self.url = url
        self.life = uuid.uuid4().hex  # numbers begin anew with each producer
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None: ...

    async def send(self, number: int, body: bytes) -> None: ...

    async def consume(self, on_message: OnMessage) -> None: ...

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()


class JetStreamPeer(Peer):
    async def open(self) -> None:
        import nats

        self.connection = await nats.connect(
            self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, ping_interval=2, error_cb=_quiet
        )
        self.stream = self.connection.jetstream(timeout=5)

    async def send(self, number: int, body: bytes) -> None:
        while True:
            try:
                await self.stream.publish("bench", body, headers={"Nats-Msg-Id": f"{self.life}-{number}"})
                return
            except Exception:
                await asyncio.sleep(RETRY_S)

    async def consume(self, on_message: OnMessage) -> None:
        async def run() -> None:
            while True:
                try:
                    subscription = await self.stream.pull_subscribe_bind("bench", "bench")
                    while True:
                        for message in await subscription.fetch(500, timeout=2):
                            on_message(message.data)
                            await message.ack()
                except asyncio.CancelledError:
                    raise
                except Exception:
                    await asyncio.sleep(RETRY_S)

        self.tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        await super().close()
        await self.connection.close()


async def _quiet(error: Exception) -> None: ...


class RabbitPeer(Peer):
    """Connects anew to the next node by itself: the library's robust connection knows one address."""

    async def open(self) -> None:
        self.connection: Any = None
        self.channel: Any = None
        self.turn = 0
        self.opening = asyncio.Lock()

    async def _channel(self) -> Any:
        import aio_pika

        async with self.opening:
            while self.channel is None or self.channel.is_closed:
                self.turn += 1
                try:
                    url = self.url[self.turn % len(self.url)]
                    self.connection = await asyncio.wait_for(aio_pika.connect(url), 5)
                    self.channel = await self.connection.channel(publisher_confirms=True)
                except Exception:
                    await asyncio.sleep(RETRY_S)
        return self.channel

    async def send(self, number: int, body: bytes) -> None:
        import aio_pika

        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        while True:
            channel = await self._channel()
            try:
                await asyncio.wait_for(channel.default_exchange.publish(message, "bench"), 5)
                return
            except Exception:
                if self.channel is channel:
                    self.channel = None  # the library does not notice every loss
                await asyncio.sleep(RETRY_S)

    async def consume(self, on_message: OnMessage) -> None:
        async def run() -> None:
            while True:
                try:
                    channel = await self._channel()
                    await channel.set_qos(1000)
                    queue = await channel.get_queue("bench", ensure=False)
                    async with queue.iterator() as messages:
                        async for message in messages:
                            on_message(message.body)
                            await message.ack()
                except asyncio.CancelledError:
                    raise
                except Exception:
                    self.channel = None
                    await asyncio.sleep(RETRY_S)

        self.tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        await super().close()
        if self.connection is not None:
            await self.connection.close()


class FairleadPeer(Peer):
    async def open(self) -> None:
        import fairlead

        self.stack = AsyncExitStack()
        self.connection = await self.stack.enter_async_context(fairlead.connect(self.url, name="bench"))
        self.queue = self.connection.queue("bench")

    async def send(self, number: int, body: bytes) -> None:
        await self.queue.send(body)

    async def consume(self, on_message: OnMessage) -> None:
        consumer = await self.stack.enter_async_context(self.queue.consume(prefetch=8192, prefetch_bytes=16 << 20))

        async def run() -> None:
            async for batch in consumer.batches():
                for message in batch:
                    on_message(message.body)
                consumer.ack_many(batch)

        self.tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        await super().close()
        await self.stack.aclose()


PEERS: dict[str, type[Peer]] = {
    "fairlead": FairleadPeer,
    "fairlead-host": FairleadPeer,
    "jetstream-r3": JetStreamPeer,
    "rabbitmq-quorum": RabbitPeer,
}
