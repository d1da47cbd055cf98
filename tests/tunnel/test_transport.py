"""A tunnel in place of a TCP connection: what an asyncio.Protocol sees of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from fairlead.errors import ConnectionLost
from fairlead.tunnel.edge.memory import Faults, MemoryDriver, pair
from fairlead.tunnel.edge.pump import Pump
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.edge.transport import TunnelTransport
from fairlead.tunnel.end import End, Role, State
from fairlead.tunnel.rules import Rules
from tests.tunnel.carriers import QUICK
from tests.tunnel.gateway_parts import until


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: TunnelTransport
        self.chunks: list[bytes] = []
        self.calls: list[str] = []
        self.lost: list[Exception | None] = []
        self.on_data: Callable[[bytes], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(TunnelTransport, transport)
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.on_data(data)

    def eof_received(self) -> None:
        self.calls.append("eof")

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)


@asynccontextmanager
async def joined(
    rules: Rules = QUICK, there: Faults | None = None, protocol: asyncio.Protocol | None = None
) -> AsyncIterator[tuple[Any, TunnelStream, tuple[MemoryDriver, MemoryDriver]]]:
    """A recorder over a transport at the one end, a stream at the other."""
    loop = asyncio.get_running_loop()
    drivers = pair(loop, there)
    pumps = []
    for driver, role, window in zip(drivers, (Role.CLIENT, Role.BROKER), (0, rules.capacity), strict=True):
        pump = Pump(End(rules, role, 7, loop.time(), peer_window=window), driver, loop)
        driver.start(pump)
        pumps.append(pump)
    other = TunnelStream(pumps[1])
    await other.opened(30)
    protocol = protocol or Recorder()
    TunnelTransport(pumps[0], protocol, {"peername": "there"})
    await asyncio.sleep(0)
    try:
        yield protocol, other, drivers
    finally:
        for pump in pumps:
            pump.stop()


def test_bytes_come_in_large_pieces() -> None:
    content = random.Random(1).randbytes(200_000)

    async def main() -> None:
        async with joined() as (protocol, other, _):
            assert protocol.calls == ["made"]
            await other.write(content)
            await until(lambda: len(protocol.data) == len(content))
            assert protocol.data == content
            assert len(protocol.chunks) < 20  # in packets of 1200 bytes

    asyncio.run(main())


def test_what_is_written_arrives() -> None:
    content = random.Random(2).randbytes(100_000)

    async def main() -> None:
        async with joined(there=Faults(loss=0.1)) as (protocol, other, _):
            mutable = bytearray(content[:50_000])
            protocol.transport.write(mutable)
            mutable[:] = bytes(50_000)
            protocol.transport.writelines([content[50_000:60_000], memoryview(content)[60_000:]])
            protocol.transport.write(b"")
            assert await other.readexactly(100_000, 30) == content

    asyncio.run(main())


def test_paused_reading_closes_the_window() -> None:
    async def main() -> None:
        async with joined(QUICK._replace(capacity=4)) as (protocol, other, _):
            protocol.transport.pause_reading()
            assert not protocol.transport.is_reading()
            await other.write(bytes(4 * 1200))
            await until(lambda: protocol.transport.pump.end.status(0).window == 0)
            assert not protocol.chunks
            await other.write(b"more")
            protocol.transport.resume_reading()
            await until(lambda: len(protocol.data) == 4 * 1200 + 4)

    asyncio.run(main())


def test_a_protocol_may_pause_in_the_midst_of_data() -> None:
    async def main() -> None:
        async with joined(Rules(capacity=256)) as (protocol, other, _):
            protocol.on_data = lambda _: protocol.transport.pause_reading()
            await other.write(bytes(3 << 20))
            await until(lambda: protocol.chunks)
            await asyncio.sleep(0.05)
            assert len(protocol.chunks) == 1
            protocol.on_data = lambda _: None
            protocol.transport.resume_reading()
            await until(lambda: len(protocol.data) == 3 << 20)

    asyncio.run(main())


def test_writing_is_paused_and_resumed_by_its_limits() -> None:
    content = random.Random(3).randbytes(40_000)

    async def main() -> None:
        async with joined(QUICK._replace(capacity=4, transmit_max=4)) as (protocol, other, _):
            transport = protocol.transport
            transport.set_write_buffer_limits(high=10_000, low=2_000)
            assert transport.get_write_buffer_limits() == (2_000, 10_000)
            transport.write(content[:4800])
            assert transport.get_write_buffer_size() == 0
            transport.write(content[4800:10_000])
            assert protocol.calls == ["made"]
            transport.write(content[10_000:])
            assert protocol.calls == ["made", "pause"]
            assert transport.get_write_buffer_size() == 40_000 - 4800
            assert await other.readexactly(40_000, 30) == content
            await until(lambda: protocol.calls == ["made", "pause", "resume"])
            assert transport.get_write_buffer_size() == 0
            for high, low in ((1, 2), (5, -1)):
                with pytest.raises(ValueError):
                    transport.set_write_buffer_limits(high=high, low=low)

    asyncio.run(main())


@pytest.mark.requirement("TUN-98", state="half", note="the transport's face")
def test_an_orderly_end_is_eof_and_no_error() -> None:
    async def main() -> None:
        async with joined() as (protocol, other, _):
            await other.write(b"last")
            assert await other.close()
            await until(lambda: protocol.lost)
            assert protocol.data == b"last"
            assert protocol.calls == ["made", "eof"]
            assert protocol.lost == [None]
            assert protocol.transport.is_closing()
            protocol.transport.write(b"too late, and no matter")

    asyncio.run(main())


@pytest.mark.requirement("TUN-98", state="half", note="the transport's face")
def test_an_abort_is_an_error_with_its_reason_after_the_last_data() -> None:
    async def main() -> None:
        async with joined() as (protocol, other, _):
            protocol.transport.pause_reading()
            await other.write(b"last words")
            await other.flush(30)
            other.abort(1, "no more of this")
            await until(lambda: protocol.transport.pump.stopped)
            assert not protocol.lost
            protocol.transport.resume_reading()
            await until(lambda: protocol.lost)
            assert protocol.data == b"last words"
            assert isinstance(protocol.lost[0], ConnectionLost)
            assert "no more of this" in str(protocol.lost[0])
            assert "eof" not in protocol.calls

    asyncio.run(main())


def test_closing_sends_everything_first() -> None:
    content = random.Random(4).randbytes(50_000)

    async def main() -> None:
        async with joined(QUICK._replace(capacity=4, transmit_max=4)) as (protocol, other, _):
            protocol.transport.write(content)
            protocol.transport.close()
            assert protocol.transport.is_closing()
            got = b""
            while data := await other.read(5000, 30):
                got += data
            assert got == content
            assert await other.close()
            await until(lambda: protocol.lost)
            assert protocol.lost == [None]

    asyncio.run(main())


def test_what_comes_after_close_is_not_seen_and_does_not_hinder_the_end() -> None:
    async def main() -> None:
        async with joined(QUICK._replace(capacity=4)) as (protocol, other, _):
            await other.write(bytes(100_000))
            protocol.transport.pause_reading()
            protocol.transport.close()
            assert await other.read(1, 30) == b""
            await until(lambda: protocol.lost)
            assert protocol.lost == [None]

    asyncio.run(main())


def test_what_could_not_be_sent_before_the_other_closed_is_told() -> None:
    async def main() -> None:
        async with joined(QUICK._replace(capacity=2, transmit_max=2)) as (protocol, other, _):
            protocol.transport.write(bytes(50_000))
            closing = asyncio.ensure_future(other.close())  # which reads what comes, and throws it away
            await until(lambda: protocol.lost)
            assert isinstance(protocol.lost[0], ConnectionLost)
            assert "bytes were not sent" in str(protocol.lost[0])
            assert await closing

    asyncio.run(main())


def test_the_end_of_writing_leaves_reading_open() -> None:
    async def main() -> None:
        async with joined() as (protocol, other, _):
            await other.write(b"written before")
            assert protocol.transport.can_write_eof()
            protocol.transport.write(b"question")
            protocol.transport.write_eof()
            with pytest.raises(RuntimeError):
                protocol.transport.write(b"more")
            assert await other.readexactly(8, 30) == b"question"
            assert await other.read(1, 30) == b""
            await until(lambda: protocol.lost)
            assert protocol.data == b"written before"

    asyncio.run(main())


def test_an_abort_of_ones_own_is_no_error() -> None:
    async def main() -> None:
        async with joined() as (protocol, other, _):
            protocol.transport.write(b"lost")
            protocol.transport.abort()
            await until(lambda: protocol.lost)
            assert protocol.lost == [None]
            with pytest.raises(ConnectionLost, match="given up by the program"):
                while await other.read(10, 30):
                    pass

    asyncio.run(main())


def test_a_pump_that_is_stopped_from_elsewhere_is_a_lost_connection() -> None:
    async def main() -> None:
        async with joined() as (protocol, _, _):
            protocol.transport.pump.stop()
            await until(lambda: protocol.lost)
            assert isinstance(protocol.lost[0], ConnectionLost)

    asyncio.run(main())


def test_a_tunnel_that_has_ended_before_is_lost_at_once_with_what_it_had() -> None:
    async def main() -> None:
        async with joined() as (protocol, other, _):
            protocol.transport.pause_reading()
            await other.write(b"too early")
            await other.flush(30)
            other.abort(1, "and gone")
            await until(lambda: protocol.transport.pump.stopped)
            late = Recorder()
            TunnelTransport(protocol.transport.pump, late)
            await until(lambda: late.lost)
            assert late.data == b"too early"
            assert "and gone" in str(late.lost[0])

    asyncio.run(main())


def test_a_protocol_that_fails_loses_its_connection() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with joined() as (protocol, other, _):

            def fail(data: bytes) -> None:
                raise ZeroDivisionError

            protocol.on_data = fail
            await other.write(b"x")
            await until(lambda: protocol.lost)
            assert isinstance(protocol.lost[0], ConnectionLost)
            with pytest.raises(ConnectionLost):
                await other.read(1, 30)

    asyncio.run(main())


def test_streams_of_asyncio_work_over_it() -> None:
    content = random.Random(5).randbytes(300_000)

    async def main() -> None:
        reader = asyncio.StreamReader(limit=1 << 12)
        protocol = asyncio.StreamReaderProtocol(reader)
        async with joined(QUICK._replace(capacity=16), protocol=protocol) as (_, other, _):
            transport = reader._transport  # type: ignore[attr-defined]
            writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
            assert writer.get_extra_info("peername") == "there"
            assert writer.get_extra_info("tunnel").carrier == "memory"

            async def send() -> None:
                for at in range(0, len(content), 5000):
                    writer.write(content[at : at + 5000])
                    await writer.drain()

            async def answer() -> None:
                got = await other.readexactly(len(content), 30)
                await other.write(got[::-1])

            _, _, back = await asyncio.gather(send(), answer(), reader.readexactly(len(content)))
            assert back == content[::-1]
            writer.close()
            assert await other.read(1, 30) == b""
            await writer.wait_closed()
            assert transport.pump.end.state is State.CLOSED
            assert transport.get_protocol() is protocol

    asyncio.run(main())
