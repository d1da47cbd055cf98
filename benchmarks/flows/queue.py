"""Messages through one durable queue: a producer with a window, a consumer that acknowledges, each in its own process.

    python benchmarks/flows/queue.py [--messages 500000] [--size 1024] [--window 512] [--profile producer|consumer]

Prints messages a second from the first send to the last acknowledgement, and the processor time of every process per
message: where the time goes. `benchmarks/peers` measures the same beside other brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import processes
from fairlead.testing import Server
from tests.processes.raw import cpu_s

QUEUE = "flow"


async def produce(url: str, messages: int, size: int, window: int) -> None:
    body = bytes(size)
    async with (
        fairlead.connect(url, name="producer") as connection,
        connection.queue(QUEUE).sender(window=window) as sender,
    ):
        for _ in range(messages):
            await sender.send(body)


async def consume(url: str, messages: int, size: int, window: int) -> None:
    async with fairlead.connect(url, name="consumer") as connection:
        queue, left = connection.queue(QUEUE, create=True), messages
        async with queue.consume(prefetch=8192, prefetch_bytes=16 << 20) as consumer:
            print("READY", flush=True)
            async for batch in consumer.batches():
                assert len(batch[0].body) == size
                left -= len(batch)
                if left <= 0:
                    await consumer.ack_many(batch, confirm=True)
                    return
                consumer.ack_many(batch)


def work(role: str, url: str, options: argparse.Namespace) -> None:
    """One of the two processes."""
    runner: Any = asyncio.run
    try:
        import uvloop

        runner = uvloop.run
    except ImportError:
        pass
    profile = cProfile.Profile() if options.profile == role else None
    function = produce if role == "producer" else consume
    began_s, before = time.monotonic(), os.times()
    if profile is not None:
        profile.enable()
    runner(function(url, options.messages, options.size, options.window))
    if profile is not None:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    after = os.times()
    print(json.dumps({"began": began_s, "ended": time.monotonic(), "cpu": after[0] + after[1] - before[0] - before[1]}))


def measure(options: argparse.Namespace) -> list[tuple[str, str]]:
    with Server(**{"limits.frozen_s": 600}) as server:
        before = {name: cpu_s(pid) for name, pid in processes(server).items()}
        consumer = start("consumer", server.url, options)
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "READY\n"
        reports = {"producer": finish(start("producer", server.url, options)), "consumer": finish(consumer)}
        used = {name: cpu_s(pid) - before[name] for name, pid in processes(server).items() if name in before}
    seconds = reports["consumer"]["ended"] - reports["producer"]["began"]
    used |= {name: report["cpu"] for name, report in reports.items()}
    rows = [("messages a second", f"{options.messages / seconds:,.0f}")]
    rows += [(f"{name}, µs per message", f"{cpu / options.messages * 1e6:.2f}") for name, cpu in sorted(used.items())]
    return rows


def start(role: str, url: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    arguments = [f"--{name}={getattr(options, name)}" for name in ("messages", "size", "window", "profile")]
    return subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--url", url, *arguments], stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    report, _ = process.communicate(timeout=600)
    assert process.returncode == 0, process.args
    found: dict[str, float] = json.loads(report)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--profile", choices=["producer", "consumer", ""], default="")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        work(options.role, options.url, options)
        return
    for name, value in measure(options):
        print(f"{name:40} {value:>14}")


if __name__ == "__main__":
    main()
