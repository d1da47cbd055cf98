"""Replicated queues side by side, in one run: throughput with three synced copies, and what killing the leader does.

    python -m benchmarks.cluster.compare --seconds 10 --kills 5 --out benchmarks/results/cluster.md

1. `throughput`: a producer process with 512 sends in flight, a consumer process that acknowledges, 1 KiB.
2. `failover`: a producer that offers 1,000 numbered messages a second, each awaited, from 64 tasks; the leader is
   killed with SIGKILL every few seconds and started again. Then everything is consumed. Reported: confirmed messages
   that never came, doubles, and for each kill the longest time in which nothing was confirmed.

Needs, beside Fairlead: `benchmarks/peers/requirements.txt`, and rabbitmq-server of the distribution.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.clients import PEERS
from benchmarks.cluster.systems import SYSTEMS, System

T = TypeVar("T")
SIZE = 1024
WINDOW = 512
FAILOVER_TASKS = 64
FAILOVER_RATE = 1000
PAUSE_AFTER_KILL_S = 4.0  # then it is started again
BETWEEN_KILLS_S = 10.0
DRAIN_S = 60.0


def body_of(number: int) -> bytes:
    return number.to_bytes(8, "little") + b"x" * (SIZE - 8)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but leaves alone what is still open: tasks of some libraries cannot be cancelled."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


# --- Throughput: both ends are processes of their own ----------------------------------------------------------------


def produce(system: str, url: Any, seconds: float, results: Any) -> None:
    run(_produce(system, url, seconds, results))


async def _produce(system: str, url: Any, seconds: float, results: Any) -> None:
    peer = PEERS[system](url)
    await peer.open()
    number = 0
    began = time.monotonic()

    async def lane() -> None:
        nonlocal number
        while time.monotonic() - began < seconds:
            number += 1
            mine = number
            await peer.send(mine, body_of(mine))

    await asyncio.gather(*(lane() for _ in range(WINDOW)))
    results.put(("produced", number, time.monotonic() - began))
    await peer.close()


def consume(system: str, url: Any, results: Any, total: Any) -> None:
    run(_consume(system, url, results, total))


async def _consume(system: str, url: Any, results: Any, total: Any) -> None:
    peer = PEERS[system](url)
    await peer.open()
    seen: dict[int, int] = {}

    def on_message(body: bytes) -> None:
        number = int.from_bytes(body[:8], "little")
        seen[number] = seen.get(number, 0) + 1

    await peer.consume(on_message)
    results.put(("ready", 0, 0.0))
    quiet_since, count = time.monotonic(), 0
    while time.monotonic() - quiet_since < DRAIN_S:
        await asyncio.sleep(0.05)
        if len(seen) != count:
            count, quiet_since = len(seen), time.monotonic()
        if 0 < total.value <= len(seen):
            break
    results.put(("consumed", len(seen), sum(seen.values()) - len(seen)))
    await peer.close()


def throughput(system: System, seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    results, total = context.Queue(), context.Value("q", 0)
    consumer = context.Process(target=consume, args=(system.name, system.url, results, total))
    consumer.start()
    assert results.get(timeout=60)[0] == "ready"
    producer = context.Process(target=produce, args=(system.name, system.url, seconds, results))
    producer.start()
    _, sent, took = results.get(timeout=seconds + 120)
    total.value = sent
    began = time.monotonic()
    _, received, doubles = results.get(timeout=DRAIN_S * 4)
    behind = time.monotonic() - began
    producer.join(30)
    consumer.join(30)
    return {
        "confirmed_per_s": round(sent / took),
        "consumed_per_s": round(received / (took + behind)),
        "sent": sent,
        "lost": sent - received,
        "doubles": doubles,
    }


# --- Failover --------------------------------------------------------------------------------------------------------


async def failover(system: System, kills: int) -> dict[str, Any]:
    peer = PEERS[system.name](system.url)
    await peer.open()
    confirmed: dict[int, float] = {}
    began = time.monotonic()
    over = False
    number = 0

    async def lane() -> None:
        nonlocal number
        while not over:
            number += 1
            mine = number
            ahead = began + mine / FAILOVER_RATE - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
            await peer.send(mine, body_of(mine))
            confirmed[mine] = time.monotonic()

    lanes = [asyncio.create_task(lane()) for _ in range(FAILOVER_TASKS)]
    killed_at: list[float] = []
    await asyncio.sleep(3)
    for _ in range(kills):
        leader = await system.leader()
        killed_at.append(time.monotonic())
        await asyncio.to_thread(system.kill, leader)
        await asyncio.sleep(PAUSE_AFTER_KILL_S)
        await asyncio.to_thread(system.restart, leader)
        await asyncio.sleep(BETWEEN_KILLS_S - PAUSE_AFTER_KILL_S)
    over = True
    await asyncio.wait_for(asyncio.gather(*lanes), 120)
    await peer.close()
    times = sorted(confirmed.values())
    pauses = []
    for moment in killed_at:
        window = [t for t in times if moment - 0.5 <= t <= moment + BETWEEN_KILLS_S]
        pauses.append(max((b - a for a, b in itertools.pairwise(window)), default=BETWEEN_KILLS_S))
    seen = await drain(system, len(confirmed))
    lost = sorted(set(confirmed) - set(seen))
    return {
        "confirmed": len(confirmed),
        "lost": len(lost),
        "lost_first": lost[:5],
        "doubles": sum(seen.values()) - len(seen),
        "pauses_ms": [round(1000 * one) for one in pauses],
        "pause_median_ms": round(1000 * statistics.median(pauses)),
        "pause_worst_ms": round(1000 * max(pauses)),
    }


async def drain(system: System, wanted: int) -> dict[int, int]:
    peer = PEERS[system.name](system.url)
    await peer.open()
    seen: dict[int, int] = {}

    def on_message(body: bytes) -> None:
        number = int.from_bytes(body[:8], "little")
        seen[number] = seen.get(number, 0) + 1

    await peer.consume(on_message)
    count, quiet_since = 0, time.monotonic()
    while time.monotonic() - quiet_since < (5 if count >= wanted else 40):
        await asyncio.sleep(0.1)
        if len(seen) != count:
            count, quiet_since = len(seen), time.monotonic()
    await peer.close()
    return seen


def measure(name: str, seconds: float, kills: int, repeats: int) -> dict[str, Any]:
    row: dict[str, Any] = {"system": name, "copies": SYSTEMS[name].copies}
    with tempfile.TemporaryDirectory(prefix=f"fl-{name}-") as directory:
        system = SYSTEMS[name](Path(directory))
        system.start()
        try:
            run(system.declare())
            row["throughput"] = [throughput(system, seconds) for _ in range(repeats)]
            if kills:
                row["failover"] = run(failover(system, kills))
        finally:
            system.stop()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| system | copies | confirmed/s (median, spread) | consumed/s | lost | doubles |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        rates = [one["confirmed_per_s"] for one in row["throughput"]]
        consumed = statistics.median(one["consumed_per_s"] for one in row["throughput"])
        lost = sum(one["lost"] for one in row["throughput"])
        doubles = sum(one["doubles"] for one in row["throughput"])
        middle, low, high = statistics.median(rates), min(rates), max(rates)
        spread = f"{middle:,.0f} ({low:,}–{high:,})"
        lines.append(f"| {row['system']} | {row['copies']} | {spread} | {consumed:,.0f} | {lost} | {doubles} |")
    if all("failover" in row for row in rows):
        lines += [
            "",
            "| system | kills | confirmed | confirmed and lost | doubles | pause, median ms | worst ms | each ms |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            one = row["failover"]
            each = " ".join(map(str, one["pauses_ms"]))
            lines.append(
                f"| {row['system']} | {len(one['pauses_ms'])} | {one['confirmed']:,} | {one['lost']} "
                f"| {one['doubles']} | {one['pause_median_ms']:,} | {one['pause_worst_ms']:,} | {each} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.systems:
        rows.append(measure(name, options.seconds, options.kills, options.repeats))
        print(json.dumps(rows[-1]), flush=True)
    text = (
        f"# Replicated queues side by side\n\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"Python {platform.python_version()}, {SIZE}-byte messages, window {WINDOW}, "
        f"{options.repeats} runs of {options.seconds:g} s, all nodes on one host of two cores.\n"
        f"Method: `benchmarks/cluster/compare.py`.\n\n{table(rows)}\n"
    )
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
