"""Several nodes of a real bus in one thread, turned until something is so."""

from __future__ import annotations

import itertools
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairlead.bus.config import BusAddress, BusConfig, TlsFiles
from fairlead.bus.edge.opening import open_bus
from fairlead.bus.edge.streams import StreamBus
from tests.authority import Authority

STARTS = itertools.count(1)
GROUPS = itertools.count(1)


class Station:
    """One node and what it has seen."""

    def __init__(self, bus: StreamBus, config: BusConfig) -> None:
        self.bus, self.config = bus, config
        self.got: list[tuple[str, bytes]] = []
        self.broken: list[str] = []
        self.views: list[tuple[int, tuple[str, ...]]] = []
        self.dead: list[tuple[str, int]] = []
        self.events: list[Any] = []  # messages and breaks in the order they came
        bus.on_view(lambda view: self.views.append((view.number, tuple(sorted(view.peers)))))
        bus.on_broken(self._on_broken)
        bus.on_dead(lambda node, start: self.dead.append((node, start)))
        self.listen("p")

    def listen(self, port: str) -> None:
        self.bus.listen(port, self._on_message)

    def _on_message(self, sender: str, message: memoryview) -> None:
        self.got.append((sender, bytes(message)))
        self.events.append((sender, bytes(message)))

    def _on_broken(self, name: str) -> None:
        self.broken.append(name)
        self.events.append(("broken", name))

    def sees(self) -> set[str]:
        return set(self.bus.view.peers)


class Town:
    """Makes nodes and turns them. Frozen ones are not turned."""

    def __init__(self, carrier: str = "tcp", **more: Any) -> None:
        self.is_secure = carrier == "tls"  # tcp, with a certificate for each node
        self.carrier, self.more = "tcp" if self.is_secure else carrier, {"detection_s": 1.0, **more}
        self.stations: dict[str, Station] = {}
        self.frozen: set[str] = set()
        self.log: list[str] = []
        self.directory = tempfile.TemporaryDirectory(prefix="bus")
        self.authority = Authority(Path(self.directory.name)) if self.is_secure else None
        self.base: dict[str, int] = {}
        self.group = f"239.255.74.{next(GROUPS) % 250 + 1}:{free_port(socket.SOCK_DGRAM)}"

    def __enter__(self) -> Town:
        return self

    def __exit__(self, *exc: object) -> None:
        for station in self.stations.values():
            station.bus.drop()
        self.directory.cleanup()

    def add(self, name: str, buses: Iterable[str] = ("main",), **more: Any) -> Station:
        seeds: dict[str, list[str]] = {}
        for bus in buses:
            seeds[bus] = [
                other.bus.addresses()[bus] for other in self.stations.values() if bus in other.bus.addresses()
            ][:1]
        listen = self.directory.name if self.carrier == "local" else "127.0.0.1:0"
        values: dict[str, Any] = {
            "node": name,
            "start": next(STARTS),
            "cluster": "test",
            "carrier": self.carrier,
            "buses": [BusAddress(bus, listen, self.group_of(bus)) for bus in buses],
            "seeds": seeds,
            "log": lambda level, text, facts: self.log.append(f"{name}: {text}"),
            **self.more,
            **more,
        }
        if self.is_secure and "tls" not in values:
            values["tls"] = self.certificate_of(name)
        config = BusConfig(**values)
        station = self.stations[name] = Station(open_bus(config), config)
        return station

    def certificate_of(self, name: str, **more: Any) -> TlsFiles:
        assert self.authority is not None
        pair = self.authority.sign(name, **more)
        return TlsFiles(str(pair.certificate), str(pair.key), str(self.authority.ca))

    def group_of(self, bus: str) -> str:
        if self.carrier != "udp":
            return ""
        group, _, port = self.group.partition(":")
        return f"{group}:{int(port) + sum(bus.encode()) % 50}"

    def remove(self, name: str, *, orderly: bool) -> None:
        station = self.stations.pop(name)
        if orderly:
            leaving = threading.Thread(target=station.bus.close)
            leaving.start()
            self.until(lambda: not leaving.is_alive())
            leaving.join()
        else:
            station.bus.drop()

    def turn(self, limit_s: float = 0.02) -> None:
        live = [one for name, one in self.stations.items() if name not in self.frozen]
        now_s = time.monotonic()
        wait_s = min([limit_s, *(one.bus.patience_s(now_s) for one in live)])
        if live:
            select.select([one.bus for one in live], [], [], wait_s)
        for one in live:
            one.bus.turn(time.monotonic())

    def until(self, so: Callable[[], bool], limit_s: float = 10.0) -> float:
        """Turn all until it is so; how long that took."""
        begun_s = time.monotonic()
        while not so():
            assert time.monotonic() - begun_s < limit_s, self.describe()
            self.turn()
        return time.monotonic() - begun_s

    def settled(self, *names: str) -> None:
        """Everybody (of these) sees everybody, under the same number."""
        wanted = set(names or self.stations)
        ones = [self.stations[name] for name in wanted]
        self.until(
            lambda: all(one.sees() == wanted for one in ones) and len({one.bus.view.number for one in ones}) == 1
        )

    def go_on(self, seconds: float) -> None:
        """For what must not happen: turn for a while."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.turn()

    def describe(self) -> str:
        seen = {name: (one.bus.view.number, sorted(one.sees())) for name, one in self.stations.items()}
        return f"{seen} {self.log[-12:]}"

    def path(self, name: str) -> Path:
        return Path(self.directory.name) / name


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
