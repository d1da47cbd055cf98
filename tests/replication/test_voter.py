"""One vote: a promise is given once and upwards, a record is never forgotten, a lease keeps others away."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.notes import VoterNotes
from fairlead.cluster.replication.record import ControlRecord
from fairlead.cluster.replication.settings import Settings
from fairlead.cluster.replication.voter import Voter

VOTES = frozenset({"a1.0", "a2.0", "c1.0"})
FOUNDING = ControlRecord(0, 0, "", frozenset(), VOTES, 2)
SETTINGS = Settings()
LEASE_S = SETTINGS.lease_s + SETTINGS.margin_s


def voter(notes: VoterNotes | None = None, now_s: float = 100.0) -> Voter:
    return Voter("a", "c1.0", notes or VoterNotes.fresh(FOUNDING), SETTINGS, now_s, founding=FOUNDING)


def record(epoch: int, version: int = 0, primary: str = "a1.0") -> ControlRecord:
    return ControlRecord(epoch, version, primary, frozenset({"a1.0", "a2.0"}), VOTES, 2)


def ask(vote: Voter, message: m.Message, now_s: float = 100.0, sender: str = "a1") -> list[m.Message]:
    vote.on_message(sender, message, now_s)
    out, vote.out = vote.out, []
    assert all((send.node, send.port) == (sender, "member:a") for send in out)
    return [send.message for send in out]


@pytest.mark.requirement("CLU-144")
def test_an_epoch_is_promised_to_one_and_never_a_lower_one() -> None:
    vote = voter()
    assert ask(vote, m.PromiseAsk(5, "a1.0")) == [m.Promised("c1.0", 5, FOUNDING)]
    assert vote.notes_dirty
    assert (vote.notes.promised, vote.notes.promised_to) == (5, "a1.0")
    vote.notes_dirty = False
    assert ask(vote, m.PromiseAsk(5, "a1.0")) == [m.Promised("c1.0", 5, FOUNDING)]
    assert not vote.notes_dirty, "the same promise again needs no write"
    assert ask(vote, m.PromiseAsk(5, "a2.0")) == [m.Refused("c1.0", 5)]
    assert ask(vote, m.PromiseAsk(4, "a2.0")) == [m.Refused("c1.0", 5)]
    assert ask(vote, m.PromiseAsk(6, "a2.0")) == [m.Promised("c1.0", 6, FOUNDING)]
    assert ask(vote, m.RecordAsk(record(5), 1.0, 1)) == [m.Refused("c1.0", 6)]


@pytest.mark.requirement("CLU-144")
def test_the_newest_record_is_told_to_the_next_candidate() -> None:
    vote = voter()
    assert ask(vote, m.RecordAsk(record(5, 3), 1.5, 1)) == [m.Recorded("c1.0", 5, 3, 1.5)]
    assert vote.notes_dirty
    assert ask(vote, m.RecordAsk(record(5, 2), 1.6, 1)) == [m.Refused("c1.0", 5)], "an older version comes late"
    assert ask(vote, m.PromiseAsk(6, "a2.0"), 101 + LEASE_S) == [m.Promised("c1.0", 6, record(5, 3))]


@pytest.mark.requirement("CLU-149")
def test_a_lease_keeps_others_away_until_it_ends_or_is_given_back() -> None:
    vote = voter()
    ask(vote, m.RecordAsk(record(5), 1.0, 7))
    assert ask(vote, m.PromiseAsk(6, "a2.0"), 100 + LEASE_S - 0.01) == []
    assert ask(vote, m.PromiseAsk(6, "a1.0")) == [m.Promised("c1.0", 6, record(5))], "the holder itself may"
    ask(vote, m.RecordAsk(record(6), 1.0, 7))
    ask(vote, m.StepDown(5, "a1.0"))
    assert ask(vote, m.PromiseAsk(7, "a2.0")) == [], "that was another reign"
    ask(vote, m.StepDown(6, "a1.0"))
    assert ask(vote, m.PromiseAsk(7, "a2.0")) == [m.Promised("c1.0", 7, record(6))]


@pytest.mark.requirement("CLU-149")
def test_a_vote_that_starts_waits_for_what_it_may_have_granted() -> None:
    vote = voter(VoterNotes(5, "a1.0", record(5)))
    assert ask(vote, m.PromiseAsk(6, "a2.0"), 100 + LEASE_S - 0.01) == []
    vote.on_dead("a1", 9, 101.0)
    assert ask(vote, m.PromiseAsk(6, "a2.0"), 102) == [], "which of its processes held the lease is not known"
    assert ask(vote, m.PromiseAsk(6, "a2.0"), 100 + LEASE_S) == [m.Promised("c1.0", 6, record(5))]


def test_a_dead_holders_lease_is_over_but_not_its_successors() -> None:
    vote = voter()
    ask(vote, m.RecordAsk(record(5), 1.0, 7))
    vote.on_dead("a1", 6, 100)
    vote.on_dead("a2", 9, 100)
    assert ask(vote, m.PromiseAsk(6, "a2.0")) == [], "news of an earlier life, and of another node"
    vote.on_dead("a1", 7, 100)
    assert ask(vote, m.PromiseAsk(6, "a2.0")) == [m.Promised("c1.0", 6, record(5))]


def test_notes_survive_the_disk() -> None:
    notes = VoterNotes(5, "a1.0", record(5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(notes), type=VoterNotes) == notes
    assert msgspec.json.decode(msgspec.json.encode(notes), type=VoterNotes) == notes


@pytest.mark.requirement("CLU-149")
def test_the_last_words_of_a_dead_process_are_recorded_and_give_no_lease() -> None:
    vote = voter()
    vote.on_dead("a1", 7, 100)
    assert ask(vote, m.RecordAsk(record(5), 1.0, 7)) == [m.Recorded("c1.0", 5, 0, 1.0)]
    assert ask(vote, m.PromiseAsk(6, "a2.0")) == [m.Promised("c1.0", 6, record(5))]
    other = voter()
    other.on_dead("a1", 7, 100)
    ask(other, m.RecordAsk(record(5), 1.0, 8))
    assert ask(other, m.PromiseAsk(6, "a2.0")) == [], "its next process lives"


def test_a_trial_promises_nothing() -> None:
    vote = voter()
    assert ask(vote, m.PromiseAsk(5, "a1.0", trial=True)) == [m.Willing("c1.0", 5, FOUNDING)]
    assert not vote.notes_dirty
    assert ask(vote, m.PromiseAsk(5, "a2.0")) == [m.Promised("c1.0", 5, FOUNDING)]
    assert ask(vote, m.PromiseAsk(5, "a1.0", trial=True)) == [m.Refused("c1.0", 5)]
    ask(vote, m.RecordAsk(record(5), 1.0, 1))
    assert ask(vote, m.PromiseAsk(6, "a2.0", trial=True)) == [], "while a lease runs there is no answer"
