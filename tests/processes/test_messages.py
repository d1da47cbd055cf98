"""Messages, and their way from receipt to delivery (sections 4.5 and 4.7 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest

import fairlead
from fairlead.testing import Server
from tests.processes.tools import (
    NEVER_FROZEN,
    Dial,
    at_rest,
    frame,
    placed,
    reported,
    suspended,
)
from tests.protocol.second_client import IDENTITY, PUBLISH, pack_headers

pytestmark = pytest.mark.processes


# --- 4.5 Messages


@pytest.mark.requirement("SRV-39")
async def test_bodies_pass_unchanged(shared: Server) -> None:
    bodies = [
        b"",
        bytes(range(256)),
        os.urandom(70_000),
        os.urandom(3_000_000),
        frame(PUBLISH, topic=b"bodies", headers=pack_headers([(":from", b"root")]), body=b"looks like a frame"),
        "äöü 漢字 \N{GRINNING FACE}".encode(),
    ]
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe(">") as all_of_it:
        for body in bodies:
            await sender.publish("bodies", body)
            message = await all_of_it.next(timeout=5)
            assert (message.topic, message.body, message.user) == ("bodies", body, None)


@pytest.mark.requirement("SRV-40")
async def test_only_the_header_decides_who_gets_it(shared: Server) -> None:
    async with (
        placed(shared, 0, 1, 2) as (sender, one, other),
        one.subscribe("here.*") as here,
        other.subscribe("there.*") as there,
    ):
        for _ in range(20):
            await sender.publish("here.x", os.urandom(random.randrange(2000)))
        await sender.publish("here.x", b"there.x")
        await sender.publish("there.x", b"end")
        for _ in range(21):
            await here.next(timeout=5)
        assert (await there.next(timeout=5)).body == b"end"
        assert not here.queue
        assert not there.queue


@pytest.mark.requirement("SRV-42")
async def test_a_client_that_matches_several_topics_gets_one_copy(shared: Server) -> None:
    async with (
        placed(shared, 0, 1) as (sender, receiver),
        receiver.subscribe("t1") as t1,
        receiver.subscribe("t2") as t2,
    ):
        before = shared.status()["router"]["deliveries"]
        await sender.publish(["t1", "t2"], b"both")
        await sender.publish("t1", b"one")
        assert [(await t1.next(timeout=5)).body for _ in range(2)] == [b"both", b"one"]
        message = await t2.next(timeout=5)
        assert (message.body, message.topics) == (b"both", ["t1", "t2"])
        await reported(shared, lambda report: report["router"]["deliveries"] == before + 2)


@pytest.mark.requirement("SRV-43", state="half", note="the uid; identities in test_access.py")
def test_the_sender_is_the_servers_word(shared: Server, dial: Dial) -> None:
    receiver, forger = dial(shared), dial(shared)
    receiver.subscribe("who")
    forger.send(PUBLISH, topic="who", peer=receiver.uid, flags=IDENTITY, headers=[("a", b"b")])
    message = receiver.next_message()
    assert (message.peer, message.headers) == (forger.uid, [("a", b"b")])
    assert not message.flags & IDENTITY
    forger.send(PUBLISH, topic="who", flags=IDENTITY, headers=[(":from", b"root")], body=b"forged")
    forger.send(PUBLISH, topic="who", body=b"honest")
    message = receiver.next_message()
    assert (message.body, message.peer, message.flags & IDENTITY) == (b"forged", forger.uid, 0)
    assert receiver.next_message().body == b"honest"


# --- 4.7 From receipt to delivery


@pytest.mark.requirement("SRV-58", "SRV-63", state="scaled", note="five deaths of the router")
async def test_what_was_sent_arrives_in_order_though_routers_die() -> None:
    with Server(managers=4) as server:
        async with placed(server, 0, 1, 2, 0, 1, 2, 3) as clients, AsyncExitStack() as stack:
            senders, receivers = clients[:3], clients[3:]
            subscriptions = [await stack.enter_async_context(one.subscribe("run.*")) for one in receivers]
            over = asyncio.Event()

            async def send(topic: str, sender: fairlead.Connection) -> int:
                number = 0
                while not over.is_set():
                    for _ in range(20):
                        await sender.publish(topic, str(number))
                        number += 1
                    await asyncio.sleep(0.01)
                await sender.publish(topic, b"end")
                return number

            sending = [asyncio.create_task(send(f"run.{i}", sender)) for i, sender in enumerate(senders)]
            for _ in range(5):
                await reported(server, lambda report: any(is_standby_router(one) for one in report["components"]))
                await asyncio.sleep(random.uniform(0, 0.1))
                victim = server.kill("router")
                await reported(server, lambda _, victim=victim: server.pids("router") not in ([], [victim]))
            over.set()
            sent = await asyncio.gather(*sending)
            for subscription in subscriptions:
                seen: dict[str, list[int]] = {f"run.{i}": [] for i in range(3)}
                ended = 0
                while ended < 3:
                    for message in await subscription.take(timeout=10):
                        if message.body == b"end":
                            ended += 1
                        else:
                            seen[message.topic].append(int(message.body))
                assert [seen[f"run.{i}"] == list(range(sent[i])) for i in range(3)] == [True] * 3
        await reported(server, at_rest)


def is_standby_router(component: dict[str, Any]) -> bool:
    return component["role"] == "router" and component["state"] == "standby"


@pytest.mark.requirement("SRV-59", state="half", note="the router's processor time and memory, not its rate")
async def test_the_router_does_not_notice_how_large_bodies_are(shared: Server) -> None:
    router = psutil.Process(shared.pids("router")[0])
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("size") as size:
        spent = []
        for body in (bytes(100), bytes(1_000_000)):
            before, memory = sum(router.cpu_times()[:2]), router.memory_full_info().uss
            for _ in range(60):
                await sender.publish("size", body)
                assert len((await size.next(timeout=10)).body) == len(body)
            spent.append(sum(router.cpu_times()[:2]) - before)
            assert router.memory_full_info().uss - memory < 4 << 20
        assert spent[1] <= spent[0] + 0.1


@pytest.mark.requirement("SRV-60")
async def test_managers_without_recipients_get_no_instructions(shared: Server) -> None:
    async with placed(shared, 0, 2) as (sender, receiver), receiver.subscribe("only.two") as only:
        await asyncio.sleep(0.3)  # counters follow within 20 ms, on a machine that is not busy
        before = [one["instructions"] for one in shared.status()["managers"]]
        for _ in range(100):
            await sender.publish("only.two", b"x")
        for _ in range(100):
            await only.next(timeout=5)
        wanted = [before[0], before[1], before[2] + 100, before[3]]
        await reported(shared, lambda report: [one["instructions"] for one in report["managers"]] == wanted)


@pytest.mark.requirement("SRV-61")
async def test_topic_and_mode_can_be_told_from_what_arrives(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("tell.>") as tell:
        inbox = receiver.inbox()
        await receiver.respond("tell.asked", lambda request: f"{request.topic} {request.mode}")
        await sender.publish("tell.all", b"")
        message = await tell.next(timeout=5)
        assert (message.topic, message.mode) == ("tell.all", "broadcast")
        reply = await sender.request("tell.asked", timeout=5)
        assert (reply.body, reply.mode) == (b"tell.asked request", "response")
        all_replies = [reply.body async for reply in sender.request_all("tell.asked", timeout=5)]
        assert all_replies == [b"tell.asked fanout"]
        await sender.send_to(receiver.uid, b"")
        assert (await inbox.next(timeout=5)).mode == "send"
        async with receiver.accept("tell.talk") as talks, sender.converse("tell.talk") as talk:
            await talk.send(b"hello")
            other = await talks.next(timeout=5)
            assert other.topic == "tell.talk"
            assert (await other.receive(timeout=5)).mode == "conversation"


@pytest.mark.requirement("SRV-62")
async def test_one_blocked_recipient_of_ten_keeps_the_message_stored(shared: Server, dial: Dial) -> None:
    async with AsyncExitStack() as stack:
        sender, *free = await stack.enter_async_context(placed(shared, 0, *[1] * 9))
        subscriptions = [await stack.enter_async_context(one.subscribe("ten")) for one in free]
        # The tenth is ready for one message only, which comes first.
        blocked = next(c for c in (dial(shared, credit=1) for _ in range(4)) if where(shared, c.uid) == 1)
        blocked.subscribe("ten")
        await sender.publish("ten", b"first")
        await sender.publish("ten", b"second")
        for subscription in subscriptions:
            assert [(await subscription.next(timeout=5)).body for _ in range(2)] == [b"first", b"second"]
        await asyncio.sleep(0.2)
        report = await reported(shared, lambda report: report["stored"] == 1)
        handle = next(handle for one in report["managers"] for handle in one["handles"])
        message = shared.status(handle=handle)["message"]
        assert (message["relinquish_count"], message["relinquish_limit"]) == (0, 1)
        assert [(await asyncio.to_thread(blocked.next_message)).body for _ in range(2)] == [b"first", b"second"]
        await reported(shared, lambda report: report["stored"] == 0, 1)


def where(server: Server, uid: int) -> int:
    return next(one["manager"] for one in server.status()["connections"] if one["uid"] == uid)


@pytest.mark.requirement("SRV-64")
@pytest.mark.parametrize("managers", [(0, 0), (0, 1)])
async def test_same_manager_or_another_makes_no_difference(shared: Server, managers: tuple[int, int]) -> None:
    async with placed(shared, *managers) as (sender, receiver), receiver.subscribe("near.far") as near:
        await receiver.respond("near.ask", lambda request: request.body[::-1])
        for number in range(100):
            await sender.publish("near.far", str(number))
        assert [int((await near.next(timeout=5)).body) for _ in range(100)] == list(range(100))
        assert (await sender.request("near.ask", b"abc", timeout=5)).body == b"cba"


@pytest.mark.requirement("SRV-65", "SRV-79")
def test_a_message_is_stored_until_its_last_byte_was_taken(shared: Server, dial: Dial) -> None:
    sender, receiver = dial(shared), dial(shared)
    receiver.subscribe("long")
    body = os.urandom(30_000_000)  # more than the buffers of both ends of a socket
    sender.publish("long", body)
    sender.ping()
    shared.wait_until(lambda report: report["stored"] == 1 and not any(m["queue"] for m in report["managers"]))
    time.sleep(0.3)
    assert shared.status()["stored"] == 1
    assert receiver.next_message().body == body
    shared.wait_until(lambda report: report["stored"] == 0, 1)


SMALL_PATIENCE: dict[str, Any] = {"limits.slow_client_messages": 1000, "limits.slow_client_bytes": 4 << 20}


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with Server(managers=1, **SMALL_PATIENCE, **NEVER_FROZEN) as server:
        yield server


@pytest.mark.requirement("SRV-66", state="scaled", note="a bound of 1,000 messages or 4 MiB")
async def test_a_recipient_that_does_not_read_is_cut_off_and_delays_nobody(impatient: Server, dial: Dial) -> None:
    slow = dial(impatient, credit=10)
    slow.subscribe("load")
    slow._credit = 0  # from here on it gives none, and only reads what is there
    async with (
        fairlead.connect(impatient.url) as sender,
        fairlead.connect(impatient.url) as quick,
        quick.subscribe("load") as load,
    ):
        delays = []
        for _ in range(3000):
            began = time.perf_counter()
            await sender.publish("load", b"x")
            await load.next(timeout=5)
            delays.append(time.perf_counter() - began)
        assert statistics.median(delays[500:900]) < 4 * statistics.median(delays[2000:]) + 0.002
        report = await reported(impatient, lambda report: len(report["connections"]) == 2)
        assert report["managers"][0]["counters"]["slow_clients_cut"] == 1
    with pytest.raises(Exception, match="slow-client"):
        for _ in range(100):
            slow.next_message()
    assert "slow-client" in impatient.output()
    await reported(impatient, at_rest)


async def at_peace(server: Server) -> dict[str, Any]:
    """The report when nothing has been routed for half a second."""
    before = server.status()
    while True:
        await asyncio.sleep(0.5)
        after = server.status()
        if after["router"]["messages_routed"] == before["router"]["messages_routed"]:
            return after
        before = after


@pytest.mark.requirement("SRV-67", state="scaled", note="two seconds of keep-alives twice a second")
async def test_keep_alives_change_no_count(shared: Server) -> None:
    async with placed(shared, 0, 1, 2, 3, options={"keep_alive_s": 0.25}) as clients:
        before = await at_peace(shared)  # that they came was an event in the log
        await asyncio.sleep(2)
        after = shared.status()
        assert all(client.connected for client in clients)
    assert (after["stored"], after["accounting_faults"]) == (0, 0)
    for count in ("messages_routed", "deliveries", "deletes"):
        assert after["router"][count] == before["router"][count]
    assert [m["counters"]["messages_out"] for m in after["managers"]] == [
        m["counters"]["messages_out"] for m in before["managers"]
    ]


@pytest.mark.requirement("SRV-79")
async def test_the_count_of_stored_messages_follows_what_is_undelivered(shared: Server) -> None:
    async with placed(shared, 0, 1) as (sender, receiver), receiver.subscribe("count") as count:
        with suspended(shared.pids("manager")[1]):
            for expected, more in ((10, 10), (25, 15), (100, 75)):
                for _ in range(more):
                    await sender.publish("count", b"x")
                await reported(shared, lambda report, expected=expected: report["stored"] == expected)
        for _ in range(100):
            await count.next(timeout=5)
        await reported(shared, lambda report: report["stored"] == 0, 1)
