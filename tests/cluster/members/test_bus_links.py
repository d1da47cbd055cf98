"""A primary's end of the links: who is heard, who is refused, and what the bus is given (docs/cluster.md, 5)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.client_manager.link_head import CLOSE, DATA, FULL, LINK_HEAD, OPEN, OWN_SLOT, REFUSED, ROOM
from fairlead.cluster.demuxing import scan
from fairlead.cluster.edge import bus_links
from fairlead.cluster.edge.bus_links import BusLinks, whole_frames
from fairlead.cluster.outgoing import Link
from fairlead.cluster.parameters import Parameters
from fairlead.wire import durable
from fairlead.wire.entry_codec import encode
from tests.cluster.core_rig import Rig

EPOCH = 5


class QuietBus:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, int, int, int, bytes]] = []
        self.waiting = 0
        self.there = True

    def listen(self, port: str, handler: Any) -> None: ...
    def deaf(self, port: str) -> None: ...

    def backlog(self, to: str) -> int:
        return self.waiting

    def send(self, to: str, port: str, *pieces: Any) -> bool:
        whole = b"".join(bytes(one) for one in pieces)
        self.sent.append((to, *LINK_HEAD.unpack_from(whole), whole[LINK_HEAD.size :]))
        return self.there

    def take(self) -> list[tuple[str, int, int, int, int, bytes]]:
        taken, self.sent = self.sent, []
        return taken


class Ends:
    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder)
        self.bus = QuietBus()
        self.links = BusLinks(self.bus, "a")  # type: ignore[arg-type]
        self.before = set(self.rig.core.links)

    def say(
        self, what: int, *, node: str = "cm1", slot: int = 0, generation: int = 1, epoch: int = EPOCH, data: bytes = b""
    ) -> None:
        message = LINK_HEAD.pack(what, slot, generation, epoch) + data
        self.links.on_message(node, memoryview(message))

    def command(self, body: bytes, **head: Any) -> None:
        outside = Link(0)
        outside.frame(0, 0, durable.KIND_COMMAND, number=9, body=body)
        self.say(DATA, data=b"".join(bytes(one) for one in outside.out), **head)

    def work(self) -> list[tuple[str, int, int, int, int, bytes]]:
        for _ in range(5):
            self.rig.core.run()
            self.rig.core.on_safe(self.rig.core.last_index)
            self.rig.core.finish()
        self.links.send()
        return self.bus.take()


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def test_a_link_is_opened_and_answers_with_its_own_head(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN, slot=3, generation=7)
    ends.command(b'{"do":"hello","manager":3}', slot=3, generation=7)
    (answer,) = ends.work()
    assert answer[:5] == ("cm1", DATA, 3, 7, EPOCH)
    frames, used = scan(bytearray(answer[5]), 0, len(answer[5]))
    assert used == len(answer[5])
    assert frames[0][2] == durable.KIND_ANSWER


def test_whoever_does_not_serve_refuses(ends: Ends) -> None:
    ends.say(OPEN)
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN, epoch=EPOCH - 1)
    ends.command(b'{"do":"hello"}')  # of a link that was never opened
    assert [one[1] for one in ends.bus.take()] == [REFUSED] * 3
    assert len(ends.links) == 0
    assert ends.links.refused == 3


def test_what_comes_late_for_an_older_link_is_not_taken(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN, generation=1)
    ends.say(OPEN, generation=2)
    ends.command(b'{"do":"hello"}', generation=1)
    ends.say(CLOSE, generation=1)
    assert len(ends.links) == 1
    assert [(one[1], one[3]) for one in ends.work()] == [(REFUSED, 1)]
    ends.say(CLOSE, generation=2)
    assert len(ends.links) == 0
    assert set(ends.rig.core.links) == ends.before


def test_serving_no_more_ends_every_link_and_says_so(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN, node="cm1")
    ends.say(OPEN, node="cm2", generation=4)
    ends.links.stop()
    assert sorted((one[0], one[1], one[3]) for one in ends.bus.take()) == [("cm1", REFUSED, 1), ("cm2", REFUSED, 4)]
    assert set(ends.rig.core.links) == ends.before


def test_a_lost_node_loses_its_links_and_no_others(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    for slot in range(3):
        ends.say(OPEN, node="cm1", slot=slot)
    ends.say(OPEN, node="cm2")
    ends.links.node_lost("cm1")
    assert len(ends.links) == 1
    assert len(ends.rig.core.links) == len(ends.before) + 1


@pytest.mark.requirement("CLU-102")
def test_a_full_bus_or_manager_is_given_nothing_more(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_links, "BACKLOG_BYTES", 1000)
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN)
    ends.command(b'{"do":"hello","manager":0}')
    ends.bus.waiting = 2000
    assert ends.work() == []
    assert ends.links.is_waiting
    ends.bus.waiting = 0
    ends.say(FULL)
    assert ends.work() == []
    ends.say(ROOM)
    assert len(ends.work()) == 1
    assert not ends.links.is_waiting


def test_a_node_that_is_not_there_loses_its_link(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    ends.say(OPEN)
    ends.command(b'{"do":"hello","manager":0}')
    ends.bus.there = False
    ends.work()
    assert len(ends.links) == 0


def test_frames_stay_whole_however_they_are_cut() -> None:
    link = Link(0)
    rng = random.Random(1)
    for number in range(300):
        link.frame(1, 1, durable.KIND_DELIVER, number=number, body=rng.randbytes(rng.choice((0, 10, 5000, 60_000))))
    whole = b"".join(bytes(one) for one in link.out)
    found = list(whole_frames(link.out, 100_000))
    assert b"".join(bytes(one) for batch, _ in found for one in batch) == whole
    for batch, size in found:
        data = bytearray(b"".join(bytes(one) for one in batch))
        assert len(data) == size
        frames, used = scan(data, 0, size)
        assert used == size
        assert len(frames) == 1 or size <= 100_000


def test_hostile_bytes_end_the_link_and_harm_nothing(ends: Ends) -> None:
    ends.links.serve(ends.rig.core, EPOCH)
    rng = random.Random(7)
    for number in range(500):
        ends.say(OPEN, generation=number)
        ends.say(DATA, generation=number, data=rng.randbytes(rng.randrange(200)))
        ends.links.on_message("cm1", memoryview(rng.randbytes(rng.randrange(40))))
        ends.work()
    ends.say(OPEN, node="cm2")
    ends.command(b'{"do":"hello","manager":0}', node="cm2")
    assert [one[1] for one in ends.work() if one[0] == "cm2"] == [DATA]
    assert len(ends.links) <= 2


@pytest.mark.requirement("CLU-1", state="half", note="the primary's part; the whole: agent/test_processes.py")
def test_what_is_broadcast_goes_to_each_client_manager_once_and_a_full_one_is_not_waited_for(ends: Ends) -> None:
    core = ends.rig.core
    core.create("news", "topic", Parameters())
    for own in ends.before:
        core.link_lost(core.links[own])
    ends.links.serve(core, EPOCH)
    for node in ("cm1", "cm2"):
        for slot in (OWN_SLOT, 4, 5):
            ends.say(OPEN, node=node, slot=slot)
    ends.work()
    came = [link for link in core.links.values() if link.node == "cm1"][-1]
    news = core.names.by_name["news"].destination

    def heard(link: int) -> list[tuple[str, int]]:
        core.broadcast(news, encode(b"hello"), link)
        found = [(to, slot) for to, _, slot, _, _, data in ends.work() if b"hello" in data]
        return sorted(found)

    assert heard(came.number) == [("cm1", 5), ("cm2", 4)]  # by the link it came from, and by the oldest elsewhere
    assert heard(-1) == [("cm1", 4), ("cm2", 4)]
    other = next(link for link in core.links.values() if link.node == "cm2" and link.carries_broadcasts)
    other.is_full = True
    assert heard(came.number) == [("cm1", 5)]
    assert other.missed == 1
    other.is_full = False
    assert heard(came.number) == [("cm1", 5), ("cm2", 4)]
    assert other.missed == 0
