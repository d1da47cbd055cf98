"""A client that sends 1, 2, 3 … to a group, repeats what is not confirmed, and now and then begins a new life."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.simulation.laws import Laws
from tests.simulation.parts import Confirm, Offer
from tests.simulation.world import Node


class Producer:
    def __init__(self, node: Node, group: str, peers: set[str], laws: Laws) -> None:
        self.node, self.group, self.peers, self.laws = node, group, peers, laws
        self.rng = Random(node.world.rng.getrandbits(64))
        self.life, self.number = 1, 0
        self.open: set[int] = set()
        self.confirmed: set[int] = set()
        self.closing = False
        self.heard_s = self._due = node.clock()

    def receive(self, sender: str, payload: Any, now_s: float) -> None:
        assert isinstance(payload, Confirm)
        self.heard_s = now_s
        self.open.discard(payload.number)
        self.confirmed.add(payload.number)

    def tick(self, now_s: float) -> None:
        self._due = now_s + self.rng.uniform(0.1, 0.6)
        while len(self.open) < 4 and not self.closing and self.rng.random() < 0.6:
            self.number += 1
            self.open.add(self.number)
        if not self.open:
            self.heard_s = now_s
        elif now_s - self.heard_s > 8:
            self.life += 1
            self.heard_s = now_s + self.rng.uniform(-3, 3)
        for number in sorted(self.open):
            for peer in sorted(self.peers):
                offer = Offer(self.node.name, self.life, number)
                self.node.world.send(self.node.name, peer, f"member:{self.group}", offer)

    def due_s(self) -> float:
        return self._due

    def ends(self, orderly: bool) -> None: ...
