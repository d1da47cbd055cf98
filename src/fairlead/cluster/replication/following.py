"""A backup stores what the primary sends, says how far it is durable and agrees, and watches the primary (CLU-138)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.agreement import agreed, back_up
from fairlead.cluster.replication.events import NeedsState, Role
from fairlead.cluster.replication.record import nodes_of
from fairlead.errors import StoreFull

if TYPE_CHECKING:
    from fairlead.cluster.replication.member import Member

STRANGER_STANDS = 0.3  # how often one that is not in the set it knows asks the votes whether that is still so
SOON_S = 0.005


class Following:
    """`verified`: so far our log is known to be that of the primary of the epoch we are bound to."""

    def __init__(self, member: Member) -> None:
        self.member = member
        settings = member.settings
        # A primary that is there makes itself heard within a few ticks.
        self.contact_s = member.now_s - settings.detection_s + settings.tick_s * member.rng.uniform(2, 4)
        self.stand_at_s: float | None = None
        self.primary: str | None = None
        self.bound_to: str | None = None  # the candidate in whose choice we took part
        self.verified = 0
        self.told_safe = 0
        self.is_lacking = False
        self._asked_state_s = -1e9
        self._owed: tuple[str, m.FetchAsk] | None = None
        self._epoch_heard = 0
        self._dead = ("", 0)  # a node and its epoch
        self._deaf_until_s = 0.0

    @property
    def role(self) -> Role:
        if self.primary is None:
            return Role.JOINING
        if self.is_lacking or not self.member.notes.loaded:
            return Role.UNSYNCHRONISED
        return Role.IN_SYNC if self.member.store in self.member.notes.known.members else Role.SYNCHRONISING

    def forget(self) -> None:
        """Another epoch: what was known of the primary's log is void."""
        self.verified, self.told_safe, self.is_lacking = 0, 0, False
        self.stand_at_s, self.bound_to, self._owed = None, None, None

    # --- the primary's records

    def on_append(self, sender: str, append: m.Append) -> None:
        member = self.member
        if append.epoch < member.notes.fence and member.rules.check_epoch:
            member.send(sender, m.Refused("", member.notes.fence))
            return
        if (sender, append.epoch) == self._dead and member.now_s < self._deaf_until_s:
            return
        leading = member.leading
        if leading and append.epoch <= leading.epoch and not self._yields_to(sender, append):
            return
        if append.epoch > member.notes.fence or member.candidacy or leading:
            member.bow(append.epoch, f"{sender} leads in epoch {append.epoch}")
        self.contact_s, self.primary, self.stand_at_s = member.now_s, sender, None
        self._epoch_heard = append.epoch
        member.learn(append.record)
        member.say_waiting((), "")
        if not member.notes.loaded:
            if member.log.last:
                self._need_state("what a damaged disk has left is not a log", append)
                return
            member.notes.loaded = member.notes_dirty = True  # an empty store begins with the first record
        self._take(append)

    def _yields_to(self, sender: str, append: m.Append) -> bool:
        """Two primaries in one epoch cannot be while votes are kept; if they are, the longer log stays (CLU-152)."""
        leading, log = self.member.leading, self.member.log
        if leading is None or append.epoch < leading.epoch or sender == self.member.node:
            return False
        return (append.batch.last, self.member.node) > (log.last, sender)

    def _take(self, append: m.Append) -> None:
        member, log, batch = self.member, self.member.log, append.batch
        before = batch.first - 1
        if before > log.last:
            if log.last + 1 < append.oldest:
                self._need_state("the records that follow ours are only in the primary's state", append)
            else:
                self.report(log.last + 1)
            return
        anchor = max(before, member.safe)
        if anchor > batch.last:  # all of it is older than what we know to be safe
            self.report(member.safe + 1 if self.verified < member.safe else 0)
            return
        if log.epoch_at(anchor) != batch.epoch_at(anchor) and member.rules.match_previous:
            self._back_up(append, anchor)
            return
        top = agreed(log, batch, anchor) if member.rules.match_previous else min(batch.last, log.last)
        new, is_full = batch.last > top, False
        if new:
            member.cut(top)
            try:
                log.take(batch, top - before)
            except StoreFull:
                is_full = True  # what fitted was taken; the rest is asked for when a sign of life shows that it lacks
        self.is_lacking = False
        last = log.last if is_full else batch.last
        self.verified = max(self.verified, last)
        self.told_safe = max(self.told_safe, append.safe)
        self._settle()
        if not is_full and (not new or log.durable >= last or not member.rules.sync_before_stored):
            self.report()

    def _back_up(self, append: m.Append, anchor: int) -> None:
        member = self.member
        if anchor <= member.safe:  # only a forced promotion does that
            self._need_state("our history differs from the primary's in what was safe", append)
            return
        want = back_up(member.log, anchor, append.batch.epoch_at(anchor), member.safe + 1)
        if want < append.oldest <= anchor:
            self.report(append.oldest)  # it is known what precedes the oldest: perhaps the logs agree there
        elif want < append.oldest:
            self._need_state("our log parts from the primary's where that is only in its state", append)
        else:
            self.report(want)

    def _need_state(self, why: str, append: m.Append) -> None:
        member = self.member
        if not self.is_lacking or member.now_s - self._asked_state_s > member.settings.detection_s:
            self.is_lacking, self._asked_state_s = True, member.now_s
            backups = nodes_of(append.record.members) - {member.node, self.primary}
            hosts = (*sorted(str(node) for node in backups), str(self.primary))
            member.events.append(NeedsState(why, hosts, append.epoch))
        self.report()

    def report(self, want: int = 0) -> None:
        member = self.member
        if self.primary is not None:
            sure = min(self.verified, member.log.durable) if member.rules.sync_before_stored else self.verified
            member.send(self.primary, m.Stored(self._epoch_heard, member.store, sure, want))

    def on_durable(self) -> None:
        if self.primary is not None and self.verified:
            self._settle()
            self.report()

    def _settle(self) -> None:
        # Not beyond what is durable here: a checkpoint of the state must not know more than the log.
        self.member.settle(min(self.told_safe, self.verified, self.member.log.durable))

    def on_state(self, last: int, epoch: int) -> None:
        member = self.member
        if not member.notes.loaded:
            member.notes.loaded = member.notes_dirty = True
        member.safe = max(member.safe, member.log.first - 1)  # the rest of it is settled when we hear that it is safe
        if epoch == member.notes.fence:
            self.verified = max(self.verified, last)
        self.is_lacking = False
        self.report(last + 1)

    # --- the choice of a primary

    def on_join_ask(self, sender: str, ask: m.JoinAsk) -> None:
        member = self.member
        if ask.epoch < member.notes.fence:
            member.send(sender, m.Refused("", member.notes.fence))
            return
        if not member.notes.loaded and member.log.last:
            return
        if ask.epoch > member.notes.fence and member.rules.fence_members:
            member.bow(ask.epoch, f"{sender} is chosen in epoch {ask.epoch}")
            self.contact_s, self.primary, self.bound_to = member.now_s, None, sender
        log = member.log
        member.send(sender, m.Joined(ask.epoch, member.store, log.epoch_at(log.last), log.last))

    def on_fetch_ask(self, sender: str, ask: m.FetchAsk) -> None:
        member, log = self.member, self.member.log
        if ask.epoch != member.notes.fence and member.rules.fence_members:
            return
        self._owed = None
        want, batch, before = 0, None, ask.first - 1
        if before > log.last:
            want = log.last + 1
        elif before < log.first - 1:
            pass  # only in our state
        elif log.epoch_at(before) != ask.previous:
            want = back_up(log, before, ask.previous, log.first) if before >= log.first else 0
        elif ask.first <= log.last:
            batch = log.read(ask.first, member.settings.append_bytes)
            if batch is None:
                self._owed = sender, ask
                return
        head = ask.epoch, member.store, log.epoch_at(log.last), log.last, log.first, want
        if batch is None:
            member.send(sender, m.Fetched(*head, ask.first, ask.previous, (), memoryview(b"")))
        else:
            member.send(sender, m.Fetched(*head, batch.first, batch.previous, batch.epochs, memoryview(batch.data)))

    # --- time

    def mourn(self, node: str) -> None:
        """That primary, or candidate, is dead. The notice may have overtaken its last words: they come from nobody."""
        member = self.member
        self._dead, self._deaf_until_s = (node, member.notes.fence), member.now_s + member.settings.absence_s
        self._stand_soon()

    def _stand_soon(self) -> None:
        """The primary is lost. Who is of lower rank comes first (CLU-141)."""
        self.primary = None
        self.stand_at_s = self.member.now_s + self.member.rank * self.member.settings.stagger_s
        self.tick()

    def tick(self) -> None:
        member = self.member
        if self._owed:
            self.on_fetch_ask(*self._owed)
        if member.now_s < self._due_s():
            return
        asked, self.stand_at_s = self.stand_at_s is not None, None
        self.primary = None
        if self._may_stand() or (not asked and member.notes.loaded and member.rng.random() < STRANGER_STANDS):
            member.stand()
        else:
            self.contact_s = member.now_s - member.settings.detection_s / 2

    def _may_stand(self) -> bool:
        member, known = self.member, self.member.notes.known
        if known.is_founding:
            return member.log.last == 0
        return member.notes.loaded and member.store in known.members

    def _due_s(self) -> float:
        if self.stand_at_s is not None:
            return self.stand_at_s
        settings = self.member.settings
        return self.contact_s + settings.detection_s + self.member.rank * settings.stagger_s

    def next_s(self) -> float:
        return self.member.now_s + SOON_S if self._owed else self._due_s()
