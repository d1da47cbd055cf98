"""How a tunnel ends: closed by both, aborted by one, or found to be dead; and what is left of it."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.gateway.tokens import verifier_of
from fairlead.tunnel.link_init import LinkTunnel
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Broker, Client, Stage, code_of, kinds, option, packets_of


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def broker(stage: Stage) -> Broker:
    return stage.broker()


def aborts(broker: Broker) -> list[int]:
    return [code_of(packet) for packet in broker.take() if packet.kind == Kind.CONN_ABORT]


def keep(stage: Stage, broker: Broker, seconds: float) -> None:
    """Time passes while the broker lives."""
    for _ in range(int(seconds)):
        stage.wait(1)
        broker.send(encode(Kind.PONG))


def close(client: Client, broker: Broker) -> None:
    """Both ends, in the orderly way, with one data packet from the client."""
    client.push(client.data(1))
    broker.send(client.ack(1))
    client.fetch()
    client.push(client.close(2))
    broker.send(client.ack(2), client.close(1))
    assert len(client.fetch()) == 2
    assert client.push(client.ack(1)).status == 200


# -- orderly ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("TUN-91", state="half", note="the gateway; the ends are shown elsewhere")
@pytest.mark.requirement("TUN-57", state="half", note="the gateway; the ends are shown elsewhere")
def test_a_complete_close_frees_the_tunnel(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    assert len(stage.gateway.status(stage.now_s).tunnels) == 1
    close(client, broker)
    status = stage.gateway.status(stage.now_s)
    assert (status.tunnels, status.done, status.buffered_bytes, status.counters.closed) == ([], 1, 0, 1)
    broker.take()
    keep(stage, broker, 181)
    status = stage.gateway.status(stage.now_s)
    assert (status.done, status.ended) == (0, 0)
    assert aborts(broker) == []


@pytest.mark.requirement("TUN-91", state="half", note="the gateway; the ends are shown elsewhere")
def test_the_last_ack_waits_for_the_client(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    broker.send(client.close(1))
    client.fetch()
    client.push(client.ack(1), client.close(1))
    broker.send(client.ack(1))
    assert len(stage.gateway.status(stage.now_s).tunnels) == 1, "complete, and the client does not know"
    broker.lose()
    stage.wait(40)
    assert kinds(client.fetch()) == [Kind.ACK], "even without a link"
    assert stage.gateway.status(stage.now_s).done == 1


@pytest.mark.requirement("TUN-91", state="half", note="the gateway; the ends are shown elsewhere")
def test_the_last_ack_waits_no_longer_than_the_silence_limit(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    broker.send(client.close(1))
    client.fetch()
    client.push(client.ack(1), client.close(1))
    broker.send(client.ack(1))
    broker.take()
    keep(stage, broker, 61)
    status = stage.gateway.status(stage.now_s)
    assert (status.tunnels, status.done, status.buffered_bytes) == ([], 0, 0)
    assert aborts(broker) == [], "nothing was missing"


@pytest.mark.requirement("TUN-92", state="half", note="the gateway's part")
def test_a_client_that_lost_its_last_ack_gets_it_again(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    broker.send(client.close(1))
    client.fetch()
    client.push(client.ack(1), client.data(1), client.close(2))
    broker.send(client.ack(2))
    client.fetch()  # and is lost
    broker.take()
    for _ in range(3):
        held = client.pull(25)
        assert isinstance(held, int)
        assert client.push(client.data(1)).status == 200, "it cannot know that this was acknowledged"
        (ack,) = packets_of(stage.answers[held].body)
        assert (ack.kind, ack.sequence) == (Kind.ACK, 2)
        assert client.push(client.close(2)).status == 200
        assert [packet.sequence for packet in client.fetch()] == [2]
    broker.send(client.close(1))
    assert [packet.raw for packet in broker.take()] == [client.ack(1)], "and so does the broker"


@pytest.mark.requirement("TUN-99", state="half", note="the gateway's part")
def test_an_old_push_after_the_close_is_answered_410(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    close(client, broker)
    broker.take()
    assert client.push(client.data(1)).status == 200, "it may have been on its way"
    assert broker.take() == []
    client.fetch()
    keep(stage, broker, 11)
    replayed = client.push(client.data(1))
    assert (replayed.status, code_of(packets_of(replayed.body)[0])) == (410, 5)
    keep(stage, broker, 200)
    assert client.push(client.data(1)).status == 410
    assert client.push(client.close(2)).status == 410
    assert client.status() == 410
    assert broker.take() == []
    assert stage.gateway.status(stage.now_s).tunnels == []


def test_a_pull_after_the_close_is_held_and_spins_nobody(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    close(client, broker)
    held = client.pull(25)
    assert isinstance(held, int)
    keep(stage, broker, 26)
    assert stage.answers[held] == Reply(200)
    held = client.pull(25)
    keep(stage, broker, 100)
    assert isinstance(client.pull(0), Reply)


def test_a_closed_tunnel_that_is_listed_again_is_not_refused(stage: Stage, broker: Broker) -> None:
    """The client's last ACK never reached the broker: it gets it over the new link."""
    client = stage.tunnel()
    close(client, broker)
    broker.lose()
    again = stage.broker("b1", LinkTunnel(client.id, verifier=verifier_of(bytes.fromhex(client.token))))
    assert again.refused == []
    again.take()
    again.send(client.close(1))
    assert [packet.raw for packet in again.take()] == [client.ack(1)]


def test_the_numbers_of_a_close_wrap_round(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    client.push(client.data(2**32 - 1))
    broker.send(client.ack(2**32 - 1))
    client.fetch()
    client.push(client.close(0))
    broker.send(client.ack(2**32 - 1, 9), client.close(5))
    client.fetch()
    client.push(client.ack(5))
    assert stage.gateway.status(stage.now_s).done == 0, "the close is not acknowledged yet"
    broker.send(client.ack(0))
    client.fetch()
    assert stage.gateway.status(stage.now_s).done == 1


# -- aborts -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("TUN-94", state="half", note="the gateway; the ends are shown elsewhere")
@pytest.mark.requirement("TUN-96", state="half", note="the machine; a killed client is shown elsewhere")
def test_a_client_that_does_not_pull_is_dead_even_if_it_pushes(stage: Stage, broker: Broker) -> None:
    client, idle = stage.tunnel(), stage.tunnel()
    broker.take()
    for number in range(1, 63):
        stage.wait(1)
        broker.send(encode(Kind.PONG))
        expected = 200 if number < 60 else 410
        assert client.push(client.data(number)).status == expected
        idle.status()
    assert aborts(broker) == [3]
    gone = client.pull()
    assert isinstance(gone, Reply)
    assert (gone.status, code_of(packets_of(gone.body)[0])) == (410, 3)
    assert [one.connection_id for one in stage.gateway.status(stage.now_s).tunnels] == [idle.id]
    broker.send(client.data(1), client.ack(9))
    assert aborts(broker) == [], "it was told a moment ago"
    keep(stage, broker, 6)
    broker.send(client.ack(9), client.data(1), encode(Kind.CONN_ABORT, client.id, payload=b"\0\1"))
    assert aborts(broker) == [3], "it does not seem to have heard"


@pytest.mark.requirement("TUN-96", state="half", note="the machine")
def test_a_held_pull_is_life(stage: Stage, broker: Broker) -> None:
    stage = Stage(Limits(inactivity_s=10, hold_s=40))
    broker = stage.broker()
    client = stage.tunnel()
    for _ in range(5):
        assert isinstance(client.pull(40), int)
        keep(stage, broker, 41)
    assert client.status() == 200


@pytest.mark.requirement("TUN-97")
def test_the_limit_is_at_least_three_pull_periods_and_a_hold() -> None:
    stage = Stage(Limits(inactivity_s=10, hold_s=5))
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(option(client.id, 1, Option.PULL_PERIOD, 20), option(client.id, 2, Option.INACTIVITY, 10))
    client.fetch()
    keep(stage, broker, 64)
    assert client.status() == 200
    keep(stage, broker, 66)
    assert client.status() == 410


def test_a_shorter_limit_holds_at_once(stage: Stage, broker: Broker) -> None:
    stage = Stage(Limits(hold_s=1))
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(option(client.id, 1, Option.INACTIVITY, 3))
    stage.wait(2.9)
    assert len(stage.gateway.status(stage.now_s).tunnels) == 1
    stage.wait(0.2)
    assert stage.gateway.status(stage.now_s).tunnels == []
    assert aborts(broker) == [3]


@pytest.mark.requirement("TUN-94", state="half", note="the gateway's part")
@pytest.mark.parametrize("way", ["held", "later", "stream"])
def test_the_brokers_abort_overtakes_what_waits(stage: Stage, broker: Broker, way: str) -> None:
    client = stage.tunnel()
    broker.take()
    abort = encode(Kind.CONN_ABORT, client.id, payload=b"\0\1enough")
    if way == "held":
        held = client.pull(25)
        assert isinstance(held, int)
        broker.send(abort, client.data(1))
        assert stage.answers[held] == Reply(410, abort)
    elif way == "stream":
        key = client.stream()
        assert isinstance(key, int)
        broker.send(abort, client.data(1))
        assert [packet.raw for packet in stage.frames[key]] == [abort]
        assert key in stage.closed_streams
    broker.send(client.data(1), abort)
    reply = client.pull(25)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.body) == (410, abort)
    status = stage.gateway.status(stage.now_s)
    assert (status.tunnels, status.buffered_bytes) == ([], 0)
    assert aborts(broker) == []


@pytest.mark.requirement("TUN-94", state="half", note="the gateway's part")
def test_the_clients_abort_reaches_the_broker_once(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    broker.take()
    abort = encode(Kind.CONN_ABORT, client.id, payload=b"\0\1bye")
    assert client.push(client.data(1), abort, client.data(2)).status == 200
    assert client.push(abort).status == 410
    got = broker.take()
    assert kinds(got) == [Kind.DATA, Kind.CONN_ABORT]
    assert got[-1].raw == abort


def test_long_reasons_are_not_remembered_at_length(stage: Stage, broker: Broker) -> None:
    for is_clients in (True, False):
        client = stage.tunnel()
        broker.take()
        abort = encode(Kind.CONN_ABORT, client.id, payload=b"\0\1" + b"x" * 30_000)
        if is_clients:
            assert client.push(abort).status == 200
            assert [packet.raw for packet in broker.take()] == [abort], "it is passed on as it came"
        else:
            broker.send(abort)
        reply = client.pull()
        assert isinstance(reply, Reply)
        assert len(reply.body) < 600
        assert code_of(packets_of(reply.body)[0]) == 1


def test_long_acks_are_none(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    broker.take()
    for kind in (Kind.ACK, Kind.CONN_INIT_ACK):
        long = encode(kind, client.id, 1, 9, payload=bytes(30_000))
        broker.send(long)
        client.push(long)
    assert broker.take() == []
    assert client.fetch() == []
    assert stage.gateway.status(stage.now_s).counters.misplaced == 4


@pytest.mark.requirement("TUN-62", state="half", note="a broker that does not accept")
def test_a_refusing_broker_frees_everything(stage: Stage, broker: Broker) -> None:
    client = stage.client()
    broker.send(encode(Kind.CONN_ABORT, client.id, payload=b"\0\7not now"))
    assert client.status() == 410
    assert stage.gateway.status(stage.now_s).tunnels == []


@pytest.mark.requirement("TUN-60", state="half", note="the gateway's part: the orphan ends by silence")
def test_an_orphan_is_ended_by_silence(stage: Stage, broker: Broker) -> None:
    orphan, client = stage.client(), stage.tunnel()
    for _ in range(70):
        keep(stage, broker, 1)
        client.status()
    assert [one.connection_id for one in stage.gateway.status(stage.now_s).tunnels] == [client.id]
    assert aborts(broker) == [3]
    assert orphan.status() == 410


def test_a_broker_that_sends_for_a_tunnel_that_never_was_is_told(stage: Stage, broker: Broker) -> None:
    broker.take()
    stranger = Client(stage, "b1", 4711, "")
    broker.send(stranger.data(1), stranger.data(2))
    (abort,) = broker.take()
    assert (abort.connection_id, code_of(abort)) == (4711, 5)
    assert stranger.status() == 410
    assert stage.gateway.status(stage.now_s).tunnels == []
