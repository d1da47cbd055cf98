"""The tunnel beside TCP, and beside other ways through HTTP, in one run and by turns.

    python -m benchmarks.tunnel.compare                                   # everything, about 20 minutes
    python -m benchmarks.tunnel.compare --seconds 1 --repeats 1 --out DIR # a quick look

Writes `tunnel.md` and `tunnel.json`. See README.md for what is measured and what has to be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tunnel.scenarios import rate, recovery, round_trip
from benchmarks.tunnel.systems import ROOT, SYSTEMS

SIZES = (128, 1024)


def loop_ms() -> float:
    """How fast is this machine just now? A fixed piece of work."""
    began = time.process_time()
    sum(number * number for number in range(1_000_000))
    return round((time.process_time() - began) * 1000, 1)


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All scenarios once, with a fresh server."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="fl-tunnel-") as directory:
        system = SYSTEMS[name](Path(directory))
        try:
            system.start()
            for size in SIZES:
                rows.append({"scenario": "rate", "size": size, **rate(system, size, options.seconds)})
                rows.append({"scenario": "round_trip", "size": size, **round_trip(system, size, options.seconds)})
            rows.append({"scenario": "recovery", "size": 128, **recovery(system, options.messages)})
        finally:
            system.stop()
    return [{"system": name, "loop_ms": loop_ms(), "load": os.getloadavg()[0], **row} for row in rows]


def values(rows: list[dict[str, Any]], name: str, scenario: str, size: int, key: str) -> list[float]:
    return [row[key] for row in rows if (row["system"], row["scenario"], row["size"]) == (name, scenario, size)]


def spread(numbers: list[float], unit: float = 1.0, digits: int = 0) -> str:
    if not numbers:
        return "–"
    low, middle, high = (one / unit for one in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = [
        "| system | way | messages/s, 128 B | messages/s, 1 KiB | round trip 128 B: p50 ms | p99 ms "
        "| 1 KiB: p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        cells = [SYSTEMS[name].name, SYSTEMS[name].path]
        cells += [spread(values(rows, name, "rate", size, "per_s")) for size in SIZES]
        for size in SIZES:
            for key in ("p50_us", "p99_us"):
                cells.append(spread(values(rows, name, "round_trip", size, key), 1000, 2))
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| system | lost in the rate runs | sent in the recovery runs | lost | doubled | out of order "
        "| longest pause, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        rated = [row for row in rows if row["system"] == name and row["scenario"] == "rate"]
        lost = sum(row["sent"] - row["received"] for row in rated)
        runs = [row for row in rows if row["system"] == name and row["scenario"] == "recovery"]
        facts = [sum(row[key] for row in runs) for key in ("sent", "lost", "doubled", "out_of_order")]
        pauses = spread([row["pause_ms"] for row in runs])
        lines.append(f"| {SYSTEMS[name].name} | {lost:,} | {' | '.join(f'{one:,}' for one in facts)} | {pauses} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000, help="of each recovery run")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for turn in range(options.repeats):
        for name in options.systems:
            for row in measure(name, options):
                rows.append({"turn": turn + 1, **row})
                print(json.dumps(rows[-1]), flush=True)
    speeds = [row["loop_ms"] for row in rows]
    text = (
        f"# The tunnel beside TCP and other ways through HTTP\n\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, one invocation: {options.repeats} turns through "
        f"all systems, runs of {options.seconds:g} s. Medians (lowest–highest). A fixed Python loop took "
        f"{min(speeds):g}–{max(speeds):g} ms meanwhile.\nMethod: `benchmarks/tunnel/README.md`; every run: "
        f"`tunnel.json` beside this page.\n\n{table(rows, options.systems)}\n"
    )
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tunnel.md").write_text(text, encoding="utf-8")
    (options.out / "tunnel.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
