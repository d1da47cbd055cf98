"""Many connections that do nothing: how fast they come, what they cost, and what an idle server costs without any.

    python benchmarks/flows/connections.py [--connections 5000] [--window 50] [--managers 0] [--out FILE]

Every connection goes through the whole handshake (to WELCOME) on a real server of its own; `window` of them are under
way at a time. Memory is the proportional set size (`Pss`) of all processes of the server: what is shared counts once.
Buffers inside the kernel are not in it. CPU is what all processes used, measured over ten seconds.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairlead.runtime.version import VERSION
from fairlead.testing import Server
from tests.processes.raw import PREFACE, WELCOME, Raw, cpu_s

IDLE_S = 10.0


@dataclass
class Result:
    """Seconds, bytes, and shares of one core."""

    connections: int
    processes: int
    start_s: float
    empty_bytes: int
    empty_anonymous_bytes: int
    empty_cpu: float
    connects_per_s: float
    connect_median_s: float
    connect_worst_s: float
    full_bytes: int
    per_connection_bytes: float
    full_cpu: float
    close_s: float
    after_bytes: int


def pids(server: Server) -> list[int]:
    return [component["pid"] for component in server.status(brief=True)["components"]]


def memory(server: Server) -> tuple[int, int]:
    """(Pss, of that anonymous) of all processes together."""
    total = anonymous = 0
    for pid in pids(server):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                total += int(rest.split()[0]) * 1024
            elif name == "Pss_Anon":
                anonymous += int(rest.split()[0]) * 1024
    return total, anonymous


def cpu_share(server: Server, seconds: float) -> float:
    watched = pids(server)
    before, began_s = sum(map(cpu_s, watched)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(cpu_s, watched)) - before) / (time.monotonic() - began_s)


def connect_all(port: int, count: int, window: int) -> tuple[list[Raw], list[float]]:
    """The connections, and how long each took from connect() to WELCOME."""
    clients: list[Raw] = []
    took: list[float] = []
    for first in range(0, count, window):
        under_way = []
        for _ in range(min(window, count - first)):
            began_s = time.monotonic()
            client = Raw(port, attach=False)
            client.send(PREFACE + Raw.connect_frame())
            under_way.append((client, began_s))
        for client, began_s in under_way:
            client.expect(WELCOME)
            took.append(time.monotonic() - began_s)
            clients.append(client)
    return clients, took


def measure(connections: int, *, window: int = 50, managers: int = 0, idle_s: float = IDLE_S) -> Result:
    began_s = time.monotonic()
    with Server(managers=managers) as server:
        start_s = time.monotonic() - began_s
        server.wait_until(lambda status: not any(c["state"] == "starting" for c in status["components"]))
        empty, anonymous = memory(server)
        empty_cpu = cpu_share(server, idle_s)
        for client in connect_all(server.port, window, window)[0]:  # what is made once, is made now
            client.close()
        began_s = time.monotonic()
        clients, took = connect_all(server.port, connections, window)
        rate = connections / (time.monotonic() - began_s)
        assert len(server.status()["connections"]) >= connections
        full, _ = memory(server)
        full_cpu = cpu_share(server, idle_s)
        began_s = time.monotonic()
        for client in clients:
            client.close()
        server.wait_until(lambda status: not status["connections"] and not status["attachments"], 60)
        close_s = time.monotonic() - began_s
        return Result(
            connections, len(pids(server)), start_s, empty, anonymous, empty_cpu, rate, statistics.median(took),
            max(took), full, (full - empty) / connections, full_cpu, close_s, memory(server)[0],
        )  # fmt: skip


def report(found: Result, window: int) -> str:
    mib = 1 << 20
    return f"""# {found.connections:,} idle connections

`python benchmarks/flows/connections.py --connections {found.connections} --window {window}`; Fairlead {VERSION}, Python
{platform.python_version()}, {platform.machine()}; client and server on one host, not alone on it. Method: see there.

| | |
|---|---:|
| start to ready line | {found.start_s:.2f} s |
| processes (standbys included) | {found.processes} |
| idle, no client: memory (Pss) of all processes | {found.empty_bytes / mib:.1f} MiB |
| – of that anonymous (not the store, not code) | {found.empty_anonymous_bytes / mib:.1f} MiB |
| idle, no client: CPU of all processes | {100 * found.empty_cpu:.2f} % of a core |
| connects, handshake included | {found.connects_per_s:,.0f} /s |
| – median, worst of one | {1e3 * found.connect_median_s:.1f} ms, {1e3 * found.connect_worst_s:.1f} ms |
| memory (Pss) with {found.connections:,} connections | {found.full_bytes / mib:.1f} MiB |
| – per connection | {found.per_connection_bytes / 1024:.2f} KiB |
| idle with {found.connections:,} connections: CPU of all processes | {100 * found.full_cpu:.2f} % of a core |
| all closed at once, tables empty after | {found.close_s:.2f} s |
| memory (Pss) after | {found.after_bytes / mib:.1f} MiB |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--managers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = measure(arguments.connections, window=arguments.window, managers=arguments.managers)
    print(asdict(found))
    text = report(found, arguments.window)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
