"""Scans against a real server, with a bare client: every message once and as it was sent, whatever happens beside."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.broker.answers import frame
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, write
from fairlead.testing import Server
from fairlead.wire.column_batch import BODY, DELIVERY_COUNT, KEY, PRIORITY, SIZE, VALIDITY, VALUES
from fairlead.wire.column_codec import parse
from fairlead.wire.durable import (
    KIND_COLUMNS,
    KIND_MORE,
    KIND_SETTLE,
    KIND_WANT,
    SETTLE_ITEM,
)
from tests.processes.durable.scanning import EVERYTHING, ORDER_AND_BODY, Ended, Scanner, rows_of
from tests.processes.durable.test_flow import memory_of
from tests.processes.tools import NEVER_FROZEN

pytestmark = pytest.mark.processes

MIB = 1 << 20
FOREVER = 2**62
SMALL_FILES: dict[str, Any] = {
    "messages.segment_bytes": MIB,
    "messages.checkpoint_bytes": MIB,
    "messages.checkpoint_s": 1,
}


@pytest.fixture
def client(durable_server: Server) -> Iterator[Scanner]:
    with Scanner(durable_server.port) as one:
        yield one


def numbered(first: int, beyond: int, size: int = 0) -> list[bytes]:
    return [(b"%d " % n).ljust(size, b".") for n in range(first, beyond)]


def expected(first: int, beyond: int, size: int = 0) -> list[tuple[int, bytes]]:
    return list(zip(range(first, beyond), numbered(first, beyond, size), strict=True))


@pytest.mark.parametrize("rows", [1_000_000, 333])
def test_everything_in_order_however_it_was_sent(client: Scanner, name: str, rows: int) -> None:
    sender = client.sender(name)
    sender.send(numbered(1, 501))
    sender.send(numbered(501, 3501, 300), each=250)
    sender.send(numbered(3501, 3511, 300_000))
    whole = expected(1, 501) + expected(501, 3501, 300) + expected(3501, 3511, 300_000)
    assert client.rows(name, 1, FOREVER, rows=rows) == whole
    assert client.rows(name, 400, 3505, rows=rows, bytes=65536) == whole[399:3504]
    assert client.rows(name, 3511, FOREVER) == []
    batches = list(client.scan(name, 1, FOREVER, rows=rows, bytes=65536))
    assert all(batch.rows <= rows for batch in batches)
    assert [batch.end for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert [batch.next for batch in batches] == [rows_of(batch)[-1][0] + 1 for batch in batches]
    positions = client.told("positions", destination=name)["destinations"][0]
    assert (positions["first"], positions["next"], positions["low"], positions["kind"]) == (1, 3511, 1, "queue")


def test_reading_locks_nothing_and_counts_nothing(client: Scanner, name: str, durable_server: Server) -> None:
    client.sender(name).send(numbered(1, 101), each=10)
    for _ in range(3):
        (batch,) = client.scan(name, 1, FOREVER, columns=EVERYTHING)
        assert set(batch.buffers[DELIVERY_COUNT, VALUES].cast("i")) == {0}
    with Scanner(durable_server.port) as other:
        session = other.told("session", ack="individual")
        credit = {"messages": 1000, "bytes": MIB}
        consumer = other.told("consume", session=session["session"], destination=name, kind="queue", **credit)
        got: list[tuple[int, bytes]] = []
        while len(got) < 100:
            got += other.delivered()
        assert got == expected(1, 101)
        items = SETTLE_ITEM.pack(1, 51, 0, 0)
        other.send(frame(KIND_SETTLE, number=consumer["consumer"], peer=1, body=items))
        other.expect(0x73)
    assert client.rows(name, 1, FOREVER, jump=True) == expected(51, 101)
    assert client.code("scan", destination=name, first=1, beyond=FOREVER, columns=1) == "offset-gone"


def test_columns_of_keys_priorities_and_a_very_large_message(
    client: Scanner, name: str, durable_server: Server
) -> None:
    async def send() -> None:
        async with fairlead.connect(durable_server.url, name="sender") as connection:
            queue = connection.queue(name, create=True)
            await queue.send("plain")
            await queue.send("keyed", key="k", priority=9, properties={"colour": "red"})
            await queue.send(bytes(3 * MIB))

    asyncio.run(send())
    (batch,) = client.scan(name, 1, FOREVER, columns=EVERYTHING)
    assert batch.rows == 3
    assert list(batch.buffers[PRIORITY, VALUES].cast("i")) == [4, 9, 4]
    assert bytes(batch.buffers[KEY, VALUES]) == b"k"
    assert batch.buffers[KEY, VALIDITY][0] == 0b010
    assert batch.buffers[BODY, VALIDITY][0] == 0b011
    assert list(batch.buffers[SIZE, VALUES].cast("q")) == [5, 5, 3 * MIB]
    (keyed,) = client.scan(name, 1, FOREVER, columns=ORDER_AND_BODY, where={"keys": ["k"]})
    assert rows_of(keyed) == [(2, b"keyed")]


def test_a_topic_is_read_as_long_as_it_is_kept(client: Scanner, name: str) -> None:
    sender = client.sender(name, "topic", retain_messages=-1)
    sender.send(numbered(1, 2001), each=100)
    assert client.rows(name, 1, FOREVER) == expected(1, 2001)
    assert client.rows(name, 1, FOREVER, waiting=True) == []
    assert client.rows(name, 1, FOREVER, cursor="of no matter here") == expected(1, 2001)
    plan = client.told("plan", destination=name, first=501, messages=250)
    assert plan == {"end": 751, "first": 1, "next": 2001}


def test_what_a_transaction_sent_is_where_its_commit_put_it(client: Scanner, name: str, durable_server: Server) -> None:
    async def run() -> None:
        async with (
            fairlead.connect(durable_server.url, name="sender") as connection,
            connection.session(ack="transacted") as session,
        ):
            queue = session.queue(name, create=True)
            await queue.send("hidden 1")
            await queue.send("hidden 2")
            assert client.rows(name, 1, FOREVER) == []
            async with fairlead.connect(durable_server.url, name="other") as other:
                await other.queue(name).send("before")
            await session.commit()

    client.sender(name)
    asyncio.run(run())
    assert client.rows(name, 1, FOREVER) == [(1, b"before"), (2, b"hidden 1"), (3, b"hidden 2")]


def test_several_scans_of_one_connection_at_once(client: Scanner, name: str) -> None:
    client.sender(name).send(numbered(1, 5001, 200), each=100)
    starts = range(1, 5001, 500)
    opened = {
        client.told("scan", destination=name, first=first, beyond=first + 500, columns=ORDER_AND_BODY, rows=70)[
            "scan"
        ]: first
        for first in starts
    }
    found: dict[int, list[tuple[int, bytes]]] = {first: [] for first in starts}
    data: dict[int, bytearray] = {}
    for scan in opened:
        client.more(scan, 8)
    while sum(map(len, found.values())) < 5000:
        got = client.expect(KIND_COLUMNS)
        data.setdefault(got.number, bytearray()).extend(got.body)
        if got.flags & 1:
            found[opened[got.number]] += rows_of(parse(data.pop(got.number)))
            client.more(got.number, 1)
    for first in starts:
        assert found[first] == expected(first, first + 500, 200)


# --- Disturbances ---------------------------------------------------------------------------------------------------
def test_files_are_recycled_and_compacted_under_scans_and_nothing_is_ever_wrong() -> None:
    """A queue is filled and consumed, mostly in order, and scanned over and over meanwhile."""
    size = 3000
    with Server(managers=1, **SMALL_FILES, **NEVER_FROZEN) as server:
        stop = threading.Event()

        def consume(taker: Scanner, consumer: int) -> None:
            left: list[int] = []
            while not stop.is_set():
                some = [order for order, _ in taker.delivered()]
                left += [order for order in some if order % 97 == 0]  # these stay, so that files become sparse
                done = [order for order in some if order % 97] + left[:-30]
                del left[:-30]
                items = b"".join(SETTLE_ITEM.pack(order, order + 1, 0, 0) for order in done)
                taker.send(frame(KIND_SETTLE, number=consumer, body=items))

        with Scanner(server.port) as writer, Scanner(server.port) as taker, Scanner(server.port) as reader:
            sender = writer.sender("busy")
            session = taker.told("session", ack="individual")
            credit = {"messages": 10**6, "bytes": 10**9}
            consumer = taker.told("consume", session=session["session"], destination="busy", kind="queue", **credit)
            thread = threading.Thread(target=consume, args=(taker, consumer["consumer"]))
            thread.start()
            sent, seen, until_s = 1, 0, time.monotonic() + 60
            try:
                while not is_worn(server):
                    assert time.monotonic() < until_s
                    sender.send(numbered(sent, sent + 400, size), each=20)
                    sent += 400
                    server.ask("admin", name="compact", args={})
                    rows = reader.rows("busy", 1, FOREVER, waiting=True, rows=400)
                    orders = [order for order, _ in rows]
                    assert orders == sorted(set(orders))
                    assert all(body == (b"%d " % order).ljust(size, b".") for order, body in rows)
                    seen += len(rows)
            finally:
                stop.set()
                sender.send([b"the last"])
                thread.join(30)
            assert seen
            assert not thread.is_alive()


def is_worn(server: Server) -> bool:
    """Were files given up and messages written again?"""
    facts = json.dumps(server.ask("admin", name="journal", args={}))
    figures = {name: int(figure) for name, figure in re.findall(r'"(\w+)": (\d+)', facts)}
    return figures["reclaimed"] > 3 and figures["compacted"] > 20


def test_damage_ends_a_scan_with_the_range_and_never_shows_a_wrong_byte() -> None:
    with Server(managers=1, **SMALL_FILES, **NEVER_FROZEN) as server:
        with Scanner(server.port) as client:
            client.sender("q").send(numbered(1, 1001, 2000), each=10)
            victim = b"555 ".ljust(2000, b".")
            assert len(client.rows("q", 1, FOREVER)) == 1000
            (path,) = [path for path in Path(server.data).rglob("*.seg") if victim in path.read_bytes()]
            with path.open("r+b") as file:
                at = path.read_bytes().index(victim)
                file.seek(at + 1000)
                file.write(b"!")
            found: list[tuple[int, bytes]] = []
            with pytest.raises(Ended) as ended:
                for batch in client.scan("q", 1, FOREVER, rows=100):
                    found += rows_of(batch)
            assert ended.value.code == "journal-damaged"
            assert "from 501 to 600" in ended.value.text
            assert found == expected(1, 501, 2000)
            assert client.rows("q", 561, FOREVER) == expected(561, 1001, 2000)  # the record of 551 to 560 alone is lost
        events = json.dumps(server.ask("admin", name="log", args={"lines": 50}))
        assert "scan-failed" in events
        os.truncate(path, 4096)
        with Scanner(server.port) as client, pytest.raises(Ended) as ended:
            client.rows("q", 1, FOREVER)
        assert ended.value.code == "journal-damaged"
        path.unlink()
        with Scanner(server.port) as client, pytest.raises(Ended) as ended:
            client.rows("q", 1, FOREVER)
        assert "missing" in ended.value.text


def test_the_same_range_gives_the_same_rows_after_a_crash(name: str) -> None:
    with Server(managers=1, **SMALL_FILES, **NEVER_FROZEN) as server, Scanner(server.port) as client:
        sender = client.sender(name)
        sender.send(numbered(1, 3001, 1000), each=30)
        before = list(client.scan(name, 100, 2900, columns=EVERYTHING, rows=500))
        scan = client.told("scan", destination=name, first=1, beyond=FOREVER, columns=3, rows=10)["scan"]
        client.more(scan, 1)
        client.batch(scan)
        pid = server.kill("message-manager")
        client.notice("interrupted")
        client.notice("back")
        assert server.pids("message-manager") != [pid]
        client.more(scan, 1)  # nobody knows it any more, and nobody is hurt
        after = list(client.scan(name, 100, 2900, columns=EVERYTHING, rows=500))
        for column in ((0, 2), (1, 2), (3, 2), (8, 2), (9, 2)):
            assert b"".join(bytes(one.buffers[column]) for one in after) == b"".join(
                bytes(one.buffers[column]) for one in before
            )


def test_a_client_that_does_not_read_costs_little_and_holds_nobody_up() -> None:
    with Server(managers=1, **NEVER_FROZEN) as server:
        with Scanner(server.port) as client:
            sender = client.sender("q")
            for _ in range(12):
                sender.send([bytes(8000)] * 1000, each=100)
            pids = [*server.pids("manager"), *server.pids("message-manager")]
            (first,) = client.scan("q", 1, 2000, bytes=16 * MIB)
            assert first.rows == 1999
            before = [memory_of(pid) for pid in pids]
            with Scanner(server.port, receive_buffer=65536) as idle:
                facts = {"first": 1, "beyond": FOREVER, "columns": ORDER_AND_BODY, "rows": 10**6, "bytes": 4 * MIB}
                for scan in [idle.told("scan", destination="q", **facts)["scan"] for _ in range(4)]:
                    idle.more(scan, 8)
                assert server.wait_until(lambda report: settled(report, server))
                grown = [memory_of(pid) - size for pid, size in zip(pids, before, strict=True)]
                assert grown[0] < 12 * MIB, grown
                assert grown[1] < 64 * MIB, grown  # four scans: a batch each on its way, and what it is made of
                assert len(client.rows("q", 1, 3000)) == 2999  # others are served
                found, rows = 0, 0
                while rows < 4 * 12_000:
                    got = idle.expect(KIND_COLUMNS)
                    if got.peer == 0:
                        found += 1
                        rows += int.from_bytes(got.body[8:12], "little")
                    if got.flags & 1:
                        idle.more(got.number, 1)
                assert found >= 4 * (12_000 * 8000) // (4 * MIB)
        assert server.stop() == 0


def settled(report: dict[str, Any], server: Server) -> bool:
    """Nothing more moves: the same figures twice."""
    sizes = [one["counters"].get("bytes_out") for one in report["managers"]]
    time.sleep(0.2)
    return sizes == [one["counters"].get("bytes_out") for one in server.status()["managers"]]


def test_deliveries_go_on_while_everything_is_scanned() -> None:
    with (
        Server(managers=1, **NEVER_FROZEN) as server,
        Scanner(server.port) as client,
        Scanner(server.port) as talker,
        Scanner(server.port) as listener,
    ):
        client.sender("bulk").send([bytes(10_000)] * 5000, each=50)
        small = talker.sender("small")
        session = listener.told("session", ack="individual")
        facts = {"destination": "small", "kind": "queue", "messages": 10**6, "bytes": 10**9}
        listener.told("consume", session=session["session"], **facts)
        stop = threading.Event()

        def scan() -> None:
            while not stop.is_set():
                for batch in client.scan("bulk", 1, FOREVER, bytes=16 * MIB, rows=10**6):
                    assert batch.rows

        thread = threading.Thread(target=scan)
        thread.start()
        try:
            times = []
            for n in range(40):
                began_s = time.monotonic()
                small.send([b"%d" % n])
                assert [body for _, body in listener.delivered()] == [b"%d" % n]
                times.append(time.monotonic() - began_s)
        finally:
            stop.set()
            thread.join(30)
        assert sorted(times)[20] < 0.25, times  # with two cores and much else going on; a batch alone may take as long


# --- Who may, and who must not be able to ---------------------------------------------------------------------------
def test_rights(tmp_path: Path) -> None:
    secret = "nobody will guess this one"
    users = {
        "all": User(hash=hash_password(secret)),
        "reader": User(hash=hash_password(secret), send=[], consume=[], browse=["open.>"], create=[]),
    }
    write(tmp_path / "users.toml", Users(users))
    with Server(managers=1, data=tmp_path, **NEVER_FROZEN) as server:

        def known(user: str) -> Any:
            return Scanner(server.port, attach=False).attach(user=user, password=secret)

        with known("all") as everyone, known("reader") as reader:
            for name in ("open.a", "open.b", "closed.a"):
                everyone.sender(name).send(numbered(1, 11))
            assert reader.rows("open.a", 1, FOREVER) == expected(1, 11)
            listed = reader.told("positions", destination="open.>")["destinations"]
            assert sorted(one["name"] for one in listed) == ["open.a", "open.b"]
            for destination in ("closed.a", ">", "*.a", "regex:.*", "_LOG"):
                assert reader.code("positions", destination=destination) == "not-allowed"
            for do in ("plan", "scan"):
                assert reader.code(do, destination="closed.a", first=1, beyond=9, columns=1) == "not-allowed"
                assert reader.code(do, first=1, beyond=9, columns=1) == "bad-request"
            for do in ("full", "room", "gone"):
                assert reader.code(do) == "bad-request"  # only a manager says that


def test_hostile_frames_harm_nobody(client: Scanner, name: str, durable_server: Server) -> None:
    client.sender(name).send(numbered(1, 1001, 100), each=100)
    chance = random.Random(11)
    nasty = [0, 1, -1, 2**31, 2**63, 2**64, 1.5, None, "x", [], {}, [1, 2], {"keys": [7]}, {"keys": ["k"] * 20_000}]
    fields = ["first", "beyond", "columns", "cursor", "waiting", "where", "rows", "bytes", "jump", "destination", "ms"]
    pids = {role: durable_server.pids(role) for role in ("message-manager", "manager")}
    with Scanner(durable_server.port) as enemy:
        for _ in range(120):
            facts: dict[str, Any] = {"destination": name, "first": 1, "beyond": 1001, "columns": 9}
            for _ in range(chance.randrange(3)):
                facts[chance.choice(fields)] = chance.choice(nasty)
            enemy.ask(chance.choice(["scan", "positions", "plan"]), **facts)
            scan, many = chance.randrange(40), chance.choice([0, 1, 9, 2**64 - 1])
            body = bytes(chance.randrange(50))
            enemy.send(frame(KIND_MORE, number=scan, correlation=many, flags=chance.randrange(256), body=body))
            enemy.send(frame(KIND_WANT, number=scan, correlation=many))
    assert client.rows(name, 1, FOREVER) == expected(1, 1001, 100)
    assert {role: durable_server.pids(role) for role in pids} == pids
