"""Memory: what is refused, closed, aborted or forgotten leaves nothing behind (TUN-57, TUN-91)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import count

import pytest

from fairlead.tunnel.gateway import Limits
from fairlead.tunnel.packets import Kind, encode
from tests.tunnel.gateway.stage import Broker, Client, Stage

ROUNDS = 10_000


def sizes(stage: Stage) -> dict[str, int]:
    """Of every table there is."""
    hub, links = stage.gateway._hub, stage.gateway._links
    return {
        "tunnels": sum(1 for _ in hub.table.tunnels()),
        "done": len(hub.table.done),
        "ended": len(hub.table.ended),
        "servers": len(hub.table.servers),
        "places": hub.places.total + len(hub.places.addresses) + len(hub.places.servers),
        "pulls": len(hub.pulls) + len(hub.streams),
        "links": len(links._links),
        "effects": len(hub.effects),
        "buffered": hub.buffered,
        "deadlines": len(hub.deadlines._wanted),
    }


def rest(stage: Stage, broker: Broker, seconds: int) -> None:
    for _ in range(seconds):
        stage.wait(1)
        broker.send(encode(Kind.PONG))
    broker.take()


OURS = (tracemalloc.Filter(True, "*/fairlead/*", all_frames=True), tracemalloc.Filter(True, __file__, all_frames=True))
FRAMES = 6  # deep enough to see who called into the standard library


def used_bytes(call: Callable[[], None], *, first: int, then: int) -> int:
    """What our code holds after so many more calls, and did not after the first ones; other threads may be busy too."""
    tracemalloc.start(FRAMES)
    try:
        held = []
        for times in (first, then):
            for _ in range(times):
                call()
            gc.collect()
            held.append(tracemalloc.take_snapshot().filter_traces(OURS))
    finally:
        tracemalloc.stop()
    grown = held[1].compare_to(held[0], "lineno")
    print(*grown[:5], sep="\n")
    return sum(line.size_diff for line in grown)


def open_and_close(stage: Stage, broker: Broker) -> None:
    client = stage.tunnel()
    client.push(client.ack(0, 100), client.data(1, b"x" * 100), client.close(2))
    broker.send(client.ack(2), client.data(1, b"y" * 100), client.close(2))
    client.fetch()
    client.push(client.ack(2))
    broker.take()


@pytest.mark.requirement("TUN-57", state="half", note="the gateway; the broker is shown elsewhere")
def test_10_000_refused_opens_leave_nothing() -> None:
    stage = Stage(Limits(tunnels_max=5))
    broker = stage.broker()
    clients = [stage.tunnel() for _ in range(5)]
    broker.take()
    before = sizes(stage)

    numbers = count()

    def refused_open() -> None:
        number = next(numbers)
        name, address = (("b1", "nobody", "B1")[number % 3], f"10.0.{number >> 8}.{number & 255}")
        assert stage.connect(name, address=address).status in (404, 429)

    for _ in range(ROUNDS):
        refused_open()
    assert used_bytes(refused_open, first=10, then=1000) < 20_000
    assert sizes(stage) == before
    assert broker.take() == [], "the broker has not heard of them"
    assert all(client.status() == 200 for client in clients)


@pytest.mark.requirement("TUN-57", state="half", note="the gateway; the broker is shown elsewhere")
def test_opens_which_the_broker_refuses_leave_nothing() -> None:
    stage = Stage(Limits(opens_per_s=1e9, ended_max=200))
    broker = stage.broker()

    def refused_open() -> None:
        client = stage.client()
        broker.send(encode(Kind.CONN_ABORT, client.id, payload=b"\0\7no"))
        broker.take()

    for _ in range(2000):
        refused_open()
    assert sizes(stage)["ended"] == 200
    assert used_bytes(refused_open, first=400, then=800) < 100_000
    assert sizes(stage)["ended"] == 200
    rest(stage, broker, 200)
    assert sizes(stage) == sizes(fresh())


def fresh() -> Stage:
    stage = Stage()
    stage.broker()
    return stage


@pytest.mark.requirement("TUN-91", state="scaled", note="10 000 rounds in the gateway; the ends are shown elsewhere")
def test_10_000_rounds_of_open_and_close_leave_nothing() -> None:
    stage = Stage(Limits(opens_per_s=1e9, ended_max=200))
    broker = stage.broker()
    assert used_bytes(lambda: open_and_close(stage, broker), first=400, then=800) < 100_000
    for _ in range(ROUNDS):
        open_and_close(stage, broker)
    assert sizes(stage)["done"] == 200, "the oldest make room"
    rest(stage, broker, 400)
    assert sizes(stage) == sizes(fresh())
    assert stage.gateway.status(stage.now_s).counters.closed == ROUNDS + 1200


def test_a_crowd_that_vanishes_leaves_nothing() -> None:
    stage = Stage(Limits(opens_per_s=1e9))
    broker = stage.broker()
    clients: list[Client] = []
    for number in range(900):
        clients.append(stage.tunnel())
        if number % 3 == 0:
            clients[-1].pull(25)
        elif number % 3 == 1:
            clients[-1].stream()
        broker.send(clients[-1].data(1, bytes(1000)))
    broker.take()
    rest(stage, broker, 300)
    assert sizes(stage) == sizes(fresh())
    broker.lose()
    stage.wait(60)
    assert stage.gateway.next_at() == float("inf"), "there is nothing left to look after"


def test_brokers_that_never_come_back_are_forgotten_when_others_come() -> None:
    stage = Stage(Limits(servers_max=50, grace_s=1))
    for number in range(500):
        stage.broker(f"b{number}").lose()
        stage.wait(2)
    assert sizes(stage)["servers"] == 50


def test_strangers_on_the_link_port_leave_nothing() -> None:
    stage = Stage()
    for number in range(2000):
        stranger = stage.dial()
        if number % 2:
            stranger.introduce(f"b{number}", secret=b"guess")
        else:
            stranger.lose()
    stage.wait(60)
    assert sizes(stage) == sizes(Stage())
