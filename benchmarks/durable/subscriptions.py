"""A million durable subscriptions: how fast they are made, what they cost, and what publishing to a few of them costs.

    python benchmarks/durable/subscriptions.py [--scale 1] [--data DIR]

They are spread over a thousand topics, each subscription attached once and left: the server keeps what comes for it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, message_manager, mib, rss, scaled
from fairlead.testing import Server

SUBSCRIPTIONS = 1_000_000
TOPICS = 1_000
AT_ONCE = 200


async def measure(server: Server, scale: float) -> Rows:
    count = scaled(SUBSCRIPTIONS, scale, AT_ONCE)
    topics = max(1, min(TOPICS, count // 100))
    manager = message_manager(server)
    empty, began_s = rss(manager), time.perf_counter()
    async with fairlead.connect(server.url, name="subscriptions", reconnect_limit_s=600) as connection:

        async def attach(number: int) -> None:
            topic = connection.topic(f"subscribed.{number % topics}", create=True)
            async with topic.subscribe(durable=f"s{number}"):
                pass

        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*(attach(number) for number in range(first, min(count, first + AT_ONCE))))
        seconds, grown = time.perf_counter() - began_s, rss(manager) - empty
        began_s = time.perf_counter()
        rounds = 20
        for _ in range(rounds):
            await connection.topic("subscribed.0").send(b"news")
        publish_s = (time.perf_counter() - began_s) / rounds
        taken = 0
        async with connection.topic("subscribed.0").subscribe(durable="s0") as consumer:
            while taken < rounds and (message := await consumer.receive(timeout=30)) is not None:
                await message.ack()
                taken += 1
        assert taken == rounds, taken
    return [
        ("durable subscriptions", f"{count:,} on {topics:,} topics"),
        ("made a second", f"{count / seconds:,.0f}"),
        ("message manager per subscription", f"{grown / count / 1024:.2f} KiB ({mib(grown)} in all)"),
        (f"confirmed publish to a topic with {count // topics:,} of them", f"{publish_s * 1000:.2f} ms"),
    ]


if __name__ == "__main__":
    main(measure, "Many durable subscriptions")
