"""A client manager's node of real processes before real groups: everything arrives once, whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.errors import NoMessageManager
from fairlead.runtime import admin
from tests.cluster.agent.node_rig import CmNode
from tests.cluster.members.rig import Nodes, until

LEFT, RIGHT = "left", "right"

pytestmark = [pytest.mark.processes, pytest.mark.nodes]


def two_groups(folder: Path) -> Nodes:
    return Nodes(folder, groups=("a", "b"), pins={"a": [LEFT], "b": [RIGHT]}, messages={"segment_bytes": 1 << 20})


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two groups, each with a member on each of two nodes, and a witness."""
    made = two_groups(tmp_path_factory.mktemp("nodes"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cm(nodes: Nodes) -> Iterator[CmNode]:
    with CmNode(nodes) as node:
        until(lambda: node.groups_up() == {"a", "b"}, "both groups are linked")
        yield node
        print(node.output())


@pytest.mark.requirement("CLU-182", state="scaled", note="4 nodes")
@pytest.mark.requirement("CLU-183", state="half", note="a frozen node is named")
def test_all_nodes_answer_and_those_missing_are_named(nodes: Nodes, cm: CmNode) -> None:
    until(lambda: cm.ask("cluster-status")["expected"] == 4, "all nodes are in the view")
    found = cm.ask("cluster-status")
    assert set(found["nodes"]) == {"cm", "m1", "m2", "w1"}
    assert found["missing"] == []
    assert found["nodes"]["cm"]["status"]["kind"] == "cm"
    frozen = nodes.pid("w1")
    os.kill(frozen, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        found = cm.ask("cluster-status", patience_s=20)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert found["missing"] == ["w1"]
    assert time.monotonic() - began_s < 20
    until(lambda: not cm.ask("cluster-status")["missing"], "all of them answer again")


@pytest.mark.requirement("CLU-2", state="half", note="the client manager's part")
def test_a_client_manager_alone_takes_logins_and_says_to_try_again(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with await fairlead.connect(url) as connection:
            async with connection.subscribe("plain.>") as heard:
                await connection.publish("plain.x", b"transient")
                assert (await heard.next(5)).body == b"transient"
            with pytest.raises(NoMessageManager):
                await connection.admin.destination(destination="q")

    with CmNode(two_groups(tmp_path)) as node:
        asyncio.run(use(node.url))


@pytest.mark.requirement("CLU-1", state="half", note="queues, topics and a transaction")
def test_whatever_is_sent_at_one_client_manager_is_received_at_another(nodes: Nodes, cm: CmNode) -> None:
    async def use(here: str, there: str) -> None:
        async with await fairlead.connect(here) as producer, await fairlead.connect(there) as consumer:
            for name in (LEFT, RIGHT):
                async with consumer.topic(f"{name}.news").consume() as news:
                    await producer.queue(name).send(b"to the queue")
                    await producer.topic(f"{name}.news").send(b"to the topic")
                    heard = await news.receive(timeout=10)
                    assert heard is not None
                    assert heard.body == b"to the topic"
                async with consumer.queue(name).consume() as queue:
                    message = await queue.receive(timeout=10)
                    assert message is not None
                    assert message.body == b"to the queue"
                    await message.ack(confirm=True)
            async with producer.transaction() as transaction:
                await transaction.send(LEFT, b"one of two")
                await transaction.send(RIGHT, b"two of two")
            for name, body in ((LEFT, b"one of two"), (RIGHT, b"two of two")):
                async with consumer.queue(name).consume() as queue:
                    message = await queue.receive(timeout=10)
                    assert message is not None
                    assert message.body == body
                    await message.ack(confirm=True)

    with CmNode(nodes, "cm2") as second:
        until(lambda: second.groups_up() == {"a", "b"}, "both groups are linked")
        asyncio.run(use(cm.url, second.url))
        updated = admin.answer_of(second.data / "run", "update", component="agent")
        assert [one["outcome"] for one in updated["updates"]] == ["done"]
        until(lambda: second.groups_up() == {"a", "b"}, "both groups are linked again")


@pytest.mark.requirement("CLU-1", state="half", note="transient subscribers of durable topics")
@pytest.mark.requirement("CLU-16")
def test_what_a_durable_topic_stores_reaches_transient_subscribers_at_every_client_manager_once(
    nodes: Nodes, cm: CmNode
) -> None:
    """By name and by pattern, in the order of each producer, whichever road it came by."""
    count = 50

    async def heard(connection: fairlead.Connection, pattern: str, started: asyncio.Event) -> list[tuple[str, int]]:
        got: list[tuple[str, int]] = []
        async with connection.subscribe(pattern) as subscription:
            started.set()
            while [body for _, body in got].count(-1) < 2:
                message = await subscription.next(20)
                who, _, number = message.body.decode().partition(" ")
                got.append((who, int(number)))
        return got

    async def send(connection: fairlead.Connection, who: str, name: str) -> None:
        topic = connection.topic(name)
        for number in range(count):
            if number % 10:
                await topic.send(f"{who} {number}".encode())
            else:
                async with connection.transaction() as transaction:
                    await transaction.send(topic, f"{who} {number}".encode())
        await topic.send(f"{who} -1".encode())

    async def use(here: str, there: str) -> None:
        async with await fairlead.connect(here) as first, await fairlead.connect(there) as second:
            name = f"{LEFT}.ticks"
            await first.topic(name).send(b"made 0")
            listeners, ready = [], []
            for connection in (first, second):
                for pattern in (name, f"{LEFT}.*"):
                    ready.append(asyncio.Event())
                    listeners.append(asyncio.create_task(heard(connection, pattern, ready[-1])))
            for event in ready:
                await event.wait()
            await asyncio.gather(send(first, "one", name), send(second, "two", name))
            for got in await asyncio.gather(*listeners):
                for who in ("one", "two"):
                    assert [number for its, number in got if its == who] == [*range(count), -1]

    with CmNode(nodes, "cm3", managers=2) as second:
        until(lambda: second.groups_up() == {"a", "b"}, "both groups are linked")
        asyncio.run(use(cm.url, second.url))


class Traffic:
    """Numbered messages to both queues, and what came of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent = {LEFT: 0, RIGHT: 0}
        self.got: dict[str, list[int]] = defaultdict(list)
        self.over = self.all_sent = False

    async def send(self, name: str) -> None:
        async with await fairlead.connect(self.url) as connection:
            queue = connection.queue(name)
            while not self.over:
                await queue.send(b"%d" % (self.sent[name] + 1))
                self.sent[name] += 1

    async def receive(self, name: str) -> None:
        async with await fairlead.connect(self.url) as connection, connection.queue(name).consume() as consumer:
            while not (self.all_sent and len(self.got[name]) >= self.sent[name]):
                message = await consumer.receive(timeout=0.2)
                if message is None:
                    continue
                number = int(message.body)
                if number in self.got[name]:  # its acknowledgement was lost with the line
                    assert message.redelivered
                else:
                    self.got[name].append(number)
                with contextlib.suppress(fairlead.Stale):
                    await message.ack(confirm=True)

    async def run(self, *hurts: Callable[[], None]) -> None:
        senders = [asyncio.create_task(self.send(name)) for name in (LEFT, RIGHT)]
        receivers = [asyncio.create_task(self.receive(name)) for name in (LEFT, RIGHT)]
        for hurt in hurts:
            await self.progress()
            await asyncio.to_thread(hurt)
        await self.progress()
        self.over = True
        await asyncio.gather(*senders)
        self.all_sent = True
        await asyncio.gather(*receivers)

    async def progress(self, count: int = 20) -> None:
        wanted = {name: self.sent[name] + count for name in self.sent}
        while any(self.sent[name] < wanted[name] for name in wanted):
            await asyncio.sleep(0.01)

    def check(self) -> None:
        for name, count in self.sent.items():
            assert self.got[name] == list(range(1, count + 1)), name


@pytest.mark.requirement("CLU-119", state="scaled", note="three primaries and two agents are killed")
@pytest.mark.requirement("CLU-118", state="half", note="repeats through one client manager")
@pytest.mark.requirement("CLU-142", "CLU-117")
def test_nothing_is_lost_or_doubled_when_primaries_and_the_agent_are_killed(nodes: Nodes, cm: CmNode) -> None:
    def kill_primary(group: str) -> None:
        name = nodes.wait_in_sync(2, group)
        nodes.kill(name)

    def kill_agent() -> None:
        pid = cm.agent_pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: cm.agent_pid() not in (0, pid), "another agent")

    traffic = Traffic(cm.url)

    async def run() -> None:
        async with asyncio.timeout(90):
            await traffic.run(
                lambda: kill_primary("a"), kill_agent, lambda: kill_primary("b"), kill_agent, lambda: kill_primary("a")
            )

    asyncio.run(run())
    traffic.check()
