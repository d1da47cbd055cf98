"""A gateway of the tests' own, on real sockets: it does what its script says, and remembers every request.

Without a script it opens tunnels, takes pushes, and answers pulls with what `say` put into its buffer. `script` is
asked first and may answer anything, take its time, or cut the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import httptools
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from fairlead.tunnel.packets import Kind, Packet, encode, split

ID = 0x5EA1
TOKEN = bytes(range(32))
OCTETS = "application/octet-stream"


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    type: str | None = OCTETS
    close: bool = False
    raw: bytes | None = None
    """Sent as it is, in place of a proper answer."""


class Cut:
    """Close without an answer."""


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    line: int
    """Which connection it came by, counted from 1."""
    at_s: float

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def kind(self) -> str:
        return self.query.get("Type", "")

    @property
    def packets(self) -> list[Packet]:
        return split(self.body).packets


Script = Callable[[Request], Awaitable["Reply | Cut | None"]]


class Gateway:
    """`async with Gateway() as gateway`."""

    def __init__(self, script: Script | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.tls = tls
        self.requests: list[Request] = []
        self.lines: dict[int, Line] = {}
        self.count = 0
        self.port = 0
        self.takes_streams = False
        self.answers_pings = True
        self.streams: list[Line] = []
        self.frames: list[bytes] = []
        self.cookies: tuple[tuple[str, str], ...] = ()
        self._waiting: list[bytes] = []
        self._closed = False
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> Gateway:
        self._closed = False
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Line(self), "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self._closed = True
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self.lines:  # somebody may have come in at the last moment
            await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/tunnel/b1"

    def of(self, kind: str) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    def pushed(self) -> list[Packet]:
        """All packets that came, by whatever way."""
        return [packet for request in self.of("push") for packet in request.packets] + [
            packet for frame in self.frames for packet in split(frame).packets if packet.kind != Kind.PING
        ]

    def say(self, *packets: bytes) -> None:
        """For the next pull, or the stream."""
        if self.streams:
            self.streams[-1].frame(b"".join(packets))
        else:
            self._waiting += packets
            self._news.set()

    def cut_all(self) -> None:
        for line in list(self.lines.values()):
            line.transport.abort()

    async def until(self, what: Callable[[], object], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(what)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def answer(self, line: Line, request: Request) -> None:
        self.requests.append(request)
        await self.tell()
        reply = await self.script(request) if self.script else None
        if isinstance(reply, Cut):
            line.transport.abort()
        else:
            line.reply(reply or await self.usual(request))
        await self.tell()

    async def usual(self, request: Request) -> Reply:
        if request.kind == "connect":
            more = (("Fairlead-Instance", "g-1"), *self.cookies)
            return Reply(200, encode(Kind.CONN_INIT, ID, payload=TOKEN), more)
        if request.headers.get("authorization") != f"Bearer {TOKEN.hex()}":
            return Reply(401)
        if request.kind == "pull":
            if not self._waiting:
                self._news.clear()
                try:
                    async with asyncio.timeout(float(request.query.get("Hold", "0"))):
                        await self._news.wait()
                except TimeoutError:
                    pass
            body, self._waiting = b"".join(self._waiting), []
            return Reply(200, body)
        return Reply(200)


class Line(asyncio.Protocol):
    """One connection of the gateway's side."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._raw = bytearray()
        self._websocket: ServerProtocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.gateway.count += 1
        self.number = self.gateway.count
        self.gateway.lines[self.number] = self
        if self.gateway._closed:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.lines.pop(self.number, None)
        if self in self.gateway.streams:
            self.gateway.streams.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._websocket is not None:
            self._on_frames(data)
            return
        self._raw += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()

    def on_message_begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def request(self) -> Request:
        method = self._parser.get_method().decode()
        now_s = asyncio.get_running_loop().time()
        return Request(method, self._url, self._headers, b"".join(self._body), self.number, now_s)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._raw.clear()
        self.gateway.spawn(self.gateway.answer(self, self.request()))

    def reply(self, reply: Reply) -> None:
        if reply.raw is not None:
            self.transport.write(reply.raw)
        else:
            headers = [("Cache-Control", "no-store"), ("Content-Length", str(len(reply.body))), *reply.headers]
            headers += [("Content-Type", reply.type)] if reply.type else []
            headers += [("Connection", "close")] if reply.close else []
            lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in headers)]
            self.transport.write(("\r\n".join(lines) + "\r\n\r\n").encode() + reply.body)
        if reply.close:
            self.transport.close()

    def _upgrade(self) -> None:
        request = self.request()
        self.gateway.requests.append(request)
        if not self.gateway.takes_streams:
            self.reply(Reply(403, b"<html>", type="text/html", close=True))
            self.gateway.spawn(self.gateway.tell())
            return
        self._websocket = ServerProtocol()
        self._websocket.receive_data(bytes(self._raw))
        (opening,) = self._websocket.events_received()
        self._websocket.send_response(self._websocket.accept(cast(Any, opening)))
        self._flush()
        self.gateway.streams.append(self)
        self.gateway._news.set()
        self.gateway.spawn(self.gateway.tell())

    def frame(self, data: bytes) -> None:
        assert self._websocket is not None
        self._websocket.send_binary(data)
        self._flush()

    def _on_frames(self, data: bytes) -> None:
        assert self._websocket is not None
        self._websocket.receive_data(data)
        for event in self._websocket.events_received():
            if getattr(event, "opcode", None) is Opcode.BINARY:
                body = bytes(cast(Any, event).data)
                self.gateway.frames.append(body)
                for packet in split(body).packets:
                    if packet.kind == Kind.PING and self.gateway.answers_pings:
                        self.frame(encode(Kind.PONG, packet.connection_id, payload=packet.payload))
        self._flush()
        self.gateway.spawn(self.gateway.tell())

    def _flush(self) -> None:
        assert self._websocket is not None
        for data in self._websocket.data_to_send():
            if data:
                self.transport.write(data)
