"""One attempt to become primary (CLU-150): would votes be given? Then they are asked for, then members of the set are
bound to the epoch, then the best of their logs is copied, then a majority accepts the record. A question that is not
answered is put again until somebody else leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.agreement import agreed, back_up
from fairlead.cluster.replication.events import Forced
from fairlead.cluster.replication.record import ControlRecord, is_majority, node_of

if TYPE_CHECKING:
    from fairlead.cluster.replication.member import Member

Length = tuple[int, int]
"""Epoch of the last record, its number: which of two logs is more up to date."""


class Candidacy:
    """`basis` is the record taken over, `joined` who took part with which log, `source` whose log we copy."""

    def __init__(self, member: Member, forced: bool) -> None:
        self.member, self.forced = member, forced
        self.epoch = max(member.seen, member.notes.fence) + 1
        member.seen = self.epoch
        self.asked = member.notes.known.electorate
        # Who cannot get a majority must not make even one vote promise: it would turn away the primary of the others.
        self.is_trial = not forced
        self.willing: dict[str, ControlRecord] = {}
        self.promises: dict[str, ControlRecord] = {}
        self.basis: ControlRecord | None = None
        self.joined: dict[str, Length] = {}
        self.source = ""
        self.proposal: ControlRecord | None = None
        self.votes: dict[str, float] = {}
        self._retry_at_s = 0.0
        self._fetch_first = 0

    # --- votes

    def ask(self) -> None:
        """Put the question that is open, to all."""
        member = self.member
        self._retry_at_s = member.now_s + member.settings.retry_s
        if self.proposal:
            member.ask_voters(self.proposal.electorate, m.RecordAsk(self.proposal, member.now_s, member.start))
        elif self.basis is None:
            member.ask_voters(self.asked, m.PromiseAsk(self.epoch, member.store, self.is_trial))
        else:
            for store in sorted(self.basis.members - self.joined.keys()):
                member.send(node_of(store), m.JoinAsk(self.epoch))
            if self.source:
                self._fetch()
            else:
                self.on_durable()

    def on_answer(self, message: m.Willing | m.Promised | m.Joined | m.Fetched) -> None:
        if message.epoch != self.epoch:
            return
        match message:
            case m.Willing():
                self._on_willing(message.voter, message.record)
            case m.Promised():
                self._on_promised(message)
            case m.Joined():
                self._on_joined(message)
            case m.Fetched():
                self._on_fetched(message)

    def _on_willing(self, voter: str, record: ControlRecord) -> None:
        self.willing[voter] = record
        if self.is_trial and self._has_majority(self.willing):
            self.is_trial = False
            self.ask()

    def _on_promised(self, promised: m.Promised) -> None:
        self._on_willing(promised.voter, promised.record)  # a late answer, or of one that knows no trial
        self.promises[promised.voter] = promised.record
        if self.basis is None and (best := self._has_majority(self.promises)):
            self._take_over(best)

    def _has_majority(self, answers: dict[str, ControlRecord]) -> ControlRecord | None:
        """The newest record they show, if they are a majority of its electorate."""
        member = self.member
        best = max(answers.values(), key=lambda record: record.stamp)
        if not member.rules.adopt_record:
            best = member.notes.known
        if not best.electorate <= self.asked:  # the votes are elsewhere by now
            self.asked |= best.electorate
            member.ask_voters(best.electorate, m.PromiseAsk(self.epoch, member.store, self.is_trial))
        return best if is_majority(best.electorate, answers) else None

    def _take_over(self, basis: ControlRecord) -> None:
        member = self.member
        self.basis = basis
        member.learn(basis)
        if basis.is_founding and (member.log.last == 0 or self.forced):
            self._propose(frozenset((member.store,)), member.min_copies)
        elif self.forced:
            lost = tuple(sorted(basis.members - {member.store}))
            member.events.append(Forced(self.epoch, lost))
            member.notes.loaded = member.notes_dirty = True
            self._propose(frozenset((member.store,)), basis.copies)
        elif member.store not in basis.members and member.rules.only_members:
            member.say_waiting(basis.members, "our store is not in the recorded in-sync set")
            member.withdraw(member.settings.detection_s)  # not ours to lead; wait for one who may
        else:
            member.bind(self.epoch)
            self.joined[member.store] = self._own_length()
            for store in sorted(basis.members - {member.store}):
                member.send(node_of(store), m.JoinAsk(self.epoch))
            self._choose()

    # --- the choice

    def _own_length(self) -> Length:
        log = self.member.log
        return self._length(log.epoch_at(log.last), log.last)

    def _length(self, last_epoch: int, last: int) -> Length:
        return (last_epoch, last) if self.member.rules.epoch_first else (last, 0)

    def _on_joined(self, joined: m.Joined) -> None:
        if self.basis is None or joined.store not in self.basis.members or joined.store == self.member.store:
            return
        self.joined[joined.store] = self._length(joined.last_epoch, joined.last)
        if self.proposal is None:
            self._choose()

    def _choose(self) -> None:
        member, basis = self.member, self.basis
        assert basis is not None
        needed = len(basis.members) - member.enough(basis) + 1 if member.rules.enough_members else 1
        # The last primary's own store has all it ever confirmed, and may stand for the others.
        if len(self.joined) < needed and basis.primary not in self.joined:
            missing = basis.members - self.joined.keys()
            member.say_waiting(missing, f"{needed - len(self.joined)} more of the in-sync set must take part")
            return
        self.joined[member.store] = self._own_length()
        best = max(sorted(self.joined), key=lambda store: (self.joined[store], store == member.store))
        if best == member.store or not member.rules.copy_best:
            # Once it is recorded, our store alone may stand for the others: what we took over must not be lost with us.
            if member.log.synced >= member.log.last or not member.rules.durable_first:
                self._propose(basis.members, basis.copies)
        elif best != self.source:
            self.source, self._fetch_first = best, member.log.last + 1
            self._fetch()

    def on_durable(self) -> None:
        if self.basis is not None and self.proposal is None and self.joined:
            self._choose()

    # --- copying what we lack

    def _fetch(self) -> None:
        before = self._fetch_first - 1
        ask = m.FetchAsk(self.epoch, self._fetch_first, self.member.log.epoch_at(before))
        self.member.send(node_of(self.source), ask)

    def _on_fetched(self, fetched: m.Fetched) -> None:
        member, log, batch = self.member, self.member.log, fetched.batch
        if fetched.store != self.source or self.proposal or self.basis is None:
            return
        # Its log may be shorter than it was, if it has crashed since.
        self.joined[self.source] = self._length(fetched.last_epoch, fetched.last)
        before = batch.first - 1
        if batch.count:
            if not member.safe <= before <= log.last or log.epoch_at(before) != batch.previous:
                return  # an answer to an older question
            top = agreed(log, batch, before)
            if batch.last > top:
                member.cut(top)
                log.take(batch, top - before)
            self._fetch_first = batch.last + 1  # not behind our last: where we part may be further on than one batch
        elif fetched.want:
            floor = member.safe + 1
            self._fetch_first = max(floor, min(fetched.want, self._fetch_first - 1))
            before = self._fetch_first - 1
            if before > member.safe and log.epoch_at(before) > fetched.last_epoch:
                self._fetch_first = back_up(log, before, fetched.last_epoch, floor)
        elif before < fetched.last and self._own_length() < self.joined[self.source]:
            member.say_waiting((self.source,), "it has more than we do, and part of that only in its state")
            member.send(node_of(self.source), m.TakeOver(self.epoch))
            member.withdraw(member.settings.detection_s)
            return
        if self._own_length() >= self.joined[self.source]:
            self.source = ""
            self._choose()
        else:
            self._fetch()

    # --- the record

    def _propose(self, members: frozenset[str], copies: int) -> None:
        member, basis = self.member, self.basis
        assert basis is not None
        member.bind(self.epoch)  # before the record can be chosen: no later life of ours may use this epoch again
        self.proposal = msgspec.structs.replace(
            basis, epoch=self.epoch, version=0, primary=member.store, members=members, copies=copies
        )
        self.source = ""
        self.ask()

    def on_recorded(self, recorded: m.Recorded) -> None:
        if self.proposal is None or (recorded.epoch, recorded.version) != self.proposal.stamp:
            return
        self.votes[recorded.voter] = max(recorded.sent, self.votes.get(recorded.voter, recorded.sent))
        if is_majority(self.proposal.electorate, self.votes):
            self.member.lead(self.proposal, min(self.votes.values()), frozenset(self.joined))

    # --- time

    def tick(self) -> None:
        if self.member.now_s >= self._retry_at_s:
            if self.basis is None and not self.willing:
                self.member.say_waiting((), "no vote has promised us the epoch yet")
            self.ask()

    def next_s(self) -> float:
        return self._retry_at_s
