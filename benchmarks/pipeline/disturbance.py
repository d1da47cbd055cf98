"""What publishing clients notice while Spark reads a backlog as fast as it can, at nice 10 (as jobs run) and at nice 0.

python benchmarks/pipeline/disturbance.py [--rows 500000] [--rate 10000] [--seconds 10] [--repeat 3] [--out FILE.json]

Clients send at a steady rate whatever happens: a message has a moment at which it is due, and its latency is counted
from there until its receipt, so a message that had to wait to be sent counts with its wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.pipeline.common import BACKLOG, BODY_BYTES, descendants, fill, load, session, spread
from fairlead.runtime.version import VERSION
from fairlead.testing import Server

CLIENTS = 2
LIVE = "bench.live"
TICK_S = 0.002
WINDOW = 8192
PASSES_BEFORE = 3  # of the reader, until its Java is warm
START_S_MAX = 300.0
STOP_S_MAX = 60.0


class Sent(NamedTuple):
    """What the clients saw."""

    kept: float
    """Share of what was due within the time that was also confirmed within it."""
    p50_ms: float
    p99_ms: float
    worst_ms: float
    read_rows_per_s: float = 0.0


# One publishing client, as a process.


async def publish(url: str, rate: float, seconds: float) -> dict[str, Any]:
    body = os.urandom(BODY_BYTES)
    latencies: list[float] = []
    async with fairlead.connect(url, name=f"publisher-{os.getpid()}") as connection:
        queue = connection.queue(LIVE, create=True)
        await queue.send(body)
        began_s = time.monotonic()
        ends_s = began_s + seconds
        in_time = sent = 0

        def confirmed(due_s: float) -> None:
            nonlocal in_time
            now_s = time.monotonic()
            latencies.append(now_s - due_s)
            in_time += now_s <= ends_s

        async with queue.sender(window=WINDOW) as sender:
            while (now_s := time.monotonic()) < ends_s:
                while began_s + sent / rate <= now_s:
                    due_s = began_s + sent / rate
                    future = await sender.send(body)
                    future.add_done_callback(lambda _, due_s=due_s: confirmed(due_s))  # type: ignore[misc]
                    sent += 1
                await asyncio.sleep(TICK_S)
    latencies.sort()
    return {"due": int(rate * seconds), "in_time": in_time, "latencies": latencies}


# Spark, as a process.


def read(url: str, work: Path) -> None:
    """Read the backlog again and again, and say after each time when that was; until nobody listens."""
    with session(work) as spark:
        frame = spark.read.format("fairlead").option("url", url)
        while True:
            frame.load(BACKLOG).write.format("noop").mode("overwrite").save()
            try:
                print(time.monotonic(), flush=True)
            except BrokenPipeError:
                os._exit(0)


class Reader:
    """That process; `times` are the ends of its passes."""

    def __init__(self, url: str, work: Path, nice: int) -> None:
        self._process = subprocess.Popen(
            [*_self(), "--role", "reader", "--url", url, "--work", str(work)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.nice(nice),
        )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.times: list[float] = []
        self._text = b""

    def wait(self, passes: int) -> None:
        deadline_s = time.monotonic() + START_S_MAX
        while len(self.times) < passes:
            assert self._process.poll() is None, "the reader ended"
            assert time.monotonic() < deadline_s, "the reader does not read"
            time.sleep(0.05)
            self.look()

    def look(self) -> None:
        assert self._process.stdout is not None
        self._text += self._process.stdout.read() or b""
        *lines, self._text = self._text.split(b"\n")
        self.times += [float(line) for line in lines]

    def rate(self, rows: int, began_s: float, ended_s: float) -> float:
        """Rows a second in this time, a pass that is only partly in it counting for that part."""
        done = 0.0
        for first_s, last_s in zip(self.times, self.times[1:], strict=False):
            inside_s = max(0.0, min(last_s, ended_s) - max(first_s, began_s))
            done += rows * inside_s / (last_s - first_s)
        return done / (ended_s - began_s)

    def close(self) -> None:
        """It and its Java, which ends by itself when nobody talks to it any more."""
        family = descendants(self._process.pid)
        self._process.terminate()
        self._process.communicate()
        deadline_s = time.monotonic() + STOP_S_MAX
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline_s:
            time.sleep(0.05)


def _self() -> list[str]:
    return [sys.executable, str(Path(__file__).resolve())]


def clients(url: str, rate: float, seconds: float) -> Sent:
    """Several of them at once, and what they saw together."""
    asked = [*_self(), "--role", "publisher", "--url", url, "--rate", str(rate / CLIENTS), "--seconds", str(seconds)]
    running = [subprocess.Popen(asked, stdout=subprocess.PIPE) for _ in range(CLIENTS)]
    found = [json.loads(one.communicate()[0]) for one in running]
    latencies = sorted(latency for one in found for latency in one["latencies"])
    kept = sum(one["in_time"] for one in found) / sum(one["due"] for one in found)
    at = [latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1000 for share in (0.5, 0.99, 1)]
    return Sent(kept, *at)


def measure(rows: int, rate: float, seconds: float, repeat: int) -> dict[str, Any]:
    found: dict[str, list[Sent]] = {}
    loads = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as place, Server() as server:
        fill(server, rows)
        clients(server.url, rate, min(seconds, 1.0))
        for name, nice in (("alone", None), ("beside Spark at nice 10", 10), ("beside Spark at nice 0", 0)):
            reader = None if nice is None else Reader(server.url, Path(place), nice)
            try:
                if reader is not None:
                    reader.wait(PASSES_BEFORE)
                for _ in range(repeat):
                    loads.append(load())
                    began_s = time.monotonic()
                    seen = clients(server.url, rate, seconds)
                    ended_s = time.monotonic()
                    if reader is not None:
                        reader.wait(len(reader.times) + 1)
                        seen = seen._replace(read_rows_per_s=reader.rate(rows, began_s, ended_s))
                    print(name, seen, file=sys.stderr)
                    found.setdefault(name, []).append(seen)
            finally:
                if reader is not None:
                    reader.close()
    return {
        "rows": rows, "rate": rate, "seconds": seconds, "clients": CLIENTS, "body_bytes": BODY_BYTES,
        "fairlead": VERSION, "cores": os.cpu_count(), "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "load": [min(loads), max(loads)],
        "runs": {name: [one._asdict() for one in seen] for name, seen in found.items()},
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    lines = [
        f"| {result['rate']:,.0f} durable sends/s | rate kept | p50 ms | p99 ms | worst ms | Spark reads rows/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in result["runs"].items():
        cells = []
        for part, form in (
            ("kept", "{:.1%} ({:.1%} to {:.1%})"),
            ("p50_ms", "{:.1f} ({:.1f} to {:.1f})"),
            ("p99_ms", "{:.1f} ({:.1f} to {:.1f})"),
            ("worst_ms", "{:.0f} ({:.0f} to {:.0f})"),
            ("read_rows_per_s", "{:,.0f} ({:,.0f} to {:,.0f})"),
        ):
            middle = spread([run[part] for run in runs])
            cells.append(form.format(*middle) if any(middle) else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000, help="messages of the backlog")
    parser.add_argument("--rate", type=float, default=10_000, help="sends a second, of all clients")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    for inner in ("--role", "--url", "--work"):
        parser.add_argument(inner, default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "publisher":
        print(json.dumps(asyncio.run(publish(options.url, options.rate, options.seconds))))
    elif options.role == "reader":
        read(options.url, Path(options.work))
    else:
        result = measure(options.rows, options.rate, options.seconds, options.repeat)
        print(table(result))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
