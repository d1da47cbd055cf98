"""What being watched costs: a scrape, a probe, the whole status report; by CPU time of each process and by the clock.

    python -m benchmarks.flows.observability [--connections 1000] [--destinations 1000] [--looks 50] [--seconds 10]

On a real server with idle connections and queues. The last part has messages stored and read by one client while
nobody looks, and while somebody scrapes every second, in turns: what differs is what watching takes from the flow.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.flows.connections import connect_all
from fairlead import sync
from fairlead.observability.edge.scrape import gather
from fairlead.observability.metrics import render
from fairlead.testing import Server
from tests.processes.raw import cpu_s

WATCHED = ("supervisor", "message-manager", "manager", "router")
BATCH = 100


def pids(server: Server) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {role: [] for role in WATCHED}
    for one in server.status(brief=True)["components"]:
        if one["role"] in found and one["state"] in ("active", "serving"):
            found[one["role"]].append(one["pid"])
    return found


def looks(server: Server, what: str, look: Callable[[], object], count: int) -> None:
    """So many in a row: CPU of those asked and of the asker, and the time by the clock."""
    roles = pids(server)
    before = {role: sum(map(cpu_s, known)) for role, known in roles.items()}
    own_s, took = time.process_time(), []
    for _ in range(count):
        began_s = time.perf_counter()
        look()
        took.append(time.perf_counter() - began_s)
    own_s = time.process_time() - own_s
    used = {role: sum(map(cpu_s, known)) - before[role] for role, known in roles.items()}
    spent = ", ".join(f"{role} {1e3 * seconds / count:.1f}" for role, seconds in used.items())
    print(
        f"{what:34} {1e3 * statistics.median(took):6.1f} ms (worst {1e3 * max(took):.1f}); CPU in ms: {spent}, "
        f"asker {1e3 * own_s / count:.1f}",
        flush=True,
    )


def flow(server: Server, seconds: float) -> float:
    """Messages a second, each stored durably and acknowledged."""
    done = 0
    with sync.connect(server.url, name="flow") as connection:
        queue = connection.queue("flow")
        with queue.consume(prefetch=4 * BATCH) as consumer:
            began_s = time.monotonic()
            while time.monotonic() - began_s < seconds:
                queue.send_many([b"x" * 256] * BATCH)
                for _ in range(BATCH):
                    message = consumer.receive(timeout=30)
                    assert message is not None
                    message.ack()
                done += BATCH
            return done / (time.monotonic() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--destinations", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of the last part; 0: without it")
    parser.add_argument("--rounds", type=int, default=3, help="of that part")
    given = parser.parse_args()
    with Server() as server:
        run = server.data / "run"
        clients, _ = connect_all(server.port, given.connections, 50)
        with sync.connect(server.url, name="maker") as connection:
            for number in range(given.destinations):
                connection.queue(f"made.{number}").send(b"x")
            print(f"{given.connections:,} connections, {given.destinations:,} queues, {given.looks} looks each")
            looks(server, "probe (status, in short)", lambda: server.status(brief=True), given.looks)
            looks(server, "whole status report", server.status, given.looks)
            looks(server, "scrape: asked for", lambda: gather(run), given.looks)
            looks(server, "scrape: asked for and written", lambda: render(gather(run)), given.looks)
            print(f"a scrape has {len(render(gather(run))[0]):,} bytes")
        for client in clients:
            client.close()
        rates: dict[bool, list[float]] = {False: [], True: []}
        spawning = multiprocessing.get_context("spawn")
        for _, watched in itertools.product(range(given.rounds if given.seconds else 0), (False, True)):
            watcher = spawning.Process(target=watch, args=(run,), daemon=True)
            if watched:
                watcher.start()
            rates[watched].append(flow(server, given.seconds))
            if watched:
                watcher.terminate()
                watcher.join()
        if given.seconds:
            alone, seen = (statistics.median(rates[key]) for key in (False, True))
            print(f"stored and acknowledged: {alone:,.0f}/s unwatched, {seen:,.0f}/s scraped every second "
                  f"({100 * (seen / alone - 1):+.1f} %); rounds {rates}")  # fmt: skip


def watch(run: Path) -> None:
    """In a process of its own, as a console is."""
    while True:
        render(gather(run))
        time.sleep(1.0)


if __name__ == "__main__":
    main()
