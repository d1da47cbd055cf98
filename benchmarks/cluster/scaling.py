"""What the nodes of a cluster cost and bring as more of them are added (CLU-52 … CLU-55), on one host.

    python -m benchmarks.cluster.scaling [--messages 50000] [--repeats 3] [--only copies …] [--out FILE]

`copies`: CPU per message of every process, and bytes on the bus, for 0 to 3 backups, carriers tcp and udp; beside them
the message manager of a server without a cluster. `units`: 1 and 2 units of a client manager and a group, which share
no process: what a message costs should not change. `connections`: idle sessions with one consumer each over 1 to 3
client managers. `storage`: bytes that 1 and 2 groups accept under the same quota.

On a host of two cores rates say nothing about more nodes: all of them share the cores. What a message costs each
process says what a host of its own would do, and `curve.py` draws that. The smallest of the repeats is reported, since
whatever else runs on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fairlead
from benchmarks.cluster import load
from fairlead.cluster.client_manager.placement import Group, Placement
from fairlead.cluster.configuration.types import Carrier
from fairlead.errors import FairleadError
from fairlead.runtime.local_cluster import descendants
from fairlead.runtime.version import VERSION
from fairlead.testing import Server
from fairlead.testing.cluster import Cluster

SIZE = 1024
WARM = 2000
CARRIERS: tuple[Carrier, ...] = ("tcp", "udp")
QUOTA_BYTES, SEGMENT_BYTES = 32 << 20, 4 << 20
STUCK_S = 5.0
Row = dict[str, Any]


def smallest(runs: Iterable[load.Flow]) -> dict[str, float]:
    """The least CPU per message that each part has used in any of the runs."""
    least: dict[str, float] = {}
    for run in runs:
        for name, spent in run.cpu_us.items():
            least[name] = round(min(spent, least.get(name, spent)), 2)
    return least


def bus_bytes(cluster: Cluster) -> dict[str, int]:
    """What each node has put on the bus; a multicast counts once."""
    found = {}
    for node, answer in cluster.ask("status")["nodes"].items():
        figures = answer["status"]["bus"]
        found[node] = figures["bytes_out"] + figures.get("multicast_bytes_out", 0)
    return found


def queue_in(group: str, groups: int) -> str:
    """A name that belongs to this one of the groups `a`, `b` …"""
    names = [chr(ord("a") + number) for number in range(groups)]
    placement = Placement([Group(name) for name in names])
    return next(f"bench-{n}" for n in range(10_000) if names[placement.of(f"bench-{n}")] == group)


def single(messages: int, repeats: int) -> Row:
    """A server without a cluster."""
    with Server() as server:
        assert server.process is not None
        watched: dict[str, list[int]] = {}
        for pid in descendants(server.process.pid):
            if part := load.part_of(pid):
                watched.setdefault(part, []).append(pid)
        asyncio.run(load.create(server.url, "bench"))
        load.flow([(server.url, "bench")], watched, WARM, SIZE)
        runs = [load.flow([(server.url, "bench")], watched, messages, SIZE) for _ in range(repeats)]
        took = asyncio.run(load.latencies(server.url, "bench", 200, SIZE))
    return {"carrier": "–", "members": 0, "cpu_us": smallest(runs), **_ends(runs, took)}


def copies(backups: int, carrier: Carrier, messages: int, repeats: int) -> Row:
    """One client manager, one group."""
    with Cluster(cms=1, groups=1, backups=backups, carrier=carrier) as cluster:
        cluster.wait_in_sync("a", backups + 1)
        asyncio.run(load.create(cluster.url, "bench"))
        watched = load.parts(cluster)
        load.flow([(cluster.url, "bench")], watched, WARM, SIZE)
        primary, before = cluster.primary("a"), bus_bytes(cluster)
        runs = [load.flow([(cluster.url, "bench")], watched, messages, SIZE) for _ in range(repeats)]
        after, total = bus_bytes(cluster), messages * repeats
        took = asyncio.run(load.latencies(cluster.url, "bench", 200, SIZE))
    each = smallest(runs)
    if backups:
        each["backup"] = round(each["backup"] / backups, 2)
    return {
        "carrier": carrier,
        "members": backups + 1,
        "cpu_us": each,
        "bus_bytes": round((sum(after.values()) - sum(before.values())) / total),
        "bus_bytes_primary": round((after[primary] - before[primary]) / total),
        **_ends(runs, took),
    }


def units(count: int, messages: int, repeats: int) -> Row:
    """Each unit: a client manager, and a group with a backup on nodes of its own."""
    with Cluster(cms=count, groups=count, backups=1, shared=False) as cluster:
        groups = [chr(ord("a") + number) for number in range(count)]
        for group in groups:
            cluster.wait_in_sync(group, 2)
        lanes = [(url, queue_in(group, count)) for url, group in zip(cluster.urls(), groups, strict=True)]
        for url, queue in lanes:
            asyncio.run(load.create(url, queue))
        watched = load.parts(cluster)
        load.flow(lanes, watched, WARM, SIZE)
        runs = [load.flow(lanes, watched, messages, SIZE) for _ in range(repeats)]
        took = asyncio.run(load.latencies(*lanes[0], 200, SIZE))
    return {"units": count, "cpu_us": smallest(runs), **_ends(runs, took)}


def connections(cms: int, each: int) -> Row:
    """Idle sessions, each with a consumer of one queue; what they cost the client managers, and the group."""
    with Cluster(cms=cms, groups=1, backups=1) as cluster:
        cluster.wait_in_sync("a", 2)
        asyncio.run(load.create(cluster.url, "bench"))
        watched = load.parts(cluster)
        at_cms = [pid for part, pids in watched.items() if part not in ("primary", "backup") for pid in pids]
        asyncio.run(_idle(cluster.urls(), 20, lambda: None))  # what is made once and kept
        found: dict[str, int] = {}

        def look() -> None:
            found["cms"] = sum(map(load.anonymous_bytes, at_cms))
            found["primary"] = sum(map(load.anonymous_bytes, watched["primary"]))

        look()
        before = dict(found)
        opened = asyncio.run(_idle(cluster.urls(), each, look))
    return {
        "cms": cms,
        "open": opened,
        "cm_bytes_each": round((found["cms"] - before["cms"]) / opened),
        "primary_bytes_each": round((found["primary"] - before["primary"]) / opened),
    }


async def _idle(urls: list[str], each: int, look: Callable[[], None]) -> int:
    async with contextlib.AsyncExitStack() as stack:
        count = 0
        for url in urls:
            for _ in range(each):
                connection = await stack.enter_async_context(fairlead.connect(url, name="idle"))
                await stack.enter_async_context(connection.queue("bench").consume(prefetch=1))
                count += 1
        await asyncio.to_thread(look)
        return count


def storage(groups: int) -> Row:
    """Fill a queue of each group until nothing more is taken."""
    quota = {"messages": {"quota_bytes": QUOTA_BYTES, "segment_bytes": SEGMENT_BYTES}}
    with Cluster(cms=1, groups=groups, backups=1, shared=False, settings=quota) as cluster:
        names = [chr(ord("a") + number) for number in range(groups)]
        for group in names:
            cluster.wait_in_sync(group, 2)
        taken = [asyncio.run(_fill(cluster.url, queue_in(group, groups))) for group in names]
        on_disk = [cluster.facts(cluster.primary(group), group)["journal"]["disk_bytes"] for group in names]
    return {"groups": groups, "quota_bytes": QUOTA_BYTES, "accepted_bytes": taken, "disk_bytes": on_disk}


async def _fill(url: str, queue: str) -> int:
    """Bytes of all bodies that were confirmed."""
    body, confirmed = b"x" * (16 << 10), 0
    async with fairlead.connect(url, name="fill") as connection:
        target = connection.queue(queue)

        async def lane() -> None:
            nonlocal confirmed
            while True:
                await target.send(body)
                confirmed += len(body)

        lanes = [asyncio.create_task(lane()) for _ in range(32)]
        before, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < STUCK_S and not any(one.done() for one in lanes):
            await asyncio.sleep(0.1)
            if confirmed != before:
                before, since_s = confirmed, time.monotonic()
        for one in lanes:
            one.cancel()
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, FairleadError):
                raise ended
    return confirmed


def _ends(runs: list[load.Flow], took: list[float]) -> Row:
    return {
        "per_s": round(max(run.per_s for run in runs)),
        "p50_us": round(1e6 * statistics.median(took)),
        "p99_us": round(1e6 * took[int(len(took) * 0.99)]),
    }


# --- What is printed --------------------------------------------------------------------------------------------------

PARTS = ("producer", "consumer", "connection manager", "agent", "primary", "backup")


def copies_table(rows: list[Row]) -> list[str]:
    lines = [
        "| carrier | members | "
        + " | ".join(PARTS)
        + " | bus bytes, all | of the primary | rate | p50, p99 of one send |",
        "|---|---|" + "---|" * (len(PARTS) + 4),
    ]
    for row in rows:
        spent = {**row["cpu_us"]}
        if not row["members"]:
            spent["primary"] = spent.get("message manager", 0.0)
        cells = " | ".join(f"{spent[part]:.1f}" if part in spent else "–" for part in PARTS)
        bus = f"{row['bus_bytes']:,} | {row['bus_bytes_primary']:,}" if "bus_bytes" in row else "– | –"
        members = row["members"] or "no cluster"
        lines.append(f"| {row['carrier']} | {members} | {cells} | {bus} | {row['per_s']:,} | {_late(row)} |")
    return lines


def units_table(rows: list[Row]) -> list[str]:
    lines = [
        "| units | " + " | ".join(PARTS) + " | all together | rate on these cores | p50, p99 of one send |",
        "|---|" + "---|" * (len(PARTS) + 3),
    ]
    for row in rows:
        spent = row["cpu_us"]
        cells = " | ".join(f"{spent.get(part, 0.0):.1f}" for part in PARTS)
        whole = sum(spent.values())
        lines.append(f"| {row['units']} | {cells} | {whole:.1f} | {row['per_s']:,} | {_late(row)} |")
    return lines


def _late(row: Row) -> str:
    return f"{row['p50_us'] / 1000:.2f}, {row['p99_us'] / 1000:.2f} ms"


def connections_table(rows: list[Row]) -> list[str]:
    lines = ["| client managers | idle sessions | bytes each, there | bytes each, primary |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['cms']} | {row['open']:,} | {row['cm_bytes_each']:,} | {row['primary_bytes_each']:,} |")
    return lines


def storage_table(rows: list[Row]) -> list[str]:
    lines = ["| groups | quota each | accepted, each | accepted, all |", "|---|---|---|---|"]
    for row in rows:
        taken = row["accepted_bytes"]
        each = ", ".join(f"{one / (1 << 20):.1f} MiB" for one in taken)
        quota = row["quota_bytes"] / (1 << 20)
        lines.append(f"| {row['groups']} | {quota:.0f} MiB | {each} | {sum(taken) / (1 << 20):.1f} MiB |")
    return lines


def measured(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Everything that was asked for, printed as it comes."""
    found: dict[str, list[Row]] = {}

    def keep(name: str, row: Row) -> None:
        print(json.dumps({name: row}), flush=True)
        found.setdefault(name, []).append(row)

    many, repeats = options.messages, options.repeats
    if "copies" in options.only:
        keep("copies", single(many, repeats))
        for backups in range(4):
            keep("copies", copies(backups, "tcp", many, repeats))
        for backups in range(1, 4):
            keep("copies", copies(backups, "udp", many, repeats))
    if "units" in options.only:
        for count in (1, 2):
            keep("units", units(count, many, repeats))
    if "connections" in options.only:
        for cms in (1, 2, 3):
            keep("connections", connections(cms, options.connections))
    if "storage" in options.only:
        for groups in (1, 2):
            keep("storage", storage(groups))
    return found


TABLES: dict[str, tuple[str, Callable[[list[Row]], list[str]]]] = {
    "copies": ("Copies (CLU-54): CPU in µs per message, and bytes on the bus per message", copies_table),
    "units": ("Units of one client manager and one group of two (CLU-52): CPU in µs per message", units_table),
    "connections": ("Idle connections (CLU-53)", connections_table),
    "storage": ("Storage (CLU-55)", storage_table),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, default=200, help="on each client manager")
    parser.add_argument("--json", type=Path, help="the rows as they are, for curve.py")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measured(options)
    text = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Fairlead {VERSION}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end, all nodes on one "
        f"host; {SIZE}-byte persistent messages, window 512, "
        f"the least of {options.repeats} runs of {options.messages:,} messages.\n"
    )
    for name, found in rows.items():
        title, table = TABLES[name]
        text += f"\n## {title}\n\n" + "\n".join(table(found)) + "\n"
    print(text)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
