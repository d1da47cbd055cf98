"""The two processes of tunnels as children of a server: the gateway, which speaks HTTP with clients, and the broker,
which makes an ordinary connection to the server for each of them.

Their programs (`fairlead.tunnel.edge`) know nothing of a supervisor and have the main thread for themselves. So the
line to it is looked after by a thread: told to stop it sends SIGTERM to its own process, and it says how many tunnels
there are. The broker's connections come from this host, like those of any local client, and have no rights for that:
who may do what is decided by the credentials that travel inside (`[tunnel] gateways` asks for a users file).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from fairlead.runtime.control import Control, Start
from fairlead.runtime.plumbing import INTAKE, LINK, LINK_NAME
from fairlead.runtime.pool import GATEWAY
from fairlead.runtime.rundir import short_path
from fairlead.runtime.tunnelling import STATUS_NAME

if TYPE_CHECKING:
    from fairlead.tunnel.edge.broker import BrokerSettings
    from fairlead.tunnel.edge.gateway import GatewaySettings

Counts = dict[str, int]

LOOK_S: Final = 1.0
LOST_LOOK_S: Final = 0.2
LEAVE_S: Final = 2.0  # for requests under way when the server stops


def run(control: Control, start: Start) -> int:
    """Be the gateway or the broker of tunnels until told to stop."""
    line = Line(control)
    log = logging.getLogger("fairlead")
    log.addHandler(Voice(line))
    log.setLevel(logging.DEBUG if start.config.log.level == "debug" else logging.INFO)
    return run_gateway(line, start) if start.role == GATEWAY else run_broker(line, start, control.run_dir)


def run_gateway(line: Line, start: Start) -> int:
    from fairlead.tunnel.edge.gateway.serve import GatewayServer, serve

    def on_ready(server: GatewayServer) -> None:
        line.begin(lambda: {"connections": len(server.server_state.connections)}, server.renew)

    with socket.socket(fileno=os.dup(start.fds[INTAKE])) as intake:
        link = socket.socket(fileno=os.dup(start.fds[LINK]))
        return serve(gateway_settings(start), intake=intake, link=link, ready=on_ready)


def run_broker(line: Line, start: Start, run_dir: Path) -> int:
    from fairlead.tunnel.edge.broker import Broker, main

    def on_ready(broker: Broker) -> None:
        line.begin(broker.counts)

    with short_path(run_dir / STATUS_NAME) as path:
        return main(broker_settings(start, str(Path(path).parent)), on_ready)


def gateway_settings(start: Start) -> GatewaySettings:
    from fairlead.tunnel.edge.gateway import GatewaySettings

    tunnel, security = start.config.tunnel, start.config.security
    return GatewaySettings(
        link_listen=tunnel.link_listen,
        certificate=security.tls_certificate,
        key=security.tls_key,
        link_ca=str(Path(tunnel.link_ca).expanduser()) if tunnel.link_ca else "",
        secret_file=tunnel.link_secret_file,
        servers=(tunnel.name,),
        allow_v1=tunnel.allow_v1,
        instance=f"{start.server_id:016x}",
        leave_s=LEAVE_S,
        tunnels_max=tunnel.tunnels,
        tunnels_per_server=tunnel.tunnels,
        tunnels_per_address=tunnel.tunnels_per_address,
        opens_per_s=tunnel.opens_per_s,
        buffered_bytes_max=tunnel.buffer_bytes,
        body_max=tunnel.body_bytes,
        hold_s=tunnel.hold_s,
        inactivity_s=tunnel.inactivity_s,
        grace_s=tunnel.grace_s,
    )


def broker_settings(start: Start, run_dir: str) -> BrokerSettings:
    from fairlead.tunnel.edge.broker import BrokerSettings

    tunnel = start.config.tunnel
    return BrokerSettings(
        name=tunnel.name,
        gateways=[f"unix:{run_dir}/{LINK_NAME}", *tunnel.gateways],
        server=server_address(start.urls),
        secret_file=str(Path(tunnel.link_secret_file).expanduser()) if tunnel.link_secret_file else "",
        tls=True,
        ca_file=str(Path(tunnel.gateway_ca).expanduser()) if tunnel.gateway_ca else "",
        certificate_file=str(Path(tunnel.link_certificate).expanduser()) if tunnel.link_certificate else "",
        key_file=str(Path(tunnel.link_key).expanduser()) if tunnel.link_key else "",
        status_socket=f"{run_dir}/{STATUS_NAME}",
        tunnels_max=tunnel.tunnels,
        inactivity_s=tunnel.inactivity_s,
    )


def server_address(urls: list[str]) -> str:
    """Where the server itself is reached: HOST:PORT or unix:PATH."""
    found = urlsplit(urls[0])
    return f"unix:{found.path}" if found.scheme.endswith("+unix") else found.netloc


class Line:
    """The line to the supervisor, and the thread that looks after it."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._counts: Callable[[], Counts] = dict
        self._reload: Callable[[], None] = lambda: None
        self._told: Counts = {}
        threading.Thread(target=self._run, name="supervisor", daemon=True).start()

    def begin(self, counts: Callable[[], Counts], reload: Callable[[], None] = lambda: None) -> None:
        """The program serves from now on; `counts` is asked now and then, by another thread than its own, and `reload`
        is told from there."""
        self._counts, self._reload = counts, reload
        self.send("ready")

    def send(self, event: str, **facts: Any) -> None:
        with self._lock:
            self._control.send(event, **facts)

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except SystemExit:  # the data directory is gone
            pass
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def _turn(self) -> None:
        fd = self._control.fileno()
        if fd < 0:
            time.sleep(LOST_LOOK_S)
        else:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(LOOK_S * 1000)
        with self._lock:
            commands = self._control.receive()
            if self._control.tick(time.monotonic()):
                self._told = {}
        if any(command.name == "stop" for command in commands):
            os.kill(os.getpid(), signal.SIGTERM)
        if any(command.name == "reload" for command in commands):
            self._reload()
        counts = self._told
        with contextlib.suppress(RuntimeError):  # it changed while it was counted: next time
            counts = self._counts()
        if counts != self._told:
            self._told = counts
            self.send("tunnels", tunnels=counts)


class Voice(logging.Handler):
    """What the program logs, in the server's log."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower() if record.levelno < logging.ERROR else "error"
        self._line.send("log", level=level, text=record.getMessage()[:2000])
