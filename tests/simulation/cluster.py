"""A small cluster in the world: one group, votes on its members and on other nodes, producers; and its healing."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.cluster.replication.member import Member
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from tests.simulation import drills
from tests.simulation.laws import Laws
from tests.simulation.parts import Dead, Group, MemberPart, VoterPart
from tests.simulation.plants import ALL, EdgeRules
from tests.simulation.producer import Producer
from tests.simulation.storm import Storm
from tests.simulation.world import Broken, Node, Part, World

STORM_S, CALM_S = 60.0, 36.0
SETTINGS = Settings(tick_s=0.4, renew_s=0.8, append_bytes=320, window_bytes=640)
SHORT = msgspec.structs.replace(SETTINGS, append_bytes=96)  # three records in a message


class Shape(NamedTuple):
    """How many members and further votes, and what the administrator wishes for."""

    members: int
    others: int
    copies: int = 2
    strict: bool = False


class Cluster:
    def __init__(
        self,
        seed: int,
        rules: EdgeRules = ALL,
        *,
        trace: bool = False,
        wild: bool = False,
        shape: Shape | None = None,
        settings: Settings | None = None,
        focus: str | None = None,
    ) -> None:
        self.world = world = World(seed)
        world.trace = [] if trace else None
        rng = world.rng
        self.wild, self.focus = wild, drills.chosen(rng) if focus is None else focus
        leases_hold = not wild and self.focus not in drills.WRONG_CLOCKS
        self.laws = Laws(world, leases_hold=leases_hold, converges=not wild)
        if wild:
            world.drift = (0.3, 3.0)
        shape = shape or self._shape()
        settings = settings or rng.choice([SETTINGS, SHORT])
        members = [f"a{i}" for i in range(1, shape.members + 1)]
        others = [f"c{i}" for i in range(1, shape.others + 1)]
        votes = frozenset(f"{node}.0" for node in members + others)
        founding = ControlRecord(0, 0, "", frozenset(), votes, 2)
        wishes = {"copies": shape.copies, "strict": shape.strict}
        self.group = Group("a", world, self.laws, settings, rules, founding, set(members), wishes)
        self.spare = "w1"  # a witness that may become a vote
        self.members, self.others = members, [*others, self.spare]
        for name in members:
            Node(world, name, self._build_member)
        for name in self.others:
            Node(world, name, self._build_voter)
        self.producers: dict[str, Producer] = {}
        for name in ("p1", "p2", "p3"):
            Node(world, name, self._build_producer)
        self.storm = Storm(self)
        for node in world.nodes.values():
            world.at(rng.uniform(0, 1), node.start)

    def _shape(self) -> Shape:
        rng = self.world.rng
        shape = Shape(
            members=max(rng.choice([1, 2, 2, 2, 3, 3, 3, 4]), drills.LEAST.get(self.focus, 0)),
            others=rng.choice([1, 2, 2, 3]),
            copies=rng.choice([1, 2, 2, 2, 3]),
            strict=rng.random() < 0.1,
        )
        if self.focus == "forgotten_votes":  # the backups and the votes that forget are a majority
            shape = shape._replace(others=max(1, shape.members - 1))
        if self.focus in drills.ONE_AWAY:  # with one away the others can just choose
            shape = shape._replace(members=3, copies=2, strict=False)
        return shape

    # --- building

    def _build_member(self, node: Node) -> dict[str, Part]:
        voter, member = VoterPart(self.group, node), MemberPart(self.group, node)
        return {voter.port: voter, member.port: member}

    def _build_voter(self, node: Node) -> dict[str, Part]:
        voter = VoterPart(self.group, node)
        return {voter.port: voter}

    def _build_producer(self, node: Node) -> dict[str, Part]:
        self.producers[node.name] = Producer(node, "a", self.group.peers, self.laws)
        return {"client": self.producers[node.name]}

    # --- looking

    @property
    def servers(self) -> list[Node]:
        return [self.world.nodes[name] for name in self.members + self.others]

    def part(self, name: str) -> MemberPart | None:
        part = self.world.nodes[name].parts.get("member:a")
        return part if isinstance(part, MemberPart) else None

    def voter(self, name: str) -> VoterPart | None:
        part = self.world.nodes[name].parts.get("voter:a")
        return part if isinstance(part, VoterPart) else None

    def leader(self) -> Member | None:
        parts = [part for name in self.members if (part := self.part(name)) and part.member.leading]
        return max((part.member for part in parts), key=lambda member: member.epoch, default=None)

    def announce(self, node: Node) -> None:
        """A keeper tells everybody that this process is dead; some hear it late or not at all."""
        notice = Dead(node.name, node.start_number)
        for other in self.servers:
            for port in ("member:a", "voter:a"):
                if other is not node:
                    self.world.send(node.name + "-keeper", other.name, port, notice)

    # --- the run

    def run(self) -> None:
        world = self.world
        self.storm.begin(STORM_S)
        world.run(STORM_S)
        self.storm.end()
        world.run(STORM_S + CALM_S * 0.4)
        for producer in self.producers.values():
            producer.closing = True
        until = STORM_S + CALM_S
        while world.now < until and not self.is_calm():
            world.run(world.now + 1)
        self.finish()

    def is_calm(self) -> bool:
        try:
            self.finish()
        except Broken:
            return False
        return self.laws.converges

    def finish(self) -> None:
        laws, wishes = self.laws, self.group.wishes
        for name, producer in self.producers.items():
            laws.confirmed("a", name, producer.confirmed)
            laws.converged(not producer.open, name, "still waits for", sorted(producer.open))
        parts = [part for name in sorted(self.group.peers) if (part := self.part(name))]
        leaders = [part for part in parts if part.member.serving]
        laws.converged(len(leaders) == 1, len(leaders), "primaries serve")
        if not leaders:
            return
        record, safe = leaders[0].member.record, leaders[0].member.safe
        stores = {part.member.store for part in parts}
        laws.converged(record.members == stores, "the set is not whole:", record, "but there are", sorted(stores))
        if self.group.rules.copies_in_record:
            laws.converged(record.copies == wishes["copies"], "copies wished", wishes["copies"], record)
        votes = {voter.voter.identity for node in self.servers if (voter := self.voter(node.name))}
        laws.converged(record.electorate <= votes, "votes that are nobody's:", record, sorted(votes))
        for part in parts:
            same = part.log.last >= safe and part.log.chain[safe] == leaders[0].log.chain[safe]
            laws.hold(same or not laws.converges, "members agree", part.member.store, safe)


def try_seed(
    seed: int, rules: EdgeRules = ALL, *, wild: bool = False, trace: bool = False, focus: str | None = None
) -> tuple[str, Cluster]:
    """The law that was broken, or nothing. An assertion of a machine counts as one."""
    cluster = Cluster(seed, rules, trace=trace, wild=wild, focus=focus)
    try:
        cluster.run()
    except Broken as broken:
        return str(broken), cluster
    except AssertionError as error:
        return f"assertion: {error}", cluster
    return "", cluster
