"""What a push brings, and what is refused of it."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Reply
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Stage, kinds, option


@pytest.fixture
def stage() -> Stage:
    return Stage()


def reason(reply: Reply) -> str:
    return dict(reply.headers)["Fairlead-Reason"]


@pytest.mark.requirement("TUN-10", state="half", note="the machine; a stalled link is shown elsewhere")
@pytest.mark.requirement("TUN-21")
def test_packets_are_relayed_as_they_are_and_nothing_is_acknowledged(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    sent = [client.data(1, b"abc"), client.ack(3), client.close(2), option(client.id, 3, Option.HOLD, 9)]
    assert client.push(*sent) == Reply(200)
    assert [packet.raw for packet in broker.take()] == sent
    assert client.fetch() == [], "only the broker acknowledges"
    back = [client.data(1, bytes(range(256))), client.ack(2)]
    broker.send(*back)
    assert sorted(packet.raw for packet in client.fetch()) == sorted(back)


@pytest.mark.requirement("TUN-61", state="half", note="the gateway's part")
def test_a_repeated_conn_init_reaches_the_broker_with_the_verifier(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.client(window=9)
    (first,) = broker.take()[1:]
    assert client.push(encode(Kind.CONN_INIT, client.id, window=9)).status == 200
    assert broker.take() == [first]


@pytest.mark.requirement("TUN-33", state="half", note="the gateway's part")
def test_a_bad_crc_spoils_only_its_own_packet(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    bad = bytearray(client.data(2))
    bad[-1] ^= 1
    assert client.push(client.data(1), bytes(bad), client.data(3)).status == 200
    assert [packet.sequence for packet in broker.take()] == [1, 3]
    assert stage.gateway.status(stage.now_s).tunnels[0].crc_failures == 1
    impossible = client.data(5)[:4] + bytes(4) + client.data(5)[8:]
    assert client.push(client.data(4), impossible, client.data(6)).status == 200
    assert [packet.sequence for packet in broker.take()] == [4], "after an impossible size the rest is dropped"


@pytest.mark.parametrize("body", [b"", b"x" * 19, b"x" * 40, bytes(60)], ids=["empty", "short", "text", "zeros"])
@pytest.mark.requirement("TUN-22", state="half", note="a few bodies; fuzzed elsewhere")
def test_a_push_that_holds_no_packet_is_refused(stage: Stage, body: bytes) -> None:
    stage.broker()
    assert stage.tunnel().push(body).status == 400


@pytest.mark.requirement("TUN-22", state="half", note="a few bodies; fuzzed elsewhere")
def test_link_packets_from_clients_and_data_before_set_up_are_refused(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.client()
    broker.take()
    for kind in (Kind.LINK_INIT, Kind.LINK_INIT_ACK, Kind.CONN_INIT_ACK):
        assert client.push(encode(kind, client.id)).status == 400
    for packet in (client.data(1), client.close(1), option(client.id, 1, Option.HOLD, 1)):
        assert client.push(packet).status == 400
    assert not broker.take()
    broker.send(encode(Kind.CONN_INIT_ACK, client.id))
    assert client.push(client.data(1)).status == 200


@pytest.mark.requirement("TUN-15", state="half", note="at the gateway")
def test_unknown_types_are_counted_and_dropped(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    strange = encode(77, client.id, payload=b"?")
    assert client.push(strange, client.data(1)).status == 200
    broker.send(strange, encode(78), client.data(1))
    assert kinds(broker.take()) == [Kind.DATA]
    assert kinds(client.fetch()) == [Kind.DATA]
    assert stage.gateway.status(stage.now_s).counters.unknown_kind == 3


@pytest.mark.requirement(
    "TUN-23", state="half", note="the gateway's part; the client's smaller bodies are shown elsewhere"
)
@pytest.mark.requirement(
    "TUN-36", state="half", note="the gateway's answers; the client's reactions are shown elsewhere"
)
def test_a_large_body_is_answered_413(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    body = client.data(1, bytes(32 << 10))
    many = body * (stage.limits.body_max // len(body))
    assert client.push(many).status == 200
    assert client.push(many, body).status == 413
    assert stage.gateway.connect("b1", many + body, "", stage.now_s).status == 413
    assert client.push(client.data(1, bytes((32 << 10) + 1))).status == 400


def test_replayed_pushes_are_harmless(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    for _ in range(3):
        assert client.push(client.data(1), client.ack(4)).status == 200
    assert len(broker.take()) == 6, "the end drops what it has"
    assert stage.gateway.status(stage.now_s).tunnels[0].up.resends == 2
