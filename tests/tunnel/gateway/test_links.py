"""Who may link, and when a link counts as lost."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.gateway.tokens import verifier_of
from fairlead.tunnel.link_init import LinkInit, LinkTunnel
from fairlead.tunnel.packets import Kind, encode
from tests.tunnel.gateway.stage import SECRET, Broker, Client, Stage, code_of, kinds, packets_of

OTHER = b"another start id"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def listed(*clients: Client, period_s: int = 0, inactivity_s: int = 0) -> list[LinkTunnel]:
    return [LinkTunnel(one.id, period_s, inactivity_s, verifier_of(bytes.fromhex(one.token))) for one in clients]


def status_of(reply: Reply | int) -> int:
    return reply.status if isinstance(reply, Reply) else 0


def is_refused(broker: Broker) -> bool:
    """Told why, and closed."""
    last = broker.got[-1]
    return bool(broker.closed) and last.kind == Kind.CONN_ABORT and last.connection_id == 0 and bool(last.payload[2:])


@pytest.mark.requirement("TUN-44", state="half", note="the gateway's part")
def test_a_link_begins_with_link_init_and_its_ack(stage: Stage) -> None:
    broker = stage.broker()
    assert kinds(broker.got) == [Kind.LINK_INIT_ACK]
    assert broker.refused == []
    assert not broker.closed


@pytest.mark.requirement("TUN-54", state="half", note="the machine; TLS is shown elsewhere")
@pytest.mark.parametrize("secret", [b"", b"wrong", SECRET[:-1], SECRET + b"\0", b"x" * 60_000])
def test_a_stranger_is_refused(stage: Stage, secret: bytes) -> None:
    stage.broker()
    client = stage.tunnel()
    stranger = stage.dial()
    stranger.introduce("b1", secret=secret)
    assert is_refused(stranger)
    assert code_of(stranger.got[-1]) == 7
    assert client.push(client.data(1)).status == 200
    assert stage.gateway.status(stage.now_s).counters.links_refused == 1


@pytest.mark.requirement("TUN-54", state="half", note="the machine; TLS is shown elsewhere")
@pytest.mark.requirement("TUN-14")
@pytest.mark.parametrize(
    ("allow_v1", "secret", "may"), [(False, None, False), (True, SECRET, False), (True, None, True)]
)
def test_a_link_of_version_1_cannot_show_a_secret(allow_v1: bool, secret: bytes | None, may: bool) -> None:
    stage = Stage(allow_v1=allow_v1, secret=secret)
    broker = stage.broker(version=1)
    assert is_refused(broker) is not may


@pytest.mark.parametrize(
    "first",
    [
        encode(Kind.DATA, 7, 1, payload=b"x"),
        encode(Kind.PING),
        encode(Kind.LINK_INIT),
        encode(Kind.LINK_INIT, payload=b"\0\2b1"),
        encode(99),
    ],
)
@pytest.mark.requirement("TUN-44", state="half", note="the gateway's part")
def test_whatever_else_comes_first_closes_the_link(stage: Stage, first: bytes) -> None:
    broker = stage.dial()
    broker.send(first)
    assert is_refused(broker)
    assert code_of(broker.got[-1]) == 8
    broker.introduce("b1")
    assert stage.connect().status == 404, "it is not listened to any more"


def test_link_init_comes_once(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.introduce("b1")
    assert broker.closed
    assert client.status() == 503, "the link is lost, the tunnel waits"


def test_whoever_dials_and_says_nothing_is_closed(stage: Stage) -> None:
    silent = stage.dial()
    stage.wait(9)
    assert not silent.closed
    stage.wait(2)
    assert is_refused(silent)


def test_links_have_a_limit() -> None:
    stage = Stage(Limits(links_max=2))
    stage.broker("b1"), stage.broker("b2")
    third = stage.dial()
    assert is_refused(third)
    assert len(stage.gateway.status(stage.now_s).links) == 2


@pytest.mark.requirement(
    "TUN-13", state="half", note="a packet that is too large for a tunnel; sizes are cut at the edge"
)
def test_a_packet_too_large_for_a_tunnel_ends_the_link(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(client.data(1, bytes((32 << 10) + 1)))
    assert "cannot have" in broker.closed
    assert client.status() == 503


@pytest.mark.requirement("TUN-53", state="half", note="the gateway; the broker's log is shown elsewhere")
def test_a_second_broker_of_the_same_name_is_refused(stage: Stage) -> None:
    first = stage.broker()
    client = stage.tunnel()
    second = stage.broker(start_id=OTHER)
    assert is_refused(second)
    assert "another broker of this name" in second.closed
    assert client.push(client.data(1)).status == 200
    assert kinds(first.take())[-1] == Kind.DATA
    third = stage.broker(start_id=OTHER, version=2)
    assert is_refused(third)


@pytest.mark.requirement("TUN-53", state="half", note="the gateway; the broker's log is shown elsewhere")
def test_the_same_broker_replaces_its_own_link(stage: Stage) -> None:
    first = stage.broker()
    client = stage.tunnel()
    second = stage.broker("b1", *listed(client))
    assert first.closed
    assert second.refused == []
    first.lose()  # its end is noticed only now
    assert client.push(client.data(1)).status == 200
    assert kinds(second.take())[-1] == Kind.DATA


@pytest.mark.requirement("TUN-53", state="half", note="the gateway; the broker's log is shown elsewhere")
def test_a_silent_link_is_replaced_by_another_start(stage: Stage) -> None:
    first = stage.broker()
    client = stage.tunnel()
    stage.wait(14)
    assert is_refused(stage.broker(start_id=OTHER))
    stage.wait(1)
    held = client.pull(25)
    second = stage.broker(start_id=OTHER)
    assert first.closed
    assert not second.closed
    assert isinstance(held, int)
    assert stage.answers[held].status == 410, "the restarted broker knows no tunnel"


def test_two_links_of_version_1_have_no_start_id_in_common() -> None:
    stage = Stage(allow_v1=True, secret=None)
    stage.broker(version=1)
    assert is_refused(stage.broker(version=1))


@pytest.mark.requirement("TUN-55", state="half", note="the gateway's side")
def test_a_silent_link_is_asked_and_at_last_given_up(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    stage.wait(9.9)
    assert broker.take() == []
    stage.wait(0.2)
    assert kinds(broker.take()) == [Kind.PING]
    broker.send(encode(Kind.PONG))
    stage.wait(9.8)
    assert broker.take() == []
    stage.wait(20.3)
    assert kinds(broker.take()) == [Kind.PING, Kind.PING]
    assert "30 s" in broker.closed
    assert client.status() == 503


@pytest.mark.requirement("TUN-55", state="half", note="the gateway's side")
def test_a_ping_is_answered_with_what_it_says(stage: Stage) -> None:
    broker = stage.broker()
    broker.take()
    broker.send(encode(Kind.PING, payload=b"echo"))
    (pong,) = broker.take()
    assert (pong.kind, pong.connection_id, pong.payload) == (Kind.PONG, 0, b"echo")


@pytest.mark.requirement("TUN-95", state="half", note="the machine; a killed process is shown elsewhere")
def test_a_lost_link_suspends_and_after_the_grace_time_aborts(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    held = client.pull(25)
    broker.lose()
    assert isinstance(held, int)
    assert stage.answers[held].status == 503
    stage.wait(14.9)
    assert client.status() == 503
    stage.wait(0.2)
    reply = client.pull()
    assert isinstance(reply, Reply)
    assert (reply.status, code_of(packets_of(reply.body)[0])) == (410, 4)
    again = stage.broker("b1", *listed(client))
    assert again.refused == [client.id]


@pytest.mark.requirement("TUN-95", state="half", note="the machine; a cut line is shown elsewhere")
def test_a_link_that_comes_back_in_time_ends_nothing(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(client.data(1))
    broker.lose()
    stage.wait(5)
    again = stage.broker("b1", *listed(client))
    assert again.refused == []
    stage.wait(20)
    again.send(encode(Kind.PONG))
    assert [packet.sequence for packet in client.fetch()] == [1], "what waited still waits"


@pytest.mark.requirement("TUN-95", state="half", note="the machine")
def test_without_a_grace_time_the_abort_comes_at_once() -> None:
    stage = Stage(Limits(grace_s=0))
    broker = stage.broker()
    client = stage.tunnel()
    key = client.stream()
    assert isinstance(key, int)
    broker.lose()
    assert [code_of(packet) for packet in stage.frames[key]] == [4]
    assert client.status() == 410


def test_the_end_of_a_link_nobody_knows_is_no_event(stage: Stage) -> None:
    stage.gateway.link_lost(99, stage.now_s)
    stage.gateway.on_link(99, packets_of(encode(Kind.PING)), stage.now_s)
    stranger = stage.dial()
    stranger.lose()
    assert stage.gateway.effects() == []


def test_a_long_list_is_one_packet(stage: Stage) -> None:
    tunnels = [LinkTunnel(number, verifier=b"v" * 32) for number in range(1, 5001)]
    payload = LinkInit("b1", SECRET, bytes(16), tunnels).encode()
    broker = stage.dial()
    broker.name = "b1"
    broker.send(encode(Kind.LINK_INIT, payload=payload))
    assert broker.refused == []
    assert len(stage.gateway.status(stage.now_s).tunnels) == 5000


@pytest.mark.requirement("TUN-46", state="half", note="the machine; the one TCP connection is shown elsewhere")
def test_fifty_tunnels_share_one_link(stage: Stage) -> None:
    broker = stage.broker()
    clients = [stage.tunnel() for _ in range(50)]
    broker.take()
    for number, client in enumerate(clients):
        client.push(client.data(1, b"%d" % number))
    got = broker.take()
    assert [(packet.connection_id, packet.payload) for packet in got] == [
        (client.id, b"%d" % number) for number, client in enumerate(clients)
    ]
    broker.send(*(client.data(1, packet.payload) for client, packet in zip(clients, got, strict=True)))
    assert [client.fetch()[0].payload for client in clients] == [b"%d" % number for number in range(50)]
