"""How the two ends find each other."""

from __future__ import annotations

from math import inf

import pytest

from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import Abort, Kind, Packet
from fairlead.tunnel.rules import Rules
from tests.tunnel.end.rig import ID, Pair, ack, data, packet, taken


@pytest.mark.requirement("TUN-59")
@pytest.mark.requirement("TUN-60")
def test_set_up_by_hand() -> None:
    pair = Pair(Rules(capacity=7), Rules(capacity=9), is_open=False)
    client, broker = pair.client, pair.broker
    client.write(b"early", 0)
    assert not client.has_packets(0)
    assert [(found.kind, found.sequence, found.window) for found in pair.carry(broker)] == [(Kind.CONN_INIT_ACK, 0, 9)]
    assert (client.state, broker.state) == (State.OPEN, State.OPENING)
    assert [(found.kind, found.sequence, found.window) for found in pair.carry(client)] == [
        (Kind.ACK, 0, 7),
        (Kind.DATA, 1, 0),
    ]
    assert broker.state is State.OPEN
    assert broker.read(99, 0) == b"early"
    assert (client.status(0).edge, broker.status(0).edge) == (9, 7)


@pytest.mark.requirement("TUN-60")
def test_a_client_that_never_writes_confirms_and_the_broker_can_greet() -> None:
    pair = Pair(is_open=False)
    pair.broker.write(b"welcome", 0)
    assert [found.kind for found in pair.carry(pair.broker)] == [Kind.CONN_INIT_ACK]
    assert [found.kind for found in pair.carry(pair.client)] == [Kind.ACK]
    pair.settle()
    assert pair.client.read(99, 0) == b"welcome"


@pytest.mark.requirement("TUN-60")
def test_the_broker_repeats_its_answer_until_something_comes_and_a_repeat_is_confirmed_again() -> None:
    pair = Pair(is_open=False)
    client, broker = pair.client, pair.broker
    pair.carry(broker)
    assert [found.kind for found in taken(client, 0)] == [Kind.ACK]  # lost
    for at in (3.0, 6.0, 9.0):
        assert broker.next_at() == at
        pair.go_to(at)
        assert [found.kind for found in pair.carry(broker)] == [Kind.CONN_INIT_ACK]
        assert broker.state is State.OPENING
        if at < 9:
            assert [(found.kind, found.sequence) for found in taken(client, at)] == [(Kind.ACK, 0)]  # lost as well
    pair.settle()
    assert broker.state is State.OPEN
    assert broker.next_at() == client.next_at() == inf


@pytest.mark.requirement("TUN-60")
@pytest.mark.parametrize("first", [data(1), packet(Kind.CONN_OPTION, 1, payload=bytes(8)), ack(0, 3)])
def test_whatever_the_client_sends_confirms(first: Packet) -> None:
    broker = End(Rules(), Role.BROKER, ID, 0.0, peer_window=3)
    broker.on_packets([first], 0)
    assert broker.state is State.OPEN


@pytest.mark.requirement("TUN-61")
def test_the_client_repeats_conn_init_with_its_id_until_the_answer_comes() -> None:
    pair = Pair(is_open=False)
    client, broker = pair.client, pair.broker
    taken(broker, 0)  # lost
    assert client.next_at() == 3.0
    pair.go_to(3.0)
    hello = pair.carry(client)
    assert [(found.kind, found.connection_id, found.window) for found in hello] == [(Kind.CONN_INIT, ID, 256)]
    assert broker.state is State.OPENING  # it asks, and has confirmed nothing
    pair.settle()
    assert client.status(3.0).state is broker.status(3.0).state is State.OPEN


@pytest.mark.requirement("TUN-61")
def test_a_repeated_conn_init_on_an_open_tunnel_is_answered_and_changes_nothing() -> None:
    pair = Pair()
    pair.client.write(b"abc", 0)
    pair.settle()
    pair.broker.on_packets([packet(Kind.CONN_INIT, window=256)], 1)
    assert Kind.CONN_INIT_ACK in [found.kind for found in pair.carry(pair.broker)]
    pair.settle()
    assert pair.broker.state is State.OPEN
    assert pair.broker.read(9, 1) == b"abc"
    assert pair.broker.next_at() == inf


@pytest.mark.requirement("TUN-22", state="half", note="the gateway has its own part in it")
@pytest.mark.parametrize("early", [data(1), ack(0, 50), packet(Kind.CONN_CLOSE, 1)])
def test_a_client_takes_nothing_before_the_answer(early: Packet) -> None:
    client = End(Rules(), Role.CLIENT, ID, 0.0)
    client.on_packets([early], 0)
    assert (client.state, client.readable(), client.status(0).edge) == (State.OPENING, 0, 0)
    assert not client.has_packets(0)


def test_a_broker_that_does_not_know_the_window_learns_it_from_conn_init() -> None:
    broker = End(Rules(), Role.BROKER, ID, 0.0)
    broker.on_packets([packet(Kind.CONN_INIT, window=12)], 0)
    assert broker.status(0).edge == 12


@pytest.mark.requirement("TUN-79")
@pytest.mark.parametrize("role", Role)
def test_opening_is_given_up_too(role: Role) -> None:
    end = End(Rules(), role, ID, 5.0)
    while end.state is State.OPENING:
        now_s = end.next_at()
        end.on_time(now_s)
        taken(end, now_s)
    assert now_s == 305.0
    assert end.reason == Abort(2, "no acknowledgement came")


@pytest.mark.requirement("TUN-62", state="half", note="the answers of the gateway are its own")
def test_a_refusal_while_opening_gives_its_reason() -> None:
    client = End(Rules(), Role.CLIENT, ID, 0.0)
    client.on_packets([packet(Kind.CONN_ABORT, payload=Abort(7, "too many").payload())], 0)
    assert (client.state, client.reason) == (State.ABORTED, Abort(7, "too many"))
    assert client.is_done()
    assert not client.has_packets(1000)


@pytest.mark.parametrize("role", Role)
def test_closed_before_it_was_open(role: Role) -> None:
    pair = Pair(is_open=False)
    end, other = pair.by_role(role)
    end.close(0)
    assert end.state is State.ABORTED
    assert [found.kind for found in pair.carry(end)] == [Kind.CONN_ABORT]
    assert other.state is State.ABORTED


def test_hellos_of_the_wrong_side_are_dropped() -> None:
    pair = Pair()
    pair.client.on_packets([packet(Kind.CONN_INIT, window=9)], 0)
    pair.broker.on_packets([packet(Kind.CONN_INIT_ACK, window=9)], 0)
    assert pair.client.status(0).dropped == pair.broker.status(0).dropped == 1
    assert not pair.client.has_packets(0)
    assert not pair.broker.has_packets(0)
