"""Several brokers, several gateways, gateways killed and links cut: what the wire and the programs show."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.links import LinkTimes
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.packets import Kind, Packet, split
from fairlead.tunnel.refusals import UnknownServer
from tests.tunnel.hostile.harness import Program, World
from tests.tunnel.hostile.harness import until as wait_until
from tests.tunnel.hostile.test_link_faults import link_inits
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire
from tests.tunnel.requirements.balancer import Balancer
from tests.tunnel.requirements.parts import PLAIN, RawClient, joined, opened, serving, until, url

Making = Callable[..., World]
NO_SOCKET = {"websocket": "never"}
SOON_AGAIN = LinkTimes(pause_max_s=0.2)


async def talk(stream: TunnelStream, other: TunnelStream, word: bytes) -> None:
    """A question and its answer."""
    await stream.write(word)
    assert await other.readexactly(len(word), 60) == word
    await other.write(word[::-1])
    assert await stream.readexactly(len(word), 60) == word[::-1]


@pytest.mark.requirement("TUN-9", "TUN-45")
async def test_three_clients_with_a_tunnel_to_each_of_two_brokers(own_world: Making) -> None:
    world = own_world(servers=["b1", "b2"])
    world.start().start(name="b2")
    urls = [f"http://127.0.0.1:{world.address[1]}/tunnel/{name}" for name in ("b1", "b2")]
    clients = [
        world.client(urls=urls, tunnels=2, up=1_000_000, down=1_000_000, options=NO_SOCKET, stream=1000 * (at + 1))
        for at in range(3)
    ]
    ids = [result["id"] for client in clients for result in client.results(2)]
    assert len(set(ids)) == 6
    accepted = [[one["id"] for one in program.events if one["event"] == "accepted"] for program in world.servers]
    assert [len(one) for one in accepted] == [3, 3]
    assert sorted(accepted[0] + accepted[1]) == sorted(ids)
    with pytest.raises(UnknownServer):
        await open_stream(url(world, "B1"), PLAIN, timeout_s=20)


@pytest.mark.requirement(
    "TUN-11", half="whether two gateways draw the same id is chance here; tests/tunnel/test_links.py"
)
async def test_one_of_two_gateways_is_killed_and_the_tunnels_of_the_other_notice_nothing(own_world: Making) -> None:
    near, far = own_world(), own_world()
    near.start_gateway()
    far.start_gateway()
    far.secret.write_bytes(near.secret.read_bytes())
    assert far.gateway is not None
    far.gateway.stop()
    far.start_gateway()
    async with serving(near, "b1", times=SOON_AGAIN) as server:
        await server.listen(f"127.0.0.1:{far.link[1]}")
        await until(lambda: server.linked() == (2, 2))
        async with opened(near, server) as one, opened(far, server) as other:
            near.restart_gateway()
            await asyncio.gather(talk(one.client, one.broker, b"near"), talk(other.client, other.broker, b"far"))
            assert other.client.status().end.resends == 0
            assert far.gateway_status()["counters"]["aborted"] == near.gateway_status()["counters"]["aborted"] == 0


def data(packets: list[Packet]) -> dict[int, bytes]:
    """With header and checksum, by their numbers."""
    return {packet.sequence: packet.raw for packet in packets if packet.kind == Kind.DATA}


@pytest.mark.requirement("TUN-21")
async def test_checksums_pass_unchanged(world: World, box: Middlebox) -> None:
    with Wire(world.link, capture_bytes=1 << 20) as wire:
        async with joined(world, box.address, link=wire.address) as (client, broker, _):
            await client.write(os.urandom(100_000))
            await broker.write(os.urandom(100_000))
            await asyncio.gather(broker.readexactly(100_000), client.readexactly(100_000))
            for at_client, at_broker in (("up", "down"), ("down", "up")):
                await until(lambda at=at_client: len(data(box.capture.packets(at))) == 4)  # type: ignore[misc]
                passed = data(split(bytes(wire.captured[0][at_broker])).packets)
                assert data(box.capture.packets(at_client)) == passed


@pytest.mark.requirement("TUN-44", "TUN-51", "TUN-63")
async def test_what_link_init_lists_after_a_restart_of_the_gateway(own_world: Making) -> None:
    world = own_world()
    world.start_gateway()
    with Wire(world.link, capture_bytes=1 << 20) as wire:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(world, link=wire.address, times=SOON_AGAIN))
            pairs = [
                await stack.enter_async_context(
                    opened(world, server, options=PLAIN._replace(pull_period_s=period_s, hold_s=1.0))
                )
                for period_s in (0, 1, 2)
            ]
            for pair in pairs:
                await talk(pair.client, pair.broker, b"before")
            wire.cut()
            world.restart_gateway()
            wire.cut()
            await asyncio.gather(*(talk(pair.client, pair.broker, b"after") for pair in pairs))
            first, *_, last = link_inits(wire)
            assert first.tunnels == []
            assert {one.connection_id: one.pull_period_s for one in last.tunnels} == {
                pair.id: period_s for pair, period_s in zip(pairs, (0, 1, 2), strict=True)
            }
            assert all(len(one.verifier) == 32 for one in last.tunnels)
            assert world.gateway_status()["counters"]["aborted"] == 0


@pytest.mark.requirement("TUN-52")
async def test_new_tunnels_after_a_restart_collide_with_nobodys(own_world: Making) -> None:
    world = own_world(servers=["b1", "b2"])
    world.start_gateway()
    with Wire(world.link) as one_wire, Wire(world.link) as other_wire:
        async with (
            serving(world, "b1", link=one_wire.address, times=SOON_AGAIN) as one,
            serving(world, "b2", link=other_wire.address, times=SOON_AGAIN) as other,
            AsyncExitStack() as stack,
        ):
            old = [await stack.enter_async_context(opened(world, server)) for server in (one, other) for _ in range(3)]
            for wire in (one_wire, other_wire):
                wire.refusing = True
            world.restart_gateway()
            for wire in (one_wire, other_wire):
                wire.cut()
            one_wire.refusing = False
            new = [await stack.enter_async_context(opened(world, one)) for _ in range(5)]
            await asyncio.gather(*(talk(pair.client, pair.broker, b"%d" % pair.id) for pair in (*old[:3], *new)))
            other_wire.refusing = False
            await asyncio.gather(*(talk(pair.client, pair.broker, b"%d" % pair.id) for pair in (*old, *new)))
            assert len({(pair.server.name, pair.id) for pair in (*old, *new)}) == 11


@pytest.mark.requirement("TUN-53")
async def test_two_brokers_of_the_same_name(own_world: Making) -> None:
    world = own_world()
    world.start()
    client = world.client(mode="echo", rounds=10**6, pause_s=0.05, options=NO_SOCKET)
    client.wait("echoed")
    words = ["-m", "tests.tunnel.hostile.server", "--link", f"127.0.0.1:{world.link[1]}", "--name", "b1"]
    second = Program([*words, "--secret-file", str(world.secret)], world.directory / "second.log", "second")
    try:
        wait_until(lambda: "refuses the link" in second.log(), "a line in the second broker's log")
        assert not [one for one in second.events if one["event"] == "linked"]
        client.wait("echoed", number=client.latest("echoed", {})["number"] + 5)
        assert not client.failed()
    finally:
        second.process.kill()
        second.stop()


@pytest.mark.requirement("TUN-42")
@pytest.mark.parametrize("websocket", ["never", "auto"])
async def test_two_gateways_behind_a_balancer(own_world: Making, websocket: str) -> None:
    one, other = own_world(instance="one"), own_world(instance="other")
    other.secret.write_bytes(one.secret.read_bytes())
    one.start_gateway()
    other.start_gateway()
    with Balancer(one.address, other.address) as balancer:
        async with serving(one, "b1") as server:
            await server.listen(f"127.0.0.1:{other.link[1]}")
            await until(lambda: server.linked() == (2, 2))
            options = PLAIN._replace(websocket=websocket)  # type: ignore[arg-type]
            async with (
                opened(one, server, balancer.address, options) as first,
                opened(one, server, balancer.address, options) as second,
            ):
                assert [len(world.gateway_status()["tunnels"]) for world in (one, other)] == [1, 1]
                for number in range(100):
                    await talk(first.client, first.broker, b"first%03d" % number)
                    await talk(second.client, second.broker, b"second%03d" % number)
            assert {(kind, sticky) for kind, _, sticky in balancer.chosen if kind != "connect"} <= {
                (kind, True) for kind in ("push", "pull", "stream")
            }
            async with RawClient(one, "b1") as raw:  # without stickiness it would be 503, never 410
                answer = await raw.connect()
                raw.http.headers["Fairlead-Instance"] = answer.headers["fairlead-instance"]
                raw.http.base_url = f"http://127.0.0.1:{other.address[1]}"
                assert (await raw.push(raw.packet(Kind.ACK, 0, 1))).status_code == 503


@pytest.mark.requirement("TUN-34")
async def test_what_the_gateway_had_answered_and_lost_is_sent_again(own_world: Making) -> None:
    """The link stands still, pushes are answered 200, and then the gateway is killed with what it has."""
    world = own_world()
    world.start_gateway()
    content = os.urandom(200_000)
    with Wire(world.link) as wire, Middlebox(world.address) as box:
        async with joined(world, box.address, link=wire.address, times=SOON_AGAIN) as (client, broker, _):
            await talk(client, broker, b"before")
            wire.stalled = True
            await client.write(content)
            pushed = await until(
                lambda: [
                    packet.sequence
                    for one in box.capture.of("push", where=lambda one: one.status == 200)
                    for packet in one.pushed
                    if packet.kind == Kind.DATA
                ][7:]
            )
            assert world.gateway is not None
            world.gateway.kill()
            wire.cut()
            wire.stalled = False
            assert client.status().end.unacknowledged >= len(pushed), "200 is no acknowledgement"
            world.start_gateway()
            assert await broker.readexactly(len(content), 60) == content
            again = [one.sequence for one in box.capture.packets("up") if one.kind == Kind.DATA]
            assert all(again.count(number) > 1 for number in pushed)


@pytest.mark.requirement("TUN-29")
async def test_a_gateway_dials_nobody(own_world: Making, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("strace is not installed: apt-get install --no-install-recommends strace")
    world = own_world()
    gateway = world.start_gateway()
    trace = tmp_path / "trace"
    words = [strace, "-f", "-e", "trace=connect,socket", "-o", str(trace), "-p", str(gateway.pid)]
    tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)  # noqa: ASYNC220 (the test has no other loop work)
    try:
        assert tracer.stderr is not None
        if "attached" not in tracer.stderr.readline():
            pytest.skip("processes cannot be traced here")
        async with joined(world) as (client, broker, _):
            for number in range(20):
                await talk(client, broker, b"%d" % number)
            silent = asyncio.ensure_future(client.read(1))
            await asyncio.sleep(0.2)  # a pull is held, and the broker speaks first
            await broker.write(b"!")
            assert await silent == b"!"
            assert all(await asyncio.gather(client.close(), broker.close()))
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=30)
    assert [line for line in trace.read_text().splitlines() if "connect(" in line and "AF_INET" in line] == []
    assert gateway.process.poll() is None


@pytest.mark.requirement("TUN-43", half="no firewall in between; the broker's process has no port that one could close")
def test_a_broker_listens_nowhere(own_world: Making) -> None:
    world = own_world().start()
    world.client(up=100_000, down=100_000, options=NO_SOCKET).results()
    sockets = psutil.Process(world.server.pid).net_connections("inet")
    assert [one for one in sockets if one.status == psutil.CONN_LISTEN] == []
    assert [one.raddr.port for one in sockets if one.status == psutil.CONN_ESTABLISHED] == [world.link[1]]


@pytest.mark.requirement("TUN-47")
def test_a_client_that_stops_pulling_slows_nobody_down(own_world: Making) -> None:
    """The process of one client is stopped while its broker keeps sending; 49 tunnels of others go on."""
    world = own_world().start({"capacity": 32, "transmit_max": 64})

    def others_take_s() -> float:
        began_s = time.monotonic()
        others = world.client(tunnels=49, up=50_000, down=200_000, options=NO_SOCKET, timeout_s=300)
        others.wait("opened", 49)
        began_s = time.monotonic()
        others.results(49)
        others.stop()
        world.clients.remove(others)
        return time.monotonic() - began_s

    alone_s = others_take_s()
    frozen = world.client(mode="flood", options=NO_SOCKET)
    frozen.wait("flooded")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: any(one["unacknowledged"] >= 32 for one in world.server.status()), "a window used up")
        beside_s = others_take_s()
        assert not frozen.failed()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    assert beside_s < 3 * alone_s + 1.0, "as fast as before, on a machine that others use too"
