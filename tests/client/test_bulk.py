"""The bulk client over real sockets: it goes on after whatever happens to a line, or says why it cannot, in time."""

from __future__ import annotations

import pickle
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from fairlead.client.bulk import BulkConnection
from fairlead.errors import (
    BadCredentials,
    ConfigError,
    ConnectionLost,
    DestinationDeleted,
    LocalProtocolError,
    NoMessageManager,
    NotAllowed,
    OffsetGone,
    Refused,
    RemoteProtocolError,
    StoreFull,
    Unavailable,
)
from fairlead.wire import durable, kinds
from fairlead.wire.entry_codec import encode_many
from fairlead.wire.frames import encode_frame
from tests.client.bulk_server import BulkServer, error, notice
from tests.client.relay import Hurt, Relay

BODIES = [b"%05d" % n * 20 for n in range(2000)]
PASSWORD = "ver/y:se@cret"


@pytest.fixture
def server() -> Iterator[BulkServer]:
    with BulkServer(list(BODIES)) as one:
        yield one


def connect(where: BulkServer | Relay, **options: Any) -> BulkConnection:
    return BulkConnection(where.url, **{"patience_s": 10.0, "timeout_s": 5.0, **options})


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def tell(server: BulkServer, connection: BulkConnection, *said: bytes) -> None:
    """Say it on the line there is, and wait until it has arrived."""
    server.lines[-1].say(*said)
    arrived(connection)


def arrived(connection: BulkConnection) -> None:
    assert connection._line is not None
    assert select.select([connection._line._socket], [], [], 10)[0]


def read(connection: BulkConnection, first: int = 1, beyond: int = len(BODIES) + 1, **options: Any) -> bytes:
    batches = connection.scan("d", first, beyond, columns=9, **{"rows": 100, **options})
    return b"".join(bytes(batch.buffers[3, 2]) for batch in batches)


# Asking.


def test_commands_and_their_answers(server: BulkServer) -> None:
    with connect(server) as connection:
        (position,), now_ms = connection.positions("d", ms=5)
        assert (position.name, position.first, position.next, position.at, now_ms) == ("d", 1, 2001, 1, 5)
        assert connection.publish("q", 0, []) == ("now", 0)
        assert connection.publish("q", 0, []).published == "before"
    assert len(server.lines) == 1
    assert server.asked[0] == {"do": "positions", "destination": "d", "ms": 5}


def test_what_may_pass_is_asked_again(server: BulkServer) -> None:
    server.answers["positions"] = [("no-message-manager", ""), ("shutting-down", ""), ("no-message-manager", "")]
    with connect(server) as connection:
        connection.positions("d")
    assert len(server.asked) == 4
    assert len(server.lines) == 1


def test_a_refusal_is_raised_at_once(server: BulkServer) -> None:
    server.answers["positions"] = [("not-allowed", "u may not browse d.")]
    with connect(server) as connection:
        with pytest.raises(NotAllowed, match=r"^u may not browse d\.$"):
            connection.positions("d")
        connection.positions("d")
    assert len(server.asked) == 2


def test_patience_ends(server: BulkServer) -> None:
    server.answers["positions"] = [("no-message-manager", "It is away.")] * 1000
    with connect(server, patience_s=2) as connection:
        began_s = time.monotonic()
        with pytest.raises(NoMessageManager, match=r"It is away\. \(Tried \d+ times in \d+\.\d s\.\)"):
            connection.positions("d")
        assert time.monotonic() - began_s < 10


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with (
        BulkConnection(f"fairlead://u:{quote(PASSWORD, safe='')}@127.0.0.1:{port}", patience_s=0.3) as connection,
        pytest.raises(ConnectionLost, match=r"Cannot connect to .*Tried") as caught,
    ):
        connection.positions("d")
    assert PASSWORD not in repr(caught.getrepr(chain=True))


def test_silence_ends() -> None:
    """It listens, and says nothing."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        BulkConnection(f"fairlead://127.0.0.1:{silent.getsockname()[1]}", patience_s=0.4, timeout_s=0.1) as connection,
    ):
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match="did not answer in time"):
            connection.positions("d")
        assert time.monotonic() - began_s < 15


def test_signs_of_life_are_no_answer(server: BulkServer) -> None:
    """A server that asks whether we are there, without end, does not keep us waiting for what we asked."""
    pings = encode_frame(kinds.KIND_PING, 0, 0, 3, 0, b"", b"", b"") * 1000
    ends_s = time.monotonic() + 5

    def flood() -> None:
        with suppress(OSError):
            while time.monotonic() < ends_s:
                server.lines[0].say(pings)

    with connect(server, patience_s=0.5, timeout_s=0.3) as connection:
        connection.positions("d")
        server.answers["positions"] = [b""] * 100
        flooding = threading.Thread(target=flood)
        flooding.start()
        with pytest.raises(Unavailable):
            connection.positions("d")
        assert time.monotonic() < ends_s
        connection.close()
        server.lines[0].cut()
        flooding.join()


def test_all_addresses_are_tried(server: BulkServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with BulkConnection(f"fairlead://127.0.0.1:{port},127.0.0.1:{server.port}") as connection:
        connection.positions("d")
        server.lines[0].cut()
        connection.positions("d")
    assert len(server.lines) == 2


def test_a_closed_connection_is_closed(server: BulkServer) -> None:
    with connect(server) as connection:
        connection.positions("d")
        connection.close()
        with pytest.raises(LocalProtocolError, match="closed by this program"):
            connection.positions("d")


def test_wrong_credentials_are_not_tried_again(server: BulkServer) -> None:
    server.refused = ("bad-credentials", "")
    with connect(server, user="u", password=PASSWORD) as connection, pytest.raises(BadCredentials) as caught:
        connection.positions("d")
    assert PASSWORD not in repr(caught.getrepr(chain=True))
    assert [(said["user"], said["password"]) for said in server.hellos] == [("u", PASSWORD)]


def test_it_is_pickled_as_its_arguments_and_keeps_its_secret(server: BulkServer) -> None:
    url = server.url.replace("://", "://u:se%2Fcret@")
    with BulkConnection(url, name="reader", tls=None, timeout_s=3) as connection:
        connection.positions("d")
        assert "cret" not in repr(connection)
        assert "'u'" in repr(connection)
        with pickle.loads(pickle.dumps(connection)) as copy:
            copy.positions("d")
    first, second = server.hellos
    assert first["password"] == second["password"] == "se/cret"
    assert first["type"] == second["type"] == "reader"
    assert first["instance"] != second["instance"]
    with pytest.raises(ConfigError) as caught:
        BulkConnection(f"fairlead://u:{PASSWORD}@h:x")
    assert "cret" not in str(caught.value)
    with pytest.raises(ConfigError):
        BulkConnection(server.url, name="a/b")


def test_a_context_made_by_a_function_can_be_pickled() -> None:
    make = partial(ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT)
    with BulkConnection("fairleads://h", tls=make) as connection:
        pickle.loads(pickle.dumps(connection)).close()


# What the server does beside answering.


def test_an_idle_connection_that_was_closed_is_made_anew(server: BulkServer) -> None:
    with connect(server, patience_s=0.5) as connection:
        connection.positions("d")
        for said in (b"", error(0, "keep-alive-timeout"), encode_frame(kinds.KIND_CLOSE, 0, 0, 0, 0, b"", b"", b"")):
            server.lines[-1].say(said)
            server.lines[-1].cut()
            arrived(connection)
            connection.positions("d")
        tell(server, connection, notice(event="interrupted"), notice(event="back"))
        connection.positions("d")
    assert len(server.lines) == 5
    assert len(server.asked) == 5


def test_a_sign_of_life_is_given_when_it_is_used(server: BulkServer) -> None:
    with connect(server) as connection:
        connection.positions("d")
        server.lines[0].say(encode_frame(kinds.KIND_PING, 0, 0, 77, 0, b"", b"", b""))
        connection.positions("d")
        until(lambda: server.lines[0].pongs == [77])


def test_it_moves_when_it_is_asked_to(server: BulkServer) -> None:
    go_away = encode_frame(kinds.KIND_GO_AWAY, 0, 0, 0, 0, b"", b"", b'{"token": "t", "within_s": 30}')
    with connect(server) as connection:
        connection.positions("d")
        tell(server, connection, go_away)
        connection.positions("d")
        assert len(server.lines) == 2
        batches = connection.scan("d", 1, 2001, columns=9, rows=100)
        got = [next(batches)]
        tell(server, connection, go_away)
        got += batches
        assert b"".join(bytes(batch.buffers[3, 2]) for batch in got) == b"".join(BODIES)
        assert len(server.lines) == 3
        assert server.batches_sent == 20  # what was granted was waited for
        stage = connection.stage("d", "s", query="q", batch=0)
        for number in range(30):
            if number == 10:
                tell(server, connection, go_away)
            stage.send(encode_many([b"%d" % number]), 1)
        assert stage.finish() == 30
        assert len(server.lines) == 4
    assert server.staged["s"] == [b"%d" % number for number in range(30)]


# Scans.


def test_a_range_is_read(server: BulkServer) -> None:
    with connect(server) as connection:
        assert read(connection) == b"".join(BODIES)
        assert read(connection, 11, 31, rows=7) == b"".join(BODIES[10:30])
        assert read(connection, 31, 31) == b""
        assert read(connection, 3000, 4000) == b""
        first = next(iter(connection.scan("d", 5, 9, columns=9, where={"keys": ["k"]}, cursor="c", jump=True)))
        assert (first.rows, first.next, first.end) == (4, 9, True)
    asked = server.asked[-1]
    assert (asked["where"], asked["cursor"], asked["jump"], asked["waiting"]) == ({"keys": ["k"]}, "c", True, False)


def test_no_more_is_under_way_than_was_granted(server: BulkServer) -> None:
    with connect(server) as connection:
        for taken, _ in enumerate(connection.scan("d", 1, 2001, columns=9, rows=10), 1):
            assert server.batches_sent <= taken + 2
        assert taken == 200


def test_several_scans_at_a_time(server: BulkServer) -> None:
    with connect(server) as connection:
        one, two = (connection.scan("d", 1, 2001, columns=9, rows=50) for _ in range(2))
        both = [(bytes(a.buffers[3, 2]), bytes(b.buffers[3, 2])) for a, b in zip(one, two, strict=True)]
        assert all(a == b for a, b in both)
        assert b"".join(a for a, _ in both) == b"".join(BODIES)
    assert len(server.lines) == 1


def test_a_scan_that_is_given_up_leaves_the_connection_usable(server: BulkServer) -> None:
    with connect(server) as connection:
        for _ in range(3):
            scan = connection.scan("d", 1, 2001, columns=9, rows=100)
            next(scan)
            scan.close()  # type: ignore[attr-defined]
        until(lambda: not server.lines[0].scans)
        assert read(connection) == b"".join(BODIES)
    assert len(server.lines) == 1


def test_what_a_batch_holds_stays_when_the_next_ones_come(server: BulkServer) -> None:
    with connect(server) as connection:
        batches = list(connection.scan("d", 1, 2001, columns=9, rows=100))
    assert b"".join(bytes(batch.buffers[3, 2]) for batch in batches) == b"".join(BODIES)


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_scan_goes_on_after_losses(server: BulkServer, how: Any) -> None:
    hurts = [Hurt(how, after) for after in (0, 130, 10_000, 25_000, 31_234, 64_000)]
    with Relay(server.port, hurts) as relay, connect(relay) as connection:
        assert read(connection) == b"".join(BODIES)
        assert relay.connections == len(hurts) + 1


def test_a_scan_goes_on_after_a_stall(server: BulkServer) -> None:
    hurts = [Hurt("stall", 30_000), Hurt("stall", 90)]
    with Relay(server.port, hurts) as relay, connect(relay, timeout_s=0.2) as connection:
        assert read(connection) == b"".join(BODIES)
        assert relay.connections == 3


def test_a_scan_ends_when_every_line_is_lost(server: BulkServer) -> None:
    """Bytes come every time, and never a whole batch."""
    with Relay(server.port, [Hurt("cut", 2_000)] * 1000) as relay, connect(relay, patience_s=0.6) as connection:
        began_s = time.monotonic()
        with pytest.raises(ConnectionLost, match="Tried"):
            read(connection)
        assert time.monotonic() - began_s < 20


def test_garbled_bytes_do_not_crash_it(server: BulkServer) -> None:
    """In the head of a frame or of a batch they are noticed, and the scan goes on; nobody can notice them in a body."""
    plain = b"".join(BODIES)
    hurts = [Hurt("garble", after) for after in (0, 33, 84, 142, 150, 160, 174, 190, 210, 230, 260)]
    for hurt in hurts:
        with Relay(server.port, [hurt]) as relay, connect(relay, timeout_s=0.3) as connection:
            got = read(connection)
            assert len(got) == len(plain)
            assert got == plain or relay.connections == 1, hurt


def test_a_message_that_is_gone(server: BulkServer) -> None:
    server.answers["scan"] = [("offset-gone", "lost: [1, 50]")]
    with connect(server) as connection:
        with pytest.raises(OffsetGone, match="lost"):
            read(connection)
        assert read(connection) == b"".join(BODIES)


def test_a_scan_that_ends_with_an_error(server: BulkServer) -> None:
    with connect(server) as connection:
        batches = connection.scan("d", 1, 2001, columns=9, rows=100)
        next(batches)
        tell(server, connection, notice(event="ended", handle=1, code="destination-deleted", text="It was deleted."))
        with pytest.raises(DestinationDeleted):
            list(batches)


def test_a_scan_that_stands_still(server: BulkServer) -> None:
    with connect(server, patience_s=1.0) as connection, pytest.raises(RemoteProtocolError, match="stands still"):
        read(connection, rows=0)


# Stages.


def stage_rows(connection: BulkConnection, name: str, count: int, size: int = 100) -> list[bytes]:
    rows = [b"%05d" % n + bytes(size) for n in range(count)]
    stage = connection.stage("d", name, query="q", batch=0, kind="topic", create=True)
    for at in range(0, count, 50):
        stage.send(encode_many(rows[at : at + 50]), len(rows[at : at + 50]))
        if at == 0:
            assert stage.finish() == min(50, count)  # and it goes on
    assert stage.finish() == stage.rows == stage.rows_safe == count
    return rows


def test_rows_are_staged_and_published_once(server: BulkServer) -> None:
    with connect(server) as connection:
        rows = stage_rows(connection, "one", 500) + stage_rows(connection, "two", 70)
        for expected in (("now", 570), ("before", 0)):
            assert connection.publish("q", 3, [("one", {"d": 500}), ("two", {"d": 70})]) == expected
    assert server.bodies == BODIES + rows
    assert len(server.lines) == 1


def test_an_answer_to_a_publish_that_was_lost(server: BulkServer) -> None:
    with connect(server) as helper:
        rows = stage_rows(helper, "one", 10)
    # CONFIRM and WELCOME pass, the answer does not.
    with Relay(server.port, [Hurt("cut", 84 + 40)]) as relay, connect(relay) as connection:
        assert connection.publish("q", 0, [("one", {"d": 10})]).published == "before"
        assert relay.connections == 2
    assert server.bodies == BODIES + rows


def test_thousands_of_stages_are_published_in_parts_from_the_first_again_after_a_loss(server: BulkServer) -> None:
    names = [f"{number}/0-0123456789abcdef" for number in range(3000)]
    server.staged.update({name: [name.encode()] for name in names})
    server.answers["publish"] = [("out-of-order", "A part is missing.")]
    with Relay(server.port, [Hurt("cut", 84 + 40 + 100)]) as relay, connect(relay) as connection:
        assert connection.publish("q", 0, [(name, {"d": 1}) for name in names]) == ("now", 3000)
        assert relay.connections == 2
    assert server.bodies == BODIES + [name.encode() for name in names]
    numbers = [asked["part"] for asked in server.asked if asked["do"] == "publish"]
    assert numbers.count(0) >= 3, "it was refused once and cut off once"
    assert numbers[-3:] == [0, 1, 2]


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("how", ["cut", "reset", "stall"])
def test_a_stage_goes_on_after_losses(server: BulkServer, way: Any, how: Any) -> None:
    afters = (500, 7_000, 120_000, 60_001, 0) if way == "up" else (10, 180, 240, 400, 0)
    with Relay(server.port, [Hurt(how, after, way) for after in afters]) as relay:
        with connect(relay, timeout_s=0.3 if how == "stall" else 5) as connection:
            rows = stage_rows(connection, "one", 3000)
        assert relay.connections > 2
    assert server.staged["one"] == rows


def test_a_small_window(server: BulkServer) -> None:
    server.window_bytes = 1
    with connect(server) as connection:
        rows = stage_rows(connection, "one", 500)
    assert server.staged["one"] == rows


def test_several_stages_at_a_time(server: BulkServer) -> None:
    with connect(server) as connection:
        stages = [connection.stage(name, name, query="q", batch=0) for name in "abc"]
        for number in range(60):
            if number == 20:
                server.lines[0].cut()
            stages[number % 3].send(encode_many([b"%d" % number]), 1)
        assert [stage.finish() for stage in stages] == [20, 20, 20]
    assert server.staged["b"] == [b"%d" % number for number in range(1, 60, 3)]


def test_rows_that_are_refused(server: BulkServer) -> None:
    server.stored = [None, ("not-allowed", "Not these.")]
    with connect(server) as connection:
        with pytest.raises(NotAllowed, match="Not these"):
            stage_rows(connection, "one", 1000)
        stage = connection.stage("d", "one", query="q", batch=0)
        server.stored = [durable.STORED_REFUSED]
        for _ in range(2):  # and so for ever
            with pytest.raises(Refused):
                stage.send(encode_many([b"x"] * 51), 51)
                stage.finish()


def test_rows_that_are_refused_for_now(server: BulkServer) -> None:
    full = ("store-full", "No room.")
    server.stored = [full, full, None, durable.STORED_VOLATILE]
    with connect(server, timeout_s=0.3) as connection:
        rows = stage_rows(connection, "one", 500)
        assert server.staged["one"] == rows
    server.stored = [full] * 1000
    with connect(server, patience_s=0.4) as connection, pytest.raises(StoreFull, match=r"No room.*Tried"):
        stage_rows(connection, "two", 10)


def test_rows_that_come_out_of_order_are_sent_again(server: BulkServer) -> None:
    server.stored = [None, b""]  # one STORE is lost on the way, which no line does
    with connect(server) as connection:
        rows = stage_rows(connection, "one", 500)
    assert server.staged["one"] == rows


def test_a_server_that_does_not_read() -> None:
    """It opens the stage, and then takes nothing more."""
    with BulkServer() as server:
        stopped = threading.Event()
        with connect(server, patience_s=0.5, timeout_s=0.3) as connection:
            stage = connection.stage("d", "one", query="q", batch=0)
            line = server.lines[0]
            line.take = lambda message: stopped.wait(10)  # type: ignore[method-assign]
            server.answers["stage"] = [b""] * 100
            try:
                with pytest.raises(Unavailable):
                    for _ in range(100):
                        stage.send(encode_many([bytes(1000)] * 900), 900)
            finally:
                stopped.set()
