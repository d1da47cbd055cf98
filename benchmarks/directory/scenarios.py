"""What is measured: each scenario starts its own servers, and returns plain rows."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

import fairlead
from fairlead.directory.edge.client import DirectoryClient
from fairlead.directory.rows import Broker, Link
from fairlead.testing.directory import DirectorySet
from fairlead.testing.directory_world import MAIN, World

BROKERS = "ABCDE"
ROWS = [f"bench-{name}" for name in BROKERS]
UNDER_WAY = 40
Row = dict[str, Any]


def cpu_s(pids: list[int]) -> float:
    """Processor time of these processes so far, with that of children that have ended."""
    total = 0.0
    for pid in pids:
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


class Costs:
    """Processor seconds per role while it is entered."""

    def __init__(self, **roles: list[int]) -> None:
        self._roles = {**roles, "client": [psutil.Process().pid]}
        self.used: dict[str, float] = {}

    def __enter__(self) -> Costs:
        self._before = {role: cpu_s(pids) for role, pids in self._roles.items()}
        return self

    def __exit__(self, *_: object) -> None:
        self.used = {role: round(cpu_s(pids) - self._before[role], 3) for role, pids in self._roles.items()}


def percentiles(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 2),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 2),
        "worst_ms": round(1000 * ordered[-1], 2),
    }


# -- placing


def placing(placement: str, connections: int, applications: int, clients: int) -> Row:
    with World(BROKERS, servers=2) as world:
        return asyncio.run(place(world, placement, connections, applications, clients))


async def place(world: World, placement: str, connections: int, applications: int, clients: int) -> Row:
    """Applications take turns, and the clients of each."""
    assert world.directories is not None
    names = [f"bench-{number}" for number in range(applications)]
    requests = iter(range(connections))
    times_s: list[float] = []
    opened: list[Any] = []

    async def worker() -> None:
        for number in requests:
            name, client = names[number % applications], f"host-{number // applications % clients}"
            began_s = time.perf_counter()
            connecting = fairlead.connect(world.url(MAIN), name=name, client=client, placement=placement)
            opened.append(await connecting.__aenter__())
            times_s.append(time.perf_counter() - began_s)

    brokers = [pid for one in world.brokers.values() if one.process for pid in family(one.process.pid)]
    directories = [pid for name in world.directories.names for pid in world.directories.pids(name)]
    try:
        with Costs(brokers=brokers, directory=directories) as costs:
            began_s = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(UNDER_WAY)))
            connected_s = time.perf_counter() - began_s
            rows = await _all_rows(world, names, connections)
            listed_s = time.perf_counter() - began_s
    finally:
        await asyncio.gather(*(connection.__aexit__(None, None, None) for connection in opened))
    by_broker = Counter(link.broker for links in rows.values() for link in links)
    brokers_of = world.clusters[MAIN]
    worst = max(_unevenness(links, brokers_of) for links in rows.values())
    return {
        "scenario": "placing",
        "placement": placement,
        "connections": connections,
        "applications": applications,
        "clients": clients,
        "per_s": round(connections / connected_s),
        "connected_s": round(connected_s, 2),
        "listed_s": round(listed_s, 2),
        **percentiles(times_s),
        "brokers": {name: by_broker.get(name, 0) for name in brokers_of},
        "worst_application": worst,
        "cpu_s": costs.used,
    }


async def _all_rows(world: World, names: list[str], count: int) -> dict[str, tuple[Link, ...]]:
    async def complete() -> dict[str, tuple[Link, ...]] | None:
        async with world.open() as directory:
            found = {app.name: app.links for app in (await directory.list_apps()).apps if app.name in names}
        return found if sum(map(len, found.values())) == count else None

    rows: dict[str, tuple[Link, ...]] = await world.until(complete, f"{count} rows", 120)
    return rows


def _unevenness(links: tuple[Link, ...], brokers: tuple[str, ...]) -> int:
    counts = Counter(link.broker for link in links)
    numbers = [counts.get(name, 0) for name in brokers]
    return max(numbers) - min(numbers)


# -- asking


def asking(scenario: str, outstanding: tuple[int, ...], seconds: float) -> list[Row]:
    with DirectorySet(servers=1, **{"directory.lease_s": 600}) as directories:  # nobody renews what is only a row
        pids = directories.pids(directories.names[0])
        return asyncio.run(ask(scenario, outstanding, seconds, directories.url, pids))


async def ask(scenario: str, outstanding: tuple[int, ...], seconds: float, url: str, pids: list[int]) -> list[Row]:
    rows = []
    async with DirectoryClient(url) as directory:
        await _furnish(directory)
        questions = itertools.count()
        question = {"look-ups": _look_up, "picks": _pick}[scenario](directory, questions)
        for count in outstanding:
            await _keep_asking(question, count, min(0.5, seconds))  # warm
            with Costs(directory=pids) as costs:
                times_s, took_s = await _keep_asking(question, count, seconds)
            rows.append(
                {
                    "scenario": scenario,
                    "outstanding": count,
                    "answers": len(times_s),
                    "per_s": round(len(times_s) / took_s),
                    **percentiles(times_s),
                    "cpu_s": costs.used,
                    "cpu_us_each": {role: round(1e6 * used / len(times_s)) for role, used in costs.used.items()},
                }
            )
        for name in ROWS:
            await directory.remove_broker(name=name)
    return rows


async def _furnish(directory: DirectoryClient) -> None:
    """Five brokers that are only rows, and 200 applications with a connection each."""
    for name in ROWS:
        row = Broker(name=name, ip="127.0.0.1", port=9, identity=name, limit=1_000_000)
        await directory.put_broker(broker=row, clusters=("bench",))
    for number in range(200):
        link = Link(identity=f"{number:032x}", broker=ROWS[number % 5], client="bench/1")
        await directory.connection_opened(app=f"bench-{number}", link=link)


Ask = Callable[[], Awaitable[object]]


def _look_up(directory: DirectoryClient, questions: itertools.count[int]) -> Ask:
    async def ask() -> object:
        found = await directory.lookup_app(app=f"bench-{next(questions) % 200}")
        assert found.app is not None
        return found

    return ask


def _pick(directory: DirectoryClient, questions: itertools.count[int]) -> Ask:
    async def ask() -> object:
        number = next(questions)
        return await directory.pick_broker(app=f"bench-{number % 20}", cluster="bench", request=f"r{number}")

    return ask


async def _keep_asking(ask: Ask, outstanding: int, seconds: float) -> tuple[list[float], float]:
    times_s: list[float] = []
    began_s = time.perf_counter()
    until_s = began_s + seconds

    async def worker() -> None:
        last_s = time.perf_counter()
        while last_s < until_s:
            await ask()
            now_s = time.perf_counter()
            times_s.append(now_s - last_s)
            last_s = now_s

    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return times_s, time.perf_counter() - began_s
