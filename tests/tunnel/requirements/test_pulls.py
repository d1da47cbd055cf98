"""Pulls, and what waits for them: when they come, how long they are held, and who is taken for dead.

Each behaviour that needs long times is a function of those times: run with short ones here, and as the requirement
has them among the long tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest

from fairlead.tunnel.packets import Kind
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act, Exchange
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.requirements.parts import PLAIN, SOON, RawClient, joined, opened, serving, until

Making = Callable[..., World]


def pulls(box: Middlebox, since_s: float = 0.0) -> list[Exchange]:
    return box.capture.of("pull", where=lambda one: one.began_s >= since_s)


def gaps(exchanges: list[Exchange]) -> list[float]:
    return [later.began_s - one.began_s for one, later in pairwise(exchanges)]


# -- the period


class Period(NamedTuple):
    """`first` is the client's, `then` what the broker asks for later."""

    first: int
    then: int


async def spaced_pulls(world: World, box: Middlebox, period: Period) -> None:
    options = PLAIN._replace(pull_period_s=period.first)
    async with joined(world, box.address, options=options) as (client, broker, _):
        await until(lambda: client.status().end.unacknowledged == 0)
        await client.write(b"x")  # everything about the period has been said and acknowledged
        await client.flush()
        began_s = time.monotonic()
        await until(lambda: len(pulls(box, began_s)) >= 3)
        idle = gaps(pulls(box, began_s)[1:])
        assert all(period.first - 0.2 < gap < period.first + 2 for gap in idle), idle
        # A burst of a thousand packets: pulls follow each other while there is something.
        began_s, size = time.monotonic(), 1000 * broker.pump.end.rules.payload_max
        sending = asyncio.ensure_future(broker.write(bytes(size)))
        await client.readexactly(size)
        await sending
        full = [one for one in pulls(box, began_s) if any(packet.kind == Kind.DATA for packet in one.pulled)]
        after = [later for one, later in pairwise(pulls(box)) if one in full]
        assert len(full) > 3
        paused = [later for one, later in zip(full, after, strict=False) if later.began_s - one.ended_s > 0.5]
        assert len(paused) <= len(full) / 4, "no pause after an answer with packets, while the machine is not slow"
        # The broker wants another period (TUN-86).
        broker.set_option(Option.PULL_PERIOD, period.then)
        await until(lambda: client.status().end.pull_period_s == period.then)
        began_s = time.monotonic()
        await until(lambda: len(pulls(box, began_s)) >= 3)
        idle = gaps(pulls(box, began_s)[1:])
        assert all(period.then - 0.2 < gap < period.then + 2 for gap in idle), idle


@pytest.mark.requirement("TUN-30", "TUN-86", scaled="1 s instead of 5 s and 7 s")
async def test_the_pull_period(world: World, box: Middlebox) -> None:
    await spaced_pulls(world, box, Period(1, 1))


@pytest.mark.long
@pytest.mark.requirement("TUN-30", "TUN-86")
async def test_a_pull_period_of_5_s_and_then_7_s(world: World, box: Middlebox) -> None:
    await spaced_pulls(world, box, Period(5, 7))


# -- the hold time


async def held_pulls(world: World, box: Middlebox, hold_s: float, cut_s: float) -> None:
    async with joined(world, box.address, options=PLAIN._replace(hold_s=hold_s)) as (client, broker, _):
        await until(lambda: client.status().end.unacknowledged == 0)
        began_s = time.monotonic()
        (held, *_) = await until(lambda: [one for one in pulls(box, began_s) if one.ended_s], seconds=100)
        assert (held.status, held.answer_body) == (200, b"")
        assert hold_s - 0.2 < held.ended_s - held.began_s < hold_s + 2
        delays = []
        for _ in range(5):  # it is the best of several: others use this machine too
            began_s = time.monotonic()
            await broker.write(b"!")
            assert await client.read() == b"!"
            delays.append(time.monotonic() - began_s)
        assert min(delays) < 0.1
        box.faults.add(Act.CUT, {"pull"}, seconds=cut_s)
        began_s = time.monotonic()
        await until(lambda: [one for one in pulls(box, began_s) if one.ended_s - one.began_s > cut_s / 4], seconds=100)
        await broker.write(b"still there")
        assert await client.readexactly(11, 60) == b"still there"
        cut = [one for one in pulls(box, began_s) if one.fate == "cut"]
        assert 1 <= len(cut) <= 6


@pytest.mark.requirement("TUN-31", scaled="a hold time of 2 s, cut at 1.4 s")
async def test_pulls_are_held(world: World, box: Middlebox) -> None:
    await held_pulls(world, box, 2.0, 1.4)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.requirement("TUN-31")
async def test_pulls_are_held_for_25_s(world: World, box: Middlebox) -> None:
    await held_pulls(world, box, 25.0, 10.0)


@pytest.mark.requirement("TUN-32")
async def test_the_newest_pull_wins(world: World) -> None:
    async with serving(world) as server, RawClient(world, server.name) as raw:
        await raw.open()
        broker = await server.accept(30)
        frozen = asyncio.ensure_future(raw.pull(25))
        await until(lambda: [one for one in world.gateway_status()["tunnels"] if one["last_pull_s"] == 0])
        second = asyncio.ensure_future(raw.pull(25))
        assert await frozen == [], "answered empty as soon as there is another"
        await broker.write(b"for the second")
        found = await second
        assert [packet.payload for packet in found if packet.kind == Kind.DATA] == [b"for the second"]
        broker.release()


# -- silence on either side


async def reached_after(world: World, silence_s: float, period_s: int) -> None:
    """A client that says nothing for so long; then the broker speaks (TUN-7)."""
    options = PLAIN._replace(pull_period_s=period_s)
    async with joined(world, options=options) as (client, broker, _):
        await asyncio.sleep(silence_s)
        began_s = time.monotonic()
        await broker.write(b"wake up")
        assert await client.readexactly(7, 60) == b"wake up"
        assert time.monotonic() - began_s < period_s + 1


@pytest.mark.requirement("TUN-7", scaled="3 s of silence instead of 10 minutes")
async def test_a_silent_client_is_reached(world: World) -> None:
    await asyncio.gather(*(reached_after(world, 3.0, period_s) for period_s in (0, 1)))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("TUN-7")
async def test_a_client_that_was_silent_for_ten_minutes_is_reached(world: World) -> None:
    await asyncio.gather(*(reached_after(world, 600.0, period_s) for period_s in (0, 5)))


async def blocked_pushes(world: World, box: Middlebox, seconds: float) -> None:
    rules = Rules(capacity=1000, transmit_max=32)
    async with joined(world, box.address, rules=rules, broker=Rules()) as (client, broker, _):
        hole = box.faults.add(Act.SWALLOW, {"push"})
        writing = asyncio.ensure_future(client.write(bytes(3_000_000)))
        limit_s = time.monotonic() + seconds
        number = 0
        while time.monotonic() < limit_s:
            await broker.write(b"%08d" % number)
            assert await client.readexactly(8, 30) == b"%08d" % number
            number += 1
            await asyncio.sleep(0.05)
        assert hole.done
        assert not writing.done()
        box.faults.remove(hole)
        assert len(await broker.readexactly(3_000_000, 60)) == 3_000_000
        await writing


@pytest.mark.requirement("TUN-28", scaled="2 s instead of 10 s")
async def test_data_keep_arriving_while_no_push_passes(world: World, box: Middlebox) -> None:
    await blocked_pushes(world, box, 2.0)


@pytest.mark.long
@pytest.mark.requirement("TUN-28")
async def test_data_keep_arriving_while_no_push_passes_for_ten_seconds(world: World, box: Middlebox) -> None:
    await blocked_pushes(world, box, 10.0)


# -- what waits at the gateway


async def waits_once(world: World, pause_s: float, rules: Rules) -> None:
    async with serving(world, rules=rules) as server, RawClient(world, server.name) as raw:
        await raw.open(window=100)
        broker = await server.accept(30)
        for number in range(1, 11):
            await raw.push(raw.packet(Kind.DATA, number, payload=b"x"))
            await broker.write(b"%d" % number)
            assert await broker.readexactly(1, 30) == b"x"
        await asyncio.sleep(pause_s)
        await until(lambda: broker.status().end.resends >= 3)
        found = await raw.pull()
        numbers = [packet.sequence for packet in found if packet.kind == Kind.DATA]
        assert len(numbers) == len(set(numbers))
        assert max(numbers) == len(numbers)
        assert [packet.sequence for packet in found if packet.kind == Kind.ACK] == [10]
        broker.release()


@pytest.mark.requirement("TUN-67", scaled="2 s instead of 20 s, with resends all the time")
async def test_what_waits_for_a_pull_waits_once(world: World) -> None:
    await waits_once(world, 2.0, SOON)


@pytest.mark.long
@pytest.mark.requirement("TUN-67")
async def test_what_waits_for_20_s_waits_once(world: World) -> None:
    await waits_once(world, 20.0, Rules())


# -- long periods: nothing is sent twice, nobody is taken for dead


async def sparse(world: World, box: Middlebox, period_s: int, rounds: int) -> None:
    """The configured limit is half a period: the one in force counts with the period (TUN-97)."""
    options = PLAIN._replace(pull_period_s=period_s, hold_s=1.0)
    async with serving(world) as server, opened(world, server, box.address, options) as (client, broker, _):
        for number in range(rounds):
            await client.write(b"%04d" % number)
            assert await broker.readexactly(4, 300) == b"%04d" % number
            await broker.write(b"%04d" % number)
            assert await client.readexactly(4, 300) == b"%04d" % number
            await asyncio.sleep(period_s / 3)
        assert client.status().end.resends == broker.status().end.resends == 0
        up = [packet.sequence for packet in box.capture.packets("up") if packet.kind == Kind.DATA]
        assert len(up) == len(set(up)) == rounds
        (seen,) = [one for one in world.gateway_status()["tunnels"] if one["server"] == server.name]
        assert seen["silence_limit_s"] >= 3 * period_s + 1


@pytest.mark.requirement("TUN-78", "TUN-97", scaled="a period of 2 s and a limit of 1 s instead of 20 s and 10 s")
async def test_with_a_long_period_nothing_is_sent_twice_and_nobody_is_dead(own_world: Making) -> None:
    world = own_world(inactivity_s=1.0)
    world.start_gateway()
    with Middlebox(world.address) as box:
        await sparse(world, box, 2, 3)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.requirement("TUN-78", "TUN-97")
async def test_a_pull_period_of_20_s(own_world: Making) -> None:
    world = own_world(inactivity_s=10.0)
    world.start_gateway()
    with Middlebox(world.address) as box:
        await sparse(world, box, 20, 6)


async def remembered(world: World, period_s: int, silence_s: float) -> None:
    """The gateway comes back, and takes the period and the limit from LINK_INIT (TUN-87)."""
    options = PLAIN._replace(pull_period_s=period_s, hold_s=1.0)
    async with joined(world, options=options) as (client, broker, _):
        await client.write(b"x")
        await client.flush()
        world.restart_gateway()
        await asyncio.sleep(silence_s)
        await client.write(b"alive")
        assert await broker.readexactly(6, 120) == b"xalive"
        assert world.gateway_status()["counters"]["aborted"] == 0


@pytest.mark.requirement("TUN-87", scaled="a period of 3 s and a default limit of 2 s instead of 30 s and 20 s")
async def test_the_period_is_known_after_a_restart(own_world: Making) -> None:
    world = own_world(inactivity_s=2.0)
    world.start_gateway()
    await remembered(world, 3, 4.0)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.requirement("TUN-87")
async def test_a_period_of_30_s_is_known_after_a_restart(own_world: Making) -> None:
    world = own_world(inactivity_s=20.0)
    world.start_gateway()
    await remembered(world, 30, 45.0)
