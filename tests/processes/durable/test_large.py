"""Very large messages against real processes: streamed, resumed, in order, never in memory as a whole (CLU-93…100)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.testing import Server
from fairlead.wire.durable import KIND_DATA, KIND_PIECE
from tests.processes.durable.test_flow import memory_of, until_async
from tests.processes.tools import NEVER_FROZEN, until

pytestmark = pytest.mark.processes

PATIENCE_S = 30.0
MM = "message-manager"
MIB = 1 << 20
FRAGMENT = 256 << 10
WINDOW = 8 * FRAGMENT
HEAD_BYTES = 32
CHUNK = random.Random(7).randbytes(MIB)


@pytest.fixture(scope="module")
def big() -> Iterator[Server]:
    with Server(managers=2, **{"messages.resend_retention_s": 3}, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


class Flow:
    """An endless source that stops where it is told to, and remembers what it gave."""

    def __init__(self, mib: int, stop_at: int = 1 << 30) -> None:
        self.mib, self.stop_at = mib, stop_at
        self.hash, self.given = hashlib.sha256(), 0
        self.go = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in range(self.mib):
            if self.given >= self.stop_at:
                await self.go.wait()
            piece = number.to_bytes(8, "big") + CHUNK[8:]
            self.hash.update(piece)
            self.given += len(piece)
            yield piece
            await asyncio.sleep(0)


def pieces_sent(connection: Any) -> list[int]:
    """The length of each fragment this connection sends from now on."""
    road, sent = connection.courier.road, []
    before = road.send

    def send(frame: bytes, *rest: Any) -> Any:
        if bytes(frame[4:5]) == bytes((KIND_PIECE,)):
            sent.append(len(frame) - HEAD_BYTES)
        return before(frame, *rest)

    road.send = send
    return sent


async def take(queue: Any, path: Path | None = None) -> tuple[Any, str]:
    """The next message, read piece by piece and acknowledged, and its hash."""
    found = hashlib.sha256()
    async with queue.consume(prefetch=1) as consumer:
        message = await consumer.receive(timeout=PATIENCE_S)
        assert message is not None
        if path is not None:
            await message.save(path)
            with path.open("rb") as file:
                while piece := file.read(MIB):
                    found.update(piece)
        else:
            async for piece in message.stream():
                found.update(piece)
        await message.ack(confirm=True)
    return message, found.hexdigest()


def stored_bytes(server: Server) -> int:
    """Of side files on disk."""
    return sum(one.stat().st_size for one in (server.data / "mm-0" / "large").iterdir())


async def nothing_left(server: Server) -> None:
    await until(lambda: stored_bytes(server) == 0, PATIENCE_S)


@pytest.mark.requirement("CLU-93", state="half", note="fragments are looked at on the way in")
async def test_sizes_around_the_limit_arrive_intact_in_bounded_fragments(big: Server) -> None:
    async with fairlead.connect(big.url) as connection:
        queue = connection.queue("sizes", create=True)
        sent = pieces_sent(connection)
        sizes = [MIB - 300, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * FRAGMENT + 1]
        bodies = [(CHUNK * 2)[:size] for size in sizes]
        for body in bodies:
            await queue.send(body, properties={"size": len(body)})
        async with queue.consume(prefetch=2) as consumer:
            for body in bodies:
                message = await consumer.receive(timeout=PATIENCE_S)
                assert message is not None
                assert (message.size, message.properties["size"]) == (len(body), len(body))
                assert await message.read() == body
                if len(body) > MIB:
                    assert message.is_large
                await message.ack(confirm=True)
        assert sent
        assert max(sent) <= FRAGMENT
    await nothing_left(big)


@pytest.mark.requirement("CLU-56", "CLU-94", "CLU-95", state="scaled", note="64 MiB")
@pytest.mark.requirement("CLU-84", state="half", note="case 3; throughput in place of p99")
@pytest.mark.requirement("CLU-100", "CLU-99")
async def test_a_pipe_of_64_mib_passes_in_little_memory_while_others_talk(big: Server, tmp_path: Path) -> None:
    async with fairlead.connect(big.url) as connection:
        film = connection.session().queue("film", create=True)
        chat = connection.session().queue("chat", create=True)
        await film.send(Flow(3))
        await take(connection.queue("film"))
        pids = {"mm": big.pids(MM)[0], "client": os.getpid()}
        pids |= {f"manager {number}": pid for number, pid in enumerate(big.pids("manager"))}
        before = {who: memory_of(pid) for who, pid in pids.items()}
        most = dict.fromkeys(pids, 0)
        source, talks, over = Flow(64), [], asyncio.Event()

        async def talk() -> None:
            async with chat.consume() as consumer:
                while not over.is_set():
                    began_s = time.monotonic()
                    await chat.send("small")
                    message = await consumer.receive(timeout=PATIENCE_S)
                    assert message is not None
                    await message.ack()
                    talks.append(time.monotonic() - began_s)
                    if len(talks) % 20 == 0:
                        for who, pid in pids.items():
                            most[who] = max(most[who], memory_of(pid) - before[who])

        talking = asyncio.create_task(talk())
        await film.send(source)
        during = len(talks)
        assert [one["uid"] for one in big.status()["connections"]] == [connection.uid]
        message, digest = await take(connection.queue("film"), tmp_path / "film")
        over.set()
        await talking
        assert digest == source.hash.hexdigest()
        assert message.size == 64 * MIB
        assert during >= 20
        assert sorted(talks)[len(talks) * 9 // 10] < 0.5
        assert max(most.values()) < 24 * MIB, most
    await nothing_left(big)


@pytest.mark.requirement("CLU-95", "CLU-98", "CLU-99")
async def test_half_of_it_is_stored_unseen_and_keeps_its_place_in_the_order(big: Server) -> None:
    async with fairlead.connect(big.url) as one, fairlead.connect(big.url) as two:
        queue, source = one.queue("half", create=True), Flow(16, stop_at=8 * MIB)
        sending = asyncio.create_task(queue.send(source))
        await until(lambda: stored_bytes(big) >= 8 * MIB - WINDOW, PATIENCE_S)
        behind = asyncio.create_task(queue.send("behind it"))
        await two.queue("half").send("of another session")
        async with two.queue("half").consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            assert message.text() == "of another session"
            await message.ack(confirm=True)
            assert await consumer.receive(timeout=0.2) is None
        assert (await two.admin.destination(destination="half"))["depth"] == 0
        assert (await two.admin.browse(destination="half"))["messages"] == []
        assert (await two.admin.transfers())["uploads"] == 1
        assert not sending.done()
        assert not behind.done()
        source.go.set()
        await asyncio.gather(sending, behind)
        _, digest = await take(two.queue("half"))
        assert digest == source.hash.hexdigest()
        async with two.queue("half").consume() as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            assert message.text() == "behind it"
            await message.ack(confirm=True)
    await nothing_left(big)


@pytest.mark.requirement("CLU-98")
@pytest.mark.parametrize("victim", ["manager", MM])
async def test_a_transfer_goes_on_where_it_was_when_a_process_dies(big: Server, victim: str) -> None:
    async with fairlead.connect(big.url) as connection:
        queue, source = connection.queue(f"resumed.{victim}", create=True), Flow(16, stop_at=8 * MIB)
        await queue.send("opens it")
        sent = pieces_sent(connection)
        sending = asyncio.create_task(queue.send(source))
        await until(lambda: stored_bytes(big) >= 8 * MIB - WINDOW, PATIENCE_S)
        index = next(one["manager"] for one in big.status()["connections"] if one["uid"] == connection.uid)
        old = big.kill(victim, index if victim == "manager" else 0)
        await asyncio.to_thread(big.wait_until, lambda _: old not in big.pids(victim) and big.pids(victim))
        source.go.set()
        await asyncio.wait_for(sending, PATIENCE_S)
        assert sum(sent) <= 16 * MIB + 2 * WINDOW
        async with connection.queue(f"resumed.{victim}").consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            assert message.text() == "opens it"
            await message.ack(confirm=True)
        _, digest = await take(connection.queue(f"resumed.{victim}"))
        assert digest == source.hash.hexdigest()
        assert (await connection.admin.destination(destination=f"resumed.{victim}"))["depth"] == 0
    await nothing_left(big)


async def restarted(server: Server) -> None:
    old = server.kill(MM)
    await asyncio.to_thread(server.wait_until, lambda _: server.pids(MM) not in ([], [old]))


@pytest.mark.requirement("CLU-98")
async def test_reading_goes_on_too(big: Server) -> None:
    async with fairlead.connect(big.url) as connection:
        queue, source = connection.queue("read", create=True), Flow(12)
        await queue.send(source)
        found, at = hashlib.sha256(), 0
        async with queue.consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            async for piece in message.stream():
                found.update(piece)
                at += len(piece)
                if at == 6 * MIB:
                    await restarted(big)
            assert found.hexdigest() == source.hash.hexdigest()
        again, digest = await take(queue)
        assert again.redelivered
        assert digest == source.hash.hexdigest()
    await nothing_left(big)


@pytest.mark.requirement("CLU-98")
async def test_what_nobody_comes_back_for_is_discarded(big: Server) -> None:
    code = (
        "import asyncio, sys, fairlead\n"
        "async def endless():\n"
        "    for _ in range(8): yield bytes(1 << 20)\n"
        "    print('half', flush=True); await asyncio.sleep(600)\n"
        "async def main():\n"
        "    async with fairlead.connect(sys.argv[1]) as connection:\n"
        "        await connection.queue('orphan', create=True).send(endless())\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, big.url]
    child = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == b"half\n"
        await until(lambda: stored_bytes(big) >= 8 * MIB - WINDOW, PATIENCE_S)
    finally:
        child.kill()
        child.communicate()
    await nothing_left(big)
    async with fairlead.connect(big.url) as connection:
        assert (await connection.admin.transfers())["uploads"] == 0
        assert (await connection.admin.destination(destination="orphan"))["depth"] == 0


@pytest.mark.requirement("CLU-98", "CLU-99")
async def test_a_transfer_given_up_by_the_program_leaves_nothing_and_holds_up_nobody(big: Server) -> None:
    async with fairlead.connect(big.url) as connection:
        queue, source = connection.queue("given.up", create=True), Flow(16, stop_at=4 * MIB)
        sending = asyncio.create_task(queue.send(source))
        await until(lambda: stored_bytes(big) > 0, PATIENCE_S)
        behind = asyncio.create_task(queue.send("behind it"))
        await asyncio.sleep(0.05)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(behind, PATIENCE_S)
        await nothing_left(big)
        assert (await connection.admin.transfers())["uploads"] == 0
        await queue.send(Flow(3), timeout=PATIENCE_S)
        assert (await connection.admin.destination(destination="given.up"))["depth"] == 2
        await connection.admin.purge(destination="given.up")
    await nothing_left(big)


@pytest.mark.requirement("CLU-98")
async def test_in_a_transaction_it_is_seen_after_the_commit_and_discarded_with_a_rollback(big: Server) -> None:
    async with fairlead.connect(big.url) as connection:
        queue = connection.queue("transacted", create=True)
        await queue.send("opens it")
        async with connection.transaction() as transaction:
            source = Flow(4)
            await transaction.send("transacted", source)
            assert (await connection.admin.destination(destination="transacted"))["depth"] == 1
        assert (await connection.admin.destination(destination="transacted"))["depth"] == 2
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction() as transaction:
                await transaction.send("transacted", Flow(4))
                raise ZeroDivisionError
        assert (await connection.admin.destination(destination="transacted"))["depth"] == 2
        await until(lambda: stored_bytes(big) == 4 * MIB, PATIENCE_S)
        async with queue.consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            await message.ack(confirm=True)
        assert (await take(queue))[1] == source.hash.hexdigest()
    await nothing_left(big)


@pytest.mark.requirement("CLU-100")
async def test_a_reader_that_stops_early_gets_no_more_and_an_early_ack_takes_nothing_away(big: Server) -> None:
    async with fairlead.connect(big.url) as connection:
        queue, source = connection.queue("early", create=True), Flow(16)
        await queue.send(source)
        road, came = connection.courier.road, [0]
        before = road.on_frames

        def on_frames(run: list[Any]) -> None:
            came[0] += sum(len(message.body) for message in run if message.kind == KIND_DATA)
            before(run)

        connection.courier.road.on_frames = on_frames
        async with queue.consume(prefetch=1) as consumer:
            message = await consumer.receive(timeout=PATIENCE_S)
            assert message is not None
            stream, at = message.stream(), 0
            while at < 16 * MIB // 10:
                at += len(await stream.piece())
            await stream.close()
            await until_async(lambda: downloads(connection), 0)
            await connection.queue("early.other", create=True).send("behind what was under way")
            assert at <= came[0] <= at + 2 * WINDOW
            await message.retry(confirm=True)
            again = await consumer.receive(timeout=PATIENCE_S)
            assert again is not None
            stream, found = again.stream(), hashlib.sha256()
            found.update(await stream.piece())
            await again.ack(confirm=True)
            while piece := await stream.piece():
                found.update(piece)
            assert found.hexdigest() == source.hash.hexdigest()
        await until_async(lambda: downloads(connection), 0)
    await nothing_left(big)


async def downloads(connection: Any) -> int:
    found: int = (await connection.admin.transfers())["downloads"]
    return found
