"""Sessions: opening, resuming, losing and ending them, over the real core."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import records
from fairlead.wire.durable import ACKNOWLEDGE, KIND_DELIVER, STORED_AGAIN, STORED_NEW, STORED_REFUSED
from tests.cluster.manager_rig import Client, Manager, Refused


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


def opened(client: Client, **how: Any) -> dict[str, Any]:
    return client.do("session", **how)


def resume(session: dict[str, Any], incarnation: int = 2) -> dict[str, Any]:
    return {"id": session["id"], "secret": session["secret"], "incarnation": incarnation}


def producing(client: Client, session: dict[str, Any], name: str = "q", **how: Any) -> int:
    return int(client.do("produce", session=session["session"], destination=name, create=True, **how)["producer"])


def consuming(client: Client, session: dict[str, Any], name: str = "q", **how: Any) -> int:
    facts = {"messages": 100, "bytes": 1 << 20, "create": True, **how}
    return int(client.do("consume", session=session["session"], destination=name, **facts)["consumer"])


def test_a_session_begins_with_everything_it_needs(manager: Manager) -> None:
    answer = opened(manager.client())
    assert answer["session"] == 1
    assert answer["incarnation"] == 1
    assert len(bytes.fromhex(answer["id"])) == 20
    assert answer["ids"][1] >= 1_000_000
    assert answer["accepted"] == {}
    assert answer["window_messages"] > 0


@pytest.mark.requirement("CLU-116")
def test_nothing_is_told_before_it_is_safe(manager: Manager) -> None:
    client = manager.client()
    manager.is_holding = True
    number = client.ask("session")
    manager.turn()
    assert client.answer(number) is None
    manager.is_holding = False
    manager.turn()
    assert client.answer(number) is not None


@pytest.mark.requirement("CLU-60", "CLU-70")
def test_many_sessions_of_one_connection_leave_nothing_behind(manager: Manager) -> None:
    client = manager.client()
    producing(client, opened(client))
    tasks = len(manager.core.tasks)
    sessions = [opened(client) for _ in range(50)]
    assert len({one["id"] for one in sessions}) == 50
    for one in sessions:
        producing(client, one)
        client.do("end-session", session=one["session"])
    assert len(manager.core.sessions.by_id) == 1
    assert len(manager.core.tasks) == tasks


@pytest.mark.requirement("CLU-92")
def test_blocks_of_ids_never_overlap_and_foreign_ids_are_refused(manager: Manager) -> None:
    client = manager.client()
    first, second = opened(client), opened(client)
    third = client.do("ids", session=first["session"])
    blocks = sorted((one["ids"][0], one["ids"][0] + one["ids"][1]) for one in (first, second, third))
    assert all(low[1] <= high[0] for low, high in pairwise(blocks))
    producer = producing(client, first)
    client.store(producer, 1, b"a", ids=second["ids"][0])
    manager.turn()
    assert [status for _, _, status, _ in client.stored()] == [STORED_REFUSED]
    client.store(producer, 2, b"a", ids=first["ids"][0])  # the older block is still good
    manager.turn()
    assert client.stored()[-1][:3] == (2, 1, STORED_NEW)


@pytest.mark.requirement("CLU-118", "CLU-122", "CLU-123")
def test_a_resumed_session_learns_what_was_accepted_and_repeats_are_harmless(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    producer = producing(client, session)
    client.store(producer, 1, b"a", b"b", ids=session["ids"][0])
    manager.turn()
    client.gone()
    other = manager.client()
    again = opened(other, resume=resume(session))
    assert again["id"] == session["id"]
    assert again["accepted"] == {"q": 2}
    assert again["incarnation"] == 2
    producer = producing(other, again)
    other.store(producer, 1, b"a", b"b", ids=session["ids"][0])
    other.store(producer, 3, b"c", ids=again["ids"][0])
    manager.turn()
    assert [(first, count, status) for first, count, status, _ in other.stored()] == [
        (1, 2, STORED_AGAIN),
        (3, 1, STORED_NEW),
    ]
    consumer = consuming(other, again)
    assert other.bodies(consumer) == [b"a", b"b", b"c"]


@pytest.mark.requirement("CLU-124")
def test_only_the_newest_life_counts(manager: Manager) -> None:
    old, new = manager.client(), manager.client()
    session = opened(old)
    producer = producing(old, session)
    again = opened(new, resume=resume(session, 5))
    assert again["incarnation"] == 5
    old.store(producer, 1, b"late", ids=session["ids"][0])
    manager.turn()
    assert manager.core.find("q").depth == 0
    for incarnation in (1, 5):
        with pytest.raises(Refused) as refused:
            opened(manager.client(), resume=resume(session, incarnation))
        assert refused.value.code == "session-lost"
    with pytest.raises(Refused):
        old.do("produce", session=session["session"], destination="q")


@pytest.mark.requirement("CLU-124")
def test_the_secret_is_needed(manager: Manager) -> None:
    session = opened(manager.client())
    for wrong in (
        resume(session) | {"secret": "00" * 32},
        resume(session) | {"secret": "no hex"},
        resume(session) | {"id": "00" * 20},
    ):
        with pytest.raises(Refused) as refused:
            opened(manager.client(), resume=wrong)
        assert refused.value.code == "session-lost"


@pytest.mark.requirement("CLU-124")
def test_incarnation_and_accepted_numbers_survive_a_crash_with_and_without_checkpoint(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    again = opened(manager.client(), resume=resume(session, 7))
    client = manager.client()
    third = opened(client, resume=resume(session, 8))
    client.store(producing(client, third), 1, b"a", b"b", b"c", ids=third["ids"][0])
    manager.turn()
    for with_checkpoint in (False, True):
        if with_checkpoint:
            manager.checkpoint()
        manager.crash()
        with pytest.raises(Refused):
            opened(manager.client(), resume=resume(again, 8))
        session_now = next(iter(manager.core.sessions.by_id.values()))
        assert session_now.accepted == {manager.core.find("q").number: 3}
        assert session_now.has_ids(third["ids"][0], third["ids"][1])
    found = opened(manager.client(), resume=resume(session, 9))
    assert found["accepted"] == {"q": 3}
    assert found["ids"][0] >= third["ids"][0] + third["ids"][1]


@pytest.mark.requirement("CLU-125")
def test_what_a_lost_session_held_is_available_again(manager: Manager) -> None:
    client, other = manager.client(), manager.client()
    session = opened(client)
    client.store(producing(client, session), 1, b"a", b"b", ids=session["ids"][0])
    consumer = consuming(client, session)
    assert client.bodies(consumer) == [b"a", b"b"]
    client.settle(consumer, (client.delivered(consumer)[0].order, client.delivered(consumer)[0].order + 1, ACKNOWLEDGE))
    client.gone()  # behind the acknowledgement, which counts
    consumer = consuming(other, opened(other))
    assert other.bodies(consumer) == [b"b"]
    assert other.delivered(consumer)[0].redelivered
    assert manager.core.destinations[manager.core.find("q").number].facts()["consumers"] == 1


@pytest.mark.requirement("CLU-118")
def test_a_session_nobody_resumes_ends(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    client.gone()
    manager.later(9_000)
    assert manager.core.sessions.by_id
    manager.later(2_000)
    assert not manager.core.sessions.by_id
    with pytest.raises(Refused):
        opened(manager.client(), resume=resume(session))
    manager.crash()
    assert not manager.core.sessions.by_id


@pytest.mark.requirement("CLU-29")
def test_a_temporary_queue_survives_a_resume_and_goes_with_its_session(manager: Manager) -> None:
    client, other = manager.client(), manager.client()
    session = opened(client)
    name = client.do("temporary", session=session["session"], kind="queue")["name"]
    foreign = opened(other)
    producer = producing(other, foreign, name)
    other.store(producer, 1, b"hello", ids=foreign["ids"][0])
    with pytest.raises(Refused) as refused:
        consuming(other, foreign, name)
    assert refused.value.code == "not-allowed"
    client.gone()
    manager.crash()
    client = manager.client()
    again = opened(client, resume=resume(session))
    consumer = consuming(client, again, name)
    assert client.bodies(consumer) == [b"hello"]
    client.gone()
    manager.later(11_000)
    assert manager.core.find(name) is None


def test_producing_twice_is_one_producer_and_kinds_are_checked(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    assert producing(client, session) == producing(client, session)
    for facts, code in (
        ({"destination": "q", "kind": "topic"}, "wrong-kind"),
        ({"destination": "nowhere"}, "no-destination"),
        ({"destination": "_DMQ"}, "not-allowed"),
        ({"destination": "_x", "create": True}, "not-allowed"),
        ({"destination": "a b", "create": True}, "bad-name"),
        ({"destination": "new", "create": True, "may": ["send"]}, "not-allowed"),
        ({"destination": "new", "create": True, "parameters": {"max_mesages": 1}}, "bad-parameter"),
        ({"destination": 5}, "bad-request"),
    ):
        with pytest.raises(Refused) as refused:
            client.do("produce", session=session["session"], **facts)
        assert refused.value.code == code, facts


def test_hostile_commands_are_answered(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    for do in (*manager.core.sessions.commands, "nonsense", 7, None, [1]):
        for fields in ({}, {"session": -1}, {"session": "x"}, {"session": session["session"], "handle": 99, "name": 1}):
            number = client.ask(do, **fields)  # type: ignore[arg-type]
            manager.turn()
            try:
                assert client.answer(number) is not None
            except Refused:
                pass
    assert manager.core.faults == 0


@pytest.mark.requirement("CLU-201")
def test_a_bad_selector_is_refused_when_the_consumer_is_opened(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    with pytest.raises(Refused) as refused:
        consuming(client, session, selector="price >")
    assert refused.value.code == "bad-selector"
    assert manager.core.find("q") is None


def test_stop_and_start(manager: Manager) -> None:
    client = manager.client()
    session = opened(client)
    producer = producing(client, session)
    client.do("flow", session=session["session"], stop=True)
    consumer = consuming(client, session)
    client.store(producer, 1, b"a", ids=session["ids"][0])
    manager.turn()
    assert client.bodies(consumer) == []
    client.do("flow", session=session["session"], stop=False)
    assert client.bodies(consumer) == [b"a"]
    client.do("flow", handle=consumer, stop=True)
    client.store(producer, 2, b"b", ids=session["ids"][0] + 1)
    manager.turn()
    assert client.bodies(consumer) == [b"a"]


class TestDurableSubscriptions:
    def subscribe(self, client: Client, session: dict[str, Any], name: str = "t", **how: Any) -> int:
        return consuming(client, session, name, kind="topic", **{"durable": "audit", **how})

    def publish(self, manager: Manager, name: str, *bodies: bytes) -> None:
        client = manager.client()
        session = opened(client)
        client.store(producing(client, session, name, kind="topic"), 1, *bodies, ids=session["ids"][0])
        manager.turn()

    def test_it_keeps_what_comes_while_nobody_is_there(self, manager: Manager) -> None:
        client = manager.client("ann")
        session = opened(client)
        consumer = self.subscribe(client, session)
        client.do("end", handle=consumer)
        self.publish(manager, "t", b"one", b"two")
        manager.crash()
        client = manager.client("ann")
        consumer = self.subscribe(client, opened(client))
        assert client.bodies(consumer) == [b"one", b"two"]

    def test_one_at_a_time_unless_shared(self, manager: Manager) -> None:
        client, other = manager.client("ann"), manager.client("ann")
        self.subscribe(client, opened(client))
        with pytest.raises(Refused) as refused:
            self.subscribe(other, opened(other))
        assert refused.value.code == "duplicate-subscription"
        self.subscribe(client, opened(client), durable="together", shared=True)
        self.subscribe(other, opened(other), durable="together", shared=True)
        with pytest.raises(Refused):
            client.do("unsubscribe", name="together")

    def test_of_another_user_it_is_another_one(self, manager: Manager) -> None:
        ann, bob = manager.client("ann"), manager.client("bob")
        one = self.subscribe(ann, opened(ann))
        other = self.subscribe(bob, opened(bob))
        self.publish(manager, "t", b"x")
        assert ann.bodies(one) == bob.bodies(other) == [b"x"]

    def test_another_selector_replaces_it(self, manager: Manager) -> None:
        client = manager.client()
        session = opened(client)
        consumer = self.subscribe(client, session)
        client.do("end", handle=consumer)
        self.publish(manager, "t", b"old")
        consumer = self.subscribe(client, session, selector="a = 1")
        assert client.bodies(consumer) == []
        assert len(manager.core.sessions.subscriptions.listed()) == 1

    def test_unsubscribing_forgets_it(self, manager: Manager) -> None:
        client = manager.client()
        session = opened(client)
        consumer = self.subscribe(client, session)
        client.do("end", handle=consumer)
        client.do("unsubscribe", name="audit")
        with pytest.raises(Refused):
            client.do("unsubscribe", name="audit")
        self.publish(manager, "t", b"x")
        manager.crash()
        assert manager.core.sessions.subscriptions.listed() == []


class TestPatterns:
    @pytest.mark.requirement("CLU-173", "CLU-174", "CLU-175")
    def test_topics_made_later_are_taken_in(self, manager: Manager) -> None:
        client, other = manager.client(), manager.client()
        session = opened(client)
        producing(client, session, "news.a", kind="topic")
        answer = client.do(
            "consume", session=session["session"], destination="news.*", kind="topic", messages=10, bytes=1 << 20
        )
        assert [one["destination"] for one in answer["joined"]] == ["news.a"]
        sender = opened(other)
        producer = producing(other, sender, "news.b", kind="topic")
        other.store(producer, 1, b"first", ids=sender["ids"][0])
        manager.turn()
        (joined,) = client.notices("joined")
        assert joined["destination"] == "news.b"
        assert client.bodies(joined["handle"]) == [b"first"]
        client.do("end", handle=answer["consumer"])
        other.store(producer, 2, b"second", ids=sender["ids"][0] + 1)
        manager.turn()
        assert client.bodies(joined["handle"]) == [b"first"]

    @pytest.mark.requirement("CLU-175")
    def test_underscore_names_need_an_underscore(self, manager: Manager) -> None:
        client = manager.client()
        session = opened(client)
        for pattern in (">", "glob:*", "regex:.*"):
            answer = client.do("consume", session=session["session"], destination=pattern, kind="topic")
            assert answer["joined"] == []
        with pytest.raises(Refused):
            client.do("consume", session=session["session"], destination="regex:((", kind="topic")

    @pytest.mark.requirement("CLU-175")
    def test_a_durable_pattern_is_kept_and_grows_while_nobody_is_there(self, manager: Manager) -> None:
        client = manager.client("ann")
        session = opened(client)
        how = {"destination": "news.>", "kind": "topic", "durable": "all", "messages": 10, "bytes": 1 << 20}
        assert client.do("consume", session=session["session"], **how)["joined"] == []
        client.gone()
        for with_checkpoint in (False, True):
            if with_checkpoint:
                manager.checkpoint()
            manager.crash()
        other = manager.client()
        sender = opened(other)
        other.store(producing(other, sender, "news.x", kind="topic"), 1, b"kept", ids=sender["ids"][0])
        manager.turn()
        client = manager.client("ann")
        (joined,) = client.do("consume", session=opened(client)["session"], **how)["joined"]
        assert client.bodies(joined["handle"]) == [b"kept"]

    def test_nothing_is_delivered_before_the_answer_that_names_its_handle(self, manager: Manager) -> None:
        how = {"destination": "news.>", "kind": "topic", "durable": "all", "messages": 10, "bytes": 1 << 20}
        other = manager.client()
        sender = opened(other)
        producer = producing(other, sender, "news.a", kind="topic")
        client = manager.client("ann")
        client.do("consume", session=opened(client)["session"], **how)
        other.store(producer, 1, b"seen", ids=sender["ids"][0])
        manager.turn()
        client.gone()
        client = manager.client("ann")
        session = opened(client)
        manager.is_holding = True
        other.store(producer, 2, b"not safe", ids=sender["ids"][0] + 1)  # the answer has to wait for that
        number = client.ask("consume", session=session["session"], **how)
        manager.turn()
        assert client.answer(number) is None
        assert client.of_kind(KIND_DELIVER) == []
        manager.is_holding = False
        manager.turn()
        answer = client.answer(number)
        assert answer is not None
        (joined,) = answer["joined"]
        assert client.bodies(joined["handle"]) == [b"seen", b"not safe"]
        kinds = [frame.kind for frame in client.received]
        assert kinds.index(KIND_DELIVER) > [frame.number for frame in client.received].index(number)

    def test_a_topic_made_before_the_answer_is_in_it(self, manager: Manager) -> None:
        client, other = manager.client("ann"), manager.client()
        session, sender = opened(client), opened(other)
        producing(other, sender, "news.a", kind="topic")
        manager.is_holding = True
        how = {"destination": "news.*", "kind": "topic", "durable": "all"}
        number = client.ask("consume", session=session["session"], **how)
        other.ask("produce", session=sender["session"], destination="news.b", kind="topic", create=True)
        manager.turn()
        made = [record.index for record in manager.journal.records if record.kind == records.CREATE]
        manager.core.on_safe(made[-1])  # the new topic, and not yet what the answer waits for
        manager.turn()
        assert client.answer(number) is None
        assert client.notices("joined") == []
        manager.is_holding = False
        manager.turn()
        answer = client.answer(number)
        assert answer is not None
        assert {one["destination"] for one in answer["joined"]} == {"news.a", "news.b"}
        assert client.notices("joined") == []

    def test_a_pattern_that_another_consumer_has_is_refused(self, manager: Manager) -> None:
        how = {"destination": "news.>", "kind": "topic", "durable": "all", "messages": 10, "bytes": 1 << 20}
        first, second = manager.client("ann"), manager.client("ann")
        sender = opened(first)
        producer = producing(first, sender, "news.a", kind="topic")
        first.do("consume", session=sender["session"], **how)
        session = opened(second)
        with pytest.raises(Refused) as refused:
            second.do("consume", session=session["session"], **how)
        assert refused.value.code == "duplicate-subscription"
        first.gone()
        (joined,) = second.do("consume", session=session["session"], **how)["joined"]
        other = manager.client()
        sender = opened(other)
        producer = producing(other, sender, "news.a", kind="topic")
        other.store(producer, 1, b"x", ids=sender["ids"][0])
        manager.turn()
        assert second.bodies(joined["handle"]) == [b"x"]


@pytest.mark.requirement("CLU-118", "CLU-119", "CLU-123")
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.sampled_from(["send", "quiet", "lose", "crash", "torn", "checkpoint", "steal"]), max_size=20))
def test_whatever_is_lost_every_send_is_stored_once_and_in_order(steps: list[str]) -> None:
    """A client that resumes, learns what was accepted and sends the rest again: the law of the durable road."""
    with tempfile.TemporaryDirectory() as folder:
        manager = Manager(Path(folder))
        client = manager.client()
        session = opened(client)
        producer = producing(client, session)
        sent, incarnation = 0, 1

        def body(number: int) -> bytes:
            return b"%d" % number

        def again() -> None:
            nonlocal client, producer, incarnation, ids
            incarnation += 1
            client = manager.client()
            facts = opened(client, resume=resume(session, incarnation))
            ids = facts["ids"][0]
            producer = producing(client, facts)
            accepted = facts["accepted"].get("q", 0)
            for number in range(accepted + 1, sent + 1):
                client.store(producer, number, body(number), ids=ids + number)

        ids = session["ids"][0]
        for step in steps:
            if step == "send":
                sent += 1
                client.store(producer, sent, body(sent), ids=ids + sent)
            elif step == "quiet":
                manager.turn()
            elif step == "lose":
                client.gone()
                again()
            elif step == "steal":  # the old connection is slow, not dead
                again()
            elif step == "torn":
                manager.is_holding = True
                manager.turn()
                manager.crash()
                again()
            elif step == "crash":
                manager.crash()
                again()
            elif step == "checkpoint":
                manager.checkpoint()
        again()
        manager.turn()
        queue = manager.core.find("q")
        assert queue is not None
        assert [seen.body for seen in queue.browse(0, 1000).messages] == [body(n) for n in range(1, sent + 1)]
