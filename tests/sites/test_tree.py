"""A root with two children with two leaves each: leaf to leaf in every mode (section 4.12 of docs/spec/server.md)."""

from __future__ import annotations

import asyncio

import pytest

import fairlead
from fairlead import errors
from tests.sites.tools import Servers, answered, clients, reached, saying, until

pytestmark = pytest.mark.processes


@pytest.mark.requirement("SRV-117")
@pytest.mark.requirement("SRV-118")
async def test_a_broadcast_goes_from_leaf_to_every_leaf_once_and_in_order(tree: Servers) -> None:
    async with clients(*tree.values()) as all_of_them:
        here = dict(zip(tree, all_of_them, strict=True))
        subscriptions = [client.subscribe("news.>", no_local=True) for client in here.values()]
        for subscription in subscriptions:
            await subscription.start()
        sender = here["left-1"]
        others = [s for s, name in zip(subscriptions, here, strict=True) if name != "left-1"]
        await reached(sender, "news.probe", *others)
        for number in range(300):
            await sender.publish("news.numbers", str(number), headers={"colour": "blue"}, reply_to="news.answers")
        for subscription in others:
            got = [await subscription.next(5) for _ in range(300)]
            assert [int(message.body) for message in got] == list(range(300))
            assert got[0].headers == {"colour": b"blue"}
            assert got[0].reply_to == "news.answers"
        await sender.publish("news.end", "end")
        for subscription in others:
            assert (await subscription.next(5)).body == b"end"


@pytest.mark.requirement("SRV-117")
async def test_requests_conversations_and_names_reach_another_leaf(tree: Servers) -> None:
    async with (
        clients(tree["left-1"]) as [asker],
        fairlead.connect(tree["right-2"].url, type="worker", name="one") as worker,
    ):

        async def several(request: fairlead.Request) -> None:
            for number in range(3):
                await request.reply(str(number), last=number == 2)

        await worker.respond("work.one", lambda request: b"done " + request.message.body)
        await worker.respond("work.several", several)
        await worker.respond("work.wrong", lambda request: 1 / 0)
        await worker.respond_direct(lambda request: b"direct " + request.message.body)
        reply = await answered(lambda: asker.request("work.one", "this", timeout=5))
        assert reply.body == b"done this"

        await answered(lambda: asker.request("work.several", timeout=5))
        parts = [part.body async for part in asker.request_stream("work.several", timeout=5)]
        assert parts == [b"0", b"1", b"2"]

        await answered_wrongly(asker)
        direct = await answered(lambda: asker.call("worker/one", "call", timeout=5))
        assert direct.body == b"direct call"

        inbox = worker.inbox()
        await asker.send_to("worker/one", "one way", headers={"n": "1"})
        message = await inbox.next(5)
        assert (message.body, message.headers) == (b"one way", {"n": b"1"})

        async with worker.accept("talk") as talks:
            await converse(asker, talks)


async def answered_wrongly(asker: fairlead.Connection) -> None:
    await until_served(asker, "work.wrong")
    with pytest.raises(errors.FairleadError, match="ZeroDivisionError"):
        await asker.request("work.wrong", timeout=5)


async def until_served(asker: fairlead.Connection, topic: str) -> None:
    while True:
        try:
            await asker.request(topic, timeout=5)
        except errors.NoReceiver:
            await asyncio.sleep(0.05)
        except errors.FairleadError:
            return
        else:
            return


async def converse(asker: fairlead.Connection, talks: fairlead.client.aio.talks.Acceptor) -> None:
    async def begin() -> tuple[object, object]:
        talk = asker.converse("talk")
        await talk.send("hello")
        try:
            there = await talks.next(0.5)
        except TimeoutError:
            raise errors.NoReceiver("not yet") from None
        return talk, there

    talk, there = await answered(begin)
    assert (await there.receive(5)).body == b"hello"
    for number in range(5):
        await there.send(f"question {number}")
        assert (await talk.receive(5)).body == f"question {number}".encode()
        await talk.send(f"answer {number}")
        assert (await there.receive(5)).body == f"answer {number}".encode()
    await talk.close()
    with pytest.raises(errors.FairleadError):
        await there.receive(5)


@pytest.mark.requirement("SRV-117")
async def test_a_fan_out_request_asks_the_receivers_of_all_servers_and_says_how_many(tree: Servers) -> None:
    async with clients(*tree.values(), tree["right-1"]) as receivers, clients(tree["left-2"]) as [asker]:
        for number, receiver in enumerate(receivers):
            await receiver.respond("poll", saying(number))
        deadline_s = asyncio.get_running_loop().time() + 20
        while True:
            fan = asker.request_all("poll", timeout=5)
            got = sorted([int(answer.body) async for answer in fan])
            if fan.asked == len(receivers):
                break
            assert asyncio.get_running_loop().time() < deadline_s
            await asyncio.sleep(0.05)
        assert got == list(range(len(receivers)))
        assert (fan.answered, fan.lost) == (len(receivers), 0)


@pytest.mark.requirement("SRV-123")
async def test_receivers_of_two_servers_both_get_requests(tree: Servers) -> None:
    async with clients(tree["left-1"], tree["right-1"], tree["left-1"]) as [near, far, asker]:
        served = {"near": 0, "far": 0}

        async def serve(name: str) -> bytes:
            served[name] += 1
            await asyncio.sleep(0.02)
            return name.encode()

        await far.respond("shared", lambda request: serve("far"))
        await answered(lambda: asker.request("shared", timeout=5))
        await near.respond("shared", lambda request: serve("near"))
        await asyncio.gather(*(asker.request("shared", timeout=10) for _ in range(40)))
        assert min(served.values()) >= 5, served


@pytest.mark.requirement("SRV-120")
async def test_a_topic_nobody_wants_beyond_a_link_causes_no_traffic_on_it(tree: Servers) -> None:
    async with (
        clients(tree["left-1"], tree["left-2"], tree["right-1"]) as [sender, near, far],
        near.subscribe("local.only") as here,
        far.subscribe("far.topic") as there,
    ):
        await reached(sender, "local.only", here)
        await reached(sender, "far.topic", there)

        def carried(name: str) -> int:
            [link] = tree[name].status()["links"]
            return int(link["messages_in"] + link["messages_out"])

        before = carried("left"), carried("right")
        for number in range(100):
            await sender.publish("local.only", str(number))
            await sender.publish("nobody.at.all", str(number))
        assert [int((await here.next(5)).body) for _ in range(100)] == list(range(100))
        await sender.publish("far.topic", "end")
        await there.next(5)
        await until(lambda: carried("left") >= before[0] + 1)
        after = carried("left"), carried("right")
        assert after[0] - before[0] < 10, "the report may be a moment old, but not two hundred messages"
        assert after[1] - before[1] < 10


async def test_a_bridge_that_is_updated_or_killed_takes_its_links_up_again(tree: Servers) -> None:
    async with (
        clients(tree["left-1"], tree["right-2"]) as [sender, receiver],
        receiver.subscribe("again") as subscription,
    ):
        await reached(sender, "again", subscription)
        done = await asyncio.to_thread(tree["left"].update, "bridge")
        assert [one["outcome"] for one in done["updates"]] == ["done"]
        await reached(sender, "again", subscription)
        tree["right"].kill("bridge")
        tree["right"].wait_until(lambda report: report["links"][0]["state"] == "up")
        await reached(sender, "again", subscription)


@pytest.mark.requirement("SRV-121")
async def test_updating_the_root_s_router_under_load_loses_nothing(tree: Servers) -> None:
    async with (
        clients(tree["left-1"], tree["right-2"]) as [sender, receiver],
        receiver.subscribe("load") as subscription,
    ):
        await reached(sender, "load", subscription)
        count, updated = 0, False

        async def publish() -> None:
            nonlocal count
            while not updated or count < 1000:
                await sender.publish("load", str(count))
                count += 1
                if count % 20 == 0:
                    await asyncio.sleep(0.005)

        publishing = asyncio.create_task(publish())
        done = await asyncio.to_thread(tree["root"].update, "router")
        assert [one["outcome"] for one in done["updates"]] == ["done"]
        updated = True
        await publishing
        got = [int((await subscription.next(10)).body) for _ in range(count)]
        assert got == list(range(count))
