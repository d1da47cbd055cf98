"""Kill -9 at random instants under mixed durable load; after every round the books must balance.

::

    python -m tests.processes.durable.crash --seed 1 --rounds 300
    python -m tests.processes.durable.crash --seed 1 --rounds 20 --way power    # the disk forgets what was not synced
    python -m tests.processes.durable.crash --seed 1 --seeds 9 --rounds 20 --way kills hurry freezes power --write
    python -m tests.processes.durable.crash --seed 1 --rounds 5 --plant lose_acknowledgements

Nothing confirmed is lost; nothing whose acknowledgement was confirmed comes back; what comes back is marked; order per
producer and key holds; transactions are whole; no command fails in a way nobody foresaw. The seed decides what is
killed and when; a run that failed is run again with the same seed (the processes' own timing is not replayed).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fairlead.errors import FairleadError, Unavailable
from fairlead.testing import Server
from tests.processes.durable import power
from tests.processes.durable.books import Faults
from tests.processes.durable.flows import FLOWS, Flow
from tests.processes.durable.plants import PLANTS, environment_of

ROUND_S: Final = (0.3, 1.2)
BACK_S: Final = 60.0  # until everything serves again, and what was confirmed has arrived
RESULTS: Final = Path(__file__).parents[3] / "benchmarks" / "results" / "durable-soak.md"
SETTINGS: Final[dict[str, Any]] = {
    "limits.frozen_s": 600,
    "messages.segment_bytes": 4 << 20,  # so that segments are sealed, recycled and compacted during a run
    "messages.checkpoint_bytes": 8 << 20,
}
MM: Final = "message-manager"
FROZEN_S: Final = (0.5, 7.0)
FREEZE: Final = "freeze "
"""Begins the names of victims that are stopped for a while, and go on."""


@dataclass(frozen=True)
class Way:
    """What is done to the server, how often of all, and when."""

    victims: dict[str, int]
    every_s: tuple[float, float] | None = None  # between two; else one to three at any instants of a round
    round_s: tuple[float, float] = ROUND_S


WAYS: Final = {
    "kills": Way({MM: 6, "manager": 2, "router": 1, "dispatcher": 1, "supervisor": 1, "everything": 1}),
    "hurry": Way({MM: 9, "manager": 1}, (0.05, 0.3), (1.0, 2.0)),
    "freezes": Way({f"{FREEZE}{MM}": 2, f"{FREEZE}manager": 3, MM: 1, "manager": 1}),
    "power": Way({"power": 3, MM: 1}),
}


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Crashes:
    """Kills, and waits until all is back."""

    def __init__(self, server: Server, disk: power.Disk | None = None) -> None:
        self.server = server
        self.disk = disk
        self.done: Counter[str] = Counter()

    async def kill(self, victim: str, chance: float) -> None:
        await asyncio.to_thread(self._kill, victim, chance)
        self.done[victim] += 1

    def _kill(self, victim: str, chance: float) -> None:
        server = self.server
        if victim == "supervisor":
            assert server.process is not None
            server.process.kill()
            server.process.wait()
            server.start()
        elif victim.startswith(FREEZE):
            self._freeze(victim.removeprefix(FREEZE), chance)
        elif victim in ("everything", "power"):
            self._kill_all()
            if victim == "power":
                assert self.disk is not None
                self.disk.lose_power(random.Random(chance))
            server.start()
        else:
            pids = self._pids(victim)
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[int(chance * len(pids))], signal.SIGKILL)

    def _freeze(self, role: str, chance: float) -> None:
        """It stands still for a while, as a process does whose host is busy, and knows nothing of it."""
        pids = self._pids(role)
        if pids:
            pid = pids[int(chance * len(pids))]
            low_s, high_s = FROZEN_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(low_s + (high_s - low_s) * chance**1.5)
                finally:
                    os.kill(pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        """No child may outlive the others and go on writing: first the supervisor, then all it had started."""
        process = self.server.process
        assert process is not None
        family = [pid for role in ("manager", "router", "dispatcher", MM) for pid in self._pids(role, None)]
        process.kill()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for pid in family:
            while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in _proc_status(pid):
                time.sleep(0.005)
        self.server.process = None

    def _pids(self, role: str, state: str | None = "active") -> list[int]:
        try:
            return self.server.pids(role, state)
        except (Unavailable, OSError):
            return []

    async def all_back(self, managers: int) -> None:
        """Every role serves again."""
        deadline_s = time.monotonic() + BACK_S
        while True:
            try:
                status = await asyncio.to_thread(self.server.status, brief=True)
                serving = Counter(one["role"] for one in status["components"] if one["state"] == "active")
                if serving[MM] == 1 and serving["manager"] == managers and serving["router"] == 1:
                    return
            except (Unavailable, OSError):
                serving = Counter()
            assert time.monotonic() < deadline_s, f"not back after {BACK_S:g} s: {serving}\n{self.server.output()}"
            await asyncio.sleep(0.05)


class EventsSeen:
    """Looks at what the message manager wrote into its log since the last time."""

    def __init__(self, data: Path) -> None:
        self._path = data / "log" / "events.jsonl"
        self._at = 0

    def look(self, faults: Faults) -> None:
        """A command that failed in a way nobody foresaw is a fault, though the server survives it."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._at:
                    self._at = 0  # another file has taken its place
                file.seek(self._at)
                lines = file.readlines()
        except OSError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the rest of it comes
            self._at += len(line)
            if b'"task-fault"' in line:
                faults.add("a command failed in the server", line.decode(errors="replace")[:3000])


def _proc_status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


@dataclass
class Report:
    """How a run ended."""

    seed: int
    way: str = "kills"
    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Faults = field(default_factory=Faults)
    slowest_back_s: float = 0.0

    @property
    def checked(self) -> int:
        """Messages whose way from sender to receiver was followed."""
        return sum(count for name, count in self.counts.items() if name.endswith(" received"))

    def add(self, other: Report) -> None:
        """Another run, to be told of together with this one."""
        self.rounds += other.rounds
        self.kills += other.kills
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        self.errors += other.errors
        self.faults.found += other.faults.found
        self.faults.counts += other.faults.counts
        self.slowest_back_s = max(self.slowest_back_s, other.slowest_back_s)

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("rounds", str(self.rounds)),
            *((_said(victim), f"{count:,}") for victim, count in sorted(self.kills.items())),
            ("messages checked", f"{self.checked:,}"),
            *((name, f"{count:,}") for name, count in sorted(self.counts.items())),
            *((f"told to the application: {name}", f"{count:,}") for name, count in sorted(self.errors.items())),
            ("longest time until all had arrived", f"{self.slowest_back_s:.1f} s"),
            ("faults", "; ".join(f"{what} ({count})" for what, count in self.faults.counts.items()) or "none"),
        ]


def _said(victim: str) -> str:
    if victim == "power":
        return "loss of power"
    return f"SIGSTOP: {victim.removeprefix(FREEZE)}" if victim.startswith(FREEZE) else f"kill -9: {victim}"


async def crash(
    server: Server,
    *,
    seed: int,
    rounds: int,
    managers: int = 2,
    names: tuple[str, ...] = tuple(FLOWS),
    way: str = "kills",
    victims: dict[str, int] | None = None,
    disk: power.Disk | None = None,
    patience_s: float = BACK_S,
    say: bool = False,
    stop_at_fault: bool = True,
) -> Report:
    """So many rounds of load with kills in it, each with its books balanced at its end. `victims`: other ones."""
    report = Report(seed, way)
    ways = replace(WAYS[way], victims=victims) if victims else WAYS[way]
    crashes, events = Crashes(server, disk), EventsSeen(server.data)
    flows: list[Flow] = [FLOWS[name](server.url, str(seed), report.faults) for name in names]
    try:
        for flow in flows:
            await flow.start()
        for number in range(rounds):
            chance = random.Random(f"{seed}/{number}")
            await one_round(crashes, flows, chance, ways)
            began_s = time.monotonic()
            await crashes.all_back(managers)
            await balance(flows, report.faults, patience_s)
            events.look(report.faults)
            report.slowest_back_s = max(report.slowest_back_s, time.monotonic() - began_s)
            report.rounds += 1
            if say:
                print(f"seed {seed} {way} round {number}: {report.faults.found or 'balanced'}", flush=True)
            if report.faults and stop_at_fault:
                break
    except (AssertionError, TimeoutError, FairleadError) as error:
        report.faults.add("it did not go on", f"{type(error).__name__}: {error}"[-6000:])
    finally:
        await asyncio.gather(*(asyncio.wait_for(flow.close(), 20) for flow in flows), return_exceptions=True)
    report.kills = crashes.done
    for flow in flows:
        report.counts |= flow.counts()
        report.errors += flow.errors
    return report


async def one_round(crashes: Crashes, flows: list[Flow], chance: random.Random, way: Way) -> None:
    """Load for a while, with kills at instants the seed decides."""
    lasts_s = chance.uniform(*way.round_s)
    instants: list[float] = []
    if way.every_s is None:
        instants = sorted(chance.uniform(0, lasts_s) for _ in range(chance.randint(1, 3)))
    else:
        at_s = chance.uniform(*way.every_s)
        while at_s < lasts_s:
            instants.append(at_s)
            at_s += chance.uniform(*way.every_s)
    for flow in flows:
        flow.go.set()
    began_s = time.monotonic()
    for instant_s in instants:
        await asyncio.sleep(max(0.0, began_s + instant_s - time.monotonic()))
        victim = chance.choices(list(way.victims), list(way.victims.values()))[0]
        await crashes.kill(victim, chance.random())
    await asyncio.sleep(max(0.0, began_s + lasts_s - time.monotonic()))


async def balance(flows: list[Flow], faults: Faults, patience_s: float) -> None:
    """Come to rest, wait for what is still on the way, and look at everything."""
    await asyncio.gather(*(flow.rest() for flow in flows))
    deadline_s = time.monotonic() + patience_s
    while missing := [one for flow in flows for one in flow.missing()]:
        if time.monotonic() > deadline_s or faults.counts["a client ended"]:
            for one in missing[:20]:
                faults.add("confirmed and lost", one)
            break
        await asyncio.sleep(0.02)
    for flow in flows:
        await flow.check()


# --- The command ------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def server_for(*, managers: int = 2, plant: str = "", with_disk: bool = False) -> Iterator[tuple[Server, Any]]:
    """A server on a port that stays the same, perhaps with a planted bug, perhaps on a recorded disk."""
    with tempfile.TemporaryDirectory(prefix="fairlead-crash-") as place:
        data = Path(place) / "data"
        data.mkdir()
        disk = power.Disk(data / "mm-0", Path(place)) if with_disk else None
        environment = environment_of(plant) if plant else {}
        if disk is not None:
            environment |= disk.environment
        server = Server(
            managers=managers,
            listen=f"127.0.0.1:{free_port()}",
            data=data,
            environment=environment,
            **SETTINGS,
        )
        with server:
            yield server, disk


def run(seed: int, rounds: int, *, way: str = "kills", plant: str = "", managers: int = 2, **options: Any) -> Report:
    with server_for(plant=plant, managers=managers, with_disk=way == "power") as (server, disk):
        options |= {"seed": seed, "rounds": rounds, "way": way, "managers": managers}
        return asyncio.run(crash(server, disk=disk, **options))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.durable.crash", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="another one each time if not given")
    parser.add_argument(
        "--seeds", type=int, default=1, help="so many seeds from this one on, each on a server of its own"
    )
    parser.add_argument("--rounds", type=int, default=50, help="of each seed and way")
    parser.add_argument("--way", nargs="+", choices=list(WAYS), default=["kills"], help="what is done to the server")
    parser.add_argument("--power", action="store_const", dest="way", const=["power"], help="the same as --way power")
    parser.add_argument("--flows", nargs="+", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--plant", choices=list(PLANTS), default="", help="start the server with this bug")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first fault")
    parser.add_argument("--write", action="store_true", help=f"add the result to {RESULTS.name}")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    command = replay_of(options, seed)
    print(command, flush=True)
    began_s = time.monotonic()
    reports: dict[str, Report] = {}
    for number, way in ((number, way) for number in range(seed, seed + options.seeds) for way in options.way):
        report = run(
            number,
            options.rounds,
            way=way,
            plant=options.plant,
            names=tuple(options.flows),
            say=True,
            stop_at_fault=not options.go_on,
        )
        if way in reports:
            reports[way].add(report)
        else:
            reports[way] = report
        if report.faults and not options.go_on:
            break
    text = "\n\n".join(table(way, report) for way, report in reports.items())
    print(text)
    for report in reports.values():
        for fault in report.faults.found:
            print(fault)
    if options.write:
        write(text, command, time.monotonic() - began_s)
    return 1 if any(report.faults for report in reports.values()) else 0


def replay_of(options: argparse.Namespace, seed: int) -> str:
    """The command that does the same again."""
    command = f"python -m tests.processes.durable.crash --seed {seed}"
    command += f" --seeds {options.seeds}" if options.seeds > 1 else ""
    command += f" --rounds {options.rounds}"
    command += f" --way {' '.join(options.way)}" if options.way != ["kills"] else ""
    command += f" --plant {options.plant}" if options.plant else ""
    command += f" --flows {' '.join(options.flows)}" if options.flows != list(FLOWS) else ""
    return command + (" --go-on" if options.go_on else "")


def table(way: str, report: Report) -> str:
    return "\n".join([f"| {way} | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in report.rows())])


def write(text: str, command: str, seconds: float) -> None:
    """Add this run to the kept results."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    head = "" if RESULTS.exists() else "# Crashes under durable load\n\nEvery run that was kept, the newest last.\n"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(
            f"{head}\n## {when} UTC\n\n`{command}`, commit {commit}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores, {seconds:.0f} s\n\n{text}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
