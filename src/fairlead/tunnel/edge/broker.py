"""The broker driver as a process: links to gateways on one side, a connection to the Fairlead server per tunnel on the
other. `python -m fairlead.tunnel.edge.broker SETTINGS`, the settings as JSON; `-` reads them from standard input.

Whoever connects to `status_socket` gets one JSON document of all links and tunnels (TUN-102).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from fairlead.errors import ConfigError, FairleadError
from fairlead.runtime.addresses import TcpAddress
from fairlead.tunnel.edge.heap import keep_freed_memory
from fairlead.tunnel.edge.links import GatewayAddress
from fairlead.tunnel.edge.pump import Pump, TunnelStatus
from fairlead.tunnel.edge.relay import Relay, ServerAddress
from fairlead.tunnel.edge.server import TUNNELS_MAX, TunnelServer
from fairlead.tunnel.rules import INACTIVITY_S, Rules

__all__ = ["Broker", "BrokerSettings", "main"]

log = logging.getLogger(__name__)

EXIT_CANNOT_START = 3


class BrokerSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How one broker driver runs."""

    name: str
    """The server id: how clients name this broker at a gateway."""
    gateways: list[str]
    """Each `HOST:PORT` or `unix:PATH`."""
    server: str
    """The Fairlead server: `HOST:PORT` or `unix:PATH`."""
    secret_file: str = ""
    """Holds the link secret; white space at its ends does not count."""
    tls: bool = True
    """Are links to HOST:PORT made over TLS?"""
    ca_file: str = ""
    """Who signed the gateway's certificate; empty: whom the system trusts."""
    certificate_file: str = ""
    """Our own, where gateways ask for one."""
    key_file: str = ""
    status_socket: str = ""
    """Path of a unix socket that answers with the status; empty: none."""
    udp: str = ""
    """`HOST:PORT` to take tunnels over UDP at, without a gateway: neither encrypted nor fair to other traffic."""
    tunnels_max: int = TUNNELS_MAX
    capacity: int = 256
    """N: packets of 32 KiB that wait to be read, per tunnel."""
    inactivity_s: float = INACTIVITY_S


class Broker:
    """All relays of one broker driver."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._address = ServerAddress.parse(settings.server)
        self._relays: set[Relay] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._status_server: asyncio.AbstractServer | None = None
        self.server = TunnelServer(
            settings.name,
            rules=Rules(capacity=settings.capacity, inactivity_s=settings.inactivity_s),
            secret=Path(settings.secret_file).read_bytes().strip() if settings.secret_file else b"",
            tunnels_max=settings.tunnels_max,
            on_accept=self._on_accept,
        )

    async def start(self) -> None:
        tls = tls_context(self._settings) if self._settings.tls else None
        gateways = [GatewayAddress.parse(text, tls) for text in self._settings.gateways]
        for gateway in gateways:
            if not gateway.unix and not tls and not TcpAddress(gateway.host, gateway.port).is_loopback:
                raise ConfigError(f"A link to {gateway} without TLS could be read by others: leave `tls` on.")
        await self.server.listen(*gateways)
        if self._settings.udp:
            at = ServerAddress.parse(self._settings.udp)
            await self.server.listen_udp(at.host, at.port)
        if path := self._settings.status_socket:
            self._status_server = await asyncio.start_unix_server(self._tell_status, sock=status_socket(path))

    async def stop(self) -> None:
        if self._status_server:
            self._status_server.close()
            await self._status_server.wait_closed()
        await self.server.close()
        for _ in range(100):
            if not self._relays:  # their connections to the server are closed too
                break
            await asyncio.sleep(0.01)
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        links = [
            {**link._asdict(), "tunnels": [flat(tunnel) for tunnel in link.tunnels]} for link in self.server.status()
        ]
        return {"name": self._settings.name, "server": str(self._address), "relays": len(self._relays), "links": links}

    def counts(self) -> dict[str, int]:
        """The short form; other threads may ask for it too."""
        linked, links = self.server.linked()
        return {"tunnels": len(self._relays), "linked": linked, "links": links}

    def _on_accept(self, pump: Pump) -> None:
        relay = Relay(pump, self._address, self._relays.discard)
        self._relays.add(relay)
        task = pump.loop.create_task(relay.start())
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _tell_status(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(msgspec.json.encode(self.status()))
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def flat(status: TunnelStatus) -> dict[str, Any]:
    """A tunnel's status as one table."""
    end = status.end
    reason = f"{end.reason.code} {end.reason.text}" if end.reason else ""
    return {
        **end._asdict(),
        "role": end.role.value,
        "state": end.state.value,
        "reason": reason,
        "carrier": status.carrier,
    }


def status_socket(path: str) -> socket.socket:
    """Only for the account we run as."""
    if Path(path).is_socket():  # of somebody before us; nothing else is ours to remove
        Path(path).unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        found.bind(path)
    finally:
        os.umask(before)
    return found


def tls_context(settings: BrokerSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.certificate_file:
            context.load_cert_chain(settings.certificate_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The certificates for links cannot be used: {error}.") from error
    return context


async def run(settings: BrokerSettings, ready: Callable[[Broker], None]) -> None:
    """Until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    broker = Broker(settings)
    await broker.start()
    ready(broker)
    try:
        await ended.wait()
    finally:
        await broker.stop()


def main(settings: BrokerSettings, ready: Callable[[Broker], None] = lambda _: None) -> int:
    """The exit status; 3: cannot start, and will not with these settings."""
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run(settings, ready))
    except (FairleadError, OSError) as error:
        log.error("The tunnel's broker driver cannot run: %s", error)
        return EXIT_CANNOT_START
    return 0


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def from_arguments(arguments: list[str]) -> BrokerSettings:
    if len(arguments) != 1:
        raise ConfigError("Usage: python -m fairlead.tunnel.edge.broker SETTINGS (JSON, or - for standard input).")
    text = sys.stdin.read() if arguments[0] == "-" else arguments[0]
    try:
        return msgspec.json.decode(text, type=BrokerSettings)
    except msgspec.DecodeError as error:
        raise ConfigError(f"The settings of the tunnel's broker driver cannot be used: {error}.") from error


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        sys.exit(main(from_arguments(sys.argv[1:])))
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CANNOT_START)
