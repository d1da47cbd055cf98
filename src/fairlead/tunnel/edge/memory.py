"""A carrier inside one loop, as bad as one likes: for tests of everything above the drivers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.tunnel.packets import Packet, split
from fairlead.tunnel.port import Sink

__all__ = ["Faults", "MemoryDriver", "pair"]

WAY_BYTES = 4 << 20


@dataclass(slots=True)
class Faults:
    """What may befall a packet on its way; the shares are from 0 to 1. May be changed at any time."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """The share that takes `detour_s` longer than the others."""
    flips: float = 0.0
    """The share in which one bit is turned, never one of the size."""
    delay_s: float = 0.0
    detour_s: float = 0.02
    drop: Callable[[Packet], bool] | None = None
    """Says of single packets that they get lost."""
    seed: int = 1
    lost: int = 0
    flipped: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def befall(self, raw: bytes) -> list[tuple[float, bytes]]:
        """How often, when, and how damaged one packet arrives."""
        chance = self._random.random
        if self.drop and any(self.drop(packet) for packet in split(raw).packets):
            self.lost += 1
            return []
        found = []
        for _ in range(2 if chance() < self.duplication else 1):
            if chance() < self.loss:
                self.lost += 1
                continue
            delay_s = self.delay_s + (self.detour_s * chance() if chance() < self.reordering else 0.0)
            found.append((delay_s, self._flip(raw) if chance() < self.flips else raw))
        return found

    def _flip(self, raw: bytes) -> bytes:
        self.flipped += 1
        at = self._random.choice((*range(4), *range(8, len(raw))))
        damaged = bytearray(raw)
        damaged[at] ^= 1 << self._random.randrange(8)
        return bytes(damaged)


class MemoryDriver:
    """One side of a pair; `stalled` takes nothing, as a carrier that is away does."""

    carrier = "memory"

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Faults) -> None:
        self.faults = faults
        self.closed = False
        self.periods: list[tuple[float, float]] = []
        self._loop = loop
        self._sink: Sink | None = None
        self._other: MemoryDriver | None = None
        self._under_way = 0
        self._stalled = False
        self._soon: list[bytes] = []

    def start(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def stalled(self) -> bool:
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        if not stalled and self._sink:
            self._sink.on_room()

    def room(self) -> int:
        return 0 if self._stalled or self.closed else max(WAY_BYTES - self._under_way, 0)

    def send(self, packets: list[bytes]) -> None:
        for raw in packets:
            for delay_s, arriving in self.faults.befall(raw):
                self._under_way += len(arriving)
                if delay_s:
                    self._loop.call_later(delay_s, self._arrive, [arriving])
                    continue
                if not self._soon:
                    self._loop.call_soon(self._arrive_soon)
                self._soon.append(arriving)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        self.periods.append((pull_period_s, hold_s))

    def close(self) -> None:
        self.closed = True

    def _arrive_soon(self) -> None:
        arriving, self._soon = self._soon, []
        self._arrive(arriving)

    def _arrive(self, arriving: list[bytes]) -> None:
        was_full = self.room() <= 0
        self._under_way -= sum(map(len, arriving))
        if was_full and self.room() > 0 and self._sink:
            self._sink.on_room()
        other = self._other
        if other is None or other.closed or other._sink is None:
            return
        body = split(b"".join(arriving))
        if body.damaged:
            other._sink.on_damaged(body.damaged)
        if body.packets:
            other._sink.on_packets(body.packets)


def pair(
    loop: asyncio.AbstractEventLoop, there: Faults | None = None, back: Faults | None = None
) -> tuple[MemoryDriver, MemoryDriver]:
    """Two drivers, each the other's far side; `start` them with their pumps before anything is sent."""
    one, other = MemoryDriver(loop, there or Faults()), MemoryDriver(loop, back or Faults(seed=2))
    one._other, other._other = other, one
    return one, other
