"""Limits of a destination: who is told to wait, when, and when to go on."""

from __future__ import annotations

import pytest

from .rig import Rig, texts


@pytest.mark.requirement("CLU-105", "CLU-108")
def test_those_likely_to_send_are_told_once_and_released() -> None:
    rig = Rig()
    queue = rig.make("q", max_messages=10, low_water=0.5)
    standing, sender = rig.producer(queue), rig.producer(queue)
    queue.marks.meet(standing)
    consumer = rig.consumer(queue, 0)
    rig.send(sender, texts(range(9)))
    assert not queue.facts()["blocked"]
    rig.send(sender, texts(range(3)))
    rig.send(sender, texts(range(3)))
    assert queue.facts()["blocked"]
    assert queue.depth == 15, "what was on its way is taken"
    told = [(session, facts["event"], facts["producer"]) for session, facts in rig.notices]
    assert told == [(one.session.id, "blocked", one.handle) for one in (standing, sender)]
    rig.want(consumer, 100)
    found = rig.take(consumer)
    rig.ack(consumer, found[:10])
    assert queue.facts()["blocked"], "not before the low mark"
    rig.ack(consumer, found[10:])
    assert not queue.facts()["blocked"]
    assert [facts["event"] for _, facts in rig.notices[2:]] == ["unblocked", "unblocked"]


@pytest.mark.requirement("CLU-112")
def test_flow_state_is_built_anew_from_facts_after_a_restart() -> None:
    rig = Rig()
    queue = rig.make("q", max_bytes=500)
    rig.send(rig.producer(queue), texts(range(30)))
    assert queue.blocked
    assert rig.crash().destinations["q"].blocked
    assert queue.purge() == (30, None)
    rig.run()
    assert not queue.blocked


def test_a_changed_limit_acts_at_once() -> None:
    rig = Rig()
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(30)))
    queue.change(type(queue.parameters)(max_messages=10))
    rig.run()
    assert queue.blocked
    queue.change(type(queue.parameters)(max_messages=100))
    rig.run()
    assert not queue.blocked


@pytest.mark.requirement("CLU-113")
def test_a_journal_without_room_changes_nothing_and_settling_still_works() -> None:
    class Full(Exception):
        pass

    rig = Rig()
    queue = rig.make("q")
    producer, consumer = rig.producer(queue), rig.consumer(queue)
    rig.send(producer, texts(range(3)))
    append = rig.append

    def refuse(kind: int, head: bytes, payload: bytes = b"") -> tuple[int, int]:
        if payload:
            raise Full
        return append(kind, head, payload)

    rig.append = refuse  # type: ignore[method-assign,assignment]
    before = queue.snapshot()
    with pytest.raises(Full):
        rig.send(producer, texts(range(3, 6)), first=4)
    assert queue.snapshot() == before
    rig.ack(consumer, rig.take(consumer))
    assert queue.depth == 0
    rig.append = append  # type: ignore[method-assign]
    rig.send(producer, texts(range(3, 6)), first=4)
    assert len(rig.take(consumer)) == 3
