"""One message of 8 GiB: how much each process grows while it passes, and how long small messages take meanwhile.

python benchmarks/durable/large.py [--scale 1] [--data DIR]
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fairlead
from benchmarks.durable.common import Rows, main, memory, mib, ms, processes, quantile, rss, scaled
from fairlead.testing import Server

SIZE = 8 << 30
PIECE = 1 << 20


class Peaks:
    """The highest memory of each process while something goes on, looked at ten times a second."""

    def __init__(self, server: Server) -> None:
        self.before = memory(server)
        self.highest = dict(self.before)
        self._pids = processes(server)

    async def watch(self) -> None:
        while True:
            for name, pid in self._pids.items():
                self.highest[name] = max(self.highest[name], rss(pid))
            await asyncio.sleep(0.1)

    def growth(self) -> str:
        return ", ".join(f"{name} {mib(self.highest[name] - self.before[name])}" for name in self.before)


async def measure(server: Server, scale: float) -> Rows:
    pieces = scaled(SIZE // PIECE, scale, 16)
    digest = hashlib.sha256()
    rows: Rows = [("size", mib(pieces * PIECE))]

    async def body() -> AsyncIterator[bytes]:
        for number in range(pieces):
            piece = number.to_bytes(8, "little") * (PIECE // 8)
            digest.update(piece)
            yield piece

    async with (
        fairlead.connect(server.url, name="large") as sender,
        fairlead.connect(server.url, name="small") as small,
        fairlead.connect(server.url, name="reader") as reader,
    ):
        await small.queue("small", create=True).send(b"x")
        quiet = await small_sends(small, 0.5)
        peaks = Peaks(server)
        watching = asyncio.create_task(peaks.watch())
        began_s = time.perf_counter()
        sending = asyncio.create_task(sender.queue("large", create=True).send(body()))
        meanwhile = await small_sends(small, 0.2, sending)
        await sending
        sent_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        async with reader.queue("large").consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=60)
            assert message is not None
            found = hashlib.sha256()
            reading = asyncio.create_task(read(message, found))
            meanwhile += await small_sends(small, 0.2, reading)
            await reading
            await message.ack(confirm=True)
        received_s = time.perf_counter() - began_s
        watching.cancel()
        assert found.digest() == digest.digest()
    total = pieces * PIECE
    rows += [
        ("sent, confirmed", f"{sent_s:.1f} s ({mib(total / sent_s)}/s)"),
        ("received, acknowledged", f"{received_s:.1f} s ({mib(total / received_s)}/s)"),
        ("most that each process grew", peaks.growth()),
        ("small confirmed sends before, p50 / p99", f"{ms(quantile(quiet, 0.5))} / {ms(quantile(quiet, 0.99))}"),
        ("meanwhile, p50 / p99", f"{ms(quantile(meanwhile, 0.5))} / {ms(quantile(meanwhile, 0.99))}"),
    ]
    return rows


async def read(message: fairlead.StoredMessage, digest: hashlib._Hash) -> None:
    async for piece in message.stream():
        digest.update(piece)


async def small_sends(
    connection: fairlead.Connection, least_s: float, until: asyncio.Task[object] | None = None
) -> list[float]:
    """Latencies of confirmed sends, one after the other, until the task is done and some time has passed."""
    queue, found, ends_s = connection.queue("small"), [], time.perf_counter() + least_s
    while time.perf_counter() < ends_s or (until is not None and not until.done()):
        began_s = time.perf_counter()
        await queue.send(b"x")
        found.append(time.perf_counter() - began_s)
    return found


if __name__ == "__main__":
    main(measure, "One very large message")
