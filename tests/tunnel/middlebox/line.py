"""What a box does with one client's connection: request after request, each with the faults that strike it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.tunnel.middlebox.faults import Act, Capture, Exchange, Fault, Faults
from tests.tunnel.middlebox.http1 import (
    CHUNK,
    HOP_BY_HOP,
    BodyReader,
    Broken,
    Message,
    encode_head,
    page,
    read_head,
)

Address = tuple[str, int]
LOST = (OSError, Broken, asyncio.IncompleteReadError, ValueError)


class Cut(Exception):
    """This exchange ends here, and both connections with it."""


@dataclass(eq=False)
class Peer:
    """One TCP connection, to a client or to a gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    address: Address = ("", 0)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


class Box(Protocol):
    """What a line needs of its box."""

    gateway: Address | None
    faults: Faults
    capture: Capture
    refused_logins: int
    peers: set[Peer]
    tasks: set[asyncio.Task[None]]
    cached: dict[tuple[str, str], Message]
    loop: asyncio.AbstractEventLoop

    async def dial(self, address: Address) -> Peer: ...

    def is_welcome(self, request: Message) -> bool: ...


class Line:
    """A client's connection and the one behind it."""

    def __init__(self, box: Box, client: Peer) -> None:
        self.box, self.client = box, client
        self.faults = box.faults
        self.behind: Peer | None = None

    def hang_up(self) -> None:
        if self.behind is not None:
            self.behind.close()
            self.box.peers.discard(self.behind)
            self.behind = None

    async def exchange(self) -> bool:
        """One request; is there to be another on this connection?"""
        request = await read_head(self.client.reader)
        if request is None:
            return False
        if self.box.gateway is None and not self.box.is_welcome(request):
            self.box.refused_logins += 1
            await BodyReader(self.client.reader, request).whole()
            ask = [("Proxy-Authenticate", 'Basic realm="middlebox"')]
            return await self.answer(request, page(407, "Proxy Authentication Required", "Who are you?", ask))
        if request.method == "CONNECT":
            return await self.connect(request)
        return await self.forward(request)

    async def connect(self, request: Message) -> bool:
        host, _, port = request.target.rpartition(":")
        self.record(request, "connect method")
        if hole := self.faults.find(Act.SWALLOW, ""):
            await self.swallow(hole)
        self.behind = await self.box.dial((host.strip("[]"), int(port)))
        self.client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.pipe(None)
        return False

    async def forward(self, request: Message) -> bool:
        kind = request.kind
        body = BodyReader(self.client.reader, request)
        if (cap := self.over_cap(request)) is not None:
            cap.done += 1
            exchange = self.record(request, "capped")
            while await body.piece():
                pass  # thrown away: an answer followed by a reset would not be read
            return await self.answer(request, page(413, "Payload Too Large", "Too much for this proxy"), exchange)
        request.body = await body.whole()
        exchange = self.record(request, "passed")
        if hole := self.faults.find(Act.SWALLOW, kind):
            exchange.fate = "swallowed"
            await self.swallow(hole)
        if self.faults.find(Act.DROP_REQUEST, kind):
            exchange.fate = "request dropped"
            raise Cut
        if delay := self.faults.find(Act.DELAY, kind):
            exchange.fate = "delayed"
            await asyncio.sleep(delay.seconds)
        if self.faults.find(Act.ERROR_PAGE, kind):
            exchange.fate = "error page"
            return await self.answer(request, page(502, "Bad Gateway", "The server is not well"), exchange)
        if request.is_upgrade and self.faults.find(Act.NO_UPGRADE, kind):
            exchange.fate = "upgrade refused"
            return await self.answer(request, page(403, "Forbidden", "No WebSockets here"), exchange)
        key = (request.method, request.target)
        if (old := self.box.cached.get(key)) and self.faults.find(Act.CACHE, kind):
            exchange.fate = "from the cache"
            return await self.answer(request, old, exchange)
        return await self.pass_on(request, exchange)

    def over_cap(self, request: Message) -> Fault | None:
        with self.faults.lock:
            length = int(request.get("content-length") or 0)
            return next(
                (
                    one
                    for one in self.faults.active
                    if one.act is Act.CAP_REQUEST and length > one.size and request.kind in one.kinds
                ),
                None,
            )

    def record(self, request: Message, fate: str) -> Exchange:
        capture = self.box.capture
        exchange = Exchange(
            number=len(capture.exchanges) + 1,
            kind=request.kind,
            method=request.method,
            target=request.target,
            request_headers=list(request.headers),
            request_body=capture.keep(request.body),
            client_connection=self.client.number,
            began_s=time.monotonic(),
            fate=fate,
        )
        capture.exchanges.append(exchange)
        return exchange

    async def pass_on(self, request: Message, exchange: Exchange) -> bool:
        kind = request.kind
        address, line, headers = self.inner(request)
        out = Message(line, headers, self.faults.flipped(request.body, kind) if kind == "push" else request.body)
        if self.faults.find(Act.REPLAY, kind):
            exchange.fate = "replayed"
            self.spawn(self.replay(address, out))
        cut = self.faults.find(Act.CUT, kind)
        try:
            async with asyncio.timeout(cut.seconds if cut else None):
                answer = await self.ask(address, out)
                exchange.gateway_connection = self.behind.number if self.behind else 0
                if request.is_upgrade and answer.status == 101:
                    exchange.status, exchange.fate = 101, "upgraded"
                    self.client.writer.write(encode_head(answer.line, answer.headers))
                    return await self.pipe(self.faults.find(Act.CUT_UPGRADED, kind))
                return await self.bring(request, answer, exchange)
        except TimeoutError:
            exchange.fate = "cut"
            raise Cut from None

    def inner(self, request: Message) -> tuple[Address, str, list[tuple[str, str]]]:
        """Where it goes and in which form; what concerned only this hop is taken off."""
        hop = HOP_BY_HOP - {"upgrade", "connection"} if request.is_upgrade else HOP_BY_HOP
        headers = request.without(*hop)
        if not request.is_upgrade:
            headers.append(("Connection", "keep-alive"))
        if self.box.gateway is not None:
            return self.box.gateway, request.line, headers
        parts = urlsplit(request.target)
        if parts.scheme != "http" or not parts.hostname:
            raise Broken("a forward proxy wants the absolute form")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return (parts.hostname, parts.port or 80), f"{request.method} {path} HTTP/1.1", headers

    async def ask(self, address: Address, out: Message) -> Message:
        """A kept connection may be stale: then it is asked on a new one, once."""
        kept = self.behind is not None and self.behind.address == address
        if not kept:
            self.hang_up()
            self.behind = await self.box.dial(address)
        assert self.behind is not None
        try:
            self.behind.writer.write(out.encode())
            await self.behind.writer.drain()
            if (answer := await self.head(self.behind)) is not None:
                return answer
        except LOST:
            if not kept:
                raise
        if not kept:
            raise Broken("the gateway hung up")
        self.hang_up()
        return await self.ask(address, out)

    async def head(self, behind: Peer) -> Message | None:
        """The answer's head; a client that hangs up while it is awaited takes the request with it."""
        awaited = self.box.loop.create_task(read_head(behind.reader))
        try:
            while not awaited.done():
                await asyncio.wait([awaited], timeout=0.05)
                if self.client.reader.at_eof() and not awaited.done():
                    raise Cut
            return awaited.result()
        finally:
            awaited.cancel()
            await asyncio.gather(awaited, return_exceptions=True)

    async def bring(self, request: Message, answer: Message, exchange: Exchange) -> bool:
        """The gateway's answer to the client: piece by piece as it comes, unless something needs the whole."""
        kind = request.kind
        assert self.behind is not None
        body = BodyReader(self.behind.reader, answer, request)
        dropped = self.faults.find(Act.DROP_ANSWER, kind)
        whole = any(self.faults.has(act, kind) for act in (Act.FLIP, Act.CAP_ANSWER, Act.CACHE, Act.BUFFER))
        if dropped or whole or body.until_eof or not answer.get("content-length"):
            answer.body = await body.whole()
            if dropped:
                exchange.fate = "answer dropped"
                exchange.status, exchange.answer_body = answer.status, self.box.capture.keep(answer.body)
                raise Cut
            self.cache(request, answer)
            cap = self.faults.find(Act.CAP_ANSWER, kind) if self.faults.has(Act.CAP_ANSWER, kind) else None
            if cap is not None and len(answer.body) > cap.size:
                exchange.fate = "answer capped"
                return await self.answer(request, page(502, "Bad Gateway", "Too much of an answer"), exchange)
            if kind == "pull":
                answer.body = self.faults.flipped(answer.body, kind)
            if not answer.keeps_alive:
                self.hang_up()
            return await self.answer(request, answer, exchange)
        exchange.status, exchange.answer_headers = answer.status, list(answer.headers)
        keep = self.keeps(request)
        self.client.writer.write(encode_head(answer.line, self.outer(answer, keep)))
        pieces = []
        while piece := await body.piece():
            pieces.append(piece)
            self.client.writer.write(piece)
            await self.client.writer.drain()
        exchange.answer_body = self.box.capture.keep(b"".join(pieces))
        exchange.ended_s = time.monotonic()
        if not answer.keeps_alive:
            self.hang_up()
        return self.goes_on(request, keep)

    def cache(self, request: Message, answer: Message) -> None:
        said = f"{request.get('cache-control')},{answer.get('cache-control')}".lower()
        if self.faults.has(Act.CACHE, request.kind) and answer.status == 200 and "no-store" not in said:
            self.box.cached[(request.method, request.target)] = answer

    def keeps(self, request: Message) -> bool:
        return request.keeps_alive and not self.faults.find(Act.NO_KEEP_ALIVE, request.kind)

    def outer(self, answer: Message, keep: bool) -> list[tuple[str, str]]:
        return [*answer.without(*HOP_BY_HOP), ("Connection", "keep-alive" if keep else "close")]

    def goes_on(self, request: Message, keep: bool) -> bool:
        return keep and not self.faults.find(Act.CLOSE_IDLE, request.kind)

    async def answer(self, request: Message, answer: Message, exchange: Exchange | None = None) -> bool:
        keep = self.keeps(request)
        said = Message(answer.line, self.outer(answer, keep), answer.body)
        self.client.writer.write(said.encode())
        await self.client.writer.drain()
        if exchange is not None:
            exchange.status, exchange.answer_headers = answer.status, list(answer.headers)
            exchange.answer_body = self.box.capture.keep(answer.body)
            exchange.ended_s = time.monotonic()
        return self.goes_on(request, keep)

    async def swallow(self, hole: Fault) -> None:
        """Reads and says nothing until the client gives up, or the fault is lifted: then the connection is cut."""
        while hole in self.faults.active:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    if not await self.client.reader.read(CHUNK):
                        break
        raise Cut

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.box.loop.create_task(coroutine)
        self.box.tasks.add(task)
        task.add_done_callback(self.box.tasks.discard)

    async def replay(self, address: Address, out: Message) -> None:
        other = Line(self.box, self.client)
        try:
            answer = await other.ask(address, out)
            assert other.behind is not None
            await BodyReader(other.behind.reader, answer, out).whole()
        except LOST:
            pass
        finally:
            other.hang_up()

    async def pipe(self, cut: Fault | None) -> bool:
        """Bytes both ways, unread; until one side ends, or `cut.size` bytes have passed."""
        assert self.behind is not None
        passed = [0]

        async def one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(CHUNK):
                if self.faults.has(Act.SWALLOW, "stream"):
                    continue
                passed[0] += len(data)
                if cut is not None and passed[0] > cut.size:
                    raise Cut
                writer.write(data)
                await writer.drain()

        behind, client = self.behind, self.client
        tasks = [
            self.box.loop.create_task(one_way(client.reader, behind.writer)),
            self.box.loop.create_task(one_way(behind.reader, client.writer)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with suppress(*LOST):
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return False
