"""Placing connections, look-ups and picks, in one run.

    python -m benchmarks.directory.measure                                      # everything, some minutes
    python -m benchmarks.directory.measure --scale 0.05 --seconds 1 --out DIR   # a quick look

Writes `directory.md` and `directory.json`. See README.md for what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.directory.scenarios import asking, placing
from fairlead.runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
OUTSTANDING = (1, 8, 64)
CLIENTS = 8  # of each application


def loop_ms() -> float:
    """How fast is this machine just now? A fixed piece of work."""
    began = time.process_time()
    sum(number * number for number in range(1_000_000))
    return round((time.process_time() - began) * 1000, 1)


def measure(scale: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Every scenario once."""
    connections, applications = max(40, round(2000 * scale)), max(4, round(20 * min(1.0, scale * 5)))
    for placement in ("decentralised", "centralised"):
        yield _beside(placing(placement, connections, applications, CLIENTS))
    for scenario in ("look-ups", "picks"):
        for row in asking(scenario, OUTSTANDING, seconds):
            yield _beside(row)


def _beside(row: dict[str, Any]) -> dict[str, Any]:
    """With how the machine was just then."""
    return {"loop_ms": loop_ms(), "load": round(os.getloadavg()[0], 1), **row}


def middle(rows: list[dict[str, Any]], key: str, digits: int = 0) -> str:
    """Median (lowest–highest)."""
    numbers = [row[key] for row in rows]
    texts = [f"{one:,.{digits}f}" for one in (statistics.median(numbers), min(numbers), max(numbers))]
    return texts[0] if len(numbers) == 1 else f"{texts[0]} ({texts[1]}–{texts[2]})"


def table(rows: list[dict[str, Any]]) -> str:
    """Both tables of the page."""
    lines = [
        "| heuristic | connections | applications | clients of each | connected/s | p50 ms | p99 ms | all rows after s "
        "| at A, B, C, D, E | worst application, max − min | CPU s: brokers, directory, client |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for placement in ("decentralised", "centralised"):
        found = [row for row in rows if row.get("placement") == placement]
        last = found[-1]
        cells = [placement, f"{last['connections']:,}", str(last["applications"]), str(last["clients"])]
        cells.append(middle(found, "per_s"))
        cells += [middle(found, "p50_ms", 1), middle(found, "p99_ms", 1), middle(found, "listed_s", 1)]
        cells += [", ".join(str(one) for one in last["brokers"].values()), middle(found, "worst_application")]
        cells.append(", ".join(f"{last['cpu_s'][role]:.1f}" for role in ("brokers", "directory", "client")))
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| one directory server | outstanding | answers/s | p50 ms | p99 ms | CPU µs each: directory, client |",
        "|---|---|---|---|---|---|",
    ]
    for scenario in ("look-ups", "picks"):
        for outstanding in OUTSTANDING:
            found = [row for row in rows if (row["scenario"], row.get("outstanding")) == (scenario, outstanding)]
            each = found[-1]["cpu_us_each"]
            cells = [scenario, str(outstanding), middle(found, "per_s"), middle(found, "p50_ms", 2)]
            cells += [middle(found, "p99_ms", 2), f"{each['directory']}, {each['client']}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the 2,000 connections")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run of look-ups and picks")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for turn in range(options.repeats):
        for row in measure(options.scale, options.seconds):
            rows.append({"turn": turn + 1, **row})
            print(json.dumps(rows[-1]), flush=True)
    speeds, loads = [row["loop_ms"] for row in rows], [row["load"] for row in rows]
    text = (
        f"# The directory: placing connections, look-ups and picks\n\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"Fairlead {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, one invocation: {options.repeats} turns, runs of {options.seconds:g} s. Medians "
        f"(lowest–highest). A fixed Python loop took {min(speeds):g}–{max(speeds):g} ms meanwhile, the load average "
        f"was {min(loads):g}–{max(loads):g}.\nMethod: "
        f"`benchmarks/directory/README.md`; every run: `directory.json` beside this page.\n\n{table(rows)}\n"
    )
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "directory.md").write_text(text, encoding="utf-8")
    (options.out / "directory.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
