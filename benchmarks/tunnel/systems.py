"""What is compared: each starts its server on loopback ports of its own, and stops it by process id."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

from adapters.base import Broker, executable, free_port
from adapters.fairlead import Fairlead

ROOT = Path(__file__).resolve().parents[2]


class System:
    """`path` says in the table how messages travel."""

    name = ""
    path = ""
    scheme = ""
    query = ""
    peer = ""

    def __init__(self, workdir: Path) -> None:
        self.broker = Broker(workdir)
        self.port = 0

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.broker.stop()

    def url(self, port: int) -> str:
        """Of the server, or of a relay before it."""
        return f"{self.scheme}://127.0.0.1:{port}{self.query}"

    def spawn_python(self, *words: Any) -> None:
        self.port = free_port()
        self.broker.name = self.name
        self.broker.spawn([sys.executable, *map(str, words), str(self.port)], PYTHONPATH=str(ROOT))
        self.broker.wait_for_port(self.port)


class FairleadTcp(System):
    name, path, scheme, peer = "fairlead tcp", "TCP", "fairlead", "fairlead"

    def start(self) -> None:
        self.broker = Fairlead(self.broker.workdir)
        self.port = self.broker.start()["port"]


class FairleadTunnel(FairleadTcp):
    name, path, scheme, query = "fairlead tunnel", "HTTP/1.1 keep-alive, push and pull", "http", "?websocket=never"


class FairleadWebSocket(FairleadTcp):
    name, path, scheme, query = "fairlead tunnel (WebSocket)", "WebSocket, tunnel packets", "http", ""


class Nats(System):
    name, path, scheme, peer = "nats", "TCP", "nats", "nats"

    def start(self) -> None:
        self.port = free_port()
        config = {"host": "127.0.0.1", "port": self.port, "max_pending": 256 << 20}
        file = self.broker.workdir / "nats.conf"
        file.write_text(json.dumps(config))
        beside = Path(sys.executable).with_name("nats-server")
        self.broker.spawn([executable("nats-server", "NATS_SERVER", str(beside)), "-c", str(file)])
        self.broker.wait_for_port(self.port)


class WebSockets(System):
    name, path, scheme, peer = "websockets relay", "WebSocket", "ws", "websockets"

    def start(self) -> None:
        self.spawn_python("-m", "benchmarks.tunnel.relays", "websockets")


class SocketIo(System):
    name, path, scheme, peer = "Socket.IO polling", "HTTP/1.1 keep-alive, long polling", "http", "socketio"

    def start(self) -> None:
        self.spawn_python("-m", "benchmarks.tunnel.relays", "socketio")


SYSTEMS: dict[str, type[System]] = {
    one.name.replace(" ", "-").replace("(", "").replace(")", "").lower(): one
    for one in (FairleadTcp, FairleadTunnel, FairleadWebSocket, Nats, WebSockets, SocketIo)
}
