"""A group in the simulated world without a storm: the test says what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlead.cluster.replication.events import Event, Role
from fairlead.cluster.replication.member import Member
from fairlead.cluster.replication.settings import Settings
from tests.simulation.cluster import Cluster, Shape
from tests.simulation.parts import MemberPart

SETTINGS = Settings()
E = TypeVar("E")


class Rig(Cluster):
    """Told events are kept in `told`; producers send all the time, and the laws look on."""

    def __init__(self, members: int, others: int = 1, *, seed: int = 1, strict: bool = False) -> None:
        super().__init__(seed, shape=Shape(members, others, strict=strict), settings=SETTINGS)
        self.told: list[tuple[float, str, Event | str]] = []
        self.laws.witness = lambda node, event: self.told.append((self.world.now, node, event))
        self.run_for(1.1)  # by now all have started

    def run_for(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def wait(self, condition: Callable[[], object], limit_s: float = 30.0, step_s: float = 0.01) -> float:
        """Let time go by until it is so; how long that took."""
        began = self.world.now
        while not condition():
            assert self.world.now - began < limit_s, f"still not so after {limit_s} s: {self.facts()}"
            self.run_for(step_s)
        return self.world.now - began

    def member(self, name: str) -> Member:
        return self.at(name).member

    def at(self, name: str) -> MemberPart:
        part = self.part(name)
        assert part is not None, f"{name} is down"
        return part

    def serving(self) -> Member | None:
        """The one that serves and is not paused."""
        found = [
            part.member
            for name in self.members
            if (part := self.part(name)) and part.member.may_serve(self.world.nodes[name].clock())
        ]
        awake = [member for member in found if self.world.nodes[member.node].paused_until <= self.world.now]
        assert len(awake) <= 1, "one serves"
        return awake[0] if awake else None

    def primary(self) -> Member:
        member = self.serving()
        assert member is not None
        return member

    def whole(self) -> Member:
        """Wait until all members are in the set and one serves."""
        nodes = [name for name in self.members if self.world.nodes[name].up]
        self.wait(lambda: (now := self.serving()) and {s.rpartition(".")[0] for s in now.record.members} >= set(nodes))
        return self.primary()

    def backups(self) -> list[str]:
        return [name for name in self.members if name != self.primary().node]

    def kill(self, name: str, notice: bool = True) -> None:
        node = self.world.nodes[name]
        node.crash()
        if notice:
            self.announce(node)

    def start(self, name: str) -> None:
        self.world.nodes[name].start()

    def part_from(self, name: str, *others: str) -> None:
        for other in others:
            self.world.cuts |= {(name, other), (other, name)}

    def confirmed(self) -> int:
        return sum(len(producer.confirmed) for producer in self.producers.values())

    def confirms_within(self, seconds: float) -> bool:
        before = self.confirmed()
        self.run_for(seconds)
        return self.confirmed() > before

    def facts(self) -> dict[str, object]:
        return {name: part.member.facts() for name in self.members if (part := self.part(name))}

    def events(self, kind: type[E]) -> list[E]:
        return [event for _, _, event in self.told if isinstance(event, kind)]

    def is_quiet_backup(self, name: str) -> bool:
        return self.member(name).role not in (Role.PRIMARY, Role.SUSPENDED)
