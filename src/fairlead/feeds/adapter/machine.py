"""The feed adapter's machine: numbering, retained buffer, roles, links, time.

It is told what happened and when, and answers with actions to be done first to last. The order matters: an announcement
goes to the backups before the lines are woken for the record it announces (STR-56). Nothing here waits for a backup.
"""

from __future__ import annotations

import msgspec

from fairlead.feeds.adapter.actions import (
    Action,
    BeatLines,
    Log,
    RoleChanged,
    StopLines,
    ToAdministration,
    ToLink,
    Wake,
)
from fairlead.feeds.adapter.numbering import Landed
from fairlead.feeds.adapter.state import Limits
from fairlead.feeds.adapter.synchronising import admin_slot
from fairlead.feeds.adapter.talk import AdapterTalk
from fairlead.feeds.made import Made
from fairlead.feeds.records import ADMIN
from fairlead.feeds.words import (
    Admin,
    Refusal,
    Role,
    Source,
    Word,
)

__all__ = ["Adapter", "Limits"]

EPOCH_BITS = 32  # how far apart the numbers of adapters are that never heard of each other
EPOCH_LEAP_MAX = 1_000_000  # an epoch further ahead than this is nonsense
SILENT_BEATS = 3
SNAPSHOT_PARTS = 4  # sent to a joining backup at a time


class Adapter(AdapterTalk):
    """What happens to it."""

    # The source.

    def on_made(self, made: Made, now_s: float) -> list[Action]:
        """A converted batch."""
        before = self._numbering.last
        begin = self._numbering.take(made, now_s)
        self._counts["repeated"] += begin
        self._counts["records"] += self._numbering.last - before
        if self.limits.has_snapshots:
            self._snapshot.take(made, begin)
        return self._after(now_s)

    def on_source_gap(self, source: str, first: int, last: int, now_s: float) -> list[Action]:
        """The source has lost these for good (STR-15)."""
        actions: list[Action] = []
        if self._numbering.source_gap(source, first, last, now_s):
            self._counts["source_gaps"] += 1
            actions.append(Log("warning", f"source {source} has lost sequences {first} to {last}"))
        return actions + self._after(now_s)

    def on_source(self, source: Source, now_s: float) -> list[Action]:
        """A source is declared, or declared anew, before its first batch (STR-22)."""
        if self.sources.get(source.id) == source:
            return []
        self.sources[source.id] = source
        self._told_sources = 0
        return [BeatLines(), ToAdministration(self.report())] if self._had_role else [BeatLines()]

    def on_source_alive(self, is_alive: bool, now_s: float) -> list[Action]:
        if is_alive == self.source_alive:
            return []
        self.source_alive = is_alive
        return [ToAdministration(self.report())] if self._had_role else []

    # Roles.

    def on_role(self, role: Role, now_s: float) -> list[Action]:
        """What the administration says. An epoch that is past is not listened to (STR-5)."""
        if role.epoch < self.epoch:
            return []
        is_first, self._had_role = not self._had_role, True
        actions: list[Action] = []
        changed = RoleChanged(role.epoch, role.role, role.active, role.active_address, role.link_token)
        if role.role == "active":
            if is_first:
                self._snapshot.is_complete = True
            if not self._has_place:
                # Nobody's numbers are to be gone on with. Those of an adapter that others were active before are beyond
                # theirs, so that nothing of what they retain has to be numbered below 1.
                first = role.anchor if role.epoch == 1 and is_first else max(self.first, role.epoch << EPOCH_BITS)
                actions += self._renumber(first - self.first, now_s)
            if self.role != "active":
                actions += self._promote(role.epoch, changed, now_s)
            self._set_epoch(role.epoch)
        else:
            if self.role == "active":
                actions += self._step_down(role.epoch, self.last)
            self._set_epoch(role.epoch)
            if self._link != role.active:
                self._link, self._is_link_alive, self._synchroniser.is_anchored = "", False, False
            if changed != self._told_role:
                actions.append(changed)
        self._told_role = changed
        return actions + self._after(now_s)

    def on_epoch(self, epoch: int, now_s: float) -> list[Action]:
        """Somebody has named an epoch: if it is higher, this adapter is not the active of it."""
        if self.role != "active" or not self.epoch < epoch <= self.epoch + EPOCH_LEAP_MAX:
            return []
        return [*self._step_down(epoch, self.last), RoleChanged(epoch, "backup"), *self._after(now_s)]

    def _set_epoch(self, epoch: int) -> None:
        self.epoch = self._announcer.epoch = epoch

    def _promote(self, epoch: int, changed: RoleChanged, now_s: float) -> list[Action]:
        self.role = "active"
        self._set_epoch(epoch)
        self._link, self._switch, self._lag = "", "", 0
        self._announcer.peers.clear()
        self._counts["promotions"] += 1
        for entry in self._synchroniser.promoted(now_s):
            admin = entry.admin
            if (past := self._past(admin)) != admin:
                self._numbering.release(entry.n)
                self._numbering.reserve(entry.n, admin_slot(past), now_s)
                admin = past
            self._synchroniser.forget(entry)
            self._announcer.take_over(admin, entry.n, entry.revision, now_s)
        text = f"{self.name} is active in epoch {epoch} from number {self.last + 1}"
        welcomed = [action for peer in sorted(self._guests) for action in self._admit_backup(peer)]
        return [changed, Log("info", text), *welcomed]

    def _step_down(self, epoch: int, last: int) -> list[Action]:
        """Not active any more; lines get nothing beyond `last` unless they ask for it again."""
        self.role, self._link = "backup", ""
        self._set_epoch(epoch)
        self._synchroniser.is_anchored = False
        for one in self._announcer.resign():
            if one.n > self.last:
                self._synchroniser.adopt(one.admin, one.n, one.revision)
            else:  # it landed behind a planned switch, in the same batch
                self._synchroniser.sent_here(one.admin, one.n)
        self._snapshots_going.clear()
        self._guests.clear()
        return [StopLines(last), Log("info", f"{self.name} is not active any more: epoch {epoch}")]

    # Administrative messages.

    def on_send_admin(self, admin: Admin, now_s: float) -> list[Action]:
        """Send this one (STR-55). One that was sent already, or is about to be, is not sent twice."""
        if admin.id in self._admins or self._announcer.knows(admin.id):
            return []
        if self.role != "active":
            why = f"adapter {self.name} is not active: ask the administration who is"
            return [ToAdministration(Refusal(code="no-adapter", why=why)), Log("warning", why)]
        self._counts["announced"] += 1
        return self._announcer.send(admin, now_s) + self._after(now_s)

    def admin_id(self) -> str:
        """An administrative id that nobody else in the group makes."""
        self._counts["admins_made"] += 1
        return f"{self.name}-{self.incarnation}-{self._counts['admins_made']}"

    # The link.

    def on_link_up(self, peer: str, now_s: float, *, is_dialled: bool) -> list[Action]:
        """`is_dialled`: it is ours, to the active. Else another adapter has dialled us, perhaps before we know why."""
        if not is_dialled:
            self._guests.add(peer)
            return self._admit_backup(peer) if self.role == "active" else []
        if self.role == "active":
            return []
        self._link, self._heard_s, self._is_link_alive = peer, now_s, True
        self._anchoring.begin()
        self._snapshot.forget_joining()
        self._wants_snapshot = self.limits.has_snapshots and not self._snapshot.is_complete
        self._is_state_to_be_had = True
        return [ToLink(peer, self._admins.since(self.first)), *self._after(now_s)]

    def on_link_down(self, peer: str, now_s: float, *, is_dialled: bool) -> list[Action]:
        if not is_dialled:
            self._guests.discard(peer)
            self._desk.forget(peer)
            self._snapshots_going.pop(peer, None)
            return self._announcer.lost(peer, now_s) + self._after(now_s) if self.role == "active" else []
        if peer == self._link:
            self._link, self._is_link_alive = "", False
            self._synchroniser.is_anchored = False
            return [Log("warning", f"the link to {peer} is down: {self.name} is not synchronised")]
        return []

    def on_link_word(self, peer: str, word: Word, now_s: float) -> list[Action]:
        epoch = getattr(word, "epoch", 0)
        if self.role == "active":
            if epoch > self.epoch:
                return self.on_epoch(epoch, now_s)
            return self._from_backup(peer, word, now_s) + self._after(now_s)
        if peer != self._link or (epoch and epoch < self.epoch) or epoch > self.epoch + EPOCH_LEAP_MAX:
            return []
        self._heard_s = now_s
        if epoch > self.epoch:
            self._set_epoch(epoch)
        return self._from_active(peer, word, now_s) + self._after(now_s)

    # Time.

    def on_tick(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        self._retained.expire(now_s)
        if self.role == "active":
            actions += self._announcer.tick(now_s)
            for peer, parts in list(self._snapshots_going.items()):
                for _ in range(SNAPSHOT_PARTS):
                    part = next(parts, None)
                    if part is None:
                        self._snapshots_going.pop(peer, None)
                        break
                    actions.append(ToLink(peer, part))
        elif now_s - self._heard_s > SILENT_BEATS * self.limits.heartbeat_s:
            self._is_link_alive = False
        actions += self._after(now_s)
        if self._beat_due_s is None or now_s >= self._beat_due_s:
            self._beat_due_s = now_s + self.limits.heartbeat_s
            actions += self._check(now_s)
        return actions

    # What follows from anything that happened.

    def _after(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        if self.role == "active":
            actions += [ToLink(peer, self._anchor(source, at, number)) for peer, source, at, number in self._desk.due()]
        else:
            actions += self._find_place(now_s)
        actions += self._landed()
        actions += self._take_over(now_s)
        if self._retained.end != self._end:
            self._end = self._retained.end
            actions.append(Wake())
        return actions

    def _landed(self) -> list[Action]:
        return [action for landed in self._numbering.landed() for action in self._on_landed(landed)]

    def _on_landed(self, landed: Landed) -> list[Action]:
        """An administrative record, or its void, is in the stream."""
        if landed.slot.kind != ADMIN:
            self._counts["voids"] += 1
            return []
        self._counts["admins"] += 1
        admin = msgspec.msgpack.decode(landed.slot.body, type=Admin)
        self._admins.keep(landed.number, admin, landed.source, landed.place)
        one = self._announcer.landed(landed)
        if one is None:
            return []
        self._synchroniser.sent_here(admin, landed.number)
        actions = self._announcer.final(one, landed.number)
        if admin.kind == "switch" and admin.to != self.name:
            # The active stops here, and whoever follows is active from the next number on (STR-78).
            actions += self._step_down(admin.epoch, landed.number)
            actions.append(RoleChanged(admin.epoch, "backup", admin.to))
        return actions

    def _take_over(self, now_s: float) -> list[Action]:
        """A planned switch that names us is in both streams: we are active from here on."""
        entry = self._synchroniser.find(self._switch) if self._switch else None
        if entry is None or self.role == "active" or not (entry.is_final and entry.state == "settled"):
            return []
        self._switch = ""
        if entry.admin.kind != "switch" or entry.admin.epoch <= self.epoch:
            return []
        changed = RoleChanged(entry.admin.epoch, "active", self.name)
        return self._promote(entry.admin.epoch, changed, now_s) + self._landed()

    def shift(self, by: int, now_s: float) -> list[Action]:
        """For tests: all numbers move, as those of an adapter that has lost its place (STR-26)."""
        return self._renumber(by, now_s) + self._after(now_s)
