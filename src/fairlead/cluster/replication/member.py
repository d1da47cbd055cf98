"""One store of a group: backup, candidate or primary. It decides who leads and what is safe in the log.

The log is ordered by the primary alone and checked like Raft's: a record is stored only behind the record it follows,
and "newer" means epoch first, then number. What differs is who counts: `copies` of the recorded in-sync set make a
record safe, and `set size - copies + 1` of that set (or the last primary's store), besides a majority of votes, make a
primary. The parts: `following`, `candidacy` (one object per election), `leading` (one per reign).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.candidacy import Candidacy
from fairlead.cluster.replication.events import (
    Degraded,
    Event,
    HandedOver,
    Led,
    Role,
    Send,
    Serving,
    SetAside,
    SteppedDown,
    Waiting,
)
from fairlead.cluster.replication.following import Following
from fairlead.cluster.replication.leading import Leading
from fairlead.cluster.replication.record import ControlRecord, nodes_of
from fairlead.cluster.replication.rules import ALL_RULES, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from fairlead.cluster.replication.log import Log
    from fairlead.cluster.replication.notes import MemberNotes
    from fairlead.cluster.replication.settings import Settings


class Member:
    """After every call the edge takes `events` and `out`; while `notes_dirty`, the notes are written durably first."""

    def __init__(
        self,
        group: str,
        node: str,
        store: str,
        log: Log,
        notes: MemberNotes,
        settings: Settings,
        rng: Random,
        now_s: float,
        *,
        founding: ControlRecord,
        peers: frozenset[str],
        loaded: bool,
        start: int = 0,
        rules: Rules = ALL_RULES,
    ) -> None:
        """`start`: of this process, as the bus counts them. `loaded`: False for what a damaged disk has left."""
        self.group, self.node, self.store, self.log, self.notes = group, node, store, log, notes
        self.settings, self.rng, self.now_s, self.founding, self.start, self.rules = (
            *(settings, rng, now_s, founding, start, rules),
        )
        self.peers, self.min_copies, self.strict_copies = peers, settings.min_copies, settings.strict_copies
        self.rank = 0  # who stands first when the primary is lost; only speed hangs on it (CLU-141)
        self.out: list[Send] = []
        self.events: list[Event] = []
        self.notes_dirty = notes.loaded != loaded
        notes.loaded = loaded
        self.seen = notes.fence  # the highest epoch heard of
        self.safe = max(0, log.first - 1) if loaded else 0
        self.serving = False
        self.waiting: Waiting | None = None
        self.lost: set[str] = set()  # nodes said to be dead, and not heard of since
        self.lame: frozenset[str] = frozenset()  # nodes that lost a bus which we have: not in sync (CLU-49)
        self.following = Following(self)
        self.candidacy: Candidacy | None = None
        self.leading: Leading | None = None
        self._degraded = False

    # --- what others may ask

    @property
    def role(self) -> Role:
        if self.leading:
            return Role.PRIMARY if self.leading.is_leased else Role.SUSPENDED
        return Role.CANDIDATE if self.candidacy else self.following.role

    @property
    def epoch(self) -> int:
        """The epoch we lead or follow in."""
        return self.leading.epoch if self.leading else self.notes.fence

    @property
    def primary(self) -> str | None:
        """The node that leads, as far as we know."""
        return self.node if self.leading else self.following.primary

    @property
    def record(self) -> ControlRecord:
        return self.leading.current if self.leading else self.notes.known

    def facts(self) -> dict[str, object]:
        record = self.record
        facts: dict[str, object] = {
            "role": self.role.value,
            "epoch": self.epoch,
            "primary": self.primary,
            "serving": self.serving,
            "store": self.store,
            "set": sorted(record.members),
            "version": record.version,
            "copies": record.copies,
            "votes": sorted(record.electorate),
            "last": self.log.last,
            "durable": self.log.durable,
            "safe": self.safe,
            "degraded": self._degraded,
            "waiting": {"for": list(self.waiting.whom), "why": self.waiting.why} if self.waiting else None,
        }
        if self.leading:
            facts |= self.leading.facts()
        return facts

    def may_serve(self, now_s: float) -> bool:
        """`serving`, asked at this very moment: a process that was stopped for a while asks before it delivers."""
        return self.serving and self.leading is not None and now_s < self.leading.lease_until_s

    # --- what happens

    def on_message(self, sender: str, message: m.Message, now_s: float) -> None:
        self.now_s = now_s
        self.lost.discard(sender)
        match message:
            case m.Append():
                self.following.on_append(sender, message)
            case m.Stored():
                if self.leading:
                    self.leading.on_stored(sender, message)
            case m.JoinAsk():
                self.following.on_join_ask(sender, message)
            case m.FetchAsk():
                self.following.on_fetch_ask(sender, message)
            case m.Willing() | m.Promised() | m.Joined() | m.Fetched():
                if self.candidacy:
                    self.candidacy.on_answer(message)
                elif self.leading and isinstance(message, m.Joined):
                    self.leading.on_joined(message)
            case m.Recorded():
                if self.leading:
                    self.leading.on_recorded(message)
                elif self.candidacy:
                    self.candidacy.on_recorded(message)
            case m.Refused():
                self._on_refused(message.epoch)
            case m.TakeOver():
                if not self.leading and not self.candidacy and message.epoch >= self.notes.fence:
                    self.stand()
            case _:
                pass  # for a vote
        self._settle_down()

    def on_appended(self, now_s: float) -> None:
        """We lead and records were written to the log."""
        self.now_s = now_s
        if self.leading:
            self.leading.on_appended()
        self._settle_down()

    def on_durable(self, now_s: float) -> None:
        """`log.durable` has grown."""
        self.now_s = now_s
        if self.leading:
            self.leading.advance_and_consider()
        else:
            self.following.on_durable()
        self._settle_down()

    def on_dead(self, node: str, start: int, now_s: float) -> None:
        """That process is dead, or gone from the view: who follows it stands at once, who leads it removes it."""
        self.now_s = now_s
        self.lost.add(node)
        if self.leading:
            self.leading.consider_change()
        elif node == self.following.primary or node == self.following.bound_to:
            self.following.mourn(node)
        self._settle_down()

    def accepts_state(self, last: int, last_epoch: int, epoch: int) -> bool:
        """Whether a state that ends with that record, from a host of that epoch, may replace ours (CLU-139)."""
        if self.leading or self.candidacy or epoch != self.notes.fence:
            return False
        ours = (self.log.epoch_at(self.log.last), self.log.last)
        return not self.notes.loaded or not self.rules.never_backwards or (last_epoch, last) >= ours

    def on_state(self, last: int, last_epoch: int, epoch: int, now_s: float, log: Log | None = None) -> None:
        """The edge asked `accepts_state` and has swapped that state in."""
        self.now_s = now_s
        if log is not None:
            self.log = log
        assert (self.log.last, self.log.epoch_at(last)) == (last, last_epoch)
        self.following.on_state(last, epoch)
        self._settle_down()

    def tick(self, now_s: float) -> float:
        """Returns when it wants to be ticked next."""
        self.now_s = now_s
        part: Leading | Candidacy | Following = self.leading or self.candidacy or self.following
        part.tick()
        self._settle_down()
        return self.next_s()

    def next_s(self) -> float:
        """When it wants to be ticked next; any call may bring it nearer."""
        return (self.leading or self.candidacy or self.following).next_s()

    # --- administration

    def configure(self, peers: frozenset[str], min_copies: int, strict_copies: bool, now_s: float) -> None:
        """The configuration has changed: nodes that host the group, copies a confirm needs."""
        self.now_s, self.peers, self.min_copies, self.strict_copies = now_s, peers, min_copies, strict_copies
        if self.leading:
            self.leading.consider_change()
            self.leading.advance()
        self._settle_down()

    def hand_over(self, to_node: str, now_s: float) -> None:
        """Give the role to an in-sync backup: stop serving, let it catch up, step down (CLU-34). Ends in HandedOver."""
        self.now_s = now_s
        if self.leading:
            self.leading.hand_over(to_node)
        else:
            self.events.append(HandedOver(to_node, False, "we are not the primary"))
        self._settle_down()

    def give_up(self, why: str, now_s: float) -> None:
        """Lead no more, at once: our disk failed, our process ends (CLU-140)."""
        self.now_s = now_s
        if self.leading:
            self.leading.release_lease()
            self.step_down(why)
        self.candidacy = None
        self._settle_down()

    def force(self, now_s: float) -> None:
        """Become primary with what this store has, although others may have had more (CLU-151)."""
        self.now_s = now_s
        if not self.leading:
            self.stand(forced=True)
        self._settle_down()

    def change_electorate(self, add: str | None, remove: str | None, now_s: float) -> None:
        """Votes, by their identity; one change at a time, in order (CLU-145). The primary ends it in SetChanged."""
        self.now_s = now_s
        if self.leading:
            self.leading.change_electorate(add, remove)
        self._settle_down()

    # --- for the parts

    def send(self, node: str, message: m.Message) -> None:
        self.out.append(Send(node, f"member:{self.group}", message))

    def ask_voters(self, electorate: Iterable[str], message: m.Message) -> None:
        for node in sorted(nodes_of(electorate)):
            self.out.append(Send(node, f"voter:{self.group}", message))

    def enough(self, record: ControlRecord) -> int:
        return record.enough if self.rules.copies_in_record else min(self.min_copies, len(record.members))

    def learn(self, record: ControlRecord) -> None:
        if record.stamp > self.notes.known.stamp:
            self.notes.known, self.notes_dirty = record, True

    def bind(self, epoch: int) -> None:
        """Store and report nothing for a lower epoch any more (CLU-150)."""
        if epoch > self.notes.fence:
            self.notes.fence, self.notes_dirty = epoch, True
        self.seen = max(self.seen, epoch)
        self.following.forget()

    def bow(self, epoch: int, why: str) -> None:
        """Somebody of that epoch leads or is chosen."""
        self.candidacy = None
        self.step_down(why)
        self.bind(epoch)

    def stand(self, forced: bool = False) -> None:
        self.following.primary = None
        self.candidacy = Candidacy(self, forced)
        self.candidacy.ask()

    def withdraw(self, pause_s: float) -> None:
        """Stand no more, and not again before this pause is over."""
        self.candidacy = None
        self.following.contact_s = self.now_s - self.settings.detection_s + pause_s

    def lead(self, record: ControlRecord, sent_s: float, took_part: frozenset[str]) -> None:
        self.candidacy = None
        self.bind(record.epoch)
        self.notes.leading, self.notes.known, self.notes.loaded, self.notes_dirty = record.epoch, record, True, True
        self.leading = Leading(self, record, sent_s, took_part)
        self.say_waiting((), "")
        self.events.append(Led(record.epoch))
        self.leading.speak()

    def step_down(self, why: str) -> None:
        if self.leading:
            epoch, self.leading = self.leading.epoch, None
            self.following.contact_s = self.now_s
            if self.serving:
                self.serving = False
                self.events.append(Serving(False))
            self.events.append(SteppedDown(epoch, why))

    def cut(self, last: int) -> None:
        """Undo what no primary has."""
        assert last >= self.safe, f"{self.store}: record {last + 1} is safe and would be undone (safe {self.safe})"
        if last < self.log.last:
            self.events.append(SetAside(last + 1, self.log.last))
            self.log.cut(last)

    def settle(self, safe: int) -> None:
        if safe > self.safe:
            self.safe = safe
            self.log.settle(safe)

    def say_waiting(self, whom: Iterable[str], why: str) -> None:
        waiting = Waiting(tuple(sorted(whom)), why) if why else None
        if waiting != self.waiting:
            self.waiting = waiting
            self.events.append(waiting or Waiting((), ""))

    # --- inside

    def _on_refused(self, epoch: int) -> None:
        self.seen = max(self.seen, epoch)
        if self.leading and epoch > self.leading.epoch:
            self.step_down("a higher epoch was promised")
            self.following.contact_s = self.now_s - self.rng.uniform(0, self.settings.detection_s)
        if self.candidacy and epoch >= self.candidacy.epoch:
            self.withdraw(self.rng.uniform(0.25, 1.5) * self.settings.retry_s)

    def _settle_down(self) -> None:
        """Tell of what has changed with this call."""
        if self.leading:
            self.leading.go_on_handing_over()
        serving = self.leading is not None and self.leading.is_serving
        if serving != self.serving:
            self.serving = serving
            self.events.append(Serving(serving))
        degraded = self.leading is not None and self.leading.is_degraded
        if degraded != self._degraded:
            self._degraded = degraded
            self.events.append(Degraded(degraded))
