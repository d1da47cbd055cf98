"""One reign of a primary: lease, feeds of the backups, what is safe, handing over (CLU-116, CLU-143, CLU-149)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cluster.replication import messages as m
from fairlead.cluster.replication.changes import Changes
from fairlead.cluster.replication.events import HandedOver
from fairlead.cluster.replication.feed import Feed
from fairlead.cluster.replication.record import ControlRecord, is_majority, node_of, nodes_of

if TYPE_CHECKING:
    from fairlead.cluster.replication.member import Member

RENEWALS_KEPT = 16
SOON_S = 0.005


class Leading(Changes):
    """`match`: how far each store is durable and agrees. `start_index`: of the START record of this epoch."""

    def __init__(self, member: Member, record: ControlRecord, sent_s: float, took_part: frozenset[str]) -> None:
        super().__init__(member, record, took_part)
        self.lease_until_s = sent_s + member.settings.lease_s
        self.start_index = member.log.last + 1
        self.feeds: dict[str, Feed] = {}
        self.handing_to: str | None = None
        self._handing_until_s = 0.0
        self._renewals: dict[float, set[str]] = {}
        self._renew_at_s = member.now_s + member.settings.renew_s

    def speak(self) -> None:
        """To everybody at once: a backup that hears us does not stand, and knows the record."""
        self._update_feeds()
        for node in sorted(self.feeds):
            self._sign_of_life(node)

    # --- the lease

    @property
    def is_leased(self) -> bool:
        return self.member.now_s < self.lease_until_s

    @property
    def is_serving(self) -> bool:
        """What we took over is safe, we hold the lease, and nobody is to take over."""
        return self.is_leased and self.member.safe >= self.start_index and self.handing_to is None

    @property
    def is_degraded(self) -> bool:
        return len(self.current.members) < min(self.member.min_copies, len(self.member.peers | {self.member.node}))

    def renew(self) -> None:
        """Repeat the newest record to all votes: it renews the lease and reaches who missed it."""
        member = self.member
        now_s = member.now_s
        self._renew_at_s = now_s + member.settings.renew_s
        self._renewals.setdefault(now_s, set())
        if len(self._renewals) > RENEWALS_KEPT:
            del self._renewals[min(self._renewals)]
        newest = self.pending or self.current
        nodes = self.current.electorate | newest.electorate | {f"{node}." for node in newest.returning}
        member.ask_voters(nodes, m.RecordAsk(newest, now_s, member.start))

    def on_recorded(self, recorded: m.Recorded) -> None:
        if recorded.epoch != self.epoch:
            return
        member, heard = self.member, self._renewals.get(recorded.sent)
        if heard is not None:
            heard.add(recorded.voter)
            if all(is_majority(electorate, heard) for electorate in self.electorates):
                begun_s = recorded.sent if member.rules.lease_from_send else member.now_s
                self.lease_until_s = max(self.lease_until_s, begun_s + member.settings.lease_s)
        if self.count_vote(recorded.voter, recorded.version, recorded.sent):
            self.speak()
        self.advance()
        self.consider_change()

    def release_lease(self) -> None:
        electorate = self.current.electorate | (self.pending or self.current).electorate
        self.member.ask_voters(electorate, m.StepDown(self.epoch, self.member.store))

    # --- the backups

    def on_appended(self) -> None:
        self.advance()
        self.pump()

    def on_stored(self, sender: str, stored: m.Stored) -> None:
        member = self.member
        self._update_feeds()
        feed = self.feeds.get(sender)
        if stored.epoch != self.epoch or feed is None:
            return
        self.heard_from(stored.store, stored.upto)
        feed.on_stored(stored.store, stored.upto, stored.want, member.log.last, member.now_s)
        self.advance_and_consider(stored.store not in self.current.members)
        self._pump(sender, feed)

    def on_joined(self, joined: m.Joined) -> None:
        """One that answered a moment too late took part all the same."""
        if joined.epoch == self.epoch:
            self.took_part |= {joined.store}

    def pump(self) -> None:
        made: dict[int, m.Append] = {}
        for node in sorted(self.feeds):
            self._pump(node, self.feeds[node], made)

    def _pump(self, node: str, feed: Feed, made: dict[int, m.Append] | None = None) -> None:
        member = self.member
        for append in feed.pump(member.log, self.epoch, self.current, member.safe, member.now_s, made):
            member.send(node, append)

    def _sign_of_life(self, node: str) -> None:
        member = self.member
        life = self.feeds[node].sign_of_life(member.log, self.epoch, self.current, member.safe, member.now_s)
        member.send(node, life)

    def _update_feeds(self) -> None:
        member = self.member
        nodes = member.peers | nodes_of(self.current.members) | nodes_of((self.pending or self.current).members)
        for node in nodes - {member.node} - self.feeds.keys():
            self.feeds[node] = Feed(member.log.last + 1, member.settings)
        for node in self.feeds.keys() - nodes:
            del self.feeds[node]

    # --- what is safe

    def advance(self) -> None:
        """Find what has become safe (CLU-116)."""
        member, log = self.member, self.member.log
        self.match[member.store] = log.durable
        records = [self.current]
        if self.pending and member.rules.joint_sets:
            records.append(self.pending)
        position = min(self._covered(record) for record in records)
        if position <= member.safe or not self.is_leased:
            return
        if member.rules.own_epoch and log.epoch_at(position) != self.epoch:
            return  # what was taken over becomes safe with the START record behind it (CLU-143)
        member.settle(position)

    def advance_and_consider(self, is_new: bool = False) -> None:
        """Something was stored: nothing in the set changes by that, but at the beginning, or if it `is_new` in it."""
        is_new |= self.member.safe < self.start_index
        self.advance()
        if is_new:
            self.consider_change()

    def _covered(self, record: ControlRecord) -> int:
        """So far the log is durable here and on as many stores of that set as it takes."""
        member = self.member
        needed = member.enough(record)
        if member.strict_copies:
            needed = max(needed, min(record.copies, len(member.peers | {member.node})))
        if not member.rules.count_copies:
            needed = 1
        if needed > len(record.members):
            return 0
        upto = sorted((self.match.get(store, 0) for store in record.members), reverse=True)
        return min(upto[needed - 1], member.log.durable)

    # --- handing over

    def hand_over(self, to_node: str) -> None:
        member = self.member
        if to_node not in nodes_of(self.current.members - {member.store}):
            member.events.append(HandedOver(to_node, False, "it is not an in-sync backup"))
        elif self.handing_to is None:
            self.handing_to, self._handing_until_s = to_node, member.now_s + member.settings.handover_s

    def go_on_handing_over(self) -> None:
        member, to = self.member, self.handing_to
        if to is None:
            return
        last = member.log.last
        caught_up = any(self.match.get(store, 0) >= last for store in self.current.members if node_of(store) == to)
        if caught_up and member.safe >= last and self.pending is None:
            self.release_lease()
            member.send(to, m.TakeOver(self.epoch))
            member.events.append(HandedOver(to, True))
            member.step_down(f"handed over to {to}")
        elif member.now_s >= self._handing_until_s:
            self.handing_to = None
            member.events.append(HandedOver(to, False, "it did not catch up in time"))

    # --- time

    def tick(self) -> None:
        member = self.member
        self._update_feeds()
        if member.now_s >= self._renew_at_s:
            self.renew()
        self.look_for_slow()
        self.consider_change()
        self.advance()
        self.pump()
        for node in sorted(self.feeds):
            if member.now_s - self.feeds[node].sent_s >= member.settings.tick_s:
                self._sign_of_life(node)

    def next_s(self) -> float:
        now_s, tick_s = self.member.now_s, self.member.settings.tick_s
        if any(feed.is_reading for feed in self.feeds.values()):
            return now_s + SOON_S
        due = [self._renew_at_s, *(feed.sent_s + tick_s for feed in self.feeds.values())]
        if self.is_leased:
            due.append(self.lease_until_s)
        if not self.has_settled:
            due.append(self.since_s + self.member.settings.absence_s)
        return max(min(due), now_s + SOON_S)

    def facts(self) -> dict[str, object]:
        last = self.member.log.last
        return {
            "lease_s": round(max(0.0, self.lease_until_s - self.member.now_s), 3),
            "match": dict(sorted(self.match.items())),
            "lag": {store: last - upto for store, upto in sorted(self.match.items())},
            "under_way": {node: feed.under_way_bytes for node, feed in sorted(self.feeds.items())},
            "changing": str(self.pending) if self.pending else None,
            "handing_to": self.handing_to,
        }
