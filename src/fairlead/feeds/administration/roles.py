"""Who is active in a group, and under which epoch (STR-5): decided here alone.

Laws: an epoch has one active adapter; epochs only rise; a new one is durable before it is told to anybody.
"""

from __future__ import annotations

from fairlead.feeds.administration.group import Group, Member
from fairlead.feeds.administration.office import Office
from fairlead.feeds.words import Refusal

__all__ = ["Roles"]


class Roles:
    def __init__(self, office: Office) -> None:
        self._office = office

    def promote(self, group: Group, member: Member, why: str, now_s: float) -> None:
        """A new epoch, in which this one is active."""
        is_first = not group.epoch
        group.failovers += not is_first
        group.active = member.name
        group.epoch = group.highest = group.highest + 1
        member.source_lost_s, group.former = None, ""
        self._office.say(
            "info" if is_first else "warning",
            f"stream {group.stream}: {member.name} is active, epoch {group.epoch}: {why}",
        )
        self._changed(group, now_s)
        self._end_switch(group, member.name, now_s)

    def adopt(self, group: Group, member: Member, epoch: int, now_s: float) -> None:
        """It is active already, under an epoch that is higher than ours: of a planned switch, or of a lost store."""
        is_switch = group.promised == (epoch, member.name)
        group.switches += is_switch
        group.epoch, group.active = epoch, member.name
        group.highest = max(group.highest, epoch)
        self._office.say(
            "info",
            f"stream {group.stream}: {member.name} is active, epoch {epoch}: "
            + ("as ordered" if is_switch else "it was before this administration knew it"),
        )
        self._changed(group, now_s)
        self._end_switch(group, member.name, now_s)

    def ensure(self, group: Group, now_s: float) -> None:
        """Somebody shall be active if anybody can; not while adapters may still come back after a restart."""
        if group.settle_s is not None:
            if group.is_unsettled(now_s):
                return
            self._settled(group)
        if group.leader is None and (best := group.best(but=group.former) or group.best()) is not None:
            if not group.epoch:
                why = "the first adapter"
            elif group.active in ("", best.name):
                why = "there is nobody else"
            else:
                why = f"{group.active} is gone"
            self.promote(
                group, best, why if best.synchronised or not group.epoch else f"{why}, not synchronised", now_s
            )
        self._office.tell_clients(group)

    def _settled(self, group: Group) -> None:
        missing = [one.name for one in group.members.values() if one.expected and not one.alive]
        for one in group.members.values():
            one.expected = False
        group.settle_s, group.learning = None, False
        if missing:
            self._office.say("warning", f"stream {group.stream}: did not come back: {', '.join(missing)}")

    # --- What adapters say they are -------------------------------------------------------------------------------
    def heard(self, group: Group, member: Member, role: str, epoch: int, now_s: float) -> None:
        """Is an adapter what we think it is? A higher epoch wins; everybody else is told."""
        mine = group.epoch
        if role == "active" and epoch > mine:
            self.adopt(group, member, epoch, now_s)
        elif role == "active" and epoch == mine and member.name != group.active:
            self._dispute(group, member, now_s)
        elif epoch > mine:
            self._heard_of(group, epoch, now_s)
        elif (epoch < mine or role != self._role(group, member)) and now_s - member.role_told_s > 1.0:
            self._office.tell_role(group, member, now_s)

    @staticmethod
    def _role(group: Group, member: Member) -> str:
        return "active" if member.name == group.active else "backup"

    def _dispute(self, group: Group, member: Member, now_s: float) -> None:
        """Two are active under one epoch, which only a lost store can bring about. Whom we know stays."""
        self.promote(group, group.leader or member, "two adapters were active under one epoch", now_s)

    def _heard_of(self, group: Group, epoch: int, now_s: float) -> None:
        """A backup knows a higher epoch: a planned switch is done, or the store lost it."""
        group.highest = max(group.highest, epoch)
        promised, to = group.promised
        if promised == epoch and (target := group.members.get(to)) is not None:
            self.adopt(group, target, epoch, now_s)
        elif (leader := group.leader) is not None and group.settle_s is None:
            self.promote(group, leader, "an adapter knew a higher epoch", now_s)

    # --- After a change -------------------------------------------------------------------------------------------
    def _changed(self, group: Group, now_s: float) -> None:
        for one in group.members.values():
            one.synchronised = one.synchronised and one.name == group.active
        self._office.keep()
        self._office.tell_roles(group, now_s)
        self._office.tell_clients(group)

    def _end_switch(self, group: Group, active: str, now_s: float) -> None:
        """Whoever ordered a switch hears how it ended."""
        switch, group.switch = group.switch, None
        if switch is None:
            return
        if active == switch.to:
            self._office.say("info", f"stream {group.stream}: the switch to {active} is done")
            self._office.finished(switch.talk, group, now_s)
        else:
            self.give_up(group, switch.talk, f"{active} is active: the roles changed before the switch was done.")

    def give_up(self, group: Group, talk: int, why: str) -> None:
        group.switch = None
        self._office.say("warning", f"stream {group.stream}: the planned switch is given up: {why}")
        if talk in self._office.talks:
            self._office.tell(talk, Refusal(code="unavailable", why=why))
