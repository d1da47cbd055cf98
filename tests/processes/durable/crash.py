"""Kill -9 at random instants under mixed durable load; after every round the books must balance.

::

    python -m tests.processes.durable.crash --seed 1 --rounds 300
    python -m tests.processes.durable.crash --seed 1 --rounds 20 --power     # the disk forgets what was not synced
    python -m tests.processes.durable.crash --seed 1 --rounds 5 --plant lose_acknowledgements

Nothing confirmed is lost; nothing whose acknowledgement was confirmed comes back; what comes back is marked; order per
producer and key holds; transactions are whole. The seed decides what is killed and when; a run that failed is run again
with the same seed (the processes' own timing is not replayed).
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
from dataclasses import dataclass, field
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
VICTIMS: Final = {"message-manager": 6, "manager": 2, "router": 1, "supervisor": 1, "everything": 1}
MM: Final = "message-manager"


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


def _proc_status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


@dataclass
class Report:
    """How a run ended."""

    seed: int
    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Faults = field(default_factory=Faults)
    slowest_back_s: float = 0.0

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("seed", str(self.seed)),
            ("rounds", str(self.rounds)),
            *((f"kill -9: {victim}", f"{count:,}") for victim, count in sorted(self.kills.items())),
            *((name, f"{count:,}") for name, count in sorted(self.counts.items())),
            *((f"told to the application: {name}", f"{count:,}") for name, count in sorted(self.errors.items())),
            ("longest time until all had arrived", f"{self.slowest_back_s:.1f} s"),
            ("faults", "; ".join(f"{what} ({count})" for what, count in self.faults.counts.items()) or "none"),
        ]


async def crash(
    server: Server,
    *,
    seed: int,
    rounds: int,
    managers: int = 2,
    names: tuple[str, ...] = tuple(FLOWS),
    victims: dict[str, int] | None = None,
    disk: power.Disk | None = None,
    say: bool = False,
    stop_at_fault: bool = True,
) -> Report:
    """So many rounds of load with kills in it, each with its books balanced at its end."""
    report = Report(seed)
    crashes = Crashes(server, disk)
    flows: list[Flow] = [FLOWS[name](server.url, str(seed), report.faults) for name in names]
    try:
        for flow in flows:
            await flow.start()
        for number in range(rounds):
            chance = random.Random(f"{seed}/{number}")
            await one_round(crashes, flows, chance, victims or VICTIMS)
            began_s = time.monotonic()
            await crashes.all_back(managers)
            await balance(flows, report.faults)
            report.slowest_back_s = max(report.slowest_back_s, time.monotonic() - began_s)
            report.rounds += 1
            if say:
                print(f"seed {seed} round {number}: {report.faults.found or 'balanced'}", flush=True)
            if report.faults and stop_at_fault:
                break
    except (AssertionError, TimeoutError, FairleadError) as error:
        report.faults.add("it did not go on", f"{error!r:.1500}")
    finally:
        await asyncio.gather(*(asyncio.wait_for(flow.close(), 20) for flow in flows), return_exceptions=True)
    report.kills = crashes.done
    for flow in flows:
        report.counts |= flow.counts()
        report.errors += flow.errors
    return report


async def one_round(crashes: Crashes, flows: list[Flow], chance: random.Random, victims: dict[str, int]) -> None:
    """Load for a while, with one to three kills at instants the seed decides."""
    lasts_s = chance.uniform(*ROUND_S)
    instants = sorted(chance.uniform(0, lasts_s) for _ in range(chance.randint(1, 3)))
    for flow in flows:
        flow.go.set()
    began_s = time.monotonic()
    for instant_s in instants:
        await asyncio.sleep(max(0.0, began_s + instant_s - time.monotonic()))
        victim = chance.choices(list(victims), list(victims.values()))[0]
        await crashes.kill(victim, chance.random())
    await asyncio.sleep(max(0.0, began_s + lasts_s - time.monotonic()))


async def balance(flows: list[Flow], faults: Faults) -> None:
    """Come to rest, wait for what is still on the way, and look at everything."""
    await asyncio.gather(*(flow.rest() for flow in flows))
    deadline_s = time.monotonic() + BACK_S
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


def run(seed: int, rounds: int, *, plant: str = "", with_power: bool = False, **options: Any) -> Report:
    with server_for(plant=plant, with_disk=with_power) as (server, disk):
        victims = {"power": 3, MM: 1} if with_power else None
        return asyncio.run(crash(server, seed=seed, rounds=rounds, victims=victims, disk=disk, **options))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.durable.crash", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="another one each time if not given")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--flows", nargs="+", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--power", action="store_true", help="the disk forgets what was not synced")
    parser.add_argument("--plant", choices=list(PLANTS), default="", help="start the server with this bug")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first fault")
    parser.add_argument("--write", action="store_true", help=f"add the result to {RESULTS.name}")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    replay = f"python -m tests.processes.durable.crash --seed {seed} --rounds {options.rounds}"
    replay += " --power" if options.power else ""
    replay += f" --plant {options.plant}" if options.plant else ""
    if options.flows != list(FLOWS):
        replay += f" --flows {' '.join(options.flows)}"
    print(replay, flush=True)
    began_s = time.monotonic()
    report = run(
        seed,
        options.rounds,
        plant=options.plant,
        with_power=options.power,
        names=tuple(options.flows),
        say=True,
        stop_at_fault=not options.go_on,
    )
    text = "\n".join(["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in report.rows())])
    print(text)
    for fault in report.faults.found:
        print(fault)
    if options.write:
        write(text, replay, time.monotonic() - began_s)
    return 1 if report.faults else 0


def write(text: str, replay: str, seconds: float) -> None:
    """Add this run to the kept results."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    head = "" if RESULTS.exists() else "# Crashes under durable load\n\nEvery run that was kept, the newest last.\n"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(
            f"{head}\n## {when} UTC\n\n`{replay}`, commit {commit}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores, {seconds:.0f} s\n\n{text}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
