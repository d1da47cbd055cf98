"""Grouping keys: one consumer at a time for each key, in order, and no key is ever stuck (CLU-28)."""

from __future__ import annotations

import random

import pytest

from fairlead.cluster.parties import Consumer
from fairlead.wire.entry_codec import Delivered

from .rig import Rig, text


def keyed(number: int, key: int) -> bytes:
    return text(number, key=b"key%d" % key)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.requirement("CLU-28")
def test_a_key_sticks_to_its_consumer_and_others_go_on(rig: Rig) -> None:
    queue = rig.make("q")
    one, two = rig.consumer(queue, 10), rig.consumer(queue, 10)
    producer = rig.producer(queue)
    rig.send(producer, *(keyed(n, n % 2) for n in range(10)))
    by_key = {m.key: one for m in rig.got[one.handle]} | {m.key: two for m in rig.got[two.handle]}
    assert set(by_key) == {"key0", "key1"}
    assert not {m.key for m in rig.got[one.handle]} & {m.key for m in rig.got[two.handle]}
    for consumer in (one, two):
        found = rig.take(consumer)
        rig.ack(consumer, found)
        rig.want(consumer, len(found))
    for n in range(10, 20):
        rig.send(producer, keyed(n, n % 2))
    for consumer in (one, two):
        assert all(by_key[m.key or ""] is consumer for m in rig.take(consumer)), "also when it holds nothing of it"


@pytest.mark.requirement("CLU-28")
def test_a_key_whose_holder_has_no_room_waits_and_others_pass(rig: Rig) -> None:
    queue = rig.make("q")
    one = rig.consumer(queue, 2)
    producer = rig.producer(queue)
    rig.send(producer, keyed(0, 0), keyed(1, 0), keyed(2, 0), keyed(3, 1), keyed(4, 0))
    assert [m.order for m in rig.got[one.handle]] == [1, 2]
    two = rig.consumer(queue, 10)
    rig.run()
    assert [m.order for m in rig.take(two)] == [4]
    held = rig.take(one)
    rig.ack(one, held[:1])
    rig.run()
    assert rig.take(two) == []
    rig.want(one, 1)
    assert [m.order for m in rig.take(one)] == [3]
    assert rig.take(two) == []
    rig.settle(one, [2, 3])
    assert [m.order for m in rig.take(two)] == [5], "its holder is full and holds nothing of it: another may have it"


@pytest.mark.requirement("CLU-28")
def test_a_returned_message_blocks_its_own_key_only(rig: Rig) -> None:
    queue = rig.make("q")
    one = rig.consumer(queue, 1)
    producer = rig.producer(queue)
    rig.send(producer, keyed(0, 0), keyed(1, 0), keyed(2, 1))
    found = rig.take(one)
    rig.retry(one, found, delay=1000)
    two = rig.consumer(queue, 10)
    rig.run()
    assert [m.order for m in rig.take(two)] == [3]
    rig.wait(1000)
    rig.want(one, 10)
    everything = rig.take(one) + rig.take(two)
    assert [m.order for m in everything] == [1, 2]


@pytest.mark.requirement("CLU-28")
def test_a_returned_message_blocks_its_key_after_a_restart_too(rig: Rig) -> None:
    queue = rig.make("q")
    one = rig.consumer(queue, 1)
    rig.send(rig.producer(queue), keyed(0, 0), keyed(1, 0), keyed(2, 1))
    rig.retry(one, rig.take(one), delay=1000)
    rig = rig.crash()
    two = rig.consumer(rig.destinations["q"], 10)
    rig.run()
    assert [m.order for m in rig.take(two)] == [3]
    rig.wait(1000)
    assert [m.order for m in rig.take(two)] == [1, 2]


@pytest.mark.requirement("CLU-28")
@pytest.mark.parametrize("leaves", [False, True])
def test_a_key_is_free_when_its_transaction_is_over(rig: Rig, leaves: bool) -> None:
    queue = rig.make("q")
    one = rig.consumer(queue, 1)
    producer = rig.producer(queue)
    rig.send(producer, keyed(0, 0), keyed(1, 0), keyed(2, 0))
    rig.ack(one, rig.take(one), transaction=1)
    two = rig.consumer(queue, 1)
    rig.run()
    assert rig.take(two) == []
    if leaves:
        queue.detach(one)
    rig.commit(one.session, 1, queue)
    assert [m.order for m in rig.take(two)] == [2]
    rig.settle(two, [2])
    three = rig.consumer(queue, 1)
    rig.run()
    assert [m.order for m in rig.take(three)] == [3], "its holder has no room and holds nothing of it"


@pytest.mark.requirement("CLU-28")
def test_no_key_is_stuck_when_a_consumer_vanishes(rig: Rig) -> None:
    queue = rig.make("q")
    one, two = rig.consumer(queue, 3), rig.consumer(queue, 100)
    producer = rig.producer(queue)
    for n in range(20):
        rig.send(producer, keyed(n, 7))
    holder, other = (one, two) if rig.got[one.handle] else (two, one)
    queue.lost(holder)
    rig.want(other, 100)
    assert [m.order for m in rig.take(other)] == list(range(1, 21))


@pytest.mark.requirement("CLU-28", "CLU-126")
def test_a_lost_consumer_that_may_come_back_keeps_its_key_and_gets_nothing_more(rig: Rig) -> None:
    queue = rig.make("q", hold_s=5)
    producer = rig.producer(queue)
    session = rig.session()
    one = rig.consumer(queue, 10, session=session)
    rig.send(producer, keyed(0, 0))
    queue.lost(one)
    two = rig.consumer(queue, 10)
    rig.send(producer, keyed(1, 0), keyed(2, 1))
    assert [m.order for m in rig.take(two)] == [3]
    assert queue.facts()["locked"] == 2
    again = rig.consumer(queue, 0, session=rig.session(session.id), holds=[])
    rig.want(again, 10)
    found = rig.take(two) + rig.take(again)
    assert [(m.order, m.delivery_count) for m in found] == [(1, 2), (2, 1)]


@pytest.mark.requirement("CLU-28")
@pytest.mark.parametrize("seed", range(20))
def test_many_keys_with_returns_and_vanishing_consumers(seed: int) -> None:
    rig, rng = Rig(), random.Random(seed)
    queue = rig.make("q", delivery_limit=0, redelivery_delay_s=rng.choice((0, 0.05)))
    producer = rig.producer(queue)
    sent = 0
    consumers: list[Consumer] = []
    held: dict[int, list[Delivered]] = {}
    acknowledged: dict[str, list[int]] = {}

    def check() -> None:
        owner: dict[str, int] = {}
        for handle, messages in held.items():
            for message in messages:
                assert owner.setdefault(message.key or "", handle) == handle, "a key has two holders"

    for _ in range(300):
        step = rng.random()
        if step < 0.2 and sent < 400:
            count = rng.randrange(1, 12)
            rig.send(producer, *(keyed(n, rng.randrange(12)) for n in range(sent, sent + count)))
            sent += count
        elif step < 0.3 and len(consumers) < 8:
            consumers.append(rig.consumer(queue, rng.randrange(1, 20)))
            rig.run()
        elif step < 0.35 and consumers:
            gone = consumers.pop(rng.randrange(len(consumers)))
            held.pop(gone.handle, None)
            rig.take(gone)
            queue.lost(gone)
            rig.run()
        elif step < 0.4:
            rig.wait(rng.randrange(100))
        elif consumers:
            consumer = rng.choice(consumers)
            mine = held.setdefault(consumer.handle, [])
            mine += rig.take(consumer)
            if mine:
                if rng.random() < 0.7:
                    # The library works on one message of a key at a time: the lowest it has.
                    message = min(mine, key=lambda m: m.order)
                    mine.remove(message)
                    acknowledged.setdefault(message.key or "", []).append(message.order)
                    rig.ack(consumer, [message])
                else:
                    message = min(mine, key=lambda m: m.order)
                    same = [m for m in mine if m.key == message.key]
                    held[consumer.handle] = mine = [m for m in mine if m.key != message.key]
                    rig.release(consumer, same[1:], run=False)
                    rig.retry(consumer, [message])
                rig.want(consumer, 1)
        for consumer in consumers:
            held.setdefault(consumer.handle, []).extend(rig.take(consumer))
        check()
    last = rig.consumer(queue, 10_000)
    for consumer in consumers:
        rig.take(consumer)
        queue.lost(consumer)
    rig.wait(1000)
    rest = rig.take(last)
    rig.ack(last, rest)
    for message in rest:
        acknowledged.setdefault(message.key or "", []).append(message.order)
    assert queue.depth == 0
    assert sum(map(len, acknowledged.values())) == sent
    for orders in acknowledged.values():
        assert orders == sorted(orders)
