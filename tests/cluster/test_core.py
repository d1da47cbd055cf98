"""The whole of a message manager over a journal in memory: what comes in, what goes out, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster.options import Options
from fairlead.cluster.outgoing import HIGH_BYTES, LOW_BYTES, Link
from fairlead.cluster.parties import Consumer
from fairlead.wire import durable
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import KIND_ERROR, KIND_PUBLISH

from .core_rig import Rig, frames_of, messages_of

A, B = 11, 12
LINK_COMMANDS = (b"session", b"gone", b"hello", b"announced", b"commit")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def opened(rig: Rig, uid: int, name: str = "q", kind: str = "queue") -> tuple[int, int]:
    rig.session(uid)
    return rig.producer(uid, name, kind), rig.consumer(uid, name, kind)


@pytest.mark.requirement("CLU-57", "CLU-116")
def test_nothing_is_told_before_it_is_safe(rig: Rig) -> None:
    producer, _ = opened(rig, A)
    rig.store(A, producer, 1, b"one", b"two")
    for _ in range(5):
        rig.turn()
    assert not rig.take(A)
    rig.settle()
    assert rig.stored(A) == [(1, 2, durable.STORED_NEW, 1)]
    assert rig.delivered(A) == [(1, 1, b"one"), (2, 1, b"two")]


def test_one_receipt_frame_per_producer_and_turn(rig: Rig) -> None:
    producer, _ = opened(rig, A)
    for number in range(1, 6):
        rig.store(A, producer, number, b"x")
    rig.settle()
    (receipts,) = rig.take(A, durable.KIND_STORED)
    assert len(receipts.body) == 5 * durable.STORED_ITEM.size


def test_a_confirmed_settlement_is_answered_when_safe(rig: Rig) -> None:
    producer, consumer = opened(rig, A)
    rig.store(A, producer, 1, b"x")
    rig.settle()
    rig.take(A)
    rig.settle_range(A, consumer, 1, 2, tag=7)
    rig.turn()
    assert not rig.take(A)
    rig.settle()
    (settled,) = rig.take(A, durable.KIND_SETTLED)
    assert (settled.number, settled.peer, settled.body) == (consumer, 7, b"")
    rig.settle_range(A, consumer, 1, 2, tag=8)
    rig.settle()
    (settled,) = rig.take(A, durable.KIND_SETTLED)
    assert settled.body == durable.RANGE.pack(1, 2)


def test_only_a_settlement_nobody_waits_for_is_not_hurried(rig: Rig) -> None:
    producer, consumer = opened(rig, A)
    rig.store(A, producer, 1, b"x", b"y")
    rig.turn()
    assert rig.journal.hurry
    rig.settle()
    rig.journal.hurry = False
    item = durable.SETTLE_ITEM.pack
    rig.frame(A, durable.KIND_SETTLE, number=consumer, peer=1, flags=durable.FLAG_PATIENT, body=item(1, 2, 0, 0))
    rig.turn()
    assert not rig.journal.hurry
    rig.frame(A, durable.KIND_SETTLE, number=consumer, peer=2, body=item(2, 3, 0, 0))
    rig.turn()
    assert rig.journal.hurry
    rig.settle()
    assert [one.peer for one in rig.take(A, durable.KIND_SETTLED)] == [1, 2]


def test_a_delivery_larger_than_a_frame_comes_in_several(rig: Rig) -> None:
    rig.session(A)
    producer = rig.producer(A, "q")
    for number in range(1, 5):
        rig.store(A, producer, number, bytes(700_000))
    rig.settle()
    rig.consumer(A, "q", bytes=1 << 30)
    rig.settle()
    frames = rig.take(A, durable.KIND_DELIVER)
    assert len(frames) >= 4
    assert all(len(frame.body) <= 1_100_000 for frame in frames)


# --- What makes no sense ------------------------------------------------------------------------------------------


@pytest.mark.requirement("CLU-59", "CLU-64")
def test_unknown_kinds_and_handles_are_answered_and_change_nothing(rig: Rig) -> None:
    producer, consumer = opened(rig, A)
    rig.frame(A, 0x6F, number=3)
    rig.store(A, 99, 1, b"x")
    rig.frame(A, durable.KIND_SETTLE, number=producer, body=durable.SETTLE_ITEM.pack(1, 2, 0, 0))
    rig.frame(A, durable.KIND_SETTLE, number=consumer, body=b"short")
    rig.frame(A, durable.KIND_SETTLE, number=consumer, body=durable.SETTLE_ITEM.pack(2, 1, 0, 0))
    rig.frame(A, durable.KIND_SETTLE, number=consumer, body=durable.SETTLE_ITEM.pack(1, 2, 9, 0))
    rig.frame(A, durable.KIND_SETTLE, number=consumer, body=durable.SETTLE_ITEM.pack(1, 2**64 - 1, 0, 0))
    rig.frame(A, durable.KIND_WANT, number=99)
    rig.frame(A, durable.KIND_STORE, number=producer, body=b"")
    rig.frame(A, durable.KIND_COMMAND, number=5, body=b"[1]")
    rig.frame(A, durable.KIND_COMMAND, number=6, body=b'{"do":"fly"}')
    rig.frame(A, durable.KIND_COMMAND, number=7, body=b"[" * 100_000)
    rig.settle()
    errors = [got.headers["code"].decode() for got in rig.take(A, KIND_ERROR)]
    assert len(errors) == 12
    assert set(errors) == {"bad-request", "unknown-number"}
    assert rig.core.dispatchers.dropped.total() >= 10
    rig.store(A, producer, 1, b"x")
    rig.settle()
    assert rig.delivered(A) == [(1, 1, b"x")]
    assert rig.core.faults == 0


@pytest.mark.requirement("CLU-64")
def test_frames_of_an_unknown_connection_are_answered(rig: Rig) -> None:
    rig.ids[77] = 0
    rig.store(77, 1, 1, b"x")
    rig.settle()
    (error,) = rig.take(77, KIND_ERROR)
    assert error.headers["code"] == b"unknown-number"
    assert 77 not in rig.link.lines


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, A, B]),
            st.integers(0x20, 0x7F),
            st.integers(0, 4),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.binary(max_size=60)
            | st.sampled_from([b'{"do":"%s","manager":[],"number":{}}' % do for do in LINK_COMMANDS]),
        ),
        max_size=30,
    )
)
def test_hostile_frames_never_stop_it(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, int, int, int, int, bytes]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("hostile"))
    opened(rig, A)
    for uid, kind, number, correlation, peer, body in frames:
        rig.frame(uid, kind, number=number, correlation=correlation, peer=peer, body=body)
    rig.turn(sync=True)
    rig.inbox.clear()
    producer, _ = opened(rig, 99, "fresh")
    rig.store(99, producer, 1, b"still here")
    rig.settle()
    assert rig.delivered(99) == [(1, 1, b"still here")]
    assert rig.core.faults == 0, rig.world.logged


# --- Links --------------------------------------------------------------------------------------------------------


def test_hello_tells_all_names(rig: Rig) -> None:
    rig.session(A)
    rig.producer(A, "orders")
    link = rig.core.link_opened()
    rig.frame(0, durable.KIND_COMMAND, link=link, number=4, body=b'{"do":"hello","manager":1}')
    rig.core.run()
    (answer,) = frames_of(link)
    assert (answer.kind, answer.number) == (durable.KIND_ANSWER, 4)
    names = {name: kind for name, kind, _ in answer.facts["names"]}
    assert names == {"_ADMIN": "topic", "_LOG": "topic", "_DMQ": "queue", "orders": "queue"}
    assert answer.facts["group"] == "a"


@pytest.mark.requirement("CLU-62", "CLU-125")
def test_a_lost_link_gives_its_messages_to_others(rig: Rig) -> None:
    producer, _ = opened(rig, A)
    rig.store(A, producer, 1, b"x")
    rig.settle()
    assert rig.delivered(A)
    rig.link.out.clear()
    rig.core.link_lost(rig.link)
    rig.link = rig.core.link_opened()
    rig.session(B)
    rig.consumer(B, "q")
    rig.settle()
    assert rig.delivered(B) == [(1, 2, b"x")]


def test_a_connection_that_is_gone_is_forgotten(rig: Rig) -> None:
    opened(rig, A)
    rig.frame(A, durable.KIND_COMMAND, body=b'{"do":"gone"}')
    rig.settle()
    assert A not in rig.link.lines
    (session,) = rig.core.sessions.by_id.values()
    assert session.line is None


@pytest.mark.requirement("CLU-102", "CLU-106")
def test_a_link_that_is_not_read_gets_no_more_deliveries_and_others_do(rig: Rig) -> None:
    _, stuck = opened(rig, A)
    first, rig.link = rig.link, rig.core.link_opened()
    rig.session(B)
    producer = rig.producer(B, "q")
    rig.consumer(B, "q")
    consumer = first.lines[A].handles[stuck]
    assert isinstance(consumer, Consumer)
    first.is_full = True  # more than HIGH_BYTES wait for its manager
    rig.core.flow.link_full(first)
    assert consumer.stalled
    for number in range(1, 101):
        rig.store(B, producer, number, b"x")
    for _ in range(5):
        rig.core.run()
        rig.core.on_safe(len(rig.journal.records))
    rig.core.finish()
    mine = [got for got in frames_of(rig.link) if got.kind == durable.KIND_DELIVER]
    assert sum(len(list(messages_of(got.body))) for got in mine) == 100
    assert first.taken(0)
    rig.core.flow.link_room(first)
    assert not consumer.stalled


def test_a_link_is_full_above_the_mark_and_has_room_below_the_low_one() -> None:
    link = Link(1)
    while not link.is_full:
        link.frame(1, 1, 0x72, body=bytes(1 << 20))
    assert link.bytes > HIGH_BYTES
    assert not link.taken(link.bytes - LOW_BYTES - 1)
    assert link.taken(1)


# --- Flow ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("CLU-66", "CLU-103", "CLU-105")
def test_producers_hear_of_a_full_command_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Options(high_water_commands=10, low_water_commands=5))
    producer, _ = opened(rig, A)
    rig.session(B)
    rig.consumer(B, "q")
    place = rig.core.names.by_name["q"]
    rig.core.tasks.stop(place.task)
    for number in range(1, 21):
        rig.store(A, producer, number, b"x")
    rig.turn()
    (notice,) = rig.take(A, durable.KIND_NOTICE)
    assert notice.facts == {"event": "blocked", "destination": "q", "producer": producer, "code": "queue"}
    assert not rig.take(B, durable.KIND_NOTICE)
    assert rig.core.is_blocked(place.destination)
    rig.core.tasks.go(place.task)
    rig.settle()
    (notice,) = rig.take(A, durable.KIND_NOTICE)
    assert notice.facts["event"] == "unblocked"
    assert sum(count for _, count, _, _ in rig.stored(A)) == 20


@pytest.mark.requirement("CLU-113")
def test_a_full_store_holds_sends_and_lets_consumers_go_on(rig: Rig) -> None:
    producer, consumer = opened(rig, A)
    rig.store(A, producer, 1, b"before")
    rig.settle()
    rig.take(A)
    rig.journal.full = "no room"
    rig.store(A, producer, 2, b"during")
    rig.core.flow.store_full(rig.journal.full)
    rig.settle()
    (notice,) = rig.take(A, durable.KIND_NOTICE)
    assert notice.facts["code"] == "store-full"
    assert not rig.stored(A)
    rig.settle_range(A, consumer, 1, 2, tag=1)
    rig.settle()
    assert rig.take(A, durable.KIND_SETTLED)
    rig.journal.full = ""
    rig.core.flow.store_room()
    rig.settle()
    assert rig.take(A, durable.KIND_NOTICE)[0].facts["event"] == "unblocked"
    assert rig.stored(A) == [(2, 1, durable.STORED_NEW, 2)]
    assert rig.delivered(A) == [(2, 1, b"during")]


@pytest.mark.requirement("CLU-83", "CLU-84")
def test_a_stalled_destination_does_not_hold_up_another(rig: Rig) -> None:
    producer, _ = opened(rig, A)
    other = rig.producer(A, "other")
    rig.consumer(A, "other")
    rig.core.tasks.stop(rig.core.names.by_name["q"].task)
    rig.store(A, producer, 1, b"waits")
    rig.store(A, other, 1, b"goes")
    rig.settle()
    assert rig.delivered(A) == [(1, 1, b"goes")]


# --- The other road -----------------------------------------------------------------------------------------------


def publish(rig: Rig, uid: int, topic: bytes, body: bytes, headers: bytes = b"") -> None:
    rig.frame(uid, KIND_PUBLISH, topic=topic, headers=headers, body=body)


def test_a_publish_to_a_topic_is_stored_and_broadcast(rig: Rig) -> None:
    rig.session(A)
    rig.consumer(A, "news", "topic")
    publish(rig, B, b"news", b"hello", encode_headers([(":from", b"ann"), ("colour", b"red")]))
    rig.settle()
    assert rig.delivered(A) == [(1, 1, b"hello")]
    (broadcast,) = [got for got in rig.take(0, KIND_PUBLISH) if got.topic == b"news"]
    assert (broadcast.topic, broadcast.body) == (b"news", b"hello")
    assert broadcast.headers == {":from": b"ann", "colour": b"red"}


def test_a_publish_to_a_queue_is_an_error_that_says_so(rig: Rig) -> None:
    opened(rig, A)
    publish(rig, A, b"q", b"x")
    rig.settle()
    (error,) = rig.take(A, KIND_ERROR)
    assert error.headers["code"] == b"wrong-kind"
    assert b"queue" in error.body


def test_a_publish_to_a_name_that_was_deleted_goes_back_to_the_transient_road(rig: Rig) -> None:
    publish(rig, A, b"nothing", b"x", encode_headers([("a", b"b")]))
    rig.settle()
    (back,) = [got for got in rig.take(0, KIND_PUBLISH) if got.topic == b"nothing"]
    assert (back.body, back.headers) == (b"x", {"a": b"b"})


@pytest.mark.requirement("CLU-195")
def test_events_are_in_the_log_topic_and_do_not_feed_themselves(rig: Rig) -> None:
    rig.session(A)
    rig.consumer(A, "_LOG", "topic", create=False)
    rig.settle()
    rig.delivered(A)
    rig.core.event("warning", "test", "Something happened.", destination="q")
    rig.settle()
    (message,) = rig.delivered(A)
    facts = msgspec.json.decode(message[2])
    assert (facts["level"], facts["code"], facts["destination"]) == ("warning", "test", "q")
    assert rig.world.logged[-1]["code"] == "test"


def test_cold_messages_are_delivered_when_they_are_loaded(rig: Rig) -> None:
    rig.session(A)
    producer = rig.producer(A, "q")
    rig.store(A, producer, 1, b"cold")
    rig.settle()
    rig.journal.cold = True
    rig.consumer(A, "q")
    rig.settle()
    assert rig.delivered(A) == [(1, 1, b"cold")]


@pytest.mark.requirement("CLU-69")
def test_the_tasks_that_exist(rig: Rig) -> None:
    single = {task.name for task in rig.core.tasks if task.kind == "single"}
    assert single >= {"destination-manager", "reliability-manager", "configuration-distributor", "admin-manager", "log"}
    before = len(rig.core.tasks)
    rig.session(A)
    for number in range(20):
        rig.producer(A, f"q{number}")
    assert len(rig.core.tasks) == before + 20


@pytest.mark.requirement("CLU-59")
def test_what_fails_later_is_logged_and_the_rest_still_happens(rig: Rig) -> None:
    done: list[str] = []

    def broken() -> None:
        raise KeyError("planted")

    index, _ = rig.core.append(19, b"{}")
    rig.core.after(index, broken)
    rig.core.after(index, lambda: done.append("safe"))
    rig.core.call_at(rig.now_ms, broken)
    rig.core.call_at(rig.now_ms, lambda: done.append("time"))
    rig.settle()
    assert sorted(done) == ["safe", "time"]
    assert rig.core.faults == 2
    assert [one["code"] for one in rig.world.logged if one["level"] == "error"] == ["task-fault", "task-fault"]


@pytest.mark.requirement("CLU-59")
def test_a_fault_of_the_log_itself_does_not_feed_the_log(rig: Rig) -> None:
    """Written into `_LOG`, it would be the cause of the next one, for ever."""
    place = rig.core.names.by_name["_LOG"]
    called = 0

    def broken() -> bool:
        nonlocal called
        called += 1
        if called > 50:
            return False
        raise KeyError("planted")

    place.task.work = broken
    rig.core.event("info", "some-event", "Something happened.")
    rig.settle()
    assert 1 <= called < 10
    assert rig.core.faults == called


def test_other_options_are_taken_while_it_runs_but_for_those_of_a_start(rig: Rig) -> None:
    before = rig.core.settings
    rig.core.configure(replace(before, high_water_commands=7, checkpoint_s=1.0, segment_bytes=1 << 30))
    assert rig.core.settings == replace(before, high_water_commands=7, checkpoint_s=1.0)
    assert rig.core.tasks.marks.high_commands == 7
