"""Tunnels that end: given up, closed against a reader who sleeps, replayed afterwards, refused for a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from fairlead.errors import ConnectionLost
from fairlead.tunnel.edge.links import LinkTimes
from fairlead.tunnel.packets import Kind, split
from fairlead.tunnel.rules import Rules
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire
from tests.tunnel.requirements.parts import PLAIN, RawClient, joined, opened, serving, until

Making = Callable[..., World]


# -- giving up


async def given_up(world: World, box: Middlebox, limit_s: float, sleep_s: float) -> None:
    """A black hole for one tunnel, a reader asleep with a live path in another (TUN-79)."""
    rules = Rules(give_up_s=limit_s, capacity=8, transmit_max=8)
    async with (
        serving(world, rules=rules) as server,
        opened(world, server, box.address, PLAIN._replace(rules=rules)) as hole,
        opened(world, server, options=PLAIN._replace(rules=rules)) as asleep,
    ):
        box.faults.add(Act.SWALLOW)
        began_s = time.monotonic()
        writing = [asyncio.ensure_future(one.write(bytes(10_000_000))) for one in (hole.client, hole.broker)]
        stuck = asyncio.ensure_future(asleep.client.write(bytes(2_000_000)))

        async def aborted(number: int) -> None:
            with pytest.raises(ConnectionLost):
                await writing[number]
            assert limit_s * 0.8 < time.monotonic() - began_s < limit_s * 1.2 + 10

        await asyncio.gather(aborted(0), aborted(1))
        await asyncio.sleep(max(0.0, began_s + sleep_s - time.monotonic()))
        assert not stuck.done()
        assert asleep.client.status().end.state.name == asleep.broker.status().end.state.name == "OPEN"
        assert len(await asleep.broker.readexactly(2_000_000, 60)) == 2_000_000
        await stuck


@pytest.mark.requirement("TUN-79", scaled="a limit of 3 s instead of 5 min, asleep for 9 s instead of 10 min")
async def test_a_black_hole_ends_both_ends_and_a_sleeping_reader_nothing(world: World, box: Middlebox) -> None:
    await given_up(world, box, 3.0, 4.0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-79")
async def test_a_black_hole_for_five_minutes(own_world: Making) -> None:
    world = own_world(inactivity_s=3600.0)
    world.start_gateway()
    with Middlebox(world.address) as box:
        await given_up(world, box, 300.0, 600.0)


# -- a close that cannot finish


async def lingering(world: World, linger_s: float, slow_s: float) -> None:
    rules = Rules(linger_s=linger_s, capacity=16, payload_max=1000, transmit_max=64)
    options = PLAIN._replace(rules=rules)
    async with (
        serving(world, rules=rules) as server,
        opened(world, server, options=options) as asleep,
        opened(world, server, options=options) as slow,
    ):

        async def for_ever() -> None:
            await asleep.client.write(bytes(30_000))
            began_s = time.monotonic()
            assert not await asleep.client.close()
            assert linger_s - 0.1 <= time.monotonic() - began_s < linger_s + 10
            await until(lambda: asleep.broker.status().end.state.name == "ABORTED")
            with pytest.raises(ConnectionLost):
                while await asleep.broker.read():
                    pass

        async def slowly() -> None:
            await slow.client.write(bytes(50_000))
            closing = asyncio.ensure_future(slow.client.close())
            got = 0
            while data := await slow.broker.read(1000, 60):
                got += len(data)
                await asyncio.sleep(slow_s / 50)
            assert got == 50_000
            assert await slow.broker.close()
            assert await closing

        await asyncio.gather(for_ever(), slowly())


@pytest.mark.requirement("TUN-93", scaled="a linger time of 1.5 s, and 4 s for the rest, instead of 30 s and 2 min")
async def test_a_close_against_readers_that_sleep_or_are_slow(world: World) -> None:
    await lingering(world, 1.5, 4.0)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.requirement("TUN-93")
async def test_a_close_with_the_usual_linger_time(world: World) -> None:
    await lingering(world, 30.0, 120.0)


# -- afterwards


@pytest.mark.long
@pytest.mark.requirement("TUN-99")
async def test_an_old_push_after_the_close(world: World, box: Middlebox) -> None:
    """For 10 s it may have been on its way: it is taken and means nothing. After that it is told so."""
    async with joined(world, box.address) as (client, broker, server):
        await client.write(b"once")
        assert await broker.readexactly(4, 30) == b"once"
        assert all(await asyncio.gather(client.close(), broker.close()))
        old = next(one for one in box.capture.of("push") if any(packet.kind == Kind.DATA for packet in one.pushed))

        async def replayed() -> httpx.Response:
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                return await http.post(box.url + old.target, content=old.request_body, headers=old.request_headers)

        assert (await replayed()).status_code in (200, 410)
        await asyncio.sleep(10.5)
        answer = await replayed()
        assert answer.status_code == 410
        assert [packet.kind for packet in split(answer.content).packets] == [Kind.CONN_ABORT]
        assert not [one for one in world.gateway_status()["tunnels"] if one["server"] == server.name]
        accepting = asyncio.ensure_future(server.accept())
        await asyncio.sleep(0.1)
        assert not accepting.done(), "the broker's program sees no second tunnel"
        assert await broker.read() == b"", "nor a second event of the first"
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)


# -- limits


@pytest.mark.requirement("TUN-101")
@pytest.mark.parametrize(
    ("status", "limits"),
    [
        (429, {"tunnels_max": 2}),
        (429, {"tunnels_per_address": 2}),
        (429, {"tunnels_per_server": 2}),
        (503, {"opens_per_s": 1.0}),
        (503, {"buffered_bytes_max": 20_000}),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else None,
)
async def test_beyond_a_limit_the_newcomer_is_refused(own_world: Making, status: int, limits: dict[str, float]) -> None:
    world = own_world(**limits)
    world.start_gateway()
    async with serving(world, "b1") as server, AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(RawClient(world, "b1")) for _ in range(3)]
        brokers = []
        for raw in raws[:2]:
            await raw.open()
            brokers.append(await server.accept(30))
        if "buffered_bytes_max" in limits:
            await brokers[0].write(bytes(20_000 - 24))  # with its header it takes all there is
            await until(lambda: world.gateway_status()["buffered_bytes"] >= 20_000)
        refused = await raws[2].connect()
        assert refused.status_code == status
        assert refused.headers["fairlead-reason"]
        for raw, broker in zip(raws[:2], brokers, strict=True):
            assert (await raw.push(raw.packet(Kind.DATA, 1, payload=b"unharmed"))).status_code == 200
            assert await broker.readexactly(8, 30) == b"unharmed"
        for broker in brokers:
            broker.release()


# -- the link's silence


async def silent_link(world: World, times: LinkTimes, limit_s: float) -> None:
    with Wire(world.link) as wire:
        async with serving(world, "b1", link=wire.address, times=times) as server:
            wire.stalled = True
            began_s = time.monotonic()
            await until(lambda: server.linked()[0] == 0, "the broker's notice")
            noticed_s = time.monotonic() - began_s
            await until(lambda: not [one for one in world.gateway_status()["links"] if one["server"] == "b1"])
            assert max(noticed_s, time.monotonic() - began_s) < limit_s + 15
            wire.stalled = False
            wire.cut()


@pytest.mark.requirement("TUN-55", scaled="PING after 0.5 s, lost after 1.5 s, instead of 10 s and 30 s")
async def test_a_link_on_which_nothing_passes_is_noticed_by_both(own_world: Making) -> None:
    world = own_world(ping_s=0.5, link_lost_s=1.5, grace_s=1.0)
    world.start_gateway()
    await silent_link(world, LinkTimes(ping_s=0.5, lost_s=1.5), 1.5)


@pytest.mark.long
@pytest.mark.requirement("TUN-55")
async def test_a_silent_link_is_noticed_within_30_s(own_world: Making) -> None:
    world = own_world()
    world.start_gateway()
    await silent_link(world, LinkTimes(), 30.0)
