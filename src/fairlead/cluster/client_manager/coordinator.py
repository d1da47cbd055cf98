"""Commits across groups: the agent's part of it, one small machine for each commit under way (CLU-162 … CLU-168).

It forgets everything when the agent dies; what is prepared then is settled by the groups (cluster/decisions.py).

How the agent uses it
---------------------
`parts_of(request, group_of, session_id_of)` reads the `parts` of a client's `commit`; then `begin(connection, number,
parts, now_s)`. Whatever happens to the links is told: `back(group)` when a link was opened and greeted, `lost(group)`
when it ended, `gone(connection)` when a client left. `answer(tag, facts)` and `refused(tag, code, text)` bring what a
group said to a `Send` with that tag, `tick(now_s)` the time, at `next_s` or soon after. Each of them returns effects,
to be carried out in their order:

`Send(group, connection, command, tag)`
    a COMMAND to the group's primary. With a connection it goes over the link as that connection's (`prepare` and the
    `commit` of a single part); with None it is about the link itself, uid 0, as `hello` is (`final`, `abandon`).
    The ANSWER or ERROR to it belongs to `answer` or `refused`, and not to the client. A tag is used once.
`Answer(connection, number, facts)`, `Error(connection, number, code, text)`
    to the client, for its `commit`; never sent for a connection that is gone. Codes: `transaction-aborted` (nothing of
    it happened, for good), `commit-unknown` (ask `outcome` at the decider), `commit-pending` (it is committed, but some
    groups have not carried it out yet).

Nothing is sent to a group that is not there. The decider is the part with the lowest destination id; only when its
commit is safe do the others hear of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import LocalProtocolError, SessionLost, TransactionAborted

PREPARE_S: Final = 30.0
FINAL_S: Final = 30.0
REPEAT_S: Final = 5.0
"""A command that was not answered over a living link is said again so often."""
LINGER_S: Final = 60.0
"""So long a commit is pushed on after its client was told that it gave up waiting; then the groups settle it."""
PARTS_MAX: Final = 128

COMMIT_UNKNOWN: Final = "commit-unknown"
COMMIT_PENDING: Final = "commit-pending"


@dataclass(frozen=True, slots=True)
class Part:
    """What a transaction is in one group."""

    group: str
    session: int  # its number on the connection
    session_id: str  # hex
    transaction: int
    sends: dict[str, int]
    lowest: str  # destination id, hex


@dataclass(frozen=True, slots=True)
class Send:
    group: str
    connection: Hashable | None
    command: dict[str, Any]
    tag: int


@dataclass(frozen=True, slots=True)
class Answer:
    connection: Hashable
    number: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Error:
    connection: Hashable
    number: int
    code: str
    text: str


Effect = Send | Answer | Error


class Phase(Enum):
    SINGLE = "single"  # one part: a commit as without a cluster
    PREPARING = "preparing"
    ABANDONING = "abandoning"  # FINAL was never sent, and never will be
    FINAL = "final"  # the decider is asked to commit; there is no way back (CLU-168)
    SPREADING = "spreading"  # the decider has committed


@dataclass(slots=True, eq=False)
class Commit:
    """One commit under way."""

    id: str
    connection: Hashable | None  # None: gone
    numbers: list[int]  # of the client's commands that wait for it
    parts: dict[str, Part]  # by group
    decider: str
    phase: Phase
    limit_s: float  # when the client is told what is known
    end_s: float = 0.0  # when it is left to the groups
    done: set[str] = field(default_factory=set)  # groups that have done what this phase wants
    asked: dict[str, float] = field(default_factory=dict)  # group -> since when it owes an answer
    tags: dict[str, int] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)  # groups that were ever asked to prepare
    reason: str = ""

    @property
    def is_told(self) -> bool:
        return not self.numbers


class _Part(Struct, kw_only=True):
    session: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    transaction: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    sends: Annotated[dict[str, Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=100_000)] = {}
    lowest: Annotated[str, Meta(pattern="^[0-9a-f]{0,40}$")] = ""


class _Request(Struct, kw_only=True):
    parts: Annotated[list[_Part], Meta(min_length=1, max_length=PARTS_MAX)]


def parts_of(
    request: dict[str, Any], group_of: Callable[[int], str | None], session_id_of: Callable[[int], str | None]
) -> list[Part]:
    """What a client's `commit` names, by session numbers of its connection. Raises LocalProtocolError, SessionLost."""
    try:
        asked = msgspec.convert(request, _Request)
    except msgspec.ValidationError as fault:
        raise LocalProtocolError(f"The command 'commit' cannot be read: {fault}") from None
    found: list[Part] = []
    for one in asked.parts:
        group, session_id = group_of(one.session), session_id_of(one.session)
        if group is None or session_id is None:
            raise SessionLost(f"This connection has no session {one.session}.")
        found.append(Part(group, one.session, session_id, one.transaction, one.sends, one.lowest))
    if len({part.group for part in found}) != len(found):
        raise LocalProtocolError("A commit has one part for each group.")
    return found


def transaction_id(part: Part) -> str:
    """By which all groups know a transaction: the decider's session id and transaction number, hex."""
    return f"{part.session_id}{part.transaction:016x}"


class Coordinator:
    """All commits across groups of one agent."""

    def __init__(
        self,
        *,
        prepare_s: float = PREPARE_S,
        final_s: float = FINAL_S,
        repeat_s: float = REPEAT_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self.prepare_s = prepare_s
        self.final_s = final_s
        self._repeat_s = repeat_s
        self._linger_s = linger_s
        self._up: set[str] = set()
        self._commits: dict[str, Commit] = {}
        self._tags: dict[int, tuple[Commit, str]] = {}
        self._next_tag = 1
        self._times: list[tuple[float, int, Commit]] = []
        self._time_number = 0
        self.committed = 0
        self.aborted = 0
        self.unknown = 0
        self.pending = 0
        self.contradicted = 0  # a group had rolled back what the decider had committed: a fault of ours

    def __len__(self) -> int:
        return len(self._commits)

    @property
    def next_s(self) -> float | None:
        """When `tick` has something to do."""
        while self._times and self._commits.get(self._times[0][2].id) is not self._times[0][2]:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    def facts(self) -> dict[str, Any]:
        """For `counters` and `status`."""
        return {
            "committed": self.committed,
            "aborted": self.aborted,
            "unknown": self.unknown,
            "pending": self.pending,
            "contradicted": self.contradicted,
            "under_way": [
                {"id": one.id, "decider": one.decider, "groups": sorted(one.parts), "phase": one.phase.value}
                for one in self._commits.values()
            ],
        }

    # ------------------------------------------------------------------ what happens

    def begin(self, connection: Hashable, number: int, parts: Sequence[Part], now_s: float) -> list[Effect]:
        """A client's `commit`."""
        decider = min(parts, key=lambda part: part.lowest)
        identity = transaction_id(decider)
        known = self._commits.get(identity)
        if known is not None:
            return self._join(known, connection, number)
        phase = Phase.PREPARING if len(parts) > 1 else Phase.SINGLE
        one = Commit(
            identity, connection, [number], {part.group: part for part in parts}, decider.group, phase,
            now_s + self.prepare_s,
        )  # fmt: skip
        self._commits[identity] = one
        self._look_at(one, one.limit_s)
        effects = self._push(one, one.parts, now_s)
        missing = sorted(group for group in one.parts if group not in self._up)
        if missing:
            effects += self._lost_before_ready(one, f"group {missing[0]!r} cannot be reached", now_s)
        return effects

    def _join(self, one: Commit, connection: Hashable, number: int) -> list[Effect]:
        """The same commit again: it gets the same answer (CLU-170), or is none of this connection's business."""
        if one.connection == connection and not one.is_told:
            one.numbers.append(number)
            return []
        text = f"The commit of transaction {one.id} is under way."
        return [Error(connection, number, COMMIT_UNKNOWN, text)]

    def answer(self, tag: int, facts: dict[str, Any], now_s: float) -> list[Effect]:
        """A group's ANSWER. One that comes late, for a link that was lost, changes nothing."""
        found = self._answered(tag)
        if found is None:
            return []
        one, group = found
        outcome = facts.get("outcome")
        match one.phase:
            case Phase.SINGLE:
                return self._tell_committed(one)
            case Phase.PREPARING:
                return self._on_ready(one, group, facts, now_s)
            case Phase.SPREADING:
                self.contradicted += outcome == "rolled-back"
                one.done.add(group)
                return self._tell_committed(one) if one.done == one.parts.keys() else []
            case Phase.FINAL | Phase.ABANDONING if group == one.decider:
                return self._on_word(one, outcome, now_s)
            case _:  # another group has heard that it is given up
                one.done.add(group)
                return self._closed(one)

    def _on_ready(self, one: Commit, group: str, facts: dict[str, Any], now_s: float) -> list[Effect]:
        outcome = facts.get("outcome")
        if outcome == "committed" and group == one.decider:  # somebody else has brought it that far
            return self._spread(one, now_s)
        if facts.get("ready") is not True and outcome != "committed":
            return self._abandon(one, f"group {group!r} has rolled it back", now_s)
        one.done.add(group)
        return self._final(one, now_s) if one.done == one.parts.keys() else []

    def _on_word(self, one: Commit, outcome: object, now_s: float) -> list[Effect]:
        """The decider's."""
        if outcome == "committed":
            return self._spread(one, now_s)
        if outcome != "rolled-back":
            self._later(one, one.decider, now_s)
            return []
        effects: list[Effect] = []
        if one.phase is Phase.FINAL:
            one.reason = "its groups had rolled it back before it could be committed"
            self._enter(one, Phase.ABANDONING, now_s)
            self._linger(one, now_s)
            effects = self._push(one, one.parts.keys() - {one.decider}, now_s)
        one.done.add(one.decider)
        return [*self._tell_aborted(one), *effects, *self._closed(one)]

    def refused(self, tag: int, code: str, text: str, now_s: float) -> list[Effect]:
        """A group's ERROR."""
        found = self._answered(tag)
        if found is None:
            return []
        one, group = found
        if one.phase is Phase.SINGLE:
            return self._close_with(one, code, text)
        if one.phase is Phase.PREPARING:
            return self._abandon(one, f"group {group!r}: {text}", now_s)
        self._later(one, group, now_s)  # it cannot say at the moment
        return []

    def _later(self, one: Commit, group: str, now_s: float) -> None:
        """It owes an answer still: ask again in a while."""
        one.asked[group] = now_s
        self._look_at(one, now_s + self._repeat_s)

    def lost(self, group: str, now_s: float) -> list[Effect]:
        """The link to the group's primary is gone: nothing that was asked over it will be answered."""
        self._up.discard(group)
        effects: list[Effect] = []
        for one in [commit for commit in self._commits.values() if group in commit.parts]:
            one.asked.pop(group, None)
            self._tags.pop(one.tags.pop(group, 0), None)
            if group not in one.done:
                effects += self._lost_before_ready(one, f"group {group!r} was lost before it was ready", now_s)
        return effects

    def _lost_before_ready(self, one: Commit, reason: str, now_s: float) -> list[Effect]:
        if one.phase is Phase.SINGLE:
            if one.sent:
                return self._close_with(one, COMMIT_UNKNOWN, self._unknown_text(one))
            return self._close_with(one, TransactionAborted.code, f"The transaction is rolled back: {reason}.")
        return self._abandon(one, reason, now_s) if one.phase is Phase.PREPARING else []

    def back(self, group: str, now_s: float) -> list[Effect]:
        """There is a link to the group's primary, perhaps a new one: it is told what it has not answered."""
        self._up.add(group)
        effects: list[Effect] = []
        for one in [commit for commit in self._commits.values() if group in commit.parts]:
            effects += self._push(one, (group,), now_s)
        return effects

    def gone(self, connection: Hashable, now_s: float) -> list[Effect]:
        """The client left. What was not final is given up; what was goes on to its end."""
        effects: list[Effect] = []
        for one in [commit for commit in self._commits.values() if commit.connection == connection]:
            one.connection = None
            one.numbers.clear()
            if one.phase is Phase.PREPARING:
                effects += self._abandon(one, "its client left", now_s)
            elif one.phase is Phase.SINGLE:
                self._close(one)
            self._linger(one, now_s)
        return effects

    def tick(self, now_s: float) -> list[Effect]:
        """Time limits, and repeats of what was not answered."""
        effects: list[Effect] = []
        while (due_s := self.next_s) is not None and due_s <= now_s:
            one = heapq.heappop(self._times)[2]
            if one.end_s and one.end_s <= now_s:
                self._close(one)
                continue
            if not one.is_told and one.limit_s <= now_s:
                effects += self._too_late(one, now_s)
            if self._commits.get(one.id) is one:
                late = [group for group, since_s in one.asked.items() if since_s + self._repeat_s <= now_s]
                effects += self._push(one, late, now_s)
        return effects

    def _too_late(self, one: Commit, now_s: float) -> list[Effect]:
        if one.phase is Phase.PREPARING:
            slow = sorted(one.parts.keys() - one.done)
            reason = f"group {slow[0]!r} was not ready within {self.prepare_s:g} s"
            return self._abandon(one, reason, now_s)
        effects: list[Effect] = []
        if one.phase is Phase.SPREADING:
            open_ = ", ".join(repr(group) for group in sorted(one.parts.keys() - one.done))
            text = f"Transaction {one.id} is committed; it is still to be carried out in group {open_}."
            self.pending += 1
            effects = self._tell(one, COMMIT_PENDING, text)
        else:
            self.unknown += 1
            effects = self._tell(one, COMMIT_UNKNOWN, self._unknown_text(one))
        if one.phase is Phase.SINGLE:
            self._close(one)
        self._linger(one, now_s)
        return effects

    @staticmethod
    def _unknown_text(one: Commit) -> str:
        return (
            f"The outcome of transaction {one.id} is not known: ask group {one.decider!r} for it by that id; "
            "do not commit it again."
        )

    # ------------------------------------------------------------------ phases

    def _enter(self, one: Commit, phase: Phase, now_s: float, limit_s: float | None = None) -> None:
        one.phase = phase
        one.done.clear()
        one.asked.clear()
        for tag in one.tags.values():
            self._tags.pop(tag, None)
        one.tags.clear()
        if limit_s is not None:
            one.limit_s = now_s + limit_s
            self._look_at(one, one.limit_s)

    def _final(self, one: Commit, now_s: float) -> list[Effect]:
        self._enter(one, Phase.FINAL, now_s, self.final_s)
        return self._push(one, (one.decider,), now_s)

    def _spread(self, one: Commit, now_s: float) -> list[Effect]:
        self._enter(one, Phase.SPREADING, now_s)
        one.done.add(one.decider)
        return self._push(one, one.parts, now_s)

    def _abandon(self, one: Commit, reason: str, now_s: float) -> list[Effect]:
        """Phase one failed (CLU-164). The client hears it when the decider has written it down."""
        one.reason = reason
        self._enter(one, Phase.ABANDONING, now_s, self._repeat_s)
        self._linger(one, now_s)
        effects: list[Effect] = []
        if one.decider not in one.sent:  # nobody ever asked it to prepare, so nobody can commit it
            one.done.add(one.decider)
            effects += self._tell_aborted(one)
        return [*self._push(one, one.parts, now_s), *effects, *self._closed(one)]

    def _push(self, one: Commit, groups: Iterable[str], now_s: float) -> list[Effect]:
        """Ask these groups for what the phase wants of them."""
        effects: list[Effect] = []
        for group in groups:
            if group not in self._up or group in one.done:
                continue
            command: dict[str, Any]
            connection: Hashable | None = None
            part = one.parts[group]
            match one.phase:
                case Phase.SINGLE | Phase.PREPARING:
                    if group in one.sent:  # its session there began a new life, or has it in hand
                        continue
                    connection = one.connection
                    command = {"session": part.session, "transaction": part.transaction, "sends": part.sends}
                    if one.phase is Phase.SINGLE:
                        command = {"do": "commit", **command}
                    else:
                        about = {"id": one.id, "decider": one.decider, "groups": sorted(one.parts)}
                        command = {"do": "prepare", **command, **about}
                    one.sent.add(group)
                case Phase.ABANDONING:
                    if group not in one.sent:
                        continue
                    command = {"do": "abandon", "id": one.id, "decider": one.decider}
                case Phase.FINAL | Phase.SPREADING:
                    if one.phase is Phase.FINAL and group != one.decider:
                        continue
                    command = {"do": "final", "id": one.id, "decider": one.decider}
            self._tags.pop(one.tags.pop(group, 0), None)
            tag = self._next_tag
            self._next_tag += 1
            self._tags[tag] = (one, group)
            one.tags[group] = tag
            one.asked[group] = now_s
            if one.phase not in (Phase.SINGLE, Phase.PREPARING):
                self._look_at(one, now_s + self._repeat_s)
            effects.append(Send(group, connection, command, tag))
        return effects

    def _answered(self, tag: int) -> tuple[Commit, str] | None:
        found = self._tags.pop(tag, None)
        if found is not None:
            found[0].tags.pop(found[1], None)
            found[0].asked.pop(found[1], None)
        return found

    # ------------------------------------------------------------------ ends

    def _tell(self, one: Commit, code: str, text: str) -> list[Effect]:
        numbers, one.numbers = one.numbers, []
        if one.connection is None:
            return []
        return [Error(one.connection, number, code, text) for number in numbers]

    def _tell_aborted(self, one: Commit) -> list[Effect]:
        if one.is_told:
            return []
        self.aborted += 1
        return self._tell(one, TransactionAborted.code, f"The transaction is rolled back: {one.reason}.")

    def _tell_committed(self, one: Commit) -> list[Effect]:
        self.committed += 1
        facts = {"outcome": "committed"} if one.phase is not Phase.SINGLE else {}
        effects: list[Effect] = []
        if one.connection is not None:
            effects += [Answer(one.connection, number, facts) for number in one.numbers]
        self._close(one)
        return effects

    def _close_with(self, one: Commit, code: str, text: str) -> list[Effect]:
        effects = self._tell(one, code, text)
        self._close(one)
        return effects

    def _closed(self, one: Commit) -> list[Effect]:
        """An abandoned one is over when every group that was asked to prepare has heard it."""
        if one.phase is Phase.ABANDONING and one.is_told and one.done >= (one.sent | {one.decider}):
            self._close(one)
        return []

    def _close(self, one: Commit) -> None:
        self._commits.pop(one.id, None)
        for tag in one.tags.values():
            self._tags.pop(tag, None)
        one.tags.clear()

    def _linger(self, one: Commit, now_s: float) -> None:
        if not one.end_s:
            one.end_s = now_s + self._linger_s
            self._look_at(one, one.end_s)

    def _look_at(self, one: Commit, at_s: float) -> None:
        self._time_number += 1
        heapq.heappush(self._times, (at_s, self._time_number, one))
