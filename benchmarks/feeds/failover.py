"""What a subscriber notices of a failover, and what redundancy costs it, in one run.

    python -m benchmarks.feeds.failover                                             # everything, some ten minutes
    python -m benchmarks.feeds.failover --rate 5000 --times 2 --seconds 1 --out DIR   # a quick look

Writes `feeds.md` and `feeds.json`. See README.md for what is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.feeds.scenarios import failing_over, latency
from fairlead.runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
RATE = 100_000
SETTINGS = ("alone", "with backup", "suspended")
DEATHS = (("killed", 0.2), ("frozen", 0.2), ("frozen", 0.01))


def loop_ms() -> float:
    """How fast is this machine just now? A fixed piece of work."""
    began = time.process_time()
    sum(number * number for number in range(1_000_000))
    return round((time.process_time() - began) * 1000, 1)


def measure(rate: float, times: int, seconds: float, repeats: int) -> Iterator[dict[str, Any]]:
    """Every scenario; latencies in turns, so that a slow moment of the machine does not hit one setting alone."""
    for turn in range(repeats):
        for setting in SETTINGS:
            yield _beside({"turn": turn + 1, **latency(setting, seconds, rate)})
    for how, heartbeat_s in DEATHS:
        for row in failing_over(how, times, rate, heartbeat_s):
            yield _beside(row)


def _beside(row: dict[str, Any]) -> dict[str, Any]:
    """With how the machine was just then."""
    return {"loop_ms": loop_ms(), "load": round(os.getloadavg()[0], 1), **row}


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def middle(rows: list[dict[str, Any]], key: str, digits: int = 2) -> str:
    """Median (lowest–highest)."""
    numbers = [row[key] for row in rows]
    texts = [f"{one:,.{digits}f}" for one in (statistics.median(numbers), min(numbers), max(numbers))]
    return texts[0] if len(numbers) == 1 else f"{texts[0]} ({texts[1]}–{texts[2]})"


def table(rows: list[dict[str, Any]]) -> str:
    """Both tables of the page."""
    lines = [
        "| active adapter | heartbeat ms | times | messages/s | pause ms: p50 | p99 | max | pause before, ms: p50 "
        "| lost, doubled, out of order | duplicates dropped: p50 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for how, heartbeat_s in DEATHS:
        found = [r for r in rows if r["scenario"] == how and r["heartbeat_ms"] == heartbeat_s * 1000]
        pauses = [row["pause_ms"] for row in found]
        wrong = len(found[-1]["wrong"]) + found[-1]["lost"]
        cells = [how, f"{heartbeat_s * 1000:g}", str(len(found)), middle(found, "messages_per_s", 0)]
        cells += [f"{percentile(pauses, share):.1f}" for share in (0.5, 0.99, 1.0)]
        cells += [f"{statistics.median(row['pause_before_ms'] for row in found):.1f}", str(wrong)]
        repeats = [after["duplicates"] - before for before, after in zip(_before(found), found, strict=True)]
        cells.append(f"{statistics.median(repeats):g}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| latency from the source to the application | messages/s | p50 ms | p99 ms | p99.9 ms | max ms "
        "| cores: adapters, client |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        found = [row for row in rows if row.get("setting") == setting]
        cells = [setting, middle(found, "messages_per_s", 0)]
        cells += [middle(found, key) for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
        cells.append(
            ", ".join(f"{one:g}" for one in (*found[-1]["cpu_of_adapters"].values(), found[-1]["cpu_of_client"]))
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _before(rows: list[dict[str, Any]]) -> list[int]:
    return [0, *(row["duplicates"] for row in rows[:-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second")
    parser.add_argument("--times", type=int, default=30, help="how often the active adapter dies, in each way")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run of latencies")
    parser.add_argument("--repeats", type=int, default=3, help="runs of latencies in each setting")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for row in measure(options.rate, options.times, options.seconds, options.repeats):
        rows.append(row)
        print(json.dumps(row), flush=True)
    speeds, loads = [row["loop_ms"] for row in rows], [row["load"] for row in rows]
    text = (
        f"# Redundant streams: failover and latency\n\n{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"Fairlead {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, one invocation; {options.rate:,.0f} messages a second wanted, {options.repeats} runs "
        f"of {options.seconds:g} s for latencies. Medians (lowest–highest). A fixed Python loop took "
        f"{min(speeds):g}–{max(speeds):g} ms meanwhile, the load average was {min(loads):g}–{max(loads):g}.\n"
        f"Method: `benchmarks/feeds/README.md`; every run: `feeds.json` beside this page.\n\n{table(rows)}\n"
    )
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "feeds.md").write_text(text, encoding="utf-8")
    (options.out / "feeds.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
