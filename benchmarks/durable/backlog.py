"""A backlog of ten million messages: memory while it grows, the rate at which it is taken, and the time to recover it.

    python benchmarks/durable/backlog.py [--scale 1] [--data DIR]

The memory is that of the message manager. After half of the backlog is consumed the process is killed with -9; the time
until it serves again is the recovery time for what is left and for the records since the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, message_manager, mib, rss, scaled, wait_back
from fairlead.testing import Server

MESSAGES = 10_000_000
BODY = bytes(100)
BATCH = 1000
STEPS = 10


async def measure(server: Server, scale: float) -> Rows:
    total = scaled(MESSAGES, scale, 10 * BATCH) // (STEPS * BATCH) * (STEPS * BATCH)
    rows: Rows = [("messages", f"{total:,}")]
    manager = message_manager(server)
    empty = rss(manager)
    rows.append(("message manager, empty", mib(empty)))
    async with fairlead.connect(server.url, name="backlog", reconnect_limit_s=600) as connection:
        queue = connection.queue("backlog", create=True)
        memory, began_s = [], time.perf_counter()
        for _ in range(STEPS):
            for _ in range(total // STEPS // BATCH):
                await queue.send_many([BODY] * BATCH)
            memory.append(rss(manager))
        rows.append(("stored a second", f"{total / (time.perf_counter() - began_s):,.0f}"))
        rows.append(("message manager at each tenth of the backlog", ", ".join(map(mib, memory))))
        rates = await consume(queue, total // 2, total // STEPS)
        rows.append(("consumed a second, each tenth of the backlog", ", ".join(f"{rate:,.0f}" for rate in rates)))
        os.kill(manager, signal.SIGKILL)
        began_s = time.perf_counter()
        await wait_back(server, manager)
        rows.append(("killed; serves again after", f"{time.perf_counter() - began_s:.2f} s"))
        rates = await consume(queue, total - total // 2, total // STEPS)
        rows.append(("consumed a second after that", ", ".join(f"{rate:,.0f}" for rate in rates)))
        rows.append(("message manager, empty again", mib(rss(message_manager(server)))))
    return rows


async def consume(queue: fairlead.Queue, count: int, step: int) -> list[float]:
    """Take so many; messages a second of each step."""
    rates, taken, began_s = [], 0, time.perf_counter()
    async with queue.consume(prefetch=min(4096, count), prefetch_bytes=8 << 20) as consumer:
        while taken < count:
            batch = await consumer.receive_many(min(BATCH, count - taken), timeout=60)
            consumer.ack_many(batch)
            before, taken = taken, taken + len(batch)
            if before // step != taken // step:
                now_s = time.perf_counter()
                rates.append(step / (now_s - began_s))
                began_s = now_s
    return rates


if __name__ == "__main__":
    main(measure, "A backlog of messages")
