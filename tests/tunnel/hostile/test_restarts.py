"""Gateway, broker and client killed in the middle of transfers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fairlead.tunnel.packets import Kind
from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.proxy import Middlebox

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
