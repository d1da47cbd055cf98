"""Fairlead: the embedded default of `fairlead serve`, with the asyncio client library.

Durable: a queue with the defaults; every confirm means that the message is on stable storage. Producer: the library's
pipelined sender with the harness's window. Consumer: batches as they arrive, acknowledged batch by batch.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from contextlib import AsyncExitStack

from .base import CONNECTIONS, DURABLE, TRANSIENT, Broker, Client, free_port

PREFACE = b"FLD\n" + struct.pack("<HH", 1, 0)
FRAME = struct.Struct("<IBBHIIQQ")  # length, kind, flags, topic, headers, number, correlation, peer
CONNECT, CONFIRM, WELCOME = 0x01, 0x41, 0x42


class FairleadClient(Client):
    async def connect(self) -> None:
        import fairlead  # only the workers need the library

        self.stack, self.readers = AsyncExitStack(), []
        self.connection = await self.stack.enter_async_context(fairlead.connect(self.endpoint["url"], name="bench"))

    async def close(self) -> None:
        for reader in self.readers:
            reader.cancel()
        await self.stack.aclose()

    async def subscribe(self, topic, on_message) -> None:
        subscription = self.connection.subscribe(topic)
        await subscription.start()

        async def read() -> None:
            async for batch in subscription.batches():
                for message in batch:
                    on_message(message.body)

        self.readers.append(asyncio.create_task(read()))

    async def publish_many(self, topic, payloads) -> None:
        await self.connection.publish_many(topic, payloads)

    async def declare_queue(self, queue) -> None:
        await self.connection.admin.create(destination=queue, kind="queue")

    async def consume(self, queue, on_message) -> None:
        consumer = await self.stack.enter_async_context(self.connection.queue(queue).consume(prefetch=8192, prefetch_bytes=16 << 20))

        async def read() -> None:
            async for batch in consumer.batches():
                for message in batch:
                    on_message(message.body)
                consumer.ack_many(batch)

        self.readers.append(asyncio.create_task(read()))

    async def publish_confirmed(self, queue, payload) -> None:
        await self.connection.queue(queue).send(payload)

    async def produce(self, queue, batches, window) -> None:
        async with self.connection.queue(queue).sender(window=window) as sender:
            async for batch in batches:
                for payload in batch:
                    await sender.send(payload)

    async def respond(self, subject) -> None:
        await self.connection.respond(subject, lambda request: request.body)

    async def request(self, subject, payload) -> bytes:
        return (await self.connection.request(subject, payload, timeout=5)).body


class Fairlead(Broker):
    name = "fairlead"
    client = FairleadClient
    scenarios = TRANSIENT | DURABLE | CONNECTIONS
    fsync = "yes: one fdatasync for everything that waits meanwhile"

    def start(self) -> dict:
        port = free_port()
        self.spawn(
            [sys.executable, "-m", "fairlead", "serve", "--data", self.workdir / "data", "--listen", f"127.0.0.1:{port}"]
        )
        self.wait_for_port(port)
        self.wait_for_standbys()
        return {"url": f"fairlead://127.0.0.1:{port}", "port": port}

    def wait_for_standbys(self, seconds: float = 15) -> None:
        """It serves already, but two warm spares are still loading: other servers have none to load."""
        from fairlead.errors import Unavailable
        from fairlead.runtime.admin import answer_of

        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                status = answer_of(self.workdir / "data" / "run", "status", brief=True)["status"]
            except Unavailable:
                status = {"components": []}
            if sum(component["state"] == "standby" for component in status["components"]) == 2:
                return
            time.sleep(0.1)
        raise RuntimeError("the standbys did not get ready")

    def handshake(self, sock) -> None:
        sock.sendall(PREFACE)
        expect(sock, CONFIRM)
        names = {"version": 1, "type": "bench", "instance": f"bench-{sock.fileno()}", "credit": 0, "keep_alive_s": 30}
        body = json.dumps(names).encode()
        sock.sendall(FRAME.pack(FRAME.size + len(body), CONNECT, 0, 0, 0, 0, 0, 0) + body)
        expect(sock, WELCOME)


def expect(sock, kind: int) -> None:
    """Read one whole frame, which has to be of this kind."""
    head = exactly(sock, FRAME.size)
    length, got = FRAME.unpack(head)[:2]
    rest = exactly(sock, length - FRAME.size)
    if got != kind:
        raise ConnectionError(f"frame of kind {got:#x} instead of {kind:#x}: {rest[:200]!r}")


def exactly(sock, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed in the handshake")
        data += piece
    return bytes(data)
