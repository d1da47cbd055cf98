"""Close and abort."""

from __future__ import annotations

from math import inf

import pytest

from fairlead.tunnel.end import Abort, Role, State
from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.rules import Option, Rules
from tests.tunnel.end.rig import Pair, ack, data, packet, taken

CLOSE = Kind.CONN_CLOSE


def is_close_ack(found: Packet) -> bool:
    return found.kind == Kind.ACK and found.sequence == 2


@pytest.mark.requirement("TUN-89")
@pytest.mark.parametrize("role", Role)
def test_a_close_takes_effect_and_is_acknowledged_after_all_was_read(role: Role) -> None:
    pair = Pair(Rules(payload_max=10))
    closer, reader = pair.by_role(role)
    closer.write(bytes(range(25)), 0)
    closer.close(0)
    assert closer.write(b"more", 0) == closer.room() == 0
    assert [(found.kind, found.sequence) for found in pair.carry(closer)] == [
        (Kind.DATA, 1),
        (Kind.DATA, 2),
        (Kind.DATA, 3),
        (CLOSE, 4),
    ]
    pair.go_to(0.02)
    assert [found.sequence for found in pair.carry(reader)] == [3]
    assert (closer.state, reader.state) == (State.CLOSING, State.OPEN)

    # A repeat is answered with the ACK as it stands.
    pair.go_to(4.0)
    assert [found.kind for found in pair.carry(closer)] == [CLOSE]
    assert [found.sequence for found in pair.carry(reader)] == [3]

    reader.read(24, 4.0)
    assert not reader.is_eof()
    pair.wait(0.1)
    assert reader.status(0).received == 3
    assert reader.read(10, 4.0) == b"\x18"
    assert reader.is_eof()
    assert [(found.kind, found.sequence) for found in pair.carry(reader)] == [(Kind.ACK, 4), (CLOSE, 1)]
    pair.settle()
    assert closer.state is reader.state is State.CLOSED
    assert closer.is_eof()


@pytest.mark.requirement("TUN-90")
def test_the_other_end_still_sends_what_was_written_and_refuses_more() -> None:
    pair = Pair(Rules(capacity=2, payload_max=10))
    pair.broker.write(bytes(100), 0)
    pair.client.close(0)
    pair.settle()
    assert pair.broker.state is State.CLOSING
    assert pair.broker.write(b"x", 0) == 0
    received = bytearray()
    while not pair.client.is_eof():
        received += pair.client.read(1000, pair.now_s)
        pair.wait(0.05)
    assert len(received) == 100
    assert {end.status(0).state for end in (pair.client, pair.broker)} == {State.CLOSED}


@pytest.mark.requirement("TUN-90")
def test_both_write_a_megabyte_and_close_at_the_same_time() -> None:
    pair = Pair(Rules())
    texts = {pair.client: b"c" * (1 << 20), pair.broker: b"b" * (1 << 20)}
    got = {pair.client: bytearray(), pair.broker: bytearray()}
    for end, text in texts.items():
        assert end.write(text, 0) == len(text)
        end.close(0)
    while not all(end.state is State.CLOSED for end in got):
        for end, read in got.items():
            pair.carry(end)
            read += end.read(50_000, pair.now_s)
        pair.now_s += 0.01
        assert pair.now_s < 60
    assert got[pair.client] == texts[pair.broker]
    assert got[pair.broker] == texts[pair.client]


@pytest.mark.requirement("TUN-91", state="half", note="the gateway's part, and the rounds, are tested with it")
def test_a_closed_end_holds_nothing_and_is_forgotten_after_a_while() -> None:
    pair = Pair()
    pair.client.write(b"x", 0)
    pair.client.close(0)
    pair.settle()
    pair.broker.read(1, 0)
    pair.settle()
    for end in (pair.client, pair.broker):
        assert end.state is State.CLOSED
        assert not end.is_done()
        assert end.next_at() == 120.0
        assert end.status(0).unacknowledged == end.status(0).waiting_bytes == 0
        end.on_time(120.0)
        assert end.is_done()
        assert end.next_at() == inf


@pytest.mark.requirement("TUN-92")
def test_the_ack_of_the_close_is_lost_three_times_and_it_ends_cleanly() -> None:
    pair = Pair()
    client, broker = pair.client, pair.broker
    client.write(b"x", 0)
    pair.settle()
    broker.read(1, 0)
    client.close(0)
    lost = 0

    def keep(found: Packet) -> bool:
        nonlocal lost
        lost += is_close_ack(found)
        return not (is_close_ack(found) and lost <= 3)

    while client.state is not State.CLOSED:
        while client.has_packets(pair.now_s) or broker.has_packets(pair.now_s):
            pair.carry(client)
            pair.carry(broker, keep)
        pair.go_to(min(client.next_at(), broker.next_at()))
    assert lost == 4
    assert client.reason is broker.reason is None
    assert broker.state is State.CLOSED


@pytest.mark.requirement("TUN-92")
def test_the_last_ack_is_repeated_after_everything_was_freed() -> None:
    pair = Pair()
    pair.client.close(0)
    pair.settle()
    assert pair.client.state is State.CLOSED
    for at in (1.0, 50.0, 119.0):
        pair.client.on_packets([packet(CLOSE, 1)], at)
        assert [(found.kind, found.sequence) for found in taken(pair.client, at)] == [(Kind.ACK, 1)]
        assert not pair.client.has_packets(at)


@pytest.mark.requirement("TUN-93")
@pytest.mark.parametrize("role", Role)
def test_a_reader_that_sleeps_for_ever_ends_the_close_after_the_linger_time(role: Role) -> None:
    pair = Pair()
    closer, sleeper = pair.by_role(role)
    closer.write(b"x", 0)
    closer.close(0)
    pair.settle()
    pair.wait(29)
    assert closer.state is State.CLOSING
    pair.wait(2)
    assert closer.reason == Abort(6, "the close did not finish")
    assert (sleeper.state, sleeper.reason) == (State.ABORTED, closer.reason)
    assert sleeper.read(9, pair.now_s) == b"x"
    assert not sleeper.is_eof()


@pytest.mark.requirement("TUN-93")
@pytest.mark.parametrize(("capacity", "every_s"), [(256, 1.2), (4, 20.0)])
def test_a_slow_reader_that_goes_on_reading_is_not_cut_off(capacity: int, every_s: float) -> None:
    pair = Pair(Rules(capacity=capacity, payload_max=10))
    pair.client.write(bytes(1000), 0)
    pair.client.close(0)
    pair.settle()
    received = 0
    while not pair.broker.is_eof():
        pair.wait(every_s)
        received += len(pair.broker.read(10, pair.now_s))
        assert pair.client.state is State.CLOSING
    pair.settle()
    assert received == 1000
    assert pair.now_s >= 119
    assert pair.client.state is pair.broker.state is State.CLOSED


@pytest.mark.requirement("TUN-90")
def test_the_first_closer_waits_for_the_other_close_no_longer_than_the_linger_time() -> None:
    pair = Pair()
    pair.client.close(0)
    packets = taken(pair.client, 0)
    pair.client.on_packets([ack(1, 256)], 0)
    assert [found.kind for found in packets] == [CLOSE]
    pair.go_to(29.0)
    assert pair.client.state is State.CLOSING
    pair.client.on_packets([data(1, b"late")], 29.0)  # progress
    pair.go_to(58.0)
    assert pair.client.state is State.CLOSING
    pair.go_to(60.0)
    assert pair.client.status(60.0).state is State.ABORTED
    assert pair.client.read(9, 60.0) == b"late"


def test_a_round_trip_is_not_measured_by_a_close_that_waits_for_a_reader() -> None:
    pair = Pair()
    pair.client.write(b"x", 0)
    pair.client.close(0)
    pair.carry(pair.client)
    pair.go_to(2.5)
    pair.broker.read(1, 2.5)
    pair.carry(pair.broker)
    assert pair.client.status(2.5).rtt_s is None


@pytest.mark.requirement("TUN-94", state="half", note="what a gateway aborts is tested with it")
@pytest.mark.requirement("TUN-98")
@pytest.mark.parametrize("role", Role)
def test_an_abort_overtakes_and_what_came_in_order_stays_readable(role: Role) -> None:
    pair = Pair(Rules(payload_max=2))
    end, other = pair.by_role(role)
    end.write(b"abcdef", 0)
    first, second, third = taken(end, 0)
    other.on_packets([first, third], 0)
    end.abort(1, "enough — für heute", 0)
    other.on_packets(taken(end, 0), 0)
    assert (other.state, other.reason) == (State.ABORTED, Abort(1, "enough — für heute"))
    other.on_packets([second], 0)
    assert other.read(1, 0) == b"a"
    assert other.read(100, 0) == b"b"
    assert other.read(100, 0) == b""
    assert not other.is_eof()
    assert end.room() == other.room() == end.write(b"x", 0) == 0
    assert end.is_done()


@pytest.mark.requirement("TUN-94", state="half", note="what a gateway aborts is tested with it")
def test_one_abort_is_sent_and_everything_is_freed() -> None:
    pair = Pair()
    pair.client.write(bytes(1000), 0)
    pair.client.abort(9, "shutting down", 0)
    pair.client.abort(1, "again", 0)
    assert not pair.client.is_done()
    packets = taken(pair.client, 0)
    assert [(found.kind, found.sequence, found.window) for found in packets] == [(Kind.CONN_ABORT, 0, 0)]
    assert packets[0].payload == b"\x00\x09shutting down"
    assert pair.client.is_done()
    assert pair.client.next_at() == inf
    assert not pair.client.has_packets(1000)


@pytest.mark.requirement("TUN-99")
@pytest.mark.parametrize("late", [data(1), ack(0, 5), packet(CLOSE, 1), packet(Kind.CONN_INIT_ACK, window=5)])
def test_later_packets_are_answered_by_an_abort_and_an_abort_by_nothing(late: Packet) -> None:
    pair = Pair()
    pair.client.abort(1, "", 0)
    taken(pair.client, 0)
    pair.client.on_packets([late, late, late], 1)
    assert [found.kind for found in taken(pair.client, 1)] == [Kind.CONN_ABORT]
    pair.client.on_packets([packet(Kind.CONN_ABORT), packet(Kind.PING)], 1)
    assert not pair.client.has_packets(1)
    assert pair.client.state is State.ABORTED


@pytest.mark.requirement("TUN-99")
def test_an_abort_of_a_closed_tunnel_is_ignored() -> None:
    pair = Pair()
    pair.client.close(0)
    pair.settle()
    for end in (pair.client, pair.broker):
        end.on_packets([packet(Kind.CONN_ABORT, payload=b"\x00\x01")], 1)
        end.abort(1, "", 1)
        end.on_gone(5, "", 1)
        assert (end.state, end.reason) == (State.CLOSED, None)
        assert end.is_eof()
        assert not end.has_packets(1)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", Abort(8, "aborted without a reason")),
        (b"\x01", Abort(8, "aborted without a reason")),
        (b"\x00\x03", Abort(3, "")),
        (b"\xff\xff\xff\xfe", Abort(65535, "��")),
    ],
)
def test_the_reason_of_an_abort_whatever_it_is(payload: bytes, reason: Abort) -> None:
    pair = Pair()
    pair.client.on_packets([packet(Kind.CONN_ABORT, payload=payload)], 0)
    assert pair.client.reason == reason


def test_a_carrier_that_says_it_is_over_needs_no_abort() -> None:
    pair = Pair()
    pair.client.write(b"x", 0)
    pair.client.on_gone(5, "not known any more", 0)
    assert (pair.client.state, pair.client.reason) == (State.ABORTED, Abort(5, "not known any more"))
    assert not pair.client.has_packets(0)
    assert pair.client.is_done()


def test_nothing_can_be_asked_of_an_end_that_closes() -> None:
    pair = Pair()
    pair.client.close(0)
    pair.client.close(0)
    pair.client.set_option(Option.HOLD, 1, 0)
    assert [found.kind for found in taken(pair.client, 0)] == [CLOSE]
    assert pair.client.rules.hold_s == 25


def test_what_a_broken_peer_sends_behind_its_close_is_not_read() -> None:
    pair = Pair()
    pair.client.on_packets([data(1, b"a"), data(4, b"d"), packet(CLOSE, 2), data(3, b"c")], 0)
    assert pair.client.read(9, 0) == b"a"
    assert pair.client.is_eof()
    assert pair.client.readable() == 0
    pair.client.on_packets([data(3, b"c")], 0)
    assert pair.client.readable() == 0
