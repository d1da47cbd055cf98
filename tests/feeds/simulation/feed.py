"""The source of it all: numbered messages, the same for both adapters, and what ought to be made of each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fairlead.feeds.made import Made
from fairlead.feeds.records import MESSAGE, VOID
from fairlead.feeds.words import Relation, Source
from tests.feeds.simulation.world import World

KEYS = 7


@lru_cache(10_000)
def body_of(source: str, sequence: int, part: int) -> bytes:
    return f"{source}|{sequence}|{part}|k{sequence % KEYS}".encode()


def shape_of(sequence: int) -> int:
    """How many parts a source message gives: 0 nothing at all, -1 a void."""
    if sequence % 13 == 5:
        return 0
    if sequence % 17 == 3:
        return -1
    return 3 if sequence % 11 == 7 else 1


def outputs(source: str, first: int, last: int) -> list[tuple[int, int]]:
    """Places of the application messages made of a range."""
    return [(s, part) for s in range(first, last + 1) for part in range(1, max(shape_of(s), 0) + 1)]


@lru_cache(64)  # all adapters make the same of it
def made(source: str, first: int, last: int, with_keys: bool) -> Made:
    kinds, sequences, part, parts, bodies, keys = [], [], [], [], [], []
    for sequence in range(first, last + 1):
        shape = shape_of(sequence)
        for k in range(1, abs(shape) + 1):
            kinds.append(MESSAGE if shape > 0 else VOID)
            sequences.append(sequence)
            part.append(k)
            parts.append(abs(shape))
            bodies.append(body_of(source, sequence, k) if shape > 0 else b"")
            keys.append(f"{source}k{sequence % KEYS}".encode() if shape > 0 else b"")
    return Made(
        source=source,
        kinds=np.array(kinds, np.uint8),
        sequences=np.array(sequences, np.uint64),
        part=np.array(part, np.uint16),
        parts=np.array(parts, np.uint16),
        data=b"".join(bodies),
        ends=np.cumsum([len(body) for body in bodies], dtype=np.uint64),
        first=first,
        through=last,
        keys=keys if with_keys else None,
    )


class Feed:
    """One source line with its sessions; `sent` is the last sequence of each session."""

    def __init__(self, world: World, name: str, sibling_of: str = "") -> None:
        self.world = world
        self.name = name
        self.session = 1
        self.sibling_of = sibling_of
        self.sent: dict[str, int] = {self.id: 0}

    @property
    def id(self) -> str:
        return f"{self.name}:{self.session}"

    @property
    def declared(self) -> Source:
        relations = []
        if self.session > 1:
            relations.append(Relation(kind="successor", of=f"{self.name}:{self.session - 1}", start=1))
        if self.sibling_of:
            relations.append(Relation(kind="sibling", of=self.sibling_of))
        return Source(id=self.id, relations=tuple(relations))

    def emit(self, count: int) -> tuple[str, int, int]:
        first = self.sent[self.id] + 1
        self.sent[self.id] += count
        return self.id, first, self.sent[self.id]

    def reset(self) -> None:
        self.session += 1
        self.sent[self.id] = 0
        self.world.tell(f"source {self.name} begins session {self.session}")
