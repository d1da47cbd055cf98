"""What a pull or a stream gets, and when."""

from __future__ import annotations

import pytest

from fairlead.tunnel.gateway import Limits, Reply
from fairlead.tunnel.packets import Kind, encode
from fairlead.tunnel.rules import Option
from tests.tunnel.gateway.stage import Stage, code_of, kinds, option, packets_of


@pytest.fixture
def stage() -> Stage:
    return Stage()


def reason(reply: Reply) -> str:
    return dict(reply.headers)["Fairlead-Reason"]


@pytest.mark.requirement("TUN-31", state="half", note="the gateway's part")
def test_a_pull_is_held_until_a_packet_comes_or_the_time_is_over(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    held = client.pull(hold_s=1000)
    assert isinstance(held, int)
    stage.wait(24.9)
    assert held not in stage.answers
    stage.wait(0.2)
    assert stage.answers[held] == Reply(200), "empty, after the longest hold"
    held = client.pull(hold_s=10)
    assert isinstance(held, int)
    stage.wait(3)
    broker.send(client.data(1), client.data(2))
    assert [packet.sequence for packet in packets_of(stage.answers[held].body)] == [1, 2]
    assert client.pull(hold_s=0) == Reply(200)
    assert client.pull(hold_s=float("nan")) == Reply(200)


@pytest.mark.requirement("TUN-31", state="half", note="the gateway's part")
def test_with_a_pull_period_pulls_are_answered_at_once(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(option(client.id, 1, Option.PULL_PERIOD, 5))
    client.fetch()
    assert client.pull(hold_s=25) == Reply(200)
    broker.send(option(client.id, 2, Option.PULL_PERIOD, 0))
    client.fetch()
    assert isinstance(client.pull(hold_s=25), int)
    broker.send(option(client.id, 3, Option.HOLD, 2))
    held = client.pull(hold_s=25)
    assert isinstance(held, int)
    stage.wait(2.1)
    assert held in stage.answers


@pytest.mark.requirement("TUN-32")
def test_the_newest_pull_wins(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    old = client.pull(25)
    new = client.pull(25)
    assert isinstance(old, int)
    assert isinstance(new, int)
    assert stage.answers == {old: Reply(200)}
    broker.send(client.data(1))
    assert kinds(packets_of(stage.answers[new].body)) == [Kind.DATA]


def test_a_pull_whose_client_went_away_takes_no_packets_with_it(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    held = client.pull(25)
    assert isinstance(held, int)
    stage.gateway.forget(held, stage.now_s)
    stage.gateway.forget(held, stage.now_s)
    stage.gateway.forget(12345, stage.now_s)
    broker.send(client.data(1))
    assert held not in stage.answers
    assert kinds(client.fetch()) == [Kind.DATA]


@pytest.mark.requirement("TUN-33", state="half", note="the gateway's part")
@pytest.mark.requirement("TUN-68", state="half", note="handed out is gone; the resend is shown in the simulation")
def test_a_pull_takes_what_waits_up_to_the_body_limit() -> None:
    stage = Stage(Limits(body_max=100_000))
    broker = stage.broker()
    client = stage.tunnel()
    broker.send(*(client.data(number, bytes(30_000)) for number in range(1, 8)), client.ack(1))
    sizes = []
    seen: list[int] = []
    while packets := client.fetch():
        sizes.append(sum(len(packet.raw) for packet in packets))
        seen += [packet.sequence for packet in packets if packet.kind == Kind.DATA]
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert len(sizes) == 3
    assert max(sizes) <= 100_000
    assert stage.gateway.status(stage.now_s).buffered_bytes == 0


@pytest.mark.requirement("TUN-67")
def test_each_number_waits_once_and_only_the_most_advanced_ack(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    for _ in range(4):
        broker.send(client.data(1), client.data(2), client.close(3))
    for sequence, window in ((2, 9), (5, 1), (5, 4), (4, 90), (5, 2)):
        broker.send(client.ack(sequence, window))
    found = client.fetch()
    assert [packet.sequence for packet in found if packet.kind != Kind.ACK] == [1, 2, 3]
    assert [(packet.sequence, packet.window) for packet in found if packet.kind == Kind.ACK] == [(5, 4)]
    for sequence, window in ((2**32 - 1, 5), (0, 1), (2**32 - 2, 9)):
        broker.send(client.ack(sequence, window))
    assert [(packet.sequence, packet.window) for packet in client.fetch()] == [(0, 1)], "numbers wrap round"


@pytest.mark.requirement("TUN-67")
@pytest.mark.requirement("TUN-47", state="half", note="the machine; sockets are shown elsewhere")
def test_a_full_buffer_drops_packets_of_its_own_tunnel_only(stage: Stage) -> None:
    broker = stage.broker()
    slow, quick = stage.tunnel(window=4), stage.tunnel(window=4)
    broker.send(*(slow.data(number) for number in range(1, 100)), slow.ack(7), quick.data(1))
    assert kinds(quick.fetch()) == [Kind.DATA]
    found = slow.fetch()
    assert [packet.sequence for packet in found if packet.kind == Kind.DATA] == list(range(1, 21))
    assert [packet.sequence for packet in found if packet.kind == Kind.ACK] == [7], "control has room of its own"
    assert stage.gateway.status(stage.now_s).counters.dropped == 79


@pytest.mark.requirement("TUN-42", state="half", note="one gateway; two behind a balancer are shown elsewhere")
def test_a_tunnel_of_another_instance_is_not_gone(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    pull, push, stream = stage.gateway.pull, stage.gateway.push, stage.gateway.stream
    for instance, status in (("there", 503), ("here", 410), ("", 410)):
        for reply in (
            pull("b1", client.id ^ 1, "", 0, 1, stage.now_s, instance=instance),
            push("b1", client.id ^ 1, "", client.data(1), stage.now_s, instance=instance),
            stream("b1", client.id ^ 1, "", 2, stage.now_s, instance=instance),
        ):
            assert reply is not None
            assert reply.status == status
    known = pull("b1", client.id, client.token, 0, 1, stage.now_s, instance="an older name")
    assert known == Reply(200), "a gateway knows its own, whatever it was called before"
    assert broker.closed == ""


@pytest.mark.requirement("TUN-39", state="half", note="the gateway's part")
def test_a_stream_carries_packets_both_ways_and_the_tunnel_survives_it(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    broker.take()
    broker.send(client.data(1))
    held = client.pull(25)
    assert isinstance(held, Reply)
    held = client.pull(25)
    key = client.stream()
    assert isinstance(key, int)
    assert isinstance(held, int)
    assert stage.answers[held] == Reply(200)
    broker.send(client.data(2))
    client.frame(key, client.data(1), client.ack(2))
    client.frame(key, encode(Kind.PING, client.id, payload=b"are you there"))
    assert kinds(broker.take()) == [Kind.DATA, Kind.ACK]
    data, pong = stage.frames[key]
    assert (data.kind, data.sequence) == (Kind.DATA, 2)
    assert (pong.kind, pong.payload) == (Kind.PONG, b"are you there")
    assert stage.gateway.status(stage.now_s).tunnels[0].carrier == "websocket"
    stage.gateway.forget(key, stage.now_s)
    broker.send(client.data(3))
    assert [packet.sequence for packet in client.fetch()] == [3]


def test_whoever_came_last_gets_the_packets(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    first, second = client.stream(), client.stream()
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert first in stage.closed_streams
    held = client.pull(25)
    assert second in stage.closed_streams
    broker.send(client.data(1))
    assert held in stage.answers
    client.frame(second, client.data(1))
    assert kinds(broker.take()[-1:]) != [Kind.DATA], "a stream that was replaced is not listened to"


@pytest.mark.requirement("TUN-39", state="half", note="silence at the gateway")
def test_anything_over_a_stream_is_life(stage: Stage) -> None:
    broker = stage.broker()
    client = stage.tunnel()
    key = client.stream()
    assert isinstance(key, int)
    for _ in range(10):
        broker.send(encode(Kind.PONG))
        stage.wait(20)
        broker.send(encode(Kind.PONG))
        client.frame(key, encode(Kind.PING, client.id))
    assert len(stage.gateway.status(stage.now_s).tunnels) == 1
    broker.take()
    for _ in range(4):
        stage.wait(20)
        broker.send(encode(Kind.PONG))
    assert [code_of(packet) for packet in broker.take() if packet.kind == Kind.CONN_ABORT] == [3]
    assert code_of(stage.frames[key][-1]) == 3
    assert key in stage.closed_streams


@pytest.mark.parametrize("frame", ["foreign", "link", "large"])
def test_a_frame_that_cannot_be_used_ends_the_stream_and_not_the_tunnel(stage: Stage, frame: str) -> None:
    broker = stage.broker()
    client, other = stage.tunnel(), stage.tunnel()
    broker.take()
    key = client.stream()
    assert isinstance(key, int)
    body = {"foreign": other.data(1), "link": encode(Kind.LINK_INIT, client.id), "large": bytes((1 << 20) + 1)}[frame]
    client.frame(key, body)
    assert key in stage.closed_streams
    assert not broker.take()
    assert client.push(client.data(1)).status == 200
