"""`fairlead feed run` as a real process beside a real administration: what a line shows, and what an operator sees."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.feeds import words
from fairlead.feeds.records import Record
from fairlead.feeds.speech import FROM_ADMINISTRATION_TO_CLIENT, encode
from fairlead.runtime.local_cluster import free_ports
from fairlead.testing.feed_adapter import toml
from fairlead.testing.feeds import FeedWorld
from fairlead.testing.server import Server
from tests.feeds.raw_line import RawLine, certificate

SOURCE = "exchange:DAY0000001"
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # TLS: this protocol version is not spoken


@pytest.fixture(scope="module")
def world() -> Iterator[FeedWorld]:
    with FeedWorld("ab", relays=False, adapter={"feed.heartbeat_s": 0.3}) as one:
        yield one


class Program:
    """A program that speaks with the administration and the adapters word by word."""

    def __init__(self, brokered: words.Brokered) -> None:
        self.brokered = brokered
        self.offers = {offer.adapter: offer for offer in brokered.lines}

    @property
    def active(self) -> str:
        return self.brokered.lines[0].adapter

    @property
    def backup(self) -> str:
        return self.brokered.lines[1].adapter

    @asynccontextmanager
    async def line(self, adapter: str, client: str = "raw") -> AsyncIterator[tuple[RawLine, words.Welcome]]:
        offer = self.offers[adapter]
        async with RawLine(offer.address) as line:
            line.say(words.Hello(stream="prices", token=offer.token, client=client, epoch=self.brokered.epoch))
            yield line, await line.hear(words.Welcome)


@asynccontextmanager
async def program(world: FeedWorld, client: str = "raw") -> AsyncIterator[Program]:
    """Subscribed, with both lines offered: on a busy machine an adapter may be taken for dead for a moment."""
    async with fairlead.connect(world.url) as connection:
        for _ in range(100):
            async with connection.converse("_STREAMS") as talk:
                await talk.send(encode(words.Subscribe(stream=world.stream, client=client)))
                word = FROM_ADMINISTRATION_TO_CLIENT.decode((await talk.receive(20)).body)
                assert isinstance(word, words.Brokered)
                if len(word.lines) == len(world.names):
                    yield Program(word)
                    return
            await asyncio.sleep(0.1)
        raise AssertionError(world.outputs())


async def settled(world: FeedWorld) -> None:
    """Everybody runs and is synchronised, which needs a source that says something; then it rests."""
    for adapter in world.adapters.values():
        if not adapter.runs:
            adapter.start()
    world.source.run(200)
    await world.until_ready()
    world.source.pause()


def contents(found: list[Record], after: int) -> dict[int, tuple[int, int, int, bytes]]:
    return {one.number: (one.kind, one.sequence, one.part, one.body) for one in found if one.sequence > after}


@pytest.mark.requirement("STR-10")
@pytest.mark.requirement("STR-16")
@pytest.mark.requirement("STR-17")
def test_both_streams_have_the_same_content_under_the_same_numbers(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one:
            assert one.brokered.schema
            assert one.brokered.threshold == 8
            async with one.line(one.active) as (active, first), one.line(one.backup) as (backup, second):
                assert (first.role, second.role) == ("active", "backup")
                before = world.source.sent
                for line in (active, backup):
                    line.say(words.Start(positions={SOURCE: (before, 1, 1)}))
                world.source.send(500)
                both = []
                for line in (active, backup):
                    found: list[Record] = []
                    while not found or found[-1].sequence < before + 500:
                        found += await line.records(1)
                    both.append(contents(found, before))
                assert both[0] == both[1]
                assert len(both[0]) == 500
                assert all(source_sequence > 0 for _, source_sequence, _, _ in both[0].values())

    asyncio.run(work())


@pytest.mark.requirement("STR-29")
def test_an_idle_source_gives_heartbeats_on_both_streams(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with (
            program(world) as one,
            one.line(one.active) as (active, _),
            one.line(one.backup) as (backup, welcome),
        ):
            active.say(words.Start(at="new"))
            for line, role in ((active, "active"), (backup, "backup")):
                began_s = asyncio.get_running_loop().time()
                for _ in range(5):
                    beat = await line.hear(words.Beat)
                    assert beat.role == role
                    assert beat.source_alive
                assert asyncio.get_running_loop().time() - began_s < 20  # five intervals are 1.5 s
                assert beat.epoch == one.brokered.epoch
                assert beat.last >= welcome.first - 1

    asyncio.run(work())


@pytest.mark.requirement("STR-14")
def test_an_old_range_is_repeated_identically_by_either_adapter(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one, one.line(one.active) as (active, _), one.line(one.backup) as (backup, _):
            before = world.source.sent
            active.say(words.Start(positions={SOURCE: (before, 1, 1)}))
            world.source.send(300)
            live: list[Record] = []
            while not live or live[-1].sequence < before + 300:
                live += await active.records(1)
            live = [record for record in live if record.sequence > before]
            for line in (active, backup):
                while (await line.hear(words.Beat)).last < live[-1].number:
                    pass
                line.say(words.Fill(id=1, first=live[100].number, last=live[149].number))
                by_number = await line.filled(1)
                assert isinstance(by_number, list)
                assert [one for one in by_number if live[100].number <= one.number <= live[149].number] == live[100:150]
                line.say(words.Fill(id=2, source=SOURCE, after=live[100].place, to=live[150].sequence))
                by_position = await line.filled(2)
                assert isinstance(by_position, list)
                assert set(live[101:151]) <= set(by_position)
                line.say(words.Fill(id=3, first=1 << 40, last=(1 << 40) + 5))
                assert isinstance(await line.filled(3), words.Unavailable)

    asyncio.run(work())


@pytest.mark.requirement("STR-75", half="roles, incarnation and alignment; clients are not looked at")
def test_an_adapter_that_was_killed_returns_as_backup_with_a_new_incarnation(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one:
            killed, survivor = one.active, one.backup
            incarnation = one.offers[killed].incarnation
            world.source.send(50)
            world.adapters[killed].kill()
            await world.until(lambda: is_active(world, survivor), f"{survivor} is active")
            world.source.send(50)
            world.source.run(200)
            world.adapters[killed].start()
            await world.until_ready()
        async with program(world) as again:
            assert again.brokered.epoch > one.brokered.epoch
            assert (again.active, again.backup) == (survivor, killed)
            assert again.offers[killed].incarnation != incarnation

    asyncio.run(work())


async def is_active(world: FeedWorld, name: str) -> bool:
    return await world.active() == name


def test_sigterm_says_closing_and_ends_in_order(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one, one.line(one.active) as (line, _):
            stopped = one.active
            process = world.adapters[stopped].process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            said = await line.ended()
            assert isinstance(said[-1], words.Closing)
            assert "stopped" in said[-1].why
            assert await asyncio.to_thread(process.wait, 20) == 0
            world.adapters[stopped].process = None
            assert "Traceback" not in world.adapters[stopped].output()
            await world.until(lambda: is_active(world, one.backup), "the other one is active")

    asyncio.run(work())


@pytest.mark.requirement("STR-26", half="the shift is seen on the wire; what a client makes of it is shown elsewhere")
def test_a_shift_on_order_moves_the_numbers_under_a_new_incarnation(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one, one.line(one.backup) as (line, welcome):
            before = (await line.hear(words.Beat)).last
            answer = await asyncio.to_thread(world.adapters[one.backup].fault, "shift", by=7)
            assert answer["ok"]
            beat = await line.hear(words.Beat)
            while beat.incarnation == welcome.incarnation:
                beat = await line.hear(words.Beat)
            assert beat.last == before + 7
            counters = (await asyncio.to_thread(world.adapters[one.backup].fault, "counters"))["counters"]
            assert counters["lines"] == 1
            unknown = await asyncio.to_thread(world.adapters[one.backup].fault, "dance")
            assert not unknown["ok"]
            assert "dance" in unknown["why"]
        world.adapters[one.backup].kill()

    asyncio.run(work())


@pytest.mark.requirement("STR-3", half="one line of one adapter; rates are not compared")
def test_lines_go_on_without_the_administration_and_nobody_new_comes_in(world: FeedWorld) -> None:
    async def work() -> None:
        await settled(world)
        async with program(world) as one, one.line(one.active) as (line, _):
            line.say(words.Start(at="new"))
            line.say(words.FetchAdmin(id=1, admin="none"))
            await line.hear(words.Unavailable)
            await asyncio.to_thread(world.server.stop)
            last = world.source.send(100)
            found = await line.records(100)
            assert found[-1].sequence == last
            async with RawLine(one.offers[one.active].address) as stranger:
                stranger.say(words.Hello(stream="prices", token="guessed", client="x"))
                assert isinstance((await stranger.ended())[0], words.Refusal)
            async with one.line(one.active) as (again, welcome):  # whoever has a token may come back
                assert welcome.role == "active"
                await again.hear(words.Beat)
            await asyncio.to_thread(world.server.start)
            await world.until(lambda: is_active(world, one.active), "it is registered again, and active")
            world.source.send(5)
            assert (await line.records(5))[-1].sequence == last + 5

    asyncio.run(work())


def test_the_active_also_publishes_to_a_topic() -> None:
    async def work(world: FeedWorld, url: str) -> None:
        async with fairlead.connect(url) as connection, connection.subscribe("plain.prices") as prices:
            await connection.flush()
            sequences: list[int] = []
            async with asyncio.timeout(30):
                while len(sequences) < 3:  # it may just have become active
                    world.source.send(1)
                    try:
                        message = await prices.next(timeout=0.2)
                    except fairlead.RequestTimeout:
                        continue
                    assert message.headers["feed-stream"] == b"prices"
                    assert message.headers["feed-source"] == SOURCE.encode()
                    assert message.headers["feed-part"] == b"1/1"
                    assert message.headers["feed-kind"] == b"message"
                    assert int(message.headers["feed-number"]) > 0
                    sequences.append(int(message.headers["feed-sequence"]))
            assert sequences == sorted(set(sequences))

    with Server(managers=1) as server:
        output = {"output.topic": "plain.prices", "output.server": server.url}
        with FeedWorld("a", relays=False, adapter=output) as world:
            asyncio.run(work(world, server.url))


def test_lines_and_links_over_tls(tmp_path: Path) -> None:
    pem = str(certificate(tmp_path))

    async def work(world: FeedWorld) -> None:
        await settled(world)  # so the link works
        world.source.send(10)
        async with program(world) as one:
            offer = one.offers[one.backup]
            assert offer.address.startswith("fairleads://127.0.0.1:")
            hello = words.Hello(stream="prices", token=offer.token, client="raw")
            async with RawLine(offer.address, tls=ssl.create_default_context(cafile=pem)) as line:
                line.say(hello)
                await line.hear(words.Welcome)
                line.say(words.Start(at="oldest"))
                assert len(await line.records(10)) >= 10
            async with RawLine(offer.address) as plain:
                plain.say(hello)
                async with asyncio.timeout(20):
                    assert await plain.reader.read() in (b"", ALERT)

    tls = {"feed.heartbeat_s": 0.3, "listen.tls_certificate": pem, "listen.tls_key": pem, "listen.tls_ca": pem}
    with FeedWorld("ab", relays=False, adapter=tls) as world:
        asyncio.run(work(world))


# Without a world: what an operator sees.


def adapter_process(tmp_path: Path, url: str, **sections: dict[str, object]) -> subprocess.Popen[str]:
    settings: dict[str, object] = {
        "feed": {"stream": "prices", "name": "a"},
        "administration": {"url": url, "retry_s": 0.1},
        "listen": {"address": "127.0.0.1:0"},
        "source": {"kind": "generator", "id": "DAY", "rate": 100},
        "convert": {"converter": "itch"},
    }
    config = tmp_path / "feed.toml"
    config.write_text(toml({**settings, **sections}), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", "feed", "run", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_until(process: subprocess.Popen[str], words_wanted: str) -> list[str]:
    """The lines of standard error up to the one with these words."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if words_wanted in line:
            return lines
    raise AssertionError(f"never said {words_wanted!r}:\n{''.join(lines)}")


def test_an_adapter_without_an_administration_says_so_and_waits(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = adapter_process(tmp_path, f"fairlead://127.0.0.1:{port}")
    try:
        (sentence,) = said_until(process, "waits for it")[-1:]
        assert f"127.0.0.1:{port} cannot be reached" in sentence
        with Server(command=("streams", "serve"), managers=1, listen=f"127.0.0.1:{port}"):
            said_until(process, "adapter a is active in epoch 1")
        said_until(process, "streams go on without it")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_an_adapter_without_the_right_ends_with_one_sentence(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    subprocess.run(
        [
            *(sys.executable, "-m", "fairlead", "user", "add", "feeds"),
            *("--password-stdin", "--file", str(users), "--publish", "stream.other"),
        ],
        input="secret-one\n",
        text=True,
        check=True,
        capture_output=True,
    )
    guarded: dict[str, Any] = {"security.users": str(users)}
    with Server(command=("streams", "serve"), managers=1, **guarded) as server:
        login: dict[str, object] = {"url": server.url, "user": "feeds", "password": "secret-one"}
        process = adapter_process(tmp_path, server.url, administration=login)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Traceback" not in told
        assert told.strip().splitlines()[-1].startswith("fairlead: ")
        process = adapter_process(tmp_path, server.url, administration={**login, "password": "wrong"})
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Traceback" not in told


def test_a_port_that_is_taken_is_said_in_one_sentence(tmp_path: Path, world: FeedWorld) -> None:
    address = world.adapters["a"].address
    if not world.adapters["a"].runs:
        asyncio.run(settled(world))
    process = adapter_process(tmp_path, world.server.url, listen={"address": address})
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"cannot listen on {address}" in told
    assert "Traceback" not in told


def test_the_commands_that_need_no_server(tmp_path: Path) -> None:
    def feed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fairlead", "feed", *arguments], capture_output=True, text=True, check=False
        )

    config = tmp_path / "feed.toml"
    example = feed("example").stdout
    config.write_text(example, encoding="utf-8")
    assert time.time() - tomllib.loads(example)["source"]["start_at"] < 60, "two adapters of it are in phase"
    assert feed("check", "--config", str(config)).stdout == "The configuration is good.\n"
    bad = feed("check", "--config", str(config), "--set", "feed.threshhold=3", "--json")
    assert bad.returncode == 1
    assert "did you mean `threshold`?" in json.loads(bad.stdout)["problem"]
    assert feed("run", "--config", str(tmp_path / "none.toml")).returncode == 2
    assert "fairlead feed example" in feed("check", "--config", str(tmp_path / "none.toml")).stderr
    helped = feed("--help").stdout
    for name in ("run", "check", "example", "generate"):
        assert name in helped
    assert "--faults" not in feed("run", "--help").stdout
