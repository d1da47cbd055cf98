"""Long runs that hurt a server under load, and then look whether every message is accounted for.

::

    python -m tests.processes.soak --minutes 10 --seed 7
    python -m tests.processes.soak --scenario update-under-load --connections 1000 --rate 50000 --replacements 20

`random`: kill -9, SIGSTOP and SIGCONT, and planned updates of every process, in an order the seed decides. A killed
manager takes its clients' connections and what was under way on them; nothing else may be missing.
`update-under-load`: routers and dispatchers replaced in turn, half of them by kill -9; nothing may be missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from fairlead.errors import Unavailable
from fairlead.testing import Server
from tests.processes.numbered import Exchanges, Load, Result, holds, kill, states, update

PAUSE_S = (0.3, 2.0)  # between two injuries
STOPPED_S = (0.05, 2.0)  # how long a process is suspended; `frozen_s` is more
BASELINE_S = 3.0
UPDATE_SETTINGS: dict[str, Any] = {"limits.parked_s": 0.5}  # so that it is the standby that follows a killed one
SOAK_SETTINGS: dict[str, Any] = {"limits.frozen_s": 10}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


# --- Updates under load -----------------------------------------------------------------------------------------
@dataclass
class UpdateReport:
    """What came of it; `worst_before_ms` is the worst delay of a message before the first replacement."""

    connections: int
    seconds: float
    result: Result
    worst_before_ms: float
    pauses_ms: dict[str, list[float]]
    faults: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str]]:
        result = self.result
        pauses = {
            f"{name} {len(found)} times away, median and worst": f"{median(found):.1f} / {max(found):.1f} ms"
            for name, found in sorted(self.pauses_ms.items())
            if found
        }
        return [
            ("connections", f"{self.connections:,}"),
            ("messages sent", f"{result.sent:,} ({result.sent / self.seconds:,.0f} a second)"),
            ("lost", f"{result.lost:,}"),
            ("duplicated", f"{result.duplicated:,}"),
            ("out of order per publisher", f"{result.reordered:,}"),
            ("established connections dropped", f"{result.disconnected:,}"),
            *pauses.items(),
            ("worst delay of a message before the first replacement", f"{self.worst_before_ms:.0f} ms"),
            ("worst delay of a message across the replacements", f"{result.worst_ms:.0f} ms"),
            ("other faults", "; ".join(self.faults) or "none"),
        ]

    @property
    def is_clean(self) -> bool:
        return not any(self.result.faults) and not self.faults


async def update_under_load(server: Server, *, connections: int, rate: float, replacements: int) -> UpdateReport:
    """`replacements` of the router and as many of the dispatcher in a row, every second one by kill -9."""
    half = connections // 2
    before = await holds(server, lambda status: True)
    managers = sorted(pid for role, _, pid in states(before) if role == "manager")
    pauses: dict[str, list[float]] = {}
    async with Load(server.url, publishers=half, subscribers=connections - half, rate=rate) as load:
        began_s = time.monotonic()
        await asyncio.sleep(min(BASELINE_S, replacements / 2))
        worst_before_ms = load.forget_worst()
        for number in range(replacements):
            for role in ("router", "dispatcher"):
                if number % 2:
                    await kill(server, role, standby=True)
                else:
                    await update(server, role)
                record = (await holds(server, lambda status: bool(status["updates"])))["updates"][-1]
                how = "planned" if record["outcome"] == "done" else "kill -9"
                pauses.setdefault(f"{record['component']}, {how}:", []).append(record["pause_ms"])
        seconds = time.monotonic() - began_s
        result = await load.settle(30 + connections * 0.05)
    report = UpdateReport(connections, seconds, result, worst_before_ms, pauses)
    status = await holds(server, lambda found: found["stored"] == 0)
    report.faults += remains(status)
    if sorted(pid for role, _, pid in states(status) if role == "manager") != managers:
        report.faults.append("a manager was replaced")
    if sum(map(len, pauses.values())) != 2 * replacements:
        report.faults.append(f"{2 * replacements} replacements were asked for, {pauses} happened")
    return report


def remains(status: dict[str, Any]) -> list[str]:
    """What must be zero at the end, and is not."""
    return [f"{status[name]} {name}" for name in ("stored", "accounting_faults", "safety_tick_finds") if status[name]]


# --- Random injuries --------------------------------------------------------------------------------------------
class Torment:
    """Hurts a server again and again, as the seed says."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._random = random.Random(seed)
        self._deeds: list[tuple[int, str, Callable[[], Awaitable[None]]]] = [
            (4, "router kill -9", lambda: kill_and_wait(server, "router")),
            (4, "dispatcher kill -9", lambda: kill_and_wait(server, "dispatcher")),
            (2, "manager kill -9", lambda: kill_and_wait(server, "manager", self._random.random())),
            (3, "router stopped", lambda: self._stop("router")),
            (2, "dispatcher stopped", lambda: self._stop("dispatcher")),
            (3, "manager stopped", lambda: self._stop("manager")),
            (1, "supervisor stopped", lambda: self._stop("supervisor")),
            (4, "router updated", lambda: self._update("router")),
            (3, "dispatcher updated", lambda: self._update("dispatcher")),
            (2, "manager moved", self._move),
            (1, "supervisor kill -9", lambda: kill_supervisor(server)),
            (1, "supervisor executed anew", lambda: reexec(server)),
        ]

    async def run(self, until_s: float) -> None:
        weights = [weight for weight, _, _ in self._deeds]
        while time.monotonic() < until_s:
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            _, name, deed = self._random.choices(self._deeds, weights)[0]
            try:
                await asyncio.wait_for(deed(), 60)
                self.done[name] += 1
            except (AssertionError, Unavailable, TimeoutError, RuntimeError) as error:
                self.failed.append(f"{name}: {error!r:.300}")

    async def _stop(self, role: str) -> None:
        if role == "supervisor":
            assert self.server.process is not None
            pids = [self.server.process.pid]
        else:
            pids = await asyncio.to_thread(self.server.pids, role)
        pid = self._random.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self._random.uniform(*STOPPED_S))
            os.kill(pid, signal.SIGCONT)

    async def _update(self, component: str) -> None:
        await update(self.server, component)

    async def _move(self) -> None:
        managers = await asyncio.to_thread(self.server.pids, "manager")
        number = self._random.randrange(len(managers))
        await asyncio.to_thread(self.server.ask, "move", manager=number, timeout_s=60.0)


async def kill_and_wait(server: Server, role: str, share: float = 0.0) -> None:
    """kill -9, and wait until as many serve as before."""
    if role != "manager":
        await kill(server, role)
        return
    pids = await asyncio.to_thread(server.pids, role)
    victim = pids[int(share * len(pids))]
    os.kill(victim, signal.SIGKILL)
    await holds(
        server,
        lambda status: sum(one[:2] == (role, "active") and one[2] != victim for one in states(status)) == len(pids),
        30,
    )


async def kill_supervisor(server: Server) -> None:
    """kill -9 of the supervisor; another one adopts its children."""
    assert server.process is not None
    before = await asyncio.to_thread(server.pids, "manager")
    server.process.kill()
    await asyncio.to_thread(server.process.wait)
    await asyncio.to_thread(server.start)
    after = await asyncio.to_thread(server.pids, "manager")
    assert before == after, f"managers {before} became {after}"


async def reexec(server: Server) -> None:
    """The supervisor executes itself in place; back when it answers again and all children have reported."""
    count = len(states(await asyncio.to_thread(server.status, brief=True)))
    await update(server, "supervisor")

    async def again() -> bool:
        try:
            status = await asyncio.to_thread(server.status, brief=True)
        except (Unavailable, OSError):
            return False
        found = states(status)
        return ("supervisor", "serving") in {one[:2] for one in found} and len(found) >= min(count, 4)

    deadline_s = time.monotonic() + 15
    while not await again():
        assert time.monotonic() < deadline_s, "the supervisor did not come back"
        await asyncio.sleep(0.05)


@dataclass
class SoakReport:
    """How it ended: `faults` must be empty."""

    deeds: Counter[str]
    result: Result
    exchanges: Counter[str]
    errors: Counter[tuple[str, str]]
    given_up: int
    reconnects: int
    faults: list[str]

    def rows(self) -> list[tuple[str, str]]:
        result = self.result
        return [
            *((name, str(count)) for name, count in sorted(self.deeds.items())),
            ("broadcast sent / arrived", f"{result.sent:,} / {result.arrived:,}"),
            ("missing, all beside a lost connection", f"{result.lost:,}"),
            ("duplicated / out of order", f"{result.duplicated:,} / {result.reordered:,}"),
            ("connections lost and made again / moved", f"{self.reconnects:,} / {result.moved:,}"),
            ("messages the server gave up and logged", f"{self.given_up:,}"),
            *((f"{mode} done", f"{count:,}") for mode, count in sorted(self.exchanges.items())),
            *((f"{mode} ended in {code}", f"{count:,}") for (mode, code), count in sorted(self.errors.items())),
            ("faults", "; ".join(self.faults) or "none"),
        ]

    @property
    def is_clean(self) -> bool:
        return not self.faults


async def soak(server: Server, *, seconds: float, seed: int, connections: int, rate: float) -> SoakReport:
    """Random injuries for a while, under numbered traffic of all modes; then the books must balance."""
    half = connections // 2
    torment = Torment(server, seed)
    faults: list[str] = []
    async with (
        Load(server.url, publishers=half, subscribers=connections - half, rate=rate) as load,
        Exchanges(server.url) as exchanges,
    ):
        await torment.run(time.monotonic() + seconds)
        parties = [*load.publishers, *load.subscribers, *exchanges.parties]
        try:
            await load.all_connected(60)
            await asyncio.sleep(1.0)  # a last second in peace: from here on everything arrives
            await exchanges.settle()
            await load.settle(60)
        except (AssertionError, TimeoutError) as error:
            faults.append(f"it did not come to rest: {error!r}")
        result = load.result()
        faults += [*torment.failed, *exchanges.faults, *load.unexplained()]
        reconnects = sum(party.events["reconnected"] for party in parties)
        closed = sum(party.events["closed"] for party in parties)
    if closed:
        faults.append(f"{closed} clients gave up")
    if result.duplicated or result.reordered or exchanges.inbox.duplicated or exchanges.inbox.reordered:
        faults.append("messages were duplicated or out of order")
    try:
        status = await holds(server, lambda found: found["stored"] == 0, 20)
    except AssertionError:
        status = await asyncio.to_thread(server.status, brief=True)
    faults += remains(status)
    return SoakReport(
        torment.done, result, exchanges.done, exchanges.errors, status["messages_given_up"], reconnects, faults
    )


# --- The command ------------------------------------------------------------------------------------------------
def table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)])


def run(work: Any) -> Any:
    """On the faster loop if there is one: the load shall not be the bottleneck."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--scenario", choices=["random", "update-under-load"], default="random")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the random scenario")
    parser.add_argument("--seed", type=int, default=None, help="what happens when; another one each time if not given")
    parser.add_argument("--connections", type=int, default=None)
    parser.add_argument("--rate", type=float, default=None, help="messages a second")
    parser.add_argument("--managers", type=int, default=None)
    parser.add_argument(
        "--replacements", type=int, default=20, help="of router and of dispatcher, in update-under-load"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table of update-under-load to benchmarks/results"
    )
    options = parser.parse_args(arguments)
    if options.scenario == "update-under-load":
        connections, rate, managers = options.connections or 1000, options.rate or 50_000, options.managers or 2
        replay = (
            f"python -m tests.processes.soak --scenario update-under-load --connections {connections} --rate {rate:g} "
            f"--managers {managers} --replacements {options.replacements}"
        )
        with Server(managers=managers, **UPDATE_SETTINGS) as server:
            report: UpdateReport | SoakReport = run(
                update_under_load(server, connections=connections, rate=rate, replacements=options.replacements)
            )
        text = table(report.rows())
        if options.write:
            write(text, replay)
    else:
        seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
        connections, rate, managers = options.connections or 100, options.rate or 5_000, options.managers or 3
        replay = (
            f"python -m tests.processes.soak --minutes {options.minutes:g} --seed {seed} --connections {connections} "
            f"--rate {rate:g} --managers {managers}"
        )
        print(f"this run: {replay}", flush=True)
        with Server(managers=managers, **SOAK_SETTINGS) as server:
            report = run(soak(server, seconds=options.minutes * 60, seed=seed, connections=connections, rate=rate))
            if not report.is_clean:
                print((server.data / "log" / "fairlead.log").read_text()[-6000:])
        text = table(report.rows())
    print(text)
    print(f"\n{'clean' if report.is_clean else 'NOT CLEAN'}; again: {replay}")
    return 0 if report.is_clean else 1


def write(text: str, replay: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = f"{os.cpu_count()} cores, Linux, Python {platform.python_version()}"
    (RESULTS / "update-under-load.md").write_text(
        "# Updates under load\n\nRouter and dispatcher are replaced in turn, every second time by `kill -9`, while "
        f"numbered 64-byte messages flow;\neach is checked by its receiver. Load and server share {machine}; "
        f"{datetime.now(UTC):%Y-%m-%d}.\n\n{text}\n\nAgain: `{replay} --write`\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    sys.exit(main())
