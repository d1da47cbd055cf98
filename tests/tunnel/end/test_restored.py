"""The way is open again: how an end goes on, and that it does not overdo it."""

from __future__ import annotations

import pytest

from fairlead.tunnel.end import End, State
from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.rules import Rules
from tests.tunnel.end.rig import Pair, ack, taken

SMALL = Rules(payload_max=10)


def numbers(packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in packets if packet.kind == Kind.DATA]


def acks(packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in packets if packet.kind == Kind.ACK]


def measured() -> Pair:
    """With a round trip of 0.1 s: resends after 0.5 s."""
    pair = Pair(SMALL)
    pair.client.write(b"x", 0)
    taken(pair.client, 0)
    pair.client.on_packets([ack(1, 256)], 0.1)
    return pair


def in_vain(end: End, packets: int, begin_s: float, until_s: float) -> int:
    """So many packets are sent, and again whenever it is time, and nobody hears them; how often in all."""
    end.write(bytes(10 * packets), begin_s)
    sent = len(numbers(taken(end, begin_s)))
    while (now_s := end.next_at()) < until_s:
        sent += len(numbers(taken(end, now_s)))
    return sent


@pytest.mark.requirement("TUN-49", "TUN-77")
def test_what_is_unacknowledged_is_sent_at_once_and_once() -> None:
    client = measured().client
    assert in_vain(client, 20, 1, 60) == 7 * 20
    assert client.next_at() > 64
    assert not client.has_packets(60)
    client.on_restored(60)
    packets = taken(client, 60)
    assert numbers(packets) == list(range(2, 22))
    assert acks(packets) == [0]
    assert not client.has_packets(60)


@pytest.mark.requirement("TUN-77")
def test_the_doubling_starts_anew() -> None:
    client = measured().client
    in_vain(client, 1, 1, 60)
    client.on_restored(60)
    taken(client, 60)
    times: list[float] = []
    while client.next_at() < 64:
        times.append(client.next_at())
        taken(client, times[-1])
    assert times == pytest.approx([60.5, 61.5, 63.5])


def test_one_round_for_each_restoration_however_often_it_is_told_of() -> None:
    client = measured().client
    in_vain(client, 20, 1, 60)
    for _ in range(5):
        client.on_restored(60)
    assert len(numbers(taken(client, 60))) == 20
    client.on_packets([ack(21, 256)], 60.1)
    client.on_restored(60.2)
    assert numbers(taken(client, 60.2)) == []


def test_what_an_ack_shows_to_have_arrived_is_not_sent_any_more() -> None:
    """ACKs of both ends go first."""
    client = measured().client
    in_vain(client, 20, 1, 60)
    client.on_restored(60)
    taken(client, 60, 100)
    client.on_packets([ack(15, 256)], 60.1)
    assert numbers(taken(client, 60.1)) == list(range(16, 22))


@pytest.mark.requirement("TUN-76")
def test_how_long_the_way_was_shut_is_no_round_trip() -> None:
    """A packet that was sent once, before: its ACK had waited somewhere."""
    client = measured().client
    client.write(b"y", 1)
    taken(client, 1)
    before_s = client.status(1).rtt_s
    client.on_restored(1.4)
    client.on_packets([ack(2, 256)], 1.4)
    assert client.status(1.4).rtt_s == before_s
    client.write(b"z", 2)
    taken(client, 2)
    client.on_packets([ack(3, 256)], 2.2)
    assert client.status(2.2).rtt_s == pytest.approx(7 / 8 * 0.1 + 1 / 8 * 0.2)


@pytest.mark.requirement("TUN-76")
def test_what_was_sent_again_is_not_measured() -> None:
    client = measured().client
    before_s = client.status(1).rtt_s
    in_vain(client, 20, 1, 60)
    client.on_restored(60)
    taken(client, 60)
    client.on_packets([ack(21, 256)], 60.01)
    assert client.status(61).rtt_s == before_s


def test_the_other_end_hears_of_it_by_the_ack() -> None:
    """Its own carrier was never gone: it learns from the first ACK after a long silence."""
    broker = measured().broker
    in_vain(broker, 20, 1, 60)
    broker.on_packets([ack(0, 256)], 60)
    assert numbers(taken(broker, 60)) == list(range(1, 21))
    broker.on_packets([ack(0, 256)], 60.01)
    assert numbers(taken(broker, 60.01)) == []


@pytest.mark.requirement("TUN-89")
def test_a_close_that_waits_for_a_reader_is_not_hurried_by_acks() -> None:
    pair = measured()
    client = pair.client
    client.close(1)
    assert [packet.kind for packet in taken(client, 1)] == [Kind.CONN_CLOSE]
    sent = 0
    for second in range(2, 20, 3):
        sent += len(taken(client, second))
        client.on_packets([ack(1, 256)], second)
    assert sent <= 5
    assert client.state is State.CLOSING


@pytest.mark.requirement("TUN-84")
def test_a_probe_is_due_at_once() -> None:
    client = measured().client
    client.on_packets([ack(1, 0)], 1)
    client.on_packets([ack(1, 256)], 1)
    client.write(bytes(10 * 256), 1)
    taken(client, 1)
    client.on_packets([ack(257, 0)], 1.1)
    client.write(b"more", 1.1)
    assert not client.has_packets(1.2)
    client.on_restored(1.2)
    assert numbers(taken(client, 1.2)) == [258]


def test_an_end_that_is_opening_says_hello_at_once() -> None:
    pair = Pair(is_open=False)
    taken(pair.broker, 0)
    pair.broker.on_restored(0.1)
    assert [packet.kind for packet in taken(pair.broker, 0.1)] == [Kind.CONN_INIT_ACK]
    assert not pair.client.has_packets(0.1)
    pair.client.on_restored(0.1)
    assert [packet.kind for packet in taken(pair.client, 0.1)] == [Kind.CONN_INIT]


def test_an_end_that_has_ended_says_nothing() -> None:
    pair = measured()
    pair.client.on_gone(5, "", 1)
    pair.client.on_restored(2)
    assert not pair.client.has_packets(2)


def rounds_to_make_good(client: End, now_s: float, again: int, lost: range = range(0)) -> tuple[int, float]:
    """How many rounds it takes, and how long, until 200 packets behind the first have come, with an ACK per round that
    comes `again` so often; in some rounds all but the first that is missing is lost.
    """
    received, rounds = 1, 0
    while received < 201:
        now_s = now_s + 0.1 if client.has_packets(now_s + 0.1) else client.next_at()
        came = numbers(taken(client, now_s))
        for number in sorted(came[:1] if rounds in lost else came):
            received += number == received + 1
        now_s += 0.1
        client.on_packets([ack(received, 256)] * (1 + again), now_s)
        rounds += 1
    return rounds, now_s


@pytest.mark.parametrize("again", [0, 1, 2, 5])
def test_a_window_lost_behind_a_known_hole_is_made_good_in_few_rounds(again: int) -> None:
    """One ACK may stand for many packets, so a hole may be told of less than three times."""
    client = measured().client
    client.write(bytes(10 * 200), 1)
    assert len(numbers(taken(client, 1))) == 200
    client.on_packets([ack(1, 256)] * again, 1.2)
    rounds, now_s = rounds_to_make_good(client, 1.2, again)
    assert rounds <= 12
    assert now_s < 6


@pytest.mark.parametrize("again", [0, 1, 2, 5])
def test_what_is_lost_once_more_while_it_is_made_good_takes_few_rounds_too(again: int) -> None:
    client = measured().client
    client.write(bytes(10 * 200), 1)
    taken(client, 1)
    client.on_packets([ack(1, 256)] * 3, 1.2)
    rounds, now_s = rounds_to_make_good(client, 1.2, again, lost=range(3, 12))
    assert rounds <= 30
    assert now_s < 12
