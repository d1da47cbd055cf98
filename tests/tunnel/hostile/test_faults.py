"""Each fault a path can have, alone and together, under a transfer in both directions: every byte once and in order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fairlead.tunnel.packets import Kind, Packet, split
from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox

UP, DOWN = 2_000_000, 3_000_000
PUSH, PULL = {"push"}, {"pull"}
PLAIN = {"websocket": "never"}
# Losses are found out after the resend interval: smaller packets, so that a file has many of them.
SMALL = {"payload_max": 8 << 10}


def numbers(packets: list[Packet]) -> list[int]:
    return [packet.sequence for packet in packets if packet.kind == Kind.DATA]


def header(headers: list[tuple[str, str]], name: str) -> str:
    return {key.lower(): value for key, value in headers}[name]


FAULTS: dict[str, tuple[Act, set[str], dict[str, Any]]] = {
    "every third push is lost": (Act.DROP_REQUEST, PUSH, {"every": 3}),
    "a fifth of the pushes' answers are lost": (Act.DROP_ANSWER, PUSH, {"share": 0.2}),
    "a fifth of the pull answers are lost": (Act.DROP_ANSWER, PULL, {"share": 0.2}),
    "every push comes twice": (Act.REPLAY, PUSH, {}),
    "every pull comes twice": (Act.REPLAY, PULL, {"every": 2}),
    "every second push is a second late": (Act.DELAY, PUSH, {"every": 2, "seconds": 1.0}),
    "every third pull is late": (Act.DELAY, PULL, {"every": 3, "seconds": 0.3}),
    "bodies above 100 KiB are refused": (Act.CAP_REQUEST, PUSH, {"size": 100 << 10}),
    "a bit of every 50th packet": (Act.FLIP, PUSH | PULL, {"every": 50}),
    "no keep-alive": (Act.NO_KEEP_ALIVE, PUSH | PULL, {}),
    "whole answers only": (Act.BUFFER, PUSH | PULL, {}),
    "closed between requests": (Act.CLOSE_IDLE, PUSH | PULL, {"every": 2}),
    "every fourth answer is a page": (Act.ERROR_PAGE, PUSH | PULL, {"every": 4}),
    "an eager cache": (Act.CACHE, PUSH | PULL, {}),
}


@pytest.mark.requirement("TUN-5", "TUN-68", "TUN-73", half="each fault alone")
@pytest.mark.parametrize("name", FAULTS)
def test_one_fault(world: World, box: Middlebox, name: str) -> None:
    act, kinds, more = FAULTS[name]
    fault = box.faults.add(act, kinds, **more)
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN, rules=SMALL)
    (result,) = client.results()
    assert result["carrier"] == "push/pull"
    if act is Act.CACHE:
        assert fault.done == 0
        assert not box.cached  # everything said no-store (TUN-26)
    elif act is not Act.BUFFER:
        assert fault.done > 0


@pytest.mark.requirement("TUN-5", "TUN-35", "TUN-37", "TUN-100", half="minutes, not months")
def test_many_faults_at_once(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DROP_REQUEST, PUSH | PULL, share=0.05)
    box.faults.add(Act.DROP_ANSWER, PUSH | PULL, share=0.05)
    box.faults.add(Act.REPLAY, PUSH | PULL, share=0.1)
    box.faults.add(Act.DELAY, PUSH | PULL, share=0.1, seconds=0.2)
    box.faults.add(Act.FLIP, PUSH | PULL, share=0.01)
    box.faults.add(Act.ERROR_PAGE, PUSH | PULL, share=0.05)
    box.faults.add(Act.CLOSE_IDLE, PUSH | PULL, share=0.2)
    box.faults.add(Act.CAP_REQUEST, PUSH, size=64 << 10)
    world.client(box.address, up=1_000_000, down=1_000_000, options=PLAIN, rules=SMALL).results()


@pytest.mark.requirement("TUN-20")
def test_every_flipped_bit_is_counted_and_none_is_delivered(world: World, box: Middlebox) -> None:
    before = world.gateway_status()["counters"]["damaged"]
    up = box.faults.add(Act.FLIP, PUSH, every=50)
    down = box.faults.add(Act.FLIP, PULL, every=50)
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN, rules=SMALL)
    client.results()
    box.faults.clear()
    (status,) = client.status()
    assert up.done > 0
    assert down.done > 0
    assert world.gateway_status()["counters"]["damaged"] - before == up.done
    assert status["damaged"] == down.done


@pytest.mark.requirement("TUN-20")
def test_without_flips_nothing_counts_as_damaged(world: World, box: Middlebox) -> None:
    before = world.gateway_status()["counters"]["damaged"]
    client = world.client(box.address, up=UP, down=DOWN, options=PLAIN)
    client.results()
    assert client.status()[0]["damaged"] == 0
    assert world.gateway_status()["counters"]["damaged"] == before


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


@pytest.mark.requirement("TUN-35", scaled="a few seconds instead of 20")
@pytest.mark.requirement("TUN-100", half="one failure")
def test_pages_for_people_for_a_while(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=20_000_000, down=20_000_000, options=PLAIN)
    client.moved(4)
    page = box.faults.add(Act.ERROR_PAGE)
    until(lambda: page.done >= 6)
    box.faults.remove(page)
    client.results()


@pytest.mark.requirement("TUN-28", scaled="a few seconds instead of 10")
def test_data_keep_coming_while_pushes_are_blocked(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=1_000_000, down=12_000_000, options=PLAIN, rules={"capacity": 1000})
    until(lambda: client.failed() or box.capture.of("pull", where=lambda one: len(one.answer_body) > 1000))
    hole = box.faults.add(Act.SWALLOW, PUSH)
    until(lambda: hole.done)
    # Without pushes the window is not renewed: what it allows is what can come.
    until(lambda: client.latest("moved", {"mib": 0})["mib"] >= 8, "data while no push passes")
    assert hole in box.faults.active
    box.faults.remove(hole)
    client.results()


@pytest.mark.requirement("TUN-79", half="the path heals before the limit")
def test_a_black_hole_for_a_while(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=20_000_000, down=20_000_000, options=PLAIN)
    client.moved(4)
    hole = box.faults.add(Act.SWALLOW)
    until(lambda: hole.done >= 2)
    time.sleep(2.0)  # nothing can be waited for in a black hole
    box.faults.remove(hole)
    client.results()


@pytest.mark.requirement("TUN-79", half="the client only, a limit of 4 s")
def test_a_black_hole_for_good_ends_the_tunnel_near_the_limit(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=50_000_000, options=PLAIN, rules={"give_up_s": 4.0})
    client.moved(4)
    box.faults.add(Act.SWALLOW)
    began_s = time.monotonic()
    (event,) = client.wait("failed")
    assert time.monotonic() - began_s >= 3.5
    assert "ConnectionLost" in event["error"]


@pytest.mark.requirement("TUN-31")
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


@pytest.mark.requirement("TUN-33")
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


@pytest.mark.requirement("TUN-60")
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


@pytest.mark.requirement("TUN-39")
def test_a_websocket_is_cut_and_upgrades_are_blocked(world: World, box: Middlebox) -> None:
    box.faults.add(Act.CUT_UPGRADED, size=3_000_000)
    client = world.client(box.address, up=10_000_000, down=10_000_000, options={"websocket": "auto"})
    until(lambda: box.capture.of("stream", where=lambda one: one.fate == "upgraded") or client.failed())
    box.faults.add(Act.NO_UPGRADE)
    (result,) = client.results()
    assert result["carrier"] == "push/pull"
    assert {packet.connection_id for packet in box.capture.packets("up")[1:]} == {result["id"]}


@pytest.mark.requirement("TUN-39")
def test_without_upgrades_it_is_push_and_pull_from_the_start(world: World, box: Middlebox) -> None:
    refused = box.faults.add(Act.NO_UPGRADE)
    client = world.client(box.address, up=UP, down=DOWN, options={"websocket": "auto"})
    (result,) = client.results()
    assert result["carrier"] == "push/pull"
    assert refused.done >= 1


@pytest.mark.requirement("TUN-39", half="cut again and again, upgrades allowed")
def test_websockets_that_are_cut_again_and_again(world: World, box: Middlebox) -> None:
    box.faults.add(Act.CUT_UPGRADED, size=2_000_000)
    client = world.client(box.address, up=8_000_000, down=8_000_000, options={"websocket": "auto"})
    client.results()
    assert box.capture.of("stream", where=lambda one: one.fate == "upgraded")


@pytest.mark.requirement("TUN-100", scaled="a few times in seconds instead of every minute for an hour")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_a_proxy_that_dies_and_comes_back(world: World, box: Middlebox, websocket: str) -> None:
    client = world.client(box.address, up=20_000_000, down=20_000_000, options={"websocket": websocket})
    for mib in (4, 12, 20):
        client.moved(mib)
        box.stop_listening()
        time.sleep(0.7)
        box.listen_again()
    client.results()


@pytest.mark.requirement("TUN-5", half="the client's address changes")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_the_clients_address_changes(world: World, box: Middlebox, websocket: str) -> None:
    client = world.client(box.address, up=20_000_000, down=20_000_000, options={"websocket": websocket})
    client.moved(4)
    box.move("127.0.0.2")
    client.moved(16)
    box.move("127.0.0.3")
    client.results()


@pytest.mark.requirement("TUN-9", half="several tunnels of one client to one broker")
def test_several_tunnels_of_one_client_do_not_mix(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DROP_ANSWER, PULL, share=0.05)
    client = world.client(box.address, tunnels=5, up=200_000, down=200_000, options=PLAIN, rules=SMALL)
    results = client.results(5)
    assert len({one["id"] for one in results}) == 5
    assert 0 not in {one["id"] for one in results}


def test_no_thread_of_the_box_is_left(world: World) -> None:
    assert [one.name for one in threading.enumerate() if one.name == "middlebox"] == []
