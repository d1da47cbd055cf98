"""Storms with an aim: each brings about, again and again, one coincidence that a rule of safety is for.

A drill begins with a primary that serves, does its worst, and lets the group recover for the next round. The machines
under test know nothing of it: everything that happens here could happen to any group, only rarely.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from fairlead.cluster.replication import events as ev
from fairlead.cluster.replication.record import node_of
from tests.simulation.parts import Dead, MemberPart, WholeState
from tests.simulation.world import Node

if TYPE_CHECKING:
    from tests.simulation.storm import Storm

LEAST = {
    "lost_tails": 2,
    "old_mail": 3,
    "sudden_darkness": 2,
    "slow_answers": 2,
    "unheard_change": 2,
    "changed_mind": 2,
    "late_notice": 2,
    "falls": 3,
    "laggard": 3,
    "forgotten_votes": 2,
    "late_state": 2,
    "half_seen": 3,
    "relay": 3,
}
"""The drills, and how many members each takes."""

ONE_AWAY = frozenset({"relay"})
WRONG_CLOCKS = frozenset({"half_seen"})  # leases cannot be trusted while the storm lasts

NAMES = tuple(LEAST)
GENERAL = 0.4
HOARD = 60


def chosen(rng: Random) -> str:
    """A drill, or none: a storm without an aim."""
    return "" if rng.random() < GENERAL else rng.choice(NAMES)


class Drill:
    def __init__(self, name: str, storm: Storm) -> None:
        self.name, self.storm = name, storm
        self.cluster, self.world, self.rng = storm.cluster, storm.world, storm.rng
        self.wishes = dict(self.cluster.group.wishes)
        self.mail: deque[tuple[str, str, str, Any]] = deque(maxlen=HOARD)
        self.traps: list[Callable[[str, Any], bool]] = []
        self.round = 0
        self.until = 0.0  # of this round
        self.is_alone = False  # the primary fell before anybody else had its start record

    def begin(self, until: float) -> None:
        world, rng = self.world, self.rng
        world.loss, world.double = rng.choice([0, 0, 0.02, 0.1]), rng.choice([0, 0.05])
        world.slow, world.stalls = 0.0, rng.choice([0, 0.02])
        self.storm.notices = rng.choice([0, 0.5, 1])
        world.after(rng.uniform(4, 6), self.play)

    # --- rounds

    def play(self) -> None:
        leader = self.cluster.leader()
        if self.storm.is_over():
            return
        if leader is None or not leader.serving:
            self.world.after(0.5, self.play)
            return
        self.round += 1
        self.world.say("drill", self.name, "round", self.round, "at", leader.node)
        takes_s: float = getattr(self, self.name)(self.world.nodes[leader.node])
        self.until = min(self.world.now + takes_s, self.storm.until)
        self.world.after(takes_s, self.heal)
        self.world.after(takes_s + self.rng.uniform(1, 4), self.play)

    def heal(self) -> None:
        self.traps.clear()
        self.world.lag.clear()
        self.storm.mend()
        for node in self.cluster.servers:
            node.paused_until = min(node.paused_until, self.world.now)
            node.start()
            if self.name in WRONG_CLOCKS:
                node.pace(1.0)
        if self.cluster.group.wishes != self.wishes:
            self.tune(**self.wishes)

    def strike(self, name: str, event: Any) -> None:
        """A trap snaps once."""
        for trap in list(self.traps):
            if trap(name, event):
                self.traps.remove(trap)

    def on_mail(self, source: str, node: str, port: str, payload: Any) -> None:
        if port == "member:a" and source in self.cluster.members:
            self.mail.append((source, node, port, payload))

    def trap(self, kind: type | str, call: Callable[[str, Any], None], who: str | None = None) -> None:
        def snaps(name: str, event: Any) -> bool:
            right = event == kind if isinstance(kind, str) else isinstance(event, kind)
            if right and who in (None, name):
                call(name, event)
                return True
            return False

        self.traps.append(snaps)

    # --- means

    def others_of(self, node: Node, *, members: bool) -> list[Node]:
        names = self.cluster.members if members else [server.name for server in self.cluster.servers]
        return [self.world.nodes[name] for name in names if name != node.name]

    def cut(self, node: Node, others: list[Node], *, out: bool = True, into: bool = True) -> None:
        for other in others:
            if out:
                self.world.cuts.add((node.name, other.name))
            if into:
                self.world.cuts.add((other.name, node.name))
        self.world.say("cut off", node.name, [other.name for other in others], "out" * out, "in" * into)

    def fell(self, node: Node, away_s: float) -> None:
        """Killed now, back later."""
        self.storm.kill(node)
        self.world.after(away_s, node.start)

    def tune(self, **wishes: Any) -> None:
        self.cluster.group.wishes.update(wishes)
        self.world.say("wishes", self.cluster.group.wishes)
        self.storm.configure()

    def part(self, node: Node) -> MemberPart | None:
        return self.cluster.part(node.name)

    # --- the drills: each returns how long its round takes

    def lost_tails(self, node: Node) -> float:
        """Power fails everywhere just after a confirm; the primary comes back last. Disks are slow."""
        self.world.stalls = 0.4

        def fail(name: str, event: Any) -> None:
            for other in self.others_of(node, members=True):
                self.fell(other, self.rng.uniform(0.05, 0.5))
            self.fell(node, self.rng.uniform(7, 10))

        self.world.after(self.rng.random(), self.trap, "told", fail, node.name)
        return 10

    def old_mail(self, node: Node) -> float:
        """A primary is cut off with records on their way; they come when another one leads or finds something safe."""
        self.cut(node, self.others_of(node, members=True))
        self.mail.clear()
        self.world.after(self.rng.uniform(0.3, 2), self.storm.kill, node)
        self.world.after(0.2, self.trap, self.rng.choice([ev.Led, "safe"]), self.deliver)
        return 10

    def deliver(self, name: str, event: Any) -> None:
        within_s = 0.01 if event == "safe" else 0.2
        self.storm.mend()
        for source, to, port, payload in list(self.mail):
            if source != name and to != source:
                self.world.after(self.rng.random() ** 2 * within_s, self.world.arrive, source, to, port, payload)
        if self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(0.1, 2) * within_s, self.fell, self.world.nodes[name], 6.0)

    def sudden_darkness(self, node: Node) -> float:
        """A primary is cut off from all servers, and all of them forget what can be forgotten."""
        others = self.others_of(node, members=False)
        self.cut(node, others)
        for other in others:
            other.crash()
            self.world.after(self.rng.random() * 0.1, other.start)
        return 7

    def slow_answers(self, node: Node) -> float:
        """Answers take nearly a lease to reach a primary, and then nobody hears it any more."""
        self.world.lag[node.name] = (1.2, 2.8)
        self.world.after(self.rng.uniform(2, 5), self.cut, node, self.others_of(node, members=False))
        self.world.after(2, self.let_in, node)
        return 12

    def let_in(self, node: Node) -> None:
        """What is on its way to it comes through, although it is cut off."""
        for server in self.cluster.servers:
            self.world.tunnels.add((server.name, node.name))

    def unheard_change(self, node: Node) -> float:
        """A backup comes back; when it is to enter the set, the primary hears no votes, and dies a little later."""
        backups = self.others_of(node, members=True)
        if not backups:
            return 0.1
        backup = self.rng.choice(backups)
        backup.crash()
        self.cluster.announce(backup)
        away_s = self.rng.uniform(0.5, 5)
        self.world.after(away_s, backup.start)

        def lose(name: str, event: Any) -> None:
            self.cut(node, self.others_of(node, members=False), out=False)
            self.cut(node, backups, into=False)
            self.world.after(self.rng.uniform(0.05, 2.5), self.fell, node, 12.0)
            for other in backups:
                if other is not backup:
                    self.world.after(self.rng.uniform(0.05, 2.5), self.fell, other, 12.0)

        self.world.after(away_s, self.trap, "proposed", lose, node.name)
        return away_s + 11

    def changed_mind(self, node: Node) -> float:
        """Fewer copies are wished for and then more, while the primary is cut off from its backups, and dies."""
        self.tune(copies=1, strict=False)
        self.cut(node, self.others_of(node, members=True))
        until_s = self.rng.uniform(0.3, 2.5)
        self.world.after(until_s, self.tune)
        self.world.after(until_s, lambda: self.tune(copies=3))
        self.world.after(until_s, self.fell, node, 10.0)
        self.world.after(until_s, self.storm.mend)
        return until_s + 9

    def late_notice(self, node: Node) -> float:
        """A primary dies and leads again; then it is cut off, and the notice of its death comes at last."""
        notice = Dead(node.name, node.start_number)
        node.crash()
        self.world.after(0.05, node.start)

        def tell(name: str, event: Any) -> None:
            if event == ev.Serving(True):
                others = self.others_of(node, members=False)
                self.cut(node, others)
                for other in others:
                    for port in ("member:a", "voter:a"):
                        self.world.after(self.rng.random() * 0.1, self.world.arrive, "keeper", other.name, port, notice)

        self.trap(ev.Serving, tell, node.name)
        return 9

    def falls(self, node: Node) -> float:
        """A primary with a long tail of its own falls; whoever comes next falls at once; the first ones come back."""
        self.world.stalls = self.rng.choice([0, 0.2])
        self.cut(node, self.others_of(node, members=True))
        self.world.after(self.rng.uniform(0.2, 2), self.fell, node, self.rng.uniform(3, 6))
        for _ in range(self.rng.randint(1, 4)):
            self.trap(ev.Led, self.fall_soon)
        return 14

    def fall_soon(self, name: str, event: Any) -> None:
        self.storm.mend()
        for other in self.cluster.servers:
            if other.name != name and self.rng.random() < 0.7:
                self.world.after(self.rng.random(), other.start)
        after_s = self.rng.random() ** 2 * self.rng.choice([0, 0.03, 0.3])
        self.world.after(after_s, self.fell, self.world.nodes[name], self.rng.choice([0.5, 6]) * self.rng.random())

    def laggard(self, node: Node) -> float:
        """A backup that lags behind takes over, falls at once, and comes back alone."""
        behind = self.rng.choice(self.others_of(node, members=True))
        self.world.stalls = self.rng.choice([0, 0.3])
        self.cut(node, [behind])
        after_s = self.rng.uniform(1, 4)
        self.world.after(after_s, self.fell, node, 12.0)

        def fall(name: str, event: Any) -> None:
            self.fell(self.world.nodes[name], self.rng.random())
            for other in self.others_of(node, members=True):
                if other.name != name and self.rng.random() < 0.5:
                    self.world.after(self.rng.random(), self.fell, other, 6.0)

        self.trap(ev.Led, fall)
        return after_s + 11

    def forgotten_votes(self, node: Node) -> float:
        """A backup is away while the set changes; it comes back when the primary and the votes that know are gone."""
        backups = self.others_of(node, members=True)
        for backup in backups:
            self.fell(backup, 8.0)
            self.cluster.announce(backup)
        for name in self.cluster.others:
            self.world.after(self.rng.uniform(6, 7.9), self.storm.wipe, self.world.nodes[name])
        self.world.after(7.9, self.fell, node, 8.0)
        return 16

    def late_state(self, node: Node) -> float:
        """A backup takes over a whole state; the same state comes again when it has long gone on, and then it leads."""
        part, backups = self.part(node), self.others_of(node, members=True)
        if part is None or not backups:
            return 0.1
        backup = self.rng.choice(backups)
        self.storm.wipe(backup)
        part.log.first = min(part.log.settled, part.log.durable) + 1
        self.mail.clear()
        again_s = self.rng.uniform(1, 3)

        def again() -> None:
            for source, to, port, payload in list(self.mail):
                if to == backup.name and isinstance(payload, WholeState):
                    self.world.arrive(source, to, port, payload)
                    self.fell(node, 8.0)
                    return

        def entered(name: str, event: ev.SetChanged) -> None:
            if backup.name in map(node_of, event.record.members):
                self.world.after(again_s, again)
            else:
                self.trap(ev.SetChanged, entered, node.name)

        self.world.after(0.1, backup.start)
        self.trap(ev.SetChanged, entered, node.name)
        return again_s + 10

    def half_seen(self, node: Node) -> float:
        """A primary whose clock nearly stands loses sight of all but one backup; that one helps to choose another, and
        does not hear who was chosen. For these clocks leases are no help."""
        seen = self.rng.choice(self.others_of(node, members=True))
        node.pace(0.2)
        self.cut(node, [other for other in self.others_of(node, members=False) if other is not seen])
        self.trap(ev.Led, lambda name, event: self.cut(self.world.nodes[name], [seen], into=False))
        return 9

    def relay(self, node: Node) -> float:
        """One of three is always away. A primary with a tail of its own falls unheard of; every next one falls when it
        has its start record on its disk alone, or just when it first finds something safe."""
        self.storm.notices = self.world.stalls = 0
        self.cut(node, self.others_of(node, members=True))
        self.world.after(self.rng.uniform(0.5, 2.5), self.pass_on, node)
        return 24

    def pass_on(self, falls: Node) -> None:
        """Who was away comes back as this one falls."""
        if self.world.now >= self.until:
            return
        self.storm.mend()
        for other in self.others_of(falls, members=True):
            other.start()
        self.storm.kill(falls)
        self.is_alone = not self.is_alone and self.rng.random() < 0.7
        if self.is_alone:
            self.trap(ev.Led, self.leads_alone)
        else:
            self.trap("safe", lambda name, event: self.world.after(0, self.pass_on, self.world.nodes[name]))

    def leads_alone(self, name: str, event: Any) -> None:
        node = self.world.nodes[name]
        self.cut(node, self.others_of(node, members=True))
        self.world.after(self.rng.uniform(0.05, 0.2), self.pass_on, node)
