"""The engine of a connection manager, compiled and plain, between clients on socketpairs and a router made by hand."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.broker.answers import PREFACE, frame
from fairlead.broker.edge import traffic as plain_traffic
from fairlead.broker.outstanding import OutstandingTable, finish_all
from fairlead.runtime import extensions
from fairlead.store import arena, layout, ring
from tests.broker.rig import (
    CLOSE,
    CONFIRM,
    CONNECT,
    CREDIT,
    ERROR,
    FRAGMENT,
    MOVED,
    OK,
    PING,
    PONG,
    PUBLISH,
    REQUEST,
    SUBSCRIBE,
    WELCOME,
    Client,
    Rig,
)

PLAIN = SimpleNamespace(Arena=arena.Arena, Consumer=ring.Consumer, Producer=ring.Producer)
ENGINES: dict[str, tuple[Any, Any]] = {"plain": (plain_traffic.Traffic, PLAIN)}
if not extensions.is_pure():
    from fairlead.broker.edge import _traffic
    from fairlead.store import _store

    ENGINES["compiled"] = (_traffic.Traffic, _store)

Make = Callable[..., Rig]
MESSAGES = (layout.UP_MESSAGE, layout.UP_CONTROL)


@pytest.fixture(params=sorted(ENGINES))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Builds rigs of one engine and takes them down."""
    made: list[Rig] = []

    def build(**how: Any) -> Rig:
        made.append(Rig(*ENGINES[request.param], **how))
        return made[-1]

    yield build
    for one in made:
        faults = one.statistics()["accounting_faults"]
        one.close()
        assert faults == 0


def publish(body: bytes, topic: bytes = b"t", **fields: Any) -> bytes:
    return frame(PUBLISH, topic=topic, body=body, **fields)


def messages(rig: Rig) -> list[Any]:
    """The counted entries the router takes now."""
    return [entry for entry in rig.pop() if entry.kind in MESSAGES]


def bodies(rig: Rig, entries: list[Any]) -> list[bytes]:
    return [rig.arenas[0].read(entry.handle) for entry in entries]


def settle(rig: Rig, entries: list[Any]) -> None:
    """The router has no use for these messages: a lone delete with condition 1 each."""
    for entry in entries:
        if entry.handle:
            rig.instruct(layout.DOWN_DELETE, handle=entry.handle, touch=0, limit=1)
    rig.turn(2)


def pump(rig: Rig, client: Client, data: bytes) -> list[Any]:
    """Send everything, with the router popping as it comes."""
    found: list[Any] = []
    while data:
        try:
            data = data[client.send(data) :]
        except BlockingIOError:
            pass
        rig.turn()
        found += messages(rig)
    rig.turn(4)
    return found + messages(rig)


# --- From the hand-over to the first message ----------------------------------------------------------------------
@pytest.mark.requirement("SRV-30")
@pytest.mark.requirement("SRV-31")
@pytest.mark.requirement("SRV-33")
def test_a_connection_goes_from_preface_to_live_one_step_at_a_time(make: Make) -> None:
    rig = make()
    client = rig.adopt()
    assert rig.turn(2) == []
    client.send(PREFACE)
    assert rig.turn(2) == [(client.index, "preface", b"")]
    rig.traffic.push(layout.UP_ATTACH, client.uid, client.index, b'{"peer":"x"}')
    rig.turn()
    (attach,) = rig.pop()
    assert (attach.kind, attach.flags, attach.uid, attach.content) == (3, 0, client.uid, b'{"peer":"x"}')
    assert client.frames() == []
    rig.plain(frame(CONFIRM, body=b'{"uid":1}'), client)
    rig.turn()
    assert client.kinds() == [CONFIRM]
    client.send(frame(CONNECT, body=b'{"type":"a"}'))
    assert rig.turn(2) == [(client.index, "connect", b'{"type":"a"}')]
    rig.plain(frame(WELCOME), client)
    assert rig.turn() == [(client.index, "live", b"")]
    assert client.kinds() == [WELCOME]


@pytest.mark.requirement("SRV-25")
def test_bytes_sent_ahead_of_the_confirmation_are_processed_after_it(make: Make) -> None:
    rig = make()
    client = rig.adopt()
    client.send(PREFACE + frame(CONNECT, body=b"{}") + publish(b"early") + publish(b"too"))
    assert rig.turn(3) == [(client.index, "preface", b"")]
    assert rig.pop() == []
    rig.plain(frame(CONFIRM), client)
    assert rig.turn(3) == [(client.index, "connect", b"{}")]
    assert messages(rig) == []
    rig.plain(frame(WELCOME), client)
    rig.turn(3)
    found = messages(rig)
    assert bodies(rig, found) == [b"early", b"too"]
    settle(rig, found)


@pytest.mark.parametrize(
    ("first", "code"),
    [(b"GET / HTTP/1.1\r\n\r\n", ""), (b"F", None), (b"XX", ""), (b"FLD\n\x09\x00\x00\x00", "unsupported-version")],
)
def test_what_is_not_a_preface_is_closed(make: Make, first: bytes, code: str | None) -> None:
    rig = make()
    client = rig.adopt()
    client.send(first)
    rig.turn(3)
    found = client.frames()
    if code is None:
        assert not client.ended
        return
    assert client.ended
    assert [one.code for one in found] == ([code] if code else [])
    client.sock.close()
    rig.turn(2)
    assert rig.events[-1][:2] == (client.index, "closed")
    assert rig.pop() == [], "the router never heard of it"


@pytest.mark.requirement("SRV-37")
def test_half_handshakes_are_closed_in_time_and_leave_nothing(make: Make) -> None:
    rig = make()
    silent, unanswered, attaching = rig.adopt(), rig.adopt(), rig.adopt()
    for client in (unanswered, attaching):
        client.send(PREFACE)
    rig.turn(2)
    for client in (unanswered, attaching):
        rig.traffic.push(layout.UP_ATTACH, client.uid, client.index, b"{}")
    rig.plain(frame(CONFIRM), unanswered)
    rig.turn(2)
    rig.later(5_000)
    silent.read()
    assert silent.ended
    assert not unanswered.frames()[1:]
    rig.later(25_000)
    assert [one.code for one in unanswered.frames() if one.kind == ERROR] == ["handshake-timeout"]
    assert attaching.frames() == [], "time without a router does not count"
    rig.later(2_000)
    assert [event[0] for event in rig.events if event[1] == "closed"] == [silent.index, unanswered.index]
    assert [entry.kind for entry in rig.pop()] == [3, 3, 5]


# --- Intake -------------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-58")
@pytest.mark.requirement("SRV-59")
def test_a_message_is_stored_and_only_its_head_reaches_the_router(make: Make) -> None:
    rig = make()
    client = rig.live()
    client.send(publish(b"body", headers=b"\x01k\x01\x00v", flags=0x10))
    rig.turn(2)
    (entry,) = messages(rig)
    assert entry.frame.topic == b"t"
    assert entry.frame.headers == b"\x01k\x01\x00v"
    assert entry.frame.flags == 0, "IDENTITY is the server's to set"
    assert entry.frame.length == 32 + 1 + 5 + 4
    assert len(entry.content) == 38
    facts = rig.arenas[0].describe(entry.handle)
    assert (facts["relinquish_count"], facts["relinquish_limit"], facts["uid"]) == (0, -1, client.uid)
    settle(rig, [entry])
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-39")
@pytest.mark.parametrize("cut", [1, 3, 31, 33, 40, 64, 1000])
def test_frames_arrive_whole_however_the_bytes_are_split_or_merged(make: Make, cut: int) -> None:
    rig = make()
    client = rig.live()
    sent = [bytes([i]) * (i * 7 % 90) for i in range(20)]
    data = b"".join(publish(body) for body in sent)
    found = []
    for at in range(0, len(data), cut):
        client.send(data[at : at + cut])
        rig.turn()
        found += messages(rig)
    rig.turn(3)
    found += messages(rig)
    assert bodies(rig, found) == sent
    settle(rig, found)
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-94")
@pytest.mark.requirement("SRV-95")
@pytest.mark.requirement("SRV-96")
def test_rounds_take_one_message_of_each_connection_and_say_where_they_end(make: Make) -> None:
    rig = make()
    flood, other = rig.live(), rig.live()
    flood.send(b"".join(publish(b"f%d" % i) for i in range(100)))
    other.send(publish(b"o0") + publish(b"o1"))
    rig.turn(8)
    entries = rig.pop()
    found = [entry for entry in entries if entry.kind in MESSAGES]
    assert len(found) == 102, "all in one write, all taken though nothing new is readable"
    mine = [i for i, entry in enumerate(found) if entry.uid == other.uid]
    assert mine[0] <= 1
    assert mine[1] <= 3
    ends = sum(1 for entry in entries if entry.kind == layout.UP_ROUND or entry.flags & layout.FLAG_ROUND)
    assert ends == 100
    assert entries[-1].kind == layout.UP_ROUND or entries[-1].flags & layout.FLAG_ROUND
    settle(rig, found)


def test_the_quantum_is_configurable(make: Make) -> None:
    rig = make(messages_per_round=10)
    client = rig.live()
    client.send(publish(b"x") * 95)
    rig.turn(6)
    entries = rig.pop()
    assert sum(1 for e in entries if e.kind == layout.UP_ROUND or e.flags & layout.FLAG_ROUND) == 10
    settle(rig, entries)


@pytest.mark.requirement("SRV-100")
@pytest.mark.requirement("SRV-102")
@pytest.mark.requirement("SRV-103")
@pytest.mark.requirement("SRV-106")
def test_at_the_limit_each_client_has_one_more_and_reading_goes_on_below_the_low_mark(make: Make) -> None:
    rig = make(limit=50, resume_below=10)
    clients = [rig.live() for _ in range(20)]
    clients[0].send(publish(b"x") * 200)
    rig.turn(10)
    assert rig.statistics()["queue_counted"] == 51
    assert rig.statistics()["stopped"] == 1
    for client in clients[1:]:
        client.send(publish(b"y") * 3)
    rig.turn(20)
    assert rig.statistics()["queue_counted"] == 50 + 20, "one more for each, silent ones included"
    order = [entry.uid for entry in rig.peek() if entry.kind in MESSAGES]
    assert all(client.uid in order for client in clients)
    found = [entry for entry in rig.pop(70) if entry.kind in MESSAGES]
    rig.turn(4)
    while more := messages(rig):
        found += more
        rig.turn(4)
    assert len(found) == 200 + 19 * 3
    assert rig.statistics()["stops"] >= 1
    settle(rig, found)
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-102")
def test_reading_does_not_go_on_at_the_low_mark_itself(make: Make) -> None:
    rig = make(limit=20, resume_below=5)
    client = rig.live()
    client.send(publish(b"x") * 60)
    rig.turn(5)
    assert rig.statistics()["queue_counted"] == 21
    taken = []
    while rig.statistics()["queue_counted"] > 5:
        taken += [e for e in rig.pop(1) if e.kind in MESSAGES]
        rig.turn(2)
    assert rig.statistics()["stopped"] == 1
    while rig.statistics()["queue_counted"] == 5:
        taken += [e for e in rig.pop(1) if e.kind in MESSAGES]
    rig.turn(2)
    assert rig.statistics()["queue_counted"] > 5
    settle(rig, taken)


@pytest.mark.requirement("SRV-104")
@pytest.mark.requirement("SRV-105")
@pytest.mark.requirement("SRV-109")
def test_at_the_limit_everything_but_reading_clients_goes_on(make: Make) -> None:
    rig = make(limit=10, resume_below=5)
    flood, reader, leaver = rig.live(), rig.live(), rig.live()
    flood.send(publish(b"x") * 30)
    rig.turn(5)
    assert rig.statistics()["stopped"] == 1
    counted = rig.statistics()["queue_counted"]
    newcomers = [rig.adopt() for _ in range(20)]
    for client in newcomers:
        client.send(PREFACE)
    rig.turn(3)
    for client in newcomers:
        rig.traffic.push(layout.UP_ATTACH, client.uid, client.index, b"{}")
    rig.send_foreign(b"delivered", reader)
    leaver.sock.close()
    reader.send(frame(PING, correlation=5))
    rig.turn(4)
    assert rig.statistics()["queue_counted"] == counted, "hand-overs and losses are not counted"
    assert sum(1 for e in rig.peek() if e.kind == layout.UP_ATTACH) == 20
    assert [e.uid for e in rig.peek() if e.kind == layout.UP_GONE] == [leaver.uid]
    got = [(f.kind, f.body, f.correlation) for f in reader.frames()]
    assert got == [(PONG, b"", 5), (PUBLISH, b"delivered", 0)]
    settle(rig, messages(rig))


@pytest.mark.requirement("SRV-108")
def test_a_stopped_manager_sleeps_although_clients_are_readable(make: Make) -> None:
    rig = make(limit=10, resume_below=5)
    clients = [rig.live() for _ in range(5)]
    for client in clients:
        client.send(publish(b"x") * 50)
    rig.turn(10)
    for client in clients:
        client.send(publish(b"x") * 50)
    rig.turn(10)
    began = time.monotonic()
    rig.turn(timeout_ms=150)
    assert time.monotonic() - began > 0.1, "nothing to do, so it waits"
    found = messages(rig)
    began = time.monotonic()
    rig.turn(timeout_ms=20_000)
    assert time.monotonic() - began < 10, "the router's pop woke it"
    rig.turn(4)
    while more := messages(rig):
        found += more
        rig.turn(4)
    assert len(found) == 500
    settle(rig, found)


@pytest.mark.requirement("SRV-14")
def test_a_full_arena_holds_senders_back_and_loses_nothing(make: Make) -> None:
    rig = make(blocks=2, slow_client_messages=1000)
    sender = rig.live()
    sent = [struct.pack("<I", i) * 3000 for i in range(30)]
    data = b"".join(publish(body) for body in sent)
    received, starved = [], 0
    while len(received) < len(sent):
        if data:
            try:
                data = data[sender.send(data) :]
            except BlockingIOError:
                pass
        rig.turn(3)
        starved = max(starved, rig.statistics()["starved"])
        entries = messages(rig)
        received += bodies(rig, entries)
        settle(rig, entries)
    assert received == sent
    assert starved > 0
    assert rig.stored() == 0


def test_a_full_arena_lets_go_of_a_starving_client_that_leaves(make: Make) -> None:
    rig = make(blocks=2)
    hog, hungry, other = rig.live(), rig.live(), rig.live()
    hog.send(publish(bytes(60_000)))
    rig.turn(3)
    held = messages(rig)
    hungry.send(publish(bytes(90_000))[:50_000])
    rig.turn(3)
    other.send(publish(b"small"))
    rig.turn(3)
    assert messages(rig) == [], "who came first is served first"
    hungry.sock.close()
    rig.turn(4)
    found = messages(rig)
    assert bodies(rig, found)[-1] == b"small"
    settle(rig, held + found)
    assert rig.stored() == 0


def test_a_full_ring_holds_clients_back_but_not_the_managers_own_entries(make: Make) -> None:
    rig = make(ring=4096, limit=10_000)
    client = rig.live()
    client.send(publish(b"x", topic=b"a" * 80) * 60)
    rig.turn(5)
    taken = len([e for e in rig.peek() if e.kind in MESSAGES])
    assert 0 < taken < 60
    for i in range(30):
        rig.traffic.push(layout.UP_ATTACH, i, 60, b"{}" * 20)
    rig.turn(2)
    assert rig.statistics()["queue_private"] > 0
    found = rig.pop()
    for _ in range(100):
        rig.turn(2)
        found += rig.pop()
    assert sum(1 for e in found if e.kind == layout.UP_ATTACH) == 30
    counted = [e for e in found if e.kind in MESSAGES]
    assert len(counted) == 60
    settle(rig, counted)


@pytest.mark.requirement("SRV-110")
def test_a_large_message_is_spread_over_turns_and_blocks_nobody(make: Make) -> None:
    rig = make(blocks=256)
    large, small = rig.live(), rig.live()
    body = random.Random(1).randbytes(1_000_000)
    data = publish(body)
    found, seen = [], 0
    while data:
        try:
            data = data[large.send(data[:100_000]) :]
        except BlockingIOError:
            pass
        small.send(publish(b"s"))
        rig.turn(2)
        entries = messages(rig)
        seen += sum(1 for e in entries if e.uid == small.uid)
        found += entries
    assert seen > 5
    rig.turn(10)
    found += messages(rig)
    (one,) = [e for e in found if e.uid == large.uid]
    assert rig.arenas[0].read(one.handle) == body
    assert one.frame.length == 33 + len(body)
    settle(rig, found)
    assert rig.stored() == 0


def fragmented(body: bytes, piece: int, between: bytes = b"") -> bytes:
    first = frame(PUBLISH, flags=0x08, topic=b"t", body=struct.pack("<Q", len(body)) + body[:piece])
    rest = [frame(FRAGMENT, body=body[at : at + piece]) for at in range(piece, len(body), piece)]
    return first + b"".join(between + one for one in rest)


@pytest.mark.parametrize("piece", [1, 100, 4096, 300_000])
def test_fragments_are_put_together(make: Make, piece: int) -> None:
    rig = make(blocks=64)
    client = rig.live()
    body = random.Random(piece).randbytes(min(piece * 7 + 3, 1_000_000))
    found = pump(rig, client, fragmented(body, piece, frame(PING, correlation=9)) + publish(b"after"))
    assert bodies(rig, found) == [body, b"after"]
    assert found[0].frame.flags == 0
    assert found[0].frame.length == 33 + len(body)
    rig.turn(3)
    assert set(client.kinds()) == {PONG}
    settle(rig, found)
    assert rig.stored() == 0


def test_a_message_between_fragments_breaks_the_rules(make: Make) -> None:
    rig = make()
    client = rig.live()
    client.send(fragmented(bytes(100), 50)[:-82] + publish(b"too early"))
    rig.turn(4)
    assert [one.code for one in client.frames()] == ["bad-request"]
    client.sock.close()
    rig.turn(2)
    assert [e.kind for e in rig.pop() if e.kind != layout.UP_ROUND] == [layout.UP_GONE]
    assert rig.stored() == 0, "the slot of the unfinished message was abandoned"


@pytest.mark.requirement("SRV-22")
@pytest.mark.parametrize("size", [60, 10_000, 60_000])
def test_long_headers_pass(make: Make, size: int) -> None:
    rig = make()
    client = rig.live()
    found = pump(rig, client, publish(b"x", headers=bytes(size)))
    assert found[0].frame.headers == bytes(size)
    settle(rig, found)


@pytest.mark.requirement("SRV-22")
def test_a_header_above_the_ceiling_is_refused_and_the_connection_stays(make: Make) -> None:
    rig = make()
    client = rig.live()
    found = pump(rig, client, publish(b"x", headers=bytes(1_000_000), correlation=77) + publish(b"next"))
    (error,) = client.frames()
    assert (error.code, error.correlation) == ("header-too-large", 77)
    assert bodies(rig, found) == [b"next"]
    settle(rig, found)


def test_a_body_above_the_ceiling_is_refused_and_the_connection_stays(make: Make) -> None:
    rig = make(body_max=50_000)
    client = rig.live()
    found = pump(rig, client, publish(bytes(60_000)) + fragmented(bytes(90_000), 20_000) + publish(b"next"))
    assert [one.code for one in client.frames()] == ["body-too-large"] * 2
    assert bodies(rig, found) == [b"next"]
    settle(rig, found)
    assert rig.stored() == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack("<IBBHIIQQ", 8, 0x20, 0, 0, 0, 0, 0, 0), "bad-request"),
        (struct.pack("<IBBHIIQQ", 1 << 30, 0x20, 0, 0, 0, 0, 0, 0), "frame-too-large"),
        (struct.pack("<IBBHIIQQ", 40, 0x20, 0, 20, 0, 0, 0, 0) + bytes(8), "bad-request"),
        (struct.pack("<IBBHIIQQ", 40, 0x20, 0, 0, 0xFFFFFFFF, 0, 0, 0) + bytes(8), "bad-request"),
        (frame(0x41), "bad-request"),
        (frame(0x77), "bad-request"),
        (frame(CONNECT, body=b"{}"), "bad-request"),
        (frame(SUBSCRIBE), "bad-request"),
        (frame(FRAGMENT, body=b"x"), "bad-request"),
        (frame(PING, body=b"x"), "bad-request"),
        (frame(PUBLISH, flags=8, topic=b"t", body=b"1234567"), "bad-request"),
        (frame(PUBLISH, flags=8, topic=b"t", body=struct.pack("<Q", 1) + b"12"), "bad-request"),
    ],
)
def test_garbage_gets_a_reason_and_a_close(make: Make, data: bytes, code: str) -> None:
    rig = make()
    client, witness = rig.live(), rig.live()
    client.send(publish(b"before") + data + publish(b"behind"))
    rig.turn(4)
    assert [one.code for one in client.frames()] == [code]
    assert client.ended
    witness.send(publish(b"untouched"))
    rig.turn(3)
    found = rig.pop()
    counted = [e for e in found if e.kind in MESSAGES]
    assert bodies(rig, counted) == [b"before", b"untouched"]
    assert [e.uid for e in found if e.kind == layout.UP_GONE] == [client.uid]
    settle(rig, counted)
    assert rig.stored() == 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6), st.integers(0, 255))
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_no_bytes_whatever_upset_the_engine(engine: str, pieces: list[bytes], kind: int) -> None:
    rig = Rig(*ENGINES[engine], blocks=8)
    try:
        client, witness = rig.live(), rig.live()
        for piece in pieces:
            header = struct.pack("<IBBHIIQQ", 32 + len(piece), kind, piece[0], piece[-1] % 8, len(piece) % 5, 0, 0, 0)
            try:
                client.send(header + piece if piece[0] % 3 else piece)
            except OSError:
                break
            rig.turn(2)
        witness.send(publish(b"well"))
        rig.turn(3)
        assert b"well" in bodies(rig, [e for e in rig.peek() if e.uid == witness.uid and e.handle])
        client.sock.close()
        rig.turn(3)
        found = [e for e in rig.pop() if e.kind in MESSAGES]
        settle(rig, found)
        assert rig.stored() == 0
    finally:
        rig.close()


# --- Delivery -----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-43")
@pytest.mark.requirement("SRV-64")
def test_a_delivery_is_put_together_from_the_instructions_head_and_the_stored_body(make: Make) -> None:
    rig = make()
    one, two = rig.live(), rig.live()
    one.send(publish(b"own"))
    rig.turn(2)
    (entry,) = messages(rig)
    rig.deliver(entry, one, two)
    rig.send_foreign(b"foreign", two, peer=12, flags=0x10)
    rig.turn(2)
    assert [f.body for f in one.frames()] == [b"own"]
    got = two.frames()
    assert [(f.body, f.peer, f.flags) for f in got] == [(b"own", 0, 0), (b"foreign", 12, 0x10)]
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-73")
@pytest.mark.requirement("SRV-75")
@pytest.mark.parametrize("order", ["delete last", "delete first", "on the last delivery"])
def test_the_last_touch_frees_in_whatever_order_they_are_finished(make: Make, order: str) -> None:
    rig = make()
    client = rig.live()
    handle = rig.store_foreign(b"x")
    deliver = {"content": frame(PUBLISH, topic=b"t"), "handle": handle, "body": 1}
    if order == "delete first":
        rig.instruct(layout.DOWN_DELETE, handle=handle, touch=1, limit=2)
    elif order == "on the last delivery":
        rig.instruct(layout.DOWN_DELIVER, client, touch=0, **deliver)
    rig.instruct(
        layout.DOWN_DELIVER,
        client,
        touch=1 if order.startswith("on") else 0,
        limit=2 * order.startswith("on"),
        **deliver,
    )
    rig.turn()
    assert rig.stored() == (1 if order == "delete last" else 0)
    if order == "delete last":
        rig.instruct(layout.DOWN_DELETE, handle=handle, touch=1, limit=2)
        rig.turn()
    assert rig.stored() == 0
    assert len(client.frames()) >= 1


@pytest.mark.requirement("SRV-62")
@pytest.mark.requirement("SRV-65")
def test_an_instruction_is_finished_when_its_last_recipient_took_the_last_byte(make: Make) -> None:
    rig = make(blocks=128)
    readers = [rig.live() for _ in range(9)]
    blocked = rig.live(buffer=4096)
    body = random.Random(2).randbytes(600_000)
    handle = rig.send_foreign(body, *readers, blocked)
    received: dict[int, bytes] = {}
    for _ in range(60):
        rig.turn(2)
        for reader in readers:
            for found in reader.frames():
                received[reader.index] = found.body
    assert received == {reader.index: body for reader in readers}
    facts = rig.store.Arena(rig.arena_bytes[1]).describe(handle)
    assert facts is not None
    assert (facts["relinquish_count"], facts["relinquish_limit"]) == (0, 1)
    assert rig.statistics()["outstanding"] == 1
    got = None
    while got is None:
        rig.turn(2)
        got = next(iter(blocked.frames()), None)
    rig.turn(2)
    assert got.body == body
    assert rig.stored() == 0
    assert rig.statistics()["outstanding"] == 0


def test_a_large_body_leaves_in_fragments(make: Make) -> None:
    rig = make(blocks=256, slow_client_bytes=64 << 20)
    client = rig.live(credit=5)
    body = random.Random(3).randbytes(3_500_000)
    rig.send_foreign(body, client)
    rig.send_foreign(b"behind", client)
    frames: list[Any] = []
    for _ in range(400):
        rig.turn()
        frames += client.frames()
        if frames and frames[-1].body == b"behind":
            break
    assert [f.kind for f in frames] == [PUBLISH, FRAGMENT, FRAGMENT, FRAGMENT, PUBLISH]
    assert frames[0].flags & 0x08
    assert struct.unpack_from("<Q", frames[0].body)[0] == len(body)
    assert frames[0].body[8:] + b"".join(f.body for f in frames[1:4]) == body
    assert rig.stored() == 0


def test_a_body_of_just_one_piece_and_one_byte_more(make: Make) -> None:
    rig = make(blocks=128)
    client = rig.live()
    for size, count in [(1 << 20, 1), ((1 << 20) + 1, 2)]:
        rig.send_foreign(bytes(size), client)
        frames: list[Any] = []
        for _ in range(60):
            rig.turn()
            frames += client.frames()
        assert len(frames) == count
    assert rig.stored() == 0


def test_credit_holds_messages_back_and_control_frames_pass(make: Make) -> None:
    rig = make()
    client = rig.live(credit=2)
    for i in range(5):
        rig.send_foreign(b"%d" % i, client)
    rig.plain(frame(OK, number=4), client)
    client.send(frame(PING, correlation=3))
    rig.turn(3)
    found = client.frames()
    assert [f.body for f in found if f.kind == PUBLISH] == [b"0", b"1"]
    assert sorted(f.kind for f in found if f.kind != PUBLISH) == [PONG, OK]
    assert rig.stored() == 3
    client.send(frame(CREDIT, number=2))
    rig.turn(3)
    assert [f.body for f in client.frames()] == [b"2", b"3"]
    rig.plain(frame(MOVED), client)
    rig.turn(2)
    assert client.frames() == [], "MOVED is the last frame of all"
    client.send(frame(CREDIT, number=100))
    rig.turn(3)
    assert client.kinds() == [PUBLISH, MOVED]
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-66")
@pytest.mark.parametrize("by", ["messages", "bytes"])
def test_a_client_that_does_not_read_is_cut_off_and_delays_nobody(make: Make, by: str) -> None:
    rig = make(
        blocks=256,
        slow_client_messages=100 if by == "messages" else 10_000,
        slow_client_bytes=(64 << 20) if by == "messages" else 500_000,
    )
    slow, quick = rig.live(buffer=4096), rig.live()
    got = sent = 0
    for _ in range(600):
        rig.send_foreign(bytes(5000), slow, quick)
        sent += 1
        rig.turn()
        got += len(quick.frames())
        assert got >= sent - 1
        if rig.statistics()["slow_clients"]:
            break
    assert rig.statistics()["slow_clients"] == 1
    rig.turn(2)
    frames = slow.frames()
    rig.later(1500)
    rig.later(1500)
    assert (slow.index, "closed", b"slow-client") in rig.events
    assert sum(int(data) for _, what, data in rig.events if what == "lost") > 0
    assert layout.UP_GONE in [e.kind for e in rig.pop()]
    assert rig.stored() == 0
    assert len(frames) < sent


@pytest.mark.requirement("SRV-76")
@pytest.mark.requirement("SRV-113")
def test_deliveries_to_lost_connections_count_as_finished_and_requests_are_reported(make: Make) -> None:
    rig = make()
    client, gone = rig.live(), rig.live()
    gone.sock.close()
    rig.turn(3)
    rig.pop()
    rig.send_foreign(b"a", gone, client)
    rig.send_foreign(b"b", gone, kind=REQUEST, correlation=8)
    rig.turn(2)
    assert [f.body for f in client.frames()] == [b"a"]
    (entry,) = rig.pop()
    assert (entry.kind, entry.frame.kind, entry.frame.correlation) == (layout.UP_UNDELIVERED, REQUEST, 8)
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-113")
def test_requests_that_wait_unsent_are_reported_before_the_loss(make: Make) -> None:
    rig = make(blocks=64)
    client = rig.live(credit=1)
    for i in range(4):
        rig.send_foreign(b"x", client, kind=REQUEST, correlation=i)
    rig.turn(2)
    assert len(client.frames()) == 1
    client.sock.close()
    rig.turn(3)
    found = rig.pop()
    assert [e.kind for e in found] == [layout.UP_UNDELIVERED] * 3 + [layout.UP_GONE]
    assert [e.frame.correlation for e in found[:3]] == [1, 2, 3]
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-67")
def test_plain_instructions_count_nothing(make: Make) -> None:
    rig = make()
    client = rig.live()
    for _ in range(50):
        rig.plain(frame(PING), client)
    rig.turn(2)
    assert client.kinds() == [PING] * 50
    assert rig.stored() == 0
    assert rig.statistics()["deliveries"] == 0


def test_router_made_frames_may_be_larger_than_the_output_buffer(make: Make) -> None:
    rig = make(ring=1 << 23)
    client = rig.live()
    rig.plain(frame(OK, body=bytes(3_000_000)), client)
    rig.plain(frame(OK), client)
    found: list[Any] = []
    for _ in range(100):
        rig.turn()
        found += client.frames()
    assert [len(f.body) for f in found] == [3_000_000, 0]


def test_detach_sends_its_frames_and_closes(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.send_foreign(b"last", client)
    rig.detach(frame(MOVED), client)
    rig.turn(3)
    assert client.kinds() == [PUBLISH, MOVED]
    assert client.ended
    client.sock.close()
    rig.turn(2)
    assert (client.index, "closed", b"closed") in rig.events
    assert rig.stored() == 0


# --- Keeping alive ------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-85")
def test_silence_is_met_with_a_ping_and_then_with_the_end(make: Make) -> None:
    rig = make(keep_alive_ms=5_000)
    dead, alive = rig.live(), rig.live()
    for _ in range(12):
        rig.later(1_000)
        if PING in alive.kinds():
            alive.send(frame(PONG))
    found = dead.frames()
    assert [f.kind for f in found] == [PING, ERROR]
    assert found[1].code == "keep-alive-timeout"
    assert not alive.ended


@pytest.mark.requirement("SRV-85")
def test_a_client_we_do_not_read_is_not_silent_and_hears_from_us(make: Make) -> None:
    rig = make(limit=5, resume_below=2, keep_alive_ms=5_000)
    client = rig.live()
    client.send(publish(b"x") * 50)
    rig.turn(5)
    client.send(publish(b"x") * 50)
    for _ in range(30):
        rig.later(1_000)
    assert not client.ended
    assert client.kinds().count(PING) >= 9
    settle(rig, messages(rig))


# --- The end of connections ---------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-111")
@pytest.mark.parametrize("how", ["close", "CLOSE"])
def test_all_that_was_sent_before_the_end_is_taken_and_the_loss_comes_behind_it(make: Make, how: str) -> None:
    rig = make()
    client = rig.live()
    client.send(publish(b"x") * 10 + (frame(CLOSE) + publish(b"ignored") if how == "CLOSE" else b""))
    if how == "close":
        client.sock.close()
    rig.turn(5)
    found = [e for e in rig.pop() if e.kind != layout.UP_ROUND]
    assert [e.kind for e in found] == [layout.UP_MESSAGE] * 10 + [layout.UP_GONE]
    settle(rig, found)
    assert rig.stored() == 0


@pytest.mark.requirement("SRV-111")
def test_a_client_that_closes_at_the_limit_is_removed_behind_its_messages(make: Make) -> None:
    rig = make(limit=5, resume_below=2)
    client = rig.live()
    client.send(publish(b"x") * 30)
    rig.turn(3)
    client.sock.close()
    rig.turn(3)
    found: list[Any] = []
    for _ in range(30):
        found += [e for e in rig.pop() if e.kind != layout.UP_ROUND]
        rig.turn(2)
    assert [e.kind for e in found] == [layout.UP_MESSAGE] * 30 + [layout.UP_GONE]
    assert (client.index, "closed", b"connection-lost") in rig.events
    settle(rig, found)
    assert rig.stored() == 0


def test_an_index_is_used_again_without_confusion(make: Make) -> None:
    rig = make()
    first = rig.live()
    old_uid = first.uid
    first.sock.close()
    rig.turn(3)
    del rig.clients[first.index]
    second = rig.live()
    assert second.index == first.index
    ghost = Client(first.index, old_uid, second.sock)
    rig.send_foreign(b"for the dead", ghost)
    rig.send_foreign(b"for the living", second)
    rig.turn(2)
    assert [f.body for f in second.frames()] == [b"for the living"]
    assert rig.stored() == 0


# --- Waking up ----------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-21")
def test_an_instruction_wakes_a_sleeping_engine_and_a_message_the_sleeping_router(make: Make) -> None:
    rig = make()
    client = rig.live()
    began = time.monotonic()
    rig.turn(timeout_ms=120)
    assert time.monotonic() - began > 0.1
    assert rig.up.sleep()
    client.send(publish(b"x"))
    rig.turn(timeout_ms=1000)
    rig.turn()
    assert os.eventfd_read(rig.wake_router) == 1
    settle(rig, messages(rig))
    assert rig.statistics()["safety_tick_finds"] == 0


@pytest.mark.requirement("SRV-21")
def test_a_lost_wake_up_is_found_by_the_safety_tick_and_counted(make: Make) -> None:
    rig = make()
    client = rig.live()

    def careless() -> None:
        """Publishes while the engine sleeps and never writes the eventfd."""
        time.sleep(0.05)
        payload = struct.pack(layout.DOWN_FORMAT, 0, 0, 0, 0, 1, 32, 0)
        payload += struct.pack("<Q", client.index << 32 | client.uid & 0xFFFFFFFF) + frame(OK)
        rig.down.push(layout.DOWN_PLAIN, 0, payload)
        rig.down.publish()

    thread = threading.Thread(target=careless)
    thread.start()
    rig.turn(timeout_ms=200)
    thread.join()
    rig.turn()
    assert client.kinds() == [OK]
    assert rig.statistics()["safety_tick_finds"] == 1


@pytest.mark.requirement("SRV-23")
def test_a_router_that_waits_for_room_is_woken_when_its_instructions_are_read(make: Make) -> None:
    rig = make(ring=4096)
    client = rig.live()
    payload = struct.pack(layout.DOWN_FORMAT, 0, 0, 0, 0, 1, 32, 0)
    payload += struct.pack("<Q", client.index << 32 | client.uid & 0xFFFFFFFF) + frame(OK)
    while rig.down.push(layout.DOWN_PLAIN, 0, payload):
        pass
    rig.down.publish()
    rig.down.want()
    rig.turn()
    assert os.eventfd_read(rig.wake_router) == 1
    assert rig.down.push(layout.DOWN_PLAIN, 0, payload)


# --- A successor --------------------------------------------------------------------------------------------------
@pytest.mark.requirement("SRV-115")
@pytest.mark.requirement("SRV-77")
def test_a_successor_finishes_what_its_predecessor_had_under_way(make: Make) -> None:
    rig = make(blocks=64)
    blocked, reader, sender = rig.live(buffer=4096), rig.live(), rig.live()
    for i in range(20):
        rig.send_foreign(bytes(30_000), blocked, reader, touch=i % 2, limit=0)
    for _ in range(5):
        rig.send_foreign(bytes(30_000), blocked, limit=1)
    rig.turn(3)
    assert rig.statistics()["outstanding"] > 15
    handles = [facts["handle"] for facts in rig.foreign.census(True)[2]] if rig.foreign else []
    sender.send(publish(b"published") + fragmented(bytes(5000), 1000)[:2000])
    rig.turn(2)
    rig.send_foreign(b"never read", reader, limit=1)
    del rig.traffic  # kill -9
    rig.arenas = {i: rig.store.Arena(data, owner=i == 0) for i, data in rig.arena_bytes.items()}
    faults: list[int] = []
    down = rig.store.Consumer(rig.down_bytes)
    counted = finish_all(OutstandingTable(rig.table), down, rig.arenas, lambda: faults.append(1))
    assert counted >= 21
    assert finish_all(OutstandingTable(rig.table), down, rig.arenas, lambda: faults.append(1)) == 0
    given_up = rig.arenas[0].recover(rig.store.Producer(rig.up_bytes).tail)
    assert [facts["bytes"] for facts in given_up] == [5000], "the message whose reference never got out"
    found = [e for e in rig.pop() if e.kind in MESSAGES]
    assert bodies(rig, found) == [b"published"]
    rig.build()
    for entry in found:
        rig.instruct(layout.DOWN_DELETE, handle=entry.handle, touch=0, limit=1)
    # The router's last instructions for the messages that had no condition yet.
    for handle in handles:
        if rig.arenas[1].describe(handle):
            rig.instruct(layout.DOWN_DELETE, handle=handle, touch=5, limit=2)
    rig.turn(2)
    assert rig.stored() == 0
    assert faults == []


def test_a_full_outstanding_table_cuts_the_slowest_client_and_loses_no_count(make: Make) -> None:
    rig = make(blocks=256, records=8)
    slow, quick = rig.live(buffer=4096), rig.live()
    for _ in range(40):
        rig.send_foreign(bytes(50_000), slow, quick)
        rig.turn()
        quick.frames()
    rig.turn(3)
    quick.frames()
    rig.turn(2)
    assert (slow.index, "closed", b"slow-client") in rig.events or rig.statistics()["slow_clients"] == 1
    assert rig.stored() == 0
    assert rig.statistics()["outstanding"] == 0


# --- All of it at once --------------------------------------------------------------------------------------------
class Chaos:
    """Clients that send, read, idle and vanish at random, and a router that routes everything to random recipients."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.chance = rig, random.Random(seed)
        self.clients: list[Client] = []
        self.sent: dict[int, int] = {}  # uid -> messages written whole
        self.taken: dict[int, int] = {}  # uid -> messages the router saw
        self.unsent: dict[int, bytes] = {}
        self.owed: dict[int, list[bytes]] = {}  # uid -> bodies it must get, in order
        self.got: dict[int, list[bytes]] = {}
        self.gone: set[int] = set()
        self.closed: set[int] = set()

    def join(self) -> None:
        credit = self.chance.choice([0, 3, 50])
        client = self.rig.live(credit=credit, buffer=self.chance.choice([0, 4096]), pop=False)
        self.clients.append(client)
        for table in (self.sent, self.taken):
            table[client.uid] = 0
        self.unsent[client.uid] = b""
        self.owed[client.uid], self.got[client.uid] = [], []

    def body(self, client: Client) -> bytes:
        size = self.chance.choice([0, 5, 100, 3000, 40_000, 150_000])
        return struct.pack("<QI", client.uid, self.sent[client.uid]) + bytes([size % 251]) * size

    def write(self, client: Client) -> None:
        for _ in range(self.chance.randint(1, 8)):
            body = self.body(client)
            if self.chance.random() < 0.2:
                self.unsent[client.uid] += fragmented(body, max(1, len(body) // 3), frame(PING))
            else:
                self.unsent[client.uid] += publish(body)
            self.sent[client.uid] += 1
        self.push(client)

    def push(self, client: Client) -> None:
        if data := self.unsent[client.uid]:
            try:
                n = client.send(data[: self.chance.randint(1, len(data))])
            except (BlockingIOError, BrokenPipeError):
                n = 0
            self.unsent[client.uid] = data[n:]

    def read(self, client: Client) -> None:
        count = 0
        for found in client.frames():
            if found.kind == PUBLISH and not found.flags & 0x08:
                self.got[client.uid].append(found.body)
                count += 1
        if count:
            self.unsent[client.uid] += frame(CREDIT, number=count)
            self.push(client)

    def leave(self, client: Client) -> None:
        self.closed.add(client.uid)
        client.sock.close()
        self.clients.remove(client)

    def route(self, most: int) -> None:
        for entry in self.rig.pop(most):
            if entry.kind == layout.UP_GONE:
                self.gone.add(entry.uid)
            elif entry.kind == layout.UP_MESSAGE:
                body = self.rig.arenas[0].read(entry.handle)
                uid, number = struct.unpack_from("<QI", body)
                assert uid == entry.uid
                assert uid not in self.gone, "a loss is reported behind the messages"
                assert number == self.taken[uid], "in order, none missing, none doubled"
                self.taken[uid] += 1
                recipients = self.chance.sample(self.clients, self.chance.randint(0, len(self.clients)))
                for client in recipients:
                    self.owed[client.uid].append(body)
                if recipients:
                    half = len(recipients) // 2
                    self.rig.deliver(entry, *recipients[:half], touch=0, limit=0)
                    self.rig.deliver(entry, *recipients[half:], touch=1, limit=2)
                else:
                    self.rig.instruct(layout.DOWN_DELETE, handle=entry.handle, touch=0, limit=1)

    def step(self) -> None:
        what = self.chance.random()
        client = self.chance.choice(self.clients) if self.clients else None
        if client is None or (what < 0.03 and len(self.clients) < 6):
            self.join()
        elif what < 0.35:
            self.write(client)
        elif what < 0.6:
            self.push(client)
        elif what < 0.75:
            self.read(client)
        elif what < 0.77:
            self.leave(client)
        elif what < 0.9:
            self.route(self.chance.randint(1, 20))
        self.rig.turn()

    def finish(self) -> None:
        """Let everything flow, then ask for all of it."""
        for _ in range(3000):
            for client in list(self.clients):
                self.push(client)
                self.read(client)
            self.route(1000)
            self.rig.turn(2)
            self.rig.now += 100
            if all(not self.unsent[c.uid] and self.got[c.uid] == self.owed[c.uid] for c in self.clients) and all(
                self.taken[c.uid] == self.sent[c.uid] for c in self.clients
            ):
                break
        for client in self.clients:
            assert self.taken[client.uid] == self.sent[client.uid]
            assert self.got[client.uid] == self.owed[client.uid]
        for _ in range(500):
            self.route(1000)
            self.rig.later(100)
            for client in self.clients:
                self.read(client)
            if self.rig.statistics()["connections"] == len(self.clients) and self.rig.stored() == 0:
                break
        self.route(1000)
        assert self.rig.stored() == 0
        assert self.rig.statistics()["accounting_faults"] == 0
        assert self.rig.statistics()["open_instructions"] == 0
        assert self.closed <= self.gone


@pytest.mark.requirement("SRV-63")
@pytest.mark.requirement("SRV-79")
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32))
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_random_traffic_is_neither_lost_nor_doubled_nor_reordered(engine: str, seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(
        *ENGINES[engine],
        blocks=chance.choice([8, 64]),
        limit=chance.choice([3, 20, 1000]),
        resume_below=chance.choice([2, 10]),
        messages_per_round=chance.choice([1, 4]),
        records=4096,
        keep_alive_ms=10_000_000,
    )
    try:
        chaos = Chaos(rig, seed)
        for _ in range(2):
            chaos.join()
        for _ in range(150):
            chaos.step()
        chaos.finish()
    finally:
        rig.close()
