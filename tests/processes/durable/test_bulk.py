"""The bulk client and the real server: what is read, staged and published is right, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import re
import ssl
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.bulk import BulkConnection
from fairlead.errors import (
    BadCredentials,
    BadName,
    ConfigError,
    NoDestination,
    NotAllowed,
    StageMissing,
    Unavailable,
)
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write
from fairlead.testing import Server
from fairlead.wire.column_batch import BODY, EVERY, KEY, OFFSETS, ORDER_NUMBER, VALUES, Columns
from fairlead.wire.entry_codec import encode, encode_many
from tests.client.relay import Hurt, Relay
from tests.processes.durable.conftest import Join
from tests.processes.durable.hurting import MM, whole
from tests.processes.test_access import certificate
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
ORDER_AND_BODY = 1 << ORDER_NUMBER | 1 << BODY
ROWS = 500
SECRET = "not to be shown"


def connect(where: Server | Relay, **options: Any) -> BulkConnection:
    return BulkConnection(where.url, **{"patience_s": 20.0, "timeout_s": 10.0, **options})


def bodies_of(batch: Columns) -> list[bytes]:
    offsets = struct.unpack(f"<{batch.rows + 1}i", batch.buffers[BODY, OFFSETS])
    values = bytes(batch.buffers[BODY, VALUES])
    return [values[low:high] for low, high in pairwise(offsets)]


def orders_of(batch: Columns) -> list[int]:
    return list(struct.unpack(f"<{batch.rows}q", batch.buffers[ORDER_NUMBER, VALUES]))


def read(connection: BulkConnection, name: str, **options: Any) -> list[bytes]:
    """Everything there is, by order numbers without a hole."""
    ((position,), _) = connection.positions(name)
    options = {"columns": ORDER_AND_BODY, "rows": ROWS, **options}
    orders: list[int] = []
    bodies: list[bytes] = []
    for batch in connection.scan(name, position.first, position.next, **options):
        orders += orders_of(batch)
        bodies += bodies_of(batch)
    assert orders == list(range(position.first, position.next))
    return bodies


def fill(connection: BulkConnection, name: str, count: int, *, batch: int = 0, kind: str = "queue") -> list[bytes]:
    """Stage rows in many frames, and publish them."""
    rows = [b"%06d" % number + b"." * 200 for number in range(count)]
    stage = connection.stage(name, "fill", query=name, batch=batch, kind=kind, create=True)
    for at in range(0, count, 100):
        stage.send(encode_many(rows[at : at + 100]), len(rows[at : at + 100]))
    assert stage.finish() == count
    assert connection.publish(name, batch, [("fill", {name: count})]) == ("now", count)
    return rows


@pytest.fixture
def bulk(durable_server: Server) -> Iterator[BulkConnection]:
    with connect(durable_server) as connection:
        yield connection


# Together.


def test_what_is_published_can_be_read(bulk: BulkConnection, name: str) -> None:
    rows = fill(bulk, name, 3000)
    assert read(bulk, name) == rows
    assert read(bulk, name, columns=EVERY) == rows
    assert read(bulk, name, ahead=100, rows=64) == rows
    assert bulk.plan(name, 1, messages=10).end == 11
    assert bulk.publish(name, 0, [("fill", {name: 3000})]).published == "before"
    assert bulk.stage(name, "fill", query=name, batch=0).is_published
    with pytest.raises(StageMissing):
        bulk.publish(name, 1, [("none", {name: 1})])
    assert bulk.abandon(name, 1) == 0
    with pytest.raises(NoDestination):
        bulk.positions(name + ".no")


def test_what_is_sent_the_ordinary_way_can_be_read(durable_server: Server, bulk: BulkConnection, name: str) -> None:
    async def send() -> None:
        async with fairlead.connect(durable_server.url, name="sender") as connection:
            queue = connection.queue(name)
            await queue.send_many([b"%d" % number for number in range(1500)])
            await queue.send(b"", key="a")

    asyncio.run(send())
    assert read(bulk, name) == [*(b"%d" % number for number in range(1500)), b""]
    (batch,) = bulk.scan(name, 1, 1502, columns=1 << KEY | ORDER_AND_BODY, where={"keys": ["a"]})
    assert orders_of(batch) == [1501]


async def test_rows_come_to_a_consumer_when_they_are_published(join: Join, name: str, bulk: BulkConnection) -> None:
    async with join() as connection, connection.queue(name).consume(prefetch=10) as consumer:
        stage = bulk.stage(name, "s", query=name, batch=7)
        stage.send(encode(b"one", key=b"k") + encode(b"two", priority=9), 2)
        assert stage.finish() == 2
        assert await consumer.receive(timeout=0.1) is None
        assert bulk.publish(name, 7, [("s", {name: 2})]).messages == 2
        got = [await consumer.receive(timeout=10) for _ in range(2)]
    assert {(one.body, one.key, one.priority) for one in got if one} == {(b"one", "k", 4), (b"two", None, 9)}


def test_a_cursor_of_a_queue(bulk: BulkConnection, name: str) -> None:
    rows = fill(bulk, name, 300)
    opened = bulk.cursor_open(name, "c", create=True)
    end = bulk.cursor_reserve(name, "c", opened.at, messages=100)
    assert end - opened.at == 100
    assert bulk.cursor_reserve(name, "c", opened.at, messages=100) == end
    batches = list(bulk.scan(name, opened.at, end, columns=ORDER_AND_BODY, cursor="c"))
    assert [body for batch in batches for body in bodies_of(batch)] == rows[:100]
    assert bulk.cursor_commit(name, "c", end) == end
    assert bulk.cursor_open(name, "c") == ("queue", end, end)
    assert bulk.cursor_reserve(name, "c", end, messages=50) == end + 50
    assert bulk.cursor_release(name, "c") == 50
    with pytest.raises(BadName):
        bulk.cursor_release(name, "c")
    waiting = [b for batch in bulk.scan(name, 1, 301, columns=ORDER_AND_BODY, waiting=True) for b in bodies_of(batch)]
    assert waiting == rows[100:]


def test_a_scan_that_is_given_up(bulk: BulkConnection, name: str) -> None:
    rows = fill(bulk, name, 3000)
    for _ in range(20):  # more than a connection may have open
        scan = bulk.scan(name, 1, 3001, columns=ORDER_AND_BODY, rows=100)
        next(scan)
        scan.close()  # type: ignore[attr-defined]
    assert read(bulk, name) == rows


def test_more_scans_than_may_be_open_wait_for_each_other(durable_server: Server, name: str) -> None:
    with connect(durable_server, patience_s=0.3) as connection:
        fill(connection, name, 200)
        scans = [connection.scan(name, 1, 201, columns=ORDER_AND_BODY, rows=10, ahead=1) for _ in range(17)]
        for scan in scans[:16]:
            next(scan)
        with pytest.raises(Unavailable, match="Tried"):
            next(scans[16])
        assert sum(len(list(scan)) for scan in scans[:16]) == 16 * 19


# Hurt.


@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
def test_a_scan_through_a_bad_line(durable_server: Server, bulk: BulkConnection, name: str, how: Any) -> None:
    rows = fill(bulk, name, 5000)
    hurts = [Hurt(how, after) for after in (300, 100_000, 300_001, 700_000)]
    with Relay(durable_server.port, hurts) as relay:
        with connect(relay, timeout_s=0.5 if how == "stall" else 10) as connection:
            assert read(connection, name) == rows
        assert relay.connections > 3


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
def test_a_stage_through_a_bad_line(
    durable_server: Server, bulk: BulkConnection, name: str, how: Any, way: Any
) -> None:
    afters = (300, 100_000, 400_001, 500_000) if way == "up" else (500, 700, 800)
    with Relay(durable_server.port, [Hurt(how, after, way) for after in afters]) as relay:
        with connect(relay, timeout_s=0.5 if how == "stall" else 10) as connection:
            rows = fill(connection, name, 5000)
        assert relay.connections > 1
    assert read(bulk, name) == rows


def test_an_answer_to_a_publish_that_was_lost(durable_server: Server, bulk: BulkConnection, name: str) -> None:
    stage = bulk.stage(name, "s", query=name, batch=0, kind="queue", create=True)
    stage.send(encode_many([b"x"] * 10), 10)
    stage.finish()
    for after in (2000, 600, 560, 520, 480, 440, 400, 360):
        with Relay(durable_server.port, [Hurt("cut", after)]) as relay, connect(relay) as connection:
            connection.publish(name, 0, [("s", {name: 10})])
    assert read(bulk, name) == [b"x"] * 10


async def test_whatever_is_killed_or_updated() -> None:
    """Rows are staged, published and read meanwhile, by one connection that never hears of it."""
    with Server(managers=2, **NEVER_FROZEN) as server, connect(server) as connection:
        everything: list[bytes] = []

        def work(batch: int) -> None:
            everything.extend(fill(connection, "q", 1000, batch=batch))
            assert read(connection, "q") == everything

        async def hurt() -> None:
            for what in (MM, "manager", "update", MM, "manager"):
                await whole(server)
                if what == "update":
                    await asyncio.to_thread(server.update, "managers")
                else:
                    server.kill(what)

        hurting, batch = asyncio.create_task(hurt()), 0
        while not hurting.done():
            await asyncio.to_thread(work, batch)
            batch += 1
        await hurting
        await whole(server)
        await asyncio.to_thread(work, batch)
        assert server.stop() == 0


def test_an_idle_connection_is_closed_by_the_server_and_nobody_notices() -> None:
    with Server(managers=1, **{"limits.keep_alive_s": 0.1, **NEVER_FROZEN}) as server, connect(server) as connection:
        rows = fill(connection, "q", 3000)
        scan = connection.scan("q", 1, 3001, columns=ORDER_AND_BODY, rows=1000, ahead=1)
        stage = connection.stage("q", "s", query="other", batch=0)
        stage.send(encode_many([b"0"]), 1)
        got = bodies_of(next(scan))
        server.wait_until(lambda report: not report["connections"], timeout_s=30)
        stage.send(encode_many([b"1"]), 1)
        assert stage.finish() == 2
        for batch in scan:
            got += bodies_of(batch)
        assert got == rows
        assert connection.publish("other", 0, [("s", {"q": 2})]).messages == 2
        assert read(connection, "q")[-2:] == [b"0", b"1"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ssl.SSLContext]]:
    data = tmp_path_factory.mktemp("guarded-bulk")
    worker = User(hash=hash_password(SECRET), send=["work.>"], browse=["work.>"], consume=[], create=["work.>"])
    other = User(hash=hash_password(SECRET), send=["work.>"], browse=[], consume=[], create=[])
    write(data / "users.toml", Users({"worker": worker, "other": other}))
    pem, trusting = certificate(data)
    settings: dict[str, Any] = {"security.tls_certificate": str(pem), "security.tls_key": str(pem)}
    with Server(managers=1, data=data, **settings, **NEVER_FROZEN) as server:
        yield server, trusting
        assert server.stop() == 0


def test_rights_and_secrets(guarded: tuple[Server, ssl.SSLContext]) -> None:
    server, trusting = guarded
    url = f"fairleads://localhost:{server.port}"
    with BulkConnection(url, user="worker", password=SECRET, tls=trusting) as connection:
        rows = fill(connection, "work.a", 3000)
        assert read(connection, "work.a") == rows
        for refused in (
            lambda: connection.positions("open.a"),
            lambda: connection.stage("open.a", "s", query="q", batch=0),
            lambda: connection.cursor_open("work.a", "c", create=True),
            lambda: list(connection.scan("open.a", 1, 2, columns=1)),
        ):
            with pytest.raises(NotAllowed) as caught:
                refused()
            assert SECRET not in repr(caught.getrepr(chain=True))
        with BulkConnection(url, user="other", password=SECRET, tls=lambda: trusting) as other:
            with pytest.raises(NotAllowed, match="another user"):
                other.publish("work.a", 1, [])
            with pytest.raises(NotAllowed):
                read(other, "work.a")
    with BulkConnection(url, user="worker", password="wrong", tls=trusting) as wrong, pytest.raises(BadCredentials):
        wrong.positions("work.a")
    with BulkConnection(url, user="worker", password=SECRET) as careless, pytest.raises(ConfigError, match="trusted"):
        careless.positions("work.a")


def test_garbled_bytes_under_tls_are_noticed_wherever_they_are(guarded: tuple[Server, ssl.SSLContext]) -> None:
    server, trusting = guarded
    who: dict[str, Any] = {"user": "worker", "password": SECRET, "tls": trusting, "timeout_s": 5.0}
    with BulkConnection(f"fairleads://localhost:{server.port}", **who) as connection:
        rows = fill(connection, "work.b", 3000)
    hurts = [Hurt("garble", 100), Hurt("garble", 5_000), Hurt("garble", 200_000), Hurt("cut", 400_000)]
    with Relay(server.port, hurts) as relay:
        with BulkConnection(f"fairleads://localhost:{relay.port}", **who) as connection:
            assert read(connection, "work.b") == rows
        assert relay.connections == 5


def test_the_page(durable_server: Server, name: str) -> None:
    """The block of docs/client.md runs as it stands."""
    section = PAGE.read_text(encoding="utf-8").partition("## In bulk")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.S)
    block = block.replace("fairlead://localhost", durable_server.url).replace('"orders"', repr(name))
    exec(compile(block, str(PAGE), "exec"), {})
