"""A directory and its brokers on one host: which processes there are, and in which order they come and go.

`fairlead directory up` uses it. Below one directory each of them has its own, with its data and what it printed; the
ports are kept in `ports.json`, so that a second start finds everything where it was.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from fairlead.cluster.configuration.edge.files import write_file
from fairlead.runtime.directory_server.ports import free_pairs
from fairlead.runtime.local_cluster import free_ports

PORTS: Final = "ports.json"
STOP_S: Final = 40.0


class LocalDirectory:
    """Directory servers d1, d2 …, and brokers by name, all of them in one cluster."""

    def __init__(
        self, home: Path, *, servers: int, brokers: Iterable[str], cluster: str, python: str = sys.executable
    ) -> None:
        self.home = home.expanduser().absolute()
        self.cluster = cluster
        self.servers = [f"d{number}" for number in range(1, servers + 1)]
        self.brokers = list(brokers)
        self._python = python
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = self._known_ports()

    @property
    def url(self) -> str:
        """Of the cluster, for applications."""
        return f"{self.servers_url}/{self.cluster}"

    @property
    def servers_url(self) -> str:
        return "fairlead+directory://" + ",".join(f"127.0.0.1:{self._ports[name]}" for name in self.servers)

    def start(self) -> None:
        """All processes, directory first. Whether they serve is asked of the directory."""
        for name in self.servers:
            self._start(name, self._directory_server(name))
        for name in self.brokers:
            self._start(name, self._broker(name))

    def ended(self) -> list[str]:
        """Names of those that have ended by themselves."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def stop(self) -> list[str]:
        """Brokers first, each kind at once; names of those that had to be killed."""
        return [*self._stop(self.brokers), *self._stop(self.servers)]

    def output(self, name: str) -> str:
        """The end of what it has printed."""
        file = self.home / name / "output.txt"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    def _directory_server(self, name: str) -> list[str]:
        words = ["directory", "serve", "--name", name, "--listen", f"127.0.0.1:{self._ports[name]}"]
        if len(self.servers) > 1:
            buses = {one: f"127.0.0.1:{self._ports[f'{one}.bus']}" for one in self.servers}
            words += ["--bus", buses[name], "--peers", ",".join(f"{one}={bus}" for one, bus in buses.items())]
        return words

    def _broker(self, name: str) -> list[str]:
        settings = {"servers": self.servers_url, "name": name, "clusters": self.cluster}
        words = ["serve", "--listen", f"127.0.0.1:{self._ports[name]}", "--managers", "1"]
        for setting, value in settings.items():
            words += ["--set", f"directory.{setting}={value}"]
        return words

    def _start(self, name: str, words: list[str]) -> None:
        home = self.home / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(home / "output.txt", "ab") as output:
            self._processes[name] = subprocess.Popen(
                [self._python, "-m", "fairlead", *words, "--data", str(home / "data")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop them in order
            )

    def _stop(self, names: list[str]) -> list[str]:
        processes = {name: self._processes.pop(name) for name in names if name in self._processes}
        for process in processes.values():
            process.terminate()
        until_s, killed = time.monotonic() + STOP_S, []
        for name, process in processes.items():
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                killed.append(name)
                process.kill()
                process.wait()
        return killed

    def _known_ports(self) -> dict[str, int]:
        file = self.home / PORTS
        try:
            ports = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            ports = {}
        missing = [name for name in (*self.servers, *self.brokers) if name not in ports]
        ports |= dict(zip(missing, free_ports(len(missing)), strict=True))
        buses = [bus for one in self.servers if (bus := f"{one}.bus") not in ports]
        ports |= dict(zip(buses, free_pairs(len(buses)), strict=True))
        write_file(file, msgspec.json.encode(ports))
        return ports
