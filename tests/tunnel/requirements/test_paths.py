"""Paths that fail for a while, that are slow, that keep copies; and what can be seen of a tunnel meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.hostile.harness import until as wait_until
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire
from tests.tunnel.requirements.parts import SOON, joined, until

Making = Callable[..., World]
NO_SOCKET = {"websocket": "never"}
BOTH = {"push", "pull"}


@pytest.mark.requirement("TUN-26")
async def test_a_thousand_pulls_through_a_cache(world: World, box: Middlebox) -> None:
    """It keeps every answer it may keep, and gives it again to whoever asks the same."""
    cache = box.faults.add(Act.CACHE)
    async with joined(world, box.address) as (client, broker, _):
        for number in range(1000):
            await broker.write(b"%08d" % number)
            assert await client.readexactly(8, 60) == b"%08d" % number
        pulls = box.capture.of("pull", where=lambda one: bool(one.answer_body))
        assert len(pulls) >= 1000
        bodies = [one.answer_body for one in pulls]
        assert len(set(bodies)) == len(bodies)
        assert (cache.done, box.cached) == (0, {})
        for one in box.capture.of(where=lambda one: one.status == 200):
            for headers in (one.request_headers, one.answer_headers):
                assert ("cache-control", "no-store") in [(name.lower(), value) for name, value in headers]
            kinds = {value for name, value in one.answer_headers if name.lower() == "content-type"}
            assert kinds <= {"application/octet-stream"}
            assert one.method == "POST"


@pytest.mark.requirement("TUN-76")
@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.long), 0.2])
async def test_the_round_trip_that_is_shown(world: World, box: Middlebox, loss: float) -> None:
    box.faults.add(Act.DELAY, {"push"}, seconds=0.3)
    if loss:
        box.faults.add(Act.DROP_REQUEST, {"push"}, share=loss)
    async with joined(world, box.address, rules=SOON) as (client, broker, _):
        for number in range(12):
            await client.write(b"x")
            assert await broker.readexactly(1, 60) == b"x"
            if number == 0:
                await client.flush()
        await client.flush()
        rtt_s = client.status().end.rtt_s
        assert rtt_s is not None
        assert 0.28 <= rtt_s < 0.6


@pytest.mark.requirement("TUN-38")
async def test_pushes_share_a_connection_and_a_stale_one_is_replaced(world: World, box: Middlebox) -> None:
    async with joined(world, box.address) as (client, broker, _):
        for number in range(100):
            await client.write(b"%04d" % number)
            await client.flush()
            assert await broker.readexactly(4) == b"%04d" % number
        pushes, pulls = box.capture.of("push"), box.capture.of("pull")
        assert len(pushes) >= 100
        of_pushes = [one.client_connection for one in pushes]
        assert len(set(of_pushes)) <= 2, "two may be under way"
        assert max(of_pushes.count(one) for one in set(of_pushes)) >= 95
        assert not set(of_pushes) & {one.client_connection for one in pulls[1:]}
        stale = box.faults.add(Act.CLOSE_IDLE, BOTH, every=3)
        for number in range(12):
            await client.write(b"%04d" % number)
            await client.flush()
            assert await broker.readexactly(4) == b"%04d" % number
        assert stale.done >= 4


@pytest.mark.requirement("TUN-102", half="the ends do not tell server id and age of the last pull; the gateway does")
async def test_what_can_be_seen_of_a_tunnel(world: World, box: Middlebox) -> None:
    box.faults.add(Act.REPLAY, {"push"})
    async with joined(world, box.address) as (client, broker, server):
        await client.write(bytes(100_000))
        await broker.readexactly(100_000)
        await client.flush()
        await until(lambda: broker.status().end.duplicates > 0)
        for stream in (client, broker):
            end = stream.status().end
            assert (end.connection_id, end.version) == (client.status().end.connection_id, 2)
            assert end.rtt_s is None or end.rtt_s > 0
            assert end.interval_s > 0
            assert (end.damaged, end.pull_period_s) == (0, 0)
        assert client.status().carrier == "push/pull"
        assert client.status().end.unacknowledged == 0
        assert client.status().end.edge - client.status().end.acknowledged <= 256
        assert (broker.status().end.received, broker.status().end.consumed) == (4, 4)
        assert broker.status().end.window == 256
        (seen,) = [one for one in world.gateway_status()["tunnels"] if one["server"] == server.name]
        assert (seen["connection_id"], seen["version"]) == (client.status().end.connection_id, 2)
        assert (seen["carrier"], seen["crc_failures"], seen["pull_period_s"]) == ("push/pull", 0, 0)
        assert seen["last_pull_s"] < 60
        assert {"up", "down", "age_s", "silence_limit_s", "waiting_packets", "dropped"} <= set(seen)


# -- what takes longer


def transfers(world: World, size: int, pause_s: float) -> None:
    """Both ways at once, and the gateway killed in the middle; without a pause nobody is killed."""
    world.start()
    client = world.client(up=size, down=size, options=NO_SOCKET)
    (opened,) = client.wait("opened")
    if pause_s:
        client.moved(size // 2_000_000)
        world.restart_gateway(pause_s)
    (result,) = client.results(seconds=600)
    assert result["id"] == opened["id"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-49")
def test_a_hundred_megabytes_both_ways_and_a_gateway_gone_for_five_seconds(own_world: Making) -> None:
    transfers(own_world(), 100_000_000, 5.0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-4")
def test_a_hundred_megabytes_both_ways(own_world: Making) -> None:
    transfers(own_world(), 100_000_000, 0.0)


def pages_for(world: World, seconds: float) -> None:
    with Middlebox(world.address) as box:
        client = world.client(box.address, up=20_000_000, down=20_000_000, options=NO_SOCKET)
        client.moved(4)
        page = box.faults.add(Act.ERROR_PAGE)
        time.sleep(seconds)
        assert page.done > 3
        box.faults.remove(page)
        client.results()
        world.stop_clients()


@pytest.mark.long
@pytest.mark.requirement("TUN-35")
def test_pages_for_people_for_20_s(own_world: Making) -> None:
    pages_for(own_world().start(), 20.0)


@pytest.mark.long
@pytest.mark.requirement("TUN-50")
def test_only_503_while_the_broker_has_not_linked_again_for_8_s(own_world: Making) -> None:
    world = own_world()
    world.start_gateway()
    with Wire(world.link) as wire, Middlebox(world.address) as box:
        world.dialled = wire.address
        world.start()
        client = world.client(box.address, up=20_000_000, down=20_000_000, options=NO_SOCKET)
        client.moved(4)
        wire.refusing = True
        assert world.gateway is not None
        world.gateway.kill()
        wire.cut()
        world.start_gateway()
        began_s = time.monotonic()
        time.sleep(8)
        answered = box.capture.of("push", "pull", where=lambda one: one.began_s > began_s and bool(one.status))
        assert {one.status for one in answered} == {503}
        wire.refusing = False
        client.results()
        world.stop_clients()
        world.server.stop()


def soak(world: World, rounds: int, every_s: float) -> None:
    """A proxy that dies and comes back, again and again, under steady talk."""
    world.start()
    with Wire(world.address) as wire:
        client = world.client(wire.address, mode="echo", rounds=10**9, pause_s=0.1)
        client.wait("echoed")
        for _ in range(rounds):
            wire.refusing = True
            wire.cut()
            time.sleep(min(every_s / 10, 3.0))
            wire.refusing = False
            time.sleep(every_s)
            number = client.latest("echoed", {})["number"]
            wait_until(lambda least=number: client.latest("echoed", {})["number"] > least)  # type: ignore[misc]
            assert not client.failed()
        assert world.gateway_status()["counters"]["aborted"] == 0
        world.stop_clients()


@pytest.mark.requirement("TUN-100", scaled="2 times in seconds instead of 60 times in an hour")
def test_a_proxy_that_dies_again_and_again(own_world: Making) -> None:
    soak(own_world(), 2, 1.0)


@pytest.mark.long
@pytest.mark.timeout(4200)
@pytest.mark.requirement("TUN-100")
def test_an_hour_with_a_proxy_that_dies_every_minute(own_world: Making) -> None:
    soak(own_world(), 60, 57.0)
