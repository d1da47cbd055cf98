"""What a message costs the program that reads it: CPU time from the socket to the application, all of it.

    python -m benchmarks.feeds.client                     # a million messages, blocks of 10, 100 and 1000
    python -m benchmarks.feeds.client --messages 200000   # a quick look

Frames come over TCP from another process; this one parses, arbitrates, makes the message objects and hands them out, by
`async for` and by `batch`, with asyncio's own loop and with uvloop. Only CPU time of this process counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import fairlead
from benchmarks.feeds.feeder import STREAM
from fairlead.feeds.block_codec import COMPILED
from fairlead.runtime.version import VERSION
from fairlead.testing.server import Server


async def by_iteration(stream: Any, messages: int) -> None:
    async for message in stream:
        if message.sequence == messages:
            return


async def by_batch(stream: Any, messages: int) -> None:
    last = 0
    while last < messages:
        last = (await stream.batch())[-1].sequence


async def with_records(stream: Any, messages: int) -> None:
    async for message in stream:
        message.record()
        if message.sequence == messages:
            return


WAYS = {"async for": by_iteration, "batch": by_batch, "async for, record()": with_records}


def loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    found: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return found
    return {**found, "uvloop": uvloop.new_event_loop}


async def run(url: str, way: str, messages: int) -> float:
    """Seconds of CPU, beginning when the line is up."""
    async with fairlead.connect(url) as connection, connection.stream(STREAM, start="oldest") as stream:
        began_s = time.process_time()
        await WAYS[way](stream, messages)
        took_s = time.process_time() - began_s
        assert stream.counters["delivered"] == messages
        return took_s


def measure(messages: int, block: int, repeats: int) -> list[dict[str, Any]]:
    rows = []
    with Server(command=("streams", "serve"), managers=1) as server:
        words = [sys.executable, "-m", "benchmarks.feeds.feeder", server.url, str(messages), str(block)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as feeder:
            try:
                assert feeder.stdout is not None
                feeder.stdout.readline()
                for name, factory in loops().items():
                    for way in WAYS:
                        times = []
                        for _ in range(repeats):
                            with asyncio.Runner(loop_factory=factory) as runner:
                                times.append(runner.run(run(server.url, way, messages)))
                        rows.append({
                            "loop": name, "way": way, "block": block, "messages": messages,
                            "messages_per_cpu_s": round(messages / min(times)),
                            "ns_each": [round(1e9 * one / messages) for one in sorted(times)],
                        })  # fmt: skip
            finally:
                feeder.terminate()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[10, 100, 1000], help="records in a block")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(
        f"Fairlead {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {'compiled' if COMPILED else 'plain'} blocks, load {os.getloadavg()[0]:.1f}"
    )
    for block in options.blocks:
        for row in measure(options.messages, block, options.repeats):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
