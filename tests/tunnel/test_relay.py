"""Tunnels joined to connections of the server behind the broker driver: every byte, every kind of end, pressure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.errors import ConfigError, ConnectionLost
from fairlead.tunnel.edge.broker import EXIT_CANNOT_START, Broker, BrokerSettings, from_arguments
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.memory import pair
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.relay import Relay, ServerAddress
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.end import End, Role
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import QUICK, let_go
from tests.tunnel.gateway_parts import running, until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler, path: Path | None = None) -> AsyncIterator[str]:
    """A server for the relay; its address."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        finally:
            writer.transport.abort()
            tasks.discard(task)

    if path:
        server = await asyncio.start_unix_server(handle, path)
        address = f"unix:{path}"
    else:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield address
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def relayed(handler: Handler, rules: Rules = QUICK, path: Path | None = None) -> AsyncIterator[Any]:
    """A client's stream whose other end is relayed to `handler`; what is yielded is (client, relay, ended)."""
    loop = asyncio.get_running_loop()
    async with serving(handler, path) as address:
        drivers = pair(loop)
        pumps = []
        for driver, role, window in zip(drivers, (Role.CLIENT, Role.BROKER), (0, rules.capacity), strict=True):
            pump = Pump(End(rules, role, 7, loop.time(), peer_window=window), driver, loop)
            driver.start(pump)
            pumps.append(pump)
        client = TunnelStream(pumps[0])
        await client.opened(30)
        ended: list[Relay] = []
        relay = Relay(pumps[1], ServerAddress.parse(address), ended.append)
        await relay.start()
        try:
            yield client, relay, ended
            await until(lambda: ended)
        finally:
            for pump in pumps:
                pump.stop()
        assert ended == [relay]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_unix", [False, True])
def test_bytes_go_both_ways(is_unix: bool, tmp_path: Path) -> None:
    content = random.Random(1).randbytes(500_000)

    async def main() -> None:
        path = tmp_path / "s" if is_unix else None
        async with relayed(echo, path=path) as (client, _, _):
            _, got = await asyncio.gather(client.write(content), client.readexactly(len(content), 30))
            assert got == content
            assert await client.close()

    asyncio.run(main())


def test_a_server_may_speak_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await reader.read()

    async def main() -> None:
        async with relayed(greet) as (client, _, _):
            assert await client.readexactly(7, 30) == b"welcome"
            await client.close()

    asyncio.run(main())


def test_a_server_that_hangs_up_ends_the_tunnel_after_its_last_byte() -> None:
    content = random.Random(2).randbytes(1_000_000)

    async def talk_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        async with relayed(talk_and_leave) as (client, _, _):
            got = bytearray()
            while data := await client.read(1 << 16, 30):
                got += data
            assert bytes(got) == content
            assert await client.close()

    asyncio.run(main())


def test_an_orderly_close_gives_the_server_everything_and_then_the_end() -> None:
    """Even if the server is talking all the time: what it said unread must not break the connection."""
    content = random.Random(3).randbytes(300_000)
    got = bytearray()
    ends: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def talk() -> None:
            while True:
                writer.write(bytes(10_000))
                await writer.drain()

        talking = asyncio.ensure_future(talk())
        try:
            while data := await reader.read(5000):
                got.extend(data)
                await asyncio.sleep(0)
            ends.append("eof")
        except OSError as error:
            ends.append(str(error))
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)

    async def main() -> None:
        async with relayed(listen) as (client, _, _):
            await client.write(content)
            await client.close()
            await until(lambda: ends)

    asyncio.run(main())
    assert ends == ["eof"]
    assert bytes(got) == content


def test_an_aborted_tunnel_is_a_broken_connection_for_the_server() -> None:
    ends: list[Any] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                if not await reader.read(100):
                    ends.append("eof")
                    return
        except OSError as error:
            ends.append(type(error))

    async def main() -> None:
        async with relayed(listen) as (client, _, _):
            await client.write(b"some")
            await client.flush(30)
            client.abort()
            await until(lambda: ends)

    asyncio.run(main())
    assert ends == [ConnectionResetError]


def test_a_broken_connection_of_the_server_aborts_the_tunnel() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        found = writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def main() -> None:
        async with relayed(break_off) as (client, _, _):
            await client.write(b"x")
            with pytest.raises(ConnectionLost, match="server's connection broke"):
                while await client.read(100, 30):
                    pass

    asyncio.run(main())


def test_a_server_that_is_away_aborts_the_tunnel() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        drivers = pair(loop)
        pumps = []
        for driver, role in zip(drivers, (Role.CLIENT, Role.BROKER), strict=True):
            pump = Pump(End(QUICK, role, 7, loop.time(), peer_window=9), driver, loop)
            driver.start(pump)
            pumps.append(pump)
        client = TunnelStream(pumps[0])
        await client.opened(30)
        ended: list[Relay] = []
        relay = Relay(pumps[1], ServerAddress("127.0.0.1", port), ended.append)
        await relay.start()
        assert ended == [relay]
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            await client.read(1, 30)

    asyncio.run(main())


def test_a_server_that_does_not_read_stops_the_writer() -> None:
    """And memory in between stays bounded; when it reads again, everything comes."""
    go = asyncio.Event()
    content = random.Random(4).randbytes(1 << 20) * 24
    got = 0

    async def sleep_then_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await go.wait()
        while data := await reader.read(1 << 18):
            got += len(data)

    async def main() -> None:
        rules = Rules(capacity=16, transmit_max=32)
        async with relayed(sleep_then_read, rules) as (client, relay, _):
            writing = asyncio.ensure_future(client.write(content))
            await until(lambda: relay.pump.end.status(0).window == 0)
            await asyncio.sleep(0.1)
            assert not writing.done()
            assert relay.pump.end.readable() <= 16 * 32768
            go.set()
            await writing
            assert await client.close()
            await until(lambda: got == len(content))

    asyncio.run(main())


@pytest.mark.requirement("TUN-85", state="half", note="one client, the broker's side")
def test_a_client_that_does_not_read_stops_the_server() -> None:
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await writer.drain()

    async def main() -> None:
        rules = Rules(capacity=16, transmit_max=32)
        async with relayed(talk, rules) as (client, _, _):
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < 30 << 20  # buffers of sockets, of the relay, of both ends
            got, wanted = 0, sent + (1 << 20)
            while got < wanted:
                got += len(await client.read(1 << 18, 30))
            client.abort()

    asyncio.run(main())


def settings(gateway: Any, address: str, **more: Any) -> BrokerSettings:
    return BrokerSettings(name="b1", gateways=[f"127.0.0.1:{gateway.link_port}"], server=address, tls=False, **more)


@pytest.mark.requirement("TUN-102", state="half", note="the broker's end")
def test_a_broker_serves_many_clients_and_tells_its_state(tmp_path: Path) -> None:
    """Through a real gateway; each client has its own connection to the server."""
    path = tmp_path / "status"

    async def main() -> None:
        async with running() as gateway, serving(echo) as address:
            broker = Broker(settings(gateway, address, status_socket=str(path)))
            await broker.start()
            await until(lambda: broker.server.linked()[0])
            url = f"http://127.0.0.1:{gateway.port}/tunnel/b1"
            clients = [await open_stream(url, TunnelOptions(websocket="never")) for _ in range(4)]
            for number, client in enumerate(clients):
                await client.write(b"%d" % number * 1000)
            for number, client in enumerate(clients):
                assert await client.readexactly(1000, 30) == b"%d" % number * 1000
            reader, writer = await asyncio.open_unix_connection(path)
            status = json.loads(await reader.read())
            writer.close()
            await writer.wait_closed()
            assert path.stat().st_mode & 0o077 == 0
            assert status["name"] == "b1"
            assert status["relays"] == 4
            tunnels = status["links"][0]["tunnels"]
            assert len(tunnels) == 4
            wanted = {"connection_id", "version", "received", "consumed", "window", "edge", "unacknowledged"}
            wanted |= {"resends", "duplicates", "damaged", "rtt_s", "interval_s", "pull_period_s", "carrier", "state"}
            assert wanted <= set(tunnels[0])
            assert tunnels[0]["carrier"] == "link"
            for client in clients[:2]:
                assert await client.close()
            await until(lambda: broker.counts()["tunnels"] == 2)
            for client in clients:
                await let_go(client)
            await broker.stop()

    asyncio.run(main())


def test_a_broker_takes_udp_only_when_told_to() -> None:
    async def main() -> None:
        async with serving(echo) as address:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
                taken.bind(("127.0.0.1", 0))
                port = taken.getsockname()[1]
            broker = Broker(BrokerSettings(name="b1", gateways=[], server=address, udp=f"127.0.0.1:{port}"))
            await broker.start()
            client = await open_stream(f"udp://127.0.0.1:{port}", allow_udp=True)
            await client.write(b"hello")
            assert await client.readexactly(5, 30) == b"hello"
            assert broker.status()["links"][0]["tunnels"][0]["carrier"] == "udp"
            client.release()
            await broker.stop()
        broker = Broker(BrokerSettings(name="b1", gateways=[], server=address))
        await broker.start()
        assert broker.status()["links"] == []
        await broker.stop()

    asyncio.run(main())


def test_a_link_beyond_this_host_needs_tls() -> None:
    async def main() -> None:
        broker = Broker(BrokerSettings(name="b1", gateways=["192.0.2.1:7401"], server="x:1", tls=False))
        with pytest.raises(ConfigError, match="without TLS"):
            await broker.start()

    asyncio.run(main())


def test_the_process_relays_and_ends_with_sigterm(tmp_path: Path) -> None:
    async def main() -> None:
        async with running() as gateway, serving(echo, tmp_path / "s") as address:
            text = msgspec.json.encode(settings(gateway, address)).decode()
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "fairlead.tunnel.edge.broker", text], stderr=subprocess.PIPE
            )
            try:
                options = TunnelOptions(websocket="never")
                await until(lambda: "b1" in {one.server for one in gateway.station.status().links})
                client = await open_stream(f"http://127.0.0.1:{gateway.port}/tunnel/b1", options, timeout_s=30)
                await client.write(b"to another process")
                assert await client.readexactly(18, 30) == b"to another process"
                process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionLost, match="shutting down"):
                    while await client.read(100, 30):
                        pass
                await asyncio.to_thread(process.wait, 30)
                assert process.returncode == 0
                await let_go(client)
            finally:
                process.kill()
                process.communicate()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Usage"),
        (["{}"], "missing required field"),
        (['{"name": "b", "gateways": [], "server": "x:1", "colour": 1}'], "unknown field"),
        (["no json"], "cannot be used"),
    ],
)
def test_settings_that_cannot_be_used(arguments: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        from_arguments(arguments)


def test_a_process_with_a_bad_address_says_so_and_does_not_start() -> None:
    text = '{"name": "b", "gateways": [], "server": "nowhere"}'
    done = subprocess.run(
        [sys.executable, "-m", "fairlead.tunnel.edge.broker", text], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == EXIT_CANNOT_START
    assert "write HOST:PORT" in done.stderr
