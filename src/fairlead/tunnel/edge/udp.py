"""Tunnels over UDP, without a gateway: the ends need no more than single packets (TUN-8). Off unless asked for.

A datagram is a token of 8 bytes and one packet. To set up, the client sends CONN_INIT with id 0 and a nonce, gets a
cookie for its address back, and sends again with the cookie; only then does the server keep anything, choose the id,
and tell the token. So a forged address gets no tunnel, no answer is longer than its question, and whoever cannot read
the datagrams can neither take a tunnel over nor end it. There is no congestion control: for networks one owns.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from fairlead.errors import ConnectionLost, FairleadError, Refused, RequestTimeout
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.packets import Abort, AbortCode, Kind, Packet, encode, split
from fairlead.tunnel.rules import Rules

__all__ = ["PAYLOAD_MAX", "UdpDriver", "UdpListener", "UdpTimes", "open_udp", "udp_rules"]

PAYLOAD_MAX = 1200
CAPACITY_MAX = 128
"""So many packets fit into the socket buffers that systems give without being asked twice."""
BUFFER_BYTES = 4 << 20
ROOM_BYTES = 64 << 10
TOKEN_BYTES = 8
NONCE_BYTES = 16
COOKIE_BYTES = 16
NO_TOKEN = bytes(TOKEN_BYTES)
NO_COOKIE = bytes(COOKIE_BYTES)
SLOT_S = 60
EARLY_MAX = 8

Address = tuple[Any, ...]


class UdpTimes(NamedTuple):
    """Seconds."""

    ping_s: float = 10.0
    ask_again_s: float = 0.5


def udp_rules(rules: Rules) -> Rules:
    """As far as they fit into datagrams."""
    return rules._replace(payload_max=min(rules.payload_max, PAYLOAD_MAX), capacity=min(rules.capacity, CAPACITY_MAX))


class UdpDriver:
    """The datagrams of one tunnel; PING shows that the other side is there, its silence ends the tunnel."""

    carrier = "udp"

    def __init__(
        self,
        transport: asyncio.DatagramTransport,
        address: Address | None,
        connection_id: int,
        token: bytes,
        times: UdpTimes,
        on_close: Callable[[], None],
    ) -> None:
        self.pump: Pump
        self.address = address
        self.token = token
        self._transport = transport
        self._connection_id = connection_id
        self._times = times
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._watch = self._loop.call_later(times.ping_s, self._on_watch)
        self._wants_room = False
        self._closed = False

    def start(self, pump: Pump) -> None:
        self.pump = pump

    def room(self) -> int:
        room: int = ROOM_BYTES - self._transport.get_write_buffer_size()  # type: ignore[attr-defined]
        self._wants_room = room <= 0
        return max(room, 0)

    def send(self, packets: list[bytes]) -> None:
        token, sendto, address = self.token, self._transport.sendto, self.address
        for packet in packets:
            sendto(token + packet, address)

    def set_period(self, pull_period_s: float, hold_s: float) -> None:
        """There is nobody to ask."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch.cancel()
            self._on_close()

    def on_room(self) -> None:
        if self._wants_room:
            self.pump.on_room()

    def on_datagram(self, packets: list[Packet], damaged: int) -> None:
        """What came with the right token."""
        if self._closed:
            return
        if damaged:
            self.pump.on_damaged(damaged)
        self._heard_s = self._loop.time()
        for packet in packets:
            if packet.kind == Kind.PING:
                self.send([encode(Kind.PONG, self._connection_id, payload=packet.payload, version=packet.version)])
            elif packet.kind != Kind.PONG:
                self.pump.on_packets([packet])

    def _on_watch(self) -> None:
        end = self.pump.end
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= end.rules.inactivity_s and end.state not in (State.CLOSED, State.ABORTED):
            code = AbortCode.CLIENT_LOST if end.role is Role.BROKER else AbortCode.BROKER_LOST
            self.pump.on_gone(code, f"nothing was heard from the other end for {silent_s:.0f} s")
            return
        if silent_s >= self._times.ping_s * 0.9 and end.state is not State.CLOSED:
            self.send([encode(Kind.PING, self._connection_id, version=end.version)])
        self._watch = self._loop.call_later(self._times.ping_s, self._on_watch)


class UdpListener(asyncio.DatagramProtocol):
    """The broker's side. `on_tunnel` gets the pump of each tunnel, unconfirmed; False: it is refused."""

    def __init__(self, rules: Rules, on_tunnel: Callable[[Pump], bool], times: UdpTimes | None = None) -> None:
        self._rules = udp_rules(rules)
        self._on_tunnel = on_tunnel
        self._times = times or UdpTimes()
        self._key = secrets.token_bytes(32)
        self._tunnels: dict[int, UdpDriver] = {}
        self._asked: dict[tuple[Address, bytes], int] = {}
        self._transport: asyncio.DatagramTransport
        self.dropped = 0

    @classmethod
    async def listen(
        cls, host: str, port: int, rules: Rules, on_tunnel: Callable[[Pump], bool], times: UdpTimes | None = None
    ) -> UdpListener:
        loop = asyncio.get_running_loop()
        _, listener = await loop.create_datagram_endpoint(lambda: cls(rules, on_tunnel, times), local_addr=(host, port))
        return listener

    @property
    def address(self) -> Address:
        found: Address = self._transport.get_extra_info("sockname")
        return found

    def __len__(self) -> int:
        return len(self._tunnels)

    def pumps(self) -> list[Pump]:
        return [driver.pump for driver in self._tunnels.values()]

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        prepare(self._transport)

    def resume_writing(self) -> None:
        for driver in list(self._tunnels.values()):
            driver.on_room()

    def datagram_received(self, data: bytes, address: Address) -> None:
        token, body = data[:TOKEN_BYTES], split(data[TOKEN_BYTES:], PAYLOAD_MAX)
        if token == NO_TOKEN:
            if body.packets and body.packets[0].kind == Kind.CONN_INIT:
                self._set_up(body.packets[0], address)
            return
        if not body.packets:
            self._damaged(token, data, body.damaged, address)
            return
        packet = body.packets[0]
        connection_id = packet.connection_id
        driver = self._tunnels.get(connection_id)
        if not hmac.compare_digest(token, self._token(connection_id)) or (driver and driver.address != address):
            self.dropped += 1
        elif driver:
            driver.on_datagram(body.packets, body.damaged)
        elif packet.kind != Kind.CONN_ABORT:
            payload = Abort(AbortCode.NOT_KNOWN, "ended").payload()
            abort = encode(Kind.CONN_ABORT, connection_id, payload=payload, version=packet.version)
            self._transport.sendto(token + abort, address)

    def _damaged(self, token: bytes, data: bytes, count: int, address: Address) -> None:
        """Counted where it belongs, if the id can still be read."""
        self.dropped += 1
        if count and len(data) >= TOKEN_BYTES + 12:
            driver = self._tunnels.get(int.from_bytes(data[TOKEN_BYTES + 8 : TOKEN_BYTES + 12]))
            if driver and driver.address == address and hmac.compare_digest(token, driver.token):
                driver.on_datagram([], count)

    def _set_up(self, packet: Packet, address: Address) -> None:
        nonce, cookie = packet.payload[:NONCE_BYTES], packet.payload[NONCE_BYTES:]
        if len(packet.payload) != NONCE_BYTES + COOKIE_BYTES or packet.connection_id:
            self.dropped += 1
            return
        slot = int(asyncio.get_running_loop().time() // SLOT_S)
        right = self._cookie(address, nonce, slot)
        earlier = self._cookie(address, nonce, slot - 1)
        if not (hmac.compare_digest(cookie, right) or hmac.compare_digest(cookie, earlier)):
            self._answer(address, packet, 0, nonce + right)
            return
        connection_id = self._asked.get((address, nonce))
        if connection_id is None:
            connection_id = self._open(packet, address, nonce)
        if connection_id is None:
            text = Abort(AbortCode.REFUSED, "no more tunnels").payload()
            self._transport.sendto(NO_TOKEN + encode(Kind.CONN_ABORT, payload=text, version=packet.version), address)
            return
        self._answer(address, packet, connection_id, nonce + self._token(connection_id).ljust(COOKIE_BYTES, b"\0"))

    def _open(self, packet: Packet, address: Address, nonce: bytes) -> int | None:
        connection_id = 0
        while not connection_id or connection_id in self._tunnels:
            connection_id = secrets.randbits(32)
        loop = asyncio.get_running_loop()

        def forget() -> None:
            del self._tunnels[connection_id]
            del self._asked[address, nonce]

        driver = UdpDriver(self._transport, address, connection_id, self._token(connection_id), self._times, forget)
        self._tunnels[connection_id] = driver
        self._asked[address, nonce] = connection_id
        end = End(
            self._rules, Role.BROKER, connection_id, loop.time(), version=packet.version, peer_window=packet.window
        )
        pump = Pump(end, driver, loop)
        driver.start(pump)
        if self._on_tunnel(pump):
            return connection_id
        pump.stop()
        return None

    def _answer(self, address: Address, packet: Packet, connection_id: int, payload: bytes) -> None:
        answer = encode(Kind.CONN_INIT, connection_id, payload=payload, version=packet.version)
        self._transport.sendto(NO_TOKEN + answer, address)

    def _token(self, connection_id: int) -> bytes:
        """Worked out rather than kept: an ended tunnel's late datagrams can still be told from a stranger's."""
        text = b"token" + connection_id.to_bytes(4)
        return hmac.digest(self._key, text, hashlib.sha256)[:TOKEN_BYTES]

    def _cookie(self, address: Address, nonce: bytes, slot: int) -> bytes:
        text = repr((address[:2], slot)).encode() + nonce
        return hmac.digest(self._key, b"cookie" + text, hashlib.sha256)[:COOKIE_BYTES]


class Dialler(asyncio.DatagramProtocol):
    """The client's side: asks for a cookie, then for a tunnel, then carries it."""

    def __init__(self, window: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.cookie = NO_COOKIE
        self.window = window
        self.found: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.driver: UdpDriver | None = None
        self._early: list[bytes] = []
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        prepare(self.transport)

    def ask(self) -> None:
        payload = self.nonce + self.cookie
        self.transport.sendto(NO_TOKEN + encode(Kind.CONN_INIT, 0, window=self.window, payload=payload))

    def datagram_received(self, data: bytes, address: Address) -> None:
        token, body = data[:TOKEN_BYTES], split(data[TOKEN_BYTES:], PAYLOAD_MAX)
        driver = self.driver
        if driver is not None:
            if hmac.compare_digest(token, driver.token):
                driver.on_datagram(body.packets, body.damaged)
        elif token != NO_TOKEN:
            if len(self._early) < EARLY_MAX:
                self._early.append(data)
        elif body.packets and not self.found.done():
            self._set_up(body.packets[0])

    def begin(self, driver: UdpDriver) -> None:
        """What came before there was a tunnel to come to: the broker's first word follows its answer at once."""
        self.driver = driver
        for data in self._early:
            self.datagram_received(data, ())
        self._early.clear()

    def _set_up(self, packet: Packet) -> None:
        payload = packet.payload
        if packet.kind == Kind.CONN_ABORT and self.cookie != NO_COOKIE:
            self.found.set_exception(Refused(f"The tunnel is refused: {Abort.of(payload).text}."))
        if packet.kind != Kind.CONN_INIT or payload[:NONCE_BYTES] != self.nonce:
            return
        answer = payload[NONCE_BYTES : NONCE_BYTES + COOKIE_BYTES]
        if len(answer) != COOKIE_BYTES:
            return
        if packet.connection_id:
            self.found.set_result((packet.connection_id, answer[:TOKEN_BYTES]))
        elif answer != self.cookie:
            self.cookie = answer
            self.ask()

    def resume_writing(self) -> None:
        if self.driver is not None:
            self.driver.on_room()

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there at the moment: as good as a lost datagram."""


async def open_udp(
    host: str, port: int, *, rules: Rules | None = None, timeout_s: float = 30.0, times: UdpTimes | None = None
) -> Pump:
    """A tunnel straight to a broker that listens there; open when this returns."""
    loop = asyncio.get_running_loop()
    rules, times = udp_rules(rules or Rules()), times or UdpTimes()
    transport, dialler = await loop.create_datagram_endpoint(lambda: Dialler(rules.capacity), remote_addr=(host, port))
    pump: Pump | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while not dialler.found.done():
                dialler.ask()
                await asyncio.wait((dialler.found,), timeout=times.ask_again_s)
            connection_id, token = dialler.found.result()
            driver = UdpDriver(transport, None, connection_id, token, times, transport.close)
            changed = asyncio.Event()
            pump = Pump(End(rules, Role.CLIENT, connection_id, loop.time()), driver, loop, on_change=changed.set)
            driver.start(pump)
            dialler.begin(driver)
            while pump.end.state is State.OPENING:
                changed.clear()
                await changed.wait()
        if pump.end.state is State.ABORTED:
            raise ConnectionLost("The broker ended the tunnel before it was open.")
    except BaseException as error:
        if pump is not None:
            pump.stop()
        transport.close()
        if isinstance(error, TimeoutError) and not isinstance(error, FairleadError):
            raise RequestTimeout(f"No tunnel to {host}:{port} over UDP within {timeout_s:g} s.") from None
        raise
    return pump


def prepare(transport: asyncio.DatagramTransport) -> None:
    """Bursts of a whole window must fit."""
    transport.set_write_buffer_limits(high=ROOM_BYTES // 2, low=ROOM_BYTES // 4)  # type: ignore[attr-defined]
    found: socket.socket = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        found.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
