"""State from the journal: a crash at any moment, with or without a checkpoint under way, loses and invents nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster import records
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.recovery import Checkpoint, destinations_of
from fairlead.wire import durable

from .core_rig import Rig

A, B = 11, 12
QUEUES = ("q0", "q1", "q2")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def finish(checkpoint: Checkpoint) -> None:
    while not checkpoint.step(most_parts=1):
        pass


def test_a_checkpoint_alone_is_enough(rig: Rig) -> None:
    rig.session(A)
    producer = rig.producer(A, "q0")
    rig.store(A, producer, 1, b"a", b"b", b"c")
    consumer = rig.consumer(A, "q0", messages=1)
    rig.settle()
    rig.settle_range(A, consumer, 1, 2)
    rig.settle()
    finish(rig.checkpoint())
    rig.journal.records[:] = rig.journal.records[: rig.journal.covers]
    rig.restart()
    rig.session(B)
    rig.consumer(B, "q0")
    rig.settle()
    assert [(order, body) for order, _, body in rig.delivered(B)] == [(2, b"b"), (3, b"c")]


def test_records_written_while_a_checkpoint_is_taken_count_once(rig: Rig) -> None:
    rig.session(A)
    first, second = rig.producer(A, "q0"), rig.producer(A, "q1")
    rig.store(A, first, 1, b"before")
    rig.settle()
    checkpoint = rig.checkpoint()
    number = 1
    while not checkpoint.step(most_parts=1):
        number += 1
        rig.store(A, first, number, b"during %d" % number)
        rig.store(A, second, number - 1, b"during %d" % number)
        rig.settle()
    rig.store(A, first, number + 1, b"after")
    rig.settle()
    rig.restart()
    depth = {name: place.destination.depth for name, place in rig.core.names.by_name.items()}
    assert (depth["q0"], depth["q1"]) == (number + 1, number - 1)
    rig.session(B)
    rig.consumer(B, "q0")
    rig.settle()
    bodies = [body for _, _, body in rig.delivered(B)]
    assert bodies == [b"before", *(b"during %d" % one for one in range(2, number + 1)), b"after"]


def test_destinations_made_and_deleted_while_a_checkpoint_is_taken(rig: Rig) -> None:
    core = rig.core
    core.create("old", "queue", Parameters())
    rig.session(A)
    producer = rig.producer(A, "gone")
    rig.settle()
    checkpoint = rig.checkpoint()
    for _ in range(7):
        checkpoint.step(most_parts=1)
    rig.store(A, producer, 1, b"x")
    rig.settle()
    core.delete(core.names.by_name["gone"].destination, "test")
    made = core.create("new", "queue", Parameters(max_messages=7))
    rig.settle()
    finish(checkpoint)
    rig.restart()
    names = rig.core.names.by_name
    assert "gone" not in names
    assert "old" in names
    assert names["new"].destination.parameters.max_messages == 7
    assert names["new"].destination.id == made.id
    assert rig.core.create("another", "queue", Parameters()).number > made.number


def test_a_start_without_anything_to_read(rig: Rig) -> None:
    rig.journal.records.clear()
    rig.journal.bytes.clear()
    rig.journal.safe = 0
    rig.restart()
    assert len(rig.core.names) == 3


def test_which_destinations_a_record_concerns() -> None:
    settle = records.SETTLE_RECORD.pack(7, 0, 0, 0)
    assert destinations_of(records.SETTLE, settle) == [7]
    assert destinations_of(records.CHANGE, msgspec.json.encode({"number": 9})) == [9]
    head = records.STORE_RECORD.pack(3, 0, 1, 2, bytes(20), 0, 0, 4, 4, 0, 0, bytes(20), 0)
    moved = records.MOVED.pack(20, 0, 5) + records.MOVED.pack(21, 0, 6)
    assert destinations_of(records.MOVE, head + moved) == [3, 20, 21]
    commit = records.COMMIT_RECORD.pack(bytes(20), 1, 1, 2)
    commit += records.COMMIT_STORED.pack(30, 1, 1, 1, 0)
    commit += records.COMMIT_SETTLED.pack(31, 0, 1, 2) + records.COMMIT_SETTLED.pack(30, 0, 1, 2)
    assert destinations_of(records.COMMIT, commit) == [30, 31]
    assert destinations_of(records.START, b"{}") == []


class Books:
    """A client of the rig that keeps books of what it was told."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.uid = A
        self.sent: dict[str, int] = dict.fromkeys(QUEUES, 0)  # send numbers given
        self.confirmed: set[tuple[str, bytes]] = set()
        self.maybe: set[tuple[str, bytes]] = set()  # sent, not confirmed
        self.settling: dict[int, tuple[str, list[bytes]]] = {}  # by tag
        self.done: set[tuple[str, bytes]] = set()  # acknowledgement confirmed
        self.leaving: set[tuple[str, bytes]] = set()  # acknowledgement sent
        self.held: dict[str, list[tuple[int, bytes]]] = {name: [] for name in QUEUES}
        self.tag = 0
        self.session: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        rig = self.rig
        facts: dict[str, Any] = {}
        if self.session:
            incarnation = self.session["incarnation"] + 1
            facts["resume"] = {"id": self.session["id"], "secret": self.session["secret"], "incarnation": incarnation}
        self.session = rig.session(self.uid, **facts)
        accepted = self.session["accepted"]
        self.producers = {name: rig.producer(self.uid, name) for name in QUEUES}
        for name in QUEUES:
            for body in [body for queue, body in self.maybe if queue == name]:
                if number_of(body) <= accepted.get(name, 0):
                    self.maybe.discard((name, body))
                    self.confirmed.add((name, body))
            for body in sorted((body for queue, body in self.maybe if queue == name), key=number_of):
                rig.store(self.uid, self.producers[name], number_of(body), body)
        self.consumers = {name: rig.consumer(self.uid, name) for name in QUEUES}
        self.held = {name: [] for name in QUEUES}

    def send(self, name: str, count: int) -> None:
        first = self.sent[name] + 1
        bodies = [b"%s %d" % (name.encode(), number) for number in range(first, first + count)]
        self.sent[name] += count
        self.maybe.update((name, body) for body in bodies)
        self.rig.store(self.uid, self.producers[name], first, *bodies)

    def look(self) -> None:
        names = {handle: name for name, handle in self.producers.items()}
        for got in self.rig.take(self.uid, durable.KIND_STORED):
            name = names[got.number]
            for first, count, _, _, _ in durable.STORED_ITEM.iter_unpack(got.body):
                for number in range(first, first + count):
                    body = b"%s %d" % (name.encode(), number)
                    self.maybe.discard((name, body))
                    self.confirmed.add((name, body))
        names = {handle: name for name, handle in self.consumers.items()}
        from .core_rig import messages_of

        for got in self.rig.take(self.uid, durable.KIND_DELIVER):
            name = names[got.number]
            for order, deliveries, body in messages_of(got.body):
                assert (name, body) not in self.done, "an acknowledged message came back"
                if (name, body) in self.leaving:
                    assert deliveries > 1, "a message that came back is not marked"
                self.held[name].append((order, body))
        for got in self.rig.take(self.uid, durable.KIND_SETTLED):
            assert not got.body
            name, bodies = self.settling.pop(got.peer)
            self.done.update((name, body) for body in bodies)

    def settle(self, name: str) -> None:
        held = self.held[name]
        if held:
            self.tag += 1
            low, high = held[0][0], held[-1][0] + 1
            assert [order for order, _ in held] == list(range(low, high)), "deliveries are out of order"
            self.settling[self.tag] = name, [body for _, body in held]
            self.leaving.update((name, body) for _, body in held)
            self.rig.settle_range(self.uid, self.consumers[name], low, high, tag=self.tag)
            self.held[name] = []

    def crash(self) -> None:
        self.settling.clear()
        self.rig.inbox.clear()
        self.rig.restart()
        self.rig.take(self.uid)
        self.open()

    def close(self) -> None:
        """Everything confirmed is delivered or was acknowledged."""
        self.rig.settle()
        self.look()
        for name in QUEUES:
            waiting = {(name, body) for _, body in self.held[name]}
            expected = {one for one in self.confirmed if one[0] == name} - self.done - self.leaving
            assert expected <= waiting, f"lost: {sorted(expected - waiting)}"
            numbers = [number_of(body) for _, body in self.held[name]]
            assert numbers == sorted(set(numbers)), "doubled, or out of order"


def number_of(body: bytes) -> int:
    return int(body.split()[1])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "settle", "turn", "sync", "sync", "checkpoint", "step", "step", "crash"]),
        st.sampled_from(QUEUES),
        st.integers(1, 4),
    ),
    max_size=40,
)


@pytest.mark.requirement("CLU-114", "CLU-116", "CLU-118")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("books"))
    books = Books(rig)
    checkpoint: Checkpoint | None = None
    for step, name, count in steps:
        if step == "send":
            books.send(name, count)
        elif step == "settle":
            books.look()
            books.settle(name)
        elif step in ("turn", "sync"):
            rig.turn(sync=step == "sync")
            books.look()
        elif step == "checkpoint":
            checkpoint = checkpoint or rig.checkpoint()
        elif step == "step" and checkpoint is not None:
            if rig.journal.safe == len(rig.journal.records) and checkpoint.step(most_parts=count):
                checkpoint = None
        elif step == "crash":
            checkpoint = None
            books.crash()
    books.close()
    books.crash()
    books.close()
    assert rig.core.faults == 0, rig.world.logged


def test_a_planted_loss_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The books above are worth something: a core that tells before it is safe does not pass them."""
    rig = Rig(tmp_path)
    books = Books(rig)
    monkeypatch.setattr(rig.core, "after", lambda index, action: action())
    books.send("q0", 3)
    rig.turn()
    books.look()
    books.crash()
    with pytest.raises(AssertionError, match="lost"):
        books.close()
