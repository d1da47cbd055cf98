"""The way is shut for a while, or moves, or changes its kind, in the middle of a transfer in both directions."""

from __future__ import annotations

import time

import pytest

from tests.tunnel.hostile.harness import World, until
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox

UP, DOWN = 2_000_000, 3_000_000
PUSH = {"push"}
PLAIN = {"websocket": "never"}


@pytest.mark.requirement("TUN-35", scaled="a few seconds instead of 20")
@pytest.mark.requirement("TUN-100", half="one failure")
def test_pages_for_people_for_a_while(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=10_000_000, down=10_000_000, options=PLAIN)
    client.moved(2)
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
    client = world.client(box.address, up=10_000_000, down=10_000_000, options=PLAIN)
    client.moved(2)
    hole = box.faults.add(Act.SWALLOW)
    until(lambda: hole.done >= 2)
    time.sleep(2.0)  # nothing can be waited for in a black hole
    box.faults.remove(hole)
    client.results()


@pytest.mark.requirement("TUN-79", half="the client only, a limit of 4 s")
def test_a_black_hole_for_good_ends_the_tunnel_near_the_limit(world: World, box: Middlebox) -> None:
    client = world.client(box.address, up=500_000_000, options=PLAIN, rules={"give_up_s": 4.0})
    client.moved(2)
    box.faults.add(Act.SWALLOW)
    began_s = time.monotonic()
    (event,) = client.wait("failed")
    assert time.monotonic() - began_s >= 3.5
    assert "ConnectionLost" in event["error"]


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
    client = world.client(box.address, up=10_000_000, down=10_000_000, options={"websocket": websocket})
    for mib in (2, 6, 10):
        client.moved(mib)
        box.stop_listening()
        time.sleep(0.7)
        box.listen_again()
    client.results()


@pytest.mark.requirement("TUN-5", half="the client's address changes")
@pytest.mark.parametrize("websocket", ["auto", "never"])
def test_the_clients_address_changes(world: World, box: Middlebox, websocket: str) -> None:
    client = world.client(box.address, up=10_000_000, down=10_000_000, options={"websocket": websocket})
    client.moved(2)
    box.move("127.0.0.2")
    client.moved(8)
    box.move("127.0.0.3")
    client.results()
