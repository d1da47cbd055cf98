"""Acknowledgements and windows, as a box in the middle sees them."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.tunnel.packets import Kind, Packet, split
from fairlead.tunnel.rules import Rules
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.middlebox.wire import Wire
from tests.tunnel.requirements.parts import joined, until

N = 16


def acks(box: Middlebox) -> list[Packet]:
    return [packet for packet in box.capture.packets("down") if packet.kind == Kind.ACK]


def numbers(box: Middlebox) -> list[int]:
    return [packet.sequence for packet in box.capture.packets("up") if packet.kind == Kind.DATA]


@pytest.mark.requirement("TUN-70", "TUN-82", "TUN-83", "TUN-80")
async def test_a_reader_that_sleeps_and_wakes(world: World, box: Middlebox) -> None:
    rules = Rules(capacity=N, payload_max=100)
    async with joined(world, box.address, rules=rules) as (client, broker, _):
        for number in range(N - 1):  # one by one: each is acknowledged, and the window shrinks
            await client.write(b"%04d" % number)
            await client.flush()
        await client.write(bytes(10_000))
        await until(lambda: acks(box) and (acks(box)[-1].sequence, acks(box)[-1].window) == (N, 0))
        windows = [packet.window for packet in acks(box)]
        assert windows == sorted(windows, reverse=True)
        assert len(set(windows)) >= N - 1
        await until(lambda: client.status().end.probes >= 2)
        assert max(numbers(box)) == N + 1, "nothing new but the probe"
        assert all(packet.sequence <= N for packet in acks(box))
        probes = client.status().end.probes
        seen = len(acks(box))
        await broker.readexactly(4 * (N - 1), 30)  # the reader wakes
        await until(lambda: len(acks(box)) > seen)
        woken = next(packet for packet in acks(box)[seen:] if packet.window)
        assert woken.sequence in (N, N + 1)
        assert woken.window >= N - 3
        assert client.status().end.probes <= probes + 1, "the window was told without being asked for"
        assert await broker.readexactly(10_000, 30) == bytes(10_000)


@pytest.mark.requirement("TUN-71")
async def test_few_acks_for_a_burst_and_a_soon_one_for_a_single_packet(world: World) -> None:
    rules = Rules(payload_max=1000, transmit_max=2000)
    with Wire(world.link, capture_bytes=4 << 20) as wire:
        async with joined(world, rules=rules, link=wire.address) as (client, broker, _):
            sending = asyncio.ensure_future(client.write(bytes(1_000_000)))
            await broker.readexactly(1_000_000, 60)
            await sending
            await client.flush()
            (kept,) = wire.captured
            from_broker = split(bytes(kept["up"]), 1 << 20).packets
            assert 0 < sum(packet.kind == Kind.ACK for packet in from_broker) < 300
            delays = []
            for _ in range(10):  # the best of several: others use this machine too
                began_s = client.pump.loop.time()
                await client.write(b"x")
                await client.flush()
                delays.append(client.pump.loop.time() - began_s)
            assert min(delays) < 0.02 + 0.1


@pytest.mark.requirement("TUN-73")
async def test_duplicates_and_a_lost_ack(world: World, box: Middlebox) -> None:
    async with joined(world, box.address) as (client, broker, _):
        await client.write(b"first")
        await client.flush()
        lost = box.faults.add(Act.DROP_ANSWER, {"pull"}, times=1)
        await client.write(b"again")
        await client.flush()
        assert lost.done == 1
        count = numbers(box).count(2)
        assert count >= 2, "the ACK was lost: it was sent again"
        twice = box.faults.add(Act.REPLAY, {"push"})
        for number in range(50):
            await client.write(b"%04d" % number)
            await client.flush()
        assert numbers(box).count(2) == count, "and after the second ACK no more"
        assert await broker.readexactly(10 + 4 * 50, 30) == b"firstagain" + b"".join(b"%04d" % n for n in range(50))
        await until(lambda: broker.status().end.duplicates >= 40)
        assert twice.done >= 50


@pytest.mark.long
@pytest.mark.requirement("TUN-77")
async def test_a_lost_packet_is_sent_again_after_the_interval(world: World, box: Middlebox) -> None:
    """A round trip of a second; one packet is damaged twice, which nobody tells the client."""
    box.faults.add(Act.DELAY, {"push"}, seconds=1.0)
    async with joined(world, box.address) as (client, _, _):
        for _ in range(3):
            await client.write(b"x")
            await client.flush()
        rtt_s = client.status().end.rtt_s
        assert rtt_s is not None
        assert 1.0 <= rtt_s < 1.2
        box.faults.add(Act.FLIP, {"push"}, times=2)
        await client.write(b"y")
        await client.flush()
        sent_s = [
            one.began_s
            for one in box.capture.of("push")
            if any(packet.kind == Kind.DATA and packet.sequence == 4 for packet in one.pushed)
        ]
        assert len(sent_s) == 3
        first_s, second_s = sent_s[1] - sent_s[0], sent_s[2] - sent_s[1]
        assert abs(first_s - (2 * rtt_s + 0.25)) < 0.3
        assert 1.7 * first_s < second_s < 2.4 * first_s
