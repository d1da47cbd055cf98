"""Client ends, a gateway and broker ends together, in virtual time, over lines that lose, repeat and replay.

The ends and the gateway are the real ones; HTTP and the links are a queue of events. `Watch` looks at every call and
every answer of the gateway; whatever it or an actor finds wrong is a Violation.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from fairlead.tunnel.gateway import Answer, CloseLink, CloseStream, Gateway, Limits, Reply, ToLink, ToStream
from fairlead.tunnel.packets import split
from tests.tunnel.gateway.watch import Violation, Watch

if TYPE_CHECKING:
    from tests.tunnel.gateway.brokers import Broker
    from tests.tunnel.gateway.clients import Client

__all__ = ["Faults", "Simulation", "Violation"]

SECRET = b"s" * 20


class Faults(NamedTuple):
    """Chances by request, and counts by run."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    doubled: float = 0.0
    replayed: float = 0.0
    restarts: int = 0
    cuts: int = 0
    vanishing: int = 0
    attackers: int = 0
    streams: float = 0.0
    """The share of clients that use a WebSocket now and then."""


class Simulation:
    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        clients: int = 3,
        brokers: int = 2,
        size: int = 20_000,
        limits: Limits | None = None,
        make: Callable[..., Gateway] = Gateway,
    ) -> None:
        from tests.tunnel.gateway.attacker import Attacker
        from tests.tunnel.gateway.brokers import Broker
        from tests.tunnel.gateway.clients import Client

        self.random = Random(seed)
        self.faults = faults
        self.limits = limits or Limits(opens_per_s=1000.0, inactivity_s=40.0)
        self.now_s = 0.0
        self.size = size
        self._is_over = False
        self.watch = Watch(self)
        self.keys = count(1)
        self._make = make
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = count()
        self._names = [f"b{number}" for number in range(brokers)]
        self._held: dict[int, Callable[[Reply], None]] = {}
        self.streams: dict[int, Client] = {}
        self.links: dict[int, Broker] = {}
        self.gateway: Gateway | None = None
        self.start_gateway()
        self.brokers = {name: Broker(self, name) for name in self._names}
        self.clients = [
            Client(self, number, self._names[number % brokers], vanishes=number < faults.vanishing)
            for number in range(clients)
        ]
        for _ in range(faults.attackers):
            Attacker(self)
        for _ in range(faults.restarts):
            self.at(self.random.uniform(1, 25), self.stop_gateway)
        for _ in range(faults.cuts):
            broker = self.brokers[self.random.choice(self._names)]
            self.at(self.random.uniform(1, 25), broker.cut)

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        heappush(self._events, (self.now_s + seconds, next(self._turn), call))

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Looking after things: rarely, when only forgetting is waited for."""
        self.at(1.0 if self._is_over else seconds, call)

    def run(self, limit_s: float = 900.0) -> None:
        """Until everybody is done, and then until nothing may be left."""
        while not all(client.is_done for client in self.clients):
            self._step()
            if self.now_s > limit_s:
                raise Violation("it does not come to an end: " + "; ".join(map(str, self.clients)))
        for client in self.clients:
            client.check_end()
        self._is_over = True
        end_s = self.now_s + 3 * self.limits.remember_s + 400
        while self._events and self._events[0][0] < end_s:
            self._step()
        assert self.gateway is not None
        left = self.gateway.status(self.now_s)
        if left.tunnels or left.done or left.ended or left.buffered_bytes:
            raise Violation(f"something is left: {left}")

    def _step(self) -> None:
        self.now_s, _, call = heappop(self._events)
        call()

    # -- the gateway --------------------------------------------------------------------------------------------------

    def start_gateway(self) -> None:
        self.gateway = self._make(
            self.limits,
            self.now_s,
            instance="here",
            secret=SECRET,
            allow_v1=False,
            random_bytes=self._random_bytes,
            servers=self._names,
        )
        self.watch.restarted()
        self._clock(self.gateway)

    def _random_bytes(self, size: int) -> bytes:
        """Few ids, so that they would collide; tokens as they should be."""
        return self.random.randrange(1, 12).to_bytes(4, "big") if size == 4 else self.random.randbytes(size)

    def stop_gateway(self) -> None:
        """It is killed; another one, which knows nothing, comes a little later."""
        if self.gateway is None:
            return
        self.gateway = None
        held, self._held = self._held, {}
        for resolve in held.values():
            resolve(Reply(0))
        for client in list(self.streams.values()):
            client.stream_closed()
        for broker in list(self.links.values()):
            broker.link_closed()
        self.at(self.random.uniform(0.2, 6), self.start_gateway)

    def _clock(self, gateway: Gateway) -> None:
        """Looks after `next_at` ten times a second, as fine as these tests need it."""
        if gateway is not self.gateway:
            return
        if gateway.next_at() <= self.now_s:
            gateway.on_time(self.now_s)
            self.settle()
        self.every(0.1, lambda: self._clock(gateway))

    def settle(self) -> None:
        assert self.gateway is not None
        for effect in self.gateway.effects():
            self.watch.on_effect(effect)
            match effect:
                case Answer(key, reply):
                    if (resolve := self._held.pop(key, None)) is not None:
                        resolve(reply)
                case ToStream(key, packets):
                    if (client := self.streams.get(key)) is not None:
                        client.later_from_stream(key, b"".join(packets))
                case CloseStream(key, _):
                    if (client := self.streams.get(key)) is not None:
                        client.stream_closed()
                case ToLink(key, packets):
                    if (broker := self.links.get(key)) is not None:
                        broker.later_from_link(key, split(b"".join(packets), 1 << 20).packets)
                case CloseLink(key, _):
                    if (broker := self.links.get(key)) is not None:
                        broker.later_closed(key)
        self.watch.check()

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def request(
        self,
        ask: Callable[[Gateway, int], Reply | None],
        answered: Callable[[Reply], None],
        *,
        timeout_s: float,
        can_repeat: bool = False,
    ) -> None:
        """`answered` gets status 0 when the request failed for all the client can tell."""
        chance, faults = self.random.random, self.faults

        def fail() -> None:
            self.at(timeout_s, lambda: answered(Reply(0)))

        if chance() < faults.lost_request:
            fail()
            return
        is_answer_lost = chance() < faults.lost_answer

        def back(reply: Reply) -> None:
            if is_answer_lost:
                fail()
            else:
                self.at(self._travel_s(), lambda: answered(reply))

        self.at(self._travel_s(), lambda: self._arrive(ask, back))
        if chance() < faults.doubled:
            self.at(self._travel_s(), lambda: self._arrive(ask, lambda reply: None))
        if can_repeat and chance() < faults.replayed:
            self.at(self.random.uniform(0, 60), lambda: self._arrive(ask, lambda reply: None))

    def _travel_s(self) -> float:
        return self.random.choice((0.005, 0.02, 0.02, 0.05, 0.3))

    def _arrive(self, ask: Callable[[Gateway, int], Reply | None], back: Callable[[Reply], None]) -> None:
        if self.gateway is None:
            back(Reply(0))
            return
        key = next(self.keys)
        reply = ask(self.gateway, key)
        if reply is None:
            self._held[key] = back
        else:
            back(reply)
        self.settle()
