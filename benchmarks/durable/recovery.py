"""How long a message manager takes to serve again after kill -9, for growing numbers of stored messages.

    python benchmarks/durable/recovery.py [--scale 1] [--data DIR]

Measured with the checkpoint that happened to be there, and once more right after one was asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, message_manager, scaled, wait_back
from fairlead.testing import Server

SIZES = (10_000, 100_000, 1_000_000)
BODY = bytes(256)
BATCH = 100


async def measure(server: Server, scale: float) -> Rows:
    rows: Rows = []
    async with fairlead.connect(server.url, name="recovery", reconnect_limit_s=600) as connection:
        queue, stored = connection.queue("recovery", create=True), 0
        for size in (scaled(size, scale, BATCH) for size in SIZES):
            while stored < size:
                await queue.send_many([BODY] * BATCH)
                stored += BATCH
            rows.append((f"{stored:,} messages: serves again after", f"{await killed(server):.2f} s"))
            await queue.send(BODY)  # it really does
            stored += 1
            await connection.admin.checkpoint()
            rows.append((f"{stored:,} messages, just after a checkpoint", f"{await killed(server):.2f} s"))
    return rows


async def killed(server: Server) -> float:
    pid = message_manager(server)
    began_s = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    await wait_back(server, pid)
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main(measure, "Time to recover")
