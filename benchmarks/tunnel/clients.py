"""One connection to each system, as a Python user would write it; each reconnects with its library's own means."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

OnMessage = Callable[[bytes], None]
RETRY_S = 0.05


class Peer:
    """`publish` returns when the library has taken the messages; a library that says it failed is asked again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        raise NotImplementedError

    async def subscribe(self, topic: str, on_message: OnMessage) -> None:
        raise NotImplementedError

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        raise NotImplementedError

    async def respond(self, topic: str) -> None:
        raise NotImplementedError

    async def request(self, topic: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class FairleadPeer(Peer):
    """The path is in the URL; nothing else differs."""

    async def open(self) -> None:
        import fairlead

        self.stack = AsyncExitStack()
        self.connection = await self.stack.enter_async_context(fairlead.connect(self.url, name="bench"))

    async def subscribe(self, topic: str, on_message: OnMessage) -> None:
        subscription = self.connection.subscribe(topic)
        await subscription.start()

        async def read() -> None:
            async for batch in subscription.batches():
                for message in batch:
                    on_message(message.body)

        self.tasks.append(asyncio.create_task(read()))

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        await self.connection.publish_many(topic, bodies)

    async def respond(self, topic: str) -> None:
        await self.connection.respond(topic, lambda request: request.body)

    async def request(self, topic: str, body: bytes) -> bytes:
        return (await self.connection.request(topic, body, timeout=10)).body

    async def close(self) -> None:
        await super().close()
        await self.stack.aclose()


class NatsPeer(Peer):
    async def open(self) -> None:
        import nats

        async def quiet(error: Exception) -> None: ...

        self.connection = await nats.connect(
            self.url, reconnect_time_wait=RETRY_S, max_reconnect_attempts=-1, pending_size=8 << 20, error_cb=quiet
        )

    async def subscribe(self, topic: str, on_message: OnMessage) -> None:
        async def handle(message: Any) -> None:
            on_message(message.data)

        await self.connection.subscribe(topic, cb=handle, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.connection.flush()

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        for body in bodies:
            await self.connection.publish(topic, body)
        await asyncio.sleep(0)

    async def respond(self, topic: str) -> None:
        async def handle(message: Any) -> None:
            await message.respond(message.data)

        await self.connection.subscribe(topic, cb=handle)
        await self.connection.flush()

    async def request(self, topic: str, body: bytes) -> bytes:
        return (await self.connection.request(topic, body, timeout=10)).data

    async def close(self) -> None:
        await self.connection.close()


class RelayPeer(Peer):
    """For relays without requests of their own: a request carries the name to answer to in its first 32 bytes."""

    async def open(self) -> None:
        self.inbox = uuid.uuid4().hex
        self.handlers: dict[str, OnMessage] = {}
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.has_inbox = False

    async def respond(self, topic: str) -> None:
        async def answer(body: bytes) -> None:
            await self.publish(body[:32].decode(), [body[32:]])

        def on_message(body: bytes) -> None:
            self.tasks.append(asyncio.create_task(answer(body)))
            del self.tasks[:-1000]

        await self.subscribe(topic, on_message)

    async def request(self, topic: str, body: bytes) -> bytes:
        if not self.has_inbox:
            self.has_inbox = True
            await self.subscribe(self.inbox, self.answers.put_nowait)
        await self.publish(topic, [self.inbox.encode() + body])
        return await asyncio.wait_for(self.answers.get(), 10)


class WebSocketPeer(RelayPeer):
    """The library reconnects by iteration; what was being sent is sent again by the program."""

    async def open(self) -> None:
        await super().open()
        self.connection: Any = None
        self.ready = asyncio.Event()
        self.subscribed = asyncio.Event()
        self.tasks.append(asyncio.create_task(self.keep()))
        await self.ready.wait()

    async def keep(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        async for connection in connect(self.url, max_size=None, compression=None, proxy=None):
            try:
                for topic in self.handlers:
                    await connection.send(f"sub {topic}")
                self.connection = connection
                self.ready.set()
                async for frame in connection:
                    if isinstance(frame, str):
                        self.subscribed.set()
                    else:
                        name = frame[1 : 1 + frame[0]].decode()
                        self.handlers[name](frame[1 + frame[0] :])
            except ConnectionClosed:
                pass
            finally:
                self.ready.clear()

    async def subscribe(self, topic: str, on_message: OnMessage) -> None:
        self.handlers[topic] = on_message
        self.subscribed.clear()
        await self.connection.send(f"sub {topic}")
        await self.subscribed.wait()

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        from websockets.exceptions import ConnectionClosed

        head = bytes([len(topic)]) + topic.encode()
        for body in bodies:
            while True:
                await self.ready.wait()
                try:
                    await self.connection.send(head + body)
                    break
                except ConnectionClosed:
                    await asyncio.sleep(RETRY_S)


class SocketIoPeer(RelayPeer):
    async def open(self) -> None:
        import socketio
        from engineio.payload import Payload

        Payload.max_decode_packets = 1 << 16  # as in the relay
        await super().open()
        self.connection = socketio.AsyncClient(
            reconnection_delay=RETRY_S, reconnection_delay_max=1, handle_sigint=False
        )
        self.connection.on("message", self.on_message)
        self.connection.on("connect", self.on_connect)
        self.names: list[str] = []
        await self.connection.connect(self.url, transports=["polling"])

    async def on_connect(self) -> None:
        for name in self.names:
            await self.connection.emit("sub", name)

    async def on_message(self, body: bytes) -> None:
        for handler in self.handlers.values():  # one subscription per connection
            handler(body)

    async def subscribe(self, topic: str, on_message: OnMessage) -> None:
        self.handlers[topic] = on_message
        await self.connection.call("sub", topic)
        self.names.append(topic)

    async def publish(self, topic: str, bodies: list[bytes]) -> None:
        from socketio.exceptions import BadNamespaceError

        for body in bodies:
            while True:
                try:
                    await self.connection.emit("pub", (topic, body))
                    break
                except BadNamespaceError:  # not connected at the moment
                    await asyncio.sleep(RETRY_S)
        await asyncio.sleep(0)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.connection.disconnect(), 3)  # it may wait for a poll that nobody answers
        except TimeoutError:
            await self.connection.eio.http.close()
        await super().close()


PEERS: dict[str, type[Peer]] = {
    "fairlead": FairleadPeer,
    "nats": NatsPeer,
    "websockets": WebSocketPeer,
    "socketio": SocketIoPeer,
}
