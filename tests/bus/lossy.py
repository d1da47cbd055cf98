"""One sender and several receivers of the multicast machines over a network that loses, doubles, delays and mixes."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

from fairlead.bus.multicast.receiving import Receiver
from fairlead.bus.multicast.sending import Sender

STEP_S = 0.001


@dataclass
class Weather:
    loss: float = 0.0
    double: float = 0.0
    delay_s: float = 0.002
    silent: set[str] = field(default_factory=set)  # receivers that hear nothing
    frozen: set[str] = field(default_factory=set)  # and do nothing


class LossyNet:
    """Time goes on in `run`; requests are heard by everybody, as multicasts are."""

    def __init__(
        self,
        seed: int,
        names: tuple[str, ...],
        weather: Weather,
        *,
        content_bytes: int = 100,
        kept: int = 1 << 20,
        sender: type[Sender] = Sender,
        receiver: type[Receiver] = Receiver,
        patience_s: float = 3.0,
    ) -> None:
        self.rng = random.Random(seed)
        self.weather = weather
        self.now_s = 0.0
        self.sender = sender(content_bytes, kept)
        self.receivers = {name: receiver(self.sender.add(name), patience_s, self.rng.random) for name in names}
        self.got: dict[str, list[bytes]] = {name: [] for name in names}
        self.data_packets = self.ask_packets = self.beats = 0
        self.excluded: list[str] = []
        self._ways: list[tuple[float, int, str, tuple[object, ...]]] = []
        self._numbers = itertools.count()

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.step()

    def run_until_all_have(self, count: int, limit_s: float = 60.0) -> bool:
        until_s = self.now_s + limit_s
        while self.now_s < until_s:
            self.step()
            if all(len(self.got[name]) >= count for name in self.receivers if name not in self.weather.frozen):
                return True
        return False

    def step(self) -> None:
        self.now_s += STEP_S
        for out in self.sender.due(self.now_s):
            self.data_packets += 1
            for name in self.receivers:
                self._carry(name, ("data", *out))
        if (highest := self.sender.beat(self.now_s)) is not None:
            self.beats += 1
            for name in self.receivers:
                self._carry(name, ("beat", highest))
        for name, receiver in self.receivers.items():
            if name in self.weather.frozen:
                continue
            if ranges := receiver.ask(self.now_s):
                self.ask_packets += 1
                self._carry("", ("ask", ranges))
                for other in self.receivers:
                    if other != name:
                        self._carry(other, ("ask", ranges))
            if (wanted := receiver.report(self.now_s)) is not None:
                self.sender.on_report(name, wanted)  # over a stream: not lost
        while self._ways and self._ways[0][0] <= self.now_s:
            _, _, to, what = heapq.heappop(self._ways)
            self._arrive(to, what)
        while self.sender.slow:
            name = self.sender.slow.pop()
            self.excluded.append(name)
            self.receivers.pop(name)

    def _carry(self, to: str, what: tuple[object, ...]) -> None:
        if to in self.weather.silent:
            return
        for _ in range(2 if self.rng.random() < self.weather.double else 1):
            if self.rng.random() >= self.weather.loss:
                at_s = self.now_s + self.rng.random() * self.weather.delay_s
                heapq.heappush(self._ways, (at_s, next(self._numbers), to, what))

    def _arrive(self, to: str, what: tuple[object, ...]) -> None:
        kind, *rest = what
        if not to:
            self.sender.on_ask(rest[0], self.now_s)  # type: ignore[arg-type]
        elif to not in self.receivers or to in self.weather.frozen:
            return
        elif kind == "data":
            number, flags, content = rest
            blocks = self.receivers[to].on_data(number, flags, memoryview(content), self.now_s)  # type: ignore[arg-type]
            self.got[to] += [body for _, body in blocks]
        elif kind == "beat":
            self.receivers[to].on_beat(rest[0], self.now_s)  # type: ignore[arg-type]
        else:
            self.receivers[to].on_others_ask(rest[0], self.now_s)  # type: ignore[arg-type]
