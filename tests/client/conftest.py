"""A scripted peer for the client's tests: just enough of a server to talk to, and to misbehave on request.

It routes between its own connections in the simplest way there is. What the real server promises is tested
with the real server; this one exists to drop, refuse, move and stay silent at the right moment.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fairlead import topics
from fairlead.wire import kinds
from fairlead.wire.frames import Message, Parser, encode_message
from fairlead.wire.headers import encode_headers

SERVER_MADE = 1 << 63


class Peer(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.parser = Parser()
        self.preface = b""
        self.uid = 0
        self.hello: dict[str, Any] = {}
        self.subscriptions: dict[int, tuple[str, int]] = {}
        self.registrations: dict[int, str] = {}
        self.seen: list[Message] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.transports.append(transport)
        self.server.accepted += 1
        if self.server.drop_next:
            self.server.drop_next -= 1
            transport.abort()
            return
        self.server.uids += 1
        self.uid = self.server.uids
        if not self.server.silent:
            self.say(kinds.KIND_CONFIRM, body=json.dumps({"uid": self.uid, "server": "fake", "version": 1}).encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.forget(self)

    def say(self, kind: int, *, flags: int = 0, number: int = 0, correlation: int = 0, peer: int = 0,
            topic: bytes = b"", headers: bytes = b"", body: bytes = b"") -> None:  # fmt: skip
        self.transport.write(encode_message(kind, flags, number, correlation, peer, topic, headers, body))

    def error(self, code: str, text: str = "", *, number: int = 0, correlation: int = 0) -> None:
        headers = encode_headers([("code", code)])
        self.say(kinds.KIND_ERROR, number=number, correlation=correlation, headers=headers, body=text.encode())

    def data_received(self, data: bytes) -> None:
        missing = 8 - len(self.preface)
        self.preface += data[:missing]
        if len(self.preface) == 8:
            assert self.preface == kinds.PREFACE
        for message in self.parser.feed(data[missing:]):
            self.seen.append(message)
            if not self.server.silent:
                self.server.take(self, message)


class FakeServer:
    """All connections, and the switches of the tests."""

    def __init__(self) -> None:
        self.peers: dict[int, Peer] = {}
        self.transports: list[asyncio.Transport] = []
        self.uids = 100
        self.accepted = 0
        self.drop_next = 0
        self.silent = False
        self.refuse: tuple[str, str] | None = None
        self.deaf: set[int] = set()  # kinds that are not acted on
        self.routes: dict[int, tuple[Peer, int]] = {}  # correlation at the receiver: requester and its own
        self.talks: dict[tuple[int, int], tuple[Peer, int]] = {}
        self.correlations = 0
        self.turn = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, *, path: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        if path is not None:
            self._server = await loop.create_unix_server(lambda: Peer(self), path)
            return
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in self.transports:
            transport.abort()
        await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"fairlead://127.0.0.1:{self.port}"

    def forget(self, peer: Peer) -> None:
        if self.peers.get(peer.uid) is peer:
            del self.peers[peer.uid]
        for correlation, (requester, own) in list(self.routes.items()):
            if (correlation & ~SERVER_MADE) % 1000 == peer.uid % 1000:
                del self.routes[correlation]
                requester.error("receiver-lost", correlation=own)

    def take(self, peer: Peer, message: Message) -> None:
        if message.kind in self.deaf:
            return
        match message.kind:
            case kinds.KIND_CONNECT:
                self.on_connect(peer, json.loads(message.body))
            case kinds.KIND_PING:
                peer.say(kinds.KIND_PONG, correlation=message.correlation)
            case kinds.KIND_SUBSCRIBE:
                peer.subscriptions[message.number] = (message.topic, message.flags)
                peer.say(kinds.KIND_OK, number=message.number)
            case kinds.KIND_UNSUBSCRIBE:
                peer.subscriptions.pop(message.number, None)
                peer.say(kinds.KIND_OK, number=message.number)
            case kinds.KIND_REGISTER:
                peer.registrations[message.number] = message.topic
                peer.say(kinds.KIND_OK, number=message.number)
            case kinds.KIND_UNREGISTER:
                peer.registrations.pop(message.number, None)
                peer.say(kinds.KIND_OK, number=message.number)
            case kinds.KIND_CLOSE:
                peer.transport.close()
            case kinds.KIND_PUBLISH:
                self.publish(message, peer.uid)
            case kinds.KIND_REQUEST | kinds.KIND_SEND | kinds.KIND_FANOUT:
                self.on_request(peer, message)
            case kinds.KIND_RESPONSE:
                requester, own = self.routes[message.correlation]
                self.pass_on(requester, message, own, peer.uid)
                if message.flags & kinds.FLAG_LAST:
                    del self.routes[message.correlation]
            case kinds.KIND_CONVERSE:
                self.on_converse(peer, message)

    def on_connect(self, peer: Peer, hello: dict[str, Any]) -> None:
        peer.hello = hello
        if self.refuse is not None:
            peer.error(*self.refuse)
            peer.transport.close()
            return
        resumed = "resume" in hello
        uid = int(hello["resume"]) if resumed else peer.uid
        if not resumed:
            self.peers[uid] = peer
        welcome = {"uid": uid, "keep_alive_s": hello["keep_alive_s"], "resumed": resumed}
        peer.say(kinds.KIND_WELCOME, body=json.dumps(welcome).encode())

    def publish(self, message: Message, sender: int) -> None:
        for peer in list(self.peers.values()):
            for pattern, flags in peer.subscriptions.values():
                local = sender == peer.uid and flags & kinds.FLAG_NO_LOCAL
                if not local and any(topics.compile(pattern).matches(topic) for topic in message.topics):
                    self.pass_on(peer, message, 0, sender)
                    break

    def pass_on(self, to: Peer, message: Message, correlation: int, sender: int) -> None:
        to.say(message.kind, flags=message.flags, number=message.number, correlation=correlation, peer=sender,
               topic=message.topic_text.encode(), headers=message._section, body=message.body)  # fmt: skip

    def receivers(self, message: Message) -> list[Peer]:
        peers = list(self.peers.values())
        if message.flags & kinds.FLAG_NAMED:
            return [p for p in peers if f"{p.hello['type']}/{p.hello['instance']}" == message.topic]
        if message.sender:
            return [p for p in peers if p.uid == message.sender]
        wanted = message.protocol_header(":type")
        if wanted is not None:
            peers = [p for p in peers if p.hello["type"].encode() == wanted]
        return [p for p in peers if not message.topic or message.topic in p.registrations.values()]

    def on_request(self, peer: Peer, message: Message) -> None:
        receivers = self.receivers(message)
        if not receivers:
            peer.error("no-receiver", correlation=message.correlation)
            return
        if message.kind == kinds.KIND_FANOUT:
            peer.say(kinds.KIND_ASKED, correlation=message.correlation, number=len(receivers))
        else:
            self.turn += 1
            receivers = [receivers[self.turn % len(receivers)]]
        for receiver in receivers:
            self.correlations += 1000
            correlation = SERVER_MADE + self.correlations + receiver.uid % 1000
            if message.kind != kinds.KIND_SEND:
                self.routes[correlation] = (peer, message.correlation)
            self.pass_on(receiver, message, correlation, peer.uid)

    def on_converse(self, peer: Peer, message: Message) -> None:
        if (peer.uid, message.correlation) not in self.talks:
            receivers = self.receivers(message)
            if not receivers:
                peer.error("no-receiver", correlation=message.correlation)
                return
            self.correlations += 1000
            made = SERVER_MADE + self.correlations
            self.talks[peer.uid, message.correlation] = (receivers[0], made)
            self.talks[receivers[0].uid, made] = (peer, message.correlation)
        other, correlation = self.talks[peer.uid, message.correlation]
        self.pass_on(other, message, correlation, peer.uid)


def loops() -> list[Any]:
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=loops(), ids=lambda factory: factory.__module__.partition(".")[0])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[FakeServer], Awaitable[None]]], None]]:
    """Run a coroutine function against a fresh fake server, on every kind of loop."""

    def play(test: Callable[[FakeServer], Awaitable[None]]) -> None:
        async def main() -> None:
            server = FakeServer()
            await server.start()
            try:
                async with asyncio.timeout(20):
                    await test(server)
            finally:
                await server.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return play


@pytest.fixture
def server_on_a_thread() -> Iterator[FakeServer]:
    """For tests that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = FakeServer()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
