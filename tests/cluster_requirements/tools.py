"""What the tests of real clusters share: names by group, numbered traffic, and who is where."""

from __future__ import annotations

import asyncio
import itertools
import select
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import fairlead
from fairlead.bus.edge.tap import Tap
from fairlead.cluster.client_manager.placement import Group, Placement
from fairlead.cluster.configuration.edge.watching import tap_config
from fairlead.testing.cluster import Cluster

PATIENCE_S = 20.0
_numbers = itertools.count()


def group_of(name: str, groups: str = "ab") -> str:
    """Where a destination of that name is made."""
    return groups[Placement([Group(letter) for letter in groups]).of(name)]


def name_in(group: str, stem: str, groups: str = "ab") -> str:
    """A name nobody else uses, which lives in that group."""
    return next(found for n in _numbers if group_of(found := f"{stem}.{n}", groups) == group)


async def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Look again and again, also at what is asked of the cluster in a thread."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = condition()
                if isinstance(found, Awaitable):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not in {timeout_s:g} s: {what}") from None


async def off(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a thread, so that clients go on."""
    return await asyncio.to_thread(work, *arguments)


async def fail_over(cluster: Cluster, group: str) -> str:
    """Kill the process that leads a group; returns when another one leads it. The node that led."""
    await off(cluster.wait_in_sync, group, 2)
    before = await off(cluster.primary, group)
    await off(cluster.kill_process, before)
    await off(cluster.wait_until, lambda: cluster.primary(group) not in ("", before), f"another one leads {group}")
    return str(before)


async def facts(connection: Any, name: str) -> dict[str, Any]:
    """What administration says about a destination."""
    found: dict[str, Any] = await connection.admin.execute("destination", destination=name)
    return found


async def take(consumer: Any, count: int) -> list[Any]:
    """So many messages, acknowledged."""
    found = []
    for _ in range(count):
        message = await consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"only {len(found)} of {count} came"
        message.ack()
        found.append(message)
    return found


async def bodies(consumer: Any, count: int) -> list[str]:
    return [message.text() for message in await take(consumer, count)]


async def browsed(connection: Any, name: str) -> list[tuple[str, str]]:
    return [(message.id, message.text()) async for message in connection.queue(name).browse()]


def connections(cluster: Cluster) -> dict[str, int]:
    """How many clients with queues and topics each client manager has."""
    answers = {node: answer["status"] for node, answer in cluster.ask("status")["nodes"].items()}
    return {
        node: sum(manager["connections"] for manager in status["managers"])
        for node, status in answers.items()
        if status["kind"] == "cm"
    }


def all_linked(cluster: Cluster) -> bool:
    """Has every client manager a link to the primary of every group?"""
    answers = [answer["status"] for answer in cluster.ask("status")["nodes"].values()]
    managers = [status for status in answers if status["kind"] == "cm"]
    groups = set(cluster.local.groups())
    return bool(managers) and all({one["group"] for one in cm["links"] if one["up"]} == groups for cm in managers)


class Tapped:
    """What goes over the bus while it is entered: (sender, receiver, port), from the bus tap."""

    def __init__(self, cluster: Cluster) -> None:
        self._config = tap_config(cluster.local.files(cluster.nodes[0]))
        self._nodes = set(cluster.local.running())
        self._lines: list[str] = []
        self._over = False

    async def __aenter__(self) -> Tapped:
        tap = self._tap = Tap(self._config, self._lines.append)
        self._task = asyncio.create_task(asyncio.to_thread(self._run, tap))
        await until(lambda: tap.nodes >= self._nodes, "all nodes mirror to the tap")
        return self

    def _run(self, tap: Tap) -> None:
        while not self._over:
            select.select([tap], [], [], min(0.05, tap.patience_s(time.monotonic())))
            tap.turn(time.monotonic())

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await self._task
        self._tap.close()

    @property
    def heads(self) -> list[tuple[str, str, str]]:
        return [(words[2], words[3], words[4]) for line in list(self._lines) if len(words := line.split()) >= 5]


class Traffic:
    """Producers that number their messages, and a consumer that checks: complete, in order, doubles marked."""

    def __init__(self, urls: list[str], names: list[str], producers: int) -> None:
        self.urls = urls
        self.names = names
        self.producers = producers
        self.sent: dict[tuple[int, str], int] = defaultdict(int)
        self.got: dict[tuple[int, str], int] = defaultdict(int)
        self.doubles = 0
        self._over = self._all_sent = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Traffic:
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(self.producers)]
        self._tasks += [asyncio.create_task(self._receive(name)) for name in self.names]
        await self.progress()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            return
        await asyncio.gather(*self._tasks[: self.producers])
        self._all_sent = True
        await asyncio.gather(*self._tasks[self.producers :])
        assert self.got == self.sent

    async def progress(self, count: int = 3) -> None:
        """Until each producer got so many more confirmed. What was received is compared at the end."""
        wanted = {key: self.sent[key] + count for key in self._keys()}

        def done() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(self.sent[key] >= number for key, number in wanted.items())

        await until(done, "traffic goes on", 40.0)

    def _keys(self) -> list[tuple[int, str]]:
        return [(number, name) for number in range(self.producers) for name in self.names]

    async def _send(self, number: int) -> None:
        turned = number % len(self.urls)
        async with fairlead.connect(_joined(self.urls, turned), name=f"producer-{number}") as connection:
            while not self._over:
                for name in self.names:
                    await connection.queue(name).send(f"{number} {self.sent[number, name] + 1}")
                    self.sent[number, name] += 1
                await asyncio.sleep(0.3)  # the one consumer keeps up

    async def _receive(self, name: str) -> None:
        async with (
            fairlead.connect(_joined(self.urls, 0), name=f"of-{name}") as connection,
            connection.queue(name).consume() as consumer,
        ):
            while not self._all_sent or any(self.got[key] < self.sent[key] for key in self._keys()):
                message = await consumer.receive(timeout=0.2)
                if message is None:
                    continue
                number, _, count = message.text().partition(" ")
                key = (int(number), name)
                if int(count) <= self.got[key]:  # its acknowledgement was lost
                    assert message.redelivered, "an unmarked double"
                    self.doubles += 1
                else:
                    assert int(count) == self.got[key] + 1, "out of order"
                    self.got[key] += 1
                with suppress(fairlead.Stale):
                    await message.ack(confirm=True)


def _joined(urls: list[str], first: int) -> str:
    return "fairlead://" + ",".join(url.removeprefix("fairlead://") for url in (*urls[first:], *urls[:first]))
