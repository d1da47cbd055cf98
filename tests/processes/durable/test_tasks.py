"""Inside a message manager, as `tasks`, `counters` and the process itself show it (CLU-57…83)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.testing import Server
from tests.processes.durable.test_flow import memory_of
from tests.processes.tools import NEVER_FROZEN, until

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
MM = "message-manager"
SINGLE = {"admin-manager", "configuration-distributor", "destination-manager", "log", "reliability-manager"}


@pytest.fixture(scope="module")
def inside() -> Iterator[Server]:
    with Server(managers=1, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


async def tasks_of(connection: Any, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page: int | None = 0
    while page is not None:
        answer = await connection.admin.tasks(page=page, count=1000, **how)
        found += answer["tasks"]
        page = answer["next"]
    return found


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.requirement("CLU-69", state="half", note="the message manager's; sessions are no tasks of their own there")
@pytest.mark.requirement("CLU-73")
@pytest.mark.requirement("CLU-81", state="scaled", note="1,000 destinations and 300 sessions")
async def test_a_thousand_queues_are_a_thousand_tasks_and_no_thread_more(inside: Server) -> None:
    pid = inside.pids(MM)[0]
    async with fairlead.connect(inside.url) as connection:
        before = await tasks_of(connection)
        assert set(SINGLE) <= {one["name"] for one in before if one["kind"] == "single"}
        assert max(Counter(one["name"] for one in before).values()) == 1
        await asyncio.gather(*(connection.admin.flow() for _ in range(20)))
        threads = threads_of(pid)
        names = [f"many.{number}" for number in range(1000)]
        for first in range(0, 1000, 50):
            part = names[first : first + 50]
            await asyncio.gather(*(connection.queue(name, create=True).send("x") for name in part))
        after = await tasks_of(connection)
        assert {one["name"] for one in after} - {one["name"] for one in before} == set(names)
        assert len(after) == len(before) + 1000
        sessions = [connection.session() for _ in range(300)]
        await asyncio.gather(*(one.queue("many.0").send("y") for one in sessions))
        assert len(await tasks_of(connection)) == len(after)
        assert threads_of(pid) <= threads + 8  # what the pool starts when it is first used
        await asyncio.gather(*(one.close() for one in sessions))
        for first in range(0, 1000, 50):
            await asyncio.gather(*(connection.admin.delete(destination=name) for name in names[first : first + 50]))
        assert len(await tasks_of(connection)) == len(before)


@pytest.mark.requirement("CLU-70", state="scaled", note="2,000 sessions, as the message manager counts them")
async def test_sessions_come_and_go_without_a_trace(inside: Server) -> None:
    pid = inside.pids(MM)[0]
    async with fairlead.connect(inside.url) as connection:
        queue = connection.queue("sessions", create=True)
        await queue.send("x")

        async def open_and_close() -> None:
            async with connection.session() as session, session.queue("sessions").consume(prefetch=1):
                pass

        for _ in range(5):
            await asyncio.gather(*(open_and_close() for _ in range(100)))
        tasks, sessions = len(await tasks_of(connection)), (await connection.admin.status())["sessions"]
        before = memory_of(pid)
        for _ in range(15):
            await asyncio.gather(*(open_and_close() for _ in range(100)))
        assert len(await tasks_of(connection)) == tasks
        assert (await connection.admin.status())["sessions"] == sessions == 1
        assert (await connection.admin.consumers(destination="sessions"))["total"] == 0
        assert memory_of(pid) - before < 8 << 20


@pytest.mark.requirement("CLU-63", state="half", note="dispatchers; the manager counts frames, not types")
async def test_counters_by_type_agree_with_what_was_said(inside: Server) -> None:
    async with fairlead.connect(inside.url) as connection:
        queue = connection.queue("counted", create=True)
        await queue.send("opens it")
        async with queue.consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.ack(confirm=True)
            before = await connection.admin.counters()
            for number in range(25):
                await queue.send(f"{number}")
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                await message.ack(confirm=True)
            after = await connection.admin.counters()
        grown = {kind: after["dispatched"][kind] - before["dispatched"][kind] for kind in ("store", "settle")}
        assert grown == {"store": 25, "settle": 25}
        assert (after["stored"] - before["stored"], after["settled"] - before["settled"]) == (25, 25)
        assert sum(after["dropped"].values()) == sum(before["dropped"].values())
        assert after["faults"] == 0


@pytest.mark.requirement("CLU-68", "CLU-80", state="scaled", note="hundreds of sessions")
async def test_a_stress_of_sessions_on_queues_that_block_and_release_ends_at_rest(inside: Server) -> None:
    async with fairlead.connect(inside.url) as one, fairlead.connect(inside.url) as two:
        names = [f"stress.{number}" for number in range(5)]
        for name in names:
            await one.admin.create(destination=name, parameters={"max_messages": 20})
        sent: Counter[str] = Counter()
        got: dict[str, list[str]] = {name: [] for name in names}
        done = asyncio.Event()

        async def produce(number: int) -> None:
            async with one.session() as session:
                for count in range(20):
                    name = names[(number + count) % len(names)]
                    await session.queue(name).send(f"{number}:{count}")
                    sent[name] += 1

        async def consume(name: str) -> None:
            while not done.is_set() or len(got[name]) < sent[name]:
                async with two.session() as session, session.queue(name).consume(prefetch=5) as consumer:
                    for _ in range(50):
                        message = await consumer.receive(timeout=0.1)
                        if message is None:
                            break
                        got[name].append(message.text())
                        await message.ack(confirm=True)

        consuming = [asyncio.create_task(consume(name)) for name in names]
        for first in range(0, 150, 50):
            await asyncio.gather(*(produce(first + number) for number in range(50)))
        done.set()
        await asyncio.gather(*consuming)
        assert sum(sent.values()) == 3000
        for name in names:
            assert len(got[name]) == len(set(got[name])) == sent[name]
            by_sender: dict[str, list[int]] = {}
            for text in got[name]:
                sender, _, count = text.partition(":")
                by_sender.setdefault(sender, []).append(int(count))
            assert all(counts == sorted(counts) for counts in by_sender.values())  # each sender's order
        tasks = await tasks_of(one)
        assert {(task["depth"], task["over_mark"]) for task in tasks if task["name"] != "admin-manager"} == {(0, False)}
        assert sum(task["faults"] for task in tasks) == 0
        assert (await one.admin.flow())["blocked"] == []


@pytest.mark.requirement("CLU-83", "CLU-82", state="half", note="one group; the median is compared")
async def test_a_long_selector_scan_on_one_queue_does_not_delay_another(inside: Server) -> None:
    async with fairlead.connect(inside.url) as scanner, fairlead.connect(inside.url) as other:
        backlog = scanner.queue("backlog", create=True)
        for _ in range(4):
            await backlog.send_many(["x"] * 10_000, properties={"colour": "red"})
        small = other.queue("small", create=True)

        async def rounds(consumer: Any) -> float:
            began_s = time.monotonic()
            await small.send("x")
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.ack()
            return time.monotonic() - began_s

        async with small.consume() as consumer:
            alone = [await rounds(consumer) for _ in range(40)]
            finding = asyncio.create_task(scan(scanner, 3))
            during = []
            while not finding.done():
                during.append(await rounds(consumer))
            await finding
        assert len(during) >= 5
        assert statistics.median(during) < 10 * statistics.median(alone) + 0.05
        assert max(during) < 1.0
        await scanner.admin.purge(destination="backlog")


async def scan(connection: Any, times: int) -> None:
    """Consumers that want nothing of a long backlog."""
    for number in range(times):
        selector = f"colour = 'blue{number}' OR colour LIKE '%een_{number}'"
        async with connection.queue("backlog").consume(selector) as nothing:
            assert await nothing.receive(timeout=0.5) is None


@pytest.mark.requirement("CLU-62", state="half", note="one manager")
async def test_the_end_of_one_client_is_told_to_its_destinations_only(inside: Server) -> None:
    async with fairlead.connect(inside.url) as stays:
        async with stays.queue("shared.by.two", create=True).consume():
            leaves = await fairlead.connect(inside.url, name="leaves")
            consumer = leaves.queue("shared.by.two").consume()
            await consumer.start()
            assert (await stays.admin.consumers(destination="shared.by.two"))["total"] == 2
            await leaves.close()

            async def left() -> int:
                found: int = (await stays.admin.consumers(destination="shared.by.two"))["total"]
                return found

            async with asyncio.timeout(PATIENCE_S):
                while await left() != 1:
                    await asyncio.sleep(0.02)
        await until(lambda: inside.status()["messages"]["consumers"] == 0)
