"""Flow control as clients, consumers and administrators see it: marks, quotas, slow and failing disks (CLU-101…113)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.durable import producer as producing
from fairlead.errors import Blocked, RequestTimeout
from fairlead.testing import Server
from tests.processes.durable.conftest import Join
from tests.processes.tools import NEVER_FROZEN, placed, suspended, until

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
MM = "message-manager"


@pytest.fixture(scope="module")
def tight() -> Iterator[Server]:
    """A server whose marks and quota are soon reached."""
    settings: dict[str, Any] = {
        "messages.high_water_commands": 8,
        "messages.low_water_commands": 4,
        "messages.segment_bytes": 1 << 20,
        "messages.quota_bytes": 12 << 20,
        "messages.checkpoint_bytes": 4 << 20,
    }
    with Server(managers=2, **settings, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


def overhear(connection: Any) -> list[dict[str, Any]]:
    """Every notice this connection gets from now on."""
    road, heard = connection.courier.road, []
    before = road._on_notice

    def notice(facts: dict[str, Any]) -> None:
        heard.append(facts)
        before(facts)

    road._on_notice = notice
    return heard


async def filled(connection: Any, name: str, count: int = 10) -> Any:
    """A queue that has just been blocked by its own limit."""
    queue = connection.queue(name, create=True, parameters={"max_messages": count})
    await queue.send_many([f"{number}" for number in range(count)])
    await until(lambda: queue.is_blocked)
    return queue


async def emptied(connection: Any, name: str, count: int) -> list[str]:
    found = []
    async with connection.queue(name).consume() as consumer:
        for _ in range(count):
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None, found
            found.append(message.text())
            await message.ack(confirm=True)
    return found


def memory_of(pid: int) -> int:
    """Bytes of its own, without what it shares with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    raise AssertionError


# --- A destination is full ----------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-108")
async def test_a_producer_can_ask_try_wait_or_be_told(join: Join, name: str) -> None:
    async with join("sender") as sender, join("taker") as taker:
        queue = await filled(sender, name)
        began_s = time.monotonic()
        assert queue.try_send("tried") is False
        with pytest.raises(Blocked):
            await queue.send("raised", on_blocked="raise")
        assert time.monotonic() - began_s < PATIENCE_S / 2
        with pytest.raises(RequestTimeout):
            await queue.send("timed out", timeout=0.2)
        assert (await sender.admin.destination(destination=name))["depth"] == 10
        waiting = asyncio.create_task(queue.send("waited"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await emptied(taker, name, 6) == [f"{number}" for number in range(6)]
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert not queue.is_blocked
        assert queue.try_send("goes now") is True
        await queue.flush()
        assert await emptied(taker, name, 6) == ["6", "7", "8", "9", "waited", "goes now"]


@pytest.mark.requirement("CLU-104", state="half", note="row 2: a blocked destination")
@pytest.mark.requirement("CLU-105")
async def test_a_blocked_destination_is_told_to_who_publishes_there_and_to_nobody_else(
    join: Join, name: str, durable_server: Server
) -> None:
    async with join("one") as one, join("two") as two, join("three") as three, join("four") as four:
        stranger = four.queue(f"{name}.other", create=True)
        await stranger.send("elsewhere")
        producers = one.queue(name, create=True, parameters={"max_messages": 10})
        await producers.send("first")
        await two.queue(name).send("once, by name")
        async with three.queue(name).consume(prefetch=1) as idle:
            assert await idle.receive(timeout=PATIENCE_S)
            heard = [overhear(connection) for connection in (one, two, three, four)]
            await producers.send_many(["x"] * 9)
            await until(lambda: producers.is_blocked and two.queue(name).is_blocked)
            assert not stranger.is_blocked
            flow = await four.admin.flow()
            assert name in flow["blocked"]
            assert f"{name}.other" not in flow["blocked"]
            assert (await four.admin.destination(destination=name))["blocked"]
            await asyncio.to_thread(durable_server.wait_until, lambda report: report["messages"]["blocked"] >= 1)
            shown = await asyncio.to_thread(shell, "status", "--data", str(durable_server.data))
            assert "destinations blocked" in " ".join(shown.split())
            await stranger.send("still taken", timeout=PATIENCE_S)
            events = [{fact["event"] for fact in one_heard} for one_heard in heard]
            assert events == [{"blocked"}, {"blocked"}, set(), set()]
        await emptied(three, name, 11)
        await until(lambda: not producers.is_blocked and not two.queue(name).is_blocked)
        assert name not in (await four.admin.flow())["blocked"]
        assert not heard[3]


def shell(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.requirement("CLU-109", "CLU-84", state="half", note="one group")
async def test_being_blocked_towards_one_queue_stops_nothing_else(join: Join, name: str) -> None:
    async with join() as both, join() as other:
        full, served = await filled(both, f"{name}.a"), both.queue(f"{name}.b", create=True)
        stuck = asyncio.create_task(full.send("waits"))
        async with served.consume() as consumer:
            for number in range(200):
                await other.queue(f"{name}.b").send(f"{number}")
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                assert message.text() == f"{number}"
                await message.ack(confirm=True)
            await served.send("sent beside it", timeout=PATIENCE_S)
        assert not stuck.done()
        await emptied(other, f"{name}.a", 11)
        await stuck


@pytest.mark.requirement("CLU-112", state="scaled", note="asked again after 0.3 s, not 5 s")
async def test_a_lost_release_blocks_nobody_for_ever(join: Join, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "REASK_S", 0.3)
    async with join() as sender, join() as taker:
        road = sender.courier.road
        before = road._on_notice
        lost = []
        road._on_notice = lambda facts: lost.append(facts) if facts["event"] == "unblocked" else before(facts)
        queue = await filled(sender, name)
        waiting = asyncio.create_task(queue.send("waits"))
        await asyncio.sleep(0)
        await emptied(taker, name, 10)
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert lost


@pytest.mark.requirement("CLU-112", state="half", note="a restart in place of a failover")
async def test_flow_state_is_built_anew_after_a_restart_of_the_message_manager() -> None:
    with Server(managers=1, **NEVER_FROZEN) as server:
        async with fairlead.connect(server.url) as sender, fairlead.connect(server.url) as taker:
            queue = await filled(sender, "full")
            async with taker.session() as session:
                stopped = session.queue("other", create=True).consume()
                await stopped.start()
                await session.stop()
                await sender.queue("other").send("not now")
                old = server.pids(MM)
                server.kill(MM)
                await asyncio.to_thread(server.wait_until, lambda _: server.pids(MM) not in ([], old))
                await until(lambda: queue.is_blocked)
                assert (await taker.admin.flow(), queue.try_send("no"))[1] is False
                consumers = (await taker.admin.consumers(destination="other"))["consumers"]
                assert [one["paused"] for one in consumers] == [True]  # the client repeated its stop
                assert await stopped.receive(timeout=0.2) is None
                await session.start()
                message = await stopped.receive(timeout=PATIENCE_S)
                assert message is not None
                await message.ack()
            assert len(await emptied(taker, "full", 10)) == 10
            await queue.send("again", timeout=PATIENCE_S)


# --- Consumers ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-104", state="half", note="row 1: the consumer side of a session")
@pytest.mark.requirement("CLU-106")
async def test_a_session_that_stops_is_passed_over(join: Join, name: str) -> None:
    async with join("a") as a, join("b") as b, a.session() as session:
        queue = b.queue(name, create=True)
        async with session.queue(name).consume(prefetch=10) as stopped, queue.consume(prefetch=10) as other:
            await session.stop()
            consumers = (await b.admin.consumers(destination=name))["consumers"]
            assert sorted(one["paused"] for one in consumers) == [False, True]
            assert [one["destination"] for one in (await b.admin.flow())["consumers"]] == [name]
            await queue.send_many([f"{number}" for number in range(100)])
            for number in range(100):
                message = await other.receive(timeout=PATIENCE_S)
                assert message is not None
                assert message.text() == f"{number}"
                await message.ack()
            assert not b.queue(name).is_blocked
            await session.start()
            await queue.send_many(["x"] * 100)
            assert await stopped.receive(timeout=PATIENCE_S)


@pytest.mark.requirement("CLU-106", "CLU-111")
async def test_who_does_not_take_holds_no_more_than_its_window(join: Join, name: str) -> None:
    async with join() as slow, join() as quick:
        queue = quick.queue(name, create=True)
        async with slow.queue(name).consume(prefetch=1) as idle, queue.consume(prefetch=1) as busy:
            await queue.send_many([f"{number}" for number in range(200)])
            held = await idle.receive(timeout=PATIENCE_S)
            assert held is not None
            found = set()
            for _ in range(199):
                message = await busy.receive(timeout=PATIENCE_S)
                assert message is not None
                found.add(message.text())
                await message.ack(confirm=True)
            assert found | {held.text()} == {f"{number}" for number in range(200)}
            consumers = (await quick.admin.consumers(destination=name))["consumers"]
            assert sorted(one["held"] for one in consumers) == [0, 1]


@pytest.mark.requirement("CLU-102", "CLU-83", state="half", note="without transport counters")
async def test_a_consumer_that_reads_nothing_holds_up_no_other_session_of_its_connection(join: Join, name: str) -> None:
    async with join() as connection, connection.session() as one, connection.session() as two:
        silent, lively = one.queue(f"{name}.a", create=True), two.queue(f"{name}.b", create=True)
        async with silent.consume(prefetch=1000, prefetch_bytes=64 << 10), lively.consume() as consumer:
            for _ in range(20):
                await silent.send_many([b"x" * 10_000] * 50)
                await lively.send("now")
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                await message.ack()
            facts = (await connection.admin.consumers(destination=f"{name}.a"))["consumers"][0]
            assert facts["held"] * 10_000 <= 2 * (64 << 10)
            assert facts["credit_bytes"] <= 0


@pytest.mark.requirement("CLU-104", "CLU-102", "CLU-110", state="half", note="row 4: a manager that takes nothing")
async def test_a_manager_that_takes_nothing_stalls_its_own_consumers_only(
    join: Join, name: str, durable_server: Server
) -> None:
    server = durable_server
    async with placed(server, 0, 1) as (one, other):
        queue = other.queue(name, create=True)
        frozen = one.queue(name).consume(prefetch=10_000, prefetch_bytes=256 << 20)
        await frozen.start()
        body, sent = b"x" * 900_000, 0
        with suspended(server.pids("manager")[0]):
            while not (stalled := await stalled_consumers(other)):
                assert sent < 120
                await queue.send(body, persistent=False)
                sent += 1
            assert stalled == [name]
            async with queue.consume() as consumer:  # the other manager's consumer is served
                await queue.send(b"for somebody", persistent=False)
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                await message.ack(confirm=True)
        await until_async(lambda: stalled_consumers(other), [])
        for _ in range(sent):
            message = await frozen.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.ack()
        await frozen.close()
        await until_async(lambda: depth_of(other, name), 0)


async def depth_of(connection: Any, name: str) -> int:
    found: int = (await connection.admin.destination(destination=name))["depth"]
    return found


async def stalled_consumers(connection: Any) -> list[str]:
    return [one["destination"] for one in (await connection.admin.flow())["consumers"] if one["stalled"]]


async def until_async(question: Any, answer: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await question() != answer:
            await asyncio.sleep(0.02)


@pytest.mark.requirement("CLU-107")
@pytest.mark.parametrize("choice", ["hold", "buffer", "drop-oldest"])
async def test_one_of_three_subscribers_stalls(join: Join, name: str, choice: str) -> None:
    async with join("publisher") as publisher, join("a") as a, join("b") as b, join("c") as c:
        parameters = {"slow_subscriber": choice, "subscriber_buffer": 500 if choice == "buffer" else 50}
        topic = publisher.topic(name, create=True, parameters=parameters)
        await topic.send("makes it")
        async with (
            a.topic(name).subscribe(prefetch=10) as first,
            b.topic(name).subscribe(prefetch=10) as second,
            c.topic(name).subscribe(prefetch=10) as stalled,
        ):
            sending = asyncio.create_task(send_some(topic, 200))
            counts = [0, 0]

            async def read(consumer: Any, place: int) -> None:
                while (message := await consumer.receive(timeout=1.0)) is not None:
                    counts[place] += 1
                    await message.ack()

            await asyncio.gather(read(first, 0), read(second, 1))
            facts = await publisher.admin.destination(destination=name)
            if choice == "hold":
                assert max(counts) < 200  # the slowest sets the pace
                assert facts["dropped"] == 0
            else:
                assert counts == [200, 200]
                await sending
            if choice == "buffer":
                assert facts["dropped"] == 0
                assert facts["kept"] == 200  # for the slow one
            if choice == "drop-oldest":
                assert 200 - 50 - 10 <= facts["dropped"] <= 150
            late, came = asyncio.create_task(read(first, 0)), 0
            also = asyncio.create_task(read(second, 1))
            while (message := await stalled.receive(timeout=1.0)) is not None:
                came += 1
                await message.ack()
            await asyncio.gather(late, also, sending)
            facts = await publisher.admin.destination(destination=name)
            assert came == 200 - facts["dropped"]
            assert counts == [200, 200]


async def send_some(topic: Any, count: int) -> None:
    for number in range(count):
        await topic.send(f"{number}")


# --- Command queues -----------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-66", "CLU-103", state="half", note="reached by load; nothing is stalled or delayed")
async def test_a_command_queue_above_its_mark_blocks_and_loses_nothing(tight: Server) -> None:
    async with fairlead.connect(tight.url) as connection:
        queues = [connection.session().queue("busy", create=True) for _ in range(40)]
        await asyncio.gather(*(queue.send("open") for queue in queues))
        heard = overhear(connection)
        overs = 0
        for number in range(30):
            await asyncio.gather(*(queue.send(f"{number}") for queue in queues))
            task = (await connection.admin.tasks(pattern="busy"))["tasks"][0]
            overs = task["overs"]
            if overs:
                break
        assert overs
        assert {"blocked", "unblocked"} <= {fact["event"] for fact in heard}
        assert not task["over_mark"]
        assert task["depth"] == 0
        assert (await connection.admin.destination(destination="busy"))["depth"] == 40 * (number + 2)
        assert not any(queue.is_blocked for queue in queues)
        await connection.admin.purge(destination="busy")


# --- The disk -----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-101", "CLU-113", state="scaled", note="a quota of 12 MiB; one store")
async def test_a_full_store_blocks_producers_while_consumers_make_room(tight: Server) -> None:
    async with fairlead.connect(tight.url) as sender, fairlead.connect(tight.url) as taker:
        queue = sender.queue("filling", create=True)
        confirmed: list[int] = []
        body = b"x" * 20_000
        await taker.queue("tiny", create=True).send("small")
        before = memory_of(tight.pids(MM)[0])

        async def produce() -> None:
            for number in range(1000):  # 20 MB into 12 MiB
                await queue.send(body, properties={"n": number})
                confirmed.append(number)

        producing_task = asyncio.create_task(produce())
        await until(lambda: queue.is_blocked, PATIENCE_S)
        await asyncio.sleep(0.2)
        stuck = len(confirmed)
        flow, journal = await taker.admin.flow(), await taker.admin.journal()
        assert flow["store"]
        assert journal["full"]
        assert journal["disk_bytes"] <= 12 << 20
        assert queue.try_send(body) is False
        with pytest.raises(Blocked):
            await queue.send(body, on_blocked="raise")
        await asyncio.sleep(0.3)
        assert len(confirmed) == stuck
        assert await emptied(taker, "tiny", 1) == ["small"]  # what frees room goes on
        taken: list[int] = []
        async with taker.queue("filling").consume(prefetch=50) as consumer:
            while len(taken) < 1000:
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None, (len(taken), await taker.admin.flow(), await taker.admin.journal())
                taken.append(int(message.properties["n"]))  # type: ignore[call-overload]
                await message.ack()
        await asyncio.wait_for(producing_task, PATIENCE_S)
        assert taken == list(range(1000))
        await until_async(lambda: has_room(taker), True)
        assert (await taker.admin.journal())["disk_bytes"] <= 12 << 20
        assert memory_of(tight.pids(MM)[0]) - before < 100 << 20


async def has_room(connection: Any) -> bool:
    return not (await connection.admin.flow())["store"]


@pytest.mark.requirement("CLU-113", state="half", note="one write finds no room")
async def test_a_write_that_finds_no_room_is_done_again_and_confirmed_once() -> None:
    with Server(managers=1, **{"messages.faults": "fail_write_at=12,write_errno=28"}) as server:
        first = server.pids(MM)
        async with fairlead.connect(server.url) as connection:
            queue = connection.queue("q", create=True)
            for number in range(40):
                await queue.send(f"{number}")
            assert await emptied(connection, "q", 40) == [f"{number}" for number in range(40)]
            assert server.pids(MM) == first  # no restart was needed


@pytest.mark.requirement("CLU-115")
@pytest.mark.requirement("CLU-65", state="half", note="transient traffic in place of heartbeats")
async def test_with_a_slow_disk_nothing_is_confirmed_early_and_the_rest_goes_on() -> None:
    with Server(managers=2, **{"messages.faults": "sync_delay_ms=100"}) as server:
        async with fairlead.connect(server.url) as sender, fairlead.connect(server.url) as other:
            queue = sender.queue("slow", create=True)
            await queue.send("opens it")
            alone_s = []
            for number in range(5):
                began_s = time.monotonic()
                await queue.send(f"{number}")
                alone_s.append(time.monotonic() - began_s)
            assert min(alone_s) >= 0.1
            queues = [sender.session().queue("slow") for _ in range(64)]
            await asyncio.gather(*(one.send("open") for one in queues))
            gaps: list[float] = []
            over = asyncio.Event()

            async def beat() -> None:
                async with other.subscribe("beats") as beats:
                    while not over.is_set():
                        began_s = time.monotonic()
                        await other.publish("beats", b"")
                        await beats.next(timeout=PATIENCE_S)
                        gaps.append(time.monotonic() - began_s)
                        await other.admin.flow()
                        gaps.append(time.monotonic() - began_s)
                        await asyncio.sleep(0.01)

            beating = asyncio.create_task(beat())
            began_s = time.monotonic()
            done = 0
            while (took_s := time.monotonic() - began_s) < 1.0:
                done += len(await asyncio.gather(*(one.send("x") for one in queues)))
            over.set()
            await beating
            assert done / took_s >= 10 * len(alone_s) / sum(alone_s)
            assert max(gaps) < 0.5


@pytest.mark.requirement("CLU-115", "CLU-113", state="half", note="a sync that fails; no backups")
async def test_a_failing_sync_confirms_nothing_that_is_not_there() -> None:
    with Server(managers=1, **{"messages.faults": "fail_sync_at=40"}) as server:
        first = server.pids(MM)
        async with fairlead.connect(server.url) as connection:
            queue = connection.queue("q", create=True)
            sent = 0
            while server.pids(MM) in (first, []):
                await queue.send(f"{sent}", timeout=PATIENCE_S)
                sent += 1
                assert sent < 200
            assert await emptied(connection, "q", sent) == [f"{number}" for number in range(sent)]
            assert (await connection.admin.destination(destination="q"))["depth"] == 0
