"""What adapters of a group say to each other: anchors, announcements, decisions, what was missed (docs/feeds.md, 4)."""

from __future__ import annotations

from fairlead.feeds.adapter.actions import Action, Log, Renumbered, ToAdministration, ToLink
from fairlead.feeds.adapter.state import BEAT_ADMINS_MAX, AdapterState
from fairlead.feeds.records import Place
from fairlead.feeds.words import (
    Admin,
    Anchor,
    Announce,
    AskAnchor,
    AskedAdmin,
    Beat,
    Decided,
    Final,
    SnapshotAsk,
    SnapshotPart,
    Unavailable,
    Word,
)

__all__ = ["AdapterTalk"]


class AdapterTalk(AdapterState):
    """Its two sides: the active answers and announces, the backup finds its place and decides."""

    # At the active.

    def _admit_backup(self, peer: str) -> list[Action]:
        """What was sent, what is announced, and how we are: it needs no more to find its place."""
        self._announcer.peers.add(peer)
        self._desk.forget(peer)
        words = (self._admins.since(self.first), *self._announcer.outstanding, self.beat())
        return [ToLink(peer, word) for word in words]

    def _from_backup(self, peer: str, word: Word, now_s: float) -> list[Action]:
        match word:
            case AskAnchor():
                self._desk.ask(peer, word)
            case Decided():
                return self._announcer.decided(peer, word, now_s)
            case Beat():
                return self._announcer.heard(peer, word.synchronised, now_s)
            case AskedAdmin():
                return self._repeat(word, now_s)
            case SnapshotAsk():
                if not self._snapshot.is_complete:
                    return [ToLink(peer, Unavailable(id=word.id, why="the active does not know the whole state"))]
                self._snapshots_going[peer] = self._snapshot.parts(word.id, self._numbering.positions, with_keys=True)
            case _:
                pass
        return []

    def _repeat(self, word: AskedAdmin, now_s: float) -> list[Action]:
        """What a backup has in its stream, or was to have, and we never heard of: its announcement did not reach us.

        We send it as our own; clients know it by its id. An adapter that was never linked to anybody would repeat old
        ones to everybody, so it repeats only what is not known to be sent, and what was sent while it was there itself:
        a client that came over to it from before that place has passed it.
        """
        actions: list[Action] = []
        for number, admin, source, placed in word.sent:
            is_known = admin.id in self._admins or self._announcer.knows(admin.id)
            is_wanted = number == 0 or self._counts["anchored"] > 0 or self._retained.reaches_to(source, placed[0])
            if is_wanted and not is_known and self._synchroniser.find(admin.id) is None:
                actions += self._announcer.announce(self._past(admin), now_s)
        return actions

    def _past(self, admin: Admin) -> Admin:
        """One of a former active: clients must not leave us for the adapter that a switch of it names."""
        if admin.kind != "switch" or admin.to == self.name:
            return admin
        return Admin(id=admin.id, kind="text", body=f"planned switch to {admin.to} did not happen".encode())

    # At a backup.

    def _from_active(self, peer: str, word: Word, now_s: float) -> list[Action]:
        decided: list[Decided] = []
        match word:
            case Announce():
                decided += self._announced(word, now_s)
            case Final():
                self._synchroniser.final(word, now_s)
            case AskedAdmin():
                for number, admin, source, place in word.sent:
                    if admin.id not in self._admins:
                        self._admins.keep(0, admin, source, Place(*place))
                    self._synchroniser.sent_before(number, admin, now_s)
            case Anchor():
                for announce in word.admins:
                    decided += self._announced(announce, now_s)
                self._anchoring.heard(word)
            case Beat():
                self._is_link_alive = word.role == "active"
                self._active_admins = word.admins[:BEAT_ADMINS_MAX]
                if (found := self._anchoring.beat(word)) is not None:
                    return self._align(*found, now_s)
                if self._synchroniser.is_anchored:
                    self._lag = word.last - self._synchroniser.there(self.last)
            case SnapshotPart():
                self._is_state_to_be_had = True
                self._snapshot.joining(word)
            case Unavailable():
                self._wants_snapshot = not self._snapshot.is_complete
                self._is_state_to_be_had = False
            case _:
                pass
        return self._tell(decided)

    def _announced(self, word: Announce, now_s: float) -> list[Decided]:
        if word.admin.kind == "switch" and word.admin.to == self.name:
            self._switch = word.admin.id
        source, place = self._numbering.newest
        if word.admin.id not in self._admins:
            self._admins.keep(0, word.admin, source, place)
        decided = self._synchroniser.announced(word, now_s)
        return [decided] if decided else []

    def _tell(self, decided: list[Decided]) -> list[Action]:
        """The active hears each decision; the administration hears of refusals (STR-65)."""
        actions: list[Action] = []
        for one in decided:
            actions.append(ToLink(self._link, one))
            if one.result == "refused":
                actions.append(ToAdministration(one))
        return actions

    def _find_place(self, now_s: float) -> list[Action]:
        if not self._link:
            return []
        self._snapshot.settle(self.positions)
        found = self._anchoring.resolve(self.sources)
        if found is not None:
            return self._align(*found, now_s)
        question = self._anchoring.question()
        return [] if question is None else [ToLink(self._link, question)]

    def _align(self, number: int, anchor: int, now_s: float) -> list[Action]:
        orphans = self._hand_over()
        shift, decided = self._synchroniser.align(number, anchor, now_s)
        self._counts["anchored"] += 1
        self._has_place = True
        return self._renumbered(shift) + self._tell(decided) + orphans

    def _hand_over(self) -> list[Action]:
        """What the active does not know is its to send, with us as with the others, or our numbers would part."""
        source, place = self._numbering.newest
        actions: list[Action] = []
        for entry in self._synchroniser.orphans():
            sent = (entry.n if entry.is_final else 0, entry.admin, source, place)
            actions.append(ToLink(self._link, AskedAdmin(sent=(sent,))))
        return actions

    def _renumber(self, shift: int, now_s: float) -> list[Action]:
        self._has_place = True
        if shift:
            self._numbering.renumber(shift, now_s)
        return self._renumbered(shift)

    def _renumbered(self, shift: int) -> list[Action]:
        if not shift:
            return []
        self.incarnation += 1
        self._counts["renumbered"] += 1
        self._admins.moved(shift)
        text = f"{self.name} has moved its numbers by {shift}: incarnation {self.incarnation}"
        return [Renumbered(self.incarnation, shift), Log("info", text)]

    # At both, with each heartbeat.

    def _check(self, now_s: float) -> list[Action]:
        """With each heartbeat: the active names its newest record, a backup asks for what it still needs."""
        if self.role == "active":
            beat = self.beat()
            anchor = self._anchor(*self._desk.newest())
            return [ToLink(peer, word) for peer in sorted(self._announcer.peers) for word in (beat, anchor)]
        if not self._link:
            return []
        actions: list[Action] = [ToLink(self._link, self.beat())]
        question = self._anchoring.question(again=True)
        if question is not None:
            actions.append(ToLink(self._link, question))
        if self._wants_snapshot and self._synchroniser.is_anchored:
            self._wants_snapshot = False
            actions.append(ToLink(self._link, SnapshotAsk(id=1)))
        return actions

    def _anchor(self, source: str, place: Place, number: int) -> Anchor:
        return Anchor(epoch=self.epoch, source=source, place=place, number=number, admins=self._announcer.outstanding)
