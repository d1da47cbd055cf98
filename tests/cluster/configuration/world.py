"""Several nodes' distributors on a virtual bus: messages wait until they are delivered, nodes stop and start again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.cluster.configuration.distributor import ConfigNotes, Distributor
from fairlead.cluster.configuration.documents import canonical, essential_digest, settings_digest
from fairlead.cluster.configuration.events import Adopt, Done, Note, Refused
from fairlead.cluster.configuration.messages import decode, encode
from fairlead.cluster.configuration.types import ClusterSettings, GroupSpec

SETTINGS = ClusterSettings(groups=[GroupSpec(name="a", members=["a1", "a2"])])


def founded(settings: ClusterSettings = SETTINGS) -> ConfigNotes:
    notes = ConfigNotes(applied=settings_digest(canonical(settings)))
    notes.ballots.abstain = 0
    return notes


@dataclass
class Disk:
    """What outlives a node's process."""

    essential: bytes = b"name = 'x'"
    settings: ClusterSettings = SETTINGS
    notes: bytes = field(default_factory=lambda: msgspec.json.encode(founded()))
    kind: str = "mm"
    buses: tuple[str, ...] = ("main",)


class World:
    def __init__(self, names: str, seed: int = 1, voters: str = "") -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.disks = {name: Disk(kind="cm" if name.startswith("c") else "mm") for name in names.split()}
        self.voters = (voters or names).split()
        self.nodes: dict[str, Distributor] = {}
        self.wires: list[tuple[str, str, bytes]] = []
        self.cuts: set[frozenset[str]] = set()
        self.done: dict[int, Done] = {}
        self.refused: dict[str, str] = {}
        self.log: dict[str, list[str]] = {name: [] for name in self.disks}

    # -- lives

    def start(self, *names: str) -> None:
        for name in names or tuple(self.disks):
            disk = self.disks[name]
            self.refused.pop(name, None)
            self.nodes[name] = Distributor(
                name,
                kind=disk.kind,
                buses=disk.buses,
                essential=essential_digest(disk.essential),
                founders=self.voters,
                vote=True,
                settings=disk.settings,
                notes=msgspec.json.decode(disk.notes, type=ConfigNotes),
                rng=self.rng,
                now_s=self.now_s,
            )
        self.views()

    def stop(self, *names: str) -> None:
        for name in names:
            del self.nodes[name]
        self.wires = [wire for wire in self.wires if wire[0] in self.nodes and wire[1] in self.nodes]
        self.views()

    def cut(self, *groups: str) -> None:
        """Only nodes of the same group reach each other; without groups all do."""
        parts = [set(group.split()) for group in groups]
        self.cuts = {
            frozenset((one, other))
            for one in self.disks
            for other in self.disks
            if one != other and parts and not any({one, other} <= part for part in parts)
        }
        self.wires = [wire for wire in self.wires if self.reaches(*wire[:2])]
        self.views()

    def reaches(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cuts

    def views(self) -> None:
        for name in sorted(self.nodes):
            if name in self.nodes:
                there = [other for other in self.nodes if self.reaches(name, other)]
                self.nodes[name].on_view(there, self.now_s)
                self.carry_out(name)

    # -- running

    def carry_out(self, name: str) -> None:
        node, disk = self.nodes[name], self.disks[name]
        events, node.events = node.events, []
        out, node.out = node.out, []
        for event in events:
            match event:
                case Adopt(settings):
                    disk.settings = settings
                case Refused(reason):
                    self.refused[name] = reason
                case Done():
                    self.done[event.ticket] = event
                case Note(_, text):
                    self.log[name].append(text)
                case _:
                    pass
        if node.notes_dirty:
            node.notes_dirty = False
            disk.notes = msgspec.json.encode(node.notes)
        for send in out:
            if send.node in self.nodes and self.reaches(name, send.node):
                self.wires.append((name, send.node, encode(send.message)))
        if name in self.refused:
            del self.nodes[name]
            self.views()

    def step(self) -> bool:
        """Deliver one message; in order between two nodes, in any order else."""
        if not self.wires:
            return False
        pairs = sorted({wire[:2] for wire in self.wires})
        pair = self.rng.choice(pairs)
        index = next(number for number, wire in enumerate(self.wires) if wire[:2] == pair)
        sender, to, data = self.wires.pop(index)
        message = decode(data)
        assert message is not None
        if to in self.nodes:
            self.nodes[to].on_message(sender, message, self.now_s)
            self.carry_out(to)
        return True

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            while self.step():
                pass
            self.now_s += 0.1
            for name in sorted(self.nodes):
                if name in self.nodes:
                    self.nodes[name].tick(self.now_s)
                    self.carry_out(name)

    def change(self, name: str, ticket: int, **changes: Any) -> None:
        self.nodes[name].change(ticket, changes, self.now_s)
        self.carry_out(name)

    # -- looking

    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in sorted(self.nodes.items())}

    def digests(self) -> set[str]:
        return {node.digest for node in self.nodes.values()}
