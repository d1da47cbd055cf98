"""Completion accounting with real processes (section 4.8 of docs/spec/server.md).

Orders are forced by suspending managers: what a suspended one has to do is done after what the others did. Which
instruction carries the condition is the router's choice (the last delivery, or a lone delete); table 4.8.1 is run
through with every manager being the late one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Server
from tests.processes.tools import (
    NEVER_FROZEN,
    Dial,
    Report,
    at_rest,
    frame,
    placed,
    reported,
    suspend,
    suspended,
    until,
)
from tests.protocol.second_client import PUBLISH

pytestmark = pytest.mark.processes


def message_of(server: Server, report: Report) -> tuple[int, int]:
    """Relinquish count and limit of the only stored message."""
    (handle,) = [handle for one in report["managers"] for handle in one["handles"]]
    message = server.status(handle=handle)["message"]
    return message["relinquish_count"], message["relinquish_limit"]


@pytest.mark.requirement("SRV-68")
async def test_a_stored_message_waits_with_count_0_and_no_limit(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("wait") as wait:
        with suspended(*shared.pids("router")):
            await sender.publish("wait", b"x")
            report = await reported(shared, lambda report: report["stored"] == 1)
            assert message_of(shared, report) == (0, -1)
            await asyncio.sleep(0.5)
            assert message_of(shared, shared.status()) == (0, -1)
        await wait.next(timeout=5)


@pytest.mark.requirement("SRV-69", "SRV-70", "SRV-73", "SRV-75")
@pytest.mark.parametrize("late", [(1,), (2,), (3,), (1, 2), (2, 3), (1, 3), (1, 2, 3)])
async def test_whoever_is_last_deletes(shared: Server, late: tuple[int, ...]) -> None:
    """Cases d, e, g, j: three deliveries, the condition on the last one, which may be done first or late."""
    pids = shared.pids("manager")
    async with placed(shared, 0, 1, 2, 3) as (sender, *receivers), AsyncExitStack() as stack:
        subscriptions = {
            i: await stack.enter_async_context(one.subscribe("three")) for i, one in enumerate(receivers, 1)
        }
        with suspended(*(pids[i] for i in late)):
            await sender.publish("three", b"x")
            for i, subscription in subscriptions.items():
                if i not in late:
                    await subscription.next(timeout=5)
            done = 3 - len(late)
            limit = -1 if 3 in late else 3
            await reported(shared, lambda report: report["stored"] == 1 and message_of(shared, report) == (done, limit))
        for i in late:
            await subscriptions[i].next(timeout=5)
        await reported(shared, lambda report: report["stored"] == 0, 1)


@pytest.mark.requirement("SRV-70")
@pytest.mark.requirement("SRV-71", state="half", note="not for an error inside the router, which ends it")
def test_messages_for_nobody_and_nonsense_are_all_deleted(shared: Server, dial: Dial) -> None:
    client = dial(shared)
    before = shared.status()["router"]["deletes"]
    for _ in range(600):
        client._socket.sendall(
            frame(PUBLISH, topic=b"unused.topic", body=b"x" * 100)
            + frame(PUBLISH, topic=b"not..a topic\0", body=b"y")
            + frame(0x21, topic=b"nobody", correlation=7, body=b"z")
            + frame(0x22, correlation=1 << 63 | 12345, body=b"an answer to nothing", flags=1)
            + frame(0x25, peer=4711, body=b"to nobody")
        )
    shared.wait_until(lambda report: report["stored"] == 0 and report["router"]["deletes"] >= before + 3000)


@pytest.mark.requirement("SRV-71", state="half", note="an unknown kind is a protocol error and never gets so far")
def test_an_unknown_kind_is_refused_without_being_stored(shared: Server, dial: Dial) -> None:
    client = dial(shared)
    client._socket.sendall(frame(0x29, topic=b"x", body=b"unknown mode"))
    answer = client.receive()
    assert dict(answer.headers)["code"] == b"bad-request"
    assert shared.status()["stored"] == 0


@pytest.mark.requirement("SRV-73")
async def test_a_lone_delete_waits_for_its_manager(shared: Server) -> None:
    """Case f: no recipient; the delete is done by the manager that stored it."""
    async with placed(shared, 0) as (sender,):
        with suspended(*shared.pids("router")):
            await sender.publish("nobody.listens", b"x")
            await reported(shared, lambda report: report["stored"] == 1)
            suspend(shared.pids("manager")[0])
        try:
            await reported(shared, lambda report: report["managers"][0]["down"]["entries"] == 1)
            assert message_of(shared, shared.status()) == (0, -1)
        finally:
            os.kill(shared.pids("manager")[0], signal.SIGCONT)
        await reported(shared, lambda report: report["stored"] == 0, 1)


@pytest.mark.requirement("SRV-73", "SRV-76")
async def test_a_recipient_lost_before_its_delivery_counts_as_done(shared: Server) -> None:
    """Case h."""
    async with placed(shared, 0, 1, 2) as (sender, lost, stays), stays.subscribe("h") as subscription:
        async with lost.subscribe("h"):
            with suspended(shared.pids("manager")[1]):
                await sender.publish("h", b"x")
                await subscription.next(timeout=5)
                lost._carrier.loop.call_soon(asyncio.create_task, lost.close())
                await asyncio.sleep(0.1)
                assert shared.status()["stored"] == 1
        await reported(shared, lambda report: report["stored"] == 0, 2)


@pytest.mark.requirement("SRV-73")
async def test_a_message_still_being_written_is_not_deleted(shared: Server, dial: Dial) -> None:
    """Case i: the others are done, one recipient takes its time."""
    async with placed(shared, 0, 1) as (sender, quick), quick.subscribe("i") as subscription:
        slow = dial(shared)
        slow.subscribe("i")
        body = os.urandom(20_000_000)
        await sender.publish("i", body)
        assert (await subscription.next(timeout=10)).body == body
        await asyncio.sleep(0.2)
        report = shared.status()
        assert report["stored"] == 1
        count, limit = message_of(shared, report)
        assert count < limit or limit == -1
        assert (await asyncio.to_thread(slow.next_message)).body == body
        await reported(shared, lambda report: report["stored"] == 0, 2)


@pytest.mark.requirement("SRV-73")
async def test_held_requests_and_dead_routers_and_managers_end_in_one_deletion() -> None:
    """Cases k, l, m, n."""
    with Server(managers=3, **NEVER_FROZEN, **{"requests.hold_s": 30}) as server:
        async with placed(server, 0, 1, 2) as (sender, receiver, third):
            # l and k: held over the death of a router.
            asking = asyncio.create_task(sender.request("held", b"?", timeout=20))
            report = await reported(server, lambda report: report["requests_open"] == 1)
            assert message_of(server, report) == (0, -1)
            victim = server.kill("router")
            await reported(server, lambda _: server.pids("router") not in ([], [victim]))
            assert message_of(server, server.status()) == (0, -1)
            await receiver.respond("held", lambda request: b"!")
            assert (await asking).body == b"!"
            await reported(server, lambda report: report["stored"] == 0, 2)
            # m and n: a manager dies with instructions outstanding; its successor counts each of them once.
            async with receiver.subscribe("n"), third.subscribe("n") as subscription:
                victim = server.pids("manager")[1]
                suspend(victim)
                for number in range(100):
                    await sender.publish("n", str(number))
                for number in range(100):
                    assert int((await subscription.next(timeout=5)).body) == number
                await reported(server, lambda report: report["stored"] == 100)
                os.kill(victim, signal.SIGKILL)
                await reported(server, lambda report: report["stored"] == 0)
                await until(lambda: receiver.connected)
        await reported(server, at_rest)


@pytest.mark.requirement("SRV-74", state="scaled", note="4 managers, 20,000 messages to 8 recipients each")
async def test_many_managers_finish_at_once_and_nothing_is_left(shared: Server) -> None:
    count = 5000
    async with placed(shared, *range(4), *range(4), *range(4)) as clients, AsyncExitStack() as stack:
        senders, receivers = clients[:4], clients[4:]
        subscriptions = [await stack.enter_async_context(one.subscribe("many")) for one in receivers]

        async def send(sender: fairlead.Connection) -> None:
            for start in range(0, count, 500):
                await sender.publish_many("many", [str(n) for n in range(start, start + 500)])
            await sender.flush()

        async def receive(subscription: fairlead.Subscription) -> None:
            got = 0
            while got < 4 * count:
                got += len(await subscription.take(timeout=20))

        await asyncio.gather(*map(send, senders), *map(receive, subscriptions))
        await reported(shared, lambda report: report["stored"] == 0, 1)


@pytest.mark.requirement("SRV-76")
async def test_recipients_lost_in_a_storm_leave_nothing_stored(shared: Server, dial: Dial) -> None:
    doomed = [dial(shared, credit=50) for _ in range(20)]
    for one in doomed:
        one.subscribe("storm")
    async with placed(shared, 0, 1, 2, 3) as (sender, *receivers), AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(one.subscribe("storm")) for one in receivers]
        for start in range(0, 2000, 100):
            await sender.publish_many("storm", [str(n) for n in range(start, start + 100)])
            await asyncio.sleep(0)
            doomed.pop()._socket.close()
        for subscription in subscriptions:
            assert [int((await subscription.next(timeout=5)).body) for _ in range(2000)] == list(range(2000))
        await reported(shared, lambda report: report["stored"] == 0 and len(report["connections"]) <= 8)


SHORT: dict[str, Any] = {"fairness.limit": 200, "fairness.resume_below": 50}


@pytest.mark.requirement("SRV-77", "SRV-78", state="scaled", note="12 deaths instead of 100")
async def test_killed_managers_and_routers_leave_no_fault_and_nobody_hangs() -> None:
    with Server(managers=3, **SHORT) as server:
        async with placed(server, 0) as (_,), AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(fairlead.connect(server.url)) for _ in range(9)]
            over = asyncio.Event()
            answered = 0

            async def work(client: fairlead.Connection) -> None:
                nonlocal answered
                async with client.subscribe("noise"):
                    await client.respond("ask", lambda request: request.body)
                    while not over.is_set():
                        try:
                            await client.publish("noise", bytes(200))
                            await client.request("ask", b"x", timeout=2)
                            answered += 1
                        except errors.Unavailable:
                            await asyncio.sleep(0.02)

            working = [asyncio.create_task(work(client)) for client in clients]
            for role, _ in zip(itertools.cycle(["manager", "manager", "router"]), range(12), strict=False):
                await reported(server, whole)
                before = answered
                pids = server.pids(role)
                victim = random.choice(pids)
                os.kill(victim, signal.SIGKILL)
                await reported(server, lambda _, role=role, victim=victim: victim not in server.pids(role))
                await until(lambda before=before: answered > before + 20)
            over.set()
            await asyncio.gather(*working)
        await reported(server, at_rest)


def whole(report: Report) -> bool:
    """Everybody is there, standbys included."""
    states = [(one["role"], one["state"]) for one in report["components"]]
    return (
        states.count(("manager", "active")) == 3 and ("router", "active") in states and ("router", "standby") in states
    )


@pytest.fixture(scope="module", autouse=True)
def _settled(lasting_server: Server) -> Iterator[None]:
    """A test that fails must not leave a process suspended for the next one."""
    yield
    for role in ("router", "dispatcher", "manager"):
        for pid in lasting_server.pids(role):
            os.kill(pid, signal.SIGCONT)
