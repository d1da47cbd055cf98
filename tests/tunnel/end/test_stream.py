"""The byte stream as programs see it."""

from __future__ import annotations

import tracemalloc
from itertools import count
from math import inf
from random import Random

import pytest

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import Kind, split
from fairlead.tunnel.rules import Rules
from tests.tunnel.end.model import Plan, Work, run
from tests.tunnel.end.rig import ID, Pair, taken


@pytest.mark.requirement("TUN-5")
@pytest.mark.requirement("TUN-3")
@pytest.mark.parametrize("sender", [0, 1], ids=["client", "broker"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_thousand_chunks_under_loss_duplication_and_reordering(sender: int, version: int) -> None:
    write = Work(writes=1000, chunk=400, write_gap_s=0.01, closes_at_s=0.0)
    works = (write, Work(writes=0, read_chunk=333)) if sender == 0 else (Work(writes=0, read_chunk=333), write)
    world = run(
        Plan(
            version=version,
            capacities=(64, 64),
            payload_max=300,
            loss=0.1,
            duplicate=0.1,
            jitter_s=0.2,
            heals_at_s=inf,
            works=works,
        )
    )
    assert len(world.sides[1 - sender].read) > 100_000
    assert world.sides[1 - sender].read == world.sides[sender].written


@pytest.mark.requirement("TUN-20")
def test_one_bit_in_every_fiftieth_packet() -> None:
    work = Work(writes=500, chunk=100, write_gap_s=0.01, closes_at_s=0.0)
    flips = {}
    for flip in (0.0, 0.02):
        world = run(Plan(payload_max=100, flip=flip, heals_at_s=inf, works=(work, work)))
        flips[flip] = [(side.flips, side.end.status(0).damaged) for side in world.sides]
        assert all(side.read == side.other.written for side in world.sides)
    assert flips[0.0] == [(0, 0), (0, 0)]
    assert all(made == seen > 0 for made, seen in flips[0.02])


@pytest.mark.requirement("TUN-18")
@pytest.mark.parametrize("first", [2**32 - 10, 2**31 - 50])
def test_numbers_wrap_round(first: int) -> None:
    work = Work(writes=100, chunk=1, write_gap_s=0.05, closes_at_s=0.0)
    world = run(Plan(first_sequence=first, loss=0.2, jitter_s=0.1, heals_at_s=inf, works=(work, work)))
    for side in world.sides:
        assert len(side.read) == 100
        assert side.end.state is State.CLOSED
    if first > 2**31:
        assert world.sides[0].end.status(0).received < 200


@pytest.mark.requirement("TUN-24", state="half", note="bytes of these sizes; messages are tested with the client")
@pytest.mark.parametrize(("size", "times"), [(10_000_000, 1), (10, 10_000)])
def test_long_and_short_writes_pass(size: int, times: int) -> None:
    pair = Pair()
    whole = Random(1).randbytes(size * times)
    read = bytearray()
    position = 0
    while len(read) < len(whole):
        for _ in range(50):
            position += pair.client.write(whole[position : min(position + size, len(whole))], pair.now_s)
        pair.carry(pair.client)
        read += pair.broker.read(1 << 20, pair.now_s)
        pair.carry(pair.broker)
        pair.now_s += 0.001
        assert pair.now_s < 60
    assert read == whole


def test_what_gathers_before_it_is_taken_travels_together() -> None:
    pair = Pair(Rules(payload_max=1000))
    for number in range(500):
        pair.client.write(b"%03d" % number, 0)
    assert [len(found.payload) for found in taken(pair.client, 0)] == [1000, 500]


@pytest.mark.parametrize("sizes", [(5000, 1, 5000), (1, 5000, 1, 1, 9000), (4096,), (40_000,), (10, 4095, 4096, 4097)])
def test_short_and_long_writes_keep_their_order(sizes: tuple[int, ...]) -> None:
    pair = Pair(Rules(payload_max=3000))
    parts = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    for part in parts:
        assert pair.client.write(part, 0) == len(part)
    assert b"".join(found.payload for found in taken(pair.client, 0)) == b"".join(parts)


def test_a_driver_s_room_is_kept_to_unless_one_packet_is_longer() -> None:
    pair = Pair(Rules(payload_max=1000))
    pair.client.write(bytes(10_000), 0)
    assert pair.client.take_packets(0, 0) == []
    assert [len(raw) for raw in pair.client.take_packets(1, 0)] == [1024]
    assert [len(raw) for raw in pair.client.take_packets(3000, 0)] == [1024, 1024]
    assert pair.client.has_packets(0)


def test_many_short_writes_cost_their_bytes_and_not_much_more() -> None:
    pair = Pair(Rules(transmit_max=64))
    tracemalloc.start()
    try:
        written = sum(pair.client.write(b"ab", 0) for _ in range(30_000))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written == 60_000
    assert used < 3 * written


def test_reading_byte_by_byte_does_not_copy_the_packet_each_time() -> None:
    pair = Pair()
    pair.client.write(bytes(1 << 15), 0)
    pair.settle()
    tracemalloc.start()
    try:
        for _ in range(1000):
            assert pair.broker.read(1, 0) == b"\0"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000


def test_timers_of_many_packets_cost_no_more_than_a_few_steps_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the next timer looks at queues, not at packets."""
    pair = Pair(Rules(capacity=5000, transmit_max=5000, payload_max=1))
    looked = count()
    transmit = pair.client._transmit
    right = transmit._is_waiting
    monkeypatch.setattr(transmit, "_is_waiting", lambda at, sent: (next(looked), right(at, sent))[1])
    for number in range(4000):
        pair.client.write(b"x", number * 1e-4)
        taken(pair.client, number * 1e-4)
        pair.client.next_at()
    pair.client.on_time(10.0)
    assert len(taken(pair.client, 10.0)) == 4000
    assert next(looked) < 4 * 4000


@pytest.mark.requirement("TUN-102", state="half", note="server id, carrier and age of the last pull are the driver's")
def test_the_status_shows_what_happened() -> None:
    pair = Pair(Rules(capacity=10, payload_max=1, pull_period_s=2))
    pair.client.write(b"abcdefgh", 0)
    pair.carry(pair.client, lambda found: found.sequence != 8)
    pair.broker.read(3, 0)
    pair.now_s = 0.5
    pair.carry(pair.broker)
    pair.client.on_damaged(2)
    pair.broker.on_packets([split(taken(pair.client, 9)[0].raw).packets[0]] * 2, 9)
    client, broker = pair.client.status(9), pair.broker.status(9)
    assert (client.connection_id, client.version, client.role, client.state) == (ID, 2, Role.CLIENT, State.OPEN)
    assert (broker.received, broker.consumed, broker.window, broker.readable_bytes) == (8, 3, 5, 5)
    assert (client.edge, client.acknowledged, client.unacknowledged, client.resends) == (13, 7, 1, 1)
    assert (client.damaged, broker.duplicates) == (2, 1)
    assert (client.rtt_s, client.interval_s, client.pull_period_s) == (0.5, 2.25, 2)
    assert (client.age_s, client.silent_s) == (9, 8.5)


def test_an_end_of_version_1_speaks_version_1() -> None:
    pair = Pair(version=1)
    pair.client.write(b"x", 0)
    packets = pair.carry(pair.client)
    assert [(found.version, found.kind, len(found.raw)) for found in packets] == [(1, Kind.DATA, 21)]
    end: End = pair.broker
    assert end.read(9, 0) == b"x"
