"""The active's side of administrative messages: choosing N, announcing, revising, sending (STR-56, STR-57, STR-65).

The active never waits for a backup: what is announced for N is sent at N, or, if the source is so quiet that N is not
reached, at the next number. Only a planned switch is not even announced before the adapter that is to take over says
that it is synchronised.

A place is moved to a later one only while nobody can have used it: a copy that stands earlier in a backup's stream than
in ours would be missed by a client that changes over between the two.
"""

from __future__ import annotations

from fairlead.feeds.adapter.actions import Action, Log, ToAdministration, ToLink
from fairlead.feeds.adapter.numbering import Landed, Numbering
from fairlead.feeds.adapter.synchronising import admin_slot
from fairlead.feeds.words import Admin, Announce, Decided, Final, Refusal

__all__ = ["Announcer", "Outstanding"]

OUTSTANDING_MAX = 1000
REVISIONS_MAX = 3  # after refusals
SWITCH_S = 2.0  # how long a planned switch waits for its adapter, and then for its place


class Outstanding:
    """An administrative message that is announced and not yet sent."""

    __slots__ = ("admin", "began_s", "last", "n", "refusals", "refused_by", "revision", "since_s")

    def __init__(self, admin: Admin, n: int, revision: int, now_s: float) -> None:
        self.admin = admin
        self.n = n
        self.revision = revision
        self.began_s = now_s
        self.since_s = now_s  # when the latest revision was announced
        self.last = 0  # of a switch: our latest number at that time
        self.refusals = 0
        self.refused_by: set[str] = set()  # backups that do not send this revision


class Announcer:
    """What the active adapter has announced. `peers`: the backups with a link; `epoch`: of the announcements."""

    def __init__(self, numbering: Numbering, *, name: str, lead: int, revise_s: float) -> None:
        self._numbering = numbering
        self._name = name
        self._lead = max(lead, 1)
        self._revise_s = revise_s
        self._outstanding: dict[str, Outstanding] = {}
        self._ordered: dict[str, tuple[Admin, float]] = {}  # switches that wait for their adapter, and since when
        self._ready: set[str] = set()  # backups that say that they are synchronised
        self.peers: set[str] = set()
        self.epoch = 0

    @property
    def next_s(self) -> float | None:
        """When the next revision is due."""
        due = [one.since_s + self._revise_s for one in self._outstanding.values()]
        due += [since_s + SWITCH_S for _, since_s in self._ordered.values()]
        return min(due, default=None)

    @property
    def outstanding(self) -> tuple[Announce, ...]:
        """For a backup that joins."""
        return tuple(self._announce(one) for one in self._in_order())

    def knows(self, admin: str) -> bool:
        return admin in self._outstanding or admin in self._ordered

    # Orders.

    def send(self, admin: Admin, now_s: float) -> list[Action]:
        """Announce it for a place ahead; with no backup there, send it at once."""
        if len(self._outstanding) + len(self._ordered) >= OUTSTANDING_MAX:
            return self._refuse(admin, f"{OUTSTANDING_MAX} administrative messages are outstanding: send it later")
        if admin.kind != "switch" or admin.to in self._ready:
            return self.announce(admin, now_s)
        if admin.to == self._name or admin.to not in self.peers:
            return self._refuse(admin, f"adapter {admin.to} is not linked as a backup of {self._name}")
        self._ordered[admin.id] = admin, now_s
        return []

    def announce(self, admin: Admin, now_s: float) -> list[Action]:
        n = self._numbering.free_from(self._numbering.last + (self._lead if self.peers else 1))
        one = self._outstanding[admin.id] = Outstanding(admin, n, 0, now_s)
        one.last = self._numbering.last
        return self._say_and_reserve(one, now_s)

    def take_over(self, admin: Admin, n: int, revision: int, now_s: float) -> None:
        """Announced by an active that is gone, and reserved here (STR-69)."""
        self._outstanding[admin.id] = Outstanding(admin, n, revision + 1, now_s)

    # What backups say.

    def heard(self, peer: str, is_synchronised: bool, now_s: float) -> list[Action]:
        """A backup's heartbeat: a switch to it may be waiting for this."""
        if not is_synchronised or peer not in self.peers:
            self._ready.discard(peer)
            return []
        self._ready.add(peer)
        actions: list[Action] = []
        for admin, _ in [order for order in self._ordered.values() if order[0].to == peer]:
            del self._ordered[admin.id]
            actions += self.announce(admin, now_s)
        return actions

    def decided(self, peer: str, word: Decided, now_s: float) -> list[Action]:
        """A backup's answer. After a refusal a later place is announced, if there is still time for it (STR-65)."""
        one = self._outstanding.get(word.admin)
        if one is None or word.revision != one.revision or peer not in self.peers:
            return []
        if word.result != "refused":
            return []
        one.refusals += 1
        one.refused_by.add(peer)
        if one.refusals > REVISIONS_MAX or one.refused_by != self.peers:
            return []
        return self._revise(one, max(word.b, self._numbering.last) + self._lead, now_s)

    def lost(self, peer: str, now_s: float) -> list[Action]:
        """The link to a backup is down: a switch to it is off, and clients are told so in its place."""
        self.peers.discard(peer)
        self._ready.discard(peer)
        actions = [action for one in self._switches_to(peer) for action in self._give_up(one, now_s)]
        for admin, _ in [order for order in self._ordered.values() if order[0].to == peer]:
            del self._ordered[admin.id]
            actions += self._refuse(admin, f"the link to {peer} is down")
        return actions

    # Time.

    def tick(self, now_s: float) -> list[Action]:
        """Revise what the quiet source does not reach: to the next number, where it is sent at once."""
        actions: list[Action] = []
        for one in self._in_order():
            if now_s < one.since_s + self._revise_s or one.n <= self._numbering.last:
                continue
            if one.admin.kind == "switch" and self._is_worth_waiting(one, now_s):
                one.since_s, one.last = now_s, self._numbering.last
            else:
                actions += self._revise(one, self._numbering.last + 1, now_s)
        for admin, since_s in list(self._ordered.values()):
            if now_s >= since_s + SWITCH_S:
                del self._ordered[admin.id]
                actions += self._refuse(admin, f"adapter {admin.to} is not synchronised")
        return actions

    def _is_worth_waiting(self, one: Outstanding, now_s: float) -> bool:
        """We are on the way to its place; a nearer one could be behind the adapter that takes over."""
        return self._numbering.last > one.last and now_s < one.began_s + SWITCH_S

    # It is sent, or somebody else is active.

    def landed(self, landed: Landed) -> Outstanding | None:
        """It is sent: there will be no revision any more. None: it is not one of ours."""
        return self._outstanding.pop(landed.slot.id, None)

    def final(self, one: Outstanding, number: int) -> list[Action]:
        return [ToLink(peer, Final(admin=one.admin.id, n=number)) for peer in sorted(self.peers)]

    def resign(self) -> list[Outstanding]:
        """Somebody else is active: what was outstanding is handed out."""
        handed = self._in_order()
        self._outstanding.clear()
        self._ordered.clear()
        self._ready.clear()
        self.peers.clear()
        return handed

    def _in_order(self) -> list[Outstanding]:
        return sorted(self._outstanding.values(), key=lambda one: one.n)

    def _switches_to(self, peer: str) -> list[Outstanding]:
        return [one for one in self._in_order() if one.admin.kind == "switch" and one.admin.to == peer]

    def _announce(self, one: Outstanding) -> Announce:
        return Announce(epoch=self.epoch, n=one.n, admin=one.admin, revision=one.revision)

    def _say_and_reserve(self, one: Outstanding, now_s: float) -> list[Action]:
        announce = self._announce(one)
        self._numbering.reserve(one.n, admin_slot(one.admin), now_s)
        return [ToLink(peer, announce) for peer in sorted(self.peers)]

    def _revise(self, one: Outstanding, n: int, now_s: float) -> list[Action]:
        self._numbering.release(one.n)
        one.n = self._numbering.free_from(n)
        one.revision += 1
        one.since_s, one.last = now_s, self._numbering.last
        one.refused_by.clear()
        return self._say_and_reserve(one, now_s)

    def _give_up(self, one: Outstanding, now_s: float) -> list[Action]:
        text = f"planned switch to {one.admin.to} was given up: the link to it is down"
        one.admin = Admin(id=one.admin.id, kind="text", body=text.encode())
        told: list[Action] = [Log("warning", text), ToAdministration(Refusal(code="no-adapter", why=text))]
        return [*told, *self._revise(one, self._numbering.last + 1, now_s)]

    def _refuse(self, admin: Admin, why: str) -> list[Action]:
        return [
            Log("warning", f"administrative message {admin.id} is not sent: {why}"),
            ToAdministration(Refusal(code="no-adapter", why=why)),
        ]
