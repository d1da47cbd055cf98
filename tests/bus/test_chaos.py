"""Everything at once, by seed: lines cut, nodes frozen, restarted, cut off, under traffic. The laws always hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from fairlead.bus.faults import FaultSwitch
from tests.bus.rig import Station, Town

NAMES = ("n1", "n2", "n3", "n4")
DETECTION_S = 0.6


class Chaos:
    """A town in which things happen."""

    def __init__(self, town: Town, seed: int, buses: tuple[str, ...]) -> None:
        self.town = town
        self.buses = buses
        self.rng = random.Random(seed)
        self.faults = {name: FaultSwitch(seed) for name in NAMES}
        self.past: list[Station] = []
        self.counts: Counter[tuple[int, str, str]] = Counter()
        self.thaw_s: dict[str, float] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        others = list(self.town.stations.values())
        seeds = {bus: [one.bus.addresses()[bus] for one in others] for bus in self.buses}
        station = self.town.add(name, self.buses, faults=self.faults[name], seeds=seeds)
        station.bus.join("all")
        self.past.append(station)

    def talk(self) -> None:
        for name, one in self.town.stations.items():
            if name in self.town.frozen:
                continue
            to = self.rng.choice(NAMES)
            body = bytes(self.rng.choice((0, 100, 3000, 100_000)))
            key = (one.config.start, to, "send")
            if to != name and one.bus.send(to, "p", b"%d send %d " % (one.config.start, self.counts[key]), body):
                self.counts[key] += 1
            key = (one.config.start, "", "cast")
            one.bus.cast("all", "p", b"%d cast %d " % (one.config.start, self.counts[key]), body[:20_000])
            self.counts[key] += 1

    def disturb(self) -> None:
        name = self.rng.choice(NAMES)
        what = self.rng.random()
        if what < 0.5:
            wires = list(self.town.stations[name].bus.lines.wires.values())
            if wires:
                try:
                    self.rng.choice(wires).socket.shutdown(2)
                except OSError:
                    pass
        elif what < 0.65:
            self.town.frozen.add(name)
            self.thaw_s[name] = time.monotonic() + self.rng.choice((0.1, DETECTION_S * 1.5))
        elif what < 0.8 and name not in self.town.frozen:
            self.town.remove(name, orderly=self.rng.random() < 0.5)
            self.start(name)
        elif what < 0.9:
            self.faults[name].cut(name, self.rng.choice(NAMES))
        else:
            for switch in self.faults.values():
                switch.heal()
        for frozen in [one for one in self.town.frozen if time.monotonic() > self.thaw_s[one]]:
            self.town.frozen.discard(frozen)


def check_order(station: Station) -> int:
    """Between two breaks numbers rise by one; none comes twice. How many messages it had."""
    last: dict[tuple[str, bytes, bytes], int] = {}
    seen: set[Any] = set()
    for event in station.events:
        if event[0] == "broken":
            last = {key: number for key, number in last.items() if key[0] != event[1]}
            continue
        sender, (start, kind, number, *_) = event[0], event[1].split(b" ")
        key = (sender, start, kind)
        assert (key, number) not in seen, "doubled"
        seen.add((key, number))
        assert key not in last or int(number) == last[key] + 1, f"{station.bus.node}: {key} {last[key]} then {number}"
        last[key] = int(number)
    return len(seen)


@pytest.mark.requirement("CLU-39")
@pytest.mark.parametrize(
    ("carrier", "seed", "buses"),
    [
        ("tcp", 1, ("x",)),
        ("local", 2, ("x", "y")),
        ("udp", 105, ("x",)),
        ("udp", 3, ("x", "y")),
    ],
)
def test_order_holds_and_views_agree_whatever_happens(carrier: str, seed: int, buses: tuple[str, ...]) -> None:
    with Town(carrier, detection_s=DETECTION_S) as town:
        chaos = Chaos(town, seed, buses)
        town.settled()
        until_s = time.monotonic() + 2.0
        turns = 0
        while time.monotonic() < until_s:
            chaos.talk()
            turns += 1
            if turns % 15 == 0:
                chaos.disturb()
            for _ in range(3):
                town.turn(0.002)
        for switch in chaos.faults.values():
            switch.heal()
        town.frozen.clear()
        town.settled()
        chaos.talk()
        town.go_on(0.2)
        assert sum(check_order(station) for station in chaos.past) > 100
        views = [one.bus.view for one in town.stations.values()]
        assert len({view.number for view in views}) == 1
        assert len({tuple((name, peer.rank) for name, peer in view.peers.items()) for view in views}) == 1
