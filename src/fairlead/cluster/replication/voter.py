"""One vote on a group's control record: a Paxos acceptor whose ballot is the epoch (CLU-144).

A promise for an epoch is given once and only upwards. Within an epoch its holder alone writes, so a change of the
in-sync set costs one round. Recording it, anew or again, keeps others away for lease + margin of this vote's own clock.
"""

from __future__ import annotations

from fairlead.cluster.replication.events import Send
from fairlead.cluster.replication.messages import (
    Message,
    PromiseAsk,
    Promised,
    RecordAsk,
    Recorded,
    Refused,
    StepDown,
    Willing,
)
from fairlead.cluster.replication.notes import VoterNotes
from fairlead.cluster.replication.record import ControlRecord, node_of
from fairlead.cluster.replication.rules import ALL_RULES, Rules
from fairlead.cluster.replication.settings import Settings

UNKNOWN_START = 1 << 63  # of a holder that has not spoken in this life: no notice of death is about it for certain


class Voter:
    """`out` is taken by the edge after every call; while `notes_dirty`, the notes are written durably first."""

    def __init__(
        self,
        group: str,
        identity: str,
        notes: VoterNotes,
        settings: Settings,
        now_s: float,
        *,
        founding: ControlRecord,
        rules: Rules = ALL_RULES,
    ) -> None:
        self.group, self.identity, self.notes, self.settings, self.rules = group, identity, notes, settings, rules
        self.founding = founding
        self.out: list[Send] = []
        self.notes_dirty = False
        # It may have granted a lease in an earlier life and does not remember; but nobody led before the first record.
        waits = rules.voter_waits and not notes.record.is_founding
        self.leased_until_s = now_s + settings.lease_s + settings.margin_s if waits else now_s
        self.holder = notes.record.primary if waits else ""
        self.holder_start = UNKNOWN_START
        self.refusals = 0
        self._dead: dict[str, int] = {}  # the process of a node that died last: a notice may overtake its last words

    def on_message(self, sender: str, message: Message, now_s: float) -> None:
        match message:
            case PromiseAsk():
                self._on_promise_ask(sender, message, now_s)
            case RecordAsk():
                self._on_record_ask(sender, message, now_s)
            case StepDown(epoch, store):
                if epoch == self.notes.record.epoch and store == self.holder:
                    self.leased_until_s = now_s
            case _:
                pass  # not for a vote

    def on_dead(self, node: str, start: int, now_s: float) -> None:
        """This process is dead for certain, so it serves no more. Losing sight of it is not enough (CLU-149)."""
        self._dead[node] = start
        if node_of(self.holder) == node and self.holder_start <= start:
            self.leased_until_s = now_s

    def facts(self, now_s: float) -> dict[str, object]:
        notes = self.notes
        return {
            "vote": self.identity,
            "promised": notes.promised,
            "record": [notes.record.epoch, notes.record.version],
            "counts": self.identity in notes.record.electorate,
            "lease_s": max(0.0, round(self.leased_until_s - now_s, 3)),
        }

    def _on_promise_ask(self, sender: str, ask: PromiseAsk, now_s: float) -> None:
        notes = self.notes
        taken = ask.epoch == notes.promised and ask.store != notes.promised_to and self.rules.promise_once
        if ask.epoch < notes.promised or taken:
            self._refuse(sender)
        elif now_s < self.leased_until_s and ask.store != self.holder and self.rules.obey_lease:
            pass  # a primary may still serve: no answer is the answer
        elif ask.trial:
            self._reply(sender, Willing(self.identity, ask.epoch, notes.record))
        else:
            if (notes.promised, notes.promised_to) != (ask.epoch, ask.store):
                notes.promised, notes.promised_to, self.notes_dirty = ask.epoch, ask.store, True
            self._reply(sender, Promised(self.identity, ask.epoch, notes.record))

    def _on_record_ask(self, sender: str, ask: RecordAsk, now_s: float) -> None:
        notes, record = self.notes, ask.record
        if record.epoch < notes.promised or record.stamp < notes.record.stamp:
            self._refuse(sender)
            return
        if record.stamp != notes.record.stamp or record.epoch != notes.promised:
            notes.promised, notes.promised_to, notes.record = record.epoch, record.primary, record
            self.notes_dirty = True
        self.holder, self.holder_start = record.primary, ask.start
        self.leased_until_s = now_s
        if self._dead.get(node_of(record.primary)) != ask.start:
            self.leased_until_s += self.settings.lease_s + self.settings.margin_s
        self._reply(sender, Recorded(self.identity, record.epoch, record.version, ask.sent))

    def _refuse(self, sender: str) -> None:
        self.refusals += 1
        self._reply(sender, Refused(self.identity, self.notes.promised))

    def _reply(self, node: str, message: Message) -> None:
        self.out.append(Send(node, f"member:{self.group}", message))
