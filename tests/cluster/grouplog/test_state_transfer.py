"""A whole state goes from one member to another, whatever happens on the way, and neither holds more than a window."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.edge.member_home import MemberHome
from fairlead.cluster.edge.state_files import StateRoad
from fairlead.cluster.replication import state_transfer as machine
from fairlead.cluster.replication.state_transfer import Host, StateAsk, StateFile, StateOffer, StateRefuse, StateWant
from fairlead.errors import RemoteProtocolError
from fairlead.journal.edge.journal import Journal
from tests.cluster.grouplog.rig import Net, Node, inline, options
from tests.cluster.grouplog.test_member_home import bodies
from tests.journal.test_journal import checkpoint


class Side:
    """One member: home, journal, road."""

    def __init__(self, net: Net, folder: Path, name: str) -> None:
        self.net, self.name = net, name
        self.home = MemberHome(folder / name, "a", name)
        self.journal, found = Journal.open(self.home.path / "journal", options())
        found.finish()
        (self.home.path / "large").mkdir(exist_ok=True)
        self.came: list[tuple[int, int]] = []
        self.open()

    def open(self) -> None:
        self.road = StateRoad(
            Node(self.net, self.name),  # type: ignore[arg-type]
            "a",
            inline,
            self.home,
            lambda: self.journal,
            options(),
            lambda: self.net.now_s,
            random.randrange(1 << 40),
        )

    def fill(self, epoch: int, count: int, size: int = 3000) -> None:
        self.journal.epoch = epoch
        for number in range(count):
            self.journal.append(7, b"%s %d" % (self.name.encode(), number), b"x" * (number % size))
        self.journal.flush()

    def swap(self) -> None:
        end = self.journal.last, self.journal.epoch_at(self.journal.last)
        self.journal.close()
        self.home.swap(*end)


def run(net: Net, *sides: Side, until: Any, limit: int = 100_000) -> None:
    for _ in range(limit):
        if until():
            return
        if not net.carry(1):
            net.now_s += 0.3
            for side in sides:
                side.road.tick()
    raise AssertionError("it does not come to an end")


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.mark.requirement("CLU-131")
@pytest.mark.requirement("CLU-137", state="half", note="a small state; memory is bounded by the window")
def test_a_state_is_taken_over_while_its_host_goes_on(tmp_path: Path, net: Net) -> None:
    host, target = Side(net, tmp_path, "h"), Side(net, tmp_path, "t")
    host.fill(3, 2000)
    checkpoint(host.journal)
    host.fill(4, 10)
    (host.home.path / "large" / f"{7:016x}").write_bytes(random.Random(1).randbytes(6 << 20))
    host.road.on_epoch(4)
    target.road.take_over(["h"], 4, lambda last, epoch: target.came.append((last, epoch)))
    net.carry(2)
    last = host.journal.last
    host.fill(4, 500)  # what comes later is not part of it
    checkpoint(host.journal)
    host.journal.reclaim(lambda number, first, beyond: False)
    run(net, host, target, until=lambda: target.came)
    assert target.came == [(last, 4)]
    net.carry()
    assert net.most_waiting_bytes < machine.WINDOW_BYTES + (1 << 20)
    assert len(host.road.host) == 0
    assert not host.journal._room.pins
    target.swap()
    host.journal.close()
    assert len(bodies(target.home)) == 10  # behind the checkpoint
    journal, found = Journal.open(target.home.path / "journal", options())
    found.finish()
    assert (journal.last, journal.epoch_at(last), journal.epoch_at(2000)) == (last, 4, 3)
    assert (target.home.path / "large" / f"{7:016x}").stat().st_size == 6 << 20
    journal.close()
    assert target.road.facts()["taking"] is False


@pytest.mark.parametrize("seed", range(8))
def test_it_comes_to_an_end_however_often_the_line_breaks(tmp_path: Path, net: Net, seed: int) -> None:
    chance = random.Random(seed)
    host, other, target = (Side(net, tmp_path, name) for name in ("h", "o", "t"))
    host.fill(3, 1500)
    other.fill(3, 1200)
    for side in (host, other):
        (side.home.path / "large" / f"{7:016x}").write_bytes(b"body" * 500_000)
        side.road.on_epoch(3)
    target.road.take_over(["h", "o"], 3, lambda last, epoch: target.came.append((last, epoch)))
    for _ in range(chance.randrange(3, 8)):
        net.carry(chance.randrange(1, 60))
        what = chance.choice(("lose", "break", "restart", "refuse", "half"))
        if what in ("lose", "half"):
            net.lose(chance if what == "half" else None)
        elif what == "break":
            net.lose()
            for side, lost in ((target, "h"), (target, "o"), (host, "t"), (other, "t")):
                side.road.lost(lost)
        elif what == "restart" and not target.came:
            net.lose()
            target.open()
            target.road.take_over(["o", "h"], 3, lambda last, epoch: target.came.append((last, epoch)))
        else:
            host.road.on_epoch(4)
            host.road.on_epoch(3)
    run(net, host, other, target, until=lambda: target.came)
    assert target.came[0] in ((1500, 3), (1200, 3))
    wanted = host if target.came[0][0] == 1500 else other
    target.swap()
    wanted.journal.close()
    assert bodies(target.home) == bodies(wanted.home)


def test_what_is_there_already_is_not_sent_again(tmp_path: Path, net: Net) -> None:
    host, target = Side(net, tmp_path, "h"), Side(net, tmp_path, "t")
    (host.home.path / "large" / f"{7:016x}").write_bytes(random.Random(1).randbytes(8 << 20))
    host.fill(3, 100)
    host.road.on_epoch(3)
    target.road.take_over(["h"], 3, lambda last, epoch: target.came.append((last, epoch)))
    while net.carried_bytes < 6 << 20:
        net.carry(1)
    net.lose()
    target.road.lost("h")
    host.road.lost("t")
    before = net.carried_bytes
    run(net, host, target, until=lambda: target.came)
    assert net.carried_bytes - before < 4 << 20


def test_an_epoch_that_changes_begins_it_anew(tmp_path: Path, net: Net) -> None:
    host, target = Side(net, tmp_path, "h"), Side(net, tmp_path, "t")
    host.fill(3, 500)
    host.road.on_epoch(3)
    target.road.take_over(["h"], 3, lambda last, epoch: target.came.append((last, epoch)))
    net.carry(5)
    host.fill(5, 1)
    host.road.on_epoch(5)
    target.road.take_over(["h"], 5, lambda last, epoch: target.came.append((last, epoch)))
    run(net, host, target, until=lambda: target.came)
    assert target.came == [(501, 5)]


def test_a_host_refuses_what_it_cannot_give(tmp_path: Path) -> None:
    host = Host(3)
    host.on_message("t", StateAsk(1, 2), 0.0)
    assert isinstance(host.out.pop()[1], StateRefuse)
    for number in range(machine.HOSTED_MAX + 1):
        host.on_message(f"t{number}", StateAsk(1, 3), 0.0)
    assert [type(one[1]) for one in host.out] == [StateRefuse]
    host.prepared("t0", 1, 5, 3, (StateFile("journal/x", 10, 10, bytes(32)),))
    host.on_message("t0", StateWant(1, 5, 0, 10, True), 0.0)  # no such file
    host.on_message("t0", StateWant(1, 0, 0, 1 << 50, True), 0.0)
    read = host.jobs[-1]
    assert isinstance(read, machine.Read)
    assert read.size == 10
    host.tick(1000.0)
    assert len(host) == machine.HOSTED_MAX - 1


def test_a_file_that_changes_under_way_is_noticed(tmp_path: Path, net: Net) -> None:
    host, target = Side(net, tmp_path, "h"), Side(net, tmp_path, "t")
    large = host.home.path / "large" / f"{7:016x}"
    large.write_bytes(b"a" * (1 << 20))
    host.fill(3, 10)
    host.road.on_epoch(3)
    target.road.take_over(["h"], 3, lambda last, epoch: target.came.append((last, epoch)))
    net.carry(2)
    large.write_bytes(b"b" * (1 << 20))
    run(net, host, target, until=lambda: target.came)
    assert (target.home.incoming / "large" / large.name).read_bytes() == b"b" * (1 << 20)
    large.unlink()


@given(st.binary(max_size=200))
def test_hostile_messages_are_refused(data: bytes) -> None:
    try:
        message, rest = machine.decode(memoryview(data))
    except RemoteProtocolError:
        return
    assert len(rest) < len(data)
    assert message is not None


@pytest.mark.parametrize("name", ["journal/../x", "/etc/passwd", "journal/a/b", "other/x", "journal/", "large/.x", "x"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    offer = StateOffer(1, 1, 1, 1, (StateFile(name, 1, 1, bytes(32)),))
    with pytest.raises(RemoteProtocolError):
        machine.decode(memoryview(machine.encode(offer)))
