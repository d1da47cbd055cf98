"""A cluster over two network namespaces, each with an address of its own: nothing but a network joins its nodes.

It needs the right to make namespaces. Where that is not given the test fails and says so, rather than being left out
unseen; with FAIRLEAD_NO_NETNS=1 whoever runs it says that they know.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.configuration.documents import to_toml
from fairlead.cluster.configuration.edge.files import COMMENT, NodeFiles, write_file, write_secret
from fairlead.cluster.configuration.edge.founding import found_node
from fairlead.cluster.configuration.overview import overview
from fairlead.cluster.configuration.types import BusSpec, ClusterConfig, ClusterSettings, GroupSpec, NodeConfig
from fairlead.errors import Unavailable
from fairlead.runtime.admin import answer_of
from fairlead.runtime.settings import Messages, Server

HOSTS = {"west": "10.231.74.1", "east": "10.231.74.2"}
PLACES = {"cm1": "west", "mm1": "west", "cm2": "east", "mm2": "east", "w1": "west"}
BUS_PORT = 7500
CLIENT_PORT = 7400
WAIT_S = 60.0

SENDING = """
import asyncio, sys, fairlead
async def main():
    async with asyncio.timeout(40), fairlead.connect(sys.argv[1]) as connection:
        for number in range(int(sys.argv[2])):
            await connection.queue("over-there").send(b"%d" % number)
asyncio.run(main())
"""
TAKING = """
import asyncio, sys, fairlead
async def main():
    async with asyncio.timeout(40), fairlead.connect(sys.argv[1]) as connection:
        async with connection.queue("over-there").consume() as consumer:
            for number in range(int(sys.argv[2])):
                message = await consumer.receive(timeout=20)
                assert message is not None and int(message.body) == number, (number, message)
                await message.ack(confirm=True)
asyncio.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two namespaces joined by a pair of interfaces."""

    def __init__(self) -> None:
        self.names = {host: f"fairlead-{host}-{os.getpid()}" for host in HOSTS}
        made = []
        try:
            for host in HOSTS:
                ip("netns", "add", self.names[host])
                made.append(host)
            west, east = self.names.values()
            ip("link", "add", "bus", "netns", west, "type", "veth", "peer", "name", "bus", "netns", east)
            for host, address in HOSTS.items():
                self.inside(host, "addr", "add", f"{address}/24", "dev", "bus")
                self.inside(host, "link", "set", "bus", "up")
                self.inside(host, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            for host in made:
                ip("netns", "del", self.names[host])
            reason = getattr(error, "stderr", "") or str(error)
            text = f"network namespaces cannot be made here: {reason.strip()}"
            if os.environ.get("FAIRLEAD_NO_NETNS"):
                pytest.skip(text)
            pytest.fail(f"{text} (FAIRLEAD_NO_NETNS=1 leaves this test out)")

    def inside(self, host: str, *words: str) -> None:
        ip("-n", self.names[host], *words)

    def start(self, host: str, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], sys.executable, *words], **more)

    def link(self, state: str) -> None:
        self.inside("east", "link", "set", "bus", state)

    def close(self) -> None:
        for name in self.names.values():
            ip("netns", "del", name)


class Spread:
    """The nodes, each in its namespace. Clients of a host are processes in it."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        self.directory, self.hosts = directory, hosts
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        cluster = ClusterConfig(
            name="spread",
            carrier="tcp",
            buses=[BusSpec(name="main")],
            voters=["mm1", "mm2", "w1"],
            detection_s=1.0,
            lease_s=1.0,
            margin_s=0.3,
        )
        groups = [GroupSpec(name="a", members=["mm1", "mm2"])]
        settings = ClusterSettings(groups=groups, min_copies=2, messages=Messages(segment_bytes=4 << 20))
        write_secret(directory / "secret")
        addresses = {name: f"{HOSTS[host]}:{BUS_PORT + at}" for at, (name, host) in enumerate(PLACES.items())}
        for name, host in PLACES.items():
            kind = "cm" if name.startswith("cm") else "mm" if name.startswith("mm") else "witness"
            home = directory / name
            node = NodeConfig(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                data="data",
                buses={"main": addresses[name]},
                seeds={"main": [address for other, address in addresses.items() if other != name]},
                secret_file="../secret",
                server=Server(listen=[f"127.0.0.1:{CLIENT_PORT}"]) if kind == "cm" else Server(),
            )
            write_file(home / "cluster.toml", to_toml(cluster).encode())
            write_file(home / "settings.toml", to_toml(settings, COMMENT).encode())
            write_file(home / "node.toml", to_toml(node).encode())
            found_node(NodeFiles(home / "node.toml"))
            with open(home / "output.txt", "wb") as out:
                words = ("-m", "fairlead", "node", kind, "--node", str(home / "node.toml"))
                self.processes[name] = hosts.start(host, *words, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def status(self, via: str) -> dict[str, Any]:
        args = {"do": "status", "patience_s": 3.0}
        answer = answer_of(self.directory / via / "data" / "run", "admin", name="cluster", args=args, timeout_s=10.0)
        return overview(answer["result"])

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while True:
            try:
                if condition():
                    return
            except (Unavailable, StopIteration):
                pass
            assert time.monotonic() < until_s, f"not in {WAIT_S:g} s: {what}\n{self.output()}"
            time.sleep(0.1)

    def group(self, via: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.status(via)["groups"] if one["group"] == "a")
        return found

    def wait_whole(self) -> None:
        def is_whole() -> bool:
            return len(self.status("mm1")["nodes"]) == len(PLACES) and len(self.group("mm1")["in_sync"]) == 2

        self.wait("all nodes see each other, and both copies are in sync", lambda: is_whole() and self._serves())

    def _serves(self) -> bool:
        return bool(self.group("mm1")["primary"])

    def client(self, host: str, program: str, count: int) -> None:
        url = f"fairlead://127.0.0.1:{CLIENT_PORT}"  # of that host
        done = self.hosts.start(host, "-c", program, url, str(count), stderr=subprocess.PIPE)
        _, errors = done.communicate(timeout=90)
        assert done.returncode == 0, errors.decode() + self.output()

    def output(self) -> str:
        return "\n".join(f"{name}: {(self.directory / name / 'output.txt').read_text()[-1500:]}" for name in PLACES)

    def stop(self) -> None:
        for name in sorted(PLACES):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Spread]:
    hosts = Hosts()
    try:
        made = Spread(tmp_path, hosts)
        try:
            yield made
        finally:
            made.stop()
    finally:
        hosts.close()


@pytest.mark.long
@pytest.mark.requirement("CLU-12", half="a few client checks, not the whole suite")
@pytest.mark.requirement("CLU-153", scaled="one partition instead of an hour of them")
def test_two_hosts_and_their_link_down_and_up(spread: Spread) -> None:
    spread.wait_whole()
    spread.client("west", SENDING, 50)
    spread.client("east", TAKING, 50)
    spread.hosts.link("down")
    # West has two of three votes: it leads, alone, whoever led before. East serves nobody.
    spread.wait("west leads", lambda: spread.group("mm1")["primary"] == "mm1")
    spread.wait("east does not", lambda: spread.group("mm2")["primary"] == "")
    spread.client("west", SENDING, 50)
    spread.hosts.link("up")
    began_s = time.monotonic()
    spread.wait_whole()
    assert time.monotonic() - began_s < 30, "service returns by itself"
    spread.client("east", TAKING, 50)
