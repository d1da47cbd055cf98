"""What is prepared stays as it is, whatever happens, until the decider's word comes (CLU-162, CLU-166)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import records
from fairlead.cluster.core import Core
from fairlead.cluster.edge.large import SideFiles
from fairlead.cluster.parameters import Parameters
from fairlead.cluster.recovery import Recovery
from fairlead.cluster.replica import Replica
from fairlead.wire.durable import ACKNOWLEDGE
from tests.cluster.manager_rig import Refused
from tests.cluster.test_transactions import Teller, fill, kinds, waiting
from tests.cluster.test_transfers import Sender, files
from tests.cluster.transactions.lone import ELSEWHERE, Lone, as_decider, own_id, prepare


@pytest.fixture
def manager(tmp_path: Path) -> Lone:
    return Lone(tmp_path)


def begun(manager: Lone, *bodies: bytes) -> Teller:
    """One message taken from "a", one sent to "b"."""
    fill(manager, "a", *(bodies or (b"one",)))
    teller = Teller(manager)
    teller.take(1, 1)
    teller.send(1, 1, b"moved")
    manager.turn()
    return teller


def free(manager: Lone, name: str) -> list[bytes]:
    destination = manager.core.find(name)
    assert destination is not None
    cursor = destination.cursors[0]
    return [seen.body for seen in destination.browse(0, 1000).messages if cursor.is_free(seen.order)]


@pytest.mark.requirement("CLU-162", "CLU-166", "CLU-116")
def test_it_is_ready_when_that_is_safe(manager: Lone) -> None:
    teller = begun(manager)
    manager.is_holding = True
    number = prepare(teller)
    assert teller.client.answer(number) is None
    assert records.PREPARE in kinds(manager)
    manager.is_holding = False
    manager.turn()
    assert teller.client.answer(number) == {"ready": True}
    assert (waiting(manager, "b"), free(manager, "a")) == ([], [])


@pytest.mark.requirement("CLU-163", "CLU-116")
def test_final_commits_it_and_that_shows_when_it_is_safe(manager: Lone) -> None:
    prepare(begun(manager))
    manager.crash()  # the part is read again, and not shown too early for that
    manager.is_holding = True
    number = manager.tell("final")
    assert (number in manager.said, manager.sent, waiting(manager, "b")) == (False, [], [])
    manager.is_holding = False
    manager.turn()
    assert manager.said[number] == {"outcome": "committed"}
    assert manager.sent == [("z", {"do": "done", "id": ELSEWHERE})]
    assert (waiting(manager, "b"), waiting(manager, "a")) == ([b"moved"], [])


def gone(manager: Lone, teller: Teller) -> None:
    teller.client.gone()


def session_over(manager: Lone, teller: Teller) -> None:
    teller.client.gone()
    manager.later(60_000)
    assert bytes.fromhex(teller.facts["id"]) not in manager.core.sessions.by_id


def session_ended(manager: Lone, teller: Teller) -> None:
    teller.client.do("end-session", session=teller.session)


def resumed(manager: Lone, teller: Teller) -> None:
    teller.client.gone()
    teller.again(2)


def consumer_closed(manager: Lone, teller: Teller) -> None:
    teller.client.do("end", handle=teller.consumer)


def crashed(manager: Lone, teller: Teller) -> None:
    manager.crash()


def read_from_checkpoint(manager: Lone, teller: Teller) -> None:
    manager.checkpoint()
    manager.crash()


def twice(manager: Lone, teller: Teller) -> None:
    manager.crash()
    manager.checkpoint()
    session_ends = manager.core.now_ms
    manager.crash()
    manager.later(60_000)
    assert manager.core.now_ms > session_ends


def administered(manager: Lone, teller: Teller) -> None:
    source, target = manager.core.find("a"), manager.core.find("b")
    assert source is not None
    assert target is not None
    assert source.purge() == (0, None)
    assert source.drop([1]) == 0
    assert source.move([1], target) == 0
    assert source.bury_all() == 0


def time_passed(manager: Lone, teller: Teller) -> None:
    source = manager.core.find("a")
    assert source is not None
    source.change(Parameters(ttl_s=1.0))
    manager.later(500_000)
    manager.crash()
    manager.later(500_000)


TROUBLES = (
    gone, session_over, session_ended, resumed, consumer_closed, crashed, read_from_checkpoint, twice, administered,
    time_passed,
)  # fmt: skip


@pytest.mark.requirement("CLU-125", "CLU-166")
@pytest.mark.parametrize("outcome", ["committed", "rolled-back"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_nothing_but_the_word_ends_it(manager: Lone, trouble: Callable[[Lone, Teller], None], outcome: str) -> None:
    teller = begun(manager)
    prepare(teller)
    trouble(manager, teller)
    assert len(manager.core.prepared) == 1
    assert (waiting(manager, "b"), free(manager, "a"), waiting(manager, "_DMQ")) == ([], [], [])
    thief = Teller(manager)
    assert thief.client.bodies(thief.consumer) == []
    manager.word(outcome)
    assert len(manager.core.prepared) == 0
    if outcome == "committed":
        assert (waiting(manager, "a"), waiting(manager, "b")) == ([], [b"moved"])
    else:
        manager.turn()
        expired = trouble is time_passed
        assert [(bytes(one.body), one.delivery_count) for one in thief.client.delivered(thief.consumer)] == (
            [] if expired else [(b"one", 2)]
        )
        assert waiting(manager, "b") == []
    manager.crash()
    assert len(manager.core.prepared) == 0
    assert waiting(manager, "b") == ([b"moved"] if outcome == "committed" else [])
    assert manager.core.faults == 0


@pytest.mark.requirement("CLU-166")
def test_its_destination_cannot_be_deleted(manager: Lone) -> None:
    prepare(begun(manager))
    results: list[dict[str, Any]] = []
    manager.core.admin.execute("delete", {"destination": "a"}, results.append, user="")
    manager.turn()
    assert results[0]["error"]["code"] == "unavailable"
    assert manager.core.find("a") is not None


@pytest.mark.requirement("CLU-170")
@pytest.mark.parametrize("crash", [False, True])
def test_repeats_get_the_same_answers(manager: Lone, crash: bool) -> None:
    teller = begun(manager)
    mine = as_decider(teller)
    for _ in range(3):
        assert teller.client.answer(prepare(teller, **mine)) == {"ready": True}
    for _ in range(3):
        if crash:
            manager.crash()
        assert manager.ask("final", mine["id"], "a") == {"outcome": "committed"}
    assert manager.ask("abandon", mine["id"], "a") == {"outcome": "committed"}
    assert manager.ask("outcome", mine["id"], "a") == {"outcome": "committed"}
    if not crash:
        assert teller.client.answer(prepare(teller, **mine)) == {"outcome": "committed"}
    assert waiting(manager, "b") == [b"moved"]
    assert kinds(manager).count(records.COMMIT) == kinds(manager).count(records.PREPARE) == 1


@pytest.mark.requirement("CLU-170")
def test_a_participant_repeats_its_answers_too(manager: Lone) -> None:
    teller = begun(manager)
    prepare(teller)
    assert manager.ask("final") == manager.ask("final") == {"outcome": "committed"}
    assert manager.ask("final", own_id(teller, 9)) == {"outcome": "unknown"}  # not its business any more
    assert manager.ask("outcome") == {"error": "stale"}  # it does not decide


@pytest.mark.requirement("CLU-164", "CLU-169")
def test_a_prepare_behind_its_rollback_comes_too_late(manager: Lone) -> None:
    teller = begun(manager)
    assert manager.ask("abandon") == {"outcome": "rolled-back"}  # nobody has heard of it here
    manager.checkpoint()
    number = prepare(teller)
    with pytest.raises(Refused, match="given up"):
        teller.client.answer(number)
    assert (free(manager, "a"), waiting(manager, "b"), len(manager.core.prepared)) == ([], [], 0)
    assert teller.client.delivered(teller.consumer)[-1].redelivered


@pytest.mark.requirement("CLU-164", "CLU-169")
@pytest.mark.parametrize("how", ["abandon", "outcome", "final", "ask"])
def test_what_the_decider_has_not_heard_of_is_rolled_back_for_good(manager: Lone, how: str) -> None:
    teller = begun(manager)
    mine = as_decider(teller)
    if how == "ask":
        manager.is_holding = True
        manager.core.decisions.on_settle("y", {"do": "ask", "id": mine["id"]})
        manager.turn()
        assert manager.sent == []  # not before it is safe
        manager.is_holding = False
        manager.turn()
        assert manager.sent == [("y", {"do": "decide", "id": mine["id"], "outcome": "rolled-back"})]
    else:
        assert manager.ask(how, mine["id"], "a") == {"outcome": "rolled-back"}
    with pytest.raises(Refused):
        teller.client.answer(prepare(teller, **mine))
    manager.crash()
    assert manager.ask("final", mine["id"], "a") == {"outcome": "rolled-back"}
    assert (waiting(manager, "a"), waiting(manager, "b")) == ([b"one"], [])


@pytest.mark.requirement("CLU-169")
def test_a_decider_in_doubt_rolls_back_and_a_participant_asks(manager: Lone) -> None:
    teller = begun(manager)
    mine = as_decider(teller)
    prepare(teller, **mine)
    other = Teller(manager, consume=False)
    other.send(1, 1, b"elsewhere")
    prepare(other)
    manager.later(9_000)
    assert (len(manager.core.prepared), manager.sent) == (2, [])
    manager.later(2_000)
    manager.turn()
    assert list(manager.core.prepared.by_id) == [ELSEWHERE]
    assert manager.ask("final", mine["id"], "a") == {"outcome": "rolled-back"}
    assert manager.sent == [("z", {"do": "ask", "id": ELSEWHERE})]
    for _ in range(4):
        manager.later(1_000)
    assert manager.sent.count(("z", {"do": "ask", "id": ELSEWHERE})) == 3  # every two seconds
    manager.word("committed", sender="y")  # not who decides
    assert len(manager.core.prepared) == 1
    manager.word("committed")
    assert waiting(manager, "b") == [b"elsewhere"]


@pytest.mark.requirement("CLU-169", "CLU-125")
def test_a_lost_connection_is_a_doubt_at_once(manager: Lone) -> None:
    teller = begun(manager)
    prepare(teller)
    teller.client.gone()
    assert manager.sent == [("z", {"do": "ask", "id": ELSEWHERE})]


@pytest.mark.requirement("CLU-169", "CLU-125")
def test_a_connection_lost_while_it_is_being_prepared(manager: Lone) -> None:
    teller = begun(manager)
    about = {"id": ELSEWHERE, "decider": "z", "groups": ["a", "z"]}
    teller.client.ask("prepare", session=teller.session, transaction=1, sends={str(teller.b): 1}, **about)
    teller.client.gone()
    assert len(manager.core.prepared) in (0, 1)
    assert manager.sent == ([("z", {"do": "ask", "id": ELSEWHERE})] if len(manager.core.prepared) else [])
    manager.word("rolled-back")
    assert free(manager, "a") == [b"one"]


@pytest.mark.requirement("CLU-166")
def test_the_client_cannot_end_it(manager: Lone) -> None:
    teller = begun(manager, b"one", b"two")
    prepare(teller)
    for do, more in (("commit", {"sends": {str(teller.b): 1}}), ("rollback", {}), ("outcome", {})):
        with pytest.raises(Refused) as refused:
            teller.client.do(do, session=teller.session, transaction=1, **more)
        assert refused.value.code == "stale"
    teller.take(1, 2)
    teller.send(1, 2, b"late")
    manager.turn()
    assert manager.ask("final") == {"outcome": "committed"}
    assert (waiting(manager, "a"), waiting(manager, "b")) == ([b"two"], [b"moved"])


@pytest.mark.requirement("CLU-127")
def test_the_decider_is_asked_by_number_or_id_and_only_by_who_has_the_session(manager: Lone) -> None:
    teller = begun(manager)
    mine = as_decider(teller)
    prepare(teller, **mine)
    stranger = manager.client()
    stranger.do("session")
    with pytest.raises(Refused) as refused:
        stranger.do("outcome", id=mine["id"])
    assert refused.value.code == "session-lost"
    assert len(manager.core.prepared) == 1
    assert teller.client.do("outcome", id=mine["id"]) == {"outcome": "rolled-back"}
    assert teller.client.do("outcome", session=teller.session, transaction=1) == {"outcome": "rolled-back"}
    assert manager.ask("final", mine["id"], "a") == {"outcome": "rolled-back"}


@pytest.mark.requirement("CLU-162")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"sends": 2}, "transaction-aborted"),
        ({"groups": ["y", "z"]}, "bad-request"),
        ({"decider": "y"}, "bad-request"),
        ({"decider": "a"}, "bad-request"),  # the id is none of ours
        ({"id": "xyz"}, "bad-request"),
    ],
)
def test_what_cannot_be_prepared(manager: Lone, how: dict[str, Any], code: str) -> None:
    teller = begun(manager)
    with pytest.raises(Refused) as refused:
        teller.client.answer(prepare(teller, **how))
    assert refused.value.code == code
    assert len(manager.core.prepared) == 0


def test_one_transaction_is_prepared_under_one_id(manager: Lone) -> None:
    teller = begun(manager)
    prepare(teller)
    with pytest.raises(Refused, match="another id"):
        teller.client.answer(prepare(teller, id="0" * 56))
    teller.send(2, 1, b"x")
    with pytest.raises(Refused, match="another one"):
        teller.client.answer(prepare(teller, 2))
    assert list(manager.core.prepared.by_id) == [ELSEWHERE]


@pytest.mark.requirement("CLU-162")
def test_a_received_message_that_is_gone_cannot_be_committed(manager: Lone) -> None:
    teller = begun(manager)
    source = manager.core.find("a")
    assert source is not None
    source.cursors[0].settle(1, 2)  # as damage of the journal does
    with pytest.raises(Refused, match="gone"):
        teller.client.answer(prepare(teller))


@pytest.mark.requirement("CLU-28", "CLU-166")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("outcome", ["committed", "rolled-back"])
def test_later_messages_of_its_keys_wait_for_it(manager: Lone, crash: bool, outcome: str) -> None:
    client = manager.client()
    facts = client.do("session")
    producer = client.do("produce", session=facts["session"], destination="a", create=True)["producer"]
    client.store(producer, 1, b"one", ids=facts["ids"][0], key=b"k")
    teller = Teller(manager)
    teller.take(1, 1)
    prepare(teller, sends=0)
    client.store(producer, 2, b"two", ids=facts["ids"][0] + 1, key=b"k")
    teller.client.gone()
    if crash:
        manager.crash()
    other = Teller(manager)
    manager.turn()
    assert other.client.bodies(other.consumer) == []
    manager.word(outcome)
    assert other.client.bodies(other.consumer) == ([b"two"] if outcome == "committed" else [b"one", b"two"])
    manager.crash()
    assert waiting(manager, "a") == ([b"two"] if outcome == "committed" else [b"one", b"two"])


@pytest.mark.requirement("CLU-160", "CLU-166")
@pytest.mark.parametrize("outcome", ["committed", "rolled-back"])
@pytest.mark.parametrize("crash", [False, True])
def test_topics_durable_and_not(manager: Lone, crash: bool, outcome: str) -> None:
    client = manager.client()
    facts = client.do("session", ack="transacted")
    session = facts["session"]
    news = {"session": session, "destination": "news", "kind": "topic", "create": True}
    credit = {"messages": 10, "bytes": 1 << 20}
    lasting = client.do("consume", **news, durable="sub", **credit)["consumer"]
    passing = client.do("consume", **news, **credit)["consumer"]
    producer = client.do("produce", **news)["producer"]
    client.store(producer, 1, b"read", ids=facts["ids"][0])
    manager.turn()
    assert client.bodies(lasting) == client.bodies(passing) == [b"read"]
    client.settle(lasting, (1, 2, ACKNOWLEDGE), transaction=1)
    client.settle(passing, (1, 2, ACKNOWLEDGE), transaction=1)
    client.store(producer, 1, b"new", ids=facts["ids"][0] + 1, transaction=1)
    about = {"id": ELSEWHERE, "decider": "z", "groups": ["a", "z"], "sends": {str(producer): 1}}
    assert client.do("prepare", session=session, transaction=1, **about) == {"ready": True}
    client.gone()
    if crash:
        manager.crash()
        again = manager.client()
        session = again.do("session")["session"]
        again.do("consume", **{**news, "session": session}, **credit)  # may get the number of the one that was lost
    manager.word(outcome)
    again = manager.client()
    session = again.do("session")["session"]
    consumer = again.do("consume", **{**news, "session": session}, durable="sub", **credit)["consumer"]
    manager.turn()
    assert again.bodies(consumer) == ([b"new"] if outcome == "committed" else [b"read"])
    assert manager.core.faults == 0


@pytest.mark.requirement("CLU-166")
@pytest.mark.parametrize("outcome", ["committed", "rolled-back"])
def test_very_large_messages_keep_their_files(manager: Lone, outcome: str) -> None:
    sender = Sender(manager)
    body = bytes(5000)
    sender.begin(1)
    sender.upload(1, body)
    sender.store(1, 1, body, transaction=1)
    about = {"id": ELSEWHERE, "decider": "z", "groups": ["a", "z"], "sends": {str(sender.producer): 1}}
    assert sender.client.do("prepare", session=sender.session, transaction=1, **about) == {"ready": True}
    sender.client.gone()
    manager.later(60_000)
    assert len(files(manager)) == 1
    manager.crash()
    manager.later(60_000)
    assert len(files(manager)) == 1
    manager.word(outcome)
    manager.turn()
    assert len(files(manager)) == (1 if outcome == "committed" else 0)
    manager.crash()
    assert len(files(manager)) == (1 if outcome == "committed" else 0)


def test_the_journal_keeps_what_it_hides(manager: Lone) -> None:
    prepare(begun(manager))
    index = next(record.index for record in manager.journal.records if record.kind == records.HIDDEN)
    assert manager.core.transactions.oldest() is None  # everything else may be taken back
    assert manager.core.needs(index, index)
    assert not manager.core.needs(index + 1, index + 100)
    manager.word("committed")
    assert not manager.core.needs(index, index)


@pytest.mark.requirement("CLU-138", "CLU-167")
@pytest.mark.parametrize("outcome", ["", "committed", "rolled-back"])
def test_a_backup_that_was_told_the_records_leads_on(manager: Lone, tmp_path: Path, outcome: str) -> None:
    prepare(begun(manager, b"one", b"two"))
    if outcome:
        manager.word(outcome)
    core = Core(manager.journal, manager, manager.options, SideFiles(tmp_path / "backup"), now_ms=manager.now_ms)
    recovery = Recovery(core)
    replica = Replica(core, recovery)
    for record in manager.journal.records:
        replica.apply(record.kind, record.index, record.place, record.body)
    assert core.decisions.snapshot() == manager.core.decisions.snapshot()
    replica.tidy(manager.now_ms)
    replica.tidy(manager.now_ms)
    for name in ("a", "b"):
        mine, theirs = core.find(name), manager.core.find(name)
        assert mine is not None
        assert theirs is not None
        assert mine.snapshot() == theirs.snapshot(), name
    replica.lead()
    recovery.finish()
    source = core.find("a")
    assert source is not None
    assert (len(core.prepared), source.cursors[0].taken.total) == ((1, 1) if not outcome else (0, 0))
    assert source.cursors[0].waiting() == {"": 1, "committed": 1, "rolled-back": 2}[outcome]


def test_what_is_prepared_is_listed(manager: Lone) -> None:
    teller = begun(manager)
    prepare(teller)
    results: list[dict[str, Any]] = []
    manager.core.admin.execute("transactions", {}, results.append, user="")
    manager.turn()
    (shown,) = results[0]["ok"]["transactions"]
    assert shown["session"] == teller.facts["id"]
    assert (shown["state"], shown["id"], shown["decider"], shown["messages"]) == ("prepared", ELSEWHERE, "z", 1)
    assert shown["destinations"] == ["a", "b"]
