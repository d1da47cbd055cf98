"""A record that names a very large message counts as stored where its body is, whole and on disk."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from fairlead.cluster import records
from fairlead.cluster.edge import side_feed
from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.edge.side_feed import SideFeed
from fairlead.journal.edge.journal import Journal
from tests.cluster.grouplog.rig import Net, Node, feed, inline, options

BODY = random.Random(1).randbytes(1_500_000)


class Side:
    def __init__(self, net: Net, folder: Path, name: str) -> None:
        self.net, self.name, self.folder = net, name, folder / name
        self.large = self.folder / "large"
        self.ready = 0
        self.open()

    def open(self) -> None:
        self.journal, found = Journal.open(self.folder / "journal", options())
        found.finish()
        self.side = SideFeed(
            Node(self.net, self.name),  # type: ignore[arg-type]
            "a",
            inline,
            self.large,
            lambda: self.net.now_s,
            self._on_ready,
        )
        self.log = GroupLog(
            self.journal, applied=0, apply=lambda *_: None, on_safe=lambda safe: None, gate=self.side, aside=self.folder
        )

    def _on_ready(self) -> None:
        self.ready += 1

    def path(self, number: int) -> Path:
        return self.large / f"{number:016x}"

    def tell(self, number: int, state: str, body: bytes = BODY) -> None:
        facts = {"id": number, "session": "00", "number": 1, "state": state}
        if state == "complete":
            facts |= {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        self.journal.append(records.TRANSFER, json.dumps(facts).encode())
        self.journal.flush()


@pytest.fixture
def net() -> Net:
    return Net()


def run(net: Net, *sides: Side, turns: int = 200) -> None:
    for _ in range(turns):
        net.carry()
        net.now_s += 0.1
        for side in sides:
            side.side.tick()


@pytest.mark.requirement("CLU-97")
def test_the_file_comes_while_it_grows_and_the_record_waits_for_it(tmp_path: Path, net: Net) -> None:
    a, b = Side(net, tmp_path, "a"), Side(net, tmp_path, "b")
    b.side.sources = ["a"]
    a.log.lead()
    a.tell(1, "begun")
    a.path(1).write_bytes(BODY[:700_000])
    feed(a.log, b.log)
    assert b.log.durable == 1
    run(net, a, b)
    assert b.path(1).read_bytes() == BODY[:700_000]
    a.path(1).write_bytes(BODY)
    a.tell(1, "complete")
    a.journal.append(7, b"a message")
    a.journal.flush()
    feed(a.log, b.log)
    assert b.log.last == b.journal.safe == 3
    assert b.log.durable == 1
    assert a.log.durable == 3
    run(net, a, b)
    assert b.path(1).read_bytes() == BODY
    assert b.log.durable == 3
    assert b.ready == 1
    assert net.carried_bytes < 1.2 * len(BODY)


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_line_a_restart_and_a_wrong_beginning_only_delay_it(tmp_path: Path, net: Net, seed: int) -> None:
    chance = random.Random(seed)
    a, b, c = (Side(net, tmp_path, name) for name in "abc")
    a.log.lead()
    a.path(1).write_bytes(BODY)
    b.path(1).write_bytes(b"left from another life" * chance.randrange(3))
    b.side.sources = ["c", "a"]  # c has no such file
    a.tell(1, "complete")
    feed(a.log, b.log)
    for _ in range(6):
        net.carry(chance.randrange(5))
        net.lose(chance)
        net.now_s += 1.1
        b.side.tick()
        if chance.random() < 0.3:
            b.journal.close()
            b.open()
            b.side.sources = ["a"]
            assert b.log.durable == 0
    run(net, a, b, c)
    assert b.path(1).read_bytes() == BODY
    assert b.log.durable == 1


def test_what_is_given_up_or_undone_holds_nothing_back(tmp_path: Path, net: Net) -> None:
    a, b = Side(net, tmp_path, "a"), Side(net, tmp_path, "b")
    a.log.lead()
    a.tell(1, "begun")
    a.tell(1, "complete")
    feed(a.log, b.log)
    assert b.log.durable == 1
    assert b.side.waiting == [1]
    b.log.cut(1)
    assert b.log.durable == 1
    assert b.side.waiting == []
    feed(a.log, b.log)
    a.tell(1, "gone")
    feed(a.log, b.log)
    assert b.log.durable == 3


@pytest.mark.requirement("CLU-98")
@pytest.mark.parametrize("has", [True, False])
def test_who_leads_without_a_file_fetches_it_or_says_that_nobody_has_it(tmp_path: Path, net: Net, has: bool) -> None:
    a, b, c = (Side(net, tmp_path, name) for name in "abc")
    a.log.lead()
    a.tell(1, "complete")  # needed
    a.tell(2, "complete")  # consumed long ago
    a.tell(3, "begun")
    feed(a.log, b.log)
    if has:
        c.path(1).write_bytes(BODY)
    else:
        b.path(1).write_bytes(BODY[:10])
        c.path(1).write_bytes(BODY[:5])
    b.side.sources = ["a", "c"]  # a has died
    net.nodes.pop("a")
    b.log.lead()
    missing: list[int] = []
    assert b.side.lead({1, 3}, missing.append) == {1}
    b.journal.append(7, b"the beginning of an epoch")
    b.journal.flush()
    assert b.log.durable == 0
    run(net, b, c, turns=60)
    assert missing == ([] if has else [1])
    assert b.path(1).read_bytes() == (BODY if has else BODY[:10])
    assert b.log.durable == 4


def test_hostile_messages_are_counted(tmp_path: Path, net: Net) -> None:
    a = Side(net, tmp_path, "a")
    for data in (
        b"",
        b"\xff" * 40,
        side_feed._head(side_feed.SideWant(1, 5, 2)),
        side_feed._head(side_feed.SideWant(-1, 0, 9)),
    ):
        Node(net, "x").send("a", "side:a", data)
    net.carry()
    assert a.side.strange == 4
    assert not a.side._wants
