"""Whoever reaches a port may send anything: adapters and the administration refuse it, and the stream goes on."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead.feeds import words
from fairlead.feeds.frames import word_frame
from fairlead.testing.feeds import FeedWorld
from tests.feeds_requirements.tools import Line, Reader, line_to, subscribed

HALF_OPEN = 400
GROWN_KB_MAX = 64 << 10


def memory_kb(pid: int) -> int:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1])


def rubbish() -> list[bytes]:
    chance = random.Random(8)
    made = [b"", b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\xff\xff\xff\x7f\x01"]
    made += [chance.randbytes(chance.randrange(1, 2000)) for _ in range(20)]
    deep = b"\x81" * 5000
    made += [(len(deep) + 1).to_bytes(4, "little") + b"\x01" + deep]
    for word in (
        {"say": "hello"},
        {"say": "nothing"},
        {"say": "beat", "epoch": 1},
        [1, 2],
        {"say": "link", "adapter": 7},
    ):
        data = msgspec.msgpack.encode(word)
        made.append((len(data) + 1).to_bytes(4, "little") + b"\x01" + data)
    return made


async def test_garbage_on_the_ports_of_adapters(world: FeedWorld) -> None:
    before = {name: memory_kb(adapter.pid) for name, adapter in world.adapters.items()}
    async with Reader(world) as reader:
        world.source.run(1000)
        for name in world.names:
            for data in rubbish():
                async with Line(world.adapters[name].address) as line:
                    line.writer.write(data)
                    line.writer.write_eof()
                    try:
                        while await line.reader.read(1 << 16):
                            pass
                    except ConnectionError:
                        pass  # that is an answer too
        await reader.reached(world.source.sent)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert not reader.events
    for name, adapter in world.adapters.items():
        assert adapter.runs
        assert memory_kb(adapter.pid) - before[name] < GROWN_KB_MAX


async def test_garbage_on_an_accepted_line_ends_that_line_only(world: FeedWorld) -> None:
    active = await world.active()
    async with Reader(world) as reader:
        for data in rubbish():
            if not data:
                continue
            async with line_to(world, active) as line:
                line.say(words.Start(at="new"))
                line.writer.write(data + b"\xff" * 8)
                line.writer.write_eof()
                while await line.frame() is not None:
                    pass
        for strange in (
            words.Fill(id=1, first=5, last=1),
            words.Fill(id=2, first=1, last=1 << 62),
            words.Fill(id=3, source="nobody", to=5),
            words.FetchAdmin(id=4, admin="nobody"),
            words.SnapshotAsk(id=5),
        ):
            async with line_to(world, active) as line:
                line.say(strange)
                assert await line.answer() is not None, strange
        world.source.send(100)
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


async def test_garbage_in_conversations_with_the_administration(world: FeedWorld) -> None:
    facts = await world.facts()
    async with fairlead.connect(world.server.url, name="evil") as connection:
        for data in rubbish():
            async with connection.converse("_STREAMS") as talk:
                await talk.send(data)
        wrong: list[words.Word] = [
            words.Report(epoch=99, role="active", incarnation=1, last=5),
            words.Renew(),
            words.Role(epoch=99, role="active"),
            words.Register(stream=world.stream, adapter="a", incarnation=1, address="nowhere"),
            words.ClientReport(line="a"),
        ]
        for word in wrong:
            async with connection.converse("_STREAMS") as talk:
                await talk.send(word_frame(word)[5:])
                await talk.send(word_frame(word)[5:])
        async with subscribed(world, stream="nobody-has-this") as (_, answer):
            assert isinstance(answer, words.Refusal)
            assert answer.code == "unknown-stream"
    after = await world.facts()
    assert {key: after[key] for key in ("active", "epoch")} == {key: facts[key] for key in ("active", "epoch")}
    async with Reader(world) as reader:
        world.source.send(100)
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)


@pytest.mark.requirement("STR-84", half="that others are not delayed by more than a test sees")
async def test_a_client_that_never_reads_delays_nobody(world: FeedWorld) -> None:
    active = await world.active()
    before = memory_kb(world.adapters[active].pid)
    async with line_to(world, active) as deaf, Reader(world) as reader:
        sock = deaf.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.say(words.Start(at="oldest"))
        world.source.run(20_000)
        await reader.reached(world.source.sent + 60_000)
        world.source.pause()
        await reader.reached(world.source.sent)
        reader.check(world.source.sent)
        assert not reader.events
    assert memory_kb(world.adapters[active].pid) - before < 2 * GROWN_KB_MAX


async def test_half_open_lines_are_bounded(world: FeedWorld) -> None:
    """Some hundred, so that this test's own descriptors suffice; the bound is a setting (`listen.waiting_max`)."""
    room, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(HALF_OPEN, room // 2)
    active = await world.active()
    host, _, port = world.adapters[active].address.rpartition(":")
    before = memory_kb(world.adapters[active].pid)
    async with Reader(world) as reader:
        made = await asyncio.gather(
            *(asyncio.open_connection(host, int(port)) for _ in range(count)), return_exceptions=True
        )
        lines = [one for one in made if not isinstance(one, BaseException)]
        try:
            world.source.send(500)
            await reader.reached(world.source.sent)
            reader.check(world.source.sent)
            assert memory_kb(world.adapters[active].pid) - before < GROWN_KB_MAX
            async with asyncio.timeout(30):  # nobody who says nothing stays for longer than five seconds
                for incoming, _ in lines:
                    try:
                        while await incoming.read(1024):
                            pass
                    except ConnectionError:
                        pass
        finally:
            for _, writer in lines:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in lines), return_exceptions=True)
        async with line_to(world, active) as line:
            assert line.welcome.adapter == active
