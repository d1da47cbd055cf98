"""Virtual time, a bad network and mortal nodes, all from one seed.

It knows nothing of what runs in it. A node has parts, each behind a port; a part is told what has come and when, by the
node's own clock, and leaves what it sends with the node. Same seed, same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

STEPS_MAX = 300_000  # some ten times what a run takes


class Broken(Exception):
    """A law does not hold."""


class Part(Protocol):
    """One machine with its edge."""

    def receive(self, sender: str, payload: Any, now_s: float) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def due_s(self) -> float:
        """When it wants its next tick, by the node's clock."""

    def ends(self, orderly: bool) -> None:
        """The process is gone; what is not on the node's disk is lost."""


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.cuts: set[tuple[str, str]] = set()  # from, to
        self.loss = self.double = self.slow = 0.0
        self.slow_s = 12.0
        self.stalls = 0.0  # how often a disk takes its time
        self.lag: dict[str, tuple[float, float]] = {}  # what is sent to that node takes so long
        self.tunnels: set[tuple[str, str]] = set()  # from, to: what was sent before a cut arrives after it
        self.postman: Callable[[str, str, str, Any], None] | None = None  # sees all that is sent
        self.drift = (0.9, 1.1)  # the margin of the lease covers it
        self.trace: list[str] | None = None
        self.count: dict[str, int] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self.steps = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heappush(self._events, (when, self._serial, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, call, args = heappop(self._events)
            call(*args)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Broken(f"no storms of messages: {self.steps} steps by {self.now:.1f} s")
        self.now = until

    def say(self, *words: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f} " + " ".join(map(str, words)))

    def tally(self, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1

    def send(self, source: str, node: str, port: str, payload: Any) -> None:
        """May be lost, doubled, late and out of order; what a node sends to itself arrives."""
        rng = self.rng
        if source == node:
            self.after(0.0002, self.arrive, source, node, port, payload)
            return
        if self.postman is not None:
            self.postman(source, node, port, payload)
        if (source, node) in self.tunnels and (source, node) in self.cuts:
            return
        for _ in range(2 if self.double and rng.random() < self.double else 1):
            if self.loss and rng.random() < self.loss:
                continue
            delay = 0.0005 + 0.02 * rng.random() ** 3
            if self.slow and rng.random() < self.slow:
                delay = self.slow_s * rng.random()  # it slept in some buffer for longer than a lease
            if node in self.lag:
                delay += rng.uniform(*self.lag[node])
            self.after(delay, self.arrive, source, node, port, payload)

    def arrive(self, source: str, node: str, port: str, payload: Any) -> None:
        target = self.nodes.get(node)
        if target is not None and ((source, node) not in self.cuts or (source, node) in self.tunnels):
            target.deliver(port, source, payload)


class Node:
    """A process with a disk and a clock. A crash keeps `disk` alone; a pause keeps everything and lets time go by."""

    def __init__(self, world: World, name: str, build: Callable[[Node], dict[str, Part]]) -> None:
        self.world, self.name, self.build = world, name, build
        self.disk: dict[str, Any] = {}
        self.start_number = 0
        self.up = False
        self.parts: dict[str, Part] = {}
        self.paused_until = 0.0
        self.rate, self._offset = 1.0, 0.0
        self._planned: dict[str, float] = {}
        world.nodes[name] = self

    # --- life

    def start(self) -> None:
        if self.up:
            return
        world = self.world
        self.up, self.start_number, self.paused_until = True, self.start_number + 1, 0.0
        self.rate = world.rng.uniform(*world.drift)
        self._offset = world.rng.uniform(10, 1000) - world.now * self.rate
        world.say("start", self.name, self.start_number)
        self._planned = {}
        self.parts = self.build(self)
        for port in self.parts:
            self._plan(port)

    def crash(self, orderly: bool = False) -> None:
        if self.up:
            self.world.say("stop" if orderly else "crash", self.name)
            for part in self.parts.values():
                part.ends(orderly)
            self.up, self.parts = False, {}

    def pause(self, for_s: float) -> None:
        self.paused_until = self.world.now + for_s
        self.world.say("pause", self.name, f"{for_s:.2f} s")

    def pace(self, rate: float) -> None:
        """Its clock runs at another speed from now on."""
        self._offset += self.world.now * (self.rate - rate)
        self.rate = rate
        self.world.say("clock of", self.name, "runs at", f"{rate:.2f}")
        self._planned = {}
        for port in self.parts:
            self._plan(port)

    def jump(self, by_s: float) -> None:
        self._offset += by_s
        self.world.say("clock of", self.name, "jumps", f"{by_s:.2f} s")
        for port in self.parts:
            self._plan(port)

    # --- time

    def clock(self) -> float:
        return self.world.now * self.rate + self._offset

    def after(self, delay: float, port: str, call: Callable[[float], None]) -> None:
        """Work of this process of its own: lost with it, late if it is paused."""
        self.world.after(delay, self._do, self.start_number, port, call)

    def _do(self, start: int, port: str, call: Callable[[float], None]) -> None:
        if self.up and start == self.start_number:
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until, self._do, start, port, call)
                return
            call(self.clock())
            if self.up:
                self._plan(port)

    def deliver(self, port: str, sender: str, payload: Any) -> None:
        if not self.up or port not in self.parts:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, self.deliver, port, sender, payload)
            return
        self.parts[port].receive(sender, payload, self.clock())
        if self.up:
            self._plan(port)

    def _plan(self, port: str) -> None:
        wait = max(0.0, self.parts[port].due_s() - self.clock()) / self.rate
        when = self.world.now + wait + 0.0005
        if when < self._planned.get(port, 1e18):
            self._planned[port] = when
            self.world.at(when, self._tick, self.start_number, port, when)

    def _tick(self, start: int, port: str, planned: float) -> None:
        if not self.up or start != self.start_number or self._planned.get(port) != planned:
            return
        if self.world.now < self.paused_until:
            self._planned[port] = self.paused_until
            self.world.at(self.paused_until, self._tick, start, port, self.paused_until)
            return
        del self._planned[port]
        if self.parts[port].due_s() <= self.clock():
            self.parts[port].tick(self.clock())
        if self.up:
            self._plan(port)
