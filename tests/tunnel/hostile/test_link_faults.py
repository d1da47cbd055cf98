"""The link between gateway and broker cut, stalled or slow to come back, in the middle of transfers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fairlead.tunnel.link_init import LinkInit
from fairlead.tunnel.packets import Kind, Packet, split
from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire

Making = Callable[..., World]
PLAIN = {"websocket": "never"}


def link_inits(wire: Wire) -> list[LinkInit]:
    firsts = []
    for kept in wire.captured:
        packets: list[Packet] = split(bytes(kept["up"])).packets
        if packets:
            assert packets[0].kind == Kind.LINK_INIT
            firsts.append(LinkInit.decode(packets[0].payload, packets[0].version))
    return firsts


@pytest.mark.requirement("TUN-44", "TUN-48", "TUN-95", scaled="1 s instead of 5 s")
def test_the_link_is_cut_for_a_while(own_world: Making) -> None:
    cut_link(own_world(), 1.0, 10_000_000)


@pytest.mark.long
@pytest.mark.requirement("TUN-44", "TUN-48", "TUN-95")
def test_the_link_is_cut_for_five_seconds(own_world: Making) -> None:
    cut_link(own_world(), 5.0, 40_000_000)


def cut_link(world: World, seconds: float, size: int) -> None:
    world.start_gateway()
    with Wire(world.link, capture_bytes=10_000) as wire:
        world.dialled = wire.address
        world.start()
        talking = [world.client(mode="echo", rounds=10**6, pause_s=0.05, options=PLAIN) for _ in range(2)]
        for client in talking:
            client.wait("echoed")
        moving = world.client(up=size, down=size, options=PLAIN)
        moving.moved(2)
        wire.refusing = True
        wire.cut()
        time.sleep(seconds)
        wire.refusing = False
        moving.results()
        for client in talking:
            client.wait("echoed", number=client.latest("echoed", {})["number"] + 3)
        clients = [*talking, moving]
        ids = {client.wait("opened")[0]["id"] for client in clients}
        first, *_, last = link_inits(wire)
        assert first.tunnels == []
        assert {one.connection_id for one in last.tunnels} == ids
        world.stop_clients()
        world.server.stop()


@pytest.mark.requirement("TUN-50", scaled="the broker comes back after 3 s instead of 8 s")
def test_a_gateway_that_does_not_know_yet_says_503(own_world: Making) -> None:
    world = own_world()
    world.start_gateway()
    with Wire(world.link) as wire, Middlebox(world.address) as box:
        world.dialled = wire.address
        world.start()
        client = world.client(box.address, up=10_000_000, down=10_000_000, options=PLAIN)
        client.moved(2)
        wire.refusing = True
        assert world.gateway is not None
        world.gateway.kill()
        wire.cut()
        world.start_gateway()
        began_s = time.monotonic()
        until(lambda: box.capture.of("push", "pull", where=lambda one: one.began_s > began_s and one.status > 0))
        time.sleep(3)
        answered = box.capture.of("push", "pull", where=lambda one: one.began_s > began_s and bool(one.status))
        assert {one.status for one in answered} == {503}
        assert all("retry-after" in {name.lower() for name, _ in one.answer_headers} for one in answered)
        wire.refusing = False
        client.results()
        world.stop_clients()
        world.server.stop()


@pytest.mark.requirement("TUN-10")
def test_only_the_broker_acknowledges(own_world: Making) -> None:
    world = own_world()
    world.start_gateway()
    with Wire(world.link) as wire, Middlebox(world.address) as box:
        world.dialled = wire.address
        world.start()
        client = world.client(box.address, up=10_000_000, options=PLAIN)
        client.moved(2)
        wire.stalled = True
        until(lambda: all(one.ended_s for one in box.capture.of("push")[:-2]))
        time.sleep(0.5)  # what the broker had said before
        began_s = time.monotonic()
        until(lambda: len(box.capture.of("push", where=lambda one: one.began_s > began_s and one.status == 200)) >= 2)
        pulled = box.capture.of("pull", where=lambda one: one.began_s > began_s)
        assert not [packet for one in pulled for packet in one.pulled if packet.kind == Kind.ACK]
        wire.stalled = False
        client.results()
        world.stop_clients()
        world.server.stop()
