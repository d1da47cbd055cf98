"""Transactions in one destination: hidden until the commit, locked until the end, and gone with a rollback."""

from __future__ import annotations

import pytest

from fairlead.wire.durable import ENTRY_DEDUP
from fairlead.wire.entry_codec import Delivered
from fairlead.wire.properties import encode_properties

from .rig import Rig, text, texts


def numbers(messages: list[Delivered]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.requirement("CLU-156")
def test_what_a_transaction_sends_is_stored_and_hidden_until_its_commit(rig: Rig) -> None:
    queue = rig.make("q")
    consumer = rig.consumer(queue)
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3)), transaction=7, first=1)
    rig.send(producer, texts(range(3, 5)), transaction=7, first=4)
    assert (rig.take(consumer), rig.receipts, queue.depth) == ([], [], 0)
    assert queue.hidden(producer.session, 7) == 5
    rig.send(producer, text(99))
    assert rig.commit(producer.session, 7, queue, run=False) is None
    rig.turn()
    assert numbers(rig.take(consumer)) == [99]
    rig.run()
    assert numbers(rig.take(consumer)) == [0, 1, 2, 3, 4]
    assert [r[1] for r in rig.receipts] == [1], "numbers of a transaction are its own"
    assert rig.crash().destinations["q"].depth == 6


@pytest.mark.requirement("CLU-155")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_commit_is_whole_or_not_at_all(rig: Rig, checkpointed: bool) -> None:
    source, target = rig.make("source"), rig.make("target")
    rig.send(rig.producer(source), texts(range(4)))
    session = rig.session()
    consumer = rig.consumer(source, session=session)
    rig.run()
    found = rig.take(consumer)
    rig.ack(consumer, found[:2], transaction=1)
    rig.send(rig.producer(target, session), texts((10, 11)), transaction=1, first=1)
    checkpoint = rig.snapshots() if checkpointed else None
    assert source.facts()["locked"] == 4
    before = rig.crash(checkpoint)
    assert (before.destinations["source"].depth, before.destinations["target"].depth) == (4, 0)
    rig.commit(session, 1, source, target, run=False)
    before = rig.crash(checkpoint)
    assert (before.destinations["source"].depth, before.destinations["target"].depth) == (4, 0)
    rig.run()
    after = rig.crash(checkpoint)
    assert (after.destinations["source"].depth, after.destinations["target"].depth) == (2, 2)
    assert (source.depth, target.depth) == (2, 2)
    reader = after.consumer(after.destinations["target"])
    after.run()
    assert numbers(after.take(reader)) == [10, 11]


@pytest.mark.requirement("CLU-157", "CLU-159", "CLU-160")
def test_what_was_taken_is_locked_and_comes_again_after_a_rollback(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(10)))
    consumer = rig.consumer(queue, 10)
    rig.run()
    found = rig.take(consumer)
    rig.ack(consumer, found[:3], transaction=1)
    other = rig.consumer(queue)
    rig.run()
    assert rig.take(other) == []
    rig.release(consumer, found[3:], run=False)
    queue.abort(consumer.session, 1)
    queue.detach(consumer)
    rig.run()
    assert [(int(m.body), m.delivery_count) for m in rig.take(other)] == [(n, 2 if n < 3 else 1) for n in range(10)]


@pytest.mark.requirement("CLU-158")
def test_a_commit_takes_what_the_client_named_and_nothing_else(rig: Rig) -> None:
    queue = rig.make("q")
    rig.send(rig.producer(queue), texts(range(10)))
    consumer = rig.consumer(queue, 10)
    rig.run()
    rig.ack(consumer, rig.take(consumer)[:3], transaction=1)
    rig.commit(consumer.session, 1, queue)
    queue.detach(consumer)
    other = rig.consumer(queue)
    rig.run()
    assert numbers(rig.take(other)) == list(range(3, 10))


@pytest.mark.requirement("CLU-160")
def test_a_rollback_discards_or_redelivers_topic_messages(rig: Rig) -> None:
    for redelivers, want in ((False, []), (True, [0, 1])):
        topic = rig.make(f"t{redelivers}", "topic", rollback_redelivers=redelivers)
        consumer = rig.consumer(topic)
        cursor, _ = topic.subscribe(name="s", client="c", selector="", shared=False, start="new")
        durable = rig.consumer(topic, cursor=cursor)
        rig.send(rig.producer(topic), texts(range(2)))
        for one, comes in ((consumer, want), (durable, [0, 1])):
            rig.ack(one, rig.take(one), transaction=1)
            topic.abort(one.session, 1)
            rig.run()
            found = rig.take(one)
            assert numbers(found) == comes
            assert all(message.redelivered for message in found)


@pytest.mark.requirement("CLU-160", "CLU-118")
def test_sends_of_a_rolled_back_transaction_never_were(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    consumer = rig.consumer(queue)
    rig.send(producer, texts(range(3)), transaction=1, first=1)
    queue.abort(producer.session, 1)
    assert queue.hidden(producer.session, 1) == 0
    rig.send(producer, texts(range(3)), transaction=2, first=1)
    rig.commit(producer.session, 2, queue)
    assert numbers(rig.take(consumer)) == [0, 1, 2]


def test_a_transaction_that_cannot_be_committed_says_why(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, text(1), transaction=1, first=2)
    assert "expected" in (rig.commit(producer.session, 1, queue) or "")
    producer.session.id_last = 1
    rig.send(producer, text(1), transaction=2, first=1)
    assert "id numbers" in (rig.commit(producer.session, 2, queue) or "")


def test_deduplication_ids_count_from_the_commit_on(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    entry = text(1, headers=encode_properties({}, {":dedup": "x"}), flags=ENTRY_DEDUP)
    rig.send(producer, entry, entry, transaction=1, first=1)
    queue.abort(producer.session, 1)
    rig.send(producer, entry, entry, text(2), transaction=2, first=1)
    assert queue.hidden(producer.session, 2) == 3
    rig.commit(producer.session, 2, queue)
    assert queue.depth == 2
    rig.send(producer, entry)
    assert queue.depth == 2
    rig = rig.crash()
    rig.send(rig.producer(rig.destinations["q"]), entry)
    assert rig.destinations["q"].depth == 2


def test_open_transactions_are_over_after_a_restart(rig: Rig) -> None:
    queue = rig.make("q")
    producer = rig.producer(queue)
    rig.send(producer, texts(range(3)), transaction=1, first=1)
    assert queue.parts.oldest() == 1
    for checkpoint in (None, rig.snapshots()):
        queue = rig.crash(checkpoint).destinations["q"]
        assert (queue.depth, len(queue.parts)) == (0, 0)


def test_a_selecting_topic_subscription_sees_committed_messages(rig: Rig) -> None:
    topic = rig.make("t", "topic")
    cursor, _ = topic.subscribe(name="s", client="c", selector="n > 1", shared=False, start="new")
    producer = rig.producer(topic)
    rig.send(producer, *(text(n, headers=encode_properties({"n": n})) for n in range(4)), transaction=1, first=1)
    rig.commit(producer.session, 1, topic)
    assert topic.subscriptions()[0].depth == 2
    rig = rig.crash()
    consumer = rig.consumer(rig.destinations["t"], cursor=cursor)
    rig.run()
    assert numbers(rig.take(consumer)) == [2, 3]
