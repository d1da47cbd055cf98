"""A whole cluster of processes is hurt under load; after every round all groups are whole and the books balance.

::

    python -m tests.processes.cluster.crashing --seed 1 --rounds 100
    python -m tests.processes.cluster.crashing --seed 1 --rounds 20 --hurt kill-primary,freeze-primary --members 2
    python -m tests.processes.cluster.crashing --seed 1 --rounds 30 --plant confirm_alone

Nothing confirmed is lost; what comes back is marked; order per producer holds; commits across groups are whole; no
send hangs; every copy is in sync again and equal to the others. The seed decides what is hurt and when; the processes'
own timing is not replayed.
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
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fairlead.cluster.configuration.overview import differing
from fairlead.errors import FairleadError, Unavailable
from fairlead.testing.cluster import Cluster
from tests.processes.cluster.hurting import HURTS, ON_DISKS, Hurt, Hurting
from tests.processes.cluster.load import Pulse, flows_for, pins_of
from tests.processes.cluster.plants import PLANTS, environment_of
from tests.processes.cluster.report import Report
from tests.processes.durable.books import Faults
from tests.processes.durable.flows import Flow

WHOLE_S: Final = 60.0  # until every copy of every group is in sync again
ARRIVED_S: Final = 30.0  # from then on, until what was confirmed has arrived
BEFORE_S: Final = (0.2, 1.0)
AFTER_S: Final = 0.4
SCRUB_EVERY: Final = 3  # rounds
RESULTS: Final = Path(__file__).parents[3] / "benchmarks" / "results" / "cluster-soak.md"
WEIGHTS: Final = dict.fromkeys(HURTS, 1) | {"kill-primary": 3, "freeze-primary": 2, "cut-primary": 2}


class Watching:
    """What the nodes say: whether all is whole, whether the copies are equal, whether one failed by itself."""

    def __init__(self, cluster: Cluster, groups: list[str], members: list[str]) -> None:
        self.cluster, self.groups, self.members = cluster, groups, members
        self._read: dict[Path, int] = {}

    def missing(self) -> str:
        """What is not whole yet, in words."""
        try:
            status = self.cluster.status()
        except Unavailable as error:
            return str(error)
        if len(status["nodes"]) < len(self.cluster.nodes):
            return f"only {[node['node'] for node in status['nodes']]} answer"
        for node in status["nodes"]:
            if node["state"] != "checked":
                return f"{node['node']}: {node['state']}"
        found = {group["group"]: group for group in status["groups"]}
        for name in self.groups:
            group = found.get(name)
            if group is None or not group["primary"]:
                return f"group {name} has no primary: {group}"
            if len(group["in_sync"]) < len(self.members):
                return f"group {name} has only {group['in_sync']} in sync: {group['members']}"
        return ""

    def wait_whole(self, faults: Faults) -> None:
        until_s = time.monotonic() + WHOLE_S
        while missing := self.missing():
            if time.monotonic() > until_s:
                faults.add("not whole again", missing)
                return
            time.sleep(0.2)

    def scrub(self, faults: Faults, counts: Counter[str]) -> None:
        """Everything on disk is as it was written, and all copies of a group are in the same state."""
        for group in self.groups:
            for _ in range(5):
                answers = self.cluster.ask("scrub", self.members, group=group)["nodes"]
                for node, answer in answers.items():
                    if answer.get("damage") or not answer.get("ok", True):
                        faults.add("damage", f"group {group} on {node}: {answer}"[:600])
                names = differing(answers) if len(answers) == len(self.members) else None
                if names is not None:
                    counts["scrubs"] += 1
                    if names:
                        faults.add("copies differ", f"group {group}: {names}, {answers}"[:3000])
                    break
                time.sleep(0.3)
            else:
                counts["scrubs without comparison"] += 1

    def look(self, faults: Faults) -> None:
        """Tracebacks of a node, and commands that failed in a way nobody foresaw."""
        for path in self.cluster.directory.glob("*/output.txt"):
            for line in self._fresh(path):
                if line.startswith(b"Traceback") or b"AssertionError" in line or b"not started again" in line:
                    faults.add("a node failed", f"{path.parent.name}: {self.cluster.output(path.parent.name)}"[-2500:])
                    break
        for path in self.cluster.directory.glob("*/data/**/events.jsonl"):
            for line in self._fresh(path):
                if b'"task-fault"' in line:
                    faults.add("a command failed in the server", line.decode(errors="replace")[:3000])

    def _fresh(self, path: Path) -> list[bytes]:
        """Lines that were written since we looked last."""
        try:
            with path.open("rb") as file:
                file.seek(min(self._read.get(path, 0), path.stat().st_size))
                lines = file.readlines()
                self._read[path] = file.tell()
                return lines
        except OSError:
            return []


async def crash(
    cluster: Cluster,
    *,
    seed: int,
    rounds: int,
    hurts: list[str],
    plan: list[list[str]] | None = None,
    say: bool = False,
    stop_at_fault: bool = True,
) -> Report:
    """So many rounds, each with its books balanced at its end. `plan`: what is done in each, instead of chance."""
    report = Report(seed)
    groups = cluster.local.groups()
    members = [name for name in cluster.nodes if name.startswith("mm")]
    hurting, watching = Hurting(cluster, groups, members), Watching(cluster, groups, members)
    flows = flows_for(cluster.urls(), groups, str(seed), report.faults)
    try:
        await asyncio.to_thread(watching.wait_whole, report.faults)
        await asyncio.gather(*(flow.start() for flow in flows))
        for number in range(rounds):
            chance = random.Random(f"{seed}/{number}")
            chosen = plan[number] if plan else choose(hurts, chance)
            done = await one_round(hurting, watching, flows, chosen, chance, report)
            await balance(flows, report.faults)
            if number % SCRUB_EVERY == SCRUB_EVERY - 1 or number == rounds - 1:
                await asyncio.to_thread(watching.scrub, report.faults, report.counts)
            watching.look(report.faults)
            report.rounds += 1
            if say:
                words = ", ".join(f"{one.what} {one.group}/{one.node}" for one in done)
                waited = f", clients waited {done[0].waited_s:.2f} s" if len(done) == 1 else ""
                print(f"seed {seed} round {number}: {words}{waited}: {report.faults.found or 'balanced'}", flush=True)
            if report.faults and stop_at_fault:
                break
    except (AssertionError, TimeoutError, FairleadError, OSError) as error:
        report.faults.add("it did not go on", f"{type(error).__name__}: {error}"[-4000:])
    finally:
        await asyncio.to_thread(hurting.heal)
        await asyncio.gather(*(asyncio.wait_for(flow.close(), 20) for flow in flows), return_exceptions=True)
    for flow in flows:
        report.counts.update(flow.counts())
        report.errors += flow.errors
    return report


def choose(hurts: list[str], chance: random.Random) -> list[str]:
    """One thing mostly; two at once now and then."""
    count = 2 if chance.random() < 0.25 else 1
    return chance.choices(hurts, [WEIGHTS[name] for name in hurts], k=count)


async def one_round(
    hurting: Hurting, watching: Watching, flows: list[Flow], chosen: list[str], chance: random.Random, report: Report
) -> list[Hurt]:
    """Load, with what was chosen done to the cluster, until everything is whole again."""
    for flow in flows:
        flow.go.set()
    await asyncio.sleep(chance.uniform(*BEFORE_S))
    chances = [random.Random(chance.random()) for _ in chosen]
    gap_s = chance.uniform(0, 1.5)

    async def do(index: int) -> Hurt | None:
        await asyncio.sleep(index * gap_s)
        return await asyncio.to_thread(hurting.do, chosen[index], chances[index])

    found = await asyncio.gather(*(do(index) for index in range(len(chosen))))
    done = [hurt for hurt in found if hurt is not None]
    began_s = time.monotonic()
    await asyncio.sleep(AFTER_S)
    await asyncio.to_thread(hurting.heal)
    await asyncio.to_thread(watching.wait_whole, report.faults)
    report.whole_s.append(time.monotonic() - began_s)
    for hurt in done:
        report.hurts[hurt.what] += 1
    await asyncio.gather(*(flow.rest() for flow in flows))
    if len(done) == 1:
        note_pauses(done[0], flows, report)
    return done


def note_pauses(hurt: Hurt, flows: list[Flow], report: Report) -> None:
    """The longest wait in the group that was hurt; all groups, if that node led several."""
    pulses = [flow for flow in flows if isinstance(flow, Pulse)]
    longest_s = max(pulse.longest_s(hurt.at_s, time.monotonic()) for pulse in pulses if pulse.place.group == hurt.group)
    hurt.waited_s = longest_s
    report.pause(hurt.what, longest_s, hurt.budget_s)
    for pulse in pulses:
        pulse.beats.clear()


async def balance(flows: list[Flow], faults: Faults) -> None:
    """Wait for what is still on the way, and look at everything."""
    deadline_s = time.monotonic() + ARRIVED_S
    while missing := [one for flow in flows for one in flow.missing()]:
        if time.monotonic() > deadline_s or faults.counts["a client ended"]:
            for one in missing[:20]:
                faults.add("confirmed and lost", one)
            break
        await asyncio.sleep(0.05)
    for flow in flows:
        await flow.check()


# --- The command --------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def cluster_for(
    *, members: int = 3, groups: int = 2, plant: str = "", with_disk: bool = False, directory: Path | None = None
) -> Iterator[Cluster]:
    """Two client managers, so many members that host all groups, perhaps with a planted bug, perhaps on bad disks."""
    letters = [chr(ord("a") + number) for number in range(groups)]
    nodes = [f"mm{number}" for number in range(1, members + 1)]
    pins = pins_of(letters)
    settings: dict[str, Any] = {
        "groups": [{"name": letter, "members": nodes, "pins": pins[letter]} for letter in letters],
        "messages": {"segment_bytes": 1 << 20, "checkpoint_bytes": 4 << 20},
    }
    cluster = Cluster(
        cms=2, groups=groups, backups=members - 1, faults=True, settings=settings, directory=directory
    )  # fmt: skip
    before = dict(os.environ)
    os.environ.update(environment_of(plant, with_disk=with_disk))
    try:
        with cluster:
            yield cluster
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(
    seed: int, rounds: int, hurts: list[str], *, members: int = 3, groups: int = 2, plant: str = "", **options: Any
) -> Report:
    with_disk = any(name in ON_DISKS for name in hurts)
    directory = options.pop("directory", None)
    with cluster_for(
        members=members, groups=groups, plant=plant, with_disk=with_disk, directory=directory
    ) as cluster:  # fmt: skip
        return asyncio.run(crash(cluster, seed=seed, rounds=rounds, hurts=hurts, **options))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.processes.cluster.crashing", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=None, help="another one each time if not given")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--hurt", default=",".join(HURTS), help="what is done, by commas; all: %(default)s")
    parser.add_argument("--plant", choices=list(PLANTS), default="", help="start the nodes with this bug")
    parser.add_argument("--members", type=int, default=3, help="copies of each group")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where the cluster's files are, and stay")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first fault")
    parser.add_argument("--write", action="store_true", help=f"add the result to {RESULTS.name}")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    hurts = options.hurt.split(",")
    if strange := sorted(set(hurts) - HURTS.keys()):
        parser.error(f"unknown: {', '.join(strange)}; there are {', '.join(HURTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no node is left behind
    command = replay_of(options, seed)
    print(command, flush=True)
    began_s = time.monotonic()
    report = run(
        seed,
        options.rounds,
        hurts,
        members=options.members,
        groups=options.groups,
        plant=options.plant,
        directory=options.directory,
        say=True,
        stop_at_fault=not options.go_on,
    )
    print(report.table())
    for fault in report.faults.found:
        print(fault)
    if options.write:
        write(report.table(), command, time.monotonic() - began_s)
    return 1 if report.faults else 0


def replay_of(options: argparse.Namespace, seed: int) -> str:
    """The command that does the same again."""
    command = f"python -m tests.processes.cluster.crashing --seed {seed} --rounds {options.rounds}"
    command += f" --hurt {options.hurt}" if options.hurt != ",".join(HURTS) else ""
    command += f" --plant {options.plant}" if options.plant else ""
    command += f" --members {options.members}" if options.members != 3 else ""
    command += f" --groups {options.groups}" if options.groups != 2 else ""
    return command + (" --go-on" if options.go_on else "")


def write(text: str, command: str, seconds: float) -> None:
    """Add this run to the kept results."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(
            f"\n## {when} UTC\n\n`{command}`, commit {commit}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores, {seconds:.0f} s\n\n{text}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
