"""Cursors of a queue: what they reserve stays theirs, under the same positions, whatever else happens to the queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import gathering, reserving
from fairlead.cluster.cursor import Share
from fairlead.cluster.destination import Destination
from fairlead.cluster.parties import Consumer, Line
from fairlead.cluster.reservations import Reservation
from fairlead.errors import BadName, FairleadError, TooMany
from fairlead.wire.entry_codec import encode

from .rig import Rig, text, texts

spans_of = st.tuples(st.integers(1, 60), st.integers(1, 9)).map(lambda one: (one[0], one[0] + one[1]))


def reservation(at: int = 0) -> Reservation:
    share: Any = None
    return Reservation("c", at, share, 1)


def orders(spans: list[tuple[int, int]]) -> list[int]:
    return [order for low, high in spans for order in range(low, high)]


# --- The ledger alone ---------------------------------------------------------------------------------------------
@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.sampled_from(("add", "commit", "restore")), spans_of, st.integers(0, 12))),
)
def test_positions_name_what_a_list_would(at: int, steps: list[tuple[str, tuple[int, int], int]]) -> None:
    one, model, done = reservation(at), list[int](), 0
    for step, (low, high), count in steps:
        if step == "add":
            one.add(low, high)
            model += range(low, high)
        elif step == "commit":
            spans, _ = one.commit(one.at + count)
            assert orders(spans) == model[done : done + count]
            done = min(done + count, len(model))
        else:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(one.snapshot()))
            one = Reservation.restored(state, one.share)
        assert (one.at, one.reserved, len(one)) == (at + done, at + len(model), len(model) - done)
        assert orders(one.spans(0, 1 << 60)) == model[done:]
        middle = (one.at + one.reserved) // 2
        assert orders(one.spans(middle, middle + 3)) == model[middle - at : middle - at + 3]


@given(st.lists(st.tuples(st.sampled_from((b"a", b"b", b"c")), st.booleans()), max_size=30), st.integers(0, 40))
def test_a_key_is_free_when_its_last_message_is_committed(steps: list[tuple[bytes, bool]], end: int) -> None:
    one = reservation()
    keys = [key for key, _ in steps]
    for position, key in enumerate(keys):
        one.add(position * 2, position * 2 + 1)
        one.hold(key, position)
    _, free = one.commit(end)
    assert set(free) == set(keys) - set(keys[end:])
    assert set(one.keys) == set(keys[end:])


def test_a_million_in_a_row_are_one_run() -> None:
    one = reservation()
    for first in range(1, 1_000_001, 1000):
        one.add(first, first + 1000)
    one.commit(123_456)
    assert (one.runs, len(one)) == (1, 876_544)
    assert len(msgspec.msgpack.encode(one.snapshot())) < 200


# --- In a queue ---------------------------------------------------------------------------------------------------
class Reader:
    """A program that reads by one cursor."""

    def __init__(self, rig: Rig, name: str = "c") -> None:
        self.rig = rig
        self.name = name
        self.one = reserving.make(self.home, name)
        rig.run()

    @property
    def home(self) -> Destination:
        return self.rig.destinations["q"]

    def reserve(self, messages: int = 0, bytes_: int = 0, start: int | None = None) -> list[int]:
        """The order numbers from `start` on; the cursor's own end, if none is named."""
        told: list[int | FairleadError] = []
        start = self.one.reserved if start is None else start
        gathering.ask(self.home, gathering.Asked(Line(0, 0, 0), self.one, start, messages, bytes_, told.append))
        self.rig.run()
        (end,) = told
        if isinstance(end, FairleadError):
            raise end
        return orders(self.one.spans(start, end))

    def commit(self, end: int) -> None:
        reserving.commit(self.home, self.one, end)
        self.rig.run()

    def release(self) -> int:
        count = reserving.release(self.home, self.one)
        self.rig.run()
        return count

    def after_crash(self, checkpoint: Any = None) -> Reader:
        self.rig = self.rig.crash(checkpoint)
        self.one = reserving.find(self.home, self.name)
        return self


def filled(*entries: bytes, **parameters: Any) -> Rig:
    rig = Rig()
    rig.make("_DMQ")
    home = rig.make("q", **parameters)
    producer = rig.producer(home)
    for entry in entries:
        rig.send(producer, entry)
    return rig


def taken_by(rig: Rig, **facts: Any) -> list[int]:
    """What a consumer gets that comes now."""
    return [message.order for message in rig.take(_consumer(rig, **facts))]


def _consumer(rig: Rig, **facts: Any) -> Consumer:
    consumer = rig.consumer(rig.destinations["q"], **facts)
    rig.run()
    return consumer


def test_what_is_reserved_goes_to_nobody_else_until_it_is_released() -> None:
    rig = filled(texts(range(10)))
    reader, other = Reader(rig), Reader(rig, "other")
    assert reader.reserve(4) == [1, 2, 3, 4]
    assert other.reserve(2) == [5, 6]
    consumer = _consumer(rig)
    got = rig.take(consumer)
    assert [message.order for message in got] == [7, 8, 9, 10]
    assert reader.release() == 4
    back = rig.take(consumer)
    assert [(message.order, message.delivery_count) for message in back] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    with pytest.raises(BadName):
        reserving.find(rig.destinations["q"], "c")


def test_asked_again_it_gives_the_same_before_it_locks_more() -> None:
    rig = filled(texts(range(10)))
    reader = Reader(rig)
    assert reader.reserve(4) == [1, 2, 3, 4]
    written = len(rig.log)
    assert reader.reserve(3, start=1) == [2, 3, 4]
    assert len(rig.log) == written
    assert reader.reserve(6, start=0) == [1, 2, 3, 4, 5, 6]
    reader.commit(4)
    assert reader.reserve(0, start=4) == [5, 6, 7, 8, 9, 10]
    assert reader.reserve() == []


def test_positions_name_the_same_messages_after_a_crash() -> None:
    rig = filled(texts(range(6), priority=4), texts(range(6, 9), priority=7), texts(range(9, 12), priority=4))
    reader = Reader(rig)
    expected = [7, 8, 9, 1, 2, 3, 4, 5, 6, 10, 11, 12]
    assert reader.reserve(5) == expected[:5]
    checkpoint = rig.snapshots()
    assert reader.reserve(4) == expected[5:9]
    reader.commit(2)
    for _ in range(2):
        reader = reader.after_crash(checkpoint)
        assert orders(reader.one.spans(2, 9)) == expected[2:9]
        assert taken_by(reader.rig) == expected[9:]
        reader = reader.after_crash()
        assert orders(reader.one.spans(2, 9)) == expected[2:9]
    consumer = _consumer(reader.rig)
    reader.rig.take(consumer)
    reader.release()
    assert all(message.redelivered for message in reader.rig.take(consumer)), "it may have been seen before the crash"


def test_a_reservation_that_was_not_safe_never_was() -> None:
    rig = filled(texts(range(5)))
    reader = Reader(rig)
    told: list[Any] = []
    gathering.ask(reader.home, gathering.Asked(Line(0, 0, 0), reader.one, 0, 3, 0, told.append))
    rig.turn()
    index = reader.one.index
    assert told == [3], "the command waits for this index to be safe"
    assert index > rig.safe
    reader = reader.after_crash()
    assert len(reader.one) == 0
    assert reader.reserve(5) == [1, 2, 3, 4, 5]


def test_a_released_position_is_never_given_again() -> None:
    rig = filled(texts(range(5)))
    reader = Reader(rig)
    reader.reserve(3)
    reader.release()
    again = Reader(rig)
    assert (again.one.at, again.one.reserved) == (3, 3)
    assert again.reserve() == [1, 2, 3, 4, 5]
    again = again.after_crash()
    again.release()
    assert Reader(again.rig.crash(again.rig.snapshots())).one.at == 8


def test_limits_in_messages_and_bytes() -> None:
    rig = filled(*(encode(bytes(1000)) for _ in range(20)))
    size = rig.destinations["q"].bytes // 20
    reader = Reader(rig)
    assert len(reader.reserve(0, 3 * size)) == 3
    assert len(reader.reserve(2, 1000 * size)) == 2
    assert len(reader.reserve(0, 1)) == 1, "at least one"
    assert len(reader.reserve(0, 4 * size, start=0)) == 4, "also of what is reserved"
    assert len(reader.reserve(0, 1, start=2)) == 1
    assert len(reader.reserve(0, 8 * size, start=0)) == 8
    assert len(reader.reserve()) == 12


def test_bytes_count_within_one_record() -> None:
    rig = filled(texts(range(100)), texts(range(100), key=b"k"))
    each = rig.destinations["q"].index.find(1)
    assert each is not None
    reader = Reader(rig)
    some = reader.reserve(0, each.size // 2)
    assert 45 <= len(some) <= 55
    assert len(reader.reserve(100 - len(some))) == 100 - len(some)
    assert 40 <= len(reader.reserve(0, each.size // 2)) <= 60


@pytest.mark.requirement("CLU-23")
def test_what_is_reserved_does_not_expire_and_what_expired_is_not_reserved() -> None:
    rig = filled(text(1, ttl_ms=1000), text(2), text(3, ttl_ms=1000))
    reader = Reader(rig)
    assert reader.reserve(2) == [1, 2]
    rig.now_ms += 2000  # nobody has looked at the clock yet
    assert reader.reserve() == []
    rig.wait(5000)
    assert orders(reader.one.spans(0, 2)) == [1, 2]
    assert rig.destinations["q"].depth == 2
    reader.release()
    assert taken_by(rig) == [2]


def test_a_queue_whose_messages_expire_by_its_own_rule() -> None:
    rig = filled(texts(range(3)), ttl_s=1.0)
    reader = Reader(rig)
    rig.now_ms += 2000
    assert reader.reserve() == []
    assert rig.destinations["q"].depth == 0


@pytest.mark.requirement("CLU-27")
def test_a_delayed_message_is_reserved_when_its_time_has_come_and_stays_so() -> None:
    rig = filled(text(1, delay_ms=1000), text(2))
    reader = Reader(rig)
    assert reader.reserve() == [2]
    rig.wait(2000)
    assert reader.reserve() == [1]
    reader = reader.after_crash()
    assert taken_by(reader.rig) == []
    assert orders(reader.one.spans(0, 2)) == [2, 1]


def test_a_returned_message_whose_delay_is_over_stays_reserved_after_a_crash() -> None:
    rig = filled(texts(range(2)))
    consumer = _consumer(rig, messages=1)
    rig.retry(consumer, rig.take(consumer), delay=500)
    rig.destinations["q"].detach(consumer)
    rig.wait(1000)
    reader = Reader(rig)
    assert reader.reserve() == [1, 2]
    reader = reader.after_crash()
    reader.rig.wait(1000)
    assert taken_by(reader.rig) == []


@pytest.mark.requirement("CLU-28")
def test_a_key_a_consumer_has_is_passed_over_and_a_reserved_key_waits() -> None:
    rig = filled(texts((1, 2), key=b"a"), texts((3, 4), key=b"b"), text(5, key=b"a"), text(6))
    consumer = _consumer(rig, messages=1)
    (first,) = rig.take(consumer)
    assert first.order == 1
    reader, other = Reader(rig), Reader(rig, "other")
    assert reader.reserve() == [3, 4, 6]
    assert other.reserve() == []
    rig.ack(consumer, [first])
    assert other.reserve() == [2, 5], "the consumer has nothing of the key any more"
    producer = rig.producer(rig.destinations["q"])
    rig.send(producer, texts((7, 8), key=b"b"))
    rig.want(consumer, 10)
    assert rig.take(consumer) == []
    reader.commit(1)
    assert rig.take(consumer) == [], "4 is of the key and not committed"
    reader.commit(2)
    assert [message.order for message in rig.take(consumer)] == [7, 8]


@pytest.mark.requirement("CLU-28")
def test_a_cursor_goes_on_with_its_own_key_though_consumers_wait_for_it() -> None:
    rig = filled(texts((1, 2), key=b"a"))
    reader = Reader(rig)
    assert reader.reserve(1) == [1]
    consumer = _consumer(rig)
    assert rig.take(consumer) == []
    rig.send(rig.producer(rig.destinations["q"]), text(3, key=b"a"))
    assert reader.reserve() == [2, 3]


@pytest.mark.requirement("CLU-28")
def test_a_message_of_a_key_goes_to_the_consumer_that_has_room_for_it() -> None:
    rig = filled(text(1, key=b"a"))
    consumer = _consumer(rig)
    assert len(rig.take(consumer)) == 1
    reader = Reader(rig)
    rig.send(rig.producer(rig.destinations["q"]), text(2, key=b"a"), run=False)
    rig.flush()
    assert reader.reserve() == []
    assert [message.order for message in rig.take(consumer)] == [2]


@pytest.mark.requirement("CLU-28")
@pytest.mark.parametrize("ttl_ms", [0, 60_000])
def test_a_key_nobody_has_a_message_of_is_free_whoever_had_it_last(ttl_ms: int) -> None:
    rig = filled(text(1, key=b"a"))
    consumer = _consumer(rig)
    rig.ack(consumer, rig.take(consumer))
    reader = Reader(rig)
    rig.send(rig.producer(rig.destinations["q"]), text(2, key=b"a", ttl_ms=ttl_ms), run=False)
    rig.flush()
    assert reader.reserve() == [2]


@pytest.mark.requirement("CLU-28")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("ttl_ms", [0, 60_000])
def test_a_returned_message_that_waits_holds_its_key_up(crash: bool, ttl_ms: int) -> None:
    rig = filled(*(text(number, key=key, ttl_ms=ttl_ms) for number, key in enumerate((b"a", b"a", b"b"))))
    consumer = _consumer(rig, messages=1)
    rig.retry(consumer, rig.take(consumer), delay=500)
    rig.destinations["q"].detach(consumer)
    reader = Reader(rig)
    if crash:
        reader = reader.after_crash()
    assert reader.reserve() == [3]
    reader.rig.wait(1000)
    assert reader.reserve() == [1, 2]


def test_what_was_reserved_before_a_crash_may_have_been_seen() -> None:
    rig = filled(texts(range(5)))
    reader = Reader(rig)
    assert reader.reserve(3) == [1, 2, 3]
    for checkpoint in (None, rig.snapshots()):
        reader.rig = rig
        again = reader.after_crash(checkpoint)
        again.release()
        consumer = _consumer(again.rig)
        seen = [(message.order, message.redelivered) for message in again.rig.take(consumer)]
        assert seen == [(1, True), (2, True), (3, True), (4, False), (5, False)]


@pytest.mark.requirement("CLU-28")
def test_keys_of_reserved_messages_wait_after_a_crash() -> None:
    rig = filled(text(1, key=b"a"), text(2, key=b"b"))
    reader = Reader(rig)
    assert reader.reserve(1) == [1]
    checkpoint = rig.snapshots()
    rig.send(rig.producer(rig.destinations["q"]), text(3, key=b"a"))
    for used in (checkpoint, None):
        reader.rig = rig
        again = reader.after_crash(used)
        consumer = _consumer(again.rig)
        assert [message.order for message in again.rig.take(consumer)] == [2]
        again.commit(1)
        assert [message.order for message in again.rig.take(consumer)] == [3]


def test_beside_an_exclusive_consumer_nothing_is_reserved() -> None:
    rig = filled()
    consumer = _consumer(rig, exclusive=True, messages=1)
    reader = Reader(rig)
    rig.send(rig.producer(rig.destinations["q"]), texts(range(3)))
    assert reader.reserve() == []
    rig.destinations["q"].detach(consumer)
    assert reader.reserve() == [1, 2, 3]


def test_an_exclusive_queue_and_a_paused_one() -> None:
    rig = filled(texts(range(3)), exclusive=True)
    consumer = _consumer(rig, messages=0)
    reader = Reader(rig)
    assert reader.reserve() == []
    rig.destinations["q"].detach(consumer)
    assert reader.reserve(1) == [1]
    home = rig.destinations["q"]
    home.change(msgspec.structs.replace(home.parameters, paused=True))
    assert reader.reserve() == []
    assert reader.reserve(start=0) == [1]
    reader.commit(1)
    home.change(msgspec.structs.replace(home.parameters, paused=False))
    assert reader.reserve() == [2, 3]


def test_administration_leaves_reserved_messages_alone() -> None:
    rig = filled(texts(range(6)))
    reader, home, elsewhere = Reader(rig), rig.destinations["q"], rig.make("r")
    reader.reserve(3)
    assert [seen.state for seen in home.browse().messages] == ["locked"] * 3 + ["ready"] * 3
    assert home.drop([1, 4]) == 1
    assert home.move([2, 5], elsewhere) == 1
    assert home.purge() == (1, None)
    assert home.facts()["locked"] == 3
    assert orders(reader.one.spans(0, 3)) == [1, 2, 3]
    assert home.is_live(1, 4)
    assert home.compact(1, 4) == 3
    rig.run()
    reader = reader.after_crash()
    assert [reader.home.index.find(order) is not None for order in (1, 2, 3)] == [True] * 3
    reader.commit(3)
    facts = reader.home.facts()
    assert (facts["depth"], facts["bytes"], facts["locked"], facts["ready"]) == (0, 0, 0, 0)
    assert not reader.home.is_live(1, 4)


def test_a_commit_is_one_record_and_harmless_when_repeated() -> None:
    rig = filled(*(texts(range(3), priority=priority) for priority in (4, 5, 4, 5)))
    reader = Reader(rig)
    reader.reserve()
    before = len(rig.log)
    reader.commit(7)
    assert len(rig.log) == before + 1
    reader.commit(7)
    reader.commit(3)
    assert len(rig.log) == before + 1
    assert (reader.one.at, reader.home.depth) == (7, 5)
    assert taken_by(rig.crash()) == []


def test_cold_messages_are_fetched() -> None:
    rig = filled(texts(range(3), key=b"a"), texts(range(3), key=b"b"))
    reader = Reader(rig)
    rig.cold = {entry.place for entry in reader.home.index.following(1)}
    told: list[Any] = []
    gathering.ask(reader.home, gathering.Asked(Line(0, 0, 0), reader.one, 0, 0, 0, told.append))
    for _ in range(2):
        rig.run()
        assert told == []
        rig.load()
    rig.run()
    assert told == [6]


def test_long_work_is_done_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "STEP", 4)
    rig = filled(*(text(number) for number in range(30)), *(text(number, key=b"a") for number in range(9)))
    reader = Reader(rig)
    turns = 0
    told: list[Any] = []
    gathering.ask(reader.home, gathering.Asked(Line(0, 0, 0), reader.one, 0, 0, 1 << 30, told.append))
    while not told:
        reader.home.turn()
        turns += 1
    assert 9 <= turns <= 14
    assert told == [39]
    assert len(reader.reserve(0, 1 << 30, start=0)) == 39


def test_a_cursor_in_too_many_pieces_has_to_commit_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.cluster.reservations.PARTS_MAX", 4)
    monkeypatch.setattr(gathering, "RUNS_MAX", 2)
    rig = filled(*(text(number, priority=4 + number % 2) for number in range(20)))
    reader = Reader(rig)
    assert reader.reserve()
    assert 4 <= reader.one.runs <= 6
    with pytest.raises(TooMany):
        reader.reserve()
    reader.commit(reader.one.reserved)
    assert reader.reserve(1)


def test_a_released_cursor_ends_what_waits_for_it() -> None:
    rig = filled(texts(range(3), key=b"a"))
    reader = Reader(rig)
    rig.cold = {entry.place for entry in reader.home.index.following(1)}
    told: list[Any] = []
    gathering.ask(reader.home, gathering.Asked(Line(0, 0, 0), reader.one, 0, 0, 0, told.append))
    rig.run()
    reader.release()
    assert [type(one) for one in told] == [BadName]


def test_a_checkpoint_of_before_there_were_cursors() -> None:
    rig = filled(texts(range(3)))
    covers, blobs = rig.snapshots()
    for blob in blobs.values():
        del blob["reservations"]
        for cursor in blob["cursors"]:
            del cursor["opened_ms"]
    assert taken_by(rig.crash((covers, blobs))) == [1, 2, 3]


def test_a_share_of_a_cursor_takes_no_delivery() -> None:
    rig = filled()
    share = Reader(rig).one.share
    assert isinstance(share, Share)
    assert not share.is_open
