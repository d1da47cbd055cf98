"""Acknowledgement and order."""

from __future__ import annotations

from itertools import permutations

import pytest

from fairlead.tunnel.end import End, Role
from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.rules import Rules
from tests.tunnel.end.rig import ID, Pair, ack, data, packet, taken

LETTERS = {number: bytes([96 + number]) for number in range(1, 27)}


def letters(*numbers: int) -> list[Packet]:
    return [data(number, LETTERS[number]) for number in numbers]


def acks(end: End, now_s: float = 0.0) -> list[int]:
    return [found.sequence for found in taken(end, now_s) if found.kind == Kind.ACK]


@pytest.mark.requirement("TUN-69")
def test_the_highest_number_without_a_gap_is_acknowledged() -> None:
    end = Pair().broker
    end.on_packets(letters(1, 2, 4, 5), 0)
    assert acks(end) == [2]
    end.on_packets(letters(3), 0)
    assert acks(end) == [5]


@pytest.mark.requirement("TUN-70")
def test_receipt_is_acknowledged_and_reading_announced() -> None:
    pair = Pair(Rules(capacity=10, payload_max=1))
    pair.client.write(b"abcdefghij", 0)
    told = []
    for _ in range(5):
        pair.broker.on_packets(taken(pair.client, pair.now_s, limit=80), pair.now_s)  # two packets
        pair.now_s += 0.02
        told += [(found.sequence, found.window) for found in taken(pair.broker, pair.now_s)]
    assert told == [(2, 8), (4, 6), (6, 4), (8, 2), (10, 0)]  # the reader is asleep
    pair.broker.read(100, 0)
    assert [(found.sequence, found.window) for found in taken(pair.broker, pair.now_s)] == [(10, 10)]


@pytest.mark.requirement("TUN-71")
def test_a_burst_is_acknowledged_by_few_and_a_single_packet_within_20_ms() -> None:
    end = Pair(Rules(capacity=2000)).broker
    count = 0
    for number in range(1, 1001):
        end.on_packets([data(number)], number * 1e-6)
        count += len(acks(end, number * 1e-6))
    assert count == 1000 // 8

    end.on_packets([data(1001)], 5.0)
    assert not end.has_packets(5.0)
    assert end.next_at() == pytest.approx(5.02)
    assert acks(end, end.next_at()) == [1001]


@pytest.mark.requirement("TUN-71")
def test_an_ack_goes_with_the_next_packet_that_goes_anyway() -> None:
    end = Pair().broker
    end.on_packets(letters(1), 0)
    assert not end.has_packets(0)
    end.write(b"answer", 0)
    assert [found.kind for found in taken(end, 0)] == [Kind.ACK, Kind.DATA]
    assert end.next_at() > 0.02


@pytest.mark.requirement("TUN-71")
@pytest.mark.parametrize(
    ("came", "then", "number"),
    [
        ([1], 1, 1),  # a duplicate
        ([1, 3], 3, 1),  # one of what is held
        ([1], 3, 1),  # a gap
        ([1, 3], 2, 3),  # the gap closes
        ([1, 3, 5], 2, 3),  # one of two closes
        ([1], 12, 1),  # beyond the window
    ],
)
def test_what_is_odd_is_acknowledged_at_once(came: list[int], then: int, number: int) -> None:
    end = Pair(Rules(capacity=10)).broker
    end.on_packets([data(n) for n in came], 0)
    acks(end, 0.02)
    end.on_packets([data(then)], 1)
    assert acks(end, 1) == [number]


def test_one_ack_is_taken_and_it_is_the_newest() -> None:
    end = Pair(Rules(capacity=20)).broker
    end.on_packets(letters(1, 1, 3, 3, 2), 0)
    end.read(2, 0)
    end.on_packets(letters(4, 9), 0)
    assert [(found.sequence, found.window) for found in taken(end, 0)] == [(4, 18)]
    assert not end.has_packets(100)


@pytest.mark.requirement("TUN-72")
def test_an_ack_takes_no_number_and_is_not_acknowledged() -> None:
    pair = Pair()
    for _ in range(20):
        pair.client.on_packets([ack(0, 256)], 0)
    assert not pair.client.has_packets(100)
    pair.client.write(b"x", 0)
    assert [found.sequence for found in taken(pair.client, 0)] == [1]


@pytest.mark.requirement("TUN-73")
def test_a_duplicate_is_dropped_and_acknowledged_again() -> None:
    end = Pair().broker
    for _ in range(3):
        end.on_packets(letters(1, 2), 0)
        assert acks(end, 1) == [2]
    assert end.read(100, 0) == b"ab"
    assert end.status(0).duplicates == 4


@pytest.mark.requirement("TUN-73")
def test_the_sender_stops_resending_after_the_second_ack_when_the_first_is_lost() -> None:
    pair = Pair()
    pair.client.write(b"x", 0)
    pair.carry(pair.client)
    pair.go_to(0.02)
    assert acks(pair.broker, 0.02) == [1]  # lost
    pair.go_to(pair.client.next_at())
    assert [found.sequence for found in pair.carry(pair.client)] == [1]
    pair.carry(pair.broker)
    assert pair.client.status(0).unacknowledged == 0
    assert pair.client.next_at() == float("inf")


@pytest.mark.requirement("TUN-74")
def test_every_order_of_five_packets_is_put_right_and_each_is_sent_once() -> None:
    for order in permutations(range(5)):
        pair = Pair(Rules(payload_max=1))
        pair.client.write(b"abcde", 0)
        packets = taken(pair.client, 0)
        for index in order:
            pair.broker.on_packets([packets[index]], 0)
        pair.settle()
        pair.wait(0.1)
        assert pair.broker.read(100, 1) == b"abcde"
        assert pair.client.status(1).resends == 0


@pytest.mark.parametrize("role", Role)
def test_three_duplicate_acks_send_the_missing_packet_at_once_and_once(role: Role) -> None:
    pair = Pair(Rules(payload_max=1))
    sender, receiver = pair.by_role(role)
    sender.write(b"abcdefgh", 0)
    packets = taken(sender, 0)
    numbers = []
    for found in packets[1:]:
        receiver.on_packets([found], 0)
        sender.on_packets(taken(receiver, 0), 0)
        numbers += [again.sequence for again in taken(sender, 0)]
    assert numbers == [1]


def test_the_next_hole_of_the_same_loss_is_filled_without_waiting_for_its_time() -> None:
    pair = Pair(Rules(payload_max=1))
    pair.client.write(b"abcdefghij", 0)
    for found in taken(pair.client, 0):
        if found.sequence not in (1, 5, 8):
            pair.broker.on_packets([found], 0)
            pair.carry(pair.broker)
    pair.settle()
    assert pair.broker.read(100, 0) == b"abcdefghij"
    assert pair.client.status(0).resends == 1 + 2 + 3  # twice as many from each hole on, up to the last


@pytest.mark.requirement("TUN-15")
@pytest.mark.parametrize("kind", [0, 8, 9, 10, 11, 12, 77, 65535])
def test_types_that_are_none_of_an_end_s_are_counted_and_harm_nothing(kind: int) -> None:
    end = Pair().broker
    end.on_packets([*letters(1), packet(kind, 2, 3, b"what?"), *letters(2)], 0)
    assert end.read(100, 0) == b"ab"
    assert end.status(0).dropped == 1


@pytest.mark.requirement("TUN-14", state="half", note="the answer to CONN_INIT is the gateway's part")
@pytest.mark.requirement("TUN-16", state="half", note="who gives the id is the gateway's part")
@pytest.mark.parametrize("odd", [packet(Kind.DATA, 1, payload=b"x", version=1), packet(Kind.DATA, 1, connection_id=9)])
def test_packets_of_another_version_or_id_are_dropped(odd: Packet) -> None:
    end = Pair().broker
    end.on_packets([odd], 0)
    assert (end.readable(), end.status(0).dropped, end.status(0).connection_id) == (0, 1, ID)


@pytest.mark.requirement("TUN-17")
def test_each_direction_counts_from_one_and_only_sequenced_packets_take_numbers() -> None:
    pair = Pair(Rules(payload_max=1))
    seen: dict[End, list[int]] = {pair.client: [], pair.broker: []}
    for _ in range(10):
        for end in seen:
            end.write(b"x", pair.now_s)
            packets = pair.carry(end)
            seen[end] += [found.sequence for found in packets if found.kind == Kind.DATA]
        pair.now_s += 0.03
    assert list(seen.values()) == [list(range(1, 11))] * 2
