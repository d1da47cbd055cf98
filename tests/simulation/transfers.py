"""Money that wanders between replicated groups: real cores and the real coordinator, and under each core a group of
members that agree on its records, whose primaries fall while transactions are open.

What a core writes is a record in its group's log; it is safe when the members say so. After a failover a new core is
built from what the new primary's log has.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.cluster.manager_rig import MemoryJournal
from tests.cluster.transactions.world import Group, World
from tests.simulation.cluster import Cluster, Shape
from tests.simulation.parts import MemberPart
from tests.simulation.service import RECORD, Entry, unpacked

PATIENCE_S = 60.0


class Members:
    """The replicated log of one group, in a world of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        shape = Shape(self.rng.choice([2, 3, 3]), self.rng.choice([1, 2]))
        self.cluster = Cluster(seed, shape=shape, focus="")
        for producer in range(3):
            self.cluster.world.at(2, self._close, f"p{producer + 1}")
        self.serial = 0
        self.falls = 0
        self.wait()

    def _close(self, producer: str) -> None:
        self.cluster.producers[producer].closing = True

    def primary(self) -> MemberPart | None:
        """The one that serves."""
        for name in self.cluster.members:
            part = self.cluster.part(name)
            node = self.cluster.world.nodes[name]
            if part and part.member.may_serve(node.clock()) and node.paused_until <= self.cluster.world.now:
                return part
        return None

    def run(self, seconds: float) -> None:
        self.cluster.world.run(self.cluster.world.now + seconds)

    def wait(self) -> MemberPart:
        began = self.cluster.world.now
        while (part := self.primary()) is None:
            assert self.cluster.world.now - began < PATIENCE_S, "nobody leads"
            self.run(0.02)
        return part

    def append(self) -> int:
        part = self.wait()
        self.serial += 1
        now_s = part.node.clock()
        part.append(Entry(part.member.epoch, RECORD, number=self.serial), now_s)
        part.after_call(now_s)
        return self.serial

    def serials(self, *, safe: bool) -> list[int]:
        """Of the records in the primary's log, or of those that are safe."""
        part = self.wait()
        upto = part.member.safe if safe else part.log.last
        entries = map(unpacked, part.log.entries[:upto])
        return [entry.number for entry in entries if entry.kind == RECORD]

    def fall(self) -> None:
        """The primary is lost in one of many ways; when this returns, somebody serves."""
        part, rng, world = self.wait(), self.rng, self.cluster.world
        node, others = part.node, [name for name in self.cluster.members if name != part.node.name]
        self.falls += 1
        how = rng.choice(["told", "told", "silent", "frozen", "severed", "everybody"])
        if how == "severed":
            world.cuts |= {(node.name, other) for other in others} | {(other, node.name) for other in others}
        self.run(rng.random() ** 2 * 0.05)
        if how == "frozen":
            node.pause(rng.uniform(5, 9))
        elif how == "everybody":
            for server in self.cluster.servers:
                server.crash()
                world.after(rng.uniform(0.1, 3), server.start)
        else:
            node.crash()
            world.after(rng.uniform(0.1, 8), node.start)
            if how == "told":
                self.cluster.announce(node)
        world.cuts.clear()
        self.wait()


class Journal(MemoryJournal):
    """`serials[i]` is what the members know `records[i]` by."""

    def __init__(self, members: Members) -> None:
        super().__init__()
        self.members = members
        self.serials: list[int] = []

    def append(self, kind: int, head: Any, payload: Any = b"") -> tuple[int, int]:
        written = super().append(kind, head, payload)
        self.serials.append(self.members.append())
        return written

    def index_of(self, serials: list[int]) -> int:
        """The last of these records, which are our first ones."""
        assert serials == self.serials[: len(serials)], "the primary's log is what was written, in order"
        return self.records[len(serials) - 1].index if serials else self.covers


class ReplicatedGroup(Group):
    journal: MemoryJournal

    def __init__(self, world: World, name: str, index: int, folder: Path) -> None:
        self.members = Members(len(name) + 7 * index + 1000 * (world.random or Random(0)).randrange(1 << 20))
        self._is_holding = False
        super().__init__(world, name, index, folder)

    @property
    def is_holding(self) -> bool:
        return True  # nothing is safe because a core says so

    @is_holding.setter
    def is_holding(self, holding: bool) -> None:
        self._is_holding = holding

    def _begin(self) -> None:
        if not isinstance(self.journal, Journal):
            self.journal = Journal(self.members)
        super()._begin()

    @property
    def records(self) -> Journal:
        assert isinstance(self.journal, Journal)
        return self.journal

    def turn(self, *, jobs: bool = True) -> None:
        super().turn(jobs=jobs)
        while not self._is_holding and not self.is_down and self.core.safe < self.core.last_index:
            self.sync()
            super().turn(jobs=jobs)

    def sync(self) -> None:
        """Time goes by for the members until more of the log is safe, or all is."""
        before = self.core.safe
        while self.core.safe == before < self.core.last_index:
            self.members.run(0.005)
            safe = self.records.index_of(self.members.serials(safe=True))
            if safe > before:
                self.core.on_safe(safe)

    def crash(self) -> None:
        self.members.fall()
        kept = self.members.serials(safe=False)
        safe, last = self.core.safe, self.records.index_of(kept)
        assert last >= safe, f"nothing safe is lost: {self.name} had {safe} records, its new primary has {last}"
        del self.records.serials[len(kept) :]
        self.core.safe = last
        super().crash()


class ReplicatedWorld(World):
    kind_of_group = ReplicatedGroup

    def _sync(self, name: str) -> None:
        group = self.groups[name]
        assert isinstance(group, ReplicatedGroup)
        group.sync()
        group.turn()
        self.written(name)
