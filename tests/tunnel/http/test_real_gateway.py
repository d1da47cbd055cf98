"""The client driver with the real gateway and a broker's server socket, all in one process: streams come out whole."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from fairlead.tunnel.edge.dial import open_pump, open_stream
from fairlead.tunnel.edge.http import HttpDriver
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Rules
from tests.tunnel.gateway_parts import running
from tests.tunnel.http.scripted import ID, Gateway, Request
from tests.tunnel.http.sink import play

NEVER = TunnelOptions(websocket="never")


@asynccontextmanager
async def joined(
    options: TunnelOptions = NEVER, kind: str = "uvicorn", **settings: Any
) -> AsyncIterator[tuple[TunnelStream, TunnelStream]]:
    """A client's stream and the broker's."""
    async with running(kind, **settings) as gateway, TunnelServer("b1") as server:
        await server.listen(f"127.0.0.1:{gateway.link_port}", timeout_s=20)
        client = await open_stream(f"{gateway.url}/b1", options, timeout_s=20)
        broker = await server.accept(20)
        try:
            yield client, broker
        finally:
            for stream in (client, broker):
                stream.release()


async def send(stream: TunnelStream, data: bytes, seed: int) -> None:
    chance, at = Random(seed), 0
    while at < len(data):
        size = chance.randint(1, 200_000)
        await stream.write(data[at : at + size])
        at += size


async def receive(stream: TunnelStream, size: int) -> str:
    digest = hashlib.sha256()
    while size:
        data = await stream.read(min(size, 1 << 18), 60)
        assert data, "the stream ended early"
        digest.update(data)
        size -= len(data)
    return digest.hexdigest()


async def both_ways(client: TunnelStream, broker: TunnelStream, size: int) -> None:
    there, back = Random(1).randbytes(size), Random(2).randbytes(size)
    _, _, got, came = await asyncio.gather(
        send(client, there, 3), send(broker, back, 4), receive(broker, size), receive(client, size)
    )
    assert got == hashlib.sha256(there).hexdigest()
    assert came == hashlib.sha256(back).hexdigest()


@pytest.mark.requirement("TUN-4", state="scaled", note="8 MB instead of 100 MB; the long test has it in full")
@pytest.mark.requirement("TUN-5", state="half", note="without loss; the connection-level suite has that")
@pytest.mark.parametrize("websocket", ["never", "auto"])
async def test_a_copy_both_ways_at_once(websocket: Any) -> None:
    async with asyncio.timeout(110), joined(TunnelOptions(websocket=websocket)) as (client, broker):
        await both_ways(client, broker, 8_000_000)
        while websocket == "auto" and client.status().carrier != "websocket":
            await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.requirement("TUN-4")
@pytest.mark.parametrize("websocket", ["never", "auto"])
async def test_a_copy_of_100_mb_both_ways_at_once(websocket: Any) -> None:
    async with asyncio.timeout(110), joined(TunnelOptions(websocket=websocket)) as (client, broker):
        await both_ways(client, broker, 100_000_000)


@pytest.mark.requirement("TUN-38")
async def test_http_2_carries_everything_on_one_connection() -> None:
    dialled: list[object] = []
    loop = asyncio.get_running_loop()
    create_connection = loop.create_connection

    async def counted(factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        dialled.append(port)
        return await create_connection(factory, host, port, **more)

    loop.create_connection = counted  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(110), joined(NEVER._replace(http2=True), "hypercorn-h2") as (client, broker):
        await both_ways(client, broker, 2_000_000)
        driver = client.pump.driver
        assert isinstance(driver, HttpDriver)
        assert dialled.count(driver._outcomes.place.port) == 1


@pytest.mark.requirement("TUN-39")
async def test_a_websocket_cut_in_mid_transfer_and_no_other() -> None:
    async with asyncio.timeout(110), joined(TunnelOptions()) as (client, broker):
        driver = client.pump.driver
        assert isinstance(driver, HttpDriver)
        await broker.write(b"x")
        await client.read()
        while driver.carrier != "websocket":
            await asyncio.sleep(0.01)
        before = client.status().end.connection_id
        transfer = asyncio.ensure_future(both_ways(client, broker, 6_000_000))
        while client.status().end.received < 20:
            await asyncio.sleep(0)
        streaming, stream = driver._streaming, driver._stream
        assert streaming is not None
        assert stream is not None

        async def blocked() -> None:
            raise ConnectionRefusedError("no upgrades here")

        streaming._dial = blocked  # type: ignore[method-assign, assignment]
        stream._socket.transport.abort()
        await transfer
        assert driver.carrier == "push/pull"
        assert client.status().end.connection_id == before


async def test_a_tunnel_is_accepted_once() -> None:
    accepted: list[Pump] = []
    async with (
        asyncio.timeout(60),
        running() as gateway,
        TunnelServer("b1", on_accept=accepted.append) as server,
    ):
        await server.listen(f"127.0.0.1:{gateway.link_port}", timeout_s=20)
        pump = await open_pump(f"{gateway.url}/b1", NEVER, timeout_s=20)
        for number in range(20):  # nobody owns it at the broker's yet, and it goes on being told things
            pump.write(b"x")
            while pump.status().end.acknowledged <= number:
                await asyncio.sleep(0.001)
        assert len(accepted) == 1
        pump.stop()


@pytest.mark.requirement("TUN-78", "TUN-86", state="half", note="told to the other end when the tunnel is opened")
async def test_the_broker_hears_of_the_pull_period() -> None:
    async with asyncio.timeout(60), joined(NEVER._replace(pull_period_s=1, hold_s=7)) as (client, broker):
        await client.write(b"x")
        await broker.read()
        assert broker.status().end.pull_period_s == client.status().end.pull_period_s == 1
        assert broker.pump.end.rules.hold_s == 7


QUICK = Rules(resend_first_s=0.1, resend_min_s=0.1, resend_plus_s=0.05)


@pytest.mark.requirement("TUN-34", half="with a scripted gateway; nobody reads the data")
def test_only_an_ack_releases_what_was_sent() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            gateway.say(encode(Kind.CONN_INIT_ACK, ID, 0, 10))
            pump = await open_pump(gateway.url, NEVER._replace(rules=QUICK))
            pump.write(b"hello")

            def sent() -> list[int]:
                return [packet.sequence for packet in gateway.pushed() if packet.kind == Kind.DATA]

            await gateway.until(lambda: sent() == [1, 1])  # every push of them was answered 200
            assert pump.status().end.unacknowledged == 1
            gateway.say(encode(Kind.ACK, ID, 1, 10))
            while pump.status().end.unacknowledged:
                await asyncio.sleep(0.01)
            pump.stop()

    play(test)


@pytest.mark.requirement("TUN-61")
def test_a_lost_confirmation_is_asked_for_again_with_the_id() -> None:
    async def test() -> None:
        async with Gateway() as gateway:
            opening = asyncio.ensure_future(open_pump(gateway.url, NEVER._replace(rules=QUICK)))
            await gateway.until(lambda: gateway.pushed())
            again = gateway.pushed()[0]
            assert (again.kind, again.connection_id, again.window) == (Kind.CONN_INIT, ID, 256)
            gateway.say(encode(Kind.CONN_INIT_ACK, ID, 0, 10))
            (await opening).stop()
            assert len(gateway.of("connect")) == 1

    play(test)


def test_opening_takes_no_longer_than_it_may() -> None:
    async def script(request: Request) -> None:
        if request.kind == "pull":
            await asyncio.sleep(60)

    async def test() -> None:
        async with Gateway(script) as gateway:
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await open_pump(gateway.url, NEVER, timeout_s=0.5)
            assert asyncio.get_running_loop().time() - began_s < 10
            await gateway.until(lambda: any(packet.kind == Kind.CONN_ABORT for packet in gateway.pushed()))

    play(test)
