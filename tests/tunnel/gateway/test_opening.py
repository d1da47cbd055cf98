"""Connect, versions, ids, and who may (TUN-36, TUN-56, TUN-63)."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Reply
from fairlead.tunnel.packets import Kind, encode
from tests.tunnel.gateway.stage import Client, Stage, code_of, kinds, packets_of


@pytest.fixture
def stage() -> Stage:
    return Stage()


def reason(reply: Reply) -> str:
    return dict(reply.headers)["Fairlead-Reason"]


@pytest.mark.requirement("TUN-56")
@pytest.mark.requirement("TUN-58", state="half", note="the gateway's part")
@pytest.mark.requirement("TUN-63", state="half", note="the token at connect; its checks are shown elsewhere")
def test_the_four_steps_of_set_up(stage: Stage) -> None:
    broker = stage.broker()
    broker.take()
    reply = stage.connect(window=77)
    (answer,) = packets_of(reply.body)
    assert (reply.status, answer.kind, answer.window, len(answer.payload)) == (200, Kind.CONN_INIT, 0, 32)
    assert ("Fairlead-Instance", "here") in reply.headers
    assert answer.connection_id
    (told,) = broker.take()
    assert (told.kind, told.connection_id, told.window) == (Kind.CONN_INIT, answer.connection_id, 77)
    assert len(told.payload) == 32
    assert told.payload != answer.payload, "the broker has only the verifier"
    client = Client(stage, "b1", answer.connection_id, answer.payload.hex())
    broker.send(encode(Kind.CONN_INIT_ACK, client.id, window=5))
    (ack,) = client.fetch()
    assert (ack.kind, ack.window) == (Kind.CONN_INIT_ACK, 5)
    assert client.push(client.ack(0), client.data(1)).status == 200
    assert kinds(broker.take()) == [Kind.ACK, Kind.DATA]


@pytest.mark.requirement(
    "TUN-36", state="half", note="the gateway's answers; the client's reactions are shown elsewhere"
)
@pytest.mark.requirement("TUN-62", state="half", note="the gateway's answers; the client's errors are shown elsewhere")
def test_a_connect_to_a_broker_that_is_not_linked(stage: Stage) -> None:
    assert stage.connect("nobody").status == 404
    expected = Stage(servers=("b1",))
    refused = expected.connect("b1")
    assert refused.status == 503
    assert dict(refused.headers)["Retry-After"] == "1"
    assert expected.connect("B1").status == 404, "server ids are compared exactly"
    broker = stage.broker("b2")
    broker.lose()
    assert stage.connect("b2").status == 503
    stage.wait(3600)
    assert stage.connect("b2").status == 503, "it was there, and may come back"


@pytest.mark.requirement("TUN-14")
def test_versions_are_negotiated_or_refused_with_a_reason() -> None:
    strict, lax = Stage(), Stage(allow_v1=True, secret=None)
    for stage in (strict, lax):
        stage.broker()
        body = bytearray(encode(Kind.CONN_INIT))
        body[0:2] = (99).to_bytes(2, "big")
        reply = stage.gateway.connect("b1", bytes(body), "", stage.now_s)
        assert reply.status == 400
        assert "version 99" in reason(reply)
        (abort,) = packets_of(reply.body)
        assert code_of(abort) == 8
    refused = strict.connect(version=1)
    assert refused.status == 400
    assert "version 1" in reason(refused)
    client = lax.client(version=1)
    assert (client.version, client.token) == (1, "")
    (broker,) = lax.brokers.values()
    assert (broker.got[-1].version, broker.got[-1].payload) == (1, b"")
    broker.send(encode(Kind.CONN_INIT_ACK, client.id, version=1))
    assert kinds(client.fetch()) == [Kind.CONN_INIT_ACK]


@pytest.mark.requirement("TUN-14")
def test_packets_of_another_version_are_dropped() -> None:
    stage = Stage(allow_v1=True)
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    other = encode(Kind.DATA, client.id, 1, payload=b"x", version=1)
    assert client.push(other, client.data(1)).status == 200
    assert [packet.version for packet in broker.take()] == [2]
    broker.send(other, client.data(1))
    assert [packet.version for packet in client.fetch()] == [2]
    assert stage.gateway.status(stage.now_s).counters.wrong_version == 2


@pytest.mark.requirement("TUN-63", state="half", note="links of version 1")
def test_a_tunnel_over_a_link_of_version_1_is_of_version_1() -> None:
    stage = Stage(allow_v1=True, secret=None)
    stage.broker(version=1)
    assert stage.client(version=2).version == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        encode(Kind.CONN_INIT)[:-1],
        encode(Kind.CONN_INIT) + b"x",
        encode(Kind.CONN_INIT) * 2,
        encode(Kind.CONN_INIT, 7),
        encode(Kind.DATA, 0, 1, payload=b"x"),
        encode(Kind.LINK_INIT),
        bytes(100),
    ],
    ids=["empty", "one byte", "cut off", "too long", "two", "with an id", "data", "link packet", "zeros"],
)
@pytest.mark.requirement("TUN-22", state="half", note="connect; pushes are fuzzed elsewhere")
def test_a_connect_brings_one_conn_init(stage: Stage, body: bytes) -> None:
    stage.broker()
    assert stage.gateway.connect("b1", body, "", stage.now_s).status == 400
    assert not stage.gateway.status(stage.now_s).tunnels


def test_a_damaged_connect_opens_nothing(stage: Stage) -> None:
    stage.broker()
    body = bytearray(encode(Kind.CONN_INIT, window=9))
    body[17] ^= 1
    assert stage.gateway.connect("b1", bytes(body), "", stage.now_s).status == 400
    assert stage.gateway.status(stage.now_s).counters.damaged == 1


@pytest.mark.requirement("TUN-16", state="half", note="the draw; captures are shown elsewhere")
@pytest.mark.requirement("TUN-52", state="half", note="the draw; restarts are shown elsewhere")
def test_ids_are_drawn_and_never_0_nor_lately_used() -> None:
    stage = Stage()
    stage.gateway._requests._random_bytes = lambda size: b"\xff" * size
    stage.broker()
    ids = [stage.tunnel().id for _ in range(3)]
    assert ids == [2**32 - 1, 1, 2]
    ended = Client(stage, "b1", 1, ("ff" * 32))
    assert ended.push(encode(Kind.CONN_ABORT, 1, payload=b"\0\1")).status == 200
    assert stage.tunnel().id == 3, "1 is remembered"
    stage.wait(stage.limits.remember_s + 1)
    stage.broker("b2")
    assert stage.tunnel("b2").id == 2**32 - 1, "each server id has numbers of its own"


@pytest.mark.requirement(
    "TUN-36", state="half", note="the gateway's answers; the client's reactions are shown elsewhere"
)
@pytest.mark.requirement("TUN-63")
@pytest.mark.parametrize("token", ["", "00" * 32, "zz", "é", "a", "00" * 5000])
def test_without_the_token_nothing_is_handed_out_nor_taken(stage: Stage, token: str) -> None:
    broker = stage.broker()
    client, other = stage.tunnel(), stage.tunnel()
    broker.send(client.data(1, b"secret"))
    broker.take()
    status = 403 if token else 401
    for wrong in {token, other.token if token else ""}:
        reply = client.pull(token=wrong)
        assert isinstance(reply, Reply)
        assert (reply.status, reply.body) == (status, b"")
        assert client.push(client.data(1), token=wrong).status == status
        streamed = stage.gateway.stream("b1", client.id, wrong, next(stage.keys), stage.now_s)
        assert streamed is not None
        assert streamed.status == status
    assert not broker.take()
    assert kinds(client.fetch()) == [Kind.DATA]


@pytest.mark.requirement("TUN-63")
@pytest.mark.requirement("TUN-25", state="half", note="ids that differ; captures of a client are shown elsewhere")
def test_a_body_with_a_foreign_id_is_refused_whole(stage: Stage) -> None:
    broker = stage.broker()
    own, other = stage.tunnel(), stage.tunnel()
    broker.take()
    assert own.push(own.data(1), other.data(1)).status == 403
    assert own.push(other.data(1), own.data(1)).status == 403
    assert own.push(own.data(1), encode(Kind.DATA, 0, 1, payload=b"x")).status == 403
    assert own.push(own.data(1), url_id=other.id).status == 403
    assert stage.gateway.push("b1", None, own.token, other.data(1) + own.data(2), stage.now_s).status == 403
    stage.settle()
    assert not broker.take()
    assert stage.gateway.push("b1", None, own.token, own.data(1), stage.now_s).status == 200, "ConnId may be left out"


@pytest.mark.requirement("TUN-9", state="half", note="the gateway alone, scripted ends")
@pytest.mark.requirement("TUN-45")
def test_the_same_id_at_two_brokers_is_two_tunnels() -> None:
    stage = Stage(seed=3)
    stage.gateway._requests._random_bytes = lambda size: b"\x07" * size
    b1, b2 = stage.broker("b1"), stage.broker("b2")
    one, two = stage.tunnel("b1"), stage.tunnel("b2")
    assert one.id == two.id
    b1.take(), b2.take()
    one.push(one.data(1, b"to b1"))
    two.push(two.data(1, b"to b2"))
    assert [packet.payload for packet in b1.take()] == [b"to b1"]
    assert [packet.payload for packet in b2.take()] == [b"to b2"]
    b2.send(two.data(1, b"from b2"))
    assert one.fetch() == []
    assert [packet.payload for packet in two.fetch()] == [b"from b2"]
