"""A hundred thousand queues: how fast they are made, what they cost, and whether a busy one notices the idle others.

python benchmarks/durable/queues.py [--scale 1] [--data DIR]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, message_manager, mib, ms, quantile, rss, scaled, wait_back
from fairlead.testing import Server

QUEUES = 100_000
AT_ONCE = 200
PROBES = 500


async def measure(server: Server, scale: float) -> Rows:
    count = scaled(QUEUES, scale, AT_ONCE)
    manager = message_manager(server)
    async with (
        fairlead.connect(server.url, name="probe", reconnect_limit_s=600) as connection,
        fairlead.connect(server.url, name="queues", reconnect_limit_s=600) as many,
    ):
        before = await probe(connection)
        empty, began_s = rss(manager), time.perf_counter()
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(
                    many.queue(f"many.{number}", create=True).send(b"one")
                    for number in range(first, min(count, first + AT_ONCE))
                )
            )
        seconds, grown = time.perf_counter() - began_s, rss(manager) - empty
        after = await probe(connection)
        os.kill(manager, signal.SIGKILL)
        began_s = time.perf_counter()
        await wait_back(server, manager)
        recovered_s = time.perf_counter() - began_s
        sample = connection.queue(f"many.{count // 2}")
        async with sample.consume() as consumer:
            message = await consumer.receive(timeout=30)
            assert message is not None
            assert message.body == b"one"
            await message.ack(confirm=True)
    return [
        ("queues, each made and given one message", f"{count:,}"),
        ("a second", f"{count / seconds:,.0f}"),
        ("message manager per queue", f"{grown / count / 1024:.2f} KiB ({mib(grown)} in all)"),
        ("confirmed send to another queue before, p50 / p99", f"{ms(before[0])} / {ms(before[1])}"),
        ("confirmed send to another queue after, p50 / p99", f"{ms(after[0])} / {ms(after[1])}"),
        ("killed; serves again after", f"{recovered_s:.2f} s"),
    ]


async def probe(connection: fairlead.Connection) -> tuple[float, float]:
    queue, found = connection.queue("probe", create=True), []
    for _ in range(PROBES):
        began_s = time.perf_counter()
        await queue.send(b"x")
        found.append(time.perf_counter() - began_s)
    return quantile(found, 0.5), quantile(found, 0.99)


if __name__ == "__main__":
    main(measure, "Many queues")
