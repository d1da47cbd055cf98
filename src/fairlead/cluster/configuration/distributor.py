"""All nodes run with the same files: checked at the start, and changed by all or none afterwards.

The machine of one node. It is told who is there and what comes in on the port `config`; after every call its edge first
carries out `events` (which write files), then writes `notes` if they changed, then sends `out`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, field, structs

from fairlead.cluster.configuration.checks import check_change, check_settings, electorate_warning
from fairlead.cluster.configuration.claims import Refusal, Relation, Start, Take, judge, relation
from fairlead.cluster.configuration.documents import canonical, changed_settings, from_canonical, settings_digest
from fairlead.cluster.configuration.events import Adopt, Checked, Done, Event, Note, Refused, Send
from fairlead.cluster.configuration.messages import (
    HISTORY_MAX,
    Accept,
    Accepted,
    Claim,
    Decided,
    Document,
    Fetch,
    Message,
    Prepare,
    Promise,
    Refuse,
)
from fairlead.cluster.configuration.register import Acceptor, Ballots, Proposer
from fairlead.cluster.configuration.types import ClusterSettings
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    import random

GRACE_S: Final = 1.0  # how long a node looks around before it believes that it is alone
ASK_AGAIN_S: Final = 0.5
PATIENCE_S: Final = 5.0  # for the answer of a node that is there and says nothing
REMIND_S: Final = 5.0
SPREAD_S: Final = 3.0

State = Literal["starting", "checked", "refused"]


class ConfigNotes(Struct, kw_only=True):
    """What a node remembers of its settings beside the file. `applied`: digest of what was last in force."""

    applied: str = ""
    history: list[str] = field(default_factory=list)
    ballots: Ballots = field(default_factory=Ballots)


@dataclass(slots=True)
class Change:
    """What an administrator wants."""

    ticket: int
    changes: dict[str, Any]
    until_s: float
    proposer: Proposer | None = None
    made: bytes = b""
    decided_s: float = 0.0


class Distributor:
    """`settings` are those in force; `state` says whether this node may work."""

    def __init__(
        self,
        node: str,
        *,
        kind: str,
        buses: Iterable[str],
        essential: str,
        founders: list[str],
        vote: bool,
        settings: ClusterSettings,
        notes: ConfigNotes,
        rng: random.Random,
        now_s: float,
        machine: str = "",
    ) -> None:
        self.node = node
        self.kind = kind
        self.state: State = "starting"
        self.settings = settings
        self.notes = notes
        self.notes_dirty = False
        self.out: list[Send] = []
        self.events: list[Event] = []
        self._buses = sorted(buses)
        self._essential = essential
        self._founders = founders
        self._vote = vote
        self._machine = machine
        self._rng = rng
        self._began_s = now_s
        self._data = canonical(settings)
        self._digest = settings_digest(self._data)
        self._decided = notes.applied == self._digest
        self._history = list(notes.history) if self._decided else self._descent()
        self._acceptor = Acceptor(notes.ballots)
        self._claims: dict[str, Claim] = {}
        self._present: dict[str, float] = {}  # since when
        self._asked_s = 0.0
        self._reminded_s = now_s
        self._changes: list[Change] = []
        self._warned: set[str] = set()

    def _descent(self) -> list[str]:
        """A file edited by hand descends from what it names, and if that is ours, from ours as well."""
        before = self.settings.predecessor
        if not before:
            return []
        return [before, *(self.notes.history if before == self.notes.applied else [])][:HISTORY_MAX]

    # -- what happens

    def on_view(self, names: Iterable[str], now_s: float) -> None:
        """Who is there, without ourselves and without mere observers."""
        present = set(names) - {self.node}
        for name in self._present.keys() - present:
            del self._present[name]
            self._claims.pop(name, None)
        for name in sorted(present - self._present.keys()):
            self._present[name] = now_s
            self._send(name, self.claim(answer=True))
        self.tick(now_s)

    def on_message(self, sender: str, message: Message, now_s: float) -> None:
        match message:
            case Claim():
                self._on_claim(sender, message)
            case Fetch(digest):
                if self.state == "checked" and digest == self._digest:
                    self._send(sender, Document(self._data, self._history))
            case Document(data, history):
                self._on_document(sender, data, history)
            case Decided(data, history):
                if self.state == "checked" and self._is_newer(data):
                    self._adopt(data, history, f"changed at {sender}")
                if self.state == "checked":
                    self._send(sender, self.claim())
            case Prepare() | Accept():
                self._on_ballot(sender, message)
            case Promise() | Accepted() | Refuse():
                if self._changes and (proposer := self._changes[0].proposer) is not None:
                    proposer.on_message(sender, message, now_s)
        self.tick(now_s)

    def tick(self, now_s: float) -> float:
        """When it wants to be called next."""
        if self.state == "starting":
            self._check(now_s)
        if self.state != "checked":
            return now_s + 0.1
        self._hear_majority()
        if now_s >= self._reminded_s + REMIND_S:
            self._reminded_s = now_s
            if warning := self.warning():
                self._warn(warning, warning)
            for name in self._present:
                claim = self._claims.get(name)
                if claim is None or claim.digest != self._digest:
                    self._send(name, self.claim(answer=True))
        return self._work(now_s)

    def change(self, ticket: int, changes: dict[str, Any], now_s: float, limit_s: float = 15.0) -> None:
        """Have these keys changed on all nodes; `Done` with the same ticket says how it went."""
        if self.state != "checked":
            self.events.append(Done(ticket, "this node is still being checked; ask again in a moment", 0))
            return
        try:
            check_change(self.settings, changed_settings(self.settings, changes))
        except ConfigError as error:
            self.events.append(Done(ticket, str(error), 0))
            return
        self._changes.append(Change(ticket, changes, now_s + limit_s))
        self.tick(now_s)

    @property
    def voters(self) -> list[str]:
        """Who decides the next revision."""
        return self.settings.voters or self._founders

    @property
    def digest(self) -> str:
        return self._digest

    def claim(self, *, answer: bool = False) -> Claim:
        groups = [group.name for group in self.settings.groups if self.node in group.members]
        return Claim(
            kind=self.kind,
            essential=self._essential,
            revision=self.settings.revision,
            digest=self._digest,
            history=self._history,
            decided=self._decided,
            checked=self.state == "checked",
            slot=self.notes.ballots.slot,
            remembers=self.notes.ballots.abstain >= 0,
            machine=self._machine,
            buses=self._buses,
            groups=groups,
            answer=answer,
        )

    def facts(self) -> dict[str, Any]:
        """For `status`."""
        same = [name for name, claim in self._claims.items() if claim.digest == self._digest]
        return {
            "state": self.state,
            "essential": self._essential,
            "revision": self.settings.revision,
            "settings": self._digest,
            "voters": self.voters,
            "expected": sorted(self._expected()),
            "machine": self._machine,
            "warning": self.warning(),
            "differing": sorted(self._claims.keys() - set(same)),
        }

    def warning(self) -> str:
        """What is unsafe about the electorate, as soon as all voters have been seen (CLU-147)."""
        machines = {name: claim.machine for name, claim in self._claims.items()} | {self.node: self._machine}
        known = {name: machines[name] for name in self.voters if machines.get(name)}
        return electorate_warning(known) if len(known) == len(self.voters) else ""

    # -- the check at the start

    def _on_claim(self, sender: str, claim: Claim) -> None:
        self._claims[sender] = claim
        self._present.setdefault(sender, self._began_s)
        if claim.answer:
            self._send(sender, self.claim())
        if self.state != "checked" or not claim.checked:
            return
        if claim.essential != self._essential:
            self._warn(f"{sender} runs with another cluster.toml ({claim.essential[:12]}…)", f"{sender} essential")
            return
        match relation(self.claim(), claim):
            case Relation.NEWER if claim.decided:
                self._send(sender, Fetch(claim.digest))
            case Relation.UNRELATED:
                self._warn(
                    f"{sender} runs with other settings (revision {claim.revision}, {claim.digest[:12]}…) that were "
                    "not made from ours; restart it, or the nodes on this side, to have it take the others'",
                    f"{sender} {claim.digest}",
                )
            case _:
                pass

    def _check(self, now_s: float) -> None:
        silent = [name for name in self._present if name not in self._claims]
        waiting = [name for name in silent if now_s < self._present[name] + PATIENCE_S]
        if waiting:
            if now_s >= self._asked_s + ASK_AGAIN_S:
                self._asked_s = now_s
                for name in waiting:
                    self._send(name, self.claim(answer=True))
            return
        claims = {name: self._claims[name] for name in self._present if name in self._claims}
        judgement = judge(self.node, self.claim(), claims)
        if isinstance(judgement, Refusal):
            self.state = "refused"
            self.events.append(Refused(judgement.reason))
        elif isinstance(judgement, Take):
            if now_s >= self._asked_s + ASK_AGAIN_S:
                self._asked_s = now_s
                self._send(judgement.node, Fetch(judgement.digest))
        elif isinstance(judgement, Start):
            if self._everybody() or now_s >= self._began_s + GRACE_S:
                self._start()
        elif now_s >= self._asked_s + ASK_AGAIN_S:
            self._asked_s = now_s
            self._send(judgement.node, self.claim(answer=True))

    def _everybody(self) -> bool:
        return self._expected() <= {self.node, *self._claims}

    def _expected(self) -> set[str]:
        """Nodes the files name; there may be others, such as client managers without a vote."""
        return {name for group in self.settings.groups for name in group.members} | set(self.voters)

    def _start(self) -> None:
        self.state = "checked"
        if not self._decided:  # edited offline, with nobody to contradict it
            self._decided = True
            self._remember()
        for name in self._present:
            self._send(name, self.claim())
        self.events.append(Checked())

    def _on_document(self, sender: str, data: bytes, history: list[str]) -> None:
        claim = self._claims.get(sender)
        if claim is None or not claim.checked or settings_digest(data) != claim.digest:
            return
        if self.state == "starting":
            if self._adopt(data, history, f"taken over from {sender}"):
                self._start()
        elif self.state == "checked" and self._is_newer(data):
            self._adopt(data, history, f"taken over from {sender}")

    # -- settings in force

    def _is_newer(self, data: bytes) -> bool:
        try:
            return from_canonical(data).revision > self.settings.revision
        except ConfigError as error:
            self._warn(str(error), "unreadable")
            return False

    def _adopt(self, data: bytes, history: list[str], how: str) -> bool:
        try:
            settings = from_canonical(data)
            check_settings(settings)
        except ConfigError as error:
            self._warn(str(error), "unreadable")
            return False
        self.settings, self._data, self._digest = settings, data, settings_digest(data)
        self._history = history[:HISTORY_MAX]
        self._decided = True
        self._remember()
        self.events.append(Adopt(settings))
        self.events.append(Note("info", f"settings of revision {settings.revision} are in force, {how}"))
        return True

    def _remember(self) -> None:
        self.notes.applied, self.notes.history = self._digest, self._history
        self.notes_dirty = True

    # -- votes

    def _on_ballot(self, sender: str, message: Prepare | Accept) -> None:
        if self.state != "checked":
            return
        if message.slot <= self.settings.revision:
            self._send(sender, Decided(self._data, self._history))
            return
        if not self._vote or self.node not in self.voters:
            self._send(sender, Refuse(message.slot, message.ballot, message.ballot, f"{self.node} has no vote"))
            return
        before = structs.asdict(self.notes.ballots)
        if isinstance(message, Prepare):
            answer: Message = self._acceptor.prepare(message, self.settings.revision)
        elif (reason := _unreadable(message.data)) is not None:
            answer = Refuse(message.slot, message.ballot, message.ballot, reason)
        else:
            answer = self._acceptor.accept(message, self.settings.revision)
        self.notes_dirty |= structs.asdict(self.notes.ballots) != before
        self._send(sender, answer)

    def _hear_majority(self) -> None:
        if self.notes.ballots.abstain >= 0:
            return
        others = [claim for name in self.voters if (claim := self._claims.get(name)) is not None and claim.remembers]
        if len(others) * 2 > len(self.voters) or set(self.voters) == {self.node}:
            known = [max(claim.revision, claim.slot) for claim in others]
            self._acceptor.heard([self.settings.revision, *known])
            self.notes_dirty = True

    def _work(self, now_s: float) -> float:
        """Bring the first of the wanted changes on its way."""
        due_s = now_s + REMIND_S
        while self._changes:
            change = self._changes[0]
            if change.decided_s:
                missing = self._missing()
                if missing and now_s < change.decided_s + SPREAD_S:
                    return min(due_s, now_s + 0.05)
                self._end(change, "", missing)
            elif now_s >= change.until_s:
                reasons = change.proposer.reasons if change.proposer else {}
                told = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()) if reason)
                self._end(
                    change,
                    f"no majority of the voters {', '.join(self.voters)} has agreed in time; it may still come into "
                    "force" + (f" ({told})" if told else ""),
                )
            elif change.proposer is None or change.proposer.slot <= self.settings.revision:
                if change.made and change.made == self._data:
                    change.decided_s = now_s
                else:
                    self._propose(change, now_s)
            elif change.proposer.chosen is not None:
                self._decide(change.proposer.chosen)
            else:
                return min(due_s, change.proposer.tick(now_s), change.until_s)
        return due_s

    def _propose(self, change: Change, now_s: float) -> None:
        try:
            wanted = changed_settings(self.settings, change.changes)
            check_change(self.settings, wanted)
        except ConfigError as error:  # what others changed meanwhile does not go with it
            self._end(change, str(error))
            return
        change.made = canonical(wanted)
        slot = wanted.revision
        change.proposer = Proposer(self.node, slot, change.made, list(self.voters), self._send, self._rng)
        change.proposer.begin(now_s)

    def _decide(self, data: bytes) -> None:
        history = [self._digest, *self._history][:HISTORY_MAX]
        if self._adopt(data, history, "by vote"):
            for name in self._present:
                self._send(name, Decided(data, history))

    def _missing(self) -> tuple[str, ...]:
        have = {name for name, claim in self._claims.items() if claim.revision >= self.settings.revision}
        return tuple(sorted(self._present.keys() - have))

    def _end(self, change: Change, error: str, missing: tuple[str, ...] = ()) -> None:
        self._changes.remove(change)
        revision = change.proposer.slot if change.proposer is not None and not error else 0
        self.events.append(Done(change.ticket, error, revision, missing))

    # -- small things

    def _send(self, node: str, message: Message) -> None:
        self.out.append(Send(node, message))

    def _warn(self, text: str, once: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            self.events.append(Note("warning", text))


def _unreadable(data: bytes) -> str | None:
    try:
        check_settings(from_canonical(data))
    except ConfigError as error:
        return str(error)[:400]
    return None
