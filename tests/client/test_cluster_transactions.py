"""Transactions over several groups, as a client sees them: real agent, coordinator and cores, no sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.client.durable.commit import ask_outcome, transaction_id
from fairlead.client.durable.content import PLAIN
from fairlead.client.durable.session import DurableSession
from fairlead.client.durable.transaction import DurableTransaction
from fairlead.errors import CommitPending, CommitUnknown, LocalProtocolError, TransactionAborted
from tests.client.cluster_world import ClusterWorld, send
from tests.client.durable_server import Ticket


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    return ClusterWorld(tmp_path)


def begin(session: DurableSession) -> DurableTransaction:
    return session.transaction or DurableTransaction(session)


def put(session: DurableSession, name: str, *bodies: bytes) -> None:
    for body in bodies:
        begin(session).send(session.producer(name, "queue", create=True), body, PLAIN)


def commit(world: ClusterWorld, session: DurableSession) -> Ticket:
    told = Ticket()
    begin(session).commit(told.reply)
    world.pump()
    return told


def never_said_twice(world: ClusterWorld) -> None:
    """CLU-127: no commit is said again under its id."""
    said: list[tuple[str, int]] = []
    for command in world.asked("commit"):
        parts = command.get("parts") or [command]
        said += [(str(part.get("id", "one")), part["transaction"]) for part in parts]
    assert len(said) == len(set(said)), said


def test_in_one_group_it_is_committed_there_alone(world: ClusterWorld) -> None:
    session = world.session("transacted")
    put(session, "right", b"1")
    put(session, "right.2", b"2")
    assert commit(world, session).error is None
    (said,) = world.asked("commit")
    assert "parts" not in said
    assert (world.depth("right"), world.depth("right.2")) == (1, 1)


@pytest.mark.requirement("CLU-155", "CLU-163")
def test_in_several_groups_it_is_committed_by_all(world: ClusterWorld) -> None:
    session = world.session("transacted")
    put(session, "left", b"1", b"2")
    put(session, "right", b"3")
    world.pump()
    assert (world.depth("left"), world.depth("right")) == (0, 0)
    assert commit(world, session).error is None
    assert (world.depth("left"), world.depth("right")) == (2, 1)
    (said,) = world.asked("commit")
    parts = {part["session"] >> 24: part for part in said["parts"]}
    assert [sum(parts[index]["sends"].values()) for index in (0, 1)] == [2, 1]
    assert all(part["lowest"] for part in said["parts"])


def test_a_rollback_undoes_it_in_every_group(world: ClusterWorld) -> None:
    sender = world.session()
    for name in ("left", "right"):
        send(sender.producer(name, "queue", create=True), b"back")
    session = world.session("transacted")
    consumers = [world.consumer(session, name) for name in ("left", "right")]
    world.pump()
    for consumer in consumers:
        begin(session).took(consumer, consumer.take(1))
    put(session, "left", b"never")
    world.pump()
    undone = Ticket()
    begin(session).rollback(undone.reply)
    world.pump()
    assert undone.done()
    assert [bytes(one.body) for consumer in consumers for one in consumer.take(9)] == [b"back", b"back"]
    assert world.depth("left") == 1


@pytest.mark.requirement("CLU-123", "CLU-127")
@pytest.mark.parametrize("cut_at", range(1, 90))
def test_what_only_sends_is_begun_anew_wherever_the_line_is_cut(tmp_path: Path, cut_at: int) -> None:
    world = ClusterWorld(tmp_path, cut_at=cut_at)
    session = world.session("transacted")
    for number in range(3):
        put(session, "left", b"%d" % number)
        put(session, "right", b"%d" % number)
        world.pump()
        told = commit(world, session)
        assert told.times == 1
        assert told.error is None
    world.pass_time(30)
    assert (world.depth("left"), world.depth("right")) == (3, 3)
    never_said_twice(world)


@pytest.mark.requirement("CLU-127", "CLU-155")
@pytest.mark.parametrize("cut_at", range(1, 110))
def test_a_transfer_happens_once_or_not_as_it_was_told(tmp_path: Path, cut_at: int) -> None:
    world = ClusterWorld(tmp_path, cut_at=cut_at)
    for body in (b"a", b"b", b"c"):
        send(world.session().producer("left", "queue", create=True), body)
        world.pump()
    done = 0
    for _ in range(12):
        session = world.session("transacted")
        consumer = world.consumer(session, "left", prefetch=1)
        world.pump()
        taken = consumer.take(1)
        if taken:
            begin(session).took(consumer, taken)
            put(session, "right", taken[0].body)
            told = commit(world, session)
            assert told.times == 1
            done += told.error is None
            assert told.error is None or isinstance(told.error, TransactionAborted)
        session.end(Ticket().reply)
        world.pump()
        world.pass_time(15)
        assert world.depth("left") + world.depth("right") == 3, "nothing is lost or doubled"
        assert world.depth("right") == done, "what was told is what happened"
    assert world.depth("right") == 3
    never_said_twice(world)


@pytest.mark.requirement("CLU-142", "CLU-155")
@pytest.mark.parametrize("group", ["a", "b"])
@pytest.mark.parametrize("when", ["before", "saying", "said"])
def test_a_failover_of_either_group(world: ClusterWorld, group: str, when: str) -> None:
    session = world.session("transacted")
    put(session, "left", b"1")
    put(session, "right", b"1")
    world.pump()
    if when == "before":
        world.fail_over(group)
    told = Ticket()
    begin(session).commit(told.reply)
    if when == "saying":
        world.fail_over(group)
    world.say()
    if when == "said":
        while world.outward:
            world.arrive()
        world.fail_over(group)
    world.pump()
    world.pass_time(40)
    assert told.times == 1
    assert told.error is None
    assert (world.depth("left"), world.depth("right")) == (1, 1)
    never_said_twice(world)


@pytest.mark.requirement("CLU-127", "CLU-168")
def test_when_the_decider_stays_away_nobody_claims_to_know(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path, limit_s=20)
    session = world.session("transacted")
    put(session, "left", b"1")
    put(session, "right", b"1")
    world.pump()
    world.deaf.add("commit")
    told = Ticket()
    transaction = begin(session)
    transaction.commit(told.reply)
    world.pump()
    assert transaction._commit is not None
    decider = transaction._commit.decider
    world.site.kill(decider.group.name)
    world.cut()
    world.pump()
    world.pass_time(25)
    assert isinstance(told.error, CommitUnknown)
    assert told.error.transaction == transaction_id(decider.id, transaction.number)
    assert told.error.transaction in str(told.error)
    assert "Do not do its work again" in str(told.error)
    world.lead(decider.group.name)
    world.pump()
    outcome = Ticket()
    ask_outcome(world.road, told.error.transaction, outcome.reply)
    world.pump()
    world.pass_time(5)
    assert outcome.result == {"outcome": "rolled-back"}
    assert (world.depth("left"), world.depth("right")) == (0, 0)
    never = Ticket()
    ask_outcome(world.road, told.error.transaction, never.reply)
    assert isinstance(never.error, LocalProtocolError)


def test_the_decider_is_the_group_of_the_lowest_destination(world: ClusterWorld) -> None:
    session = world.session("transacted")
    put(session, "left", b"1")
    put(session, "right", b"1")
    world.pump()
    world.deaf.add("commit")
    transaction = begin(session)
    transaction.commit(Ticket().reply)
    world.pump()
    assert transaction._commit is not None
    ids = {group: world.find(name).id.hex() for group, name in (("a", "left"), ("b", "right"))}
    assert transaction._commit.decider.group.name == min(ids, key=lambda group: ids[group])


@pytest.mark.requirement("CLU-168")
def test_committed_and_pending_is_said_so(world: ClusterWorld) -> None:
    session = world.session("transacted")
    put(session, "left", b"1")
    put(session, "right", b"1")
    world.pump()
    world.deaf.add("commit")
    told = Ticket()
    transaction = begin(session)
    transaction.commit(told.reply)
    world.pump()
    (number,) = [number for number, command in world.road._commands.items() if command.do == "commit"]
    assert world.road.on_error(number, CommitPending("one group is away"))
    assert isinstance(told.error, CommitPending)
    assert told.error.transaction
    assert session.transaction is None
