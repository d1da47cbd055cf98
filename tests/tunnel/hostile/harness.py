"""Gateways, a broker's program and clients as processes, each known by its pid; ports stay when one is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 90.0
Event = dict[str, Any]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def until(condition: Callable[[], Any], what: str = "it", seconds: float = PATIENCE_S) -> Any:
    limit_s = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit_s, f"{what} did not come about in {seconds:g} s"
        time.sleep(0.02)
    return found


class Program:
    """A process whose output is lines of JSON."""

    def __init__(self, words: list[str], log: Path, name: str, before: tuple[str, ...] = ()) -> None:
        self.name, self.log_path = name, log
        self.events: list[Event] = []
        self.news = threading.Condition()
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [*before, sys.executable, *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
        self.reading = threading.Thread(target=self.read, daemon=True)
        self.reading.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.news:
                self.events.append(json.loads(line))
                self.news.notify_all()
        with self.news:
            self.events.append({"event": "exit"})
            self.news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, event: str, count: int = 1, seconds: float = PATIENCE_S, **facts: Any) -> list[Event]:
        """The first `count` events of that name and with those facts."""
        found: list[Event] = []

        def there() -> bool:
            found[:] = [one for one in self.events if one["event"] == event and facts.items() <= one.items()]
            return len(found) >= count

        with self.news:
            self.news.wait_for(lambda: there() or self.events[-1:] == [{"event": "exit"}], seconds)
            if not there():
                raise AssertionError(f"{self.name}: no {event} in {seconds:g} s.\n{self.tail()}")
        return found[:count]

    def moved(self, mib: int, seconds: float = PATIENCE_S) -> None:
        """Waits until so much has passed in both directions together."""
        until(lambda: self.latest("moved", {"mib": 0})["mib"] >= mib or self.failed(), f"{mib} MiB", seconds)
        assert not self.failed(), self.tail()

    def failed(self) -> list[Event]:
        return [one for one in self.events if one["event"] in ("failed", "exit")]

    def latest(self, event: str, default: Event) -> Event:
        return next((one for one in reversed(self.events) if one["event"] == event), default)

    def status(self) -> list[Event]:
        asked = sum(one["event"] == "status" for one in self.events)
        assert self.process.stdin is not None
        self.process.stdin.write(b"status\n")
        self.process.stdin.flush()
        tunnels: list[Event] = self.wait("status", asked + 1)[-1]["tunnels"]
        return tunnels

    def results(self, count: int = 1, seconds: float = PATIENCE_S) -> list[Event]:
        """Every tunnel's transfer, all right in both directions; AssertionError otherwise."""
        until(lambda: self.ended(count) or self.failed(), f"{self.name}'s results", seconds)
        assert not self.failed(), f"{self.failed()}\n{self.tail()}"
        found = [one for one in self.events if one["event"] == "result"]
        assert [one["fault"] for one in found] == [""] * count
        assert all(one["closed"] for one in found)
        return found

    def ended(self, count: int) -> bool:
        return len([one for one in self.events if one["event"] == "result"]) >= count

    def tail(self) -> str:
        return f"{self.events[-5:]}\n{self.log()[-3000:]}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def rss(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """In order where it can: the end of its input; then by force."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        if self.process.poll() is None and self.name == "gateway":
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        self.reading.join(20)
        self.process.stdout.close()


class World:
    """One gateway, one broker's program; clients as they are wanted."""

    def __init__(self, directory: Path, *, before: tuple[str, ...] = (), **gateway: Any) -> None:
        """`before`: words to run gateway and broker with, somewhere this process does not reach."""
        self.directory, self.before = directory, before
        self.secret = directory / "secret"
        self.secret.write_bytes(os.urandom(24).hex().encode())
        self.secret.chmod(0o600)
        self.address, self.link = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
        self.dialled = self.link
        self.settings: dict[str, Any] = {
            "listen": f"127.0.0.1:{self.address[1]}",
            "link_listen": f"127.0.0.1:{self.link[1]}",
            "secret_file": str(self.secret),
            "servers": ["b1"],
            "tunnels_per_address": 5000,
            **gateway,
        }
        self.gateway: Program | None = None
        self.clients: list[Program] = []
        self.servers: list[Program] = []

    def start(self, rules: dict[str, Any] | None = None, *, name: str = "b1") -> World:
        if self.gateway is None:
            self.start_gateway()
        self.start_server(rules or {}, name)
        return self

    def start_gateway(self) -> Program:
        words = ["-m", "fairlead.tunnel.edge.gateway", json.dumps(self.settings)]
        self.gateway = Program(words, self.directory / "gateway.log", "gateway", self.before)
        if self.before:
            return self.gateway  # the broker will tell when it is there
        until(lambda: self.is_open(self.address) or self.gateway_ended(), "the gateway")
        assert not self.gateway_ended(), self.gateway.log()
        return self.gateway

    def gateway_ended(self) -> bool:
        return self.gateway is None or self.gateway.process.poll() is not None

    def start_server(self, rules: dict[str, Any], name: str = "b1") -> Program:
        words = ["-m", "tests.tunnel.hostile.server", "--link", f"{self.dialled[0]}:{self.dialled[1]}"]
        words += ["--name", name, "--secret-file", str(self.secret), "--rules", json.dumps(rules)]
        if self.settings.get("certificate"):
            words += ["--ca", self.settings["certificate"]]
        program = Program(words, self.directory / f"{name}.log", name, self.before)
        self.servers.append(program)
        program.wait("linked")
        return program

    @property
    def scheme(self) -> str:
        return "https" if self.settings.get("certificate") else "http"

    @property
    def server(self) -> Program:
        return self.servers[0]

    def client(
        self, at: tuple[str, int] | None = None, *, before: tuple[str, ...] = (), server: str = "b1", **told: Any
    ) -> Program:
        """`at`: where it believes the gateway to be."""
        host, port = at or self.address
        words = [
            "-m",
            "tests.tunnel.hostile.client",
            json.dumps({"url": f"{self.scheme}://{host}:{port}/tunnel/{server}", **told}),
        ]
        log = self.directory / f"client{len(self.clients)}.log"
        self.clients.append(Program(words, log, "client", before))
        return self.clients[-1]

    def restart_gateway(self, pause_s: float = 0.0) -> None:
        """kill -9, and another one at the same place."""
        assert self.gateway is not None
        self.gateway.kill()
        time.sleep(pause_s)
        self.start_gateway()

    def gateway_status(self) -> dict[str, Any]:
        answer = httpx.get(
            f"http://127.0.0.1:{self.address[1]}/tunnel/status", trust_env=False, verify=False, timeout=30
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    @staticmethod
    def is_open(address: tuple[str, int]) -> bool:
        try:
            socket.create_connection(address, 1).close()
        except OSError:
            return False
        return True

    def stop_clients(self) -> None:
        for program in self.clients:
            program.stop()
        self.clients.clear()

    def stop(self) -> None:
        self.stop_clients()
        for program in self.servers:
            program.stop()
        if self.gateway is not None:
            self.gateway.stop()
