"""A whole cluster on one host: its files, its processes, and which of them run. `fairlead cluster up` and tests use it.

Everything is below one directory: `cluster.toml` and `settings.toml` as founded, a directory per node with its own
copies, `node.toml` and data, and `running.json` with the processes, so that another command finds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final

import msgspec

from fairlead.cluster.configuration.documents import to_toml
from fairlead.cluster.configuration.edge.files import COMMENT, NodeFiles, write_file, write_secret
from fairlead.cluster.configuration.edge.founding import found_node
from fairlead.cluster.configuration.overview import overview
from fairlead.cluster.configuration.types import (
    BusSpec,
    Carrier,
    ClusterConfig,
    ClusterSettings,
    Form,
    GroupSpec,
    Kind,
    NodeConfig,
)
from fairlead.errors import ConfigError, Unavailable
from fairlead.runtime.admin import answer_of
from fairlead.runtime.rundir import process_start_time
from fairlead.runtime.settings import Links, Server, Store

RUNNING: Final = "running.json"
ORDER: Final = {"cm": 0, "mm": 1, "witness": 2}  # in which they are stopped: clients first


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What to make. `shared`: every message manager's node hosts all groups; else each group has nodes of its own."""

    cms: int = 2
    groups: int = 2
    backups: int = 1
    witnesses: int = 0
    shared: bool = True
    carrier: Carrier = "tcp"
    form: Form = "single"
    buses: int = 1
    port: int = 0  # where the first client manager listens; the next ones count up. 0: any free one
    managers: int = 1
    links: bool = False  # join the client managers, so that what is not stored reaches clients of all of them
    faults: bool = False
    secret: bool = False  # protect the bus as if it left this host
    name: str = "local"
    essential: dict[str, Any] = {}  # further values of cluster.toml
    settings: dict[str, Any] = {}  # further values of settings.toml


class RunningNote(msgspec.Struct):
    """A process, told apart from a later one with its number by its start time."""

    pid: int
    start_time: int


class LocalCluster:
    """The cluster below a directory, running or not."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory.expanduser().absolute()
        self._python = python
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- files

    @property
    def exists(self) -> bool:
        return (self.directory / "cluster.toml").is_file()

    def found(self, shape: Shape) -> None:
        """Write all files of a new cluster."""
        if self.exists:
            raise ConfigError(f"there is a cluster in {self.directory} already")
        names, groups = layout(shape)
        cluster = msgspec.convert(
            {
                "name": shape.name,
                "form": shape.form,
                "carrier": shape.carrier,
                "buses": [msgspec.to_builtins(bus) for bus in _buses(shape)],
                "voters": _voters(names),
                **shape.essential,
            },
            ClusterConfig,
        )
        plain = {"groups": msgspec.to_builtins(groups), "min_copies": min(2, shape.backups + 1), **shape.settings}
        settings = msgspec.convert(plain, ClusterSettings)
        essential, acquirable = to_toml(cluster).encode(), to_toml(settings, COMMENT).encode()
        nodes = _nodes(self.directory, shape, names)
        if shape.secret:
            write_secret(self.directory / "secret")
        for node in nodes:
            home = self.directory / node.name
            write_file(home / "cluster.toml", essential)
            write_file(home / "settings.toml", acquirable)
            write_file(home / "node.toml", to_toml(node).encode())
            found_node(NodeFiles(home / "node.toml"))
        write_file(self.directory / "settings.toml", acquirable)
        write_file(self.directory / "cluster.toml", essential)

    def names(self) -> list[str]:
        """Every node, client managers first."""
        found = [path.parent.name for path in self.directory.glob("*/node.toml")]
        return sorted(found, key=lambda name: (ORDER[self.files(name).node.kind], name))

    def files(self, name: str) -> NodeFiles:
        return NodeFiles(self.directory / name / "node.toml")

    def data(self, name: str) -> Path:
        return self.directory / name / "data"

    def groups(self) -> list[str]:
        """As some node's file has them."""
        return [group.name for group in self.files(self.names()[0]).settings.groups]

    def urls(self) -> list[str]:
        """Where clients connect."""
        nodes = (self.files(name).node for name in self.names())
        return [f"fairlead://{node.server.listen[0]}" for node in nodes if node.kind == "cm"]

    @property
    def url(self) -> str:
        """All of them in one, for clients that take the next when one is lost."""
        return "fairlead://" + ",".join(url.removeprefix("fairlead://") for url in self.urls())

    # -- processes

    def start(self, name: str) -> int:
        """Start a node; its process id. It is not waited for."""
        if (running := self.pid(name)) is not None:
            raise ConfigError(f"{name} runs already, as process {running}")
        home = self.directory / name
        kind = self.files(name).node.kind
        with open(home / "output.txt", "ab") as output:
            process = subprocess.Popen(
                [self._python, "-m", "fairlead", "node", kind, "--node", str(home / "node.toml")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop them in order
            )
        self._processes[name] = process
        notes = self._notes()
        notes[name] = RunningNote(process.pid, process_start_time(process.pid) or 0)
        self._write_notes(notes)
        return process.pid

    def pid(self, name: str) -> int | None:
        """Of a running node."""
        if (process := self._processes.get(name)) is not None and process.poll() is None:
            return process.pid
        note = self._notes().get(name)
        return note.pid if note is not None and process_start_time(note.pid) == note.start_time else None

    def running(self) -> list[str]:
        return [name for name in self.names() if self.pid(name) is not None]

    def signal(self, name: str, number: int) -> None:
        pid = self.pid(name)
        if pid is None:
            raise ConfigError(f"{name} does not run")
        os.kill(pid, number)

    def stop(self, names: Iterable[str] | None = None, timeout_s: float = 40.0) -> list[str]:
        """Stop these nodes in order, one after the other; names of those that had to be killed."""
        killed = []
        for name in list(names) if names is not None else self.names():
            pid = self.pid(name)
            if pid is None:
                continue
            family = descendants(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            if not self._ended(name, timeout_s):
                killed.append(name)
                for one in (pid, *family):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
                self._ended(name, 10.0)
        self._write_notes({name: note for name, note in self._notes().items() if self.pid(name) is not None})
        return killed

    def _ended(self, name: str, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while self.pid(name) is not None:
            if time.monotonic() >= until_s:
                return False
            time.sleep(0.02)
        return True

    def output(self, name: str) -> str:
        """The end of what a node has printed."""
        file = self.directory / name / "output.txt"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    # -- asking

    def ask(self, question: dict[str, Any], nodes: list[str] | None = None, timeout_s: float = 30.0) -> dict[str, Any]:
        """Put a question to all nodes, or these, through whichever of them answers first."""
        args = question if nodes is None else {**question, "nodes": nodes}
        why: Unavailable | None = None
        for name in sorted(self.running(), key=lambda name: name not in (nodes or ())):
            try:
                answer = answer_of(self.data(name) / "run", "admin", name="cluster", args=args, timeout_s=timeout_s)
            except Unavailable as error:
                why = error
                continue
            found: dict[str, Any] = answer["result"]
            return found
        raise why or Unavailable(f"no node of the cluster in {self.directory} runs")

    def wait_serving(self, timeout_s: float = 60.0, watch: Callable[[], None] | None = None) -> dict[str, Any]:
        """Until every group has a primary that serves and every running node has told so; the status then."""
        until_s = time.monotonic() + timeout_s
        missing = "nothing answers yet"
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise Unavailable(f"node {name} ended while it started:\n{self.output(name)}")
            with contextlib.suppress(Unavailable):
                status = self.ask({"do": "status"}, timeout_s=10.0)
                missing = not_serving(status, self.running(), self.groups())
                if not missing:
                    return status
            if time.monotonic() >= until_s:
                raise Unavailable(f"not all groups serve after {timeout_s:g} s: {missing}")
            if watch is not None:
                watch()
            time.sleep(0.1)

    def _notes(self) -> dict[str, RunningNote]:
        try:
            return msgspec.json.decode((self.directory / RUNNING).read_bytes(), type=dict[str, RunningNote])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write_notes(self, notes: dict[str, RunningNote]) -> None:
        write_file(self.directory / RUNNING, msgspec.json.encode(notes))


def not_serving(status: dict[str, Any], expected: Iterable[str], groups: Iterable[str]) -> str:
    """What is missing for all to serve, in words; empty: nothing."""
    found = overview(status)
    if silent := sorted(set(expected) - {node["node"] for node in found["nodes"]}):
        return f"no word from {', '.join(silent)}"
    for node in found["nodes"]:
        if node["state"] != "checked":
            return f"{node['node']}: {node['state']}"
    served = {group["group"] for group in found["groups"] if group["primary"]}
    if idle := sorted(set(groups) - served):
        return f"no primary in {', '.join(idle)}"
    return ""


def layout(shape: Shape) -> tuple[dict[str, Kind], list[GroupSpec]]:
    """The nodes of a shape with their kinds, and its groups."""
    if not 1 <= shape.groups <= len(ascii_lowercase):
        raise ConfigError(f"between 1 and {len(ascii_lowercase)} groups, not {shape.groups}")
    names: dict[str, Kind] = {f"cm{number}": "cm" for number in range(1, shape.cms + 1)}
    copies = range(1, shape.backups + 2)
    groups = []
    for letter in ascii_lowercase[: shape.groups]:
        members = [f"mm{number}" if shape.shared else f"{letter}{number}" for number in copies]
        names.update(dict.fromkeys(members, "mm"))
        groups.append(GroupSpec(name=letter, members=members))
    names.update({f"w{number}": "witness" for number in range(1, shape.witnesses + 1)})
    return names, groups


def _voters(names: dict[str, Kind]) -> list[str]:
    """All of them, less one client manager if that makes their number odd."""
    voters = list(names)
    cms = [name for name, kind in names.items() if kind == "cm"]
    if len(voters) % 2 == 0 and cms:
        voters.remove(cms[-1])
    return voters


def _buses(shape: Shape) -> list[BusSpec]:
    names = ["main"] if shape.buses == 1 else [f"bus{number}" for number in range(1, shape.buses + 1)]
    if shape.carrier != "udp":
        return [BusSpec(name=name) for name in names]
    (free,) = free_ports(1, socket.SOCK_DGRAM)
    return [BusSpec(name=name, multicast=f"239.255.74.{index + 1}", port=free) for index, name in enumerate(names)]


def _nodes(directory: Path, shape: Shape, names: dict[str, Kind]) -> list[NodeConfig]:
    buses = [bus.name for bus in _buses(shape)]
    everywhere = {"single": None, "a": "cm", "b": "mm"}[shape.form]
    attached: dict[str, list[str]] = {}
    ones = 0
    for name, kind in names.items():
        if shape.form == "single" or kind in (everywhere, "witness"):
            attached[name] = buses
        else:  # members of a group share a bus; with nodes of their own, groups are dealt out
            number = ascii_lowercase.index(name[0]) if kind == "mm" and not shape.shared else 0
            if kind == "cm":
                number, ones = ones, ones + 1
            attached[name] = [buses[number % len(buses)]]
    ports = iter(free_ports(sum(len(found) for found in attached.values()) + shape.cms))
    listens: dict[str, dict[str, str]] = {}
    for name, found in attached.items():
        run = directory / "bus"
        listens[name] = {
            bus: str(run / bus) if shape.carrier == "local" else f"127.0.0.1:{next(ports)}" for bus in found
        }
    seeds: dict[str, list[str]] = {}
    if shape.carrier != "local":
        for name in sorted(names, key=lambda name: ORDER[names[name]]):
            for bus, address in listens[name].items():
                seeds.setdefault(bus, []).append(address)
    nodes: list[NodeConfig] = []
    before: list[str] = []  # URLs of the client managers so far
    for name, kind in names.items():
        server, links = Server(), Links()
        if kind == "cm":
            number = int(name.removeprefix("cm")) - 1
            port = shape.port + number if shape.port else next(ports)
            server = Server(listen=[f"127.0.0.1:{port}"], managers=shape.managers)
            links = Links(parents=list(before) if shape.links else [])
            before.append(f"fairlead://127.0.0.1:{port}")
        nodes.append(
            NodeConfig(
                name=name,
                kind=kind,
                data="data",
                buses=listens[name],
                seeds={
                    bus: [address for address in seeds.get(bus, []) if address != listens[name][bus]]
                    for bus in listens[name]
                    if seeds
                },
                faults=shape.faults,
                secret_file="../secret" if shape.secret else "",
                server=server,
                store=Store(),
                links=links,
            )
        )
    return nodes


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """Ports nobody has just now."""
    socks = [socket.socket(socket.AF_INET, kind) for _ in range(count)]
    try:
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in socks]
    finally:
        for sock in socks:
            sock.close()


def descendants(pid: int) -> list[int]:
    """The children of a process and theirs, as the system knows them now."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            text = Path(f"/proc/{one}/task/{one}/children").read_text()
        except OSError:
            continue
        children = [int(word) for word in text.split()]
        found += children
        waiting += children
    return found
