"""What LINK_INIT changes: restarts of gateway and broker, lost and replaced links."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.gateway.tokens import verifier_of
from fairlead.tunnel.link_init import LinkTunnel
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Broker, Client, Stage, code_of, kinds, option, packets_of

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


@pytest.mark.requirement("TUN-50", state="half", note="the machine; clients that carry on are shown in the simulation")
@pytest.mark.requirement(
    "TUN-36", state="half", note="the gateway's answers; the client's reactions are shown elsewhere"
)
def test_after_a_restart_nothing_is_gone_until_the_broker_says_so(stage: Stage) -> None:
    stage.broker()
    kept, forgotten = stage.tunnel(), stage.tunnel()
    stage.restart()
    for _ in range(8):
        for client in (kept, forgotten):
            reply = client.pull(25)
            assert isinstance(reply, Reply)
            assert (reply.status, dict(reply.headers)["Retry-After"]) == (503, "1")
            assert client.push(client.data(1)).status == 503
            assert status_of(client.stream()) == 503
        stage.wait(1)
    stage.broker("b2")
    assert kept.status() == 503, "another broker's link says nothing about this one's tunnels"
    broker = stage.broker("b1", *listed(kept))
    assert broker.refused == []
    assert kept.push(kept.data(1)).status == 200
    assert kinds(broker.take())[-1] == Kind.DATA
    gone = forgotten.pull()
    assert isinstance(gone, Reply)
    assert (gone.status, code_of(packets_of(gone.body)[0])) == (410, 5)
    assert forgotten.push(forgotten.data(1)).status == 410


@pytest.mark.requirement("TUN-63")
@pytest.mark.requirement("TUN-49", state="half", note="the gateway's part")
def test_tokens_survive_a_restart(stage: Stage) -> None:
    stage.broker()
    client, other = stage.tunnel(), stage.tunnel()
    stage.restart()
    stage.broker("b1", *listed(client, other))
    assert client.status(token=other.token) == 403
    assert client.status(token="") == 401
    assert client.status() == 200
    assert client.push(client.data(1)).status == 200
    assert stage.gateway.status(stage.now_s).counters.adopted == 2


@pytest.mark.requirement("TUN-51", state="half", note="the machine; processes are shown elsewhere")
def test_known_and_not_listed_is_aborted_towards_the_client(stage: Stage) -> None:
    first = stage.broker()
    kept, waiting, away = stage.tunnel(), stage.tunnel(), stage.tunnel()
    held = waiting.pull(25)
    assert isinstance(held, int)
    first.lose()
    assert stage.answers[held].status == 503
    held = kept.pull(25)
    assert isinstance(held, Reply)
    assert held.status == 503
    stage.wait(5)
    stage.broker("b1", *listed(kept), start_id=OTHER)
    for client in (waiting, away):
        reply = client.pull()
        assert isinstance(reply, Reply)
        assert (reply.status, code_of(packets_of(reply.body)[0])) == (410, 5)
    assert kept.status() == 200


@pytest.mark.requirement("TUN-51", state="half", note="the machine; processes are shown elsewhere")
def test_listed_and_ended_is_refused(stage: Stage) -> None:
    first = stage.broker()
    silent, kept = stage.tunnel(), stage.tunnel()
    first.lose()
    stage.wait(14)
    kept.status()
    first = stage.broker("b1", *listed(silent, kept))
    assert first.refused == []
    silent.push(encode(Kind.CONN_ABORT, silent.id, payload=b"\0\1"))
    first.lose()
    second = stage.broker("b1", *listed(silent, kept))
    assert second.refused == [silent.id]
    assert silent.status() == 410
    assert kept.status() == 200


@pytest.mark.requirement("TUN-51", state="half", note="the machine; processes are shown elsewhere")
def test_a_client_lost_while_the_link_was_away_is_refused_in_the_ack() -> None:
    stage = Stage(Limits(grace_s=100, inactivity_s=30))
    stage.broker().lose()
    broker = stage.broker()
    client = stage.tunnel()
    broker.lose()
    stage.wait(31)
    again = stage.broker("b1", *listed(client))
    assert again.refused == [client.id]
    assert not [packet for packet in again.got if packet.kind == Kind.CONN_ABORT], "it is told once"


def test_a_listed_tunnel_with_another_verifier_is_not_the_one_we_know(stage: Stage) -> None:
    stage.broker().lose()
    broker = stage.broker()
    client, other = stage.tunnel(), stage.tunnel()
    broker.lose()
    forged = listed(other)[0]._replace(connection_id=client.id)
    again = stage.broker("b1", forged, *listed(other))
    assert again.refused == [client.id]
    assert client.status() == 410
    assert client.status(token=other.token) == 410
    assert other.status() == 200


@pytest.mark.requirement("TUN-63", state="half", note="tunnels without a verifier")
def test_a_tunnel_without_a_verifier_is_adopted_only_where_version_1_is_allowed() -> None:
    for allow_v1 in (False, True):
        stage = Stage(allow_v1=allow_v1)
        broker = stage.broker("b1", LinkTunnel(7))
        assert broker.refused == ([] if allow_v1 else [7])
        reply = Client(stage, "b1", 7, "").status()
        assert reply == (200 if allow_v1 else 410)


def test_adopted_tunnels_are_limited_too() -> None:
    stage = Stage(Limits(tunnels_max=3))
    broker = stage.broker("b1", *(LinkTunnel(number, verifier=b"v" * 32) for number in range(1, 9)))
    assert broker.refused == [4, 5, 6, 7, 8]


@pytest.mark.requirement("TUN-52", state="half", note="the machine; processes are shown elsewhere")
def test_no_id_collides_after_a_restart() -> None:
    """The first draws of both gateways are the same here, which is the worst that can happen."""
    stage = Stage(seed=5)
    stage.broker("b1"), stage.broker("b2")
    old = [stage.tunnel("b1"), stage.tunnel("b2")]
    stage.restart()
    assert stage.connect("b1").status == 404, "before its LINK_INIT nothing can be opened"
    b1 = stage.broker("b1", *listed(old[0]))
    new = [stage.tunnel("b1") for _ in range(5)]
    b2 = stage.broker("b2", *listed(old[1]))
    assert b2.refused == []
    b1.take(), b2.take()
    ids = [one.id for one in (old[0], *new)]
    assert len(set(ids)) == 6
    for number, client in enumerate((*old, *new)):
        assert client.push(client.data(1, b"%d" % number)).status == 200
    assert [packet.payload for packet in b1.take()] == [b"0", b"2", b"3", b"4", b"5", b"6"]
    assert [packet.payload for packet in b2.take()] == [b"1"]


@pytest.mark.requirement("TUN-87", state="half", note="the gateway's part; the broker remembers them elsewhere")
def test_the_gateway_listens_in_and_link_init_brings_it_back() -> None:
    stage = Stage(Limits(inactivity_s=20, hold_s=5))
    broker = stage.broker()
    client = stage.tunnel()
    client.push(option(client.id, 1, Option.PULL_PERIOD, 30), option(client.id, 2, Option.INACTIVITY, 70))
    assert stage.gateway.status(stage.now_s).tunnels[0].silence_limit_s == 95.0
    client.push(option(client.id, 1, Option.PULL_PERIOD, 1))
    assert stage.gateway.status(stage.now_s).tunnels[0].pull_period_s == 30.0, "it is an older one, sent again"
    stage.restart()
    broker = stage.broker("b1", *listed(client, period_s=30, inactivity_s=70))
    for _ in range(9):
        stage.wait(10)
        broker.send(encode(Kind.PONG))
    assert client.status() == 200


@pytest.mark.parametrize("payload", [b"", b"1234567", b"123456789"])
def test_an_option_of_another_size_changes_nothing(stage: Stage, payload: bytes) -> None:
    stage.broker()
    client = stage.tunnel()
    before = stage.gateway.status(stage.now_s).tunnels[0].silence_limit_s
    assert client.push(encode(Kind.CONN_OPTION, client.id, 1, payload=payload)).status == 200
    assert stage.gateway.status(stage.now_s).tunnels[0].silence_limit_s == before


def test_no_option_makes_the_gateway_wait_for_ever(stage: Stage) -> None:
    stage.broker()
    client = stage.tunnel()
    for sequence, which in enumerate((*Option, 4, -1), 1):
        client.push(option(client.id, sequence, which, 2**31 - 1))
    assert stage.gateway.status(stage.now_s).tunnels[0].silence_limit_s <= 5 * 86_400
    for sequence, which in enumerate(Option, 10):
        client.push(option(client.id, sequence, which, -(2**31)))
    assert stage.gateway.status(stage.now_s).tunnels[0].silence_limit_s >= 0


@pytest.mark.requirement("TUN-11", state="half", note="the gateways; the broker's tables are shown elsewhere")
def test_two_gateways_of_one_broker_know_nothing_of_each_other() -> None:
    here, there = Stage(seed=8), Stage(seed=8)
    here.broker(), there.broker()
    one, two = here.tunnel(), there.tunnel()
    assert one.id == two.id
    here.restart()
    broker = here.broker("b1", *listed(one))
    assert broker.refused == []
    assert one.push(one.data(1)).status == 200
    assert two.push(two.data(1)).status == 200, "the other one has noticed nothing"
    assert there.log == ["'b1' is linked: 0 tunnels, 0 refused, 0 aborted."]
