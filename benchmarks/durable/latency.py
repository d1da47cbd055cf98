"""How long a confirmed send takes, with 1 and with 64 producers that each wait for the receipt before the next send.

python benchmarks/durable/latency.py [--scale 1] [--data DIR]
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, ms, quantile, scaled
from fairlead.testing import Server

BODY = bytes(1024)


async def measure(server: Server, scale: float) -> Rows:
    rows: Rows = []
    for producers in (1, 64):
        found, seconds = await sends(server, producers, scaled(20_000, scale, 100))
        rows += [
            (f"{producers} producers: confirmed sends a second", f"{len(found) / seconds:,.0f}"),
            (f"{producers} producers: p50 / p99 / worst", " / ".join(ms(quantile(found, q)) for q in (0.5, 0.99, 1))),
        ]
    return rows


async def sends(server: Server, producers: int, count: int) -> tuple[list[float], float]:
    """Latencies of `count` sends shared by so many producers, each with a connection of its own."""
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(fairlead.connect(server.url, name=f"producer-{number}"))
            for number in range(producers)
        ]
        queue_name = f"latency.{producers}"
        await connections[0].queue(queue_name, create=True).send(BODY)

        async def produce(connection: fairlead.Connection) -> None:
            queue = connection.queue(queue_name)
            await queue.send(BODY)
            for _ in range(-(-count // producers)):
                began_s = time.perf_counter()
                await queue.send(BODY)
                latencies.append(time.perf_counter() - began_s)

        began_s = time.perf_counter()
        await asyncio.gather(*(produce(one) for one in connections))
        return latencies, time.perf_counter() - began_s


if __name__ == "__main__":
    main(measure, "Latency of confirmed sends")
