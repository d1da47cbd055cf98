"""Stages against a real server: killed at any point, batches are published once, whole and in order."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.bulk import BulkConnection
from fairlead.errors import FairleadError, NotAllowed, StageMissing
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write
from fairlead.testing import Server
from fairlead.wire.durable import KIND_COMMAND
from fairlead.wire.entry_codec import encode
from tests.processes.durable.conftest import Join
from tests.processes.durable.plants import environment_of
from tests.processes.durable.steps import PATIENCE_S, becomes, drained, facts, texts
from tests.processes.durable.test_command_line import Shell
from tests.processes.raw import Raw
from tests.processes.tools import NEVER_FROZEN, frame

pytestmark = pytest.mark.processes

MM = "message-manager"
SMALL_FILES: dict[str, Any] = {"messages.segment_bytes": 1 << 20, "messages.checkpoint_bytes": 2 << 20}


def rows_of(label: str, count: int, size: int = 0, ttl_ms: int = 0) -> bytes:
    return b"".join(encode(f"{label}/{row}".encode().ljust(size, b"."), ttl_ms=ttl_ms) for row in range(count))


def staged(
    bulk: BulkConnection,
    name: str,
    label: str,
    count: int,
    *,
    batch: int,
    query: str = "job",
    frames: int = 3,
    kind: str = "",
    size: int = 0,
    ttl_ms: int = 0,
) -> int:
    """One task's work: rows in several frames, all of them safe."""
    stage = bulk.stage(name, label, query=query, batch=batch, kind=kind, create=True)
    for part in range(frames):
        stage.send(rows_of(f"{batch}/{label}/{part}", count, size, ttl_ms), count)
    return stage.finish()


def expected(batch: int, label: str, count: int, frames: int = 3) -> list[str]:
    return [f"{batch}/{label}/{part}/{row}" for part in range(frames) for row in range(count)]


async def bodies(connection: fairlead.Connection, name: str, count: int = 0) -> list[str]:
    return [message.text().rstrip(".") for message in await drained(connection.queue(name), count)]


# --- One server for all ---------------------------------------------------------------------------------------------
async def test_staged_by_many_and_published_by_one(durable_server: Server, join: Join, name: str) -> None:
    async with join() as connection, connection.topic(f"{name}.t").subscribe("kept") as subscriber:
        heard: list[bytes] = []
        async with connection.subscribe(f"{name}.t") as transient:
            with BulkConnection(durable_server.url) as one, BulkConnection(durable_server.url) as two:
                counts = {name: staged(one, name, "a", 5, batch=3, query=name)}
                other = {
                    name: staged(two, name, "b", 4, batch=3, query=name),
                    f"{name}.t": staged(two, f"{name}.t", "b", 2, batch=3, query=name, kind="topic"),
                }
                assert await subscriber.receive(timeout=0.2) is None
                assert (await facts(connection, name))["depth"] == 0
                with BulkConnection(durable_server.url) as driver:
                    published = driver.publish(name, 3, [("b", other), ("a", counts)])
                    assert published == ("now", 12 + 15 + 6)
                    assert driver.publish(name, 3, [("b", other), ("a", counts)]) == ("before", 33)
                    assert driver.abandon(name, 3) == 0
            assert await bodies(connection, name, 27) == expected(3, "b", 4) + expected(3, "a", 5)
            assert await texts(subscriber, 6) == expected(3, "b", 2)
            for _ in range(6):
                heard.append((await transient.next(timeout=PATIENCE_S)).body)
        assert [body.decode() for body in heard] == expected(3, "b", 2)
        await connection.admin.execute("forget-sink", query=name)
        with BulkConnection(durable_server.url) as driver, pytest.raises(StageMissing):
            driver.publish(name, 3, [("a", counts)])


async def test_an_operator_sees_sinks_and_stages(durable_server: Server, join: Join, name: str) -> None:
    with BulkConnection(durable_server.url) as bulk:
        count = staged(bulk, name, "left", 5, batch=0, query=name)
        bulk.publish(name, 0, [("left", {name: count})])
        staged(bulk, name, "right", 2, batch=1, query=name)
        async with join() as connection:
            execute = connection.admin.execute
            (sink,) = (await execute("sinks", query=name))["sinks"]
            assert (sink["batch"], sink["messages"]) == (0, 15)
            (stage,) = (await execute("stages", query=name))["stages"]
            assert (stage["stage"], stage["destinations"]) == ("right", {name: 6})
            assert (await execute("drop-stage", query=name, batch=1, stage="right"))["messages"] == 6
            assert (await execute("stages", query=name))["total"] == 0
        with pytest.raises(StageMissing):
            bulk.publish(name, 1, [("right", {name: 6})])


def test_the_command_line(durable_server: Server, name: str) -> None:
    shell = Shell(durable_server)
    with BulkConnection(durable_server.url) as bulk:
        bulk.publish(name, 4, [("a", {name: staged(bulk, name, "a", 2, batch=4, query=name)})])
        staged(bulk, name, "b", 1, batch=5, query=name)
    (sink,) = shell.json("admin", "sink", "list", name)["sinks"]
    assert (sink["query"], sink["batch"], sink["messages"]) == (name, 4, 6)
    (stage,) = shell.json("admin", "sink", "stages", name)["stages"]
    assert (stage["batch"], stage["stage"], stage["messages"]) == (5, "b", 3)
    assert shell.json("admin", "sink", "drop", name, "5", "b", "--yes") == {"messages": 3}
    shell("admin", "sink", "forget", name, code=2)  # nobody is there to be asked
    assert shell.json("admin", "sink", "forget", name, "--yes")["batch"] == 4
    assert shell.json("admin", "sink", "list", name)["sinks"] == []


# --- Killed at any point --------------------------------------------------------------------------------------------
class Killer:
    """Kills the message manager so many times, each a moment after something was achieved."""

    def __init__(self, server: Server, kills: int, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._left = kills
        self._over = False
        self._achieved = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._achieved.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        return not self._left

    def achieved(self, result: int) -> int:
        """Something was, so the next kill may come."""
        self._achieved.set()
        return result

    def _run(self) -> None:
        while self._left and not self._over:
            self._achieved.wait()
            time.sleep(self._rng.uniform(0, 0.15) ** 2 * 4)  # where it strikes is left to chance, mostly early
            with suppress(IndexError):  # it is not back yet
                self._server.kill(MM)
                self._left -= 1
                self._achieved.clear()


BATCHES, KILLS = 4, 4


@pytest.mark.requirement("CLU-116", "CLU-155")
@pytest.mark.parametrize("seed", [7])
async def test_killed_at_random_points_every_batch_is_there_once(name: str, seed: int) -> None:
    with Server(managers=1, **SMALL_FILES, **NEVER_FROZEN) as server:
        url, topic = server.url, f"{name}.t"
        async with fairlead.connect(url, name="reader") as reader, reader.topic(topic).subscribe("kept"):
            pass

        def task(label: str, batch: int) -> dict[str, int]:
            with BulkConnection(url, name=f"task-{label}") as bulk:
                to_queue = staged(bulk, name, label, 40, batch=batch, query="q", frames=8)
                killer.achieved(to_queue)
                to_topic = staged(bulk, topic, label, 5, batch=batch, query="q", frames=2)
                return {name: to_queue, topic: killer.achieved(to_topic)}

        batches = 0
        killer = Killer(server, KILLS, seed)
        with ThreadPoolExecutor(2) as pool, BulkConnection(url, name="driver") as driver, killer:
            while batches < BATCHES or not killer.is_done:
                results = pool.map(task, ("a", "b"), (batches, batches))
                stages = list(zip(("a", "b"), results, strict=True))
                assert killer.achieved(driver.publish("q", batches, stages).messages) == 2 * (320 + 10)
                assert driver.publish("q", batches, stages).published == "before"
                driver.abandon("q", batches)  # never undoes it
                batches += 1
        server.wait_until(lambda _: bool(server.pids(MM)), 30)
        async with fairlead.connect(url, name="reader") as connection:
            everything = [
                row for batch in range(batches) for label in ("a", "b") for row in expected(batch, label, 40, 8)
            ]
            assert await bodies(connection, name, len(everything)) == everything
            wanted = [row for batch in range(batches) for label in ("a", "b") for row in expected(batch, label, 5, 2)]
            async with connection.topic(topic).subscribe("kept") as subscriber:
                found = await texts(subscriber, len(wanted))
                assert await subscriber.receive(timeout=0.2) is None
            assert found == wanted
            assert (await connection.admin.execute("stages"))["total"] == 0
            assert (await connection.admin.execute("counters"))["faults"] == 0


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[Server]:
    with Server(managers=1, **SMALL_FILES, **NEVER_FROZEN) as server:
        yield server


def command(raw: Raw, number: int, **asked: Any) -> None:
    raw.send(frame(KIND_COMMAND, number=number, body=json.dumps(asked).encode()))


async def test_a_publish_whose_answer_was_lost_is_answered_before(mortal_server: Server, name: str) -> None:
    await lost_answer(mortal_server, name)


async def lost_answer(server: Server, name: str) -> None:
    with BulkConnection(server.url) as bulk:
        # With a time to live: a restart has to look into the records again.
        counts = {name: staged(bulk, name, "a", 10, batch=0, query=name, ttl_ms=3_600_000)}
        raw = Raw(server.port)
        command(raw, 1, do="publish", query=name, batch=0, stages=[["a", counts]])
        raw.sock.close()  # nobody hears the answer
        async with fairlead.connect(server.url, name="boss") as boss:

            async def is_published() -> bool:
                return bool((await boss.admin.execute("sinks", query=name))["sinks"])

            await becomes(is_published)
        server.kill(MM)
        assert bulk.publish(name, 0, [("a", counts)]) == ("before", 30)
        async with fairlead.connect(server.url, name="reader") as connection:
            assert await bodies(connection, name, 30) == expected(0, "a", 10)


async def test_a_stage_is_filled_on_where_it_stands_after_a_kill(mortal_server: Server, name: str) -> None:
    with BulkConnection(mortal_server.url) as bulk:
        stage = bulk.stage(name, "a", query=name, batch=0, create=True)
        stage.send(rows_of("0/a/0", 100), 100)
        stage.finish()
        mortal_server.kill(MM)
        stage.send(rows_of("0/a/1", 100), 100)
        assert stage.finish() == 200
        assert bulk.publish(name, 0, [("a", {name: 200})]) == ("now", 200)
    async with fairlead.connect(mortal_server.url, name="reader") as connection:
        assert await bodies(connection, name, 200) == expected(0, "a", 100, 2)


async def test_files_with_staged_rows_are_kept_while_others_are_given_up(mortal_server: Server, name: str) -> None:
    await kept_files(mortal_server, name)


async def kept_files(server: Server, name: str) -> None:
    """Traffic fills many files; what was staged early is there at the end, and the disk is not full of the rest."""
    with BulkConnection(server.url) as bulk:
        counts = {name: staged(bulk, name, "early", 200, batch=0, query=name, frames=4, size=4000)}  # some whole files
        async with fairlead.connect(server.url, name="traffic") as connection:
            queue = connection.queue(f"{name}.traffic")
            for _ in range(12):
                await queue.send_many([b"." * 8000] * 256)
                await drained(queue, 256)

            async def few_files() -> bool:
                journal = await connection.admin.execute("journal")
                return int(journal["disk_bytes"]) < 16 << 20 and int(journal["reclaimed"]) > 4

            await connection.admin.execute("checkpoint")
            await becomes(few_files, 30)
        server.kill(MM)
        assert bulk.publish(name, 0, [("early", counts)]) == ("now", 800)
        async with fairlead.connect(server.url, name="reader") as connection:
            for start in range(1, 800, 100):
                page = await connection.admin.execute("browse", destination=name, start=start, count=1)
                assert page["messages"] or page["waits"]  # else it is damaged
            assert await bodies(connection, name, 800) == expected(0, "early", 200, 4)


@pytest.mark.parametrize(("plant", "scenario"), [("forget_batches", lost_answer), ("give_up_staged_files", kept_files)])
async def test_a_planted_bug_is_noticed(
    plant: str, scenario: Callable[[Server, str], Awaitable[None]], name: str
) -> None:
    with (
        Server(managers=1, environment=environment_of(plant), **SMALL_FILES, **NEVER_FROZEN) as server,
        pytest.raises((AssertionError, FairleadError)),
    ):
        await scenario(server, name)


# --- Who may -----------------------------------------------------------------------------------------------------
def test_who_may_stage_and_publish(tmp_path: Path) -> None:
    secret = "open sesame, says nobody"
    hashed = hash_password(secret)
    users = {
        "job": User(hash=hashed, send=["out.>"], create=["out.new.>"]),
        "other": User(hash=hashed, send=[">"]),
        "reader": User(hash=hashed, send=[]),
    }
    write(tmp_path / "users.toml", Users(users))
    with Server(managers=1, data=tmp_path, **NEVER_FROZEN) as server:

        def bulk(user: str) -> BulkConnection:
            return BulkConnection(server.url, user=user, password=secret)

        with bulk("job") as job, bulk("other") as other, bulk("reader") as reader:
            for name in ("in.a", "out.a", "_LOG"):  # no right to send, none to create, the server's own
                with pytest.raises(NotAllowed):
                    staged(job, name, "a", 1, batch=0)
            with pytest.raises(NotAllowed):
                staged(reader, "out.new.a", "a", 1, batch=0)
            counts = {"out.new.a": staged(job, "out.new.a", "a", 1, batch=0)}
            for stranger in (other, reader):
                with pytest.raises(NotAllowed):
                    stranger.publish("job", 0, [("a", counts)])
                with pytest.raises(NotAllowed):
                    stranger.abandon("job", 0)
            with pytest.raises(NotAllowed):
                staged(other, "out.new.a", "a", 1, batch=0)
            assert job.publish("job", 0, [("a", counts)]) == ("now", 3)
            with pytest.raises(NotAllowed):
                other.publish("job", 1, [])
