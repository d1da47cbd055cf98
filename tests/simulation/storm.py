"""Faults: when they strike, and which of them a group can bear.

A disk is taken only where every recorded set and electorate can stand it; a group that has lost as many disks as a
confirm has copies, or the majority of its votes, rightly stands still, and nothing could be learnt from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.cluster.replication import events as ev
from fairlead.cluster.replication.notes import VoterNotes
from fairlead.cluster.replication.record import ControlRecord, node_of
from tests.simulation import drills
from tests.simulation.world import Node

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Storm:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world, self.rng, self.laws = cluster, cluster.world, cluster.world.rng, cluster.laws
        self.until = 0.0
        self.spite = 0.0
        self.notices = 0.0
        self.drill = drills.Drill(cluster.focus, self) if cluster.focus else None

    def begin(self, until: float) -> None:
        self.until = until
        if self.drill:
            self.laws.witness, self.world.postman = self.drill.strike, self.drill.on_mail
            self.drill.begin(until)
        else:
            self._begin_general(until)

    def _begin_general(self, until: float) -> None:
        rng, world = self.rng, self.world
        world.loss = rng.choice([0, 0, 0.02, 0.1, 0.25])
        world.double = rng.choice([0, 0.05, 0.2])
        world.slow = rng.choice([0, 0, 0.005, 0.03])
        world.stalls = rng.choice([0, 0.02, 0.1])
        pace = rng.choice([1.5, 3, 6, 12])
        self.spite = rng.choice([0, 0, 0.1, 0.3])
        self.notices = rng.choice([0, 0.5, 1])  # how often a keeper tells of a death
        self.laws.witness = self.strike
        faults = {
            self.crash: rng.choice([1, 3, 6]),
            self.restart: rng.choice([0, 1, 3]),
            self.pause: rng.choice([1, 3, 6]),
            self.cut: rng.choice([1, 3, 6]),
            self.mend: rng.choice([1, 3, 6]),
            self.wipe: rng.choice([0, 1, 2, 6]),
            self.rot: rng.choice([0, 0, 1, 3]),
            self.retune: rng.choice([0, 0, 1]),
            self.hand_over: rng.choice([0, 1, 3]),
            self.revote: rng.choice([0, 0, 1, 2]),
            self.resize: rng.choice([0, 0, 0, 1]),
        }
        if self.cluster.wild:
            faults[self.jump] = 3
        when = rng.uniform(1, 8)
        while when < until:
            world.at(when, rng.choices(list(faults), list(faults.values()))[0])
            when += rng.expovariate(1 / pace)

    def end(self) -> None:
        world, cluster = self.world, self.cluster
        world.loss = world.double = world.slow = world.stalls = 0.0
        world.cuts.clear()
        world.tunnels.clear()
        world.lag.clear()
        world.postman = None
        if cluster.group.wishes["strict"] and self.rng.random() < 0.5:
            cluster.group.wishes["strict"] = False
        cluster.group.peers.update(cluster.members)
        world.say("calm")
        for node in world.nodes.values():
            node.paused_until = 0.0
            node.start()
        self.configure()

    def configure(self) -> None:
        for name in self.cluster.members:
            part = self.cluster.part(name)
            if part:
                part.configure(self.world.nodes[name].clock())

    def is_over(self) -> bool:
        return self.world.now >= self.until

    def anybody(self) -> Node:
        return self.rng.choice(self.cluster.servers)

    # --- at the worst moment

    def strike(self, name: str, event: Any) -> None:
        """Hit a primary just when it takes over, changes the set, or has told somebody something."""
        odds = 0.02 if event == "told" else 1.0 if isinstance(event, ev.Led | ev.SetChanged | ev.Serving) else 0.0
        if odds and self.spite and not self.is_over() and self.rng.random() < odds * self.spite:
            blows = [self.crash, self.pause, self.isolate, self.sever, self.site, self.forget, self.wipe]
            blow = self.rng.choice(blows)
            delay = self.rng.random() ** 3 * (3 if blow == self.forget else 0.5)
            self.world.after(delay, blow, self.world.nodes[name])

    def sever(self, node: Node) -> None:
        """Cut a primary off from its backups alone, and kill it a little later."""
        for other in self.cluster.members:
            if other != node.name:
                self.world.cuts |= {(node.name, other), (other, node.name)}
        self.world.say("severed", node.name)
        self.world.after(self.rng.uniform(0.02, 2), self.kill, node)
        self.world.after(self.rng.uniform(1, 12), self.mend)
        self.world.after(self.rng.uniform(2, 15), node.start)

    def isolate(self, node: Node) -> None:
        """Cut a primary off and make everybody else forget what can be forgotten."""
        for other in self.cluster.servers:
            if other is not node:
                self.world.cuts |= {(node.name, other.name), (other.name, node.name)}
                if other.up and self.rng.random() < 0.7:
                    other.crash()
                    self.world.after(self.rng.random() * 0.3, other.start)
        self.world.say("isolated", node.name)
        self.world.after(self.rng.uniform(2, 12), self.mend)

    def forget(self, node: Node) -> None:
        """Kill a primary together with the vote file of another node."""
        self.wipe(self.world.nodes[self.rng.choice(self.cluster.others)])
        self.kill(node)
        self.world.after(self.rng.uniform(2, 15), node.start)

    # --- processes

    def kill(self, node: Node) -> None:
        if node.up:
            node.crash()
            if self.rng.random() < self.notices:
                self.world.after(0.002, self.cluster.announce, node)

    def crash(self, node: Node | None = None) -> None:
        if node is None and self.rng.random() < 0.1:
            self.site()
        else:
            self._fell([node or self.anybody()])

    def site(self, node: Node | None = None) -> None:
        """Everybody at once."""
        self._fell(self.cluster.servers)

    def _fell(self, victims: list[Node]) -> None:
        for victim in victims:
            if victim.up:
                self.kill(victim)
                self.world.after(self.rng.choice([0.3, 2, 6, 20]) * self.rng.random(), victim.start)

    def restart(self) -> None:
        """A live update: it ends in order and comes back at once."""
        node = self.anybody()
        if node.up and self.world.now >= node.paused_until:
            node.crash(orderly=True)
            self.world.after(self.rng.uniform(0.05, 1), node.start)

    def pause(self, node: Node | None = None) -> None:
        (node or self.anybody()).pause(self.rng.choice([0.5, 4, 12]) * self.rng.random())

    def jump(self) -> None:
        self.anybody().jump(self.rng.uniform(0, 10))

    # --- network

    def cut(self) -> None:
        names = sorted(self.world.nodes)
        shape = self.rng.random()
        if shape < 0.25:
            one, other = self.rng.sample(names, 2)
            self.world.cuts.add((one, other))  # one way only
        elif shape < 0.5:
            one, other = self.rng.sample(names, 2)
            self.world.cuts |= {(one, other), (other, one)}
        else:
            side = [name for name in names if self.rng.random() < 0.5]
            for one in side:
                for other in names:
                    if other not in side:
                        self.world.cuts.add((one, other))
                        if shape < 0.85:
                            self.world.cuts.add((other, one))
        self.world.say("cuts", len(self.world.cuts))

    def mend(self) -> None:
        self.world.cuts.clear()
        self.world.tunnels.clear()
        self.world.say("mended")

    # --- administration

    def retune(self) -> None:
        self.cluster.group.wishes["copies"] = self.rng.choice([1, 2, 3])
        self.cluster.group.wishes["strict"] = self.rng.random() < 0.1
        self.world.say("wishes", self.cluster.group.wishes)
        self.configure()

    def hand_over(self) -> None:
        leader = self.cluster.leader()
        if leader:
            node = self.world.nodes[leader.node]
            to = self.rng.choice(self.cluster.members)
            self.world.say("hand over from", leader.node, "to", to)
            part = self.cluster.part(leader.node)
            if part and self.world.now >= node.paused_until:
                leader.hand_over(to, node.clock())
                part.after_call(node.clock())

    def revote(self) -> None:
        """A vote is added or removed by the administrator."""
        leader = self.cluster.leader()
        part = leader and self.cluster.part(leader.node)
        voter = self.cluster.voter(self.cluster.spare)
        if leader and part and voter:
            identity, electorate = voter.voter.identity, leader.record.electorate
            node = self.world.nodes[leader.node]
            old = sorted(vote for vote in electorate if node_of(vote) == self.cluster.spare)
            if old and self._majority_bears(leader.record, old[0]):
                leader.change_electorate(None, old[0], node.clock())
            elif not old:
                leader.change_electorate(identity, None, node.clock())
            part.after_call(node.clock())

    def resize(self) -> None:
        """A member node is taken out of the configuration, or comes back into it."""
        peers, members = self.cluster.group.peers, self.cluster.members
        outside = [name for name in members if name not in peers]
        leader = self.cluster.leader()
        if outside:
            peers.update(outside)
        elif len(members) > 2 and leader:
            peers.discard(self.rng.choice([name for name in members if name != leader.node]))
        self.world.say("peers", sorted(peers))
        self.configure()

    # --- disks

    def wipe(self, node: Node | None = None) -> None:
        """A disk dies."""
        node = node or self.anybody()
        if self._is_bearable(node.name, votes=True):
            node.crash()
            node.disk.clear()
            self._renew(node)

    def rot(self) -> None:
        """Damage in a log: the store is another one from now on, its notes and vote stay."""
        node = self.world.nodes[self.rng.choice(self.cluster.members)]
        if "member:a" in node.disk and "store:a" in node.disk and self._is_bearable(node.name, votes=False):
            node.crash()
            log = node.disk["log:a"]
            log.keep(max(log.first - 1, self.rng.randint(0, log.last)))
            node.disk["damaged:a"] = True
            del node.disk["store:a"]
            self._renew(node)

    def _renew(self, node: Node) -> None:
        self.laws.loses_disk(node.name)
        self.world.say("disk lost", node.name)
        if self.rng.random() < 0.5:
            self.crash()
        self.world.after(10 * self.rng.random(), node.start)

    def _is_bearable(self, name: str, votes: bool) -> bool:
        return all(
            self._set_bears(record, name) and (not votes or self._majority_bears(record, f"{name}."))
            for record in self._records()
        )

    def _records(self) -> list[ControlRecord]:
        """Every record that may turn out to be the valid one."""
        cluster = self.cluster
        newest = self.laws.of("a").newest or cluster.group.founding
        records = [newest]
        for node in cluster.servers:
            if "voter:a" in node.disk:
                records.append(msgspec.msgpack.decode(node.disk["voter:a"], type=VoterNotes).record)
        for name in cluster.members:
            part = cluster.part(name)
            if part and part.member.leading and part.member.leading.pending:
                records.append(part.member.leading.pending)
            if part and part.member.candidacy and part.member.candidacy.proposal:
                records.append(part.member.candidacy.proposal)
        return [record for record in records if record.stamp >= newest.stamp]

    def _set_bears(self, record: ControlRecord, name: str) -> bool:
        def is_gone(store: str) -> bool:
            return node_of(store) == name or store not in self._stores()

        if not record.members:
            return True
        return sum(map(is_gone, sorted(record.members))) < record.enough or not is_gone(record.primary)

    def _majority_bears(self, record: ControlRecord, lost: str) -> bool:
        def is_gone(vote: str) -> bool:
            return node_of(vote) == node_of(lost) or vote not in self._votes()

        return 2 * sum(map(is_gone, sorted(record.electorate))) < len(record.electorate)

    def _stores(self) -> set[str]:
        return {store for node in self.cluster.servers if (store := node.disk.get("store:a"))}

    def _votes(self) -> set[str]:
        return {vote for node in self.cluster.servers if (vote := node.disk.get("vote:a"))}
