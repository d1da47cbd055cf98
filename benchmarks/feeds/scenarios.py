"""A stream at full rate with real processes: what a subscriber notices of a dead, a frozen, a missing adapter."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from fairlead.testing.feed_numbers import NumberedSourceProcess
from fairlead.testing.feeds import FeedWorld

SETTLE_S = 0.5
ROOT = Path(__file__).resolve().parents[2]


class Subscriber:
    """`benchmarks.feeds.subscriber` as a process."""

    def __init__(self, world: FeedWorld) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.feeds.subscriber", world.url, world.stream],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._answer()

    def report(self) -> dict[str, Any]:
        """What happened since the last one."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the subscriber has ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@contextmanager
def running(adapters: str, rate: float, heartbeat_s: float) -> Iterator[tuple[FeedWorld, Subscriber]]:
    """A stream at this rate, and somebody who takes it."""
    with NumberedSourceProcess() as source:
        settings = {"feed.heartbeat_s": heartbeat_s}
        with FeedWorld(adapters, source=source, adapter=settings, relays=False) as world, Subscriber(world) as reader:
            source.run_stamped(rate)
            time.sleep(2 * SETTLE_S)
            yield world, reader


def failing_over(how: str, times: int, rate: float, heartbeat_s: float = 0.2) -> Iterator[dict[str, Any]]:
    """The subscriber's longest pause around each death ("killed") or stop ("frozen") of the active adapter."""
    with running("ab", rate, heartbeat_s) as (world, reader):
        for turn in range(times):
            active = asyncio.run(world.active())
            before = _quiet(reader)
            if how == "killed":
                world.adapters[active].kill()
            else:
                world.adapters[active].freeze()
            time.sleep(2 * SETTLE_S + 5 * heartbeat_s)
            found = reader.report()
            if how == "killed":
                world.adapters[active].start()
            else:
                world.adapters[active].thaw()
            asyncio.run(_normal(world, reader))
            yield {
                "scenario": how,
                "heartbeat_ms": heartbeat_s * 1000,
                "rate": rate,
                "kill": turn + 1,
                "pause_ms": found["pause_ms"],
                "pause_before_ms": before["pause_ms"],
                "latest_ms": found["latency_ms"].get("max"),
                "messages_per_s": round(before["messages"] / before["seconds"]),
                "wrong": found["wrong"],
                "lost": found["counters"]["lost"],
                "duplicates": found["counters"]["duplicates"],
                "failed_over": found["line"] != active,
            }


def _quiet(reader: Subscriber) -> dict[str, Any]:
    reader.report()
    time.sleep(SETTLE_S)
    return reader.report()


async def _normal(world: FeedWorld, reader: Subscriber) -> None:
    await world.until_ready()
    await world.until(lambda: reader.report()["state"] == "normal", "the subscriber has both lines again")


def latency(setting: str, seconds: float, rate: float) -> dict[str, Any]:
    """From the moment a message is due at the source to the application: alone, with a backup, with a suspended one."""
    with running("a" if setting == "alone" else "ab", rate, 0.2) as (world, reader):
        active = asyncio.run(world.active())
        if setting == "suspended":
            next(adapter for name, adapter in world.adapters.items() if name != active).freeze()
            time.sleep(2 * SETTLE_S)
        cpu_s = {name: processor_s(adapter.pid) for name, adapter in world.adapters.items()}
        first = _quiet(reader)
        time.sleep(seconds)
        found = reader.report()
        took_s = found["seconds"] + SETTLE_S
        return {
            "scenario": "latency",
            "setting": setting,
            "rate": rate,
            "messages": found["messages"],
            "messages_per_s": round(found["messages"] / found["seconds"]),
            **{f"{name}_ms": value for name, value in found["latency_ms"].items()},
            "pause_ms": found["pause_ms"],
            "wrong": found["wrong"],
            "cpu_of_adapters": {
                name: round((processor_s(world.adapters[name].pid) - before) / took_s, 2)
                for name, before in cpu_s.items()
            },
            "cpu_of_client": round((found["cpu_s"] - first["cpu_s"]) / found["seconds"], 2),
        }


def processor_s(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
