"""A node on several buses: one view over all, order across them, and control talk passed on between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from fairlead.bus.edge.tap import Tap
from fairlead.bus.faults import FaultSwitch
from tests.bus.rig import Town

CARRIERS = ("tcp", "local", "udp")


@pytest.fixture(params=CARRIERS)
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    with Town(request.param) as town:
        yield town


def form_a(town: Town) -> None:
    """Two CMs on both buses, one MM on each."""
    town.add("cm1", ("one", "two"))
    town.add("cm2", ("one", "two"))
    town.add("mm1", ("one",))
    town.add("mm2", ("two",))
    town.settled()


def test_the_view_is_the_union_over_buses(town: Town) -> None:
    form_a(town)
    peers = town.stations["mm1"].bus.view.peers
    assert {name: peer.buses for name, peer in peers.items()} == {
        "cm1": ("one", "two"),
        "cm2": ("one", "two"),
        "mm1": ("one",),
        "mm2": ("two",),
    }
    ranks = {tuple((name, peer.rank) for name, peer in one.bus.view.peers.items()) for one in town.stations.values()}
    assert len(ranks) == 1
    town.stations["mm2"].bus.tag("groups", {"b": {"role": "primary"}})
    town.until(lambda: town.stations["mm1"].bus.view.peers["mm2"].tag == {"groups": {"b": {"role": "primary"}}})


@pytest.mark.requirement("CLU-50")
def test_control_talk_is_passed_on_once_and_message_traffic_is_not(town: Town) -> None:
    form_a(town)
    mm1, mm2 = town.stations["mm1"], town.stations["mm2"]
    for port in ("settle:b", "admin"):
        for one in town.stations.values():
            one.listen(port)
    for number in range(20):
        assert mm1.bus.send("mm2", "settle:b", b"%d" % number)
    town.until(lambda: len(mm2.got) == 20)
    assert mm2.got == [("mm1", b"%d" % number) for number in range(20)]
    assert not mm1.bus.send("mm2", "p", b"message traffic")

    for one in town.stations.values():
        one.bus.join("all")
        one.got.clear()
    town.go_on(0.05)
    town.until(lambda: "mm2" in mm1.bus.members.distant_listeners("all"))
    mm1.bus.cast("all", "admin", b"status")
    mm1.bus.cast("all", "p", b"message traffic")
    others = [one for name, one in town.stations.items() if name != "mm1"]
    town.until(lambda: all(one.got for one in others))
    town.go_on(0.1)
    assert mm2.got == [("mm1", b"status")]
    assert sorted(town.stations["cm1"].got) == [("mm1", b"message traffic"), ("mm1", b"status")]


@pytest.mark.requirement("CLU-50")
def test_a_relay_that_dies_is_replaced_and_the_break_is_told(town: Town) -> None:
    form_a(town)
    mm1, mm2 = town.stations["mm1"], town.stations["mm2"]
    mm2.listen("config")
    assert mm1.bus.send("mm2", "config", b"1")
    town.until(lambda: len(mm2.got) == 1)
    town.remove("cm1", orderly=False)
    town.settled()
    assert "mm2" in mm1.broken
    assert "mm1" in mm2.broken
    assert mm1.bus.send("mm2", "config", b"2")
    town.until(lambda: len(mm2.got) == 2)
    town.remove("cm2", orderly=False)
    town.until(lambda: mm1.sees() == {"mm1"})
    assert not mm1.bus.send("mm2", "config", b"3")


def test_one_bus_of_two_may_fail_and_order_goes_on_over_the_other(town: Town) -> None:
    faults = FaultSwitch()
    a = town.add("a", ("one", "two"), faults=faults)
    b = town.add("b", ("one", "two"))
    town.settled()
    town.until(lambda: len(a.bus.view.peers["b"].buses) == len(b.bus.view.peers["a"].buses) == 2)
    b.bus.join("all")
    town.until(lambda: "all" in a.bus.members.fellows["b"].channels)
    numbers = itertools.count()
    out = a.bus.members.fellows["b"].out
    assert out is not None
    first = out.bus
    for _ in range(50):
        a.bus.send("b", "p", b"%d" % next(numbers))
    town.until(lambda: len(b.got) == 50)
    faults.cut(bus=first)
    cut_at = next(numbers)
    a.bus.send("b", "p", b"%d" % cut_at)
    town.until(lambda: a.broken == ["b"] and b.broken == ["a"])
    assert b.sees() == {"a", "b"}, "it is there, on the other bus"
    town.until(lambda: first not in b.bus.view.peers["a"].buses)
    for _ in range(50):
        assert a.bus.send("b", "p", b"%d" % next(numbers))
        a.bus.cast("all", "p", b"cast")
    town.until(lambda: len(b.got) == 150)
    sent = [int(message) for _, message in b.got if message != b"cast"]
    assert sent == [*range(50), *range(51, 101)]
    faults.heal()
    town.until(lambda: first in b.bus.view.peers["a"].buses)
    assert a.broken == ["b"], "a bus more does not disturb the order"


@pytest.mark.requirement("CLU-49", half="one line of two nodes")
def test_the_bus_of_one_direction_is_lost_and_both_go_on() -> None:
    faults = FaultSwitch()
    with Town("tcp", faults=faults) as town:
        a, b = town.add("a", ("one", "two")), town.add("b", ("one", "two"))
        town.settled()
        there, back = a.bus.members.fellows["b"], b.bus.members.fellows["a"]
        town.until(lambda: len(there.up) == len(back.up) == 2)
        there.out, back.out = there.up["one"], back.up["two"]  # as each side may have heard of them first

        def exchange(text: bytes) -> None:
            a.got.clear()
            b.got.clear()
            assert a.bus.send("b", "p", text)
            assert b.bus.send("a", "p", text)
            town.until(lambda: (a.got, b.got) == ([("b", text)], [("a", text)]))

        exchange(b"before")
        faults.cut(bus="two")
        town.until(lambda: a.broken == ["b"] and b.broken == ["a"])
        exchange(b"after")
        faults.heal()
        town.until(lambda: len(there.up) == len(back.up) == 2)
        exchange(b"healed")


def test_a_tap_sees_heads_and_is_no_member(town: Town) -> None:
    a, b = town.add("a"), town.add("b")
    town.settled()
    b.bus.join("all")
    lines: list[str] = []
    config = a.config
    tap = Tap(
        type(config)(
            node="tap",
            start=1,
            cluster="test",
            carrier=town.carrier,
            buses=config.buses,
            seeds={"main": [a.bus.addresses()["main"]]},
        ),
        lines.append,
    )
    try:
        town.until(lambda: (tap.turn(a.bus.lines.now_s + 1), tap.nodes == {"a", "b"})[1])  # type: ignore[func-returns-value]
        town.until(lambda: "all" in a.bus.members.fellows["b"].channels)
        a.bus.send("b", "p", b"secret content")
        a.bus.cast("all", "p", b"12", b"34")
        town.until(lambda: (tap.turn(a.bus.lines.now_s + 1), len(lines) == 2)[1])  # type: ignore[func-returns-value]
    finally:
        tap.close()
    heads = [line.split()[1:] for line in lines]
    assert heads == [["main", "a", "b", "p", "1", "14"], ["main", "a", "#all", "p", "2", "4"]]
    assert a.sees() == b.sees() == {"a", "b"}
    town.until(lambda: not a.bus.lines.taps)
