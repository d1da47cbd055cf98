"""How transactions across groups end: the decider's word, who has not heard it yet, and asking for it (CLU-169).

What the decider has safely recorded is the outcome. It commits first, when it is told `final`; whatever it has not
committed when anybody asks, it rolls back for good, also what it never heard of. The others never decide: in doubt
they ask, and go on asking. The decider keeps a commit until every group has said that it carried it out; of rollbacks
it need not keep anything, for nobody who is still ready could ask about one and be told otherwise.

Between groups three messages travel (`Host.settle_send`, `on_settle`), none of which need arrive: `ask {id}` to the
decider, `decide {id, outcome}` from it, `done {id}` to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlead.cluster import records, requests
from fairlead.cluster.prepared import Prepared, key_of
from fairlead.cluster.transactions import Ended, Outcome
from fairlead.errors import FairleadError, Stale, StoreFull

if TYPE_CHECKING:
    from fairlead.cluster.host import Host
    from fairlead.cluster.parties import Line, Session
    from fairlead.cluster.port import Bytes

DOUBT_MS: Final = 10_000
"""So long a ready group waits for whoever coordinates, before it asks."""
ASK_MS: Final = 2_000
"""How often a question, or a decision nobody has acknowledged, is repeated."""
LOOK_MS: Final = 1_000
COMPLETE_MAX: Final = 256
"""Transactions whose end is written down in one record."""
KNOWN_MAX: Final = 10_000
"""Ends remembered by id, for commands that are repeated. Of a commit that matters, `unfinished` knows."""

Told = Callable[[Outcome, int], None]
"""The outcome, and the index from which on it may be told."""


@dataclass(slots=True)
class Unfinished:
    """A commit of ours that some groups may not have carried out yet."""

    index: int
    groups: set[str]  # the others
    told_ms: int
    heard: set[str] = field(default_factory=set)  # of them, who has said that it is done


class Decisions:
    """The ends of all transactions across groups this group has to do with."""

    def __init__(self, core: Host) -> None:
        self._core = core
        self.unfinished: dict[str, Unfinished] = {}
        self._known: dict[str, tuple[Outcome, int]] = {}
        self._complete: list[str] = []  # everybody has carried them out, which is not written down yet
        self._waiting: dict[str, list[Told]] = {}  # of those that are prepared here and decided elsewhere
        self._is_looking = False
        self.asked = 0  # questions sent
        self.dropped = 0  # settling messages that made no sense
        self.commands: dict[str, Callable[[Line, int, dict[str, Any]], None]] = {
            "final": self.on_final,
            "abandon": self.on_abandon,
            "outcome": self.on_outcome,
        }

    # ------------------------------------------------------------------ the coordinator's commands, about the link

    def on_command(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """One of `commands`, by the agent that coordinates. It is answered when that is safe."""
        try:
            self.commands[request["do"]](line, number, request)
        except FairleadError as refusal:
            self._core.error(line, number, refusal.code, refusal.text)

    def on_final(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """Commit what is prepared. The decider is told first, the others when its commit is safe (CLU-163)."""
        asked = requests.read(request, requests.OfDecision)

        def then() -> None:
            one = self._core.prepared.by_id.get(asked.id)
            if one is not None:
                try:
                    self._commit(one)
                except StoreFull as fault:
                    self._core.error(line, number, fault.code, fault.text)
                    return
            self._tell_end(line, number, asked)

        self._behind(asked.id, then)

    def on_abandon(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """Phase one failed (CLU-164). A group that is ready waits all the same for the decider's word."""
        asked = requests.read(request, requests.OfDecision)
        one = self._core.prepared.by_id.get(asked.id)
        if one is not None and one.decider != self._core.group:
            self._waiting.setdefault(asked.id, []).append(lambda *end: self._answer(line, number, *end))
            self._doubt(one)
            return
        if one is None and asked.decider != self._core.group and asked.id not in self._known:
            index, _ = self._core.append(records.DECIDED, msgspec.json.encode({"rolled_back": asked.id}))
            self._know(asked.id, "rolled-back", index)  # so that a PREPARE on its way comes too late
        self._tell_end(line, number, asked)

    def on_outcome(self, line: Line, number: int, request: dict[str, Any]) -> None:
        """What became of it (CLU-127)? If nothing did, from now on nothing will."""
        asked = requests.read(request, requests.OfDecision)
        if asked.decider != self._core.group:
            raise Stale(f"Group {asked.decider!r} decides about this transaction.")
        self._tell_end(line, number, asked)

    def _tell_end(self, line: Line, number: int, asked: requests.OfDecision) -> None:
        if asked.decider == self._core.group:
            self.decide(asked.id, lambda outcome, index: self._answer(line, number, outcome, index))
        elif asked.id in self._known:
            self._answer(line, number, *self._known[asked.id])
        else:  # ready once, it has ended since, as the decider said
            core = self._core
            core.after(core.last_index, lambda: core.answer(line, number, {"outcome": "unknown"}))

    def _answer(self, line: Line, number: int, outcome: Outcome, index: int) -> None:
        self._core.after(index, lambda: self._core.answer(line, number, {"outcome": outcome}))

    # ------------------------------------------------------------------ deciding

    def decide(self, identity: str, then: Told) -> None:
        """The outcome of a transaction this group is the decider of; what is open is rolled back (CLU-169)."""
        found = self.unfinished.get(identity)
        if found is not None:
            then("committed", found.index)
            return
        if identity in self._known:
            then(*self._known[identity])
            return
        session_id, number = key_of(identity)
        self._core.transactions.resolve(session_id, number, lambda ended: then(ended.outcome, ended.index))

    def known(self, identity: str) -> tuple[Outcome, int]:
        """The end of one that has ended; of an unknown one that is a rollback."""
        return self._known.get(identity, ("rolled-back", self._core.last_index))

    def refusal(self, identity: str) -> str | None:
        """Why a transaction of this id must not become ready any more."""
        if identity in self._core.prepared.by_id:
            return "its id is that of another one"
        return "it was given up before it was ready" if identity in self._known else None

    def on_lost(self, session: Session) -> None:
        """Its connection is gone, and perhaps with it whoever coordinates: no use waiting."""
        for one in self._core.prepared.of(session.id):
            self._doubt(one)

    def prepared(self) -> None:
        """Something became ready: look after it from now on."""
        self._wake()

    def roll_back(self, one: Prepared) -> Ended:
        """By the decider's word."""
        index = self._core.prepared.roll_back(one)
        return self._ended(one, "rolled-back", index)

    def _commit(self, one: Prepared) -> Ended:
        core = self._core
        index = core.prepared.commit(one)
        if one.decider != core.group:
            core.after(index, lambda: core.settle_send(one.decider, {"do": "done", "id": one.id}))
        return self._ended(one, "committed", index)

    def _ended(self, one: Prepared, outcome: Outcome, index: int) -> Ended:
        ended = Ended(outcome, index, "decided by the groups that took part" if outcome == "rolled-back" else "")
        self._core.transactions.ended(one, ended)
        self._note(one, outcome, index)
        for tell in self._waiting.pop(one.id, ()):
            tell(outcome, index)
        self._wake()
        return ended

    def _note(self, one: Prepared, outcome: Outcome, index: int) -> None:
        """What is remembered of an end; by the same function when it is read again."""
        self._know(one.id, outcome, index)
        others = set(one.groups) - {self._core.group}
        if outcome == "committed" and one.decider == self._core.group and others:
            self.unfinished[one.id] = Unfinished(index, others, self._core.now_ms)

    def _know(self, identity: str, outcome: Outcome, index: int) -> None:
        self._known[identity] = (outcome, index)
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def _behind(self, identity: str, then: Callable[[], None]) -> None:
        """Go on in the tasks of what it touched; at once if it is not prepared here."""
        one = self._core.prepared.by_id.get(identity)
        self._core.sessions.join(self._core.prepared.destinations(one) if one is not None else (), then)

    # ------------------------------------------------------------------ between the groups

    def on_settle(self, sender: str, message: dict[str, Any]) -> None:
        """What another group says. The caller serves: it is the group's primary and has its lease."""
        try:
            what = msgspec.convert(message, requests.Settle)
        except msgspec.ValidationError:
            self.dropped += 1
            return
        match what.do:
            case "ask":
                self._behind(what.id, lambda: self._on_ask(sender, what.id))
            case "decide":
                self._behind(what.id, lambda: self._on_decide(sender, what))
            case "done":
                self._on_done(sender, what.id)

    def _on_ask(self, sender: str, identity: str) -> None:
        one = self._core.prepared.by_id.get(identity)
        if one is not None and one.decider != self._core.group:
            self.dropped += 1  # it asks the wrong one
            return

        def tell(outcome: Outcome, index: int) -> None:
            word = {"do": "decide", "id": identity, "outcome": outcome}
            self._core.after(index, lambda: self._core.settle_send(sender, word))

        self.decide(identity, tell)

    def _on_decide(self, sender: str, what: requests.Settle) -> None:
        core = self._core
        one = core.prepared.by_id.get(what.id)
        if one is None:
            if what.outcome == "committed":  # it was ready before that could be decided, so it has ended since
                core.after(core.last_index, lambda: core.settle_send(sender, {"do": "done", "id": what.id}))
            return
        if one.decider != sender:
            self.dropped += 1
        elif what.outcome == "committed":
            with suppress(StoreFull):  # it will be said again
                self._commit(one)
        elif what.outcome == "rolled-back":
            self.roll_back(one)

    def _on_done(self, sender: str, identity: str) -> None:
        one = self.unfinished.get(identity)
        if one is None or sender in one.heard:
            return
        one.heard.add(sender)
        if one.heard >= one.groups:
            self._complete.append(identity)
            if len(self._complete) >= COMPLETE_MAX:
                self._write_complete()
            self._wake()

    def _write_complete(self) -> None:
        done, self._complete = self._complete, []
        for identity in done:
            del self.unfinished[identity]
        self._core.append(records.DECIDED, msgspec.json.encode({"complete": done}))

    # ------------------------------------------------------------------ time

    def _doubt(self, one: Prepared) -> None:
        one.in_doubt = True
        if one.decider == self._core.group:
            self._behind(one.id, lambda: self.decide(one.id, _nobody))
        elif not one.asked_ms or one.asked_ms + ASK_MS <= self._core.now_ms:
            one.asked_ms = self._core.now_ms
            self.asked += 1
            self._core.settle_send(one.decider, {"do": "ask", "id": one.id})
        self._wake()

    def _wake(self) -> None:
        if not self._is_looking and (self._core.prepared.by_id or self.unfinished):
            self._is_looking = True
            self._core.call_at(self._core.now_ms + LOOK_MS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now_ms = self._core.now_ms
        for one in list(self._core.prepared.by_id.values()):
            if one.in_doubt or one.since_ms + DOUBT_MS <= now_ms:
                self._doubt(one)
        for identity, commit in list(self.unfinished.items()):
            if commit.told_ms + ASK_MS <= now_ms and commit.index <= self._core.safe:
                commit.told_ms = now_ms
                for group in sorted(commit.groups - commit.heard):
                    self._core.settle_send(group, {"do": "decide", "id": identity, "outcome": "committed"})
        if self._complete:
            self._write_complete()
        self._wake()

    # ------------------------------------------------------------------ the journal

    def apply(self, kind: int, index: int, body: Bytes, wants: Callable[[int], bool]) -> None:
        """Read again what concerns transactions across groups: PREPARE, DECIDED, and the ends of what is prepared."""
        prepared = self._core.prepared
        if kind == records.PREPARE:
            prepared.apply(index, body, wants)
        elif kind == records.COMMIT:
            session_id, number, _, _ = records.COMMIT_RECORD.unpack_from(body)
            if (one := prepared.by_key.get((session_id, number))) is not None:
                prepared.ended(one)
                self._note(one, "committed", index)
        elif kind == records.OUTCOME:
            facts = msgspec.json.decode(body)
            if (one := prepared.by_key.get((bytes.fromhex(facts["session"]), facts["transaction"]))) is not None:
                prepared.apply_rollback(one, wants)
                self._note(one, "rolled-back", index)
        elif kind == records.DECIDED:
            facts = msgspec.json.decode(body)
            for identity in facts.get("complete", ()):
                self.unfinished.pop(identity, None)
            if "rolled_back" in facts:
                self._know(facts["rolled_back"], "rolled-back", index)

    def snapshot(self) -> dict[str, Any]:
        open_ = {identity: sorted(one.groups) for identity, one in self.unfinished.items()}
        return {
            "prepared": self._core.prepared.snapshot(),
            "unfinished": open_,
            "known": [(identity, outcome) for identity, (outcome, _) in self._known.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._core.prepared.restore(state["prepared"])
        for identity, outcome in state["known"]:
            self._know(identity, outcome, 1)  # what a checkpoint tells is safe
        for identity, groups in state["unfinished"].items():
            self.unfinished[identity] = Unfinished(1, set(groups), 0)

    def recovered(self) -> None:
        """All records are read."""
        self._core.prepared.recovered()
        self._wake()

    def facts(self) -> dict[str, Any]:
        """For administration."""
        return {
            "prepared": len(self._core.prepared),
            "in_doubt": sum(one.in_doubt for one in self._core.prepared.by_id.values()),
            "unfinished": len(self.unfinished),
            "asked": self.asked,
            "dropped": self.dropped,
        }


def _nobody(outcome: Outcome, index: int) -> None:
    """Nobody asked."""
