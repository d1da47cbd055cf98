"""The broker's link to one gateway: dialled again and again, shared by all tunnels that came through that gateway.

While the link is away its tunnels simply have no room to send; LINK_INIT lists them when it is back (TUN-48). Tunnels
are told apart by (gateway, id), as gateways number independently: each link has its own table (TUN-11).
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from fairlead.errors import ConfigError, FairleadError, RemoteProtocolError
from fairlead.tunnel.edge.outlet import Outlet
from fairlead.tunnel.edge.pump import Pump, TunnelStatus
from fairlead.tunnel.edge.widths import widen
from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.link_init import (
    LINK_PAYLOAD_MAX,
    LINK_TUNNELS_MAX,
    VERIFIER_BYTES,
    LinkInit,
    LinkInitAck,
    LinkTunnel,
)
from fairlead.tunnel.packets import PAYLOAD_MAX, Abort, AbortCode, Kind, Packet, cut, encode
from fairlead.tunnel.port import Sink
from fairlead.tunnel.rules import LINK_PORT, Rules

__all__ = ["GatewayAddress", "Link", "LinkDriver", "LinkStatus", "LinkTimes"]

log = logging.getLogger(__name__)

PAUSE_GROWTH = 1.5
"""So that a gateway waits for its broker about half as long again as it was away."""
TELL_AGAIN_S = 600.0
"""How often the log says that a gateway is still away."""
PROVEN_S = 1.0
"""A link that lasted so long was not refused."""


class GatewayAddress(NamedTuple):
    """Where a gateway takes links: `unix` is a path, otherwise host and port; `tls` None: plain, for loopback only."""

    host: str = ""
    port: int = LINK_PORT
    unix: str = ""
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None

    @classmethod
    def parse(cls, text: str, tls: ssl.SSLContext | None = None) -> GatewayAddress:
        """`HOST`, `HOST:PORT`, `[V6]:PORT` or `unix:PATH`."""
        if text.startswith("unix:"):
            return cls(unix=text.removeprefix("unix:"))
        host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host, port = text, str(LINK_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"{text!r} is not the address of a gateway: write HOST:PORT, or unix:PATH.")
        return cls(host, int(port), tls=tls)

    def __str__(self) -> str:
        return f"unix:{self.unix}" if self.unix else f"{self.host}:{self.port}"


class LinkTimes(NamedTuple):
    """Seconds (TUN-48, TUN-55)."""

    ping_s: float = 10.0
    lost_s: float = 30.0
    dial_s: float = 10.0
    pause_first_s: float = 0.1
    pause_max_s: float = 10.0


class LinkStatus(NamedTuple):
    """One link, for people."""

    gateway: str
    linked: bool
    dials: int
    unknown: int
    """Packets for tunnels that are not known (any more)."""
    damaged: int
    waiting_bytes: int
    """For the network."""
    tunnels: list[TunnelStatus]


class LinkDriver:
    """Carries the packets of one tunnel over the shared link."""

    carrier = "link"

    def __init__(self, link: Link, connection_id: int, verifier: bytes) -> None:
        self.verifier = verifier
        self.sink: Sink
        self._link = link
        self._connection_id = connection_id

    def on_room(self) -> None:
        self.sink.on_room()

    def room(self) -> int:
        return self._link.outlet.room(self)

    def send(self, packets: list[bytes]) -> None:
        self._link.outlet.send(self, packets)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        """Links are not asked."""

    def close(self) -> None:
        self._link.outlet.forget(self)
        self._link.forget(self._connection_id)


@dataclass(slots=True)
class Greeting:
    """What LINK_INIT says of the broker, the same at every dial (TUN-53)."""

    server: str
    authentication: bytes
    start_id: bytes = field(repr=False)


class Link(asyncio.Protocol):
    """`on_tunnel` gets the pump of each tunnel as it is asked for, unconfirmed; False: it is refused."""

    def __init__(
        self,
        address: GatewayAddress,
        greeting: Greeting,
        rules: Rules,
        on_tunnel: Callable[[Pump], bool],
        times: LinkTimes | None = None,
    ) -> None:
        self.address = address
        self.outlet = Outlet(asyncio.get_running_loop())
        self.linked = asyncio.Event()
        self.dials = 0
        self.failure = ""
        """What went wrong last."""
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._greeting = greeting
        self._rules = rules
        self._on_tunnel = on_tunnel
        self._times = times or LinkTimes()
        self._tunnels: dict[int, tuple[Pump, LinkDriver]] = {}
        self._unknown = 0
        self._damaged = 0
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._stream = bytearray()
        self._heard_s = 0.0
        self._told_why: str | None = None
        self._told_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # ── Dialling ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until cancelled."""
        turn_s = self._times.pause_first_s
        try:
            while True:
                if await self._dial():
                    since_s = self._loop.time()
                    await self._lost.wait()
                    if self._loop.time() - since_s >= PROVEN_S:
                        turn_s = self._times.pause_first_s  # not for a link that is taken and dropped again at once
                    log.warning("The link to the gateway %s is lost%s.", self.address, self._why())
                await asyncio.sleep(turn_s * (0.5 + random.random() / 2))
                turn_s = min(turn_s * PAUSE_GROWTH, self._times.pause_max_s)
        finally:
            self._drop()

    async def _dial(self) -> bool:
        """True when LINK_INIT_ACK has come."""
        self.dials += 1
        self._reason = ""
        self._lost.clear()
        try:
            async with asyncio.timeout(self._times.dial_s):
                if self.address.unix:
                    await self._loop.create_unix_connection(lambda: self, self.address.unix)
                else:
                    tls = self.address.tls
                    name = (self.address.server_hostname or self.address.host) if tls else None
                    await self._loop.create_connection(
                        lambda: self, self.address.host, self.address.port, ssl=tls, server_hostname=name
                    )
                linked, lost = (asyncio.ensure_future(event.wait()) for event in (self.linked, self._lost))
                try:
                    await asyncio.wait((linked, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    linked.cancel()
                    lost.cancel()
        except (OSError, TimeoutError) as error:
            self._reason = self._reason or str(error) or "no answer in time"
        if self.linked.is_set():
            log.info("Linked to the gateway %s.", self.address)
            self._told_why = None
            return True
        self._drop()
        self._tell_failure()
        return False

    def _tell_failure(self) -> None:
        """Once for each reason, and now and then: a gateway may be away for days."""
        now_s, why = self._loop.time(), self._why()
        if why != self._told_why or now_s >= self._told_s + TELL_AGAIN_S:
            level = logging.WARNING if self.dials == 1 else logging.INFO
            log.log(level, "No link to the gateway %s yet%s; trying again.", self.address, why)
            self._told_why, self._told_s = why, now_s

    def _why(self) -> str:
        self.failure = self._reason or self.failure
        return f": {self._reason}" if self._reason else ""

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._unlink()

    def _unlink(self) -> None:
        self._transport = None
        self.linked.clear()
        self.outlet.close()
        self._stream.clear()
        if self._watch:
            self._watch.cancel()
            self._watch = None
        self._lost.set()

    # ── The transport's calls ────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        widen(transport)
        self._heard_s = self._loop.time()
        self._transport.write(encode(Kind.LINK_INIT, payload=self._link_init().encode()))
        self._watch = self._loop.call_later(self._times.ping_s, self._on_watch)

    def _link_init(self) -> LinkInit:
        """Closed ones too, after the others: a client may still have to hear of the last ACK (TUN-92)."""
        return LinkInit(
            self._greeting.server,
            self._greeting.authentication,
            self._greeting.start_id,
            [
                LinkTunnel(
                    connection_id, int(pump.end.rules.pull_period_s), int(pump.end.rules.inactivity_s), driver.verifier
                )
                for connection_id, (pump, driver) in sorted(
                    self._tunnels.items(), key=lambda item: item[1][0].end.state is State.CLOSED
                )
                if pump.end.state is not State.ABORTED
            ][:LINK_TUNNELS_MAX],
        )

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            payload_max = PAYLOAD_MAX if self.linked.is_set() else LINK_PAYLOAD_MAX
            body = cut(self._stream, payload_max, data=data, with_raw=False)
            self._damaged += body.damaged
            self._take(body.packets)
        except FairleadError as error:
            self._fail(error.text)

    def resume_writing(self) -> None:
        self.outlet.call_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._reason:
            self._reason = str(exc)
        self._unlink()

    def _fail(self, text: str) -> None:
        self._reason = text
        if self._transport is not None:
            self._transport.abort()

    def _on_watch(self) -> None:
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._times.lost_s:
            self._fail(f"nothing was heard for {silent_s:.0f} s")
            return
        if silent_s >= self._times.ping_s * 0.9 and self._transport is not None:
            self._transport.write(encode(Kind.PING))
        self._watch = self._loop.call_later(min(self._times.ping_s, self._times.lost_s - silent_s), self._on_watch)

    # ── Packets ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, packets: list[Packet]) -> None:
        by_tunnel: dict[int, list[Packet]] = {}
        for packet in packets:
            if packet.connection_id:
                by_tunnel.setdefault(packet.connection_id, []).append(packet)
            else:
                self._take_own(packet)
        for connection_id, those in by_tunnel.items():
            found = self._tunnels.get(connection_id) or self._open(connection_id, those)
            if found:
                found[0].on_packets(those)

    def _take_own(self, packet: Packet) -> None:
        """What concerns the link itself."""
        if packet.kind == Kind.PING:
            self.outlet.send(None, [encode(Kind.PONG, payload=packet.payload)])
        elif packet.kind == Kind.LINK_INIT_ACK and self._transport is not None and not self.linked.is_set():
            for connection_id in LinkInitAck.decode(packet.payload).refused:
                if found := self._tunnels.get(connection_id):
                    found[0].on_gone(AbortCode.NOT_KNOWN, "the gateway has ended it")
            self.linked.set()
            self.outlet.open(self._transport)
            for pump in self.pumps():
                pump.on_restored()
        elif packet.kind == Kind.CONN_ABORT:
            raise RemoteProtocolError(f"The gateway refuses the link: {Abort.of(packet.payload).text}")

    def _open(self, connection_id: int, packets: list[Packet]) -> tuple[Pump, LinkDriver] | None:
        """A new tunnel, if that is what the first packet asks for; whatever else is of a tunnel that is no more."""
        first = packets[0]
        if first.kind != Kind.CONN_INIT:
            self._unknown += len(packets)
            if any(packet.kind != Kind.CONN_ABORT for packet in packets):
                self._refuse(first, AbortCode.NOT_KNOWN, "not known any more")
            return None
        now_s = self._loop.time()
        end = End(self._rules, Role.BROKER, connection_id, now_s, version=first.version, peer_window=first.window)
        verifier = first.payload if len(first.payload) == VERIFIER_BYTES else b""
        driver = LinkDriver(self, connection_id, verifier)
        pump = Pump(end, driver, self._loop)
        driver.sink = pump
        found = self._tunnels[connection_id] = (pump, driver)
        if self._on_tunnel(pump):
            return found
        pump.stop()
        self._refuse(first, AbortCode.REFUSED, "the broker takes no more tunnels")
        return None

    def _refuse(self, packet: Packet, code: int, text: str) -> None:
        payload = Abort(code, text).payload()
        abort = encode(Kind.CONN_ABORT, packet.connection_id, payload=payload, version=packet.version)
        self.outlet.send(None, [abort])

    # ── For the server ───────────────────────────────────────────────────────────────────────────────────────────

    def forget(self, connection_id: int) -> None:
        self._tunnels.pop(connection_id, None)

    def __len__(self) -> int:
        """Tunnels."""
        return len(self._tunnels)

    def pumps(self) -> list[Pump]:
        return [pump for pump, _ in self._tunnels.values()]

    def status(self) -> LinkStatus:
        return LinkStatus(
            str(self.address),
            self.linked.is_set(),
            self.dials,
            self._unknown,
            self._damaged,
            self.outlet.waiting_bytes(),
            [pump.status() for pump in self.pumps()],
        )
