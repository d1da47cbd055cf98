"""Beyond a limit the newcomer is refused (TUN-101); and what can be seen of it all (TUN-102)."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Stage, kinds, option


@pytest.fixture
def stage() -> Stage:
    return Stage()


def reason(reply: Reply) -> str:
    return dict(reply.headers)["Fairlead-Reason"]


@pytest.mark.requirement("TUN-101")
@pytest.mark.requirement(
    "TUN-36", state="half", note="the gateway's answers; the client's reactions are shown elsewhere"
)
@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (Limits(tunnels_max=3), 429),
        (Limits(tunnels_per_address=3), 429),
        (Limits(tunnels_per_server=3), 429),
        (Limits(opens_per_s=1.5), 503),
        (Limits(buffered_bytes_max=3), 503),
    ],
    ids=["in all", "by address", "by server", "opens", "bytes"],
)
def test_beyond_a_limit_the_newcomer_is_refused_and_nobody_else(limits: Limits, status: int) -> None:
    stage = Stage(limits)
    broker = stage.broker()
    stage.broker("b2")
    clients = [stage.client() for _ in range(3)]
    for client in clients:
        broker.send(encode(Kind.CONN_INIT_ACK, client.id))
    refused = stage.connect()
    assert refused.status == status
    assert dict(refused.headers)["Retry-After"] == "1"
    for client in clients:
        assert kinds(client.fetch()) == [Kind.CONN_INIT_ACK]
        assert client.push(client.data(1)).status == 200
    elsewhere = stage.connect("b2", address="10.0.0.2").status
    assert elsewhere == (200 if limits.tunnels_max > 3 and limits.opens_per_s > 2 else status)


@pytest.mark.requirement("TUN-101")
def test_places_are_given_back_and_opens_come_again() -> None:
    stage = Stage(Limits(tunnels_max=1, opens_per_s=1.0))
    stage.broker()
    for _ in range(2):
        client = stage.client()
        assert stage.connect().status == 429
        client.push(encode(Kind.CONN_ABORT, client.id, payload=b"\0\1"))
    assert stage.connect().status == 503, "two seconds' worth are spent"
    stage.wait(1.01)
    assert stage.connect().status == 200


@pytest.mark.requirement("TUN-101")
def test_all_buffers_together_stay_below_their_limit() -> None:
    stage = Stage(Limits(buffered_bytes_max=100_000))
    broker = stage.broker()
    clients = [stage.tunnel() for _ in range(10)]
    for number in range(1, 20):
        for client in clients:
            broker.send(client.data(number, bytes(2000)))
    assert 90_000 < stage.gateway.status(stage.now_s).buffered_bytes <= 100_000
    for client in clients:
        client.fetch()
    assert stage.gateway.status(stage.now_s).buffered_bytes == 0


@pytest.mark.requirement("TUN-102", state="half", note="the gateway's view; round trips are the ends'")
def test_the_state_of_a_tunnel_can_be_seen(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel(window=100)
    client.push(*(client.data(number) for number in (1, 2, 3, 2)), client.ack(0, 100))
    broker.send(client.ack(2, 40), client.data(1), option(client.id, 2, Option.PULL_PERIOD, 30))
    stage.wait(2)
    status = stage.gateway.status(stage.now_s)
    (seen,) = status.tunnels
    assert (seen.connection_id, seen.server, seen.version, seen.carrier) == (client.id, "b1", 2, "push/pull")
    assert (seen.state, seen.address, seen.pull_period_s, seen.last_pull_s) == ("open", "10.0.0.1", 30.0, 2.0)
    assert (seen.up.received, seen.up.window, seen.up.edge, seen.up.unacknowledged) == (2, 40, 42, 1)
    assert (seen.up.consumed, seen.up.resends, seen.up.packets) == ((42 - 50) % 2**32, 1, 4)
    assert (seen.down.received, seen.down.consumed, seen.down.window) == (0, 0, 100)
    assert (seen.waiting_packets, seen.silence_limit_s) == (3, 115.0)
    (link,) = status.links
    assert (link.server, link.tunnels, link.silent_s) == ("b1", 1, 2.0)
    broker.lose()
    assert stage.gateway.status(stage.now_s).tunnels[0].state == "suspended"
