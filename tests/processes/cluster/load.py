"""The load of the cluster harness: flows of the single server's harness, spread over groups and client managers.

`Pulse` is the one that measures: one send after the other from every client manager into every group, each with the
time it took, so that a failover is seen as the longest of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import fairlead
from fairlead.errors import FairleadError, RequestTimeout
from tests.processes.durable.books import CONFIRMED, Faults, Reading
from tests.processes.durable.flows import Flow, News, Numbered, Numbers, Transfers, now_ms

STUCK_S: Final = 40.0  # a send is confirmed or refused by then, whatever is done to the cluster
LATE_MS: Final = 25_000  # between a send and its delivery; nothing is hurt for as long as that
GRACE_S: Final = 5.0


@dataclass(frozen=True)
class Place:
    """Where a flow works: the client managers' URLs, and its group."""

    urls: list[str]
    group: str
    groups: list[str]


class Spread:
    """Producers are at one client manager each, everybody else at whichever answers."""

    place: Place
    _stack: Any

    async def connect(self, name: str) -> Any:
        kind, _, number = name.rpartition("-")
        urls: Any = self.place.urls
        if kind == "producer":
            urls = urls[int(number) % len(urls)]
        name = f"{type(self).__name__.lower()}-{self.place.group}-{name}"
        connection = fairlead.connect(urls, name=name, reconnect_limit_s=120, keep_alive_s=1.5)
        return await self._stack.enter_async_context(connection)


class GroupNumbers(Spread, Numbers):
    """A plain queue of one group; two producers, each at its own client manager, and two consumers."""

    sources = 2
    bursts = 30

    def __init__(self, place: Place, seed: str, faults: Faults) -> None:
        self.place = place
        self.name = f"soak.numbers.{place.group}"
        super().__init__(place.urls[0], f"{seed}/{place.group}", faults)

    def again_and_again(self, work: Any, pause_s: float = 0.15) -> None:
        super().again_and_again(work, pause_s)


class GroupNews(Spread, News):
    """A topic with durable subscriptions."""

    sources = 2
    bursts = 5

    def __init__(self, place: Place, seed: str, faults: Faults) -> None:
        self.place = place
        self.name = f"soak.news.{place.group}"
        super().__init__(place.urls[0], f"{seed}/{place.group}", faults)

    def again_and_again(self, work: Any, pause_s: float = 0.2) -> None:
        super().again_and_again(work, pause_s)


class GroupTransfers(Spread, Transfers):
    """Coins move between queues of different groups, so that every commit is one across groups."""

    def __init__(self, place: Place, seed: str, faults: Faults) -> None:
        self.place = place
        self.queues = tuple(f"soak.bank.{group}" for group in place.groups)
        super().__init__(place.urls[0], seed, faults, coins=20)

    def again_and_again(self, work: Any, pause_s: float = 0.1) -> None:
        super().again_and_again(work, pause_s)


class Beat(NamedTuple):
    """One send: when, how long until it was confirmed, and through which client manager."""

    began_s: float
    lasted_s: float
    source: int


class Pulse(Spread, Numbered):
    """One send at a time from each client manager; nothing else is under way in its session."""

    def __init__(self, place: Place, seed: str, faults: Faults) -> None:
        self.place = place
        self.name = f"soak.pulse.{place.group}"
        self.sources = len(place.urls)
        self.beats: list[Beat] = []
        self.delays_ms: Counter[int] = Counter()
        super().__init__(place.urls[0], f"{seed}/{place.group}", faults)

    async def start(self) -> None:
        await self.start_producers()
        connection = await self.connect("consumer")
        self.task(self.consume(connection, self.ledger.reading(), "consumer", 0.0, prefetch=50))

    def again_and_again(self, work: Any, pause_s: float = 0.04) -> None:
        super().again_and_again(work, pause_s)

    async def produce(self, connection: Any, source: int) -> None:
        number = self.ledger.send(source)
        body = self.body(source, number, {})
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(STUCK_S + GRACE_S):
                receipt = await self.destination(connection).send(body, timeout=STUCK_S)
        except (TimeoutError, RequestTimeout) as error:
            self.ledger.failed(source, number)
            self.faults.add("stuck", f"{self.name} source {source} number {number}: {type(error).__name__}")
        except FairleadError as error:
            self.errors[f"send {error.code}"] += 1
            self.ledger.failed(source, number)
        else:
            self.ledger.confirmed(source, number, receipt.order)
            self.beats.append(Beat(began_s, time.monotonic() - began_s, source))

    async def take(self, message: Any, reading: Reading, lane: str, retries: float = 0.0) -> None:
        late_ms = now_ms() - int(message.arrival.timestamp() * 1000)
        if late_ms > LATE_MS:
            self.faults.add("late", f"{self.name} order {message.order}: {late_ms} ms after its arrival")
        await super().take(message, reading, lane, retries)

    def longest_s(self, since_s: float, until_s: float) -> float:
        """The longest send that was under way between these instants, counted from the first of them."""
        return max(
            (
                beat.began_s + beat.lasted_s - max(since_s, beat.began_s)
                for beat in self.beats
                if beat.began_s <= until_s and beat.began_s + beat.lasted_s >= since_s
            ),
            default=0.0,
        )

    def counts(self) -> dict[str, int]:
        return {**super().counts(), f"{self.name} beats": self.ledger.count(CONFIRMED)}


def flows_for(urls: list[str], groups: list[str], seed: str, faults: Faults) -> list[Flow]:
    """All of them."""
    places = [Place(urls, group, groups) for group in groups]
    found: list[Flow] = [Pulse(place, seed, faults) for place in places]
    found += [GroupNumbers(place, seed, faults) for place in places]
    found.append(GroupNews(places[-1], seed, faults))
    if len(groups) > 1:
        found.append(GroupTransfers(places[0], seed, faults))
    return found


def pins_of(groups: list[str]) -> dict[str, list[str]]:
    """Names of each group, so that every flow is where it says."""
    kinds = ("numbers", "news", "pulse", "bank")
    return {group: [f"soak.{kind}.{group}" for kind in kinds] for group in groups}
