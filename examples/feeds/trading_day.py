"""A small trading day through two feed adapters, of which the active one is killed in the middle; and a picture of it.

    python examples/feeds/trading_day.py --output ./day

An exchange (a process too) sends the day over UDP, on two lines, to two adapters; a program reads the
stream. While it does, the active adapter gets a `kill -9`, and is started again later. Then every message the program
was given is compared with what the exchange sent, and `day.png` shows what happened: see docs/feeds-tutorial.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from picture import Taken, draw

import fairlead
from fairlead.feeds.edge.sources import open_sources
from fairlead.feeds.events import Event
from fairlead.feeds.making import maker
from fairlead.feeds.records import MESSAGE
from fairlead.feeds.sources.events import SourceBatch
from fairlead.testing.feed_source import FeedSourceProcess

STREAM = "prices.emea"
SEED = 7
SAMPLE_S = 0.05
PATIENCE_S = 60.0


class Day(NamedTuple):
    """What the program saw. Times are seconds since the exchange began."""

    taken: list[Taken]
    messages: list[tuple[int, int]]  # source sequence and part
    events: list[tuple[float, Event]]
    adapters: list[tuple[float, str, int]]  # time, name, last message number, as the administration knows it
    counters: list[tuple[float, dict[str, int]]]
    marks: list[tuple[float, str]]  # what we did


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--output", type=Path, default=Path("day"), help="a directory for the picture and the logs")
    options.add_argument("--messages", type=int, default=20_000, help="of the exchange")
    options.add_argument("--rate", type=float, default=4_000, help="messages a second")
    given = options.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)

    file = given.output / "day.mold"
    fairlead_command("feed", "generate", str(file), "--messages", str(given.messages), "--seed", str(SEED))
    wanted = asyncio.run(converted(file))
    with ExitStack() as stack:
        exchange = stack.enter_context(FeedSourceProcess(seed=SEED, messages=given.messages))
        processes = Processes(given.output)
        stack.callback(processes.stop)
        url = processes.start("administration", "streams", "serve", "--data", str(given.output / "data"),
                              "--listen", "127.0.0.1:0")  # fmt: skip
        for name in ("a", "b"):
            config = adapter_file(given.output / f"{name}.toml", name, url, exchange.add(name).table())
            processes.start(name, "feed", "run", "--config", str(config))
        begin = partial(exchange.send, given.messages, given.rate)
        day = asyncio.run(watch(url, begin, len(wanted), processes))
    report(day, given.messages, wanted)
    picture = given.output / "day.png"
    draw(day.taken, day.events, day.adapters, day.counters, day.marks, picture)
    print(f"{picture} shows it")


# -- the day ---------------------------------------------------------------------------------------------------------


async def converted(file: Path) -> list[tuple[int, int]]:
    """What should come of the day, by source sequence and part: read and converted as an adapter does it."""
    make = maker("itch").make
    wanted = []
    async for event in open_sources([{"kind": "file", "id": "day", "path": str(file)}], stream=STREAM):
        if isinstance(event, SourceBatch):
            made = make(event)
            kept = made.kinds == MESSAGE
            wanted += zip(made.sequences[kept].tolist(), made.part[kept].tolist(), strict=True)
    return wanted


# -- who takes part --------------------------------------------------------------------------------------------------


class Processes:
    """The administration and the adapters, each a process, which end with this program."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> str:
        """Run a command of fairlead; the address it is ready at."""
        self._commands[name] = arguments
        reading, writing = os.pipe()
        with open(self._directory / f"{name}.log", "ab") as log, open(reading, encoding="utf-8") as pipe:
            try:
                self._running[name] = subprocess.Popen(
                    [sys.executable, "-m", "fairlead", *arguments, "--ready-fd", str(writing)],
                    stdout=log, stderr=log, pass_fds=[writing],
                )  # fmt: skip
            finally:
                os.close(writing)
            ready = pipe.readline().split()
        if len(ready) != 2:
            raise SystemExit(f"{name} does not start; {self._directory / f'{name}.log'} says why")
        return ready[1]

    async def kill(self, name: str) -> None:
        """As a power cut would."""
        process = self._running.pop(name)
        process.kill()
        await asyncio.to_thread(process.wait)

    def start_again(self, name: str) -> None:
        self.start(name, *self._commands[name])

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait()


def fairlead_command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "fairlead", *arguments], check=True, stdout=subprocess.DEVNULL)


def adapter_file(file: Path, name: str, url: str, source: dict[str, Any]) -> Path:
    """An adapter's configuration; lists and texts are written in TOML as in JSON."""
    tables = {
        "feed": {"stream": STREAM, "name": name, "heartbeat_s": 0.5},  # other programs may keep the machine busy
        "administration": {"url": url},
        "listen": {"address": "127.0.0.1:0"},
        "source": source,
        "convert": {"converter": "itch"},
    }
    text = ""
    for table, keys in tables.items():
        text += f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) + "\n"
    file.write_text(text, encoding="utf-8")
    return file


# -- the program that reads the stream -------------------------------------------------------------------------------


async def watch(url: str, begin: Callable[[], object], count: int, processes: Processes) -> Day:
    """Read the whole day, and disturb it."""
    day = Day([], [], [], [], [], [])
    async with fairlead.connect(url, name="tutorial") as connection:
        await roles(connection)
        async with connection.stream(STREAM, start="oldest", events=True) as stream:
            begin()
            began_s = time.monotonic()
            sampling = asyncio.create_task(sample(connection, stream, day, began_s))
            disturbing = asyncio.create_task(disturb(connection, day, began_s, count, processes))
            until_s = began_s + PATIENCE_S
            while len(day.messages) < count or not disturbing.done() or stream.state != "normal":
                try:
                    items = await stream.batch(timeout=0.2)
                except fairlead.RequestTimeout:
                    if time.monotonic() > until_s:
                        raise
                    continue  # the day may be over before the adapter is back
                now_s = time.monotonic() - began_s
                messages = [item for item in items if not isinstance(item, Event)]
                day.events.extend((now_s, item) for item in items if isinstance(item, Event))
                day.messages.extend((one.sequence, one.part) for one in messages if one.admin is None)
                if messages:
                    day.taken.append(Taken(now_s, stream.line, messages[0].number, messages[-1].number))
            await disturbing
            async with asyncio.timeout(PATIENCE_S):
                await roles(connection)
            await asyncio.sleep(3 * SAMPLE_S)  # the adapter that is back is seen at its place, too
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            day.counters.append((time.monotonic() - began_s, dict(stream.counters)))
    return day


async def roles(connection: fairlead.Connection) -> dict[str, str]:
    """The adapters by role, when one is active and the other one could take over."""
    while True:
        for facts in await connection.list_streams():
            ready = [
                one for one in facts["adapters"] if one["alive"] and (one["role"] == "active" or one["synchronised"])
            ]
            found = {one["role"]: one["name"] for one in ready}
            if facts["name"] == STREAM and set(found) == {"active", "backup"}:
                return found
        await asyncio.sleep(SAMPLE_S)


async def disturb(
    connection: fairlead.Connection, day: Day, began_s: float, count: int, processes: Processes
) -> None:  # fmt: skip
    """Kill the active adapter after a third of the day, and start it again after half of it."""
    victim = (await roles(connection))["active"]
    while len(day.messages) < count / 3:
        await asyncio.sleep(0.001)
    day.marks.append((time.monotonic() - began_s, f"kill -9 of {victim}"))
    await processes.kill(victim)
    while len(day.messages) < count / 2:
        await asyncio.sleep(0.01)
    day.marks.append((time.monotonic() - began_s, f"{victim} is started again"))
    await asyncio.to_thread(processes.start_again, victim)


async def sample(connection: fairlead.Connection, stream: Any, day: Day, began_s: float) -> None:
    """Look now and then how far the adapters are, and what the stream has counted."""
    while True:
        for facts in await connection.list_streams():
            now_s = time.monotonic() - began_s
            day.adapters.extend((now_s, one["name"], one["last"]) for one in facts["adapters"] if one["alive"])
        day.counters.append((time.monotonic() - began_s, dict(stream.counters)))
        await asyncio.sleep(SAMPLE_S)


def report(day: Day, sent: int, wanted: list[tuple[int, int]]) -> None:
    """What came against what was sent."""
    print(f"{sent} messages of the exchange, {len(wanted)} records; {len(day.messages)} came")
    print(f"each once and in order: {day.messages == wanted}")
    for at_s, event in day.events:
        print(f"{at_s:7.3f} s  {event}")
    killed_s = day.marks[0][0]
    before = max((one.at_s for one in day.taken if one.at_s <= killed_s), default=0.0)
    after = min((one.at_s for one in day.taken if one.at_s > killed_s), default=before)
    print(f"pause of the program: {1000 * (after - before):.0f} ms; dropped as duplicates: "
          f"{day.counters[-1][1]['duplicates']}")  # fmt: skip


if __name__ == "__main__":
    main()
