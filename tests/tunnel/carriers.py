"""What the connection-level suite runs over: each carrier joins a client to a broker, with faults in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.tunnel.edge.dial import open_stream
from fairlead.tunnel.edge.memory import Faults, pair
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.edge.udp import TOKEN_BYTES, open_udp, prepare
from fairlead.tunnel.end import End, Role
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX
from fairlead.tunnel.options import TunnelOptions
from fairlead.tunnel.packets import Kind, cut
from fairlead.tunnel.rules import Rules
from tests.tunnel.gateway_parts import running, until

QUICK = Rules(
    resend_min_s=0.05, resend_plus_s=0.03, resend_first_s=0.2, resend_max_s=1.0, ack_after_s=0.005, payload_max=1200
)
"""Resends come soon, so that losses cost tests little time; packets are small, so that there are many."""


@dataclass
class Joined:
    """`there` befalls what the client sends, `back` what the broker sends."""

    client: TunnelStream
    broker: TunnelStream
    there: Faults
    back: Faults
    damaged_there: Callable[[], int]
    """Packets that somebody on the way, or the end, found damaged."""
    damaged_back: Callable[[], int]

    def swapped(self) -> Joined:
        """The broker in the client's place: the suite knows only "one" and "other" (TUN-3)."""
        return Joined(self.broker, self.client, self.back, self.there, self.damaged_back, self.damaged_there)


def counted_by(stream: TunnelStream) -> Callable[[], int]:
    return lambda: stream.status().end.damaged


Carrier = Callable[..., Any]


@asynccontextmanager
async def memory(
    there: Faults | None = None, back: Faults | None = None, *, client: Rules = QUICK, broker: Rules = QUICK
) -> AsyncIterator[Joined]:
    loop = asyncio.get_running_loop()
    there, back = there or Faults(), back or Faults(seed=2)
    drivers = pair(loop, there, back)
    streams = []
    for driver, role, rules, window in zip(
        drivers, (Role.CLIENT, Role.BROKER), (client, broker), (0, client.capacity), strict=True
    ):
        pump = Pump(End(rules, role, 7, loop.time(), peer_window=window), driver, loop)
        driver.start(pump)
        streams.append(TunnelStream(pump))
    try:
        for stream in streams:
            await stream.opened(30)
        client_stream, broker_stream = streams
        yield Joined(client_stream, broker_stream, there, back, counted_by(broker_stream), counted_by(client_stream))
    finally:
        for stream in streams:
            stream.release()


@asynccontextmanager
async def udp(
    there: Faults | None = None, back: Faults | None = None, *, client: Rules = QUICK, broker: Rules = QUICK
) -> AsyncIterator[Joined]:
    there, back = there or Faults(), back or Faults(seed=2)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TunnelServer("b1", rules=broker))
        host, port = await server.listen_udp("127.0.0.1", 0)
        middle = await FaultyDatagrams.between((host, port), there, back)
        stack.callback(middle.close)
        opened = TunnelStream(await open_udp(*middle.address, rules=client, timeout_s=30))
        stack.callback(opened.release)
        accepted = await server.accept(30)
        stack.callback(accepted.release)
        yield Joined(opened, accepted, there, back, counted_by(accepted), counted_by(opened))


@asynccontextmanager
async def push_pull(
    there: Faults | None = None,
    back: Faults | None = None,
    *,
    client: Rules = QUICK,
    broker: Rules = QUICK,
    websocket: Literal["auto", "never"] = "never",
) -> AsyncIterator[Joined]:
    """Client driver, gateway and broker driver as they are; faults befall single packets on the link."""
    there, back = there or Faults(), back or Faults(seed=2)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running())
        middle = FaultyLink(lambda: asyncio.open_connection("127.0.0.1", gateway.link_port), back, there)
        await middle.start()
        stack.push_async_callback(middle.close)
        server = await stack.enter_async_context(TunnelServer("b1", rules=broker))
        await server.listen(f"127.0.0.1:{middle.port}", timeout_s=30)
        options = TunnelOptions(websocket=websocket, rules=client)
        opened = await open_stream(f"http://127.0.0.1:{gateway.port}/tunnel/b1", options, timeout_s=30)
        stack.push_async_callback(let_go, opened)
        accepted = await server.accept(30)
        if websocket == "auto":
            await until(lambda: opened.status().carrier == "websocket")
        stack.callback(accepted.release)
        station = gateway.station
        yield Joined(
            opened, accepted, there, back, lambda: server.status()[0].damaged, lambda: station.counters.damaged_links
        )


@asynccontextmanager
async def websocket(
    there: Faults | None = None, back: Faults | None = None, *, client: Rules = QUICK, broker: Rules = QUICK
) -> AsyncIterator[Joined]:
    async with push_pull(there, back, client=client, broker=broker, websocket="auto") as joined:
        yield joined


async def let_go(stream: TunnelStream) -> None:
    """The driver's last tasks end too."""
    before = asyncio.all_tasks()
    stream.release()
    for task in asyncio.all_tasks() - before:
        await task


class FaultyDatagrams(asyncio.DatagramProtocol):
    """Stands between one client and a server."""

    def __init__(self, there: Faults, back: Faults) -> None:
        self._there, self._back = there, back
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._front: asyncio.DatagramTransport
        self._rear: asyncio.DatagramTransport
        self.address: tuple[str, int]

    @classmethod
    async def between(cls, server: tuple[str, int], there: Faults, back: Faults) -> FaultyDatagrams:
        loop = asyncio.get_running_loop()
        self = cls(there, back)
        self._front, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self._rear, _ = await loop.create_datagram_endpoint(lambda: Rear(self), remote_addr=server)
        for transport in (self._front, self._rear):
            prepare(transport)
        self.address = self._front.get_extra_info("sockname")
        return self

    def close(self) -> None:
        self._front.close()
        self._rear.close()

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._client = address
        self._pass(data, self._there, lambda damaged: self._rear.sendto(damaged))

    def from_server(self, data: bytes) -> None:
        self._pass(data, self._back, lambda damaged: self._front.sendto(damaged, self._client))

    def _pass(self, data: bytes, faults: Faults, send: Callable[[bytes], None]) -> None:
        for delay_s, packet in faults.befall(data[TOKEN_BYTES:]):
            if delay_s:
                self._loop.call_later(delay_s, self._send, send, data[:TOKEN_BYTES] + packet)
            else:
                self._send(send, data[:TOKEN_BYTES] + packet)

    def _send(self, send: Callable[[bytes], None], data: bytes) -> None:
        if not self._front.is_closing():
            send(data)


class Rear(asyncio.DatagramProtocol):
    def __init__(self, owner: FaultyDatagrams) -> None:
        self._owner = owner

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._owner.from_server(data)


class FaultyLink:
    """Stands between a broker and a gateway: packets of tunnels may come to harm, the link's own never do."""

    OWN = (Kind.LINK_INIT, Kind.LINK_INIT_ACK, Kind.PING, Kind.PONG)

    def __init__(self, connect: Callable[[], Any], to_gateway: Faults, to_broker: Faults) -> None:
        self._connect = connect
        self._to_gateway, self._to_broker = to_gateway, to_broker
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.links = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._writers |= {writer, far_writer}
        self.links += 1
        try:
            await asyncio.gather(
                self._pass(reader, far_writer, self._to_gateway), self._pass(far_reader, writer, self._to_broker)
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: Faults) -> None:
        stream = bytearray()
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 18):
            stream += data
            for packet in cut(stream, LINK_PAYLOAD_MAX).packets:
                if packet.kind in self.OWN:
                    writer.write(packet.raw)
                    continue
                for delay_s, raw in faults.befall(packet.raw):
                    if delay_s:
                        loop.call_later(delay_s, writer.write, raw)
                    else:
                        writer.write(raw)
            await writer.drain()
        raise ConnectionResetError
