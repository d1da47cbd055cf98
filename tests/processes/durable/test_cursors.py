"""Named cursors of a real server: positions name the same messages, whatever is killed and when."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import fairlead
from fairlead.client.bulk import BulkConnection
from fairlead.errors import BadName, BadParameter, DuplicateSubscription, OffsetGone
from fairlead.testing import Server
from fairlead.wire.column_batch import BODY, DELIVERY_COUNT, OFFSETS, VALUES
from tests.processes.durable.hurting import MM, whole
from tests.processes.durable.steps import becomes, facts, is_silent, take
from tests.processes.tools import NEVER_FROZEN, until

pytestmark = pytest.mark.processes

COLUMNS = 1 << BODY | 1 << DELIVERY_COUNT


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """On a port of its own choice, so that clients find it again when all of it was killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Server(managers=2, listen=f"127.0.0.1:{port}", **NEVER_FROZEN) as one_server:
        yield one_server


@pytest.fixture
def bulk(server: Server) -> Iterator[BulkConnection]:
    with BulkConnection(server.url, name="reader", patience_s=60.0, timeout_s=20.0) as connection:
        yield connection


def bodies(connection: BulkConnection, name: str, first: int, beyond: int, cursor: str = "") -> list[int]:
    """The numbers in the messages of this range."""
    found: list[int] = []
    for batch in connection.scan(name, first, beyond, columns=COLUMNS, cursor=cursor, rows=64):
        offsets = struct.unpack(f"<{batch.rows + 1}i", batch.buffers[BODY, OFFSETS])
        values = bytes(batch.buffers[BODY, VALUES])
        found += [int(values[low:high]) for low, high in pairwise(offsets)]
    return found


async def test_the_message_manager_is_killed_between_every_two_steps(
    server: Server, bulk: BulkConnection, name: str
) -> None:
    """A cursor of a queue and one of a topic, side by side."""
    topic = f"{name}.topic"
    kills = 0

    async def step(on_queue: Callable[[], Any], on_topic: Callable[[], Any]) -> tuple[Any, Any]:
        nonlocal kills
        found = await asyncio.to_thread(lambda: (on_queue(), on_topic()))
        await whole(server)
        server.kill(MM)
        kills += 1
        return found

    async with fairlead.connect(server.url) as connection:
        for number in range(60):
            key = f"k{number % 3}" if number % 2 else None
            await connection.queue(name).send(str(number), key=key, priority=6 if 40 <= number < 50 else 4)
        await connection.admin.execute("create", destination=topic, kind="topic")
        expected = [*range(40, 50), *range(40), *range(50, 60)]
        assert await step(
            lambda: bulk.cursor_open(name, "c", create=True), lambda: bulk.cursor_open(topic, "c", create=True)
        ) == (("queue", 0, 0), ("topic", 1, 1))
        for number in range(1, 41):
            await connection.topic(topic).send(str(number))
        assert await step(
            lambda: bulk.cursor_reserve(name, "c", 0, messages=25), lambda: bulk.cursor_open(topic, "c")
        ) == (25, ("topic", 1, 41))
        assert await step(
            lambda: bodies(bulk, name, 0, 25, "c"), lambda: bulk.cursor_reserve(topic, "c", 1, messages=30)
        ) == (expected[:25], 31)
        assert await step(
            lambda: bulk.cursor_reserve(name, "c", 0, messages=35), lambda: bodies(bulk, topic, 1, 31, "c")
        ) == (35, list(range(1, 31)))
        assert await step(lambda: bulk.cursor_commit(name, "c", 15), lambda: bulk.cursor_commit(topic, "c", 21)) == (
            15,
            21,
        )
        assert await step(
            lambda: (bulk.cursor_commit(name, "c", 15), bulk.cursor_open(name, "c")),
            lambda: (bulk.cursor_commit(topic, "c", 11), bulk.cursor_open(topic, "c")),
        ) == ((15, ("queue", 15, 35)), (21, ("topic", 21, 41)))
        assert bodies(bulk, name, 15, 35, "c") == expected[15:35]
        assert bodies(bulk, topic, 21, 41, "c") == list(range(21, 41))
        for where, gone in ((name, 14), (topic, 20)):
            with pytest.raises(OffsetGone):
                bulk.cursor_reserve(where, "c", gone)
            with pytest.raises(OffsetGone):
                bodies(bulk, where, gone, 30, "c")
            with pytest.raises(BadParameter):
                bulk.cursor_commit(where, "c", 42)
        assert (await facts(connection, topic))["first"] == 21

        # What is reserved, and what has one of its keys, goes to nobody else.
        reserved = {number % 3 for number in expected[15:35] if number % 2}
        free = [number for number in expected[35:] if not number % 2 or number % 3 not in reserved]
        async with connection.queue(name).consume() as consumer:
            assert [int(message.text()) for message in await take(consumer, len(free))] == free
            assert await is_silent(consumer)
        assert (await facts(connection, name))["locked"] == 20
        assert await step(lambda: bulk.cursor_release(name, "c"), lambda: bulk.cursor_release(topic, "c")) == (20, 20)
        left = sorted(set(expected[15:]) - set(free))
        async with connection.queue(name).consume() as consumer:
            back = await take(consumer, len(left))
        numbers = [int(message.text()) for message in back]
        assert sorted(numbers) == left
        for key in (None, "k0", "k1", "k2"):
            mine = [int(message.text()) for message in back if message.key == key]
            assert mine == sorted(mine), "in their old order"
        assert all(message.redelivered for message in back if int(message.text()) in expected[15:35])
        assert (await facts(connection, name))["depth"] == 0
    for where in (name, topic):
        with pytest.raises(BadName):
            bulk.cursor_open(where, "c")
    assert bulk.cursor_open(name, "c", create=True) == ("queue", 35, 35), "no position names two messages"
    assert kills == 7


async def test_readers_and_a_producer_while_the_message_manager_is_killed_again_and_again(
    server: Server, name: str
) -> None:
    total = 6000
    done: Counter[int] = Counter()
    all_sent = asyncio.Event()

    def read(cursor: str) -> None:
        with BulkConnection(server.url, name=cursor, patience_s=60.0, timeout_s=20.0) as bulk:
            at = bulk.cursor_open(name, cursor, create=True).reserved
            while True:
                over = all_sent.is_set()
                end = bulk.cursor_reserve(name, cursor, at, messages=300)
                if end == at:
                    if over:
                        return
                    continue
                first = bodies(bulk, name, at, end, cursor)
                assert bodies(bulk, name, at, end, cursor) == first, "read again it is something else"
                assert len(first) == end - at
                done.update(first)
                assert bulk.cursor_commit(name, cursor, end) == end
                at = end

    async def write() -> None:
        async with (
            fairlead.connect(server.url) as connection,
            connection.queue(name).sender(window=500) as sender,
        ):
            for number in range(total):
                await sender.send(str(number), key=f"k{number % 50}" if number % 3 == 0 else None)
        all_sent.set()

    async def kill() -> None:
        for progress in (0, total // 4, total // 2):
            await until(lambda least=progress: done.total() >= least, 60.0)  # type: ignore[misc]
            await whole(server)
            server.kill(MM)

    async with fairlead.connect(server.url) as connection:
        await connection.admin.execute("create", destination=name, kind="queue")
        await asyncio.gather(write(), kill(), *(asyncio.to_thread(read, cursor) for cursor in ("left", "right")))
        # What one reader had to leave to the other, because of its keys, may be left when both have gone.
        if (await facts(connection, name))["depth"]:
            await asyncio.to_thread(read, "left")
        assert done == Counter(range(total)), "lost, or given twice"
        await becomes(lambda: _is_empty(connection, name))


async def _is_empty(connection: Any, name: str) -> bool:
    found = await facts(connection, name)
    return not (found["depth"] or found["locked"] or found["bytes"])


async def test_who_wants_to_consume_from_a_cursor(server: Server, bulk: BulkConnection, name: str) -> None:
    async with fairlead.connect(server.url) as connection:
        await connection.admin.execute("create", destination=name, kind="topic")
        await asyncio.to_thread(lambda: bulk.cursor_open(name, "taken", create=True))
        (entry,) = [one for one in (await connection.admin.subscriptions())["subscriptions"] if one["name"] == "taken"]
        assert (entry["client"], entry["topics"]) == ("pipeline", [name])
        with pytest.raises(DuplicateSubscription):
            await connection.admin.execute("unsubscribe", client="pipeline", name="taken")


async def test_the_command_line_shows_and_releases_cursors(server: Server, bulk: BulkConnection, name: str) -> None:
    def shell(*arguments: str, code: int = 0) -> str:
        environment = {**os.environ, "FAIRLEAD_URL": server.url}
        command = [sys.executable, "-m", "fairlead", "admin", "cursor", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=60, env=environment)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return (done.stdout if code == 0 else done.stderr).decode()

    async with fairlead.connect(server.url) as connection:
        for number in range(5):
            await connection.queue(name).send(str(number))

        def work() -> None:
            bulk.cursor_open(name, "archive", create=True)
            bulk.cursor_reserve(name, "archive", 0, messages=3)
            bulk.cursor_commit(name, "archive", 1)
            (one,) = json.loads(shell("list", "--destination", name, "--json"))["cursors"]
            assert (one["name"], one["kind"], one["at"], one["reserved"], one["rows"]) == ("archive", "queue", 1, 3, 2)
            assert name in shell("list")
            assert "--yes" in shell("release", "archive", "--destination", name, code=2)
            assert json.loads(shell("release", "archive", "-d", name, "--yes", "--json")) == {"released": 2}
            assert "archive" in shell("release", "archive", "-d", name, "--yes", code=1)
            assert "Example" in shell("release", "--help")

        await asyncio.to_thread(work)
        async with connection.queue(name).consume() as consumer:
            assert [message.text() for message in await take(consumer, 4)] == ["1", "2", "3", "4"]
