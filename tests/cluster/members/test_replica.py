"""A member that only ever was told records answers like one that wrote them, and does not grow for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import records
from fairlead.cluster.core import Core
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.options import Options
from fairlead.cluster.recovery import Recovery
from fairlead.cluster.replica import Replica
from fairlead.wire import durable
from tests.cluster.core_rig import Rig, World


class Follower:
    """A core that is told another rig's records as they become safe."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.world = World()
        self.core = Core(rig.journal, self.world, rig.options, SideFiles(folder), now_ms=rig.now_ms)
        self.recovery = Recovery(self.core)
        self.replica = Replica(self.core, self.recovery)

    def catch_up(self) -> None:
        for record in self.rig.journal.records[self.replica.applied : self.rig.journal.safe]:
            self.replica.apply(record.kind, record.index, record.place, record.body)
        self.replica.tidy(self.rig.now_ms)
        self.replica.tidy(self.rig.now_ms)


def state_of(core: Core) -> dict[str, Any]:
    return {
        "names": core.names.snapshot(),
        "sessions": core.sessions.snapshot(),
        "transactions": core.transactions.snapshot(),
        "transfers": core.transfers.snapshot(),
        "destinations": {number: one.snapshot() for number, one in core.names.destinations.items()},
        "next": core.next_message,
    }


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "primary", Options(resend_retention_s=10.0))


@pytest.fixture
def follower(rig: Rig, tmp_path: Path) -> Follower:
    return Follower(rig, tmp_path / "backup")


def work(rig: Rig, uid: int) -> None:
    """A bit of everything."""
    session = rig.session(uid)["session"]
    queue = rig.producer(uid, "orders", session=session)
    topic = rig.producer(uid, "news", "topic", session=session)
    rig.consumer(uid, "news", "topic", session=session, durable="sub")
    rig.store(uid, queue, 1, *(b"%d" % n for n in range(20)))
    rig.store(uid, topic, 1, b"a", b"b")
    rig.settle()
    consumer = rig.consumer(uid, "orders", session=session)
    rig.settle()
    rig.settle_range(uid, consumer, 1, 8)
    rig.settle_range(uid, consumer, 9, 11, action=durable.RETURN)
    rig.store(uid, queue, 1, b"hidden", transaction=5)
    rig.settle()
    rig.ask(uid, "commit", session=session, transaction=5, sends={str(queue): 1})
    rig.store(uid, queue, 1, b"never", transaction=6)
    rig.settle()
    rig.ask(uid, "rollback", session=session, transaction=6)


@pytest.mark.requirement("CLU-130")
def test_who_was_told_everything_leads_like_who_read_it_again(rig: Rig, follower: Follower, tmp_path: Path) -> None:
    work(rig, 1)
    follower.catch_up()
    rig.frame(1, durable.KIND_COMMAND, body=b'{"do":"gone"}')
    rig.settle()
    work(rig, 2)
    rig.settle()
    follower.catch_up()
    assert follower.replica.applied == len(rig.journal.records)

    read_again = Follower(rig, tmp_path / "again")
    read_again.recovery.replay(rig.journal.records)
    for one in (follower, read_again):
        one.replica.lead()
        one.core.now_ms = rig.now_ms
        one.recovery.finish()
    assert state_of(follower.core) == state_of(read_again.core)
    assert follower.core.names.find("orders").depth == rig.core.names.find("orders").depth  # type: ignore[union-attr]


def test_a_follower_writes_nothing_and_asks_for_nothing(rig: Rig, follower: Follower) -> None:
    work(rig, 1)
    before = len(rig.journal.records)
    rig.now_ms += 100_000
    follower.catch_up()
    assert len(rig.journal.records) == before
    assert not follower.core.links
    follower.core.event("error", "messages-lost", "A record told of damage.")  # whoever leads has it in `_LOG`
    assert follower.world.logged[-1]["code"] == "messages-lost"
    assert follower.core.log_task.depth == 0


def test_hidden_messages_of_lost_sessions_are_let_go(rig: Rig, follower: Follower) -> None:
    for uid in range(1, 30):
        session = rig.session(uid)["session"]
        queue = rig.producer(uid, "orders", session=session)
        rig.store(uid, queue, 1, b"hidden", transaction=1)
        rig.settle()
        follower.catch_up()
        assert len(follower.core.names.find("orders").parts) == 1  # type: ignore[union-attr]
        hidden = next(one.index for one in reversed(rig.journal.records) if one.kind == records.HIDDEN)
        assert follower.recovery.oldest_hidden() == hidden  # its file must be kept: whoever leads may commit it
        rig.frame(uid, durable.KIND_COMMAND, body=b'{"do":"gone"}')
        rig.settle()
        rig.now_ms += 20_000  # then the session is over
        rig.settle()
        follower.catch_up()
        assert len(follower.core.names.find("orders").parts) == 0  # type: ignore[union-attr]
    assert not follower.core.transactions._ended
    assert not follower.core.sessions.by_id
    assert not follower.recovery._hidden
    assert follower.recovery.oldest_hidden() is None


def test_a_new_primary_ends_what_was_open(rig: Rig, follower: Follower) -> None:
    session = rig.session(1)["session"]
    queue = rig.producer(1, "orders", session=session)
    rig.store(1, queue, 1, b"hidden", transaction=1)
    rig.settle()
    follower.catch_up()
    rig.core.append(records.START, b'{"epoch":7,"start":9}')
    rig.journal.safe = len(rig.journal.records)
    follower.catch_up()
    assert len(follower.core.names.find("orders").parts) == 0  # type: ignore[union-attr]
    assert (follower.replica.epoch, follower.recovery.start) == (7, 9)


def test_times_and_consumed_messages_do_not_pile_up(rig: Rig, follower: Follower) -> None:
    session = rig.session(1)["session"]
    queue = rig.producer(1, "orders", session=session)
    consumer = rig.consumer(1, "orders", session=session, messages=1_000_000, bytes=1 << 40)
    for n in range(1, 300):
        rig.store(1, queue, n, b"x", ttl_ms=50, delay_ms=10)
        rig.settle()
        rig.now_ms += 11
        rig.settle()
        rig.settle_range(1, consumer, n, n + 1)
        rig.settle()
        rig.now_ms += 100
        follower.catch_up()
    home = follower.core.names.find("orders")
    assert home is not None
    assert home.first == home.next
    assert len(home.clock._later) <= 2
    assert len(follower.core.timers) <= 4


@pytest.mark.requirement("CLU-88")
def test_numbers_say_the_group(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.core = Core(rig.journal, rig.world, rig.options, SideFiles(tmp_path), now_ms=1, group="d", index=3)
    rig.journal.records.clear()
    rig.core.create_well_known()
    rig.link = rig.core.link_opened()
    session = rig.session(1)
    assert session["session"] == 3 << 24 | 1
    assert session["ids"][0] == 3 << 48 | 1
    assert rig.producer(1, "orders", session=session["session"]) == 3 << 24 | 1
    assert sorted(rig.core.names.by_name) == ["_DMQ.d", "_LOG.d", "orders"]
    assert rig.core.find("_DMQ") is rig.core.names.find("_DMQ.d")
    assert rig.core.names.find("_DMQ.d").takes_dead  # type: ignore[union-attr]
