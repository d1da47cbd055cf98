"""Changes of the control record within a reign: in-sync set, copies, electorate (CLU-145, CLU-148).

One at a time, each with the next version. A set is proposed only when everything that is safe would be safe in it, too;
until it is settled, a confirm satisfies both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.cluster.replication.events import SetChanged
from fairlead.cluster.replication.record import ControlRecord, is_majority, node_of

if TYPE_CHECKING:
    from fairlead.cluster.replication.member import Member

NEVER = -1e9


class Changes(ABC):
    """`current` is the valid record, `pending` the one proposed."""

    start_index: int

    def __init__(self, member: Member, record: ControlRecord, took_part: frozenset[str]) -> None:
        self.member, self.epoch = member, record.epoch
        self.current = record
        self.pending: ControlRecord | None = None
        self.votes: set[str] = set()
        self.match: dict[str, int] = {member.store: 0}
        self.took_part = took_part
        self.since_s = member.now_s
        self._alive_s: dict[str, float] = {}  # when a store last reported
        self._marks: dict[str, tuple[int, float]] = {}  # a place to reach, and since when
        self._slow: set[str] = set()
        self._wanted: deque[tuple[str | None, str | None]] = deque()  # votes to add, to remove
        self._answering: dict[str, tuple[float, str]] = {}  # node -> the vote that answered the newest question there

    @abstractmethod
    def renew(self) -> None:
        """Say the newest record to all votes."""

    @property
    def electorates(self) -> tuple[frozenset[str], frozenset[str]]:
        return self.current.electorate, (self.pending or self.current).electorate

    @property
    def has_settled(self) -> bool:
        """Nobody is left of whom it is open whether it is there at all."""
        return self.member.now_s >= self.since_s + self.member.settings.absence_s

    # --- news of the backups

    def heard_from(self, store: str, upto: int) -> None:
        self.match[store] = max(upto, self.match.get(store, 0))
        self._alive_s[store] = self.member.now_s

    def look_for_slow(self) -> None:
        """Too slow is who has not stored after `removal_s` what was there at its beginning."""
        member, last = self.member, self.member.log.last
        for store in self.current.members - {member.store}:
            mark, since_s = self._marks.get(store, (last, member.now_s))
            if self.match.get(store, 0) >= mark:
                mark, since_s = last, member.now_s
                self._slow.discard(store)
            elif member.now_s - since_s > member.settings.removal_s:
                self._slow.add(store)
            self._marks[store] = mark, since_s

    def _is_silent(self, store: str) -> bool:
        member, settings, node = self.member, self.member.settings, node_of(store)
        if node not in member.peers or node in member.lost or node in member.lame or store in self._slow:
            return True
        alive_s = self._alive_s.get(store)
        if alive_s is None and store not in self.took_part:
            return member.now_s - self.since_s > settings.absence_s
        return member.now_s - max(self.since_s, alive_s or NEVER) > settings.removal_s

    # --- what should change

    def consider_change(self) -> None:
        if self.pending or self.member.leading is not self:
            return
        member, members = self.member, self.current.members
        silent = {store for store in members - {member.store} if self._is_silent(store)}
        if silent:  # all of them in one change: one by one, the second would hold up the first
            self._propose(members=members - silent)
            return
        for store in sorted(self.match.keys() - members):
            if self._may_enter(store):
                rest = {old for old in members if node_of(old) != node_of(store)}
                self._propose(members=frozenset(rest | {store}))
                return
        if member.min_copies != self.current.copies and member.rules.copies_in_record:
            self._propose(copies=member.min_copies)
        else:
            self._consider_votes()

    def _may_enter(self, store: str) -> bool:
        member = self.member
        node = node_of(store)
        if node not in member.peers or node in member.lost or node in member.lame or node == member.node:
            return False
        if member.now_s - self._alive_s.get(store, NEVER) > member.settings.removal_s / 2:
            return False
        reached = self.match[store] >= max(member.safe, self.start_index)
        if reached:
            self._slow.discard(store)
            self._marks.pop(store, None)
        return reached or not member.rules.cover_new_set

    def _consider_votes(self) -> None:
        electorate, returning = self.current.electorate, self.current.returning
        for node, (_, vote) in sorted(self._answering.items()):
            lost = {old for old in electorate if node_of(old) == node and old != vote}
            if lost:  # it came back with a new disk: its lost vote goes first, its new one comes next
                self._propose(electorate=electorate - lost, returning=returning | {node})
                return
            if node in returning:
                self._propose(electorate=electorate | {vote}, returning=returning - {node})
                return
        while self._wanted:
            add, remove = self._wanted[0]
            after = electorate | {add} if add else electorate - {remove or ""}
            if after != electorate and after:
                self._propose(electorate=after, returning=returning - {node_of(add or remove or "")})
                return
            self._wanted.popleft()

    def change_electorate(self, add: str | None, remove: str | None) -> None:
        if remove:
            self._wanted.append((None, remove))
        if add:
            self._wanted.append((add, None))
        self.consider_change()

    # --- the vote on it

    def is_safe_in(self, record: ControlRecord, position: int) -> bool:
        there = sum(self.match.get(store, 0) >= position for store in record.members)
        return there >= self.member.enough(record)

    def _propose(self, **change: Any) -> None:
        member = self.member
        record = msgspec.structs.replace(self.current, version=self.current.version + 1, **change)
        self.match[member.store] = member.log.durable
        if member.rules.cover_new_set and not self.is_safe_in(record, max(member.safe, self.start_index)):
            return
        self.pending, self.votes = record, set()
        self.renew()

    def count_vote(self, voter: str, version: int, sent_s: float) -> bool:
        """True: the proposed record is valid now."""
        node = node_of(voter)
        self._answering[node] = max(self._answering.get(node, (sent_s, voter)), (sent_s, voter))
        if self.pending is None or version != self.pending.version:
            return False
        self.votes.add(voter)
        if not all(is_majority(electorate, self.votes) for electorate in self.electorates):
            return False
        self.current, self.pending = self.pending, None
        self.member.learn(self.current)
        self.member.events.append(SetChanged(self.current))
        return True
