"""The bulk client's machines: what they make of any bytes, and that no row is lost or doubled by lost lines."""

from __future__ import annotations

import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.client.bulk.answers import Plan, Position, taken
from fairlead.client.bulk.attempts import Attempts
from fairlead.client.bulk.batches import Batches
from fairlead.client.bulk.incoming import Frame, Incoming
from fairlead.client.bulk.memory import KEPT_MAX, Memory
from fairlead.client.bulk.parts import PART_BYTES, parts_of
from fairlead.client.bulk.protocol import COMMAND_BYTES_MAX, OUT_MAX, Protocol
from fairlead.client.bulk.unconfirmed import ENTRIES_BYTES_MAX, WINDOW_BYTES_MAX, Unconfirmed
from fairlead.errors import (
    BodyTooLarge,
    ConnectionLost,
    LocalProtocolError,
    NoMessageManager,
    NotAllowed,
    RemoteProtocolError,
    RequestTimeout,
    StoreFull,
    TooLarge,
)
from fairlead.wire import durable, kinds
from fairlead.wire.column_batch import BATCH
from fairlead.wire.entry_codec import encode_many
from fairlead.wire.frames import encode_frame
from fairlead.wire.handshake import Connect
from tests.client.bulk_server import batch_of, error, notice

HELLO = Connect(type="t", instance="i", password="hidden")


def feed(protocol: Protocol, data: bytes, sizes: list[int] | None = None) -> None:
    """Put bytes where the protocol wants them, in portions of these sizes (again and again)."""
    at, turn, sizes = 0, 0, sizes or [1 << 20]
    while at < len(data):
        space = protocol.incoming.space
        assert 0 < len(space) <= kinds.FRAME_BYTES_MAX
        count = min(len(space), sizes[turn % len(sizes)], len(data) - at)
        space[:count] = data[at : at + count]
        protocol.on_bytes(count)
        at, turn = at + count, turn + 1


def live() -> Protocol:
    protocol = Protocol(HELLO)
    feed(protocol, encode_frame(kinds.KIND_CONFIRM, 0, 0, 0, 0, b"", b"", b'{"uid": 1}'))
    feed(protocol, encode_frame(kinds.KIND_WELCOME, 0, 0, 0, 0, b"", b"", b'{"uid": 1}'))
    assert protocol.is_live
    protocol.out.clear()
    return protocol


def pieces(blob: bytes, size: int, *, scan: int = 1, batch: int = 1) -> list[bytes]:
    """The COLUMNS frames of a batch."""
    return [
        encode_frame(
            durable.KIND_COLUMNS,
            kinds.FLAG_LAST if at + size >= len(blob) else 0,
            *(scan, batch, at, b"", b"", bytes(blob[at : at + size])),
        )
        for at in range(0, len(blob), size)
    ]


# Frames.

numbers = st.integers(0, (1 << 32) - 1)
longs = st.integers(0, (1 << 64) - 1)
frames = st.tuples(
    st.integers(0, 255), st.integers(0, 255), numbers, longs, longs, st.binary(max_size=20), st.binary(max_size=200)
)


@given(st.lists(frames, max_size=10), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_frames_are_found_however_they_are_cut(said: list[tuple], sizes: list[int]) -> None:
    incoming = Incoming(lambda _: None)
    data = b"".join(encode_frame(k, f, n, c, p, topic, b"", body) for k, f, n, c, p, topic, body in said)
    found: list[Frame] = []
    at = turn = 0
    while at < len(data):
        count = min(len(incoming.space), sizes[turn % len(sizes)], len(data) - at)
        incoming.space[:count] = data[at : at + count]
        if (frame := incoming.on_bytes(count)) is not None:
            found.append(frame)
        at, turn = at + count, turn + 1
    assert [(f.head.kind, f.head.flags, f.head.number, f.head.correlation, f.head.peer, f.body) for f in found] == [
        (k, f, n, c, p, body) for k, f, n, c, p, _, body in said
    ]


@given(st.data())
def test_whatever_comes_is_taken_or_refused(data: st.DataObject) -> None:
    """Any bytes, and any frames of the kinds it knows: RemoteProtocolError is the worst."""
    protocol = live()
    protocol.scans[1] = scan = Batches(1, 1 << 20, Memory())
    protocol.grant(scan, 8)
    protocol.stages[2] = stage = Unconfirmed()
    stage.on_open(2, 0, 1 << 20)
    stage.add(encode_many([b"a", b"b"]), 2, 0)
    asked = protocol.command("plan", {})
    heads = st.tuples(
        st.sampled_from([0x76, 0x76, 0x70, 0x71, 0x75, 0x44, 0x02, 0x41, 0x42, 0x48, 0x0A]),
        st.sampled_from([0, 1]),
        st.sampled_from([0, 1, 2, asked]),
        st.sampled_from([0, 1, 2]),
        st.sampled_from([0, 64, 100]),
        st.just(b""),
        st.one_of(st.just(b""), st.binary(max_size=30)),
        st.one_of(
            st.binary(max_size=200),
            st.just(bytes(batch_of([b"x"], 1, 2, end=False))),
            st.integers(0, 1 << 63).map(lambda size: BATCH.pack(b"FLCB", 1, 0, 1, 0, 2, size, b"")),
            st.sampled_from([b"{}", b"[]", b'{"event": "ended", "handle": 1}', b'{"event":"refused","stage":2}']),
            st.integers(0, 5).map(lambda status: durable.STORED_ITEM.pack(1, 2, status, 0, 0)),
        ),
    ).map(lambda said: encode_frame(*said))
    stream = data.draw(st.one_of(st.binary(max_size=300), st.lists(heads, max_size=8).map(b"".join)))
    try:
        feed(protocol, stream, data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=3)))
    except RemoteProtocolError:
        pass
    assert stage.safe <= stage.added


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((31, 1, 0, 0, 0, 0, 0, 0), "shorter"),
        ((32, 1, 0, 1, 0, 0, 0, 0), "shorter"),
        ((kinds.FRAME_BYTES_MAX + 1, 1, 0, 0, 0, 0, 0, 0), "exceeds"),
        ((100_000, 1, 0, 0, 70_000, 0, 0, 0), "exceeds"),
        ((0xFFFF_FFFF, 0x76, 0, 0, 0, 1, 1, 0), "exceeds"),
    ],
)
def test_heads_that_make_no_sense(fields: tuple[int, ...], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        feed(Protocol(HELLO), struct.pack("<IBBHIIQQ", *fields))


# Batches.


@given(st.integers(40, 400), st.lists(st.integers(20, 500), min_size=1, max_size=4))
def test_a_batch_is_put_together_where_it_stays(size: int, sizes: list[int]) -> None:
    protocol = live()
    protocol.scans[1] = scan = Batches(1, 1 << 20, Memory())
    protocol.grant(scan, 2)
    blobs = [batch_of([b"abc" * n for n in range(20)], 1, 21, end=False), batch_of([], 21, 30, end=True)]
    for number, blob in enumerate(blobs, 1):
        for piece in pieces(blob, size, batch=number):
            feed(protocol, piece, sizes)
            feed(protocol, encode_frame(kinds.KIND_PING, 0, 0, 7, 0, b"", b"", b""))
    first, second = scan.ready
    assert (first.rows, first.next, first.end, second.rows, second.end) == (20, 21, False, 0, True)
    assert bytes(first.buffers[3, 2]) == b"".join(b"abc" * n for n in range(20))
    assert scan.granted == 0
    assert len(protocol.out) == 1 + sum(len(pieces(blob, size)) for blob in blobs)


BLOB = bytes(batch_of([b"x" * 100] * 10, 1, 11, end=False))


@pytest.mark.parametrize(
    "said",
    [
        pieces(BLOB, 500)[1:],  # the beginning is missing
        pieces(BLOB, 500)[:1] * 2,  # twice the same
        pieces(BLOB, 500, batch=2),  # not the next one
        [encode_frame(0x76, 1, 1, 1, 0, b"", b"", BLOB[:500])],  # ends early
        [encode_frame(0x76, 0, 1, 1, 0, b"", b"", BLOB + b"!")],  # and late
        [encode_frame(0x76, 0, 1, 1, 0, b"t", b"", BLOB)],
        [encode_frame(0x76, 1, 1, 1, 0, b"", b"", BATCH.pack(b"FLCB", 1, 0, 1, 0, 2, 1 << 40, b""))],
        [encode_frame(0x76, 1, 1, 1, 0, b"", b"", BATCH.pack(b"FLCB", 1, 0, 1, 0, 2, 63, b""))],
        [encode_frame(0x76, 1, 1, 1, 0, b"", b"", BLOB[:4] + b"\xff" + BLOB[5:])],
        [*pieces(BLOB, 5000), *pieces(BLOB, 5000, batch=2)],  # one more than was asked for
    ],
)
def test_pieces_that_make_no_batch(said: list[bytes]) -> None:
    protocol = live()
    protocol.scans[1] = scan = Batches(1, 1 << 20, Memory())
    protocol.grant(scan, 1)
    with pytest.raises(RemoteProtocolError):
        for piece in said:
            feed(protocol, piece)


def test_memory_is_used_again_when_nobody_looks_any_more() -> None:
    memory = Memory()
    one = memory.take(1000)
    one[:] = b"1" * 1000
    arrays = [pa.Array.from_buffers(pa.uint8(), 100, [None, pa.py_buffer(one[at : at + 100])]) for at in (0, 64)]
    two = memory.take(900)
    two[:] = b"2" * 900
    assert arrays[1].to_pylist() == [ord("1")] * 100
    whose = one.obj
    del one
    assert memory.take(10).obj is not whose  # the arrays look
    del arrays
    assert memory.take(1000).obj is whose
    assert memory.take(1000).obj is whose  # nobody kept it
    assert len(memory.take(1 << 20)) == 1 << 20
    kept = [memory.take(100) for _ in range(50)]
    assert len({id(each.obj) for each in kept}) == 50
    assert len(memory._kept) == KEPT_MAX


def test_what_comes_for_a_scan_that_was_stopped_is_not_looked_at() -> None:
    protocol = live()
    protocol.scans[1] = scan = Batches(1, 1 << 20, Memory())
    protocol.grant(scan, 2)
    first, *rest = pieces(BLOB, 500)
    feed(protocol, first)
    protocol.stop(scan)
    feed(protocol, b"".join(rest) + b"".join(pieces(bytes(200_000), 150_000, batch=2)))
    assert not scan.ready
    assert len(protocol.out) == 2


# What is asked.


def test_answers_go_to_those_who_asked() -> None:
    protocol = live()
    one, two = protocol.command("plan", {"a": 1}), protocol.command("scan", {})
    feed(protocol, error(two, "not-allowed", "no"))
    feed(protocol, encode_frame(durable.KIND_ANSWER, 0, one, 0, 0, b"", b"", b'{"end": 3}'))
    feed(protocol, encode_frame(durable.KIND_ANSWER, 0, one, 0, 0, b"", b"", b'{"end": 4}'))  # a second time: no
    feed(protocol, encode_frame(durable.KIND_ANSWER, 0, 99, 0, 0, b"", b"", b"{}"))
    assert protocol.answers.keys() == {one, two}
    assert protocol.answers[one] == {"end": 3}
    assert isinstance(protocol.answers[two], NotAllowed)


def test_a_command_that_is_too_long_is_not_sent() -> None:
    protocol = live()
    with pytest.raises(TooLarge, match="publish"):
        protocol.command("publish", {"stages": ["x" * COMMAND_BYTES_MAX]})
    assert not protocol.out


def test_errors_and_notices_for_scans_and_stages() -> None:
    protocol = live()
    protocol.scans |= {1: (one := Batches(1, 100, Memory())), 3: (three := Batches(3, 100, Memory()))}
    protocol.stages |= {2: (stage := Unconfirmed()), 4: (other := Unconfirmed())}
    feed(protocol, notice(event="ended", handle=1, code="destination-deleted", text="gone"))
    feed(protocol, error(3, "offset-gone", "lost: [1, 5]"))
    feed(protocol, notice(event="refused", producer=2, first=1, count=1, code="store-full", text="full"))
    feed(protocol, error(4, "destination-deleted", "gone too"))
    feed(protocol, notice(event="of another kind"))
    assert [str(each.error) for each in (one, three, stage, other)] == ["gone", "lost: [1, 5]", "full", "gone too"]
    assert protocol.lost is None
    feed(protocol, notice(event="interrupted"))
    assert isinstance(protocol.lost, NoMessageManager)


def test_whoever_asks_for_a_sign_of_life_and_does_not_read_gets_no_more() -> None:
    protocol = live()
    feed(protocol, encode_frame(kinds.KIND_PING, 0, 0, 7, 0, b"", b"", b"") * 5 * OUT_MAX)
    assert len(protocol.out) == OUT_MAX


# Rows that are not safe yet.


steps = st.tuples(st.sampled_from(["add", "take", "tell", "lose"]), st.integers(0, 9))


@given(st.lists(steps, max_size=40))
def test_rows_are_stored_once_whatever_is_lost(history: list[tuple[str, int]]) -> None:
    """A server that takes some of what is under way before a line is lost, and may stop inside a batch of rows."""
    rows = Unconfirmed()
    stored: list[bytes] = []
    under_way: list[tuple[int, list[bytes]]] = []
    told = 0

    def send() -> None:
        for head, entries in rows.to_send():
            first, count = struct.unpack_from("<Q", head, 16)[0], struct.unpack_from("<I", head, 32)[0]
            under_way.append((first, [bytes(entries)[at * 20 : at * 20 + 20] for at in range(count)]))

    def take(most: int) -> None:
        first, bodies = under_way.pop(0)
        assert first <= len(stored) + 1, "a gap"
        stored.extend(bodies[len(stored) + 1 - first :][:most])

    rows.on_open(1, 0, 1 << 20)
    for step, number in [*history, ("add", 0), ("lose", 0), *[("take", 0)] * 41, ("tell", 0)]:
        if step == "add":
            count = number + 1
            rows.add(encode_many([b"%04d" % n for n in range(rows.added, rows.added + count)]), count, 0)
            send()
        elif step == "take" and under_way:
            take(1 << 20)
        elif step == "tell" and told < len(stored):
            first, told = told + 1, max(len(stored) - number, told + 1)
            rows.on_stored(durable.STORED_ITEM.pack(first, told + 1 - first, durable.STORED_NEW, 0, 0))
        elif step == "lose":
            if under_way:
                take(number)
            under_way.clear()
            rows.on_open(2, told := len(stored), 1 << 20)
            send()
    assert [entry[-4:] for entry in stored] == [b"%04d" % n for n in range(rows.added)]
    assert rows.is_safe
    assert rows.has_room


def test_a_stage_that_has_rows_already_does_not_get_them_again() -> None:
    rows = Unconfirmed()
    rows.on_open(1, 3, 1 << 20)
    rows.add(encode_many([b"1", b"2"]), 2, 0)
    assert list(rows.to_send()) == []
    rows.add(encode_many([b"3", b"4"]), 2, 0)
    ((head, entries),) = rows.to_send()
    assert bytes(entries) == encode_many([b"4"])
    assert struct.unpack_from("<Q", head, 16) == (4,)
    assert not rows.is_safe


def test_the_window() -> None:
    rows = Unconfirmed()
    rows.on_open(1, 0, 1 << 60)
    assert rows.window_bytes == WINDOW_BYTES_MAX
    entries = encode_many([bytes(1000)] * 1000)
    while rows.has_room:
        rows.add(entries, 1000, 0)
    assert WINDOW_BYTES_MAX - 2 * ENTRIES_BYTES_MAX < rows.added // 1000 * len(entries) <= WINDOW_BYTES_MAX
    rows.on_stored(durable.STORED_ITEM.pack(1, 1000, durable.STORED_NEW, 0, 0))
    assert rows.has_room
    small = Unconfirmed()
    small.on_open(1, 0, 1000)
    assert small.has_room  # one at a time
    small.add(entries, 1000, 0)
    assert not small.has_room


def test_only_what_is_on_stable_storage_is_safe() -> None:
    rows = Unconfirmed()
    rows.add(encode_many([b"a"]), 1, 0)
    rows.on_stored(durable.STORED_ITEM.pack(1, 1, durable.STORED_VOLATILE, 0, 0))
    assert not rows.is_safe
    rows.on_stored(durable.STORED_ITEM.pack(1, 1, durable.STORED_AGAIN, 0, 0))
    assert rows.is_safe
    for item in ((3, 1), (2, 1), (1, 5)):
        with pytest.raises(RemoteProtocolError):
            rows.on_stored(durable.STORED_ITEM.pack(*item, durable.STORED_NEW, 0, 0))
    with pytest.raises(RemoteProtocolError):
        rows.on_stored(b"123")


def test_the_first_refusal_is_the_reason() -> None:
    rows = Unconfirmed()
    rows.add(encode_many([b"a"]), 1, 0)
    rows.on_refused("store-full", "no room")
    rows.on_refused("out-of-order", "")
    rows.on_stored(durable.STORED_ITEM.pack(1, 1, durable.STORED_REFUSED, 0, 0))
    assert isinstance(rows.error, StoreFull)
    rows.on_open(2, 0, 1 << 20)
    assert rows.error is None
    rows.on_stored(durable.STORED_ITEM.pack(1, 1, durable.STORED_REFUSED, 0, 0))
    assert rows.error is not None


def test_what_cannot_be_one_frame() -> None:
    rows = Unconfirmed()
    with pytest.raises(BodyTooLarge):
        rows.add(bytes(ENTRIES_BYTES_MAX + 1), 1, 0)
    for count in (0, -1, durable.COUNT_MAX + 1):
        with pytest.raises(LocalProtocolError):
            rows.add(b"", count, 0)
    rows.add(bytes(ENTRIES_BYTES_MAX), 1, 0)
    ((head, entries),) = rows.to_send()
    assert len(head) + len(entries) == durable.STORE_BYTES_MAX


# Patience, answers.


def test_patience_ends_and_says_how_often() -> None:
    attempts = Attempts(10.0, 100.0, lambda: 1.0)
    now_s, pauses = 100.0, []
    with pytest.raises(NoMessageManager, match=r"away\. \(Tried \d+ times in 9\.\d s\.\)") as caught:
        while True:
            pauses.append(attempts.on_failed(NoMessageManager("It is away."), now_s))
            now_s += pauses[-1]
    assert pauses == sorted(pauses)
    assert isinstance(caught.value.__cause__, NoMessageManager)
    attempts.on_progress(200.0)
    assert attempts.on_failed(OSError("x"), 200.0) < 0.1
    with pytest.raises(ConnectionLost, match="Tried"):
        attempts.on_failed(OSError("x"), 300.0)
    with pytest.raises(NotAllowed, match=r"^no$"):
        attempts.on_failed(NotAllowed("no"), 300.0)


def test_what_patience_cut_short_does_not_hide_what_went_wrong_before() -> None:
    silence = RequestTimeout("It did not answer in time.")
    attempts = Attempts(10.0, 100.0, lambda: 1.0)
    assert attempts.on_failed(RemoteProtocolError("It stands still."), 106.0) < 0.1
    with pytest.raises(RemoteProtocolError, match=r"^It stands still\. \(Tried 2 times in 10\.0 s\.\)$") as caught:
        attempts.on_failed(silence, 110.0)
    assert caught.value.__cause__ is silence
    for first_s, begun_s in ((None, 100.0), (104.0, 100.0), (204.0, 203.0)):  # alone; most of the time; after progress
        attempts = Attempts(10.0, begun_s, lambda: 1.0)
        if first_s is not None:
            attempts.on_failed(RemoteProtocolError("It stands still."), first_s)
        if begun_s > 200:
            attempts.on_progress(205.0)
        with pytest.raises(RequestTimeout, match="did not answer in time"):
            attempts.on_failed(silence, attempts.until_s)


def test_answers_are_checked() -> None:
    facts = {"name": "a", "kind": "queue", "id": "7", "first": 1, "next": 2, "low": 1, "retains": None, "more": 0}
    assert taken(Position, facts).at is None
    assert taken(Position, facts | {"at": 5}).at == 5
    assert taken(int, 3) == 3
    for kind, wrong in ((Plan, {"end": 1}), (Plan, {"end": "1", "first": 1, "next": 1}), (Plan, []), (int, None)):
        with pytest.raises(RemoteProtocolError):
            taken(kind, wrong)


def test_a_long_list_of_stages_is_cut_where_a_command_ends() -> None:
    stages = [(f"{number}/0-{'é' * 20}", {"orders": number}) for number in range(10_000)]
    parts = parts_of(stages)
    assert len(parts) > 5
    assert [tuple(item) for part in parts for item in part] == stages
    assert all(len(msgspec.json.encode(part)) <= PART_BYTES + 2 for part in parts)
    assert parts_of([]) == [[]]
    assert parts_of([("a", {})]) == [[["a", {}]]]


def test_a_stage_with_thousands_of_destinations_goes_on_in_the_next_part() -> None:
    counts = {f"out.{number}": number for number in range(1000)}
    parts = parts_of([("a", {"x": 1}), ("b", counts), ("c", {"x": 2})])
    assert parts[0][0] == ["a", {"x": 1}]
    assert parts[-1][-1] == ["c", {"x": 2}]
    heads = [part[0] for part in parts[1:]]
    assert {name for name, _ in heads} == {"b"}, "one item of it in each, at the head"
    assert parts[0][1][1] | {to: count for _, piece in heads for to, count in piece.items()} == counts
