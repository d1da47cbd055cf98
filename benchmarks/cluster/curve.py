"""A simulated curve: what more nodes would bring on hosts of their own, from what a message costs one process.

    python -m benchmarks.cluster.curve [--rows FILE] [--bus-mbit 10000 …] [--png FILE] [--out FILE]

`--rows`: the JSON of `scaling.py --json`; without it the figures below, which are from `results/cluster-scaling.md`.

The model, and nothing else is in it: every node has one core. A client manager's node spends the time of its connection
manager and its agent on each message, a primary's and a backup's node that of their process; clients have cores
enough. Batches of 64 come from a producer with 512 messages under way, pass client manager, bus, primary and all
backups at once (confirm and delivery are in the costs), and a confirm needs 2 copies. Every hop takes 50 µs besides, a
disk's sync 500 µs, during which the core is free. One bus, of so many bits a second, carries the bytes that were
counted on the real one, in turn. Units share the bus and nothing else. What it leaves out: more connections than one to
a client manager, contention in hosts, switches with lines of their own (a bus here is one shared line), loss, failures.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BATCH = 64
WINDOW = 512
HOP_S = 50e-6
SYNC_S = 500e-6
UNITS = (1, 2, 4, 8, 16, 32)
COPIES = (1, 2, 3, 4)


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU per message, and bytes on the bus per message, for one number of copies."""

    manager_s: float  # connection manager and agent together: they are one node
    primary_s: float
    backup_s: float
    bus_bytes: float


@dataclass
class Point:
    """What one simulation gave."""

    units: int
    copies: int
    nodes: int
    per_s: float
    manager: float  # shares of a core that were used
    primary: float
    backup: float
    bus: float


class Station:
    """Something that does one thing after the other."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0

    def serve(self, at_s: float, work_s: float) -> float:
        """When it is done with what comes then."""
        begun_s = max(at_s, self.free_s)
        self.free_s = begun_s + work_s
        self.busy_s += work_s
        return self.free_s


class Unit:
    """A client manager and a group. A batch is told each of its steps as its time comes."""

    def __init__(self, copies: int, costs: Costs, bus: Station, bus_bytes_s: float) -> None:
        self.manager, self.primary = Station(), Station()
        self.backups = [Station() for _ in range(copies - 1)]
        self.done = 0
        self._costs = costs
        self._bus, self._bus_s = bus, BATCH * costs.bus_bytes / bus_bytes_s

    def step(self, number: int, now_s: float) -> float:
        """When the next step is; behind the last one the producer sends the next batch."""
        costs = self._costs
        if number == 0:
            return self.manager.serve(now_s, BATCH * costs.manager_s) + HOP_S
        if number == 1:
            return self._bus.serve(now_s, self._bus_s)
        if number == 2:
            return self.primary.serve(now_s, BATCH * costs.primary_s)
        stored = [one.serve(now_s + HOP_S, BATCH * costs.backup_s) + SYNC_S + HOP_S for one in self.backups]
        self.done += BATCH
        return max(now_s + SYNC_S, min(stored, default=0.0)) + 2 * HOP_S


STEPS = 4


def simulate(units: int, copies: int, costs: Costs, bus_bytes_s: float, until_s: float = 1.0) -> Point:
    """So many units at full load for so long, with one bus for all."""
    bus = Station()
    all_units = [Unit(copies, costs, bus, bus_bytes_s) for _ in range(units)]
    waiting = [(0.0, 0, number) for number in range(units) for _ in range(WINDOW // BATCH)]
    heapq.heapify(waiting)
    while waiting[0][0] < until_s:
        now_s, step, number = heapq.heappop(waiting)
        heapq.heappush(waiting, (all_units[number].step(step, now_s), (step + 1) % STEPS, number))
    first = all_units[0]
    return Point(
        units,
        copies,
        units * (1 + copies),
        sum(unit.done for unit in all_units) / until_s,
        _share(first.manager, until_s),
        _share(first.primary, until_s),
        _share(first.backups[0], until_s) if first.backups else 0.0,
        _share(bus, until_s),
    )


def _share(station: Station, until_s: float) -> float:
    return min(1.0, station.busy_s / until_s)


def costs_of(rows: Sequence[dict[str, object]], carrier: str = "tcp") -> dict[int, Costs]:
    """By number of copies, from the rows `copies` of `scaling.py`."""
    found = {}
    for row in rows:
        if row["carrier"] == carrier:
            spent = row["cpu_us"]
            assert isinstance(spent, dict)
            found[int(str(row["members"]))] = Costs(
                (spent["connection manager"] + spent["agent"]) / 1e6,
                spent["primary"] / 1e6,
                spent.get("backup", 0.0) / 1e6,
                float(str(row["bus_bytes"])),
            )
    return found


# By number of copies, carrier tcp, measured with `scaling.py`; see results/cluster-scaling.md.
MEASURED: dict[int, Costs] = {
    1: Costs(manager_s=6.5e-6, primary_s=9.0e-6, backup_s=0.0, bus_bytes=2084),
    2: Costs(manager_s=6.5e-6, primary_s=15.0e-6, backup_s=9.5e-6, bus_bytes=3129),
    3: Costs(manager_s=8.5e-6, primary_s=18.0e-6, backup_s=10.0e-6, bus_bytes=4175),
    4: Costs(manager_s=7.5e-6, primary_s=17.5e-6, backup_s=9.8e-6, bus_bytes=5221),
}


def table(points: Sequence[Point]) -> str:
    lines = [
        "| units | copies | nodes | messages/s | per unit | client manager | primary | backup | bus |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in points:
        shares = " | ".join(f"{100 * share:.0f} %" for share in (one.manager, one.primary, one.backup, one.bus))
        lines.append(
            f"| {one.units} | {one.copies} | {one.nodes} | {one.per_s:,.0f} | {one.per_s / one.units:,.0f} | {shares} |"
        )
    return "\n".join(lines)


def draw(path: Path, curves: dict[str, list[Point]]) -> bool:
    """A picture, if matplotlib is there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), dpi=120)
    axes = figure.add_subplot()
    for name, points in curves.items():
        axes.plot([one.units for one in points], [one.per_s for one in points], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("units of one client manager and one group")
    axes.set_ylabel("messages of 1 KiB per second (simulated)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--bus-mbit", type=float, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--png", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    costs = costs_of(json.loads(options.rows.read_text())["copies"]) if options.rows else MEASURED
    curves: dict[str, list[Point]] = {}
    text = f"{(__doc__ or '').split(chr(10) * 2)[3]}\n"
    for mbit in options.bus_mbit:
        rate = mbit * 1e6 / 8
        name = f"bus of {mbit / 1000:g} Gbit/s"
        curves[f"2 copies, {name}"] = [simulate(units, 2, costs[2], rate) for units in UNITS]
        other = [simulate(1, copies, costs[copies], rate) for copies in COPIES if copies in costs]
        text += f"\n### {name}\n\n{table(curves[f'2 copies, {name}'])}\n\n{table(other)}\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    if options.png and not draw(options.png, curves):
        print("matplotlib is not installed: no picture")


if __name__ == "__main__":
    main()
