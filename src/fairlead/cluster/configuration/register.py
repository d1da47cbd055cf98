"""Which settings come next: one value per revision, chosen by a majority of the voters (decision 0017).

Each revision is a Paxos register of its own, voted on by the electorate that the revision before it names; so two
administrators cannot leave nodes different, whatever fails meanwhile. `Acceptor` is a voter's side, `Proposer` that of
the node whose administrator wants a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from fairlead.cluster.configuration.messages import (
    NONE,
    Accept,
    Accepted,
    Ballot,
    Message,
    Prepare,
    Promise,
    Refuse,
)

if TYPE_CHECKING:
    import random


class Ballots(Struct, kw_only=True):
    """What a voter must not forget. `abstain`: it lost its notes once and may not vote up to that revision.

    -1: not known yet, since it has not yet heard a majority after the loss.
    """

    slot: int = 0
    promised: Ballot = NONE
    accepted: Ballot = NONE
    data: bytes = b""
    abstain: int = -1


class Acceptor:
    """A voter. Its answers may leave only after `ballots` are written."""

    def __init__(self, ballots: Ballots) -> None:
        self.ballots = ballots

    def prepare(self, message: Prepare, revision: int) -> Promise | Refuse:
        """Answer a candidate; `revision`: of the settings we use."""
        if (reason := self._cannot(message.slot, revision)) is not None:
            return Refuse(message.slot, message.ballot, NONE, reason)
        self._move_to(message.slot)
        if message.ballot < self.ballots.promised:
            return Refuse(message.slot, message.ballot, self.ballots.promised)
        self.ballots.promised = message.ballot
        return Promise(message.slot, message.ballot, self.ballots.accepted, self.ballots.data)

    def accept(self, message: Accept, revision: int) -> Accepted | Refuse:
        if (reason := self._cannot(message.slot, revision)) is not None:
            return Refuse(message.slot, message.ballot, NONE, reason)
        self._move_to(message.slot)
        if message.ballot < self.ballots.promised:
            return Refuse(message.slot, message.ballot, self.ballots.promised)
        self.ballots.promised = self.ballots.accepted = message.ballot
        self.ballots.data = message.data
        return Accepted(message.slot, message.ballot)

    def heard(self, revisions: list[int]) -> None:
        """Revisions known or voted on by a majority of voters: beyond the next one we cannot have voted before."""
        if self.ballots.abstain < 0:
            self.ballots.abstain = max(revisions) + 1

    def _cannot(self, slot: int, revision: int) -> str | None:
        if slot <= revision or slot < self.ballots.slot:
            return "that revision is decided"
        if self.ballots.abstain < 0:
            return "this voter lost its notes and has not heard a majority since"
        if slot <= self.ballots.abstain:
            return f"this voter lost its notes and does not vote up to revision {self.ballots.abstain}"
        return None

    def _move_to(self, slot: int) -> None:
        """Whoever votes on a revision knows that all before it are decided."""
        if slot > self.ballots.slot:
            self.ballots.slot, self.ballots.promised, self.ballots.accepted = slot, NONE, NONE
            self.ballots.data = b""


class Proposer:
    """One attempt to have a revision decided, repeated with higher ballots until it is or time is over."""

    def __init__(
        self,
        node: str,
        slot: int,
        data: bytes,
        voters: list[str],
        send: Callable[[str, Message], None],
        rng: random.Random,
        retry_s: float = 1.0,
    ) -> None:
        self.slot = slot
        self.chosen: bytes | None = None
        self.reasons: dict[str, str] = {}
        self._node, self._data, self._voters, self._send, self._rng = node, data, voters, send, rng
        self._retry_s = retry_s
        self._round = 0
        self._promises: dict[str, Promise] = {}
        self._accepts: set[str] = set()
        self._value = b""
        self._again_s = 0.0

    @property
    def ballot(self) -> Ballot:
        return (self._round, self._node)

    def begin(self, now_s: float) -> None:
        """A new round."""
        self._round += 1
        self._promises, self._accepts, self._value = {}, set(), b""
        self._again_s = now_s + self._retry_s * (1 + self._rng.random())
        for voter in self._voters:
            self._send(voter, Prepare(self.slot, self.ballot))

    def tick(self, now_s: float) -> float:
        if self.chosen is None and now_s >= self._again_s:
            self.begin(now_s)
        return self._again_s

    def on_message(self, sender: str, message: Promise | Accepted | Refuse, now_s: float) -> None:
        """`chosen` is the settings of this revision once a majority has accepted; perhaps another's."""
        if sender not in self._voters or message.slot != self.slot or message.ballot != self.ballot or self.chosen:
            return
        if isinstance(message, Refuse):
            self.reasons[sender] = message.reason
            if message.promised > self.ballot:
                self._round = message.promised[0]  # the next round is above it, after a random pause
                self._again_s = min(self._again_s, now_s + self._retry_s * self._rng.random() / 4)
        elif isinstance(message, Promise):
            self._promises[sender] = message
            if not self._value and self._is_majority(len(self._promises)):
                newest = max(self._promises.values(), key=lambda promise: promise.accepted)
                self._value = newest.data or self._data
                for voter in self._voters:
                    self._send(voter, Accept(self.slot, self.ballot, self._value))
        elif self._value:
            self._accepts.add(sender)
            if self._is_majority(len(self._accepts)):
                self.chosen = self._value

    def _is_majority(self, count: int) -> bool:
        return count * 2 > len(self._voters)
