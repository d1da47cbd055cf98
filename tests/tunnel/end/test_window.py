"""Flow control: what may be sent, what is told, what is asked."""

from __future__ import annotations

import pytest

from fairlead.tunnel.end import Role
from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.rules import Rules
from tests.tunnel.end.rig import Pair, ack, data, packet, taken

HUNDRED = Rules(capacity=100, transmit_max=1000, payload_max=10)


def numbers(packets: list[Packet]) -> list[int]:
    return [found.sequence for found in packets if found.kind == Kind.DATA]


def send(pair: Pair, count: int) -> None:
    """So many packets, each in a sending of its own body; the ACKs stay away."""
    for _ in range(count):
        assert pair.client.write(bytes(10), pair.now_s) == 10
        pair.carry(pair.client)


@pytest.mark.requirement("TUN-81")
@pytest.mark.parametrize(("more", "window"), [(20, 40), (40, 60)], ids=["4a", "4b"])
def test_the_worked_example(more: int, window: int) -> None:
    pair = Pair(HUNDRED)
    client, broker = pair.client, pair.broker
    assert (client.status(0).edge, broker.status(0).window) == (100, 100)
    send(pair, 70)
    status = broker.status(0)
    assert (status.received, status.consumed, status.window) == (70, 0, 30)
    assert [(found.sequence, found.window) for found in pair.carry(broker)] == [(70, 30)]
    assert client.status(0).edge == 100

    assert len(broker.read(200, 0)) == 200
    # 20 of 100 is less than a quarter: told with the next ACK.
    assert not broker.has_packets(0)
    assert broker.status(0).window == 50
    send(pair, 30)
    assert [(found.sequence, found.window) for found in pair.carry(broker)] == [(100, 20)]
    assert client.status(0).edge == 120

    broker.read(more * 10, 0)
    client.write(b"a", 0)
    client.take_packets(1 << 20, 0)  # lost
    broker.on_packets([data(100)], 0)  # a duplicate asks for the ACK as it stands
    assert [(found.sequence, found.window) for found in pair.carry(broker)] == [(100, window)]
    assert client.status(0).edge == 100 + window


@pytest.mark.requirement("TUN-81")
def test_step_two_of_the_example_tells_fifty() -> None:
    pair = Pair(HUNDRED)
    send(pair, 70)
    pair.broker.read(200, 0)
    assert [(found.sequence, found.window) for found in pair.carry(pair.broker)] == [(70, 50)]
    assert pair.client.status(0).edge == 120


@pytest.mark.requirement("TUN-19")
@pytest.mark.parametrize("size", [1, 30_000])
def test_the_window_counts_packets_not_bytes(size: int) -> None:
    pair = Pair(Rules(capacity=100), is_open=False)
    (hello,) = pair.carry(pair.broker)
    assert (hello.kind, hello.window) == (Kind.CONN_INIT_ACK, 100)
    pair.carry(pair.client)
    pair.broker.on_packets([data(number, bytes(size)) for number in range(1, 71)], 0)
    assert [(found.sequence, found.window) for found in taken(pair.broker, 0)] == [(70, 30)]


@pytest.mark.requirement("TUN-19")
def test_a_capacity_above_what_the_field_holds_is_told_as_the_most_it_holds() -> None:
    pair = Pair(Rules(capacity=100_000))
    assert pair.client.status(0).edge == 65535


@pytest.mark.requirement("TUN-58")
@pytest.mark.requirement("TUN-80")
@pytest.mark.parametrize("role", Role)
def test_no_more_than_the_announced_capacity_is_sent_before_the_first_ack(role: Role) -> None:
    pair = Pair(Rules(capacity=5, payload_max=10))
    sender, _ = pair.by_role(role)
    sender.write(bytes(1000), 0)
    assert numbers(taken(sender, 0)) == [1, 2, 3, 4, 5]
    assert not sender.has_packets(0)
    sender.on_packets([ack(3, 4)], 0)
    assert numbers(taken(sender, 0)) == [6, 7]


@pytest.mark.requirement("TUN-80")
def test_what_is_held_beyond_a_gap_is_inside_the_window() -> None:
    pair = Pair(Rules(capacity=10))
    pair.broker.on_packets([data(1), data(2), data(4), data(5), data(10)], 0)
    assert [(found.sequence, found.window) for found in taken(pair.broker, 0)] == [(2, 8)]


@pytest.mark.requirement("TUN-75")
def test_an_overtaken_ack_takes_nothing_back() -> None:
    pair = Pair(HUNDRED)
    pair.client.write(bytes(1000), 0)
    assert len(taken(pair.client, 0)) == 100
    pair.client.on_packets([ack(70, 50), ack(70, 0), ack(60, 40)], 0)
    status = pair.client.status(0)
    assert (status.acknowledged, status.edge, status.unacknowledged) == (70, 120, 30)
    pair.client.write(bytes(1000), 0)
    assert numbers(taken(pair.client, 0)) == list(range(101, 121))


def test_an_ack_of_what_was_never_sent_is_dropped() -> None:
    pair = Pair(HUNDRED)
    pair.client.write(bytes(30), 0)
    taken(pair.client, 0)
    pair.client.on_packets([ack(4, 1000), ack(1 << 30, 1000)], 0)
    status = pair.client.status(0)
    assert (status.acknowledged, status.edge, status.dropped) == (0, 100, 2)


@pytest.mark.requirement("TUN-82")
@pytest.mark.parametrize(
    ("unread", "read", "is_told"), [(100, 1, True), (99, 24, False), (99, 25, True), (40, 40, True)]
)
def test_room_is_announced_when_there_was_none_or_a_quarter_of_it_is_new(unread: int, read: int, is_told: bool) -> None:
    pair = Pair(HUNDRED)
    pair.broker.on_packets([data(number) for number in range(1, unread + 1)], 0)
    assert len(taken(pair.broker, 0)) == 1
    pair.broker.read(read, 0)
    assert pair.broker.has_packets(0) == is_told
    if is_told:
        assert [(found.sequence, found.window) for found in taken(pair.broker, 0)] == [(unread, 100 - unread + read)]


def test_a_packet_is_consumed_with_its_last_byte() -> None:
    pair = Pair(Rules(capacity=4))
    pair.broker.on_packets([data(1, b"abcdef"), data(2, b"gh")], 0)
    for expected, left in ((b"ab", 8 - 2), (b"cde", 3)):
        assert pair.broker.read(len(expected), 0) == expected
        assert (pair.broker.status(0).consumed, pair.broker.readable()) == (0, left)
    assert pair.broker.read(2, 0) == b"fg"
    assert pair.broker.status(0).consumed == 1
    assert pair.broker.read(100, 0) == b"h"
    assert pair.broker.status(0).consumed == 2
    assert pair.broker.read(100, 0) == b""


@pytest.mark.requirement("TUN-83")
@pytest.mark.requirement("TUN-84")
def test_a_zero_window_lets_only_the_probe_out_and_that_always_with_one_number() -> None:
    pair = Pair(Rules(capacity=4, payload_max=10))
    client, broker = pair.client, pair.broker
    client.write(bytes(1000), 0)
    pair.settle()
    assert client.status(0).unacknowledged == 0
    assert broker.status(0).window == 0
    probes = []
    for _ in range(6):
        assert client.next_at() - pair.now_s == pytest.approx(client.status(0).interval_s)
        pair.go_to(client.next_at())
        probes += pair.carry(client)
        assert [(found.kind, found.sequence, found.window) for found in pair.carry(broker)] == [(Kind.ACK, 4, 0)]
    assert {found.raw for found in probes} == {probes[0].raw}
    assert numbers(probes) == [5] * 6

    # The window update is lost; the next probe brings the window, and is taken.
    broker.read(20, pair.now_s)
    assert len(taken(broker, pair.now_s)) == 1
    pair.go_to(client.next_at())
    assert numbers(pair.carry(client)) == [5]
    pair.settle()
    pair.go_to(broker.next_at())
    pair.settle()
    assert broker.status(0).received == 6
    assert broker.status(0).window == 0


@pytest.mark.requirement("TUN-84")
def test_a_close_behind_a_zero_window_is_probed_too() -> None:
    pair = Pair(Rules(capacity=1, payload_max=10))
    pair.client.write(bytes(10), 0)
    pair.settle()
    pair.client.close(0)
    assert taken(pair.client, 0) == []
    pair.go_to(pair.client.next_at())
    assert [found.kind for found in taken(pair.client, pair.now_s)] == [Kind.CONN_CLOSE]


@pytest.mark.requirement("TUN-72")
def test_acks_flow_when_both_windows_are_zero() -> None:
    pair = Pair(Rules(capacity=2, payload_max=1))
    pair.client.write(b"abc", 0)
    pair.broker.write(b"def", 0)
    pair.settle()
    assert pair.client.status(0).window == pair.broker.status(0).window == 0
    pair.client.on_packets([data(1)], 0.1)
    pair.broker.on_packets([data(1)], 0.1)
    assert [found.kind for found in taken(pair.client, 0.1)] == [Kind.ACK]
    assert [found.kind for found in taken(pair.broker, 0.1)] == [Kind.ACK]


@pytest.mark.requirement("TUN-65")
@pytest.mark.parametrize("role", Role)
def test_writing_waits_when_the_transmit_buffer_is_full_and_goes_on_when_the_other_end_reads(role: Role) -> None:
    pair = Pair(Rules(capacity=4, transmit_max=10, payload_max=100))
    sender, receiver = pair.by_role(role)
    assert sender.room() == 1000
    assert sender.write(bytes(5000), 0) == 1000
    assert sender.write(b"x", 0) == 0
    pair.settle()  # four packets are received, six wait
    assert sender.write(bytes(5000), 0) == 400
    pair.settle()
    assert sender.room() == 0
    receiver.read(200, 0)
    pair.settle()
    assert sender.room() == 200


@pytest.mark.requirement("TUN-66")
def test_an_end_holds_no_more_than_its_capacity_whatever_comes() -> None:
    pair = Pair(Rules(capacity=8))
    pair.broker.on_packets([data(number, b"ab") for number in (*range(20, 1, -1), 1, 30, 1 << 31, (1 << 32) - 1)], 0)
    assert pair.broker.readable() == 16
    assert pair.broker.status(0).window == 0
    assert pair.broker.status(0).dropped == 14


def test_options_take_a_place_in_the_window_and_give_it_back_at_once() -> None:
    pair = Pair(Rules(capacity=1))
    pair.client.on_packets([packet(Kind.CONN_OPTION, 1, payload=bytes(8))], 0)
    assert pair.client.status(0).window == 1
    assert [(found.sequence, found.window) for found in taken(pair.client, 0)] == [(1, 1)]
