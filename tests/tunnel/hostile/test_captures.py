"""What a proxy on the way sees of a tunnel: requests, headers, bodies, packets."""

from __future__ import annotations

import pytest

from fairlead.tunnel.packets import Kind, Packet, split
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox

UP, DOWN = 1_000_000, 1_500_000
PUSH, PULL = {"push"}, {"pull"}
PLAIN = {"websocket": "never"}
# Losses are found out after the resend interval: smaller packets, so that a file has many of them.
SMALL = {"payload_max": 8 << 10}


def numbers(packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in packets if packet.kind == Kind.DATA]


def header(headers: list[tuple[str, str]], name: str) -> str:
    return {key.lower(): value for key, value in headers}[name]


@pytest.mark.requirement("TUN-23")
def test_smaller_bodies_after_413(world: World, box: Middlebox) -> None:
    cap = box.faults.add(Act.CAP_REQUEST, PUSH, size=100 << 10)
    world.client(box.address, up=5_000_000, options=PLAIN).results()
    passed = box.capture.of("push", where=lambda one: one.status == 200)
    assert max(len(one.request_body) for one in passed) <= 100 << 10
    assert 1 <= cap.done < len(passed) / 2  # the size is found, and kept


@pytest.mark.requirement("TUN-26", scaled="some hundred pulls instead of 1,000")
def test_an_eager_cache_never_gets_anything(world: World, box: Middlebox) -> None:
    box.faults.add(Act.CACHE)
    client = world.client(box.address, mode="echo", rounds=300, options=PLAIN)
    client.results()
    pulls = box.capture.of("pull", where=lambda one: bool(one.answer_body))
    assert len(pulls) >= 300
    data = [packet.raw for one in pulls for packet in one.pulled if packet.kind == Kind.DATA]
    assert len(set(data)) == len(data)
    for one in box.capture.of(where=lambda one: one.status == 200):
        assert one.method == "POST"
        assert "no-store" in header(one.request_headers, "cache-control")
        assert "no-store" in header(one.answer_headers, "cache-control")


@pytest.mark.requirement("TUN-31", scaled="held for 8 s and cut at 1.5 s")
def test_a_proxy_that_cuts_pulls_short(world: World, box: Middlebox) -> None:
    box.faults.add(Act.CUT, PULL, seconds=1.5)
    client = world.client(box.address, mode="echo", rounds=4, pause_s=2.5, options={**PLAIN, "hold_s": 8.0})
    client.results()
    cut = box.capture.of("pull", where=lambda one: one.fate == "cut")
    assert 1 <= len(cut) <= 6  # the hold time was halved until it fitted
    held = [one.ended_s - one.began_s for one in box.capture.of("pull", where=lambda one: one.status == 200)]
    assert max(held) > 0.5


@pytest.mark.requirement("TUN-38")
def test_a_hundred_pushes_over_one_connection(world: World, box: Middlebox) -> None:
    client = world.client(box.address, mode="echo", rounds=100, options=PLAIN)
    client.results()
    pushes, pulls = box.capture.of("push"), box.capture.of("pull")
    assert len(pushes) >= 100
    assert len({one.client_connection for one in pushes}) <= 2  # two may be under way
    assert {one.client_connection for one in pushes}.isdisjoint({one.client_connection for one in pulls[1:]})


@pytest.mark.requirement("TUN-33", scaled="4,000 packets of 100 bytes")
def test_small_writes_share_requests_over_a_slow_path(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DELAY, PUSH | PULL, seconds=0.05)
    client = world.client(box.address, up=400_000, down=400_000, options=PLAIN, rules={"payload_max": 100})
    client.results()
    data = sum(1 for packet in box.capture.packets("up") if packet.kind == Kind.DATA)
    assert data >= 4000
    assert len(box.capture.of("push")) < data / 10


@pytest.mark.requirement("TUN-12", "TUN-16", "TUN-17", "TUN-25", "TUN-56")
def test_what_a_capture_shows(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN)
    (result,) = client.results()
    exchanges = [one for one in box.capture.exchanges if one.status == 200]
    connect, first_pull = exchanges[0], next(one for one in exchanges if one.kind == "pull")
    assert (connect.kind, [packet.kind for packet in connect.pushed]) == ("connect", [Kind.CONN_INIT])
    assert connect.pushed[0].connection_id == 0
    (granted,) = connect.pulled
    assert (granted.kind, granted.connection_id) == (Kind.CONN_INIT, result["id"])
    assert first_pull.pulled[0].kind == Kind.CONN_INIT_ACK
    ups, downs = box.capture.packets("up"), box.capture.packets("down")
    assert {packet.connection_id for packet in ups[1:] + downs} == {result["id"]}
    first_data = next(at for at, packet in enumerate(ups) if packet.kind == Kind.DATA)
    assert (Kind.ACK, 0) in [(packet.kind, packet.sequence) for packet in ups[:first_data]]  # the confirmation
    assert sorted(set(numbers(ups))) == list(range(1, max(numbers(ups)) + 1))
    assert sorted(set(numbers(downs))) == list(range(1, max(numbers(downs)) + 1))
    for one in exchanges:
        assert split(one.request_body).rest == split(one.answer_body).rest == 0
        if one.kind != "connect":
            assert f"ConnId={result['id']}" in one.target
        assert "ServerName=b1" in one.target


@pytest.mark.requirement("TUN-80", half="an edge counts as known from the time its pull began")
def test_nothing_new_is_sent_above_the_edge(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DROP_ANSWER, PULL, share=0.1)
    client = world.client(box.address, up=UP, options=PLAIN, rules=SMALL)
    client.results()
    edge, sent = 0, 0
    for one in sorted(box.capture.exchanges, key=lambda one: one.began_s):
        # An answer lies before the requests that began after it; those under way meanwhile may not know it yet.
        known = [other for other in box.capture.of("connect", "pull") if other.began_s < one.began_s]
        for packet in [packet for other in known[-3:] for packet in other.pulled]:
            if packet.kind in (Kind.ACK, Kind.CONN_INIT_ACK):
                edge = max(edge, packet.sequence + packet.window)
        for number in numbers(one.pushed):
            if number > sent:
                assert number <= edge
                sent = number


@pytest.mark.requirement("TUN-60", half="the orphan's end and a broker that speaks first are not looked at")
def test_the_first_connect_answer_is_lost(world: World, box: Middlebox) -> None:
    accepted = sum(one["event"] == "accepted" for one in world.server.events)
    box.faults.add(Act.DROP_ANSWER, {"connect"}, times=1)
    world.client(box.address, up=10_000, down=10_000, options=PLAIN).results()
    assert len(box.capture.of("connect")) == 2
    assert sum(one["event"] == "accepted" for one in world.server.events) == accepted + 1


@pytest.mark.requirement("TUN-61")
def test_the_first_pull_answer_is_lost(world: World, box: Middlebox) -> None:
    accepted = sum(one["event"] == "accepted" for one in world.server.events)
    box.faults.add(Act.DROP_ANSWER, PULL, times=1)
    world.client(box.address, up=10_000, down=10_000, options=PLAIN).results()
    assert sum(one["event"] == "accepted" for one in world.server.events) == accepted + 1


@pytest.mark.requirement("TUN-9", half="several tunnels of one client to one broker")
def test_several_tunnels_of_one_client_do_not_mix(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DROP_ANSWER, PULL, share=0.05)
    client = world.client(box.address, tunnels=5, up=200_000, down=200_000, options=PLAIN, rules=SMALL)
    results = client.results(5)
    assert len({one["id"] for one in results}) == 5
    assert 0 not in {one["id"] for one in results}
