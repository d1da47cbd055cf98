"""What a program sees of a tunnel: read, write, flush, close, time limits; for coroutines and for threads."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead.errors import ConfigError, ConnectionLost, RequestTimeout
from fairlead.tunnel.edge.blocking import TunnelSocket
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.end import State
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.carriers import QUICK, memory
from tests.tunnel.gateway_parts import running, until


def test_a_read_gives_what_is_there_up_to_what_is_asked() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            assert await tunnel.client.read(0) == b""
            await tunnel.client.write(b"abcdef")
            assert await tunnel.broker.read(4, 30) == b"abcd"
            assert await tunnel.broker.read(100, 30) == b"ef"

    asyncio.run(main())


def test_reading_and_writing_have_time_limits() -> None:
    async def main() -> None:
        async with memory(broker=QUICK._replace(capacity=2), client=QUICK._replace(transmit_max=2)) as tunnel:
            with pytest.raises(RequestTimeout, match=r"within 0\.02 s"):
                await tunnel.client.read(1, 0.02)
            with pytest.raises(TimeoutError):
                await tunnel.client.write(bytes(20_000), 0.02)
            with pytest.raises(RequestTimeout):
                await tunnel.client.flush(0.02)
            assert await tunnel.broker.readexactly(2400, 30) == bytes(2400)

    asyncio.run(main())


@pytest.mark.requirement("TUN-65")
def test_writing_waits_for_window_and_buffer_and_goes_on_when_somebody_reads() -> None:
    async def main() -> None:
        rules = QUICK._replace(capacity=4, transmit_max=6)
        async with memory(broker=rules, client=rules) as tunnel:
            writing = asyncio.ensure_future(tunnel.client.write(bytes(30_000)))
            await until(lambda: tunnel.broker.status().end.window == 0)
            await asyncio.sleep(0.05)
            assert not writing.done()
            assert tunnel.client.pump.end.room() == 0
            await tunnel.broker.readexactly(30_000, 30)
            await writing

    asyncio.run(main())


def test_flush_waits_for_the_other_end() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            tunnel.there.drop = lambda _: True
            await tunnel.client.write(b"x")
            with pytest.raises(RequestTimeout):
                await tunnel.client.flush(0.05)
            tunnel.there.drop = None
            await tunnel.client.flush(30)
            assert tunnel.client.status().end.unacknowledged == 0
            assert tunnel.broker.pump.end.readable() == 1
            await tunnel.client.flush(0.01)

    asyncio.run(main())


def test_flush_fails_when_the_tunnel_breaks() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            tunnel.there.drop = lambda _: True
            await tunnel.client.write(b"x")
            flushing = asyncio.ensure_future(tunnel.client.flush(30))
            await asyncio.sleep(0)
            tunnel.broker.abort(1, "gone")
            with pytest.raises(ConnectionLost, match="gone"):
                await flushing

    asyncio.run(main())


def test_an_end_in_the_midst_is_no_whole_read() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            await tunnel.client.write(b"abc")
            tunnel.client.write_eof()
            with pytest.raises(asyncio.IncompleteReadError) as failed:
                await tunnel.broker.readexactly(10, 30)
            assert failed.value.partial == b"abc"
            assert await tunnel.broker.read(1, 30) == b""
            with pytest.raises(ConnectionLost, match="closed"):
                await tunnel.broker.write(b"too late")

    asyncio.run(main())


def test_closing_throws_the_rest_away_so_that_it_can_finish() -> None:
    async def main() -> None:
        async with memory(client=QUICK._replace(capacity=4)) as tunnel:
            await tunnel.broker.write(bytes(50_000))
            closing = asyncio.ensure_future(tunnel.client.close())
            assert await tunnel.broker.read(1, 30) == b""
            assert await closing
            assert await tunnel.broker.close()
            assert await tunnel.client.close()
            assert await tunnel.client.read(10, 1) == b""

    asyncio.run(main())


@pytest.mark.requirement("TUN-93", state="scaled", note="a linger time of 0.3 s")
def test_a_close_that_cannot_finish_gives_up() -> None:
    async def main() -> None:
        rules = QUICK._replace(capacity=4, linger_s=0.3)
        async with memory(broker=rules, client=rules) as tunnel:
            await tunnel.client.write(bytes(50_000))
            assert not await tunnel.client.close()
            with pytest.raises(ConnectionLost):
                while await tunnel.broker.read(5000, 30):
                    pass

    asyncio.run(main())


def test_a_block_closes_and_a_failed_block_aborts() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            reading = asyncio.ensure_future(tunnel.broker.read(100, 30))
            async with tunnel.client:
                await tunnel.client.write(b"x")
                assert await reading == b"x"
                ended = asyncio.ensure_future(tunnel.broker.read(1, 30))
            assert await ended == b""
            assert tunnel.client.pump.end.state is State.CLOSED
        async with memory() as tunnel:
            with pytest.raises(ZeroDivisionError):
                async with tunnel.client:
                    raise ZeroDivisionError
            with pytest.raises(ConnectionLost):
                await tunnel.broker.read(1, 30)

    asyncio.run(main())


def test_several_may_wait_at_once_and_one_may_be_cancelled() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            given_up = asyncio.ensure_future(tunnel.broker.read(1, 30))
            reading = asyncio.ensure_future(tunnel.broker.read(5, 30))
            await asyncio.sleep(0)
            given_up.cancel()
            await tunnel.client.write(b"hello")
            assert await reading == b"hello"
            with pytest.raises(asyncio.CancelledError):
                await given_up

    asyncio.run(main())


def test_options_reach_the_other_end() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            tunnel.broker.set_option(Option.PULL_PERIOD, 7)
            await until(lambda: tunnel.client.pump.end.rules.pull_period_s == 7)
            assert tunnel.client.status().end.pull_period_s == 7

    asyncio.run(main())


def test_a_release_ends_whoever_waits() -> None:
    async def main() -> None:
        async with memory() as tunnel:
            reading = asyncio.ensure_future(tunnel.client.read(1, 30))
            await asyncio.sleep(0)
            tunnel.client.release()
            with pytest.raises(ConnectionLost):
                await reading

    asyncio.run(main())


@contextmanager
def echoing(kind: str) -> Iterator[tuple[str, TunnelOptions, bool]]:
    """A broker in a thread of its own that sends everything back, and where it is reached."""
    ready, leave = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def echo(stream: TunnelStream) -> None:
        try:
            while data := await stream.read(1 << 20):
                await stream.write(data)
            await stream.close()
        except ConnectionLost:
            pass

    async def serve(server: TunnelServer) -> None:
        tasks = set()

        async def accept() -> None:
            while True:
                tasks.add(asyncio.ensure_future(echo(await server.accept())))

        accepting = asyncio.ensure_future(accept())
        ready.set()
        while not leave.is_set():
            await asyncio.sleep(0.01)
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)

    async def main() -> None:
        if kind == "udp":
            async with TunnelServer("b1") as server:
                host, port = await server.listen_udp("127.0.0.1", 0)
                found["url"] = f"udp://{host}:{port}"
                await serve(server)
            return
        async with running() as gateway, TunnelServer("b1") as server:
            await server.listen(f"127.0.0.1:{gateway.link_port}", timeout_s=30)
            found["url"] = f"http://127.0.0.1:{gateway.port}/tunnel/b1"
            await serve(server)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(30)
        yield found["url"], TunnelOptions(rules=Rules()), kind == "udp"
    finally:
        leave.set()
        thread.join(30)


@pytest.mark.parametrize("kind", ["udp", "http"])
@pytest.mark.requirement("TUN-4", state="scaled", note="8 MB there and back instead of 100 MB")
def test_a_program_with_threads_copies_both_ways_at_once(kind: str) -> None:
    content = random.Random(1).randbytes(1 << 20) * (8 if kind == "http" else 2)
    with echoing(kind) as (url, options, allow_udp):
        with TunnelSocket.open(url, options, timeout_s=30, allow_udp=allow_udp) as tunnel:
            tunnel.settimeout(60)

            def send() -> None:
                for at in range(0, len(content), 100_000):
                    tunnel.sendall(content[at : at + 100_000])
                tunnel.flush()

            sender = threading.Thread(target=send)
            sender.start()
            digest, left = hashlib.sha256(), len(content)
            while left:
                data = tunnel.recv(min(left, 1 << 18))
                digest.update(data)
                left -= len(data)
            sender.join(60)
            assert digest.digest() == hashlib.sha256(content).digest()
            tunnel.shutdown()
            assert tunnel.recv(1) == b""
        tunnel.close()
        with pytest.raises(ConnectionLost):
            tunnel.sendall(b"closed")


def test_a_thread_gets_time_limits_options_and_state() -> None:
    with (
        echoing("udp") as (url, options, _),
        TunnelSocket.open(url, options, timeout_s=30, allow_udp=True) as tunnel,
    ):
        tunnel.settimeout(0.05)
        with pytest.raises(TimeoutError):
            tunnel.recv(1)
        tunnel.set_option(Option.INACTIVITY, 90)
        assert tunnel.status().carrier == "udp"
        tunnel.abort()


def test_udp_has_to_be_allowed() -> None:
    with pytest.raises(ConfigError, match="allow_udp"):
        TunnelSocket.open("udp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="udp://HOST:PORT"):
        asyncio.run(open_stream("udp://127.0.0.1", allow_udp=True))
