"""`connection.stream()` with real adapters and a real administration: what an application sees, and keeps."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fairlead
import fairlead.sync
from fairlead import errors
from fairlead.feeds.events import FailedOver
from fairlead.feeds.records import MESSAGE, Place
from fairlead.testing.feeds import FeedWorld
from tests.processes.test_access import certificate

PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
SOURCE = "exchange:DAY0000001"


@pytest.fixture(scope="module")
def lasting() -> Iterator[FeedWorld]:
    with FeedWorld(
        "ab", relays=False, adapter={"feed.heartbeat_s": 0.1, "feed.snapshots": True, "convert.keys": ["key"]}
    ) as one:
        yield one


@pytest.fixture
def world(lasting: FeedWorld) -> FeedWorld:
    asyncio.run(lasting.restore())
    return lasting


async def sequences(stream: Any, until: int) -> list[int]:
    """Of all messages of the source up to this one."""
    found: list[int] = []
    while not found or found[-1] < until:
        found += [one.sequence for one in await stream.batch(timeout=PATIENCE_S) if one.kind == MESSAGE]
    return found


@pytest.mark.requirement("STR-24")
async def test_what_waits_in_a_slow_program_survives_the_death_of_the_active(world: FeedWorld) -> None:
    first = world.source.sent + 1
    async with fairlead.connect(world.url) as connection, connection.stream(world.stream, buffer=500) as stream:
        world.source.send(5000)
        taken = await stream.batch(10, timeout=PATIENCE_S)
        assert stream.position == {SOURCE: Place(first + 9)}
        await world.until(lambda: stream.counters["waiting"] >= 500, "messages wait")
        dead = stream.line
        world.adapters[dead].kill()
        world.source.send(5000)
        seen = [one.sequence for one in taken] + await sequences(stream, first + 9999)
        assert seen == list(range(first, first + 10_000))
        assert stream.line != dead
        assert stream.counters["delivered"] == 10_000
        assert stream.position == {SOURCE: Place(first + 9999)}


async def test_a_program_that_was_killed_goes_on_from_the_position_it_kept(world: FeedWorld, tmp_path: Path) -> None:
    kept, program = tmp_path / "kept.json", tmp_path / "program.py"
    program.write_text(PROGRAM)
    first = world.source.sent + 1
    start = {SOURCE: [first - 1, 1, 1]}
    kept.write_text(json.dumps({"position": start, "seen": []}))
    for round_ in range(3):
        world.source.send(1000)
        last = first + 1000 * (round_ + 1) - 1
        words = [sys.executable, str(program), world.url, world.stream, str(kept), str(last if round_ == 2 else 0)]
        process = await asyncio.create_subprocess_exec(*words)
        if round_ < 2:
            enough = [first + 1000 * round_ + 300]
            await world.until(partial(_is_past, kept, enough), "progress")
            process.kill()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        if round_ == 1:
            world.adapters[await world.active()].kill()
    assert json.loads(kept.read_text())["seen"] == list(range(first, first + 3000))


def _is_past(kept: Path, enough: list[int]) -> bool:
    return bool(json.loads(kept.read_text())["seen"][-1:] >= enough)


PROGRAM = """
import asyncio, json, os, sys
import fairlead

async def main(url, name, file, last):
    told = json.load(open(file))
    async with fairlead.connect(url) as connection:
        async with connection.stream(name, start=told["position"]) as stream:
            while not last or not told["seen"] or told["seen"][-1] < last:
                told["seen"] += [one.sequence for one in await stream.batch(100) if one.kind == 1]
                told["position"] = stream.position
                with open(file + ".new", "w") as out:
                    json.dump(told, out)
                os.replace(file + ".new", file)

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


@pytest.mark.requirement("STR-27")
async def test_a_program_that_knows_nothing_of_events_runs_through_a_failover(world: FeedWorld) -> None:
    first = world.source.sent + 1
    seen = []
    async with fairlead.connect(world.url) as connection:
        stream = connection.stream(world.stream)
        await stream.start()
        world.source.send(1000)
        async for message in stream:
            seen.append((message.sequence, message.record()["number"]))
            if message.sequence == first + 500:
                world.adapters[stream.line].kill()
                world.source.send(1000)
            if message.sequence == first + 1999:
                break
    assert seen == [(n, n) for n in range(first, first + 2000)]


def test_without_an_event_loop(world: FeedWorld) -> None:
    first = world.source.sent + 1
    heard: list[Any] = []
    with fairlead.sync.connect(world.url) as connection:
        assert [one["name"] for one in connection.list_streams()] == [world.stream]
        with connection.stream(world.stream, on_event=heard.append) as stream:
            world.source.send(1000)
            seen = []
            for message in stream:
                seen.append(message.record()["number"])
                if len(seen) == 10:
                    break
            assert stream.position == {SOURCE: Place(first + 9)}
            world.adapters[stream.line].kill()
            world.source.send(1000)
            while seen[-1] < first + 1999:
                seen += [one.sequence for one in stream.batch(timeout=PATIENCE_S)]
            assert seen == list(range(first, first + 2000))
            assert [type(event) for event in heard].count(FailedOver) == 1
            assert stream.counters["delivered"] == 2000
            assert (stream.state, stream.schema is not None) == ("no-backup", True)
            with pytest.raises(errors.RequestTimeout):
                stream.next(timeout=0.05)
            threading.Timer(0.05, stream.close).start()
            assert list(stream) == []  # closed by another thread meanwhile
        with pytest.raises(errors.UnknownStream):
            connection.stream("nobody.knows").start()


@pytest.mark.requirement("STR-74", half="three joins; the failover right behind them is shown elsewhere")
async def test_new_messages_old_ones_or_a_snapshot(world: FeedWorld) -> None:
    world.source.send(100)
    first = world.source.sent + 1
    await world.until(lambda: _has(world, first - 1), "the active has all of it")
    async with (
        fairlead.connect(world.url) as connection,
        connection.stream(world.stream) as new,
        connection.stream(world.stream, start="oldest") as old,
        connection.stream(world.stream, start="snapshot") as state,
    ):
        keys: dict[int, int] = {}
        await world.until(lambda: state.counters["waiting"], "a snapshot")
        world.source.send(50)
        assert await sequences(new, first + 49) == list(range(first, first + 50))
        everything = await sequences(old, first + 49)
        assert everything == list(range(everything[0], first + 50))
        assert everything[0] <= first - 100
        while not keys or max(keys.values()) < first + 49:
            for one in await state.batch(timeout=PATIENCE_S):
                record = one.record()
                keys[record["key"]] = record["number"]
        assert sorted(keys.values()) == list(range(first + 50 - len(keys), first + 50))


async def _has(world: FeedWorld, sequence: int) -> bool:
    facts = await world.adapter_facts(await world.active())
    return bool(facts["positions"].get(SOURCE, [0])[0] >= sequence)


def tail(world: FeedWorld, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead", "streams", "tail", world.stream, "--server", world.url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_tail(world: FeedWorld) -> None:
    world.source.send(20)
    last = world.source.sent
    found = tail(world, "--from", "oldest", "--count", "20", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == 20
    assert [one["record"]["number"] for one in lines] == [one["sequence"] for one in lines]
    assert lines[-1]["sequence"] <= last
    shown = tail(world, "--from", "oldest", "--both", "--timeout", "1")
    assert f"{SOURCE} {last} number={last} part=1" in shown.stdout.splitlines()[-1]
    waited = tail(world, "--timeout", "0.2")
    assert (waited.returncode, waited.stdout) == (3, "")
    assert "Nothing came on" in waited.stderr


def test_tail_shows_events_where_they_happened(world: FeedWorld) -> None:
    command = [sys.executable, "-m", "fairlead", "streams", "tail", world.stream, "--server", world.url, "--events"]
    with subprocess.Popen([*command, "--count", "200"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        asyncio.run(world.until(lambda: _clients(world), "tail has subscribed"))
        world.source.send(100)
        middle = world.source.sent
        lines = []
        for line in process.stdout:
            lines.append(line)
            if f" {middle} " in line:
                world.adapters[asyncio.run(world.active())].kill()
                world.source.send(100)
    assert process.returncode == 0
    switch = next(i for i, line in enumerate(lines) if line.startswith("-- FailedOver"))
    middle_at = next(i for i, line in enumerate(lines) if f" {middle} " in line)
    assert middle_at < switch
    assert len([line for line in lines if not line.startswith("--")]) == 200


async def _clients(world: FeedWorld) -> list[Any]:
    return [one for one in (await world.facts()).get("clients", ()) if one["line"]]


def test_a_stream_nobody_knows_is_told_in_one_sentence(world: FeedWorld) -> None:
    command = [sys.executable, "-m", "fairlead", "streams", "tail", "nobody.knows", "--server", world.url]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("fairlead: ")
    assert len(found.stderr.splitlines()) == 1


def test_lines_with_tls(tmp_path: Path) -> None:
    pem, trusting = certificate(tmp_path)
    settings = {"listen.tls_certificate": str(pem), "listen.tls_key": str(pem), "listen.tls_ca": str(pem)}

    async def story() -> None:
        async with fairlead.connect(secure.url) as connection:
            async with connection.stream(secure.stream, tls=trusting) as stream:
                await secure.until(lambda: stream.line == "a", "a line")
                secure.source.send(100)
                assert len(await sequences(stream, secure.source.sent)) == 100
            async with connection.stream(secure.stream) as stream:  # does not trust that certificate
                await secure.until(lambda: "certificate" in stream._desk._lines.last_trouble, "a refusal")
                assert stream.state == "down"

    async def hears() -> bool:
        facts = await secure.adapter_facts("a")
        return "localhost" in facts["address"] and bool(facts["counters"].get("source_packets"))

    with FeedWorld("a", relays=False, adapter=settings) as secure:
        adapter = secure.adapters["a"]
        adapter.stop()
        port = adapter.settings["listen"]["address"].rpartition(":")[2]
        adapter.settings["listen"]["advertise"] = f"localhost:{port}"  # as the certificate says
        adapter.start()
        asyncio.run(secure.until(hears, "it is back and hears its source"))
        asyncio.run(story())


def test_the_benchmark_of_the_client_runs() -> None:
    words = ["-m", "benchmarks.feeds.client", "--messages", "3000", "--blocks", "100", "--repeats", "1"]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert (found.returncode, found.stderr) == (0, "")
    rows = [json.loads(line) for line in found.stdout.splitlines()[1:]]
    assert {row["way"] for row in rows} == {"async for", "batch", "async for, record()"}
    assert all(row["messages_per_cpu_s"] > 0 for row in rows)
