"""A gateway that does what a test says, at the other end of a broker driver's real link."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fairlead.tunnel.edge.links import LinkTimes
from fairlead.tunnel.edge.server import TunnelServer
from fairlead.tunnel.link_init import LINK_PAYLOAD_MAX, LinkInit, LinkInitAck
from fairlead.tunnel.packets import Kind, Packet, cut, encode
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import QUICK
from tests.tunnel.gateway_parts import until

QUICK_TIMES = LinkTimes(ping_s=1.0, lost_s=10.0, dial_s=20.0, pause_first_s=0.02, pause_max_s=0.08)
VERIFIER = bytes(range(32))


class ScriptedGateway:
    """Takes links and does with them what a test says; `links` holds each one's packets so far."""

    def __init__(self) -> None:
        self.links: list[list[Packet]] = []
        self.refused: list[int] = []
        self.is_mute = False
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.first_answer: bytes | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def listening(cls, port: int = 0) -> AsyncIterator[ScriptedGateway]:
        self = cls()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 16)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._server.close()
            self.hang_up()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    @property
    def packets(self) -> list[Packet]:
        return self.links[-1] if self.links else []

    def init(self) -> LinkInit:
        first = self.packets[0]
        assert first.kind == Kind.LINK_INIT
        return LinkInit.decode(first.payload)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def send(self, *packets: bytes) -> None:
        self._writers[-1].write(b"".join(packets))

    def of(self, kind: Kind, connection_id: int) -> list[Packet]:
        return [one for one in self.packets if one.kind == kind and one.connection_id == connection_id]

    async def open(self, connection_id: int, *, window: int = 256, confirm: bool = True) -> None:
        """A client comes; its confirmation too."""
        self.send(encode(Kind.CONN_INIT, connection_id, window=window, payload=VERIFIER))
        await until(lambda: self.of(Kind.CONN_INIT_ACK, connection_id))
        if confirm:
            self.send(encode(Kind.ACK, connection_id, 0, window))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        packets: list[Packet] = []
        self.links.append(packets)
        self._writers.append(writer)
        waiting = bytearray()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self.is_reading.wait()
                waiting += data
                for packet in cut(waiting, LINK_PAYLOAD_MAX).packets:
                    packets.append(packet)
                    if self.is_mute:
                        continue
                    if packet.kind == Kind.LINK_INIT:
                        ack = encode(Kind.LINK_INIT_ACK, payload=LinkInitAck(self.refused).encode())
                        writer.write(self.first_answer or ack)
                    elif packet.kind == Kind.PING:
                        writer.write(encode(Kind.PONG, payload=packet.payload))
        writer.close()


@contextlib.asynccontextmanager
async def linked(
    rules: Rules = QUICK, times: LinkTimes = QUICK_TIMES, **more: Any
) -> AsyncIterator[tuple[ScriptedGateway, TunnelServer]]:
    async with ScriptedGateway.listening() as gateway, TunnelServer("b1", rules=rules, times=times, **more) as server:
        await server.listen(gateway.address, timeout_s=30)
        yield gateway, server


def data(connection_id: int, sequence: int, payload: bytes) -> bytes:
    return encode(Kind.DATA, connection_id, sequence, payload=payload)
