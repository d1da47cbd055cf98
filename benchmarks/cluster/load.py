"""A fixed number of messages through one queue, and what each process spent on them.

Rates depend on what else the machine does; CPU time hardly does. So what is measured is user and system time of every
process, divided by the number of messages. Producer and consumer are processes of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fairlead
from fairlead.runtime.local_cluster import descendants
from fairlead.testing.cluster import Cluster

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 300.0
PREFETCH, PREFETCH_BYTES = 8192, 16 << 20
NAMES = {
    "router": "router",
    "dispatcher": "dispatcher",
    "agent": "agent",
    "manager": "connection manager",
    "message-manager": "message manager",
}


def cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """Memory that a process has for itself."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def part_of(pid: int) -> str:
    """What a process of a server or node is; empty: one that only waits (keeper, supervisor)."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    for module, following in itertools.pairwise(words):
        if module == "fairlead.runtime.child":
            return NAMES.get(following, following)
        if module == "fairlead.runtime.member_node.node":
            return "member node"
    return ""


def parts(cluster: Cluster) -> dict[str, list[int]]:
    """The processes of a cluster by what they do; the role of a member node is that in the group `a`, or its own."""
    found: dict[str, list[int]] = {}
    leaders = {group["primary"] for group in cluster.status()["groups"]}
    for node in cluster.nodes:
        for pid in descendants(cluster.local.pid(node) or 0):
            part = part_of(pid)
            if part == "member node":
                part = "primary" if node in leaders else "backup"
            if part:
                found.setdefault(part, []).append(pid)
    return found


@dataclass
class Flow:
    """What one run gave. CPU is in microseconds per message."""

    messages: int
    seconds: float
    cpu_us: dict[str, float]

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds


def flow(
    lanes: Iterable[tuple[str, str]], watched: dict[str, list[int]], count: int, size: int = 1024, window: int = 512
) -> Flow:
    """`count` messages through each lane (URL of a server, queue), all at once; `watched`: processes by name."""
    context = multiprocessing.get_context("spawn")
    ends: list[tuple[str, Connection, Any]] = []
    for url, queue in lanes:
        for name, target in (("consumer", _consume), ("producer", _produce)):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, url, queue, count, size, window), daemon=True)
            process.start()
            ends.append((name, ours, process))
    for _, pipe, _ in ends:
        _expect(pipe)
    before = {name: sum(map(cpu_s, pids)) for name, pids in watched.items()}
    began_s = time.monotonic()
    for _, pipe, _ in ends:
        pipe.send("go")
    clients: dict[str, float] = {}
    for name, pipe, _ in ends:
        clients[name] = clients.get(name, 0.0) + _expect(pipe)
    seconds = time.monotonic() - began_s
    spent = {name: sum(map(cpu_s, pids)) - before[name] for name, pids in watched.items()}
    for _, pipe, process in ends:
        pipe.send("end")
        process.join(30)
    messages = count * len(ends) // 2
    return Flow(messages, seconds, {name: 1e6 * s / messages for name, s in (clients | spent).items()})


def _expect(pipe: Connection) -> float:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError("a client of the measurement does not come to an end")
    return float(pipe.recv())


def _produce(pipe: Connection, url: str, queue: str, count: int, size: int, window: int) -> None:
    asyncio.run(_producing(pipe, url, queue, count, size, window))


async def _producing(pipe: Connection, url: str, queue: str, count: int, size: int, window: int) -> None:
    async with fairlead.connect(url, name="producer") as connection:
        target, body = connection.queue(queue), b"x" * size
        await target.send(body)  # the session is open then
        pipe.send(0.0)
        await asyncio.to_thread(pipe.recv)
        before_s, left = time.process_time(), count - 1

        async def lane() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await target.send(body)

        await asyncio.gather(*(lane() for _ in range(window)))
        pipe.send(time.process_time() - before_s)
        await asyncio.to_thread(pipe.recv)


def _consume(pipe: Connection, url: str, queue: str, count: int, size: int, window: int) -> None:
    asyncio.run(_consuming(pipe, url, queue, count))


async def _consuming(pipe: Connection, url: str, queue: str, count: int) -> None:
    async with (
        fairlead.connect(url, name="consumer") as connection,
        connection.queue(queue).consume(prefetch=PREFETCH, prefetch_bytes=PREFETCH_BYTES) as consumer,
    ):
        pipe.send(0.0)
        await asyncio.to_thread(pipe.recv)
        before_s, seen = time.process_time(), 0
        async for batch in consumer.batches():
            seen += len(batch)
            consumer.ack_many(batch)
            if seen >= count:
                break
        pipe.send(time.process_time() - before_s)
        await asyncio.to_thread(pipe.recv)


async def latencies(url: str, queue: str, count: int, size: int = 1024) -> list[float]:
    """Seconds of so many awaited sends, one after the other, sorted."""
    took = []
    async with fairlead.connect(url, name="latency") as connection:
        target, body = connection.queue(queue), b"x" * size
        await target.send(body)
        for _ in range(count):
            began_s = time.perf_counter()
            await target.send(body)
            took.append(time.perf_counter() - began_s)
    return sorted(took)


async def create(url: str, queue: str) -> None:
    async with fairlead.connect(url, name="create") as connection:
        await connection.admin.create(destination=queue, kind="queue")
