"""Gateway and broker killed, and the link between them cut or stalled, in the middle of transfers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fairlead.tunnel.link_init import LinkInit
from fairlead.tunnel.packets import Kind, Packet, split
from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire

Making = Callable[..., World]
PLAIN = {"websocket": "never"}
MIB = 1 << 20


def killed_gateways(world: World, times: int, size: int, options: dict[str, Any]) -> None:
    world.start()
    client = world.client(up=size, down=size, options=options)
    (opened,) = client.wait("opened")
    for number in range(times):
        client.moved(2 * size // MIB * (number + 1) // (times + 2), seconds=300)
        world.restart_gateway(pause_s=0.3)
    (result,) = client.results(seconds=300)
    assert result["id"] == opened["id"]
    assert sum(one["event"] == "accepted" for one in world.server.events) == 1


@pytest.mark.requirement("TUN-49", "TUN-51", "TUN-63", scaled="3 kills during 10 MB instead of one during 100 MB")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_the_gateway_is_killed_three_times(own_world: Making, websocket: str) -> None:
    killed_gateways(own_world(), 3, 10_000_000, {"websocket": websocket})


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-49", "TUN-51", "TUN-63")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_the_gateway_is_killed_ten_times(own_world: Making, websocket: str) -> None:
    killed_gateways(own_world(), 10, 100_000_000, {"websocket": websocket})


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


@pytest.mark.requirement("TUN-51", "TUN-98")
def test_another_broker_of_the_same_name_does_not_know_the_tunnels(own_world: Making) -> None:
    world = own_world().start()
    client = world.client(up=500_000_000, options=PLAIN)
    client.moved(4)
    world.server.kill()
    world.start_server({})
    (event,) = client.wait("failed")
    assert "ConnectionLost" in event["error"]


@pytest.mark.long  # the grace time is 15 s
@pytest.mark.requirement("TUN-95", "TUN-98")
def test_a_killed_broker_is_an_abort_after_the_grace_time(own_world: Making) -> None:
    world = own_world().start()
    client = world.client(mode="echo", rounds=10_000, pause_s=0.2, options=PLAIN)
    client.wait("echoed")
    world.server.kill()
    began_s = time.monotonic()
    (event,) = client.wait("failed")
    assert time.monotonic() - began_s > 14
    assert "ConnectionLost" in event["error"]
    assert not world.gateway_status()["tunnels"]


@pytest.mark.requirement("TUN-96", "TUN-98", scaled="a limit of 3 s and no hold")
def test_a_killed_client_is_an_abort_after_the_limit(own_world: Making) -> None:
    world = own_world()
    world.start()
    client = world.client(up=500_000_000, options={**PLAIN, "hold_s": 1.0}, set={"INACTIVITY": 3})
    client.moved(2)
    client.kill()
    (event,) = world.server.wait("ended", seconds=150)
    assert "broke off" in event["how"]
    until(lambda: not world.gateway_status()["tunnels"])


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


@pytest.mark.requirement("TUN-9", half="one client process, two brokers")
def test_two_brokers_at_one_gateway_do_not_mix(own_world: Making) -> None:
    world = own_world(servers=["b1", "b2"])
    world.start().start(name="b2")
    clients = [
        world.client(up=1_000_000, down=1_000_000, options=PLAIN, server=server, stream=1000 * (at + 1))
        for at, server in enumerate(("b1", "b2", "b1"))
    ]
    for client in clients:
        client.results()
    accepted = [sum(one["event"] == "accepted" for one in program.events) for program in world.servers]
    assert accepted == [2, 1]


@pytest.mark.requirement("TUN-99", half="200, not 410, as long as the last ACK may have to be repeated (TUN-92)")
def test_an_old_push_after_the_close_makes_nothing(own_world: Making) -> None:
    world = own_world().start()
    with Middlebox(world.address) as box:
        client = world.client(box.address, up=100_000, down=100_000, options=PLAIN)
        client.results()
        until(lambda: not world.gateway_status()["tunnels"])
        events = len(world.server.events)
        old = next(one for one in box.capture.of("push") if any(packet.kind == Kind.DATA for packet in one.pushed))
        answer = httpx.post(
            box.url + old.target, content=old.request_body, headers=old.request_headers, trust_env=False
        )
        assert answer.status_code in (200, 410)
        assert not world.gateway_status()["tunnels"]
        assert len(world.server.events) == events
        world.stop_clients()
