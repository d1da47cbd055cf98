"""The life of a message, told by the records a real core writes to a journal in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import records
from fairlead.cluster.deliveries import Deliveries, taker_of
from fairlead.cluster.life import EVENTS_MAX, FOUND_MAX, Life, Record, Search
from fairlead.wire import durable
from fairlead.wire.properties import encode_properties

from .core_rig import Rig

A = 11
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def told(rig: Rig, first: int = 0) -> list[Record]:
    """All records, each written a millisecond after the one before."""
    return [
        Record(one.index, 1, 1, 64 * one.index, one.kind, 1000 + one.index, one.body)
        for one in rig.journal.records
        if one.index > first
    ]


def life_of(rig: Rig, id_: bytes, first: int = 0) -> Life:
    life = Life(id_)
    for record in told(rig, first):
        life.tell(record)
    if life.again:
        life.restart()
        for record in told(rig, first):
            life.tell(record)
    return life


def id_of(rig: Rig, order: int, name: str = "q") -> bytes:
    home = rig.core.find(name)
    assert home is not None
    (seen,) = home.browse(order, 1, kept=True).messages
    return seen.id


def record_of(rig: Rig, id_: bytes) -> Record:
    """The one its life began with; the server stores messages of its own as well."""
    index = next(event["index"] for event in life_of(rig, id_).events if "index" in event)
    return next(one for one in told(rig) if one.index == index)


def whats(life: Life) -> list[str]:
    return [event["what"] for event in life.events if event["what"] != "offered"]


def opened(rig: Rig) -> tuple[int, int]:
    rig.session(A)
    return rig.producer(A, "q"), rig.consumer(A, "q")


def test_each_message_of_a_batch_has_its_own_life(rig: Rig) -> None:
    producer, consumer = opened(rig)
    rig.store(A, producer, 1, b"one", b"three", b"five")
    rig.settle()
    ids = [id_of(rig, order) for order in (1, 2, 3)]
    rig.settle_range(A, consumer, 2, 3)
    rig.settle_range(A, consumer, 3, 4, action=durable.RETURN)
    rig.settle()
    lives = [life_of(rig, one) for one in ids]
    assert [whats(life) for life in lives] == [
        ["received", "stored"],
        ["received", "stored", "acknowledged"],
        ["received", "stored", "returned"],
    ]
    received, stored = lives[1].events[:2]
    assert (received["send"], stored["order"], stored["batch"]) == (2, 2, 3)
    assert lives[1].message is not None
    assert lives[1].message["bytes"] == 5
    assert lives[2].events[-1]["count"] == 1
    assert [(place.order, place.left) for place in lives[0].places] == [(1, False)]


def test_what_happens_to_a_neighbour_is_not_told(rig: Rig) -> None:
    producer, consumer = opened(rig)
    rig.store(A, producer, 1, b"one", b"two")
    rig.settle()
    mine = id_of(rig, 1)
    rig.settle_range(A, consumer, 2, 3, action=durable.REJECT)
    rig.settle()
    assert whats(life_of(rig, mine)) == ["received", "stored"]
    unknown = mine[:-1] + bytes((mine[-1] ^ 0x40,))
    assert life_of(rig, unknown).events == []
    assert life_of(rig, bytes(20)).events == []


def test_dead_it_goes_on_elsewhere_and_comes_back(rig: Rig) -> None:
    producer, consumer = opened(rig)
    rig.store(A, producer, 1, b"one")
    rig.settle()
    mine = id_of(rig, 1)
    rig.settle_range(A, consumer, 1, 2, action=durable.REJECT)
    rig.settle()
    life = life_of(rig, mine)
    assert whats(life) == ["received", "stored", "dead"]
    dead = life.events[-1]
    assert dead["reason"] == "rejected"
    assert [(place.destination, place.left) for place in life.places] == [
        (dead["destination"], True),
        (dead["to"], False),
    ]
    grave, home = rig.core.find("_DMQ"), rig.core.find("q")
    assert grave is not None
    assert home is not None
    assert grave.move([1], home) == 1
    rig.settle()
    life = life_of(rig, mine)
    assert whats(life)[:4] == ["received", "stored", "dead", "redriven"]
    assert life.places[-1].order == life.events[-1].get("to_order", life.places[-1].order) == 2


def test_a_message_of_a_transaction_is_visible_with_its_commit(rig: Rig) -> None:
    rig.ids[A] = rig.ask(A, "session", ack="transacted")["ids"][0]
    producer = rig.producer(A, "q")
    rig.store(A, producer, 1, b"one", transaction=1)
    rig.settle()
    hidden = next(one for one in told(rig) if one.kind == records.HIDDEN)
    kept = bytes(records.STORE_RECORD.unpack_from(hidden.body)[11])
    assert whats(life_of(rig, kept)) == ["received"]
    assert life_of(rig, kept).places == []
    rig.ask(A, "commit", session=1, transaction=1, sends={str(producer): 1})
    life = life_of(rig, kept)
    assert whats(life) == ["received", "committed"]
    assert [place.order for place in life.places] == [1]
    assert life.events[0]["transaction"] == 1
    rig.ids[A] += 10
    rig.store(A, producer, 1, b"two", transaction=2)
    rig.settle()
    rig.ask(A, "rollback", session=1, transaction=2)
    *_, hidden = (one for one in told(rig) if one.kind == records.HIDDEN)
    assert hidden.index > life.events[-1]["index"]
    assert whats(life_of(rig, bytes(records.STORE_RECORD.unpack_from(hidden.body)[11]))) == ["received", "rolled-back"]


def test_of_a_copy_the_beginning_is_unknown_and_what_was_settled_before_it_is_told(rig: Rig) -> None:
    producer, consumer = opened(rig)
    rig.store(A, producer, 1, b"one", b"two")
    rig.settle()
    mine = id_of(rig, 2)
    first = record_of(rig, mine)
    rig.settle_range(A, consumer, 2, 3, action=durable.RETURN)
    rig.settle()
    copy = Record(first.index + 100, 1, 2, 64, records.PLACE, 5000, first.body)
    life = Life(mine)
    rest = [*told(rig, first.index), copy]
    for record in rest:
        life.tell(record)
    assert life.again
    life.restart()
    for record in rest:
        life.tell(record)
    assert whats(life) == ["returned", "copied"]
    assert not life.again


def test_with_its_destination_it_is_gone(rig: Rig) -> None:
    producer, _ = opened(rig)
    rig.store(A, producer, 1, b"one")
    rig.settle()
    mine, home = id_of(rig, 1), rig.core.find("q")
    assert home is not None
    rig.core.delete(home, "It was deleted.")
    rig.settle()
    life = life_of(rig, mine)
    assert whats(life)[-1] in ("deleted", "dead")


def test_the_messages_of_a_trace_are_found_by_what_they_say(rig: Rig) -> None:
    producer, _ = opened(rig)
    headers = encode_properties({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    rig.store(A, producer, 1, b"of it", headers=headers)
    rig.store(A, producer, 2, TRACE.encode())  # only says so in its body
    rig.store(A, producer, 3, b"other", headers=encode_properties({"traceparent": "garbage " + TRACE}))
    rig.settle()
    search = Search(TRACE)
    for record in told(rig):
        search.tell(record)
    assert [one["order"] for one in search.found.values()] == [1]


def test_what_can_be_told_is_bounded(rig: Rig) -> None:
    producer, _ = opened(rig)
    headers = encode_properties({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    rig.store(A, producer, 1, *[b"x"] * (FOUND_MAX + 5), headers=headers)
    rig.settle()
    search = Search(TRACE)
    for record in told(rig):
        search.tell(record)
    assert len(search.found) == FOUND_MAX
    assert search.cut
    mine = id_of(rig, 1)
    life, copy = life_of(rig, mine), record_of(rig, mine)._replace(kind=records.PLACE)
    for _ in range(EVENTS_MAX + 5):
        life.tell(copy)
    assert len(life.events) == EVENTS_MAX
    assert life.cut


def test_deliveries_are_remembered_for_a_while(rig: Rig) -> None:
    producer, consumer = opened(rig)
    rig.store(A, producer, 1, b"one", b"two")
    rig.settle()
    home = rig.core.find("q")
    assert home is not None
    (first,) = rig.core.deliveries.of(home.number, 2)
    assert (first.count, first.how, first.ms) == (1, "delivered", rig.now_ms)
    assert rig.core.deliveries.of(home.number, 3) == []
    assert rig.core.deliveries.of(home.number + 1, 2) == []
    rig.now_ms += 5
    rig.settle_range(A, consumer, 2, 3, action=durable.RETURN)
    rig.settle()
    assert [one.count for one in rig.core.deliveries.of(home.number, 2)] == [1, 2]


def test_so_many_deliveries_are_remembered_and_no_more(rig: Rig) -> None:
    _, handle = opened(rig)
    (consumer,) = [
        one
        for session in rig.core.sessions.by_id.values()
        for one in session.consumers.values()
        if one.handle == handle
    ]
    kept = Deliveries(chunks_max=3)
    assert kept.since_ms == 0
    for order in range(1, 11):
        head = durable.CHUNK.pack(order, 1, 1, 0, 0, bytes(20), 0, 0)
        kept.add(order, taker_of(consumer, "a/b"), [head, b""])
    number = consumer.destination.number
    known: list[Any] = [order for order in range(1, 11) if kept.of(number, order)]
    assert known == [8, 9, 10]
    assert kept.since_ms == 7
