"""A program that takes a stream in a process of its own and measures it: pauses, latency, and whether all came.

    python -m benchmarks.feeds.subscriber URL STREAM

Each line on standard input asks for what happened since the last one; the answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from typing import Any

import fairlead

SAMPLE = 50  # of so many messages the latency of one is taken


class Measurement:
    """What happened since the last report."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.count = 0
        self.batches = 0
        self.pause_ns = 0
        self.latencies_ns = array("q")

    def report(self, counters: dict[str, Any], state: str, line: str, cpu_s: float) -> dict[str, Any]:
        taken = sorted(self.latencies_ns)
        pick = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        latency = {name: round(taken[int(len(taken) * at)] / 1e6, 3) for name, at in pick.items()} if taken else {}
        return {
            "seconds": (time.monotonic_ns() - self.began_ns) / 1e9,
            "messages": self.count,
            "batches": self.batches,
            "pause_ms": round(self.pause_ns / 1e6, 3),
            "latency_ms": latency | ({"max": round(taken[-1] / 1e6, 3)} if taken else {}),
            "state": state,
            "line": line,
            "cpu_s": cpu_s,
            "counters": {name: value for name, value in counters.items() if isinstance(value, int)},
        }


async def main(url: str, stream_name: str) -> None:
    loop = asyncio.get_running_loop()
    async with fairlead.connect(url, name="measuring") as connection, connection.stream(stream_name) as stream:
        now, seen = Measurement(), Seen()

        async def take() -> None:
            nonlocal now
            last_ns = time.monotonic_ns()
            while True:
                batch = await stream.batch(8192)
                arrived_ns = time.monotonic_ns()
                now.pause_ns = max(now.pause_ns, arrived_ns - last_ns)
                last_ns = arrived_ns
                seen.check(batch)
                now.count += len(batch)
                now.batches += 1
                for message in batch[::SAMPLE]:
                    due_ns = message.record()["due_ns"]
                    if isinstance(due_ns, int) and due_ns:
                        now.latencies_ns.append(arrived_ns - due_ns)

        taking = asyncio.create_task(take())
        print(json.dumps({"ready": True}), flush=True)
        try:
            while await loop.run_in_executor(None, sys.stdin.readline):
                if taking.done():
                    await taking
                before, now = now, Measurement()
                report = before.report(dict(stream.counters), stream.state, stream.line, time.process_time())
                print(json.dumps(report | {"wrong": seen.wrong}), flush=True)
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


class Seen:
    """Was each message the next one of the source?"""

    def __init__(self) -> None:
        self.last = 0
        self.wrong: list[tuple[int, int]] = []  # the last one, and what came instead of the next

    def check(self, batch: list[Any]) -> None:
        sequences = [message.sequence for message in batch]
        first, count = sequences[0], len(sequences)
        if self.last and first != self.last + 1:
            self.wrong.append((self.last, first))
        if sequences != list(range(first, first + count)):
            self.wrong.append((first, sequences[-1]))
        self.last = sequences[-1]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
