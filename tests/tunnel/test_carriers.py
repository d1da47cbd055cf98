"""The same service over every carrier, and the same at both ends: one suite for memory, UDP and HTTP, roles swapped."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fairlead.errors import ConnectionLost
from fairlead.tunnel.edge.memory import Faults
from fairlead.tunnel.edge.stream import TunnelStream
from fairlead.tunnel.packets import Kind, Packet
from fairlead.tunnel.rules import Rules
from tests.tunnel import carriers
from tests.tunnel.carriers import QUICK, Joined
from tests.tunnel.gateway_parts import until

CARRIERS = ["memory", "udp", "push_pull", "websocket"]
Test = Callable[[Joined], Coroutine[Any, Any, None]]


class Ways:
    """One carrier and who plays "one"; `run` opens a tunnel over it."""

    def __init__(self, carrier: str, is_swapped: bool) -> None:
        self.carrier = getattr(carriers, carrier)
        self.is_swapped = is_swapped

    def run(self, test: Test, there: Faults | None = None, back: Faults | None = None, **rules: Rules) -> None:
        """`there` is from "one" to "other"; `one` and `other` are their rules."""
        one, other = rules.get("one", QUICK), rules.get("other", QUICK)

        async def main() -> None:
            if self.is_swapped:
                async with self.carrier(back, there, client=other, broker=one) as joined:
                    await test(joined.swapped())
            else:
                async with self.carrier(there, back, client=one, broker=other) as joined:
                    await test(joined)

        asyncio.run(main())


@pytest.fixture(
    params=[*((carrier, False) for carrier in CARRIERS), *((carrier, True) for carrier in CARRIERS[:-1])], ids=str
)
def ways(request: pytest.FixtureRequest) -> Ways:
    return Ways(*request.param)


async def read_all(stream: TunnelStream, sizes: Callable[[], int] = lambda: 1 << 16) -> bytes:
    parts = []
    while data := await stream.read(sizes(), 60):
        parts.append(data)
    return b"".join(parts)


async def send_all(stream: TunnelStream, chunks: list[bytes]) -> None:
    for chunk in chunks:
        await stream.write(chunk, 60)
    stream.write_eof()


def chunks_of(total: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    chunks = []
    while total > 0:
        size = min(rng.choice((1, 10, 500, 3000, 9000)), total)
        chunks.append(rng.randbytes(size))
        total -= size
    return chunks


BAD = {"loss": 0.1, "duplication": 0.1, "reordering": 0.2}


@pytest.mark.requirement("TUN-1")
@pytest.mark.requirement("TUN-3")
@pytest.mark.requirement("TUN-5")
def test_both_ways_at_once_under_loss_duplication_and_reordering(ways: Ways) -> None:
    """1000 chunks of random sizes are read with other sizes (TUN-5)."""
    rng = random.Random(3)
    to_other = [rng.randbytes(rng.randrange(1, 400)) for _ in range(1000)]
    to_one = chunks_of(200_000, 4)

    async def test(tunnel: Joined) -> None:
        _, _, there, back = await asyncio.gather(
            send_all(tunnel.client, to_other),
            send_all(tunnel.broker, to_one),
            read_all(tunnel.broker, lambda: rng.randrange(1, 3000)),
            read_all(tunnel.client, lambda: rng.randrange(1, 3000)),
        )
        assert there == b"".join(to_other)
        assert back == b"".join(to_one)
        assert await asyncio.gather(tunnel.client.close(), tunnel.broker.close()) == [True, True]
        assert tunnel.there.lost > 0

    ways.run(test, Faults(**BAD), Faults(**BAD, seed=2))


@pytest.mark.requirement("TUN-8")
def test_five_per_cent_of_everything_is_lost(ways: Ways) -> None:
    content = random.Random(5).randbytes(300_000)

    async def test(tunnel: Joined) -> None:
        _, got = await asyncio.gather(send_all(tunnel.client, [content]), read_all(tunnel.broker))
        assert got == content

    ways.run(test, Faults(loss=0.05), Faults(loss=0.05, seed=2))


@pytest.mark.requirement("TUN-20", state="scaled", note="300 KB")
def test_damaged_packets_are_counted_and_sent_again(ways: Ways) -> None:
    content = random.Random(6).randbytes(300_000)

    async def test(tunnel: Joined) -> None:
        _, got = await asyncio.gather(send_all(tunnel.client, [content]), read_all(tunnel.broker))
        assert got == content
        assert tunnel.there.flipped > 0
        await until(lambda: tunnel.damaged_there() == tunnel.there.flipped)
        assert tunnel.damaged_back() == 0

    ways.run(test, Faults(flips=0.02), None)


def test_a_big_transfer_both_ways(ways: Ways) -> None:
    content = random.Random(7).randbytes(2 << 20)
    there, back = content, content[::-1]

    async def test(tunnel: Joined) -> None:
        async def check(stream: TunnelStream, expected: bytes) -> None:
            digest, left = hashlib.sha256(), len(expected)
            while left:
                data = await stream.read(1 << 20, 60)
                digest.update(data)
                left -= len(data)
            assert digest.digest() == hashlib.sha256(expected).digest()

        await asyncio.gather(
            tunnel.client.write(there),
            tunnel.broker.write(back),
            check(tunnel.broker, there),
            check(tunnel.client, back),
        )
        assert await asyncio.gather(tunnel.client.close(), tunnel.broker.close()) == [True, True]

    ways.run(test)


def test_a_sleeping_reader_closes_the_window_and_nothing_more_is_sent(ways: Ways) -> None:
    """The writer is stopped by window and transmit buffer, and goes on when the reader does (TUN-65, TUN-83)."""
    rules = QUICK._replace(capacity=8, transmit_max=8)
    content = random.Random(8).randbytes(60_000)
    sent: list[int] = []

    def watch(packet: Packet) -> bool:
        if packet.kind == Kind.DATA:
            sent.append(packet.sequence)
        return False

    async def test(tunnel: Joined) -> None:
        writing = asyncio.ensure_future(send_all(tunnel.client, [content]))
        while tunnel.broker.status().end.window or tunnel.client.status().end.probes < 2:
            await asyncio.sleep(0.01)
        assert not writing.done()
        assert tunnel.broker.status().end.readable_bytes <= 8 * 1200
        assert max(sent) == 9  # the probe carries one and the same number (TUN-84)
        got, _ = await asyncio.gather(read_all(tunnel.broker), writing)
        assert got == content

    ways.run(test, Faults(drop=watch), one=rules, other=rules)


def test_a_lost_window_update_is_found_by_the_probe(ways: Ways) -> None:
    rules = QUICK._replace(capacity=4)
    content = random.Random(9).randbytes(20_000)
    acks = {"drop": False}

    async def test(tunnel: Joined) -> None:
        writing = asyncio.ensure_future(send_all(tunnel.client, [content]))
        while tunnel.client.status().end.acknowledged < 4:
            await asyncio.sleep(0.005)
        acks["drop"] = True
        first = await tunnel.broker.readexactly(4 * 1200, 30)
        probes = tunnel.client.status().end.probes
        while tunnel.client.status().end.probes == probes:
            await asyncio.sleep(0.005)
        acks["drop"] = False
        rest, _ = await asyncio.gather(read_all(tunnel.broker), writing)
        assert first + rest == content

    back = Faults(drop=lambda packet: acks["drop"] and packet.kind == Kind.ACK)
    ways.run(test, None, back, other=rules)


def test_a_slow_reader_gets_everything_before_the_end(ways: Ways) -> None:
    """Written and closed at once; the close is acknowledged after the last byte was read, not before (TUN-89)."""
    content = random.Random(10).randbytes(100_000)
    rules = QUICK._replace(capacity=16)

    async def test(tunnel: Joined) -> None:
        closing = asyncio.ensure_future(send_and_close(tunnel.client))
        got = bytearray()
        while data := await tunnel.broker.read(2000, 60):
            assert not closing.done()
            got += data
            await asyncio.sleep(0.002)
        assert bytes(got) == content
        assert await closing
        assert await tunnel.broker.close()

    async def send_and_close(stream: TunnelStream) -> bool:
        await stream.write(content)
        return await stream.close()

    ways.run(test, Faults(loss=0.1), Faults(loss=0.1, seed=2), other=rules)


def test_both_write_and_close_at_the_same_time(ways: Ways) -> None:
    """Each gets all of the other's bytes (TUN-90)."""
    there, back = random.Random(11).randbytes(200_000), random.Random(12).randbytes(200_000)

    async def test(tunnel: Joined) -> None:
        await asyncio.gather(send_all(tunnel.client, [there]), send_all(tunnel.broker, [back]))
        got_there, got_back = await asyncio.gather(read_all(tunnel.broker), read_all(tunnel.client))
        assert got_there == there
        assert got_back == back

    ways.run(test)


@pytest.mark.requirement("TUN-92")
def test_a_lost_last_ack_is_repeated(ways: Ways) -> None:
    """The ACK of the first close is lost three times: both still finish in the orderly way."""
    lost: list[int] = []

    def drop(packet: Packet) -> bool:
        is_last = packet.kind == Kind.ACK and packet.sequence == 2  # 1 was the data, 2 is the close
        if is_last and len(lost) < 3:
            lost.append(packet.sequence)
            return True
        return False

    async def test(tunnel: Joined) -> None:
        await tunnel.client.write(b"all")
        closing = asyncio.ensure_future(tunnel.client.close())
        assert await read_all(tunnel.broker) == b"all"
        assert await asyncio.gather(closing, tunnel.broker.close()) == [True, True]
        assert len(lost) == 3

    ways.run(test, None, Faults(drop=drop))


def test_an_abort_is_an_error_and_never_an_end_of_stream(ways: Ways) -> None:
    """What came in order before can still be read (TUN-98)."""

    async def test(tunnel: Joined) -> None:
        await tunnel.client.write(b"last words")
        await tunnel.client.flush(30)
        tunnel.client.abort(1, "enough of this")
        assert await tunnel.broker.readexactly(10, 30) == b"last words"
        with pytest.raises(ConnectionLost, match="enough of this"):
            await tunnel.broker.read(100, 30)
        with pytest.raises(ConnectionLost):
            await tunnel.client.write(b"more")

    ways.run(test)


def test_the_broker_may_speak_first_and_the_client_never(ways: Ways) -> None:
    async def test(tunnel: Joined) -> None:
        await tunnel.broker.write(b"welcome")
        assert await tunnel.client.readexactly(7, 30) == b"welcome"

    ways.run(test)
