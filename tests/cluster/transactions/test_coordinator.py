"""The agent's side of a commit across groups: who is told what, in which order, whatever links and clients do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.client_manager.coordinator import (
    COMMIT_PENDING,
    COMMIT_UNKNOWN,
    PARTS_MAX,
    Answer,
    Coordinator,
    Effect,
    Error,
    Part,
    Send,
    parts_of,
    transaction_id,
)
from fairlead.errors import LocalProtocolError, SessionLost

CLIENT = 5


def part(group: str, lowest: str) -> Part:
    return Part(group, 1, (group.encode() * 20).hex(), 3, {"1": 2}, lowest)


A, B, C = part("a", "02"), part("b", "01"), part("c", "03")


class Agent:
    """Keeps what is asked until the test answers it."""

    def __init__(self, *groups: str) -> None:
        self.coordinator = Coordinator()
        self.now_s = 0.0
        self.open: dict[str, Send] = {}
        self.sent: list[tuple[str, str]] = []
        self.told: list[Any] = []
        for group in groups:
            self.take(self.coordinator.back(group, 0.0))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(group, connection, command, _):
                    assert (connection is None) == (command["do"] in ("final", "abandon"))
                    self.open[group] = effect
                    self.sent.append((command["do"], group))
                case Answer(connection, number, facts):
                    assert (connection, number) == (CLIENT, 1)
                    self.told.append(facts)
                case Error(connection, number, code, text):
                    assert (connection, number) == (CLIENT, 1)
                    self.told.append(code)
                    if code in (COMMIT_UNKNOWN, COMMIT_PENDING):
                        assert transaction_id(B) in text

    def begin(self, *parts: Part) -> None:
        self.take(self.coordinator.begin(CLIENT, 1, parts, self.now_s))

    def ready(self, *groups: str) -> None:
        for group in groups:
            self.says(group, ready=True)

    def says(self, group: str, **facts: Any) -> None:
        self.take(self.coordinator.answer(self.open.pop(group).tag, facts, self.now_s))

    def refuses(self, group: str, code: str = "transaction-aborted") -> None:
        self.take(self.coordinator.refused(self.open.pop(group).tag, code, "why", self.now_s))

    def lost(self, group: str) -> None:
        self.open.pop(group, None)
        self.take(self.coordinator.lost(group, self.now_s))

    def back(self, group: str) -> None:
        self.take(self.coordinator.back(group, self.now_s))

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.coordinator.tick(self.now_s))


@pytest.mark.requirement("CLU-163", "CLU-169")
def test_the_decider_is_the_part_with_the_lowest_destination_and_commits_first() -> None:
    agent = Agent("a", "b", "c")
    agent.begin(A, B, C)
    about = {"id": transaction_id(B), "decider": "b", "groups": ["a", "b", "c"]}
    assert agent.open["a"].command == {"do": "prepare", "session": 1, "transaction": 3, "sends": {"1": 2}, **about}
    agent.ready("a", "c")
    assert agent.sent == [("prepare", "a"), ("prepare", "b"), ("prepare", "c")]
    agent.ready("b")
    assert agent.sent[3:] == [("final", "b")]
    assert agent.open["b"].command == {"do": "final", "id": transaction_id(B), "decider": "b"}
    agent.says("b", outcome="committed")
    assert agent.sent[4:] == [("final", "a"), ("final", "c")]
    agent.says("a", outcome="committed")
    assert agent.told == []  # not before all of them (CLU-163)
    agent.says("c", outcome="unknown")  # it was carried out, and is forgotten there
    assert agent.told == [{"outcome": "committed"}]
    assert (len(agent.coordinator), agent.coordinator.next_s) == (0, None)


@pytest.mark.requirement("CLU-164")
def test_a_refusal_is_told_when_the_decider_has_recorded_it() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.refuses("a")
    assert agent.sent[2:] == [("abandon", "a"), ("abandon", "b")]
    assert agent.told == []
    agent.says("b", outcome="rolled-back")
    assert agent.told == ["transaction-aborted"]
    agent.says("a", outcome="rolled-back")
    assert len(agent.coordinator) == 0


@pytest.mark.requirement("CLU-164")
def test_who_is_not_ready_in_time_ends_it_and_a_silent_decider_leaves_it_unknown() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a")
    agent.later(29.9)
    assert len(agent.sent) == 2
    agent.later(0.1)
    assert agent.sent[2:] == [("abandon", "a"), ("abandon", "b")]
    agent.later(5.0)
    assert agent.told == [COMMIT_UNKNOWN]
    agent.lost("b")
    agent.back("b")
    assert agent.sent[-1] == ("abandon", "b")  # to the new primary, too
    agent.says("b", outcome="rolled-back")
    agent.later(100.0)
    assert (agent.told, len(agent.coordinator)) == ([COMMIT_UNKNOWN], 0)


@pytest.mark.requirement("CLU-168")
def test_after_final_there_is_only_repeating_it() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a", "b")
    for _ in range(3):
        agent.lost("b")
        agent.back("b")
    agent.refuses("b", "store-full")
    agent.later(5.0)
    assert agent.sent[2:] == [("final", "b")] * 5
    agent.says("b", outcome="committed")
    agent.lost("a")
    agent.later(30.0)
    assert agent.told == [COMMIT_PENDING]
    agent.back("a")
    assert agent.sent[-1] == ("final", "a")
    agent.says("a", outcome="committed")
    assert (agent.told, len(agent.coordinator)) == ([COMMIT_PENDING], 0)
    assert "abandon" not in {do for do, _ in agent.sent}


@pytest.mark.requirement("CLU-168")
def test_it_failed_only_if_the_decider_says_so() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a", "b")
    agent.later(30.0)
    assert agent.told == [COMMIT_UNKNOWN]
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a", "b")
    agent.says("b", outcome="rolled-back")
    assert agent.told == ["transaction-aborted"]


@pytest.mark.requirement("CLU-166")
def test_a_group_lost_after_it_was_ready_ends_nothing() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a")
    agent.lost("a")
    agent.ready("b")
    agent.says("b", outcome="committed")
    agent.back("a")
    agent.says("a", outcome="committed")
    assert agent.told == [{"outcome": "committed"}]


@pytest.mark.requirement("CLU-164")
def test_a_group_that_is_not_there_or_is_lost_before_it_is_ready() -> None:
    agent = Agent("b")
    agent.begin(A, B)
    assert agent.sent == [("prepare", "b"), ("abandon", "b")]
    agent.says("b", outcome="rolled-back")
    assert agent.told == ["transaction-aborted"]
    agent = Agent("a")
    agent.begin(A, B)
    assert agent.told == ["transaction-aborted"]  # the decider never heard of it, so nobody can commit it
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.lost("b")
    assert (agent.told, agent.sent[2:]) == ([], [("abandon", "a")])
    agent.back("b")
    agent.says("b", outcome="rolled-back")
    assert agent.told == ["transaction-aborted"]


def test_a_client_that_leaves_is_told_nothing() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a")
    agent.take(agent.coordinator.gone(CLIENT, agent.now_s))
    assert agent.sent[2:] == [("abandon", "a"), ("abandon", "b")]
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.ready("a", "b")
    agent.take(agent.coordinator.gone(CLIENT, agent.now_s))
    agent.says("b", outcome="committed")
    agent.says("a", outcome="committed")
    assert (agent.told, agent.sent[-1], len(agent.coordinator)) == ([], ("final", "a"), 0)


@pytest.mark.requirement("CLU-161")
def test_a_single_part_is_a_plain_commit() -> None:
    agent = Agent("b")
    agent.begin(B)
    assert agent.open["b"].command == {"do": "commit", "session": 1, "transaction": 3, "sends": {"1": 2}}
    agent.says("b")
    assert agent.told == [{}]
    agent.begin(B)
    agent.refuses("b", "stale")
    agent.begin(B)
    agent.lost("b")
    agent.begin(B)
    assert agent.told == [{}, "stale", COMMIT_UNKNOWN, "transaction-aborted"]
    assert len(agent.coordinator) == 0


@pytest.mark.requirement("CLU-170")
def test_the_same_commit_twice_is_one() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    agent.begin(A, B)
    agent.take(agent.coordinator.begin(CLIENT, 1, (A, B), 0.0))
    assert len(agent.sent) == 2
    (other,) = agent.coordinator.begin("somebody else", 9, (A, B), 0.0)
    assert isinstance(other, Error)
    assert other.connection == "somebody else"
    agent.ready("a", "b")
    agent.says("b", outcome="committed")
    agent.says("a", outcome="committed")
    assert agent.told == [{"outcome": "committed"}] * 3
    agent.begin(A, B)
    agent.says("a", outcome="committed")
    agent.says("b", outcome="committed")  # both say in phase one that they have it
    agent.says("a", outcome="committed")
    assert agent.told[3:] == [{"outcome": "committed"}]


def test_late_answers_change_nothing() -> None:
    agent = Agent("a", "b")
    agent.begin(A, B)
    late = agent.open["a"].tag
    agent.lost("a")
    assert agent.coordinator.answer(late, {"ready": True}, 0.0) == []
    assert agent.coordinator.refused(late, "x", "", 0.0) == []
    assert agent.coordinator.answer(12345, {"ready": True}, 0.0) == []


@pytest.mark.parametrize(
    "parts",
    [
        None, [], "x", [1], [{}], [{"session": 1}], [{"session": 1, "transaction": 0}],
        [{"session": -1, "transaction": 1}], [{"session": 1, "transaction": 1, "sends": {"1": -1}}],
        [{"session": 1, "transaction": 1, "lowest": "XY"}], [{"session": 1, "transaction": 1}] * 2,
        [{"session": number, "transaction": 1} for number in range(PARTS_MAX + 1)],
    ],
)  # fmt: skip
def test_what_is_no_commit_is_refused(parts: Any) -> None:
    with pytest.raises(LocalProtocolError):
        parts_of({"do": "commit", "parts": parts}, lambda _: "a", lambda _: "00" * 20)


def test_parts_are_read_by_what_the_agent_knows() -> None:
    request = {
        "do": "commit",
        "parts": [{"session": 1, "transaction": 2, "sends": {"4": 1}, "lowest": "0a", "id": "x"}],
    }
    (found,) = parts_of(request, lambda number: f"group {number}", lambda number: f"{number:040x}")
    assert found == Part("group 1", 1, f"{1:040x}", 2, {"4": 1}, "0a")
    with pytest.raises(SessionLost):
        parts_of(request, lambda _: "a", lambda _: None)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("rcukflbgto"), st.sampled_from("abc")), max_size=40))
def test_whatever_happens_the_client_is_told_once_and_the_truth(events: list[tuple[str, str]]) -> None:
    agent = Agent("a", "b", "c")
    agent.begin(A, B, C)
    decided: str = ""
    final_sent = is_gone = False
    for event, group in events:
        send = agent.open.get(group)
        match event:
            case "r" | "c" | "u" | "k" if send is not None:
                do = send.command["do"]
                if do == "prepare":
                    agent.ready(group) if event in "rcu" else agent.refuses(group)
                elif do == "final" and group == "b":
                    decided = decided or ("rolled-back" if event == "k" else "committed")
                    agent.says(group, outcome=decided)
                elif do == "abandon" and group == "b":
                    decided = decided or "rolled-back"
                    agent.says(group, outcome=decided)
                else:
                    agent.says(group, outcome=decided or "rolled-back")
            case "f" if send is not None:
                agent.refuses(group, "internal")
            case "l":
                agent.lost(group)
            case "b":
                agent.back(group)
            case "g":
                agent.take(agent.coordinator.gone(CLIENT, agent.now_s))
                is_gone = True
            case "t":
                agent.later(7.0)
            case "o":
                agent.later(31.0)
            case _:
                pass
        final_sent = final_sent or ("final", "b") in agent.sent
        assert final_sent or "final" not in {do for do, _ in agent.sent}  # the decider first
        assert len(agent.told) <= (0 if is_gone and not agent.told else 1)
        if agent.told and isinstance(agent.told[0], dict):
            assert decided == "committed"
        if agent.told == ["transaction-aborted"]:
            assert decided == "rolled-back"
    for _ in range(20):
        agent.later(10.0)
    assert (len(agent.coordinator), agent.coordinator.next_s) == (0, None)
    assert is_gone or len(agent.told) == 1
