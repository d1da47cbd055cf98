"""A backup that is told what is safe has its primary's state, leads with all it has, and undoes what was not safe."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.edge import group_log
from fairlead.cluster.edge.group_log import GroupLog
from fairlead.cluster.replication.log import Batch, Log
from fairlead.errors import StoreFull
from tests.cluster.grouplog.rig import Follower, Leader, digest, feed, snapshot


def work(leader: Leader, chance: random.Random, turns: int, uid: int) -> Any:
    """Sessions that send, consume, acknowledge and commit; yields after every turn."""
    leader.session(uid)
    queue = leader.producer(uid, f"orders-{uid % 2}")
    topic = leader.producer(uid, "ticks", "topic")
    consumer = leader.consumer(uid, f"orders-{uid % 2}")
    sent = {queue: 0, topic: 0}
    transaction = 0
    for _ in range(turns):
        what = chance.choice(("send", "send", "settle", "transaction", "subscribe"))
        if what == "send":
            producer = chance.choice((queue, topic))
            bodies = [chance.randbytes(chance.choice((0, 10, 400, 3000))) for _ in range(chance.randrange(1, 5))]
            leader.store(uid, producer, sent[producer] + 1, *bodies)
            sent[producer] += len(bodies)
        elif what == "settle":
            for order, _, _ in leader.delivered(uid):
                if chance.random() < 0.8:
                    leader.settle_range(uid, consumer, order, order + 1)
        elif what == "transaction":
            transaction += 1
            leader.store(uid, queue, 1, b"in a transaction", transaction=transaction)
            do = "commit" if chance.random() < 0.7 else "rollback"
            facts = {"sends": {str(queue): 1}} if do == "commit" else {}
            leader.command(uid, do, session=1, transaction=transaction, **facts)
        else:
            name = f"s{chance.randrange(3)}"
            leader.command(
                uid, "consume", session=1, destination="ticks", kind="topic", durable=name, messages=0, bytes=0
            )
        leader.turn(sync=chance.random() < 0.5)
        yield


@pytest.mark.requirement("CLU-138")
@pytest.mark.parametrize("seed", range(4))
def test_a_backup_has_the_state_of_its_primary_at_every_settled_point(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    leader, follower = Leader(tmp_path / "a"), Follower(tmp_path / "b", cache_bytes=4000, segment_bytes=20_000)
    leader.begin()
    for uid in (1, 2, 3):
        for _ in work(leader, chance, 12, uid):
            what = chance.random()
            if what < 0.4:
                feed(leader.log, follower.log, chance.choice((100, 5000, 1 << 20)))
            if what < 0.3:
                leader.settle()
                feed(leader.log, follower.log)
                follower.log.settle(leader.real.safe)
                assert follower.log.applied == leader.real.last
                assert snapshot(follower.core) == snapshot(leader.core)
                assert digest(follower.core, follower.journal) == digest(leader.core, leader.real)
                if chance.random() < 0.3:
                    follower.checkpoint()
            if chance.random() < 0.1:
                safe = follower.log.applied
                follower.restart()
                follower.log.settle(safe)
                assert follower.log.applied == safe
    leader.settle()
    feed(leader.log, follower.log)
    assert snapshot(follower.core) != snapshot(leader.core) or follower.log.applied == leader.real.last
    follower.log.lead()  # all of it counts, whether it was known to be safe or not
    assert snapshot(follower.core) == snapshot(leader.core)
    assert digest(follower.core, follower.journal) == digest(leader.core, leader.real)
    follower.log.settle(follower.log.last)
    assert follower.safe == [follower.log.last]
    leader.real.close()
    follower.journal.close()


def test_what_is_not_safe_is_in_the_log_and_not_in_the_state(tmp_path: Path) -> None:
    leader, follower = Leader(tmp_path / "a"), Follower(tmp_path / "b")
    leader.begin()
    leader.session(1)
    producer = leader.producer(1, "orders")
    feed(leader.log, follower.log)
    follower.log.settle(leader.real.safe)
    before, names = follower.log.last, digest(follower.core, follower.journal)
    leader.store(1, producer, 1, b"one", b"two")
    leader.turn(sync=True)
    feed(leader.log, follower.log)
    assert follower.log.durable == follower.log.last > before
    assert follower.log.applied == before
    assert digest(follower.core, follower.journal) == names
    with pytest.raises(AssertionError):
        follower.log.cut(before - 1)
    follower.log.cut(before)
    assert follower.log.last == before
    assert [one.name for one in follower.log.set_aside] == [f"set-aside-0-{before + 1}.journal"]
    assert digest(follower.core, follower.journal) == names
    feed(leader.log, follower.log)
    follower.log.settle(leader.real.safe)
    assert digest(follower.core, follower.journal) == digest(leader.core, leader.real) != names
    leader.real.close()
    follower.journal.close()


def test_a_long_tail_is_handed_on_in_pieces_and_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_log, "PLACES_MAX", 10)
    monkeypatch.setattr(group_log, "STEP_RECORDS", 7)
    leader, follower = Leader(tmp_path / "a"), Follower(tmp_path / "b", cache_bytes=100)
    leader.begin()
    leader.session(1)
    producer = leader.producer(1, "orders")
    for number in range(1, 60):
        leader.store(1, producer, number, b"x" * 500)
        leader.turn(sync=True)
    feed(leader.log, follower.log, 3000)
    assert len(follower.log._coming) < 30
    follower.log.settle(leader.real.safe)
    assert follower.log.has_more
    turns = 0
    while follower.log.has_more:
        follower.journal.collect()
        follower.log.on_collected()
        turns += 1
    assert turns > 5
    assert digest(follower.core, follower.journal) == digest(leader.core, leader.real)
    leader.real.close()
    follower.journal.close()


def test_a_full_disk_keeps_what_it_took(tmp_path: Path) -> None:
    leader, follower = Leader(tmp_path / "a"), Follower(tmp_path / "b", segment_bytes=8192, quota_bytes=3 * 8192)
    leader.begin()
    leader.session(1)
    producer = leader.producer(1, "orders")
    for number in range(1, 60):
        leader.store(1, producer, number, b"x" * 500)
        leader.turn(sync=True)
    with pytest.raises(StoreFull):
        feed(leader.log, follower.log)
    last = follower.log.last
    follower.journal.flush()
    follower.log.settle(last)
    assert follower.log.applied == last == follower.log.durable
    leader.real.close()
    follower.journal.close()


def test_hostile_batches_are_refused(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    for data in (b"x", bytes(40), b"\x58\x7e" + bytes(100)):
        with pytest.raises(ValueError):
            follower.log.take(Batch(1, 0, ((1, 1),), data))
    assert follower.log.last == 0
    log: Log = follower.log
    assert (log.first, log.durable, log.epoch_at(0), log.epoch_at(1)) == (1, 0, 0, -1)
    assert isinstance(follower.log, GroupLog)
    follower.journal.close()
