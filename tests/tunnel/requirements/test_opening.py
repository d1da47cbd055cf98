"""How tunnels are opened and refused, seen from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from fairlead.errors import ConfigError, ConnectionLost, RequestTimeout
from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.packets import HEADER, SEQUENCED, Kind, Packet
from fairlead.tunnel.refusals import NotLinked, TooManyTunnels, TunnelRefused, UnknownServer
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import let_go
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.requirements.parts import PLAIN, RawClient, joined, opened, serving, until, url

Making = Callable[..., World]


def tunnels(world: World, name: str) -> int:
    return sum(one["server"] == name for one in world.gateway_status()["tunnels"])


@pytest.mark.requirement("TUN-58")
async def test_no_more_than_the_brokers_capacity_before_the_first_ack(world: World, box: Middlebox) -> None:
    async with joined(world, box.address, broker=Rules(capacity=5)) as (client, broker, _):
        await client.write(bytes(1_000_000))
        await until(lambda: broker.status().end.window == 0)
        acked_s = await until(
            lambda: [
                one.ended_s
                for one in box.capture.of("pull")
                if any(packet.kind == Kind.ACK and packet.sequence for packet in one.pulled)
            ]
        )
        before = box.capture.of("push", where=lambda one: one.began_s < acked_s[0])
        numbers = {packet.sequence for one in before for packet in one.pushed if packet.kind == Kind.DATA}
        assert numbers <= {1, 2, 3, 4, 5}
        assert numbers
        answers = [packet for packet in box.capture.packets("down") if packet.kind == Kind.CONN_INIT_ACK]
        assert {packet.window for packet in answers} == {5}
        granted = next(packet for packet in box.capture.packets("down") if packet.kind == Kind.CONN_INIT)
        assert granted.window == 0, "the gateway's answer does not carry the broker's window"


@pytest.mark.requirement("TUN-59")
async def test_open_waits_for_the_brokers_answer(world: World, box: Middlebox) -> None:
    late = box.faults.add(Act.DELAY, {"pull"}, seconds=3.0)
    async with serving(world) as server:
        opening = asyncio.ensure_future(open_stream(url(world, server.name, box.address), PLAIN, timeout_s=60))
        began_s = time.monotonic()
        await until(lambda: late.done)
        box.faults.remove(late)
        client = await opening
        assert time.monotonic() - began_s >= 2.9
        assert not [packet for packet in box.capture.packets("up") if packet.kind in SEQUENCED]
        await client.write(b"now")
        broker = await server.accept(30)
        assert await broker.readexactly(3, 30) == b"now"
        await let_go(client)


@pytest.mark.requirement("TUN-60")
@pytest.mark.requirement("TUN-57", half="one open; refused opens are in test_growth.py")
async def test_a_lost_connect_answer_leaves_no_orphan(own_world: Making) -> None:
    """The silence limit is 2 s here. The client never writes: the broker speaks first."""
    world = own_world(inactivity_s=2.0, hold_s=1.0)
    world.start_gateway()
    with Middlebox(world.address) as box:
        box.faults.add(Act.DROP_ANSWER, {"connect"}, times=1)
        async with serving(world, "b1") as server, opened(world, server, box.address) as (client, broker, _):
            assert len(box.capture.of("connect")) == 2
            await broker.write(b"welcome")
            assert await client.readexactly(7, 30) == b"welcome"
            with pytest.raises(RequestTimeout):
                await server.accept(0.2)
            await until(lambda: tunnels(world, "b1") == 1, "the orphan's end at the gateway")
            await until(lambda: sum(one.end.state.name == "OPEN" for one in server.pumps()) == len(server.pumps()) == 1)
            broker.write_eof()
            assert await client.close()
        await until(lambda: tunnels(world, "b1") == 0)


@pytest.mark.requirement("TUN-62")
async def test_every_refusal_has_its_own_error(own_world: Making) -> None:
    world = own_world(servers=["b1", "later"], tunnels_per_server=2)
    world.start_gateway()

    async def refusal(name: str, timeout_s: float = 20) -> ConnectionLost:
        with pytest.raises(ConnectionLost) as raised:
            await let_go(await open_stream(url(world, name), PLAIN, timeout_s=timeout_s))
        return raised.value

    assert isinstance(await refusal("nobody"), UnknownServer)
    began_s = time.monotonic()
    assert isinstance(await refusal("later", 1.5), NotLinked)
    assert 0.8 < time.monotonic() - began_s < 15, "the time to open is used, and no more"
    opening = asyncio.ensure_future(open_stream(url(world, "later"), PLAIN, timeout_s=60))
    await until(lambda: world.gateway_status()["counters"]["refused"].get("503", 0) >= 3)
    async with serving(world, "later"):  # the link comes while the client still tries
        await let_go(await opening)
    async with serving(world, "b1", tunnels_max=1) as server, opened(world, server):
        full = await refusal("b1")
        assert not isinstance(full, TooManyTunnels | UnknownServer | NotLinked)
        assert "tunnels" in str(full), "the broker does not take more"
    async with serving(world, "b1") as server, opened(world, server), opened(world, server):
        assert isinstance(await refusal("b1"), TooManyTunnels)


@pytest.mark.requirement("TUN-64", half="the refusal of plain HTTP; certificates are in hostile/test_https.py")
async def test_plain_http_to_another_host_is_refused() -> None:
    with pytest.raises((ConfigError, TunnelRefused)) as raised:
        await open_stream("http://gateway.example/tunnel/b1", PLAIN, timeout_s=5)
    assert "allow_plain" in str(raised.value)


@pytest.mark.requirement("TUN-14")
@pytest.mark.parametrize("allow_v1", [True, False])
async def test_a_client_of_version_1_only(own_world: Making, allow_v1: bool) -> None:
    world = own_world(allow_v1=allow_v1)
    world.start_gateway()
    async with serving(world, "b1") as server, RawClient(world, "b1") as raw:
        hello = HEADER.pack(99, Kind.CONN_INIT, HEADER.size, 0, 0, 100, 0)
        future = await raw.http.post("/tunnel?ServerName=b1&Type=connect", content=hello)
        assert future.status_code == 400
        assert "version 99" in future.headers["fairlead-reason"]
        if not allow_v1:
            old = await raw.connect(version=1)
            assert (old.status_code, "version 1" in old.headers["fairlead-reason"]) == (400, True)
            assert tunnels(world, "b1") == 0
            return
        await raw.open(version=1)
        broker = await server.accept(30)
        assert broker.status().end.version == 1
        await raw.push(raw.packet(Kind.DATA, 1, payload=b"old but well"))
        assert await broker.readexactly(12, 30) == b"old but well"
        await broker.write(b"welcome")
        found = await pulled(raw, Kind.DATA)
        assert (found.payload, found.version) == (b"welcome", 1)
        broker.release()


async def pulled(raw: RawClient, kind: Kind) -> Packet:
    while True:
        for packet in await raw.pull():
            if packet.kind == kind:
                return packet


@pytest.mark.requirement("TUN-36")
async def test_every_status_and_what_the_client_makes_of_it(own_world: Making) -> None:
    """413 and the client is in hostile/test_faults.py, 429 and 404 and the client above."""
    world = own_world(servers=["b1"], tunnels_per_server=3, grace_s=60.0)
    world.start_gateway()
    with Middlebox(world.address) as box:
        async with RawClient(world, "b1") as raw, RawClient(world, "B1") as unknown:
            assert (await unknown.connect()).status_code == 404
            not_linked = await raw.connect()
            assert (not_linked.status_code, not_linked.headers["retry-after"]) == (503, "1")
            async with serving(world, "b1") as server:
                await raw.open()
                pushed = raw.packet(Kind.DATA, 1, payload=b"x")
                assert (await raw.push(pushed)).status_code == 200
                token = raw.http.headers.pop("Authorization")
                assert (await raw.push(pushed)).status_code == 401
                raw.http.headers["Authorization"] = "Bearer " + "00" * 16
                assert (await raw.push(pushed)).status_code == 403
                raw.http.headers["Authorization"] = token
                assert (await raw.push(bytes(2 << 20))).status_code == 413
                raw_end = await server.accept(30)
                async with opened(world, server, box.address) as (client, broker, _):
                    async with opened(world, server), RawClient(world, "b1") as newcomer:
                        assert (await newcomer.connect()).status_code == 429
                    raw_end.abort(1, "enough")
                    await until(lambda: len(server.pumps()) == 1 or raw_end.status().end.state.name == "ABORTED")
                    gone = await raw.push(pushed)
                    while gone.status_code == 200:
                        gone = await raw.push(pushed)
                    assert gone.status_code == 410
                    with pytest.raises(httpx.HTTPStatusError, match="410"):
                        await raw.pull()
                    broker.abort(1, "and of you")  # 410 is final for the real client
                    with pytest.raises(ConnectionLost, match="and of you"):
                        await client.read()
