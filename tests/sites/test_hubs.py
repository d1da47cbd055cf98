"""Two data centres, two hubs between them; and links that go round in a circle."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import fairlead
from fairlead.client.aio.subscription import Subscription
from tests.sites.tools import are_up, clients, reached, saying, started

pytestmark = pytest.mark.processes

TOPICS = [f"topic.{number}" for number in range(6)]


async def publish_all(sender: fairlead.Connection, word: str, subscriptions: list[Subscription]) -> None:
    """Every topic once; everybody gets each of them once, and nothing twice."""
    for topic in TOPICS:
        await sender.publish(topic, f"{word} {topic}")
    for topic in TOPICS:
        await sender.publish(topic, f"end of {word}")  # goes the same way as what was published before it
    wanted = Counter(f"{word} {topic}" for topic in TOPICS)
    for subscription in subscriptions:
        got: Counter[str] = Counter()
        ends = 0
        while ends < len(TOPICS):
            text = (await subscription.next(10)).body.decode()
            ends += text == f"end of {word}"
            got[text] += 1
        del got[f"end of {word}"]
        assert got == wanted


async def all_reached(sender: fairlead.Connection, subscriptions: list[Subscription]) -> None:
    for topic in TOPICS:
        await reached(sender, topic, *subscriptions)


@pytest.mark.requirement("SRV-119")
@pytest.mark.requirement("SRV-120")
async def test_two_hubs_deliver_one_copy_each_also_when_one_is_stopped() -> None:
    hubs = ["hub-1", "hub-2"]
    with started({"hub-1": [], "hub-2": [], "east": hubs, "west": hubs}) as servers:
        async with clients(*(servers[name] for name in ("east", "west"))) as [sender, *others]:
            subscriptions = [client.subscribe("topic.*") for client in [sender, *others]]
            for subscription in subscriptions:
                await subscription.start()
            await all_reached(sender, subscriptions)
            await publish_all(sender, "both", subscriptions)
            await asyncio.to_thread(servers["hub-1"].stop)
            for name in ("east", "west"):
                servers[name].wait_until(lambda report: are_up(report, 1))
            await all_reached(sender, subscriptions)
            await publish_all(sender, "one", subscriptions)


@pytest.mark.requirement("SRV-120")
async def test_links_in_a_circle_deliver_once() -> None:
    with started({"a": ["b"], "b": ["c"], "c": ["a"]}) as servers:
        async with clients(*servers.values()) as everybody:
            subscriptions = [client.subscribe("topic.*") for client in everybody]
            for subscription in subscriptions:
                await subscription.start()
            for number, sender in enumerate(everybody):
                await all_reached(sender, subscriptions)
                await publish_all(sender, f"round {number}", subscriptions)
            for number, client in enumerate(everybody):
                await client.respond("who", saying(number))
            while True:
                fan = everybody[0].request_all("who", timeout=5)
                got = sorted([int(answer.body) async for answer in fan])
                if len(got) >= 3:
                    break
                await asyncio.sleep(0.05)
            assert got == [0, 1, 2]
