"""Anybody may send anything: no entry point breaks, nobody else's tunnel is disturbed, memory stays (TUN-22)."""

from __future__ import annotations

from math import inf
from random import Random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tunnel.gateway import Limits
from fairlead.tunnel.packets import Kind, Packet, encode, split
from tests.tunnel.gateway.stage import Client, Stage, kinds
from tests.tunnel.gateway.test_growth import sizes

HEADER = Struct(">HHIIIHH")


def random_body(random: Random, ids: list[int]) -> bytes:
    """Noise, or packets that are nearly right."""
    if random.random() < 0.3:
        return random.randbytes(random.choice((0, 1, 19, 20, 24, 60, 500)))
    parts = []
    for _ in range(random.randint(1, 4)):
        payload = random.randbytes(random.choice((0, 1, 8, 40)))
        connection_id = random.choice((*ids, 0, random.getrandbits(32)))
        kind, sequence, window = random.randint(0, 13), random.choice((0, 1, 2, 2**32 - 1)), random.getrandbits(16)
        version = random.choice((2, 2, 2, 1))
        packet = bytearray(encode(kind, connection_id, sequence, window, payload, version))
        if random.random() < 0.3:
            packet[random.randrange(len(packet))] ^= 1 << random.randrange(8)
        if random.random() < 0.1:
            del packet[random.randrange(len(packet)) :]
        parts.append(bytes(packet))
    return b"".join(parts)


def fuzz_pushes(count: int, seed: int) -> None:
    random = Random(seed)
    stage = Stage(Limits(opens_per_s=1e9, ended_max=1000))
    broker = stage.broker()
    bystander, victim = stage.tunnel(), stage.tunnel()
    broker.take()
    sequence = 0
    for number in range(count):
        body = random_body(random, [victim.id, bystander.id])
        token = random.choice((victim.token, victim.token, "", "ff", random.randbytes(32).hex()))
        url_id = random.choice((None, victim.id, victim.id, bystander.id, random.getrandbits(32)))
        reply = stage.gateway.push(random.choice(("b1", "b1", "b2", "")), url_id, token, body, stage.now_s)
        assert reply.status in (200, 400, 401, 403, 410, 503)
        stage.settle()
        if number % 100 == 0:
            sequence += 1
            foreign = [packet for packet in broker.take() if packet.connection_id != victim.id]
            assert not foreign
            assert bystander.push(bystander.data(sequence)).status == 200
            broker.send(bystander.data(sequence))
            assert kinds(bystander.fetch()) == [Kind.DATA]
            assert [packet.connection_id for packet in broker.take()] == [bystander.id]
            if victim.status() != 200:  # it was made to abort itself
                victim = stage.tunnel()
                broker.take()
    there = sizes(stage)
    assert there["tunnels"] <= 2
    assert there["ended"] <= 1000
    assert there["buffered"] == 0


@pytest.mark.requirement("TUN-22", state="scaled", note="10 000 bodies; 100 000 in the long test, over HTTP elsewhere")
def test_random_bodies_disturb_nobody() -> None:
    fuzz_pushes(10_000, 1)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.requirement("TUN-22", state="half", note="100 000 bodies to the machine; over HTTP elsewhere")
def test_100_000_random_bodies_disturb_nobody() -> None:
    fuzz_pushes(100_000, 2)


ids = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**32 - 1]))
numbers = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 25.0, inf, -1.0]))
tokens = st.one_of(st.text(max_size=70), st.just("00" * 32))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300), ids, tokens, st.binary(max_size=300), numbers, st.text(max_size=20))
def test_arbitrary_requests(server: str, number: int, token: str, body: bytes, hold_s: float, instance: str) -> None:
    for name in (server, "b1"):
        stage = Stage(allow_v1=True)
        stage.broker()
        gateway, now_s = stage.gateway, stage.now_s
        gateway.connect(name, body, server, now_s)
        gateway.push(name, number, token, body, now_s, instance=instance)
        gateway.push(name, None, token, body, now_s)
        gateway.pull(name, number, token, hold_s, 1001, now_s, instance=instance)
        gateway.stream(name, number, token, 1002, now_s, instance=instance)
        gateway.on_stream(number, body, now_s)
        gateway.forget(number, now_s)
        stage.settle()
        stage.wait(100)


packets = st.builds(
    lambda kind, number, sequence, window, payload, version: split(
        encode(kind, number, sequence, window, payload, version)
    ).packets[0],
    st.integers(0, 13) | st.integers(0, 2**16 - 1),
    st.sampled_from([0, 1, 2, 3, 2**32 - 1]),
    st.integers(0, 2**32 - 1) | st.integers(0, 3),
    st.integers(0, 2**16 - 1),
    st.binary(max_size=60),
    st.sampled_from([1, 2]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(packets, max_size=6), max_size=8), st.booleans())
def test_arbitrary_packets_of_a_broker(batches: list[list[Packet]], has_introduced_itself: bool) -> None:
    """Its own tunnels may suffer; those of another broker do not."""
    stage = Stage(allow_v1=True)
    other = stage.broker("other")
    bystander = stage.tunnel("other")
    stage.gateway._requests._random_bytes = lambda size: bytes(size - 1) + b"\1"
    broker = stage.broker("b1") if has_introduced_itself else stage.dial()
    if has_introduced_itself:
        for _ in range(3):
            stage.client("b1")
    for batch in batches:
        stage.gateway.on_link(broker.key, batch, stage.now_s)
        stage.settle()
    other.take()
    assert bystander.push(bystander.data(1)).status == 200
    assert [packet.connection_id for packet in other.take()] == [bystander.id]
    for number in range(1, 4):
        Client(stage, "b1", number, ("00" * 31) + "01").pull(25)
    stage.wait(1000)
    assert stage.gateway.status(stage.now_s).tunnels == []
    assert stage.gateway.status(stage.now_s).buffered_bytes == 0
