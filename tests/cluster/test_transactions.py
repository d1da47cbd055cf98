"""Transactions: all or nothing, over several destinations, through crashes and lost connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster import records
from fairlead.wire.durable import ACKNOWLEDGE
from tests.cluster.manager_rig import Manager, Refused


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


class Teller:
    """A client with one transacted session, a producer to "b" and a consumer of "a"."""

    def __init__(self, manager: Manager, resume: dict[str, Any] | None = None, *, consume: bool = True) -> None:
        self.manager = manager
        self.client = manager.client()
        how = {"resume": resume} if resume else {}
        self.facts = self.client.do("session", ack="transacted", **how)
        self.session = self.facts["session"]
        self.b = self.client.do("produce", session=self.session, destination="b", create=True)["producer"]
        self.consumer = 0
        if consume:
            self.consumer = self.client.do(
                "consume", session=self.session, destination="a", create=True, messages=100, bytes=1 << 20
            )["consumer"]

    def again(self, incarnation: int) -> Teller:
        return Teller(
            self.manager, {"id": self.facts["id"], "secret": self.facts["secret"], "incarnation": incarnation}
        )

    def send(self, transaction: int, first: int, *bodies: bytes) -> None:
        self.client.store(self.b, first, *bodies, ids=self.facts["ids"][0], transaction=transaction)

    def take(self, transaction: int, order: int) -> None:
        self.client.settle(self.consumer, (order, order + 1, ACKNOWLEDGE), transaction=transaction)

    def commit(self, transaction: int, sends: int) -> dict[str, Any]:
        return self.client.do(
            "commit", session=self.session, transaction=transaction, sends={str(self.b): sends} if sends else {}
        )


def fill(manager: Manager, name: str, *bodies: bytes) -> None:
    client = manager.client()
    session = client.do("session")
    producer = client.do("produce", session=session["session"], destination=name, create=True)["producer"]
    client.store(producer, 1, *bodies, ids=session["ids"][0])
    manager.turn()


def waiting(manager: Manager, name: str) -> list[bytes]:
    destination = manager.core.find(name)
    if destination is None:
        return []
    return [seen.body for seen in destination.browse(0, 1000).messages]


def kinds(manager: Manager) -> list[int]:
    return [record.kind for record in manager.journal.records]


@pytest.mark.requirement("CLU-155", "CLU-161")
def test_a_commit_over_two_destinations_is_one_record(manager: Manager) -> None:
    fill(manager, "a", b"one", b"two")
    teller = Teller(manager)
    assert teller.client.bodies(teller.consumer) == [b"one", b"two"]
    teller.take(1, 1)
    teller.send(1, 1, b"moved")
    manager.turn()
    assert waiting(manager, "b") == []  # hidden (CLU-156)
    assert waiting(manager, "a") == [b"one", b"two"]  # locked (CLU-157)
    teller.commit(1, 1)
    assert waiting(manager, "b") == [b"moved"]
    assert waiting(manager, "a") == [b"two"]
    assert kinds(manager).count(records.COMMIT) == 1
    manager.crash()
    assert (waiting(manager, "a"), waiting(manager, "b")) == ([b"two"], [b"moved"])


@pytest.mark.requirement("CLU-116", "CLU-155")
def test_a_commit_is_told_when_it_is_safe_and_not_visible_before(manager: Manager) -> None:
    teller = Teller(manager)
    teller.send(1, 1, b"x")
    manager.turn()
    manager.is_holding = True
    number = teller.client.ask("commit", session=teller.session, transaction=1, sends={str(teller.b): 1})
    manager.turn()
    assert teller.client.answer(number) is None
    assert waiting(manager, "b") == []
    manager.is_holding = False
    manager.turn()
    assert teller.client.answer(number) == {}
    assert waiting(manager, "b") == [b"x"]


@pytest.mark.requirement("CLU-159", "CLU-160")
def test_a_rollback_leaves_everything_as_it_was(manager: Manager) -> None:
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"never")
    teller.client.do("rollback", session=teller.session, transaction=1)
    assert waiting(manager, "b") == []
    again = teller.client.delivered(teller.consumer)[-1]
    assert (bytes(again.body), again.delivery_count) == (b"one", 2)
    teller.take(2, 1)
    teller.send(2, 1, b"this time")
    teller.commit(2, 1)
    assert (waiting(manager, "a"), waiting(manager, "b")) == ([], [b"this time"])


@pytest.mark.requirement("CLU-162")
def test_a_commit_whose_sends_are_not_all_here_is_rolled_back(manager: Manager) -> None:
    teller = Teller(manager)
    teller.send(1, 1, b"x")
    with pytest.raises(Refused) as refused:
        teller.commit(1, 2)
    assert refused.value.code == "transaction-aborted"
    assert "1 messages" in refused.value.text
    assert waiting(manager, "b") == []
    with pytest.raises(Refused):  # the earlier answer (CLU-170)
        teller.commit(1, 1)
    with pytest.raises(Refused) as refused:
        teller.client.do("commit", session=teller.session, transaction=2, sends={"999": 1})
    assert refused.value.code == "transaction-aborted"


@pytest.mark.requirement("CLU-162")
def test_a_deleted_destination_makes_the_commit_fail(manager: Manager) -> None:
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"x")
    manager.turn()
    manager.core.delete(manager.core.find("b"), "gone")
    with pytest.raises(Refused) as refused:
        teller.client.do("commit", session=teller.session, transaction=1, sends={})
    assert "deleted" in refused.value.text
    assert waiting(manager, "a") == [b"one"]


@pytest.mark.requirement("CLU-170")
def test_a_commit_said_twice_is_answered_twice_and_done_once(manager: Manager) -> None:
    teller = Teller(manager)
    teller.send(1, 1, b"x")
    one = teller.client.ask("commit", session=teller.session, transaction=1, sends={str(teller.b): 1})
    two = teller.client.ask("commit", session=teller.session, transaction=1, sends={str(teller.b): 1})
    manager.turn()
    assert teller.client.answer(one) == teller.client.answer(two) == {}
    assert teller.commit(1, 1) == {}
    assert waiting(manager, "b") == [b"x"]


@pytest.mark.requirement("CLU-127")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_outcome_is_the_truth(manager: Manager, crash: bool, checkpoint: bool) -> None:
    teller = Teller(manager)
    teller.send(1, 1, b"x")
    teller.commit(1, 1)
    teller.send(2, 1, b"y")
    manager.turn()
    teller.client.gone()
    if checkpoint:
        manager.checkpoint()
    if crash:
        manager.crash()
    again = teller.again(2)
    ask = {"session": again.session}
    assert again.client.do("outcome", transaction=1, **ask) == {"outcome": "committed"}
    assert again.client.do("outcome", transaction=2, **ask) == {"outcome": "rolled-back"}
    assert again.client.do("outcome", transaction=77, **ask) == {"outcome": "rolled-back"}
    with pytest.raises(Refused):  # a late commit changes nothing
        again.commit(77, 0)
    again.send(3, 1, b"anew")
    again.commit(3, 1)
    assert waiting(manager, "b") == [b"x", b"anew"]
    manager.crash()
    third = again.again(3)
    assert third.client.do("outcome", session=third.session, transaction=77) == {"outcome": "rolled-back"}


@pytest.mark.requirement("CLU-127")
def test_an_outcome_is_recorded_before_it_is_told(manager: Manager) -> None:
    teller = Teller(manager)
    manager.is_holding = True
    number = teller.client.ask("outcome", session=teller.session, transaction=5)
    manager.turn()
    assert teller.client.answer(number) is None
    assert records.OUTCOME in kinds(manager)
    manager.is_holding = False
    manager.turn()
    assert teller.client.answer(number) == {"outcome": "rolled-back"}


@pytest.mark.requirement("CLU-125")
def test_a_lost_session_is_rolled_back(manager: Manager) -> None:
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"x")
    manager.turn()
    assert len(manager.core.transactions) == 1
    teller.client.gone()
    assert len(manager.core.transactions) == 0
    other = Teller(manager)
    assert other.client.bodies(other.consumer) == [b"one"]
    assert other.client.delivered(other.consumer)[0].redelivered
    assert waiting(manager, "b") == []


def test_a_consumer_closed_before_the_commit_still_counts(manager: Manager) -> None:
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    teller.client.ask("end", handle=teller.consumer)
    number = teller.client.ask("commit", session=teller.session, transaction=1, sends={})
    manager.turn()
    assert teller.client.answer(number) == {}
    assert waiting(manager, "a") == []


@pytest.mark.requirement("CLU-170")
def test_an_abandoned_transaction_is_rolled_back(manager: Manager) -> None:
    manager.core.transactions.idle_s = 5.0
    fill(manager, "a", b"one")
    teller = Teller(manager)
    teller.take(1, 1)
    manager.turn()
    manager.later(3_000)
    teller.send(1, 1, b"x")
    manager.turn()
    manager.later(3_000)
    assert len(manager.core.transactions) == 1
    manager.later(3_000)
    assert len(manager.core.transactions) == 0
    with pytest.raises(Refused) as refused:
        teller.commit(1, 1)
    assert "5 s" in refused.value.text
    assert waiting(manager, "a") == [b"one"]


def test_sends_of_a_transaction_begun_anew_are_no_repeats(manager: Manager) -> None:
    teller = Teller(manager)
    teller.send(1, 1, b"x")
    manager.turn()
    teller.client.gone()
    again = teller.again(2)
    again.send(2, 1, b"x")
    again.commit(2, 1)
    assert waiting(manager, "b") == [b"x"]


@pytest.mark.requirement("CLU-155")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.sampled_from(["move", "rollback", "half", "crash", "gone", "checkpoint", "unsafe-commit"]), max_size=14
    )
)
def test_money_is_neither_made_nor_lost(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    manager = Manager(tmp_path_factory.mktemp("tx"))
    coins = [b"coin %d" % number for number in range(6)]
    fill(manager, "a", *coins)
    teller = Teller(manager)
    transaction, incarnation = 0, 1

    def resumed() -> Teller:
        nonlocal incarnation
        incarnation += 1
        return teller.again(incarnation)

    def begin() -> bool:
        nonlocal transaction
        transaction += 1
        held = {message.order: message for message in teller.client.delivered(teller.consumer)}
        cursor = manager.core.find("a").cursors[0]
        free = [order for order in sorted(held) if not cursor.is_settled(order)]
        if not free:
            return False
        teller.take(transaction, free[0])
        teller.send(transaction, 1, bytes(held[free[0]].body))
        return True

    for step in steps:
        if step == "move" and begin():
            teller.commit(transaction, 1)
        elif step == "rollback" and begin():
            teller.client.do("rollback", session=teller.session, transaction=transaction)
        elif step == "half" and begin():
            manager.turn()
            teller.client.do("rollback", session=teller.session, transaction=transaction)
        elif step == "unsafe-commit" and begin():
            manager.is_holding = True
            teller.client.ask("commit", session=teller.session, transaction=transaction, sends={str(teller.b): 1})
            manager.turn()
            manager.crash()
            teller = resumed()
        elif step == "crash":
            begin()
            manager.crash()
            teller = resumed()
        elif step == "gone":
            begin()
            teller.client.gone()
            teller = resumed()
        elif step == "checkpoint":
            manager.checkpoint()
        assert sorted(coin for name in ("a", "b", "_DMQ") for coin in waiting(manager, name)) == coins
