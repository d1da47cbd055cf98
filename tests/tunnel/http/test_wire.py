"""HTTP/1.1 as it comes: every way to end a body, and everything that is no answer at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.tunnel.edge.http.answer import ANSWER_MAX, Answer, BadHttp, Cut
from fairlead.tunnel.edge.http.h2wire import H2Wire
from fairlead.tunnel.edge.http.wire import Wire

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"POST /tunnel HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def wired(talk: Talk) -> AsyncIterator[Wire]:
    ended: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(Wire, *server.sockets[0].getsockname())
    try:
        yield wire
    finally:
        wire.abort()
        server.close()
        await asyncio.gather(*ended, return_exceptions=True)
        await asyncio.sleep(0)


def says(*parts: bytes, close: bool = False) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.001)
        if not close:
            await reader.read()

    return talk


def exchange(talk: Talk, patience_s: float = 10.0) -> tuple[Answer, bool]:
    async def main() -> tuple[Answer, bool]:
        async with asyncio.timeout(20), wired(talk) as wire:
            answer = await wire.exchange([REQUEST], patience_s)
            return answer, wire.is_open

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("parts", "close", "is_open"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Type: A/B; x=y\r\nContent-Length: 5\r\n\r\nhello",), False, True),
        ((b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhe", b"llo"), False, True),
        (
            (
                b"HTTP/1.1 200\r\ncontent-type:a/b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",
                b"3\r\nllo\r\n0\r\n\r\n",
            ),
            0,
            1,
        ),
        (
            (
                b"HTTP/1.1 100 Continue\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello",
            ),
            0,
            1,
        ),
        (
            (b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",),
            False,
            False,
        ),
        ((b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nhel", b"lo"), True, False),
        ((b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nhello",), True, False),
    ],
)
def test_bodies_end_in_many_ways(parts: tuple[bytes, ...], close: bool, is_open: bool) -> None:
    answer, still_open = exchange(says(*parts, close=close))
    assert answer.status == 200
    assert answer.body == b"hello"
    assert answer.content_type == "a/b"
    assert still_open == is_open


def test_several_requests_use_one_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(50):
            await reader.readuntil(b"\r\n\r\n")
            body = b"%d" % number
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def main() -> None:
        async with asyncio.timeout(20), wired(talk) as wire:
            answers = [await wire.exchange([REQUEST], 5) for _ in range(50)]
            assert [answer.body for answer in answers] == [b"%d" % number for number in range(50)]
            assert wire.requests == 50

    asyncio.run(main())


@pytest.mark.parametrize(
    "parts",
    [
        (b"SSH-2.0-OpenSSH_9\r\n",),
        (b"\x00" * 100,),
        (b"HTTP/1.1 banana\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"y" * 1000 + b"\r\n",) + (b"X-B: " + b"y" * 8000 + b"\r\n",) * 20,
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",),
    ],
)
def test_what_is_no_answer_closes_the_connection(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(BadHttp):
        exchange(says(*parts))


def test_an_answer_without_end_takes_no_memory_without_end() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        part = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        for _ in range(10 * ANSWER_MAX // 0x10000):
            writer.write(part)
            await writer.drain()

    with pytest.raises(BadHttp, match="longer"):
        exchange(flood)


def test_cut_off_is_cut_off() -> None:
    for parts in ((), (b"HTTP/1.1 20",), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell",)):
        with pytest.raises(Cut):
            exchange(says(*parts, close=True))


def test_nothing_moving_for_too_long_is_a_timeout_and_something_moving_is_not() -> None:
    with pytest.raises(TimeoutError):
        exchange(says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell"), 0.05)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            await asyncio.sleep(0.05)
            writer.write(b"x")
        await reader.read()

    answer, _ = exchange(slowly, 0.8)
    assert len(answer.body) == 20


def test_a_second_answer_nobody_asked_for_closes_the_connection() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def main() -> None:
        async with asyncio.timeout(20), wired(says(one + one)) as wire:
            answer = await wire.exchange([REQUEST], 5)
            assert answer.body == b"ok"
            assert not wire.is_open
            with pytest.raises(Cut):
                await wire.exchange([REQUEST], 5)

    asyncio.run(main())


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda rest: b"HTTP/1.1 200 OK\r\n" + rest))
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_an_answer_or_an_error_of_ours(data: bytes) -> None:
    try:
        exchange(says(data, close=True))
    except (BadHttp, Cut):
        pass


HEADERS = [(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", "/"), ("content-length", "9")]
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@given(st.binary(max_size=200), st.booleans())
@example(b"HTTP/1.1 400 Bad Request\r\n\r\n", False)
@example(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8), True)  # GOAWAY
@example(b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + bytes(4), True)  # RST_STREAM
@example(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_an_answer_of_http_2_or_an_error_of_ours(data: bytes, is_polite: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(SETTINGS * is_polite + data)
        try:
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, wire = await asyncio.get_running_loop().create_connection(H2Wire, *server.sockets[0].getsockname())
        try:
            async with asyncio.timeout(20):
                await wire.exchange(HEADERS, b"123456789", 10)
        except (BadHttp, Cut):
            pass
        finally:
            wire.abort()
            server.close()
            await asyncio.sleep(0.001)

    asyncio.run(main())
