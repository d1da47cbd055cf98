"""What the durable measurements share: a server, its memory, quantiles, a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairlead.runtime.version import VERSION
from fairlead.testing import Server

Rows = list[tuple[str, str]]
Measurement = Callable[[Server, float], Awaitable[Rows]]


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms"


def mib(count: float) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def rss(pid: int) -> int:
    """Resident bytes of one process, without what it shares with others through files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def processes(server: Server) -> dict[str, int]:
    """Name of each process of a server, and its id."""
    found: dict[str, int] = {}
    for one in server.status(brief=True)["components"]:
        if one["state"] != "standby":
            found[f"{one['role']} {one['index']}"] = one["pid"]
    return found


def message_manager(server: Server) -> int:
    return server.pids("message-manager")[0]


def memory(server: Server) -> dict[str, int]:
    return {name: rss(pid) for name, pid in processes(server).items()}


def scaled(count: int, scale: float, least: int = 1) -> int:
    return max(least, round(count * scale))


async def wait_back(server: Server, old: int, timeout_s: float = 600) -> None:
    """Until another message manager than the process `old` serves."""
    async with asyncio.timeout(timeout_s):
        while server.pids("message-manager") in ([], [old]):
            await asyncio.sleep(0.02)


def table(rows: Rows) -> str:
    return "\n".join(["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)])


def run(measurement: Measurement, scale: float, data: Path | None = None, **settings: Any) -> Rows:
    with Server(data=data, **{"limits.frozen_s": 600, **settings}) as server:
        return asyncio.run(measurement(server, scale))  # type: ignore[arg-type]


def main(measurement: Measurement, sentence: str, **settings: Any) -> None:
    """The command each of them is."""
    parser = argparse.ArgumentParser(description=sentence)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size; 0.001 takes seconds")
    parser.add_argument("--data", type=Path, help="where the server keeps its files (on the disk that is measured)")
    parser.add_argument("--out", type=Path, help="add the table to this file")
    options = parser.parse_args()
    if options.data:
        options.data.mkdir(parents=True, exist_ok=True)
    rows = run(measurement, options.scale, options.data, **settings)
    command = f"python {' '.join(sys.argv)}"
    text = f"`{command}`, Fairlead {VERSION}, Python {platform.python_version()}, {os.cpu_count()} cores, "
    text += f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n\n{table(rows)}\n"
    print(text)
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(f"\n## {sentence}\n\n{text}")
