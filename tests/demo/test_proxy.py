"""The proxy of the tour passes on plain requests, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.demo.edge.proxy import HttpOnlyProxy

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nX-One: 1\r\n\r\nhello"
Talk = Callable[[HttpOnlyProxy, str, list[bytes]], Awaitable[None]]


def with_server(talk: Talk) -> None:
    async def run() -> None:
        seen: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append(head + (await reader.readexactly(3) if b"content-length: 3" in head else b""))
            writer.write(OK)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, HttpOnlyProxy() as proxy:
            await talk(proxy, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen)

    asyncio.run(asyncio.wait_for(run(), 30))


async def said(proxy: HttpOnlyProxy, request: bytes) -> bytes:
    """What comes back, up to the end of the connection or of the answer that is expected."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        return head + (await reader.readexactly(5) if b"200 OK" in head else b"")
    finally:
        writer.transport.abort()


def test_a_request_is_passed_on_and_answered() -> None:
    async def talk(proxy: HttpOnlyProxy, where: str, seen: list[bytes]) -> None:
        request = f"POST http://{where}/tunnel/x?a=1 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: secret\r\n"
        answer = await said(proxy, f"{request}Content-Length: 3\r\n\r\nabc".encode())
        assert answer.endswith(b"\r\n\r\nhello")
        assert b"x-one: 1" in answer
        assert seen[0].startswith(b"POST /tunnel/x?a=1 HTTP/1.1\r\n")
        assert seen[0].endswith(b"\r\n\r\nabc")
        assert b"secret" not in seen[0]
        assert (proxy.requests, proxy.refused) == (1, 0)

    with_server(talk)


@pytest.mark.parametrize(
    "request_",
    [
        "CONNECT {where} HTTP/1.1\r\n\r\n",
        "GET http://{where}/ HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
        "GET /own HTTP/1.1\r\n\r\n",
        "POST http://{where}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://{where}/ HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
        "POST http://{where}/ HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        "not http\r\n\r\n",
    ],
)
def test_everything_else_is_refused(request_: str) -> None:
    async def talk(proxy: HttpOnlyProxy, where: str, seen: list[bytes]) -> None:
        assert (await said(proxy, request_.format(where=where).encode())).startswith(b"HTTP/1.1 403 ")
        assert proxy.refused == 1
        assert not seen

    with_server(talk)


def test_a_head_without_an_end_is_hung_up_on() -> None:
    async def talk(proxy: HttpOnlyProxy, where: str, seen: list[bytes]) -> None:
        with pytest.raises(ConnectionError):
            assert await said(proxy, b"x" * 300_000) == b""
            raise ConnectionResetError

    with_server(talk)


def test_cutting_drops_what_is_open() -> None:
    async def talk(proxy: HttpOnlyProxy, where: str, seen: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST http://")
        while not proxy._tasks:
            await asyncio.sleep(0.01)
        await proxy.cut_all()
        assert proxy.cut == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()

    with_server(talk)
