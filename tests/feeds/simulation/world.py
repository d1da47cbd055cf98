"""Virtual time, processes that can be killed and paused, and connections between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

LATENCY_S = (0.0005, 0.004)


class World:
    """All that happens, in order; the same seed gives the same run."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.random = Random(seed)
        self.now_s = 1000.0
        self.trace: list[str] | None = [] if trace else None
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, what: Callable[..., None], *args: Any) -> None:
        self.events += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self.events, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + delay_s, what, *args)

    def run_until(self, time_s: float) -> None:
        while self._heap and self._heap[0][0] <= time_s:
            self.now_s, _, what, args = heapq.heappop(self._heap)
            what(*args)
        self.now_s = time_s

    def tell(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_s - 1000:8.4f} {text}")


class Process:
    """`life` changes with each death: what was meant for the dead does not reach the living."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = False
        self.life = 0
        self.paused_until_s = 0.0
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.connections: list[Connection] = []

    def hand(self, life: int, what: Callable[..., None], *args: Any) -> None:
        """Do it when the process runs; not at all if that one is dead."""
        if life != self.life or not self.is_up:
            return
        if not self._waiting and self.world.now_s >= self.paused_until_s:
            what(*args)
            return
        self._waiting.append((what, args))
        if len(self._waiting) == 1:
            self.world.at(self.paused_until_s, self._wake, life)

    def _wake(self, life: int) -> None:
        """What came during a pause, in its order."""
        if life != self.life:
            return
        if self.world.now_s < self.paused_until_s:
            self.world.at(self.paused_until_s, self._wake, life)
            return
        waiting, self._waiting = self._waiting, []
        for what, args in waiting:
            if life == self.life and self.is_up:
                what(*args)

    def every(self, interval_s: float, what: Callable[[], None]) -> None:
        def go(life: int) -> None:
            if life == self.life and self.is_up:
                what()
                self.world.after(interval_s, self.hand, life, go, life)

        self.world.after(interval_s, self.hand, self.life, go, self.life)

    def pause(self, seconds: float) -> None:
        self.world.tell(f"{self.name} paused for {seconds:.2f} s")
        self.paused_until_s = max(self.paused_until_s, self.world.now_s + seconds)

    def kill(self) -> None:
        if self.is_up:
            self.world.tell(f"{self.name} killed")
            self.is_up = False
            self.life += 1
            for connection in list(self.connections):
                connection.close(self)

    def begin(self) -> None:
        self.is_up = True
        self.life += 1
        self._waiting = []
        self.paused_until_s = 0.0
        self.world.tell(f"{self.name} starts")


class Connection:
    """Two ordered ways. Each end is a process and what it does when something comes, or when it is over."""

    def __init__(self, world: World, dialler: Process, listener: Process) -> None:
        self.world = world
        self.ends = (dialler, listener)
        self.lives = (dialler.life, listener.life)
        self.is_open = True
        self.is_dark = False  # nothing arrives, and nobody is told
        self.slow_s = 0.0
        self.on_closed: list[Callable[[], None] | None] = [None, None]
        self._free_s = [0.0, 0.0]
        self._is_left = [False, False]  # that end wants nothing more
        for process in self.ends:
            process.connections.append(self)

    def send(self, sender: Process, what: Callable[..., None], *args: Any) -> None:
        """`what` happens at the other end, after what was sent before."""
        to = 1 if sender is self.ends[0] else 0
        if not self.is_open:
            return
        time_s = max(self._free_s[to], self.world.now_s + self.world.random.uniform(*LATENCY_S) + self.slow_s)
        self._free_s[to] = time_s
        self.world.at(time_s, self._arrive, to, what, args)

    def _arrive(self, to: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.is_dark:
            self.ends[to].hand(self.lives[to], self._hear, to, what, args)

    def _hear(self, to: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._is_left[to]:
            what(*args)

    def close(self, by: Process | None = None) -> None:
        """What is under way still arrives; then the other end, or both, are told."""
        if not self.is_open:
            return
        for to, process in enumerate(self.ends):
            process.connections.remove(self)
            self._is_left[to] = process is by
            if process is not by:
                time_s = max(self._free_s[to], self.world.now_s + self.world.random.uniform(*LATENCY_S))
                self.world.at(time_s, self._over, to)
        self.is_open = False

    def _over(self, to: int) -> None:
        self.ends[to].hand(self.lives[to], self._closed, to)

    def _closed(self, to: int) -> None:
        self._is_left[to] = True
        if (told := self.on_closed[to]) is not None:
            told()
