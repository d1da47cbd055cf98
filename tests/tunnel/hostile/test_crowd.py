"""Many tunnels through one gateway, and many readers that sleep: memory has its bounds, nobody waits for another."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]
import pytest

from tests.tunnel.hostile.harness import World, until

Making = Callable[..., World]
PLAIN = {"websocket": "never"}
MIB = 1 << 20


def crowd(world: World, tunnels: int, size: int, websocket: str) -> None:
    world.start()
    assert world.gateway is not None
    before = world.gateway.rss(), world.server.rss()
    client = world.client(tunnels=tunnels, up=size, down=size, options={"websocket": websocket}, timeout_s=300)
    results = client.results(tunnels, seconds=600)
    assert len({one["id"] for one in results}) == tunnels
    links = [
        one
        for one in psutil.Process(world.gateway.pid).net_connections("tcp")
        if one.status == "ESTABLISHED" and one.laddr.port == world.link[1]
    ]
    assert len(links) == 1
    after = world.gateway.rss(), world.server.rss()
    per_tunnel = 2 * size + 256 * 1024
    assert after[0] - before[0] < 64 * MIB + tunnels * per_tunnel
    assert after[1] - before[1] < 64 * MIB + tunnels * per_tunnel
    until(lambda: not world.gateway_status()["tunnels"], "an empty table")
    assert world.gateway_status()["buffered_bytes"] == 0


@pytest.mark.requirement("TUN-46")
@pytest.mark.requirement("TUN-9", half="60 tunnels of one process to one broker")
def test_sixty_tunnels_share_one_link(own_world: Making) -> None:
    crowd(own_world(), 60, 100_000, "never")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.requirement("TUN-46")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_five_hundred_tunnels_share_one_link(own_world: Making, websocket: str) -> None:
    crowd(own_world(), 500, 100_000, websocket)


def sleepers(world: World, count: int, seconds: float) -> None:
    """The broker writes to clients that never read; one that reads keeps its speed."""
    rules = {"capacity": 32, "transmit_max": 32}
    world.start(rules)
    assert world.gateway is not None
    sleeping = world.client(tunnels=count, mode="flood", options=PLAIN, rules=rules, timeout_s=300)
    sleeping.wait("flooded", count, seconds=300)
    until(lambda: min(one["window"] for one in sleeping.status()) == 0, "full buffers")
    until(lambda: max(one["window"] for one in sleeping.status()) == 0, "full buffers everywhere")
    programs = (world.gateway, world.server, sleeping)
    level = [program.rss() for program in programs]
    limit_s = time.monotonic() + seconds
    world.client(up=2_000_000, down=2_000_000, options=PLAIN).results()
    while time.monotonic() < limit_s:
        time.sleep(0.5)
    for program, before in zip(programs, level, strict=True):
        assert program.rss() < before + 24 * MIB
    assert max(level) < 150 * MIB + count * 2 * 32 * 32 * 1024
    assert {one["window"] for one in sleeping.status()} == {0}


@pytest.mark.requirement("TUN-85", "TUN-83", "TUN-66", scaled="20 clients for 4 s instead of 50 for 10 min")
def test_readers_that_sleep(own_world: Making) -> None:
    sleepers(own_world(), 20, 4.0)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.requirement("TUN-85", "TUN-83", "TUN-66")
def test_fifty_readers_that_sleep_for_ten_minutes(own_world: Making) -> None:
    sleepers(own_world(), 50, 600.0)


@pytest.mark.requirement("TUN-65")
def test_a_server_that_does_not_read_stops_the_writer(own_world: Making) -> None:
    rules = {"capacity": 16, "transmit_max": 16}
    world = own_world()
    world.start(rules)
    client = world.client(mode="deaf", options=PLAIN, rules=rules)
    until(lambda: client.status() and client.status()[0]["edge"] == client.status()[0]["acknowledged"], "a zero window")
    written = client.latest("written", {"bytes": 0})["bytes"]
    assert written <= (16 + 16 + 2) * 32 * 1024 + 64 * 1024
    time.sleep(1)
    assert client.latest("written", {"bytes": 0})["bytes"] <= written + 64 * 1024
    assert not client.failed()


@pytest.mark.requirement("TUN-101", half="tunnels in total and opens per second")
def test_limits_hurt_only_newcomers(own_world: Making) -> None:
    world = own_world(tunnels_max=3).start()
    first = world.client(tunnels=3, mode="echo", rounds=10**6, pause_s=0.05, options=PLAIN)
    first.wait("opened", 3)
    late = world.client(up=1000, options=PLAIN, timeout_s=2)
    (event,) = late.wait("failed")
    assert "TooMany" in event["error"] or "limit" in event["error"] or "many" in event["error"]
    first.wait("echoed", number=first.latest("echoed", {"number": 0})["number"] + 3)
    assert not first.failed()
