"""The durable road through a manager's engine, compiled and plain: clients and a message manager on socketpairs."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.broker.answers import frame
from fairlead.broker.edge import traffic as plain_traffic
from fairlead.runtime import extensions
from fairlead.store import arena, layout, ring
from fairlead.wire.durable import (
    ENVELOPE,
    KIND_ANSWER,
    KIND_COLUMNS,
    KIND_COMMAND,
    KIND_DELIVER,
    KIND_NOTICE,
    KIND_PIECE,
    KIND_PULL,
    KIND_SETTLE,
    KIND_STORE,
    KIND_STORED,
    KIND_WANT,
)
from fairlead.wire.headers import encode_headers
from tests.broker.rig import CREDIT, ERROR, FRAGMENT, PUBLISH, Client, Frame, Rig

PLAIN = SimpleNamespace(Arena=arena.Arena, Consumer=ring.Consumer, Producer=ring.Producer)
ENGINES: dict[str, tuple[Any, Any]] = {"plain": (plain_traffic.Traffic, PLAIN)}
if not extensions.is_pure():
    from fairlead.broker.edge import _traffic
    from fairlead.store import _store

    ENGINES["compiled"] = (_traffic.Traffic, _store)


class Linked(Rig):
    """A rig whose engine has a link, and the message manager's end of it."""

    def attach(self) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.traffic.link(ours.detach())
        self.inward = bytearray()

    def close(self) -> None:
        if hasattr(self, "peer"):
            self.peer.close()
        super().close()

    def heard(self, turns: int = 3) -> list[tuple[int, int, Frame]]:
        """What the message manager gets: connection index, uid, frame."""
        for _ in range(turns):
            self.turn()
            self.read_peer()
        found = []
        while len(self.inward) >= 16:
            total, index, uid = ENVELOPE.unpack_from(self.inward)
            if len(self.inward) < total:
                break
            found.append((index, uid, Frame(bytes(self.inward[16:total]))))
            assert found[-1][2].length == total - 16
            del self.inward[:total]
        return found

    def read_peer(self) -> None:
        while True:
            try:
                data = self.peer.recv(1 << 20)
            except BlockingIOError:
                return
            if not data:
                return
            self.inward += data

    def tell(self, index: int, uid: int, data: bytes) -> None:
        """A frame of the message manager, sent in as many steps as it takes."""
        unsent = ENVELOPE.pack(16 + len(data), index, uid) + data
        while unsent:
            try:
                unsent = unsent[self.peer.send(unsent) :]
            except BlockingIOError:
                self.turn()

    def answer(self, client: Client, data: bytes) -> None:
        self.tell(client.index, client.uid, data)


Make = Callable[..., Linked]


@pytest.fixture(params=sorted(ENGINES))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Linked] = []

    def build(*, linked: bool = True, **how: Any) -> Linked:
        rig = Linked(*ENGINES[request.param], **how)
        made.append(rig)
        if linked:
            rig.attach()
        return rig

    yield build
    for one in made:
        faults = one.statistics()["accounting_faults"]
        one.close()
        assert faults == 0


def send_all(rig: Rig, client: Client, data: bytes, turns: int = 400) -> bytes:
    """Send as much as the engine takes; the rest."""
    for _ in range(turns):
        if not data:
            break
        try:
            data = data[client.send(data) :]
        except BlockingIOError:
            pass
        rig.turn()
    return data


def store(body: bytes = b"x", number: int = 1, first: int = 1) -> bytes:
    return frame(KIND_STORE, number=number, correlation=first, body=body)


def publish(topic: bytes, body: bytes = b"b", **fields: Any) -> bytes:
    return frame(PUBLISH, topic=topic, body=body, **fields)


def messages(rig: Rig) -> list[Any]:
    return [entry for entry in rig.pop() if entry.kind == layout.UP_MESSAGE]


def done(rig: Rig, entries: list[Any]) -> None:
    for entry in entries:
        rig.instruct(layout.DOWN_DELETE, handle=entry.handle, touch=0, limit=1)
    rig.turn(2)


# --- Towards the message manager ------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-3")
@pytest.mark.requirement("CLU-61")
def test_frames_in_bulk_are_copied_to_the_link_with_their_sender_and_the_router_sees_nothing(make: Make) -> None:
    rig = make()
    client = rig.live()
    kinds = (KIND_STORE, KIND_SETTLE, KIND_WANT, KIND_PIECE, KIND_PULL)
    client.send(b"".join(frame(kind, number=n, correlation=9, peer=8, body=b"b" * n) for n, kind in enumerate(kinds)))
    found = rig.heard()
    assert [(index, uid) for index, uid, _ in found] == [(client.index, client.uid)] * 5
    assert [(f.kind, f.number, f.correlation, f.peer, f.body) for _, _, f in found] == [
        (kind, n, 9, 8, b"b" * n) for n, kind in enumerate(kinds)
    ]
    assert messages(rig) == []
    assert rig.events[-1][1] == "live"
    assert rig.statistics()["durable_in"] == 5


@pytest.mark.requirement("CLU-64")
def test_a_command_goes_to_python_and_what_follows_it_waits_for_that(make: Make) -> None:
    rig = make()
    client = rig.live()
    command = frame(KIND_COMMAND, number=5, body=b'{"do":"commit"}')
    client.send(store(b"1") + command + store(b"2") + command + store(b"3"))
    rig.turn()
    assert rig.events[-1] == (client.index, "command", command)
    assert rig.traffic.forward(client.index, client.uid, command)
    assert rig.turn() == [(client.index, "command", command)]
    assert rig.traffic.forward(client.index, client.uid, command)
    assert [f.body for _, _, f in rig.heard()] == [b"1", command[32:], b"2", command[32:], b"3"]


def test_what_follows_a_command_does_not_wait_for_the_clock(make: Make) -> None:
    rig = make()
    client = rig.live()
    client.send(frame(KIND_COMMAND, body=b"{}") + store())
    rig.turn()
    rig.turn(timeout_ms=5000)
    assert [f.kind for _, _, f in rig.heard(1)] == [KIND_STORE]


@pytest.mark.requirement("CLU-59")
@pytest.mark.parametrize("bad", [frame(0x67, number=7), frame(KIND_COMMAND, number=7, body=bytes(70_000))])
def test_a_command_of_unknown_kind_is_answered_and_the_connection_stays(make: Make, bad: bytes) -> None:
    rig = make()
    client = rig.live()
    assert not send_all(rig, client, bad + store(b"after"))
    assert [f.body for _, _, f in rig.heard()] == [b"after"]
    (error,) = client.frames()
    assert (error.kind, error.code, error.number) == (ERROR, "bad-request", 7)


@pytest.mark.parametrize("size", [40_000, 131_072, 1_000_000])
def test_frames_longer_than_the_input_buffer_arrive_whole_and_in_order(make: Make, size: int) -> None:
    rig = make()
    clients = [rig.live(), rig.live()]
    bodies = [random.Random(n).randbytes(size) for n in range(4)]
    sent = {client.uid: store(b"a") + store(bodies[n]) + store(bodies[n + 2]) for n, client in enumerate(clients)}
    rest = dict(sent)
    found: list[Any] = []
    for _ in range(3000):
        for client in clients:
            try:
                rest[client.uid] = rest[client.uid][client.send(rest[client.uid][:50_000]) :]
            except BlockingIOError:
                pass
        found += rig.heard(1)
        if not any(rest.values()) and len(found) == 6:
            break
    for n, client in enumerate(clients):
        assert [f.body for _, uid, f in found if uid == client.uid] == [b"a", bodies[n], bodies[n + 2]]


def test_a_client_that_ends_in_the_middle_of_a_large_frame_leaves_nothing_behind(make: Make) -> None:
    rig = make()
    client = rig.live()
    send_all(rig, client, store(bytes(500_000))[:200_000])
    client.sock.close()
    assert [f.body for _, _, f in rig.heard(5)] in ([], [b'{"do":"gone"}'])
    assert rig.statistics()["connections"] == 0


@pytest.mark.requirement("CLU-62")
def test_the_end_of_a_connection_is_told_behind_all_it_sent_and_only_if_it_used_the_road(make: Make) -> None:
    rig = make()
    user, other = rig.live(), rig.live()
    user.send(store(b"last"))
    user.sock.close()
    other.sock.close()
    found = rig.heard(5)
    assert [(uid, f.kind, f.body) for _, uid, f in found] == [
        (user.uid, KIND_STORE, b"last"),
        (user.uid, KIND_COMMAND, b'{"do":"gone"}'),
    ]


# --- Towards clients ------------------------------------------------------------------------------------------------
@pytest.mark.requirement("CLU-63")
def test_answers_reach_their_connection_and_strays_are_dropped_and_counted(make: Make) -> None:
    rig = make()
    one, two = rig.live(), rig.live()
    rig.answer(one, frame(KIND_STORED, body=b"1"))
    rig.answer(two, frame(KIND_ANSWER, number=3, body=b"{}"))
    rig.tell(one.index, two.uid, frame(KIND_STORED, body=b"stray"))
    rig.tell(9999, 17, frame(KIND_STORED, body=b"stray"))
    rig.turn(3)
    assert [(f.kind, f.body) for f in one.frames()] == [(KIND_STORED, b"1")]
    assert [(f.kind, f.number) for f in two.frames()] == [(KIND_ANSWER, 3)]
    assert (rig.statistics()["link_strays"], rig.statistics()["durable_out"]) == (2, 2)


def test_durable_deliveries_do_not_wait_for_credit_for_transient_ones(make: Make) -> None:
    rig = make()
    client = rig.live(credit=1)
    for n in range(3):
        rig.send_foreign(b"t%d" % n, client)
    rig.turn(2)
    for n in range(3):
        rig.answer(client, frame(KIND_DELIVER, body=b"d%d" % n))
    rig.turn(3)
    assert [f.body for f in client.frames()] == [b"t0", b"d0", b"d1", b"d2"]
    client.send(frame(CREDIT, number=5))
    rig.turn(3)
    assert [f.body for f in client.frames()] == [b"t1", b"t2"]


@pytest.mark.parametrize("seed", range(6))
def test_everything_arrives_whole_and_in_order_whatever_mixes_on_a_slow_connection(make: Make, seed: int) -> None:
    rig = make(blocks=256)
    chance = random.Random(seed)
    client = rig.live(credit=3, buffer=4096)
    sent: dict[str, list[bytes]] = {"transient": [], "durable": []}
    frames: list[Frame] = []

    def read(most: int) -> None:
        try:
            client.received += client.sock.recv(most)
        except BlockingIOError:
            return

    for n in range(160):
        body = b"%d " % n + bytes(chance.choice([0, 10, 1000, 20_000, 140_000, 300_000]))
        if chance.random() < 0.5:
            sent["transient"].append(body)
            rig.send_foreign(body, client)
        else:
            sent["durable"].append(body)
            rig.answer(client, frame(KIND_DELIVER, body=body))
        rig.turn()
        if chance.random() < 0.3:
            read(chance.choice([100, 5000, 500_000]))
        if chance.random() < 0.3:
            client.send(frame(CREDIT, number=2))
    client.send(frame(CREDIT, number=1000))
    while len(frames) < 160:
        rig.turn()
        frames += client.frames()
    rig.turn(2)
    assert [f.body for f in frames if f.kind == KIND_DELIVER] == sent["durable"]
    assert [f.body for f in frames if f.kind == PUBLISH] == sent["transient"]
    assert rig.statistics()["open_instructions"] == 0


def test_a_client_that_does_not_read_its_deliveries_is_cut_off(make: Make) -> None:
    rig = make(slow_client_bytes=300_000)
    client, other = rig.live(buffer=4096), rig.live()
    client.send(store())
    rig.heard()
    for _ in range(20):
        rig.answer(client, frame(KIND_DELIVER, body=bytes(60_000)))
        rig.turn()
    rig.answer(other, frame(KIND_DELIVER, body=b"fine"))
    rig.turn(3)
    assert rig.statistics()["slow_clients"] == 1
    assert [f.body for f in other.frames()] == [b"fine"]
    rig.later(2000)
    rig.later(2000)
    assert [f.body for _, _, f in rig.heard()] == [b'{"do":"gone"}']


def test_of_a_client_that_does_not_read_in_bulk_the_message_manager_is_told(make: Make) -> None:
    rig = make(slow_client_bytes=65_536)
    client, other = rig.live(buffer=4096), rig.live()
    for one in (client, other):
        one.send(store())
    rig.heard()
    told: list[tuple[int, bytes]] = []
    sent = [b"%d " % n + bytes(300_000) for n in range(14)]
    for body in sent:
        rig.answer(client, frame(KIND_COLUMNS, body=body))
        rig.answer(other, frame(KIND_COLUMNS, body=body))
        rig.turn()
        other.frames()
        told += [(uid, f.body) for _, uid, f in rig.heard(1)]
    assert told == [(client.uid, b'{"do":"full"}')]
    found: list[Frame] = []
    while len(found) < len(sent):
        found += client.frames()
        told += [(uid, f.body) for _, uid, f in rig.heard(1)]
    told += [(uid, f.body) for _, uid, f in rig.heard(2)]
    assert [f.body for f in found] == sent
    assert told == [(client.uid, b'{"do":"full"}'), (client.uid, b'{"do":"room"}')]
    assert rig.statistics()["slow_clients"] == 0
    # A new message manager knows nothing of it, and hears no `room`.
    for body in sent:
        rig.answer(client, frame(KIND_COLUMNS, body=body))
    assert [f.body for _, _, f in rig.heard()] == [b'{"do":"full"}']
    rig.peer.close()
    rig.turn(2)
    rig.attach()
    found = []
    while len(found) < len(sent):
        found += client.frames()
        assert rig.heard(1) == []


def test_one_delivery_larger_than_the_bound_is_no_reason_to_cut_off(make: Make) -> None:
    rig = make(slow_client_bytes=65_536)
    client = rig.live(buffer=4096)
    rig.answer(client, frame(KIND_DELIVER, body=bytes(1 << 20)))
    found: list[Frame] = []
    while not found:
        rig.turn()
        found = client.frames()
    assert len(found[0].body) == 1 << 20


def test_notices_go_to_those_who_used_the_road_behind_what_waits_for_them(make: Make) -> None:
    rig = make()
    user, other = rig.live(buffer=4096), rig.live()
    user.send(store())
    rig.heard()
    rig.answer(user, frame(KIND_DELIVER, body=bytes(400_000)))
    rig.turn(2)
    assert rig.traffic.notify(frame(KIND_NOTICE, body=b"{}")) == 1
    kinds: list[int] = []
    while len(kinds) < 2:
        rig.turn()
        kinds += user.kinds()
    assert kinds == [KIND_DELIVER, KIND_NOTICE]
    assert other.kinds() == []


# --- The link itself ------------------------------------------------------------------------------------------------
def test_without_a_link_frames_are_dropped_and_counted_and_commands_still_come_to_python(make: Make) -> None:
    rig = make(linked=False)
    client = rig.live()
    client.send(store() + frame(KIND_COMMAND, number=1, body=b"{}"))
    rig.turn(3)
    assert rig.events[-1][1] == "command"
    assert not rig.traffic.forward(client.index, client.uid, store())
    assert rig.statistics()["link_dropped"] == 1
    rig.attach()
    client.send(store(b"now"))
    assert [f.body for _, _, f in rig.heard()] == [b"now"]


@pytest.mark.requirement("CLU-62")
def test_a_lost_link_is_reported_once_and_can_be_made_again(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.peer.close()
    events = rig.turn(3)
    assert [event for event in events if event[1] == "link-lost"] == [(-1, "link-lost", b"")]
    rig.attach()
    with pytest.raises(ValueError, match="already"):
        rig.traffic.link(0)
    rig.traffic.forward(0, 0, frame(KIND_COMMAND, number=1, body=b'{"do":"hello"}'))
    assert [(index, uid, f.kind) for index, uid, f in rig.heard()] == [(0, 0, KIND_COMMAND)]
    rig.tell(0, 0, frame(KIND_ANSWER, number=1, body=b"{}"))
    assert rig.turn(2)[-1] == (-1, "link", frame(KIND_ANSWER, number=1, body=b"{}"))
    rig.traffic.unlink()
    client.send(store())
    rig.turn(2)
    assert rig.statistics()["link_dropped"] == 1


@pytest.mark.parametrize(
    "noise",
    [
        bytes(64),
        ENVELOPE.pack(48, 0, 0) + frame(KIND_STORED, body=b"longer than its envelope"),
        ENVELOPE.pack(0xFFFFFFFF, 0, 0) + struct.pack("<I", 0xFFFFFFEF) + bytes(60),
        ENVELOPE.pack(48, 0, 0) + struct.pack("<IBBHIIQQ", 32, PUBLISH, 0, 60_000, 0, 0, 0, 0),
        ENVELOPE.pack(20, 0, 0) + bytes(40),
    ],
)
def test_a_peer_that_speaks_another_language_is_left(make: Make, noise: bytes) -> None:
    rig = make()
    client = rig.live()
    rig.peer.send(noise)
    assert (-1, "link-lost", b"") in rig.turn(3)
    client.send(publish(b"t"))
    rig.turn(2)
    done(rig, messages(rig))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=1, max_size=400))
def test_noise_from_the_peer_harms_nobody(make: Make, noise: bytes) -> None:
    rig = make()
    client = rig.live()
    rig.peer.send(noise)
    rig.turn(3)
    client.send(frame(0x02))
    rig.turn(2)
    assert 0x03 in client.kinds()
    done(rig, messages(rig))


@pytest.mark.requirement("CLU-104")
def test_a_message_manager_that_does_not_read_stops_those_who_send_to_it_and_nobody_else(make: Make) -> None:
    rig = make()
    busy, quiet = rig.live(), rig.live()
    block = store(bytes(500_000))
    left = send_all(rig, busy, block * 60)
    assert len(left) > 10 * len(block)
    figures = rig.statistics()
    assert figures["link_choked"] == 1
    assert figures["link_chokes"] == 1
    assert (8 << 20) < figures["link_waiting"] < (10 << 20)
    quiet.send(publish(b"t"))
    rig.turn(3)
    done(rig, messages(rig))
    assert rig.statistics()["messages_in"] == 1
    found: list[Any] = []
    for _ in range(4000):
        found += rig.heard(1)
        if left:
            left = send_all(rig, busy, left, 1)
        if len(found) == 60:
            break
    assert len(found) == 60
    assert rig.statistics()["link_choked"] == 0


def test_a_choked_connection_is_not_polled_in_vain(make: Make) -> None:
    rig = make()
    busy = rig.live()
    send_all(rig, busy, store(bytes(500_000)) * 40)
    before = rig.statistics()["bytes_in"]
    assert all(rig.turn(timeout_ms=5) == [] for _ in range(20))
    assert rig.statistics()["bytes_in"] - before <= 1 << 20


# --- Broadcasts of the message manager ------------------------------------------------------------------------------
def test_a_broadcast_of_the_message_manager_goes_to_the_router_in_nobodys_name(make: Make) -> None:
    rig = make()
    pair = encode_headers([(":from", "ann")])
    rig.tell(0, 0, publish(b"prices", b"body", headers=pair, flags=0x10))
    rig.turn(2)
    entries = rig.pop()
    (entry,) = [one for one in entries if one.kind == layout.UP_MESSAGE]
    assert (entry.uid, entry.flags & layout.FLAG_COUNTED) == (0, layout.FLAG_COUNTED)
    assert (entry.frame.topic, entry.frame.headers, entry.frame.flags) == (b"prices", pair, 0x10)
    assert rig.arenas[0].read(entry.handle) == b"body"
    assert entry.flags & layout.FLAG_ROUND or entries[-1].kind == layout.UP_ROUND
    done(rig, [entry])
    assert rig.stored() == 0


def test_broadcasts_wait_for_room_and_hold_back_what_is_behind_them(make: Make) -> None:
    rig = make(limit=10, resume_below=5)
    client = rig.live()
    for n in range(30):
        rig.tell(0, 0, publish(b"t", b"%d" % n))
    rig.answer(client, frame(KIND_STORED))
    rig.turn(5)
    assert len([one for one in rig.peek() if one.kind == layout.UP_MESSAGE]) == 10
    assert client.kinds() == []
    bodies = []
    for _ in range(20):
        found = messages(rig)
        bodies += [int(rig.arenas[0].read(entry.handle)) for entry in found]
        done(rig, found)
        rig.turn(2)
    assert bodies == list(range(30))
    assert client.kinds() == [KIND_STORED]


def test_broadcasts_wait_while_the_arena_is_full(make: Make) -> None:
    rig = make(blocks=4)
    for n in range(8):
        rig.tell(0, 0, publish(b"t", bytes([n]) * 60_000))
    rig.turn(3)
    seen = []
    for _ in range(12):
        found = messages(rig)
        seen += [rig.arenas[0].read(entry.handle)[0] for entry in found]
        done(rig, found)
        rig.turn(2)
    assert seen == list(range(8))
    assert rig.stored() == 0


# --- One name space -------------------------------------------------------------------------------------------------
def test_a_publish_to_a_destination_goes_to_the_link_and_others_to_the_router(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"orders", b"events.all"], [])
    client.send(publish(b"orders", b"1") + publish(b"order", b"2") + publish(b"events.all", b"3", number=4))
    found = rig.heard()
    assert [(f.kind, f.topic, f.body, f.peer) for _, _, f in found] == [
        (PUBLISH, b"orders", b"1", client.uid),
        (PUBLISH, b"events.all", b"3", client.uid),
    ]
    entries = messages(rig)
    assert [one.frame.topic for one in entries] == [b"order"]
    done(rig, entries)
    rig.traffic.divert([], [b"orders"])
    client.send(publish(b"orders", b"4"))
    assert rig.heard() == []
    done(rig, messages(rig))
    assert rig.statistics()["diverted"] == 2


def test_the_senders_user_is_the_managers_word(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"t"], [])
    pair, own = encode_headers([(":from", "ann")]), encode_headers([("x", "y")])
    assert rig.traffic.identity(client.index, client.uid, pair, False)
    assert not rig.traffic.identity(client.index, client.uid + 1, pair, False)
    client.send(publish(b"t", b"b", headers=own))
    rig.turn()
    assert rig.traffic.identity(client.index, client.uid, b"", False)
    client.send(publish(b"t", b"b", headers=own, flags=0x10, peer=77))
    found = [f for _, _, f in rig.heard()]
    assert [(f.headers, f.flags, f.peer) for f in found] == [(pair + own, 0x10, client.uid), (own, 0, client.uid)]


def test_python_is_asked_about_restricted_clients_and_reserved_names_in_order(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"t", b"_ADMIN"], [])
    client.send(publish(b"_ADMIN", b"1") + publish(b"t", b"2"))
    (asked,) = rig.turn()
    assert (asked[0], asked[1], Frame(asked[2]).topic) == (client.index, "publish", b"_ADMIN")
    rig.traffic.forward(client.index, client.uid, asked[2])
    assert [f.body for _, _, f in rig.heard()] == [b"1", b"2"]
    rig.traffic.identity(client.index, client.uid, b"", True)
    client.send(publish(b"t", b"3"))
    (asked,) = rig.turn(2)
    assert (asked[1], Frame(asked[2]).body) == ("publish", b"3")
    assert rig.heard() == []


def test_several_topics_are_parted(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"q", b"long.name"], [])
    header = encode_headers([("k", "v")])
    client.send(publish(b"a\x1fq\x1fb\x1flong.name", b"body", headers=header) + publish(b"a\x1fb", b"2"))
    found = [f for _, _, f in rig.heard()]
    assert [(f.topic, f.headers, f.body) for f in found] == [(b"q", header, b"body"), (b"long.name", header, b"body")]
    entries = messages(rig)
    assert [(one.frame.topic, one.frame.headers) for one in entries] == [(b"a\x1fb", header), (b"a\x1fb", b"")]
    assert [rig.arenas[0].read(one.handle) for one in entries] == [b"body", b"2"]
    done(rig, entries)


@pytest.mark.parametrize("topic", [b"q", b"a\x1fq\x1fb"])
def test_large_publishes_to_a_destination_are_gathered_first(make: Make, topic: bytes) -> None:
    rig = make(blocks=128)
    client = rig.live()
    rig.traffic.divert([b"q"], [])
    body = random.Random(1).randbytes(900_000)
    found: list[Any] = []
    left = publish(topic, body) + publish(b"x", b"after")
    entries: list[Any] = []
    for _ in range(400):
        left = send_all(rig, client, left, 1)
        found += rig.heard(1)
        entries += messages(rig)
    assert [(f.topic, f.body) for _, _, f in found] == [(b"q", body)]
    expected = [(b"a\x1fb", body)] if topic != b"q" else []
    assert [(one.frame.topic, rig.arenas[0].read(one.handle)) for one in entries] == [*expected, (b"x", b"after")]
    done(rig, entries)
    assert rig.stored() == 0


def test_a_fragmented_publish_to_a_destination_is_refused(make: Make) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert([b"q"], [])
    first = publish(b"q", struct.pack("<Q", 2000) + bytes(1000), flags=0x08, correlation=6)
    client.send(first + frame(FRAGMENT, body=bytes(1000)) + publish(b"q", b"small"))
    assert [f.body for _, _, f in rig.heard()] == [b"small"]
    (error,) = client.frames()
    assert (error.code, error.correlation) == ("body-too-large", 6)
    done(rig, messages(rig))
    assert rig.stored() == 0


def test_a_publish_to_a_destination_without_a_link_is_an_error(make: Make) -> None:
    rig = make(linked=False)
    client = rig.live()
    rig.traffic.divert([b"q"], [])
    client.send(publish(b"q", b"x", correlation=6))
    rig.turn(3)
    (error,) = client.frames()
    assert (error.code, error.correlation) == ("no-message-manager", 6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.text("ab.é_x", min_size=1, max_size=20).map(str.encode), max_size=30),
    topics=st.lists(st.text("ab.é_x", min_size=1, max_size=20).map(str.encode), max_size=20),
)
def test_exactly_the_names_given_are_diverted(make: Make, names: set[bytes], topics: list[bytes]) -> None:
    rig = make()
    client = rig.live()
    rig.traffic.divert(list(names), [])
    wanted = [*topics, *names]
    for topic in wanted:
        client.send(publish(topic))
    asked: list[bytes] = []
    found = []
    for _ in range(len(wanted) + 3):
        for _, what, data in rig.turn():
            assert what == "publish"
            asked.append(Frame(data).topic)
        found += rig.heard(0)
    rig.read_peer()
    found += rig.heard(2)
    entries = messages(rig)
    assert [one.frame.topic for one in entries] == [topic for topic in wanted if topic not in names]
    assert [f.topic for _, _, f in found] == [t for t in wanted if t in names and not t.startswith(b"_")]
    assert asked == [t for t in wanted if t in names and t.startswith(b"_")]
    done(rig, entries)


def test_statistics_of_both_engines_have_the_same_names() -> None:
    names = []
    for engine, parts in ENGINES.values():
        rig = Rig(engine, parts)
        names.append(set(rig.statistics()))
        rig.close()
    assert len({frozenset(one) for one in names}) == 1
    assert json.dumps(sorted(names[0]))
