"""Figures of destinations: what is counted, who is shown by name, and that no sum ever falls."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest

from fairlead.cluster import showcase
from fairlead.cluster.showcase import Showcase, figures
from fairlead.wire.durable import ACKNOWLEDGE
from fairlead.wire.entry_codec import encode
from tests.cluster.rig import Rig


def numbers(rig: Rig) -> dict[int, Any]:
    return {one.number: one for one in rig.destinations.values()}


def whole(case: Showcase, rig: Rig, temporary: Container[int], count: int) -> dict[str, Any]:
    *_, found = case.look(numbers(rig), temporary, count)
    assert found is not None
    return found


def test_a_destination_counts_what_goes_through_it() -> None:
    rig = Rig()
    rig.make("_DMQ")
    queue = rig.make("q", delivery_limit=3)
    began_ms = rig.now_ms
    rig.send(rig.producer(queue), *(encode(b"x") for _ in range(10)))
    rig.wait(1000)
    assert figures(queue)["oldest_ms"] == began_ms
    consumer = rig.consumer(queue, 5)
    rig.run()
    taken = rig.take(consumer)
    rig.ack(consumer, taken[:2])
    rig.retry(consumer, taken[2:4])
    rig.reject(consumer, taken[4:])
    rig.want(consumer, 2)
    told = figures(queue)
    assert {name: told[name] for name in ("stored", "delivered", "redelivered", "acknowledged", "dead", "depth")} == {
        "stored": 10, "delivered": 7, "redelivered": 2, "acknowledged": 2, "dead": 1, "depth": 7,
    }  # fmt: skip
    assert (told["consumers"], told["expired"]) == (1, 0)


def test_acknowledged_in_a_transaction_counts_when_it_is_committed() -> None:
    rig = Rig()
    queue = rig.make("q")
    rig.send(rig.producer(queue), encode(b"x"), encode(b"y"))
    consumer = rig.consumer(queue)
    rig.run()
    rig.settle(consumer, [one.order for one in rig.take(consumer)], ACKNOWLEDGE, transaction=7)
    assert queue.books.acknowledged == 0
    assert rig.commit(consumer.session, 7, queue) is None
    assert queue.books.acknowledged == 2


def test_expired_messages_are_counted_whatever_becomes_of_them() -> None:
    rig = Rig()
    rig.make("_DMQ")
    dropped, buried = rig.make("d", ttl_s=1.0), rig.make("b", ttl_s=1.0, expired="dead")
    for one in (dropped, buried):
        rig.send(rig.producer(one), encode(b"x"), encode(b"y"))
    rig.wait(2000)
    assert (dropped.books.expired, dropped.books.dead) == (2, 0)
    assert (buried.books.expired, buried.books.dead) == (2, 2)
    assert figures(dropped)["oldest_ms"] == 0


def test_a_topic_counts_each_consumer_and_is_as_old_as_its_slowest_subscription() -> None:
    rig = Rig()
    topic = rig.make("t", "topic")
    fast, slow = rig.consumer(topic, 100), rig.consumer(topic, 0)
    began_ms = rig.now_ms
    rig.send(rig.producer(topic), encode(b"x"))
    rig.wait(500)
    rig.send(rig.producer(topic), encode(b"y"))
    rig.ack(fast, rig.take(fast))
    told = figures(topic)
    assert (told["delivered"], told["acknowledged"], told["depth"], told["oldest_ms"]) == (2, 2, 2, began_ms)
    topic.detach(slow)
    rig.run()
    assert figures(topic)["oldest_ms"] == 0


def test_the_busiest_are_named_and_stay_named_and_no_sum_falls() -> None:
    rig, case = Rig(), Showcase()
    for number in range(6):
        queue = rig.make(f"q{number}")
        rig.send(rig.producer(queue), *(encode(b"x") for _ in range(number)))
    temporary = {6}  # q5, which has most

    def look(count: int = 2) -> tuple[list[str], int]:
        found = whole(case, rig, temporary, count)
        assert found["total"] == len(rig.destinations)
        return [one["name"] for one in found["destinations"]], found["other"]["stored"]

    assert look() == (["q3", "q4"], 0 + 1 + 2 + 5)
    rig.send(rig.producer(rig.destinations["q0"]), *(encode(b"x") for _ in range(100)))
    assert look() == (["q3", "q4"], 108), "who has a place keeps it"
    case.forget(rig.destinations.pop("q4"))
    assert look() == (["q0", "q3"], 108), "what q0 had counted among the others stays there"
    case.forget(rig.destinations.pop("q1"))
    assert look() == (["q0", "q3"], 108)
    assert look(0)[1] == 108
    assert look(10) == (["q0", "q2", "q3"], 108)
    rig.make("q9")
    assert look(10) == (["q0", "q2", "q3", "q9"], 108), "it was never among the others"


def test_what_deleted_destinations_counted_is_not_lost() -> None:
    rig, case = Rig(), Showcase()
    queue = rig.make("q")
    queue.books.expired, queue.books.dead = 3, 4
    case.forget(queue)
    assert (case.gone.expired, case.gone.dead) == (3, 4)


def test_the_others_are_as_old_as_the_oldest_of_them() -> None:
    rig, case = Rig(), Showcase()
    first_ms = rig.now_ms
    for name in ("a", "b"):
        rig.send(rig.producer(rig.make(name)), encode(b"x"))
        rig.wait(1000)
    other = whole(case, rig, (), 0)["other"]
    assert (other["count"], other["depth"], other["oldest_ms"]) == (2, 2, first_ms)


def test_very_many_are_gone_through_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showcase, "SLICE", 10)
    rig, case = Rig(), Showcase()
    for number in range(35):
        rig.make(f"q{number}")
    told = list(case.look(numbers(rig), (), 2))
    assert told[:-1] == [None] * 3
    assert told[-1] is not None
    assert told[-1]["other"]["count"] == 33
