"""Clients at every client manager that keep count while the cluster is changed under them.

Confirmed sends to a queue of each group from each client manager, taken at the next one; transactions across groups;
transient messages of a topic. Whatever is planned may make them wait, and nothing else: no exception, no event, nothing
lost, doubled, reordered or marked as redelivered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.client.effects import Event
from fairlead.errors import RequestTimeout
from fairlead.testing.cluster import Cluster

SETTLE_S = 30.0
PACE_S = 0.004


@dataclass
class Flow:
    """Numbered messages of one producer, as one consumer got them."""

    name: str
    sent: int = 0
    got: list[tuple[int, bool]] = field(default_factory=list)
    confirmed_s: list[float] = field(default_factory=list)

    def pause_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a confirm."""
        times = [since_s, *(at_s for at_s in self.confirmed_s if since_s <= at_s <= until_s), until_s]
        return max(b - a for a, b in pairwise(times))

    def faults(self, *, may_repeat: bool = False) -> list[str]:
        """`may_repeat`: a delivery that was under way when its agent ended may be marked as redelivered."""
        numbers = [number for number, _ in self.got]
        again = [number for number, redelivered in self.got if redelivered]
        found = []
        if lost := sorted(set(range(self.sent)) - set(numbers)):
            found.append(f"{self.name}: {len(lost)} of {self.sent} lost, first {lost[0]}")
        if len(set(numbers)) != len(numbers):
            found.append(f"{self.name}: {len(numbers) - len(set(numbers))} doubled")
        if sorted(numbers) != numbers:
            found.append(f"{self.name}: reordered")
        if again and not may_repeat:
            found.append(f"{self.name}: {len(again)} marked redelivered, first {again[0]}")
        return found


class Load:
    """Runs inside `async with`; `finish` ends the sending, waits for the rest and checks."""

    def __init__(self, cluster: Cluster, *, transactions: bool = True, transient: bool = True) -> None:
        self.cluster = cluster
        self.flows: list[Flow] = []
        self.events: list[str] = []
        self.moves = 0
        self._kinds = (transactions, transient)
        self._ending = False
        self._stack = AsyncExitStack()
        self._senders: list[asyncio.Task[None]] = []
        self._takers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        urls = self.cluster.urls()
        at = [await self._connect(url, f"at-{number}") for number, url in enumerate(urls)]
        places = await queues_by_group(at[0])
        for number, connection in enumerate(at):
            taker = at[(number + 1) % len(at)]
            for group, names in places.items():
                self._start_queue(connection, taker, names[number], f"group {group} from {urls[number]}")
            if self._kinds[1]:
                await self._start_topic(connection, await self._connect(urls[number], f"listens-{number}"), number)
        if self._kinds[0]:
            self._start_transactions(at[0], at[-1], [names[-1] for names in places.values()])
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in (*self._senders, *self._takers):
            task.cancel()
        await asyncio.gather(*self._senders, *self._takers, return_exceptions=True)
        await self._stack.aclose()

    async def _connect(self, url: str, name: str) -> Connection:
        connection = await self._stack.enter_async_context(fairlead.connect(url, name=name))
        connection.on_event(lambda event: self._on_event(name, event))
        return connection

    def _on_event(self, name: str, event: Event) -> None:
        if event.name == "moved":
            self.moves += 1  # asked for by its connection manager, and not noticed by the application
        elif not self._ending:
            self.events.append(f"{name}: {event.name} {event.error or ''}")

    # --- The flows ------------------------------------------------------------------------------------------------
    def _start_queue(self, sender: Connection, taker: Connection, name: str, what: str) -> None:
        flow = Flow(f"{name} ({what})")
        self.flows.append(flow)

        async def send(number: int) -> None:
            await sender.queue(name).send(b"%d" % number)

        self._senders.append(asyncio.create_task(self._sending(flow, send)))
        self._takers.append(asyncio.create_task(_taking(flow, taker, name)))

    def _start_transactions(self, sender: Connection, taker: Connection, names: list[str]) -> None:
        flows = [Flow(f"{name} (transactions)") for name in names]
        self.flows += flows

        async def send(number: int) -> None:
            async def work(transaction: fairlead.Transaction) -> None:
                for name in names:
                    await transaction.send(name, b"%d" % number)

            await sender.run_transaction(work)
            for other in flows[1:]:
                other.sent = number + 1

        self._senders.append(asyncio.create_task(self._sending(flows[0], send)))
        for flow, name in zip(flows, names, strict=True):
            self._takers.append(asyncio.create_task(_taking(flow, taker, name)))

    async def _start_topic(self, sender: Connection, taker: Connection, number: int) -> None:
        flow = Flow(f"live.{number} (transient)")
        self.flows.append(flow)
        subscription = taker.subscribe(f"live.{number}")
        await self._stack.enter_async_context(subscription)
        await taker.flush()

        async def send(value: int) -> None:
            await sender.publish(f"live.{number}", b"%d" % value)

        async def take() -> None:
            async for message in subscription:
                flow.got.append((int(message.body), False))

        self._takers.append(asyncio.create_task(take()))
        self._senders.append(asyncio.create_task(self._sending(flow, send)))

    async def _sending(self, flow: Flow, send: Callable[[int], Awaitable[None]]) -> None:
        while not self._ending:
            await send(flow.sent)
            flow.sent += 1
            flow.confirmed_s.append(time.monotonic())
            await asyncio.sleep(PACE_S)

    # --- The account ----------------------------------------------------------------------------------------------
    async def during(self, work: Callable[..., object], *args: object) -> float:
        """Do that in a thread; the longest pause of confirms meanwhile, of any flow."""
        since_s = time.monotonic()
        await asyncio.to_thread(work, *args)
        self.check_alive()
        return max(flow.pause_s(since_s, time.monotonic()) for flow in self.flows if flow.confirmed_s)

    async def grows(self, count: int = 20) -> None:
        """Until every flow has so many more: the cluster works for all of them."""
        goals = [(flow, flow.sent + count) for flow in self.flows]
        until_s = time.monotonic() + SETTLE_S
        while any(flow.sent < goal or len(flow.got) < goal - count for flow, goal in goals):
            self.check_alive()
            assert time.monotonic() < until_s, [f"{flow.name}: {flow.sent}, {len(flow.got)}" for flow, _ in goals]
            await asyncio.sleep(0.02)

    def check_alive(self) -> None:
        for task in (*self._senders, *self._takers):
            if task.done() and not task.cancelled():
                task.result()  # an application saw an exception

    async def finish(self, *, may_repeat: bool = False) -> None:
        """All that was sent has come, once, in order; nobody was told of anything."""
        self._ending = True
        done, late = await asyncio.wait(self._senders, timeout=SETTLE_S)
        for task in done:
            task.result()
        assert not late, f"{len(late)} sends are neither confirmed nor refused after {SETTLE_S:g} s"
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s and any(len(flow.got) < flow.sent for flow in self.flows):
            self.check_alive()
            await asyncio.sleep(0.02)
        assert not [fault for flow in self.flows for fault in flow.faults(may_repeat=may_repeat)], self.report()
        assert not self.events, self.events

    def report(self) -> str:
        lines = [f"{flow.name}: {flow.sent} sent, {len(flow.got)} came" for flow in self.flows]
        return "\n".join([*(fault for flow in self.flows for fault in flow.faults()), *lines, *self.events])


async def _taking(flow: Flow, connection: Connection, name: str) -> None:
    async for message in connection.queue(name).consume():
        flow.got.append((int(message.body), message.redelivered))
        message.ack()


async def queues_by_group(
    connection: Connection, each: int = 4, *, prefix: str = "load", groups: int = 2
) -> dict[str, list[str]]:
    """So many empty queues in every group of the cluster."""
    found: dict[str, list[str]] = {}
    for number in range(200):
        name = f"{prefix}-{number}"
        await connection.queue(name).send(b"made")
        async with connection.queue(name).consume() as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            await message.ack(confirm=True)
        found.setdefault(str(connection.courier.road.places.get(name)), []).append(name)
        if len(found) == groups and all(len(names) >= each for names in found.values()):
            return found
    raise RequestTimeout("no queues in every group")
