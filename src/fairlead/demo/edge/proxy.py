"""A forward proxy as companies have them: it passes on HTTP requests, and refuses every other kind of bytes.

It lets nobody through by CONNECT or as a WebSocket, so that a tunnel has to make do with plain requests.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

__all__ = ["HttpOnlyProxy"]

HEAD_BYTES_MAX: Final = 65_536
BODY_BYTES_MAX: Final = 16 << 20
CONNECT_S: Final = 10.0


class HttpOnlyProxy:
    """`async with HttpOnlyProxy() as proxy`: listens on `url`, counts what it did."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.requests = self.refused = self.cut = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.cut_all()

    async def cut_all(self) -> None:
        """Drop every connection where it is, requests under way included."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.cut += len(tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one client, one after the other."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not await self._pass_on(head, reader, writer):
                    self.refused += 1
                    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    await writer.drain()
                    return
                self.requests += 1
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # one of the two hung up, or what came is not HTTP
        finally:
            writer.transport.abort()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request to where it wants to go and the answer back; False if it is not a plain one."""
        line, *rest = head.decode("latin-1").strip().split("\r\n")
        words = line.split(" ")
        fields = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
        if len(words) != 3 or not words[1].startswith("http://") or "upgrade" in fields:
            return False
        size = fields.get("content-length", "0")
        if "transfer-encoding" in fields or not size.isdecimal() or int(size) > BODY_BYTES_MAX:
            return False
        url = urlsplit(words[1])
        body = await reader.readexactly(int(size))
        kept = {name: value for name, value in fields.items() if not name.startswith(("proxy-", "connection"))}
        kept["connection"] = "close"
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        lines = [f"{words[0]} {target} {words[2]}", *(f"{name}: {value}" for name, value in kept.items())]
        async with asyncio.timeout(CONNECT_S):
            inner, outer = await asyncio.open_connection(url.hostname, url.port or 80)
        try:
            outer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
            answer, its_body = await _answer(inner)
            writer.write(answer + its_body)
            await writer.drain()
        finally:
            with suppress(OSError):
                outer.transport.abort()
        return True


async def _answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body; of the connection to the server nothing is told to the client."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").strip().split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
    if fields.get("transfer-encoding", "").lower() == "chunked":
        raise EOFError  # a gateway of Fairlead says how long its answers are
    body = await reader.readexactly(min(int(fields.get("content-length", "0")), BODY_BYTES_MAX))
    fields.pop("connection", None)
    fields["content-length"] = str(len(body))
    lines = [first, *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body
