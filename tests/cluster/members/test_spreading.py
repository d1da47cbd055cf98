"""Records for all backups are put on the bus once; who got some alone is not overtaken."""

from __future__ import annotations

import pytest

from fairlead.cluster.edge.spreading import Spreading
from fairlead.cluster.replication.events import Send
from fairlead.cluster.replication.messages import Append, JoinAsk, decode
from fairlead.cluster.replication.record import ControlRecord
from tests.bus.rig import Town

RECORD = ControlRecord(1, 1, "m1.1", frozenset({"m1.1", "m2.1", "m3.1"}), frozenset({"m1.0"}), 2)
PORT = "member:a"


def append(first: int, size: int = 40_000) -> Append:
    return Append(1, RECORD, 0, 1, first, 1 if first > 1 else 0, ((1, 1),), memoryview(bytes(size)))


def to(message: Append | JoinAsk, *nodes: str) -> list[Send]:
    return [Send(node, PORT, message) for node in nodes]


class Group:
    """Three members, of which `m1` leads."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.stored: dict[str, int] = {}
        names = ("m1", "m2", "m3")
        for name in names:
            town.add(name).listen(PORT)
            town.stations[name].bus.tag("groups", {"a": {"role": "backup"}})
        town.settled()
        self.ends = [Spreading(town.stations[name].bus, "a", lambda: self.stored) for name in names]
        first = town.stations["m1"].bus
        town.until(lambda: all("groups" in peer.tag for peer in first.view.peers.values()))
        town.until(lambda: all("group:a" in one.channels for one in first.members.fellows.values()))
        self.first = self.ends[0]
        self.first.on_view(first.view)

    def send(self, *sends: Send) -> None:
        self.first.send(list(sends))
        self.town.stations["m1"].bus.flush()

    def got(self, name: str, count: int) -> list[int]:
        """First indexes of what has come there."""
        station = self.town.stations[name]
        self.town.until(lambda: len(station.got) >= count)
        found = [decode(data) for _, data in station.got]
        return [one.first for one in found if isinstance(one, Append)]


@pytest.mark.requirement("CLU-54", state="half", note="one transmission for all copies; rates are in the results kept")
@pytest.mark.parametrize("carrier", ["tcp", "udp"])
def test_what_all_are_to_have_is_put_on_the_bus_once(carrier: str) -> None:
    with Town(carrier) as town:
        group = Group(town)
        before = town.stations["m1"].bus.counters["sent"]
        one, two = append(1), append(2)
        group.send(*to(one, "m2"), *to(two, "m2"), *to(one, "m3"), *to(two, "m3"))
        assert group.got("m2", 2) == group.got("m3", 2) == [1, 2]
        assert group.first.casts == 2
        if carrier == "udp":
            assert town.stations["m1"].bus.counters["sent"] - before == 2
            assert town.stations["m1"].bus.figures()["multicast_bytes_out"] < 2 * 1.1 * 40_000


def test_who_got_records_alone_gets_them_alone_until_they_are_stored() -> None:
    with Town() as town:
        group = Group(town)
        group.send(*to(append(1), "m2"))
        group.send(*to(append(2), "m2", "m3"))
        assert group.got("m2", 2) == [1, 2]
        assert group.first.casts == 0
        group.stored = {"m2.1": 2, "m3.1": 1}
        group.send(*to(append(3), "m2", "m3"))
        assert group.first.casts == 0
        group.stored = {"m2.1": 3, "m3.1": 3}
        group.send(*to(append(4), "m2", "m3"))
        assert group.got("m2", 4) == [1, 2, 3, 4]
        assert group.got("m3", 3) == [2, 3, 4]
        assert group.first.casts == 1


def test_nobody_gets_what_is_not_for_him() -> None:
    with Town() as town:
        group = Group(town)
        town.add("m4").listen(PORT)
        town.stations["m4"].bus.tag("groups", {"a": {"role": "backup"}})
        Spreading(town.stations["m4"].bus, "a", dict)
        first = town.stations["m1"].bus
        town.until(lambda: "m4" in first.view.peers and "groups" in first.view.peers["m4"].tag)
        group.first.on_view(first.view)
        group.send(*to(append(1), "m2", "m3"))
        group.send(*to(JoinAsk(2), "m2", "m3", "m4"))
        group.got("m2", 2)
        assert group.got("m4", 1) == []
        assert group.first.casts == 0
