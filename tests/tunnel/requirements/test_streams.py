"""Byte streams through a real gateway: whole, in order, and ended in the orderly way, whatever the path does."""

from __future__ import annotations

import asyncio
import hashlib
import io
from random import Random

import pytest

import fairlead
from fairlead.errors import RequestTimeout
from fairlead.testing.server import Server
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.packets import Kind
from fairlead.tunnel.rules import Rules
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.faults import Act
from tests.tunnel.middlebox.proxy import Middlebox
from tests.tunnel.requirements.parts import PLAIN, SOON, joined, opened, serving, until

BOTH = {"push", "pull"}
MB = 1_000_000


async def write_all(stream: TunnelStream, chunks: list[bytes]) -> None:
    for chunk in chunks:
        await stream.write(chunk)


async def check(stream: TunnelStream, chunks: list[bytes]) -> None:
    """Reads as much as was written, in other sizes."""
    expected, chance, at = b"".join(chunks), Random(9), 0
    while at < len(expected):
        data = await stream.read(chance.randint(1, 3000))
        assert data == expected[at : at + len(data)] != b""
        at += len(data)


async def send_all(stream: TunnelStream, data: bytes) -> None:
    await stream.write(data)
    stream.write_eof()


async def read_all(stream: TunnelStream) -> bytes:
    parts = []
    while data := await stream.read():
        parts.append(data)
    return b"".join(parts)


@pytest.mark.requirement("TUN-5")
async def test_a_thousand_chunks_under_loss_duplication_and_reordering(world: World, box: Middlebox) -> None:
    chance = Random(5)
    there = [chance.randbytes(chance.randint(1, 5000)) for _ in range(1000)]
    back = [chance.randbytes(chance.randint(1, 5000)) for _ in range(1000)]
    faults = [
        box.faults.add(Act.DROP_REQUEST, BOTH, share=0.05),
        box.faults.add(Act.DROP_ANSWER, BOTH, share=0.05),
        box.faults.add(Act.REPLAY, {"push"}, share=0.1),
        box.faults.add(Act.DELAY, BOTH, share=0.1, seconds=0.1),
    ]
    async with joined(world, box.address, rules=SOON._replace(payload_max=2000, capacity=64)) as (client, broker, _):
        await asyncio.gather(
            write_all(client, there), write_all(broker, back), check(broker, there), check(client, back)
        )
        assert all(one.done for one in faults)
        box.faults.clear()
        assert all(await asyncio.gather(client.close(), broker.close()))


@pytest.mark.requirement("TUN-18")
async def test_numbers_wrap_round(world: World, box: Middlebox) -> None:
    lost = [box.faults.add(Act.DROP_REQUEST, {"push"}, every=4), box.faults.add(Act.DROP_ANSWER, {"pull"}, every=5)]
    content = Random(4).randbytes(400)
    rules = SOON._replace(first_sequence=2**32 - 10, capacity=16, payload_max=4)
    async with joined(world, box.address, rules=rules) as (client, broker, _):
        for stream, other in ((client, broker), (broker, client)):
            await stream.write(content)
            assert await other.readexactly(len(content)) == content
        numbers = [packet.sequence for packet in box.capture.packets("up") if packet.kind == Kind.DATA]
        assert {2**32 - 1, 0, 1} <= set(numbers)
        assert all(one.done for one in lost)


@pytest.mark.requirement("TUN-89")
async def test_written_and_closed_at_once_with_a_slow_reader(world: World, box: Middlebox) -> None:
    content = Random(6).randbytes(MB)
    box.faults.add(Act.DROP_REQUEST, BOTH, share=0.05)
    box.faults.add(Act.DROP_ANSWER, BOTH, share=0.05)
    rules = SOON._replace(payload_max=8000, capacity=32)
    async with joined(world, box.address, rules=rules) as (client, broker, _):

        async def write_and_close() -> bool:
            await client.write(content)
            return await client.close()

        closing = asyncio.ensure_future(write_and_close())
        got, acked = b"", 0
        while len(got) < MB:
            acked = max((one.sequence for one in box.capture.packets("down") if one.kind == Kind.ACK), default=0)
            got += await broker.read(20_000)
            await asyncio.sleep(0.02)
        assert got == content
        assert await broker.read() == b"", "the end of the stream"
        close = next(one for one in box.capture.packets("up") if one.kind == Kind.CONN_CLOSE)
        assert 0 < acked < close.sequence, "nothing acknowledged the close while there was something to read"
        box.faults.clear()
        assert await closing
        assert await broker.close()


@pytest.mark.requirement("TUN-90")
async def test_both_write_a_megabyte_and_close_at_the_same_time(world: World) -> None:
    there, back = Random(7).randbytes(MB), Random(8).randbytes(MB)
    async with joined(world) as (client, broker, _):
        _, _, got, came = await asyncio.gather(
            send_all(client, there), send_all(broker, back), read_all(broker), read_all(client)
        )
        assert (got, came) == (there, back)
        assert all(await asyncio.gather(client.close(), broker.close()))


@pytest.mark.requirement("TUN-65", "TUN-66")
async def test_a_broker_that_does_not_read_stops_the_writer_of_that_tunnel_only(world: World) -> None:
    rules = Rules(capacity=8, transmit_max=8, payload_max=1000)
    options = PLAIN._replace(rules=rules)
    async with (
        serving(world, rules=rules) as server,
        opened(world, server, options=options) as (full, unread, _),
        opened(world, server, options=options) as (other, read, _),
    ):
        content = Random(1).randbytes(50_000)
        writing = asyncio.ensure_future(full.write(content))
        await until(lambda: unread.status().end.window == 0)
        with pytest.raises(RequestTimeout):
            await full.write(b"x" * 100_000, timeout_s=0.3)
        assert not writing.done()
        assert unread.status().end.readable_bytes <= 8 * 1000
        for number in range(50):  # another tunnel of the same broker
            await other.write(b"%04d" % number)
            assert await read.readexactly(4, 30) == b"%04d" % number
        assert not writing.done()
        assert len(await unread.readexactly(50_000, 30)) == 50_000
        await writing


@pytest.mark.requirement("TUN-33")
async def test_ten_thousand_small_writes_take_few_requests(world: World, box: Middlebox) -> None:
    box.faults.add(Act.DELAY, BOTH, seconds=0.05)
    async with joined(world, box.address) as (client, broker, _):
        content = Random(2).randbytes(10_000)

        async def write() -> None:
            for at in range(len(content)):
                await client.write(content[at : at + 1])
                await asyncio.sleep(0)  # each is on its way before the next one is written

        writing = asyncio.ensure_future(write())
        assert await broker.readexactly(len(content)) == content
        await writing
        assert len(box.capture.of("push")) < 500


@pytest.mark.requirement("TUN-24")
async def test_a_long_message_and_ten_thousand_short_ones() -> None:
    content = Random(3).randbytes(10 * MB)
    with Server(managers=1) as server:
        url = server.url.replace("fairlead://", "http://")
        async with fairlead.connect(url, name="t", tunnel=PLAIN) as connection:
            queue = connection.queue("long")
            await queue.send(io.BytesIO(content))
            async with queue.consume() as consumer:
                message = await consumer.receive(timeout=60)
                assert message is not None
                assert hashlib.sha256(await message.read()).digest() == hashlib.sha256(content).digest()
                await message.ack()
            async with connection.subscribe("short.>") as inbox:
                sent = [b"%010d" % number for number in range(10_000)]
                await connection.publish_many("short.one", sent)
                assert [(await inbox.next(timeout=60)).body for _ in sent] == sent
