"""The desk at which adapters register and report: who is alive, and what it is told.

An adapter is taken for dead when its conversation ends, and when it has not reported for three intervals; one that
reports again is alive again, and has the role that was decided meanwhile.
"""

from __future__ import annotations

from fairlead.feeds.administration.facts import bounded
from fairlead.feeds.administration.group import Group, Member
from fairlead.feeds.administration.office import Office, Talk, right_of
from fairlead.feeds.administration.roles import Roles
from fairlead.feeds.words import Admit, Closing, Decided, Refusal, Register, Registered, Report, Revoke

__all__ = ["AdapterDesk"]

EPOCH_MAX = 1 << 62  # beyond it somebody makes numbers up, and there would soon be no higher one


class AdapterDesk:
    def __init__(self, office: Office, roles: Roles) -> None:
        self._office, self._roles = office, roles

    # --- Registering ----------------------------------------------------------------------------------------------
    def on_register(self, talk: int, user: str, said: Register, now_s: float, *, wait_until_s: float) -> Group | None:
        """The group it is in from now on; None: it was refused. `wait_until_s`: of a store that was lost."""
        fault = self._fault(user, said)
        if fault is not None:
            self._office.refuse(talk, *fault)
            self._office.say("warning", f"adapter {said.adapter} of stream {said.stream} is refused: {fault[1]}")
            return None
        office = self._office
        group = office.groups.get(said.stream)
        if group is None:
            group = office.groups[said.stream] = Group(
                said.stream,
                threshold=said.threshold,
                schema=said.schema,
                passes_max=office.options.passes_max,
                relations=office.options.relations,
            )
            if said.epoch and said.role == "backup":
                wait_until_s = max(wait_until_s, now_s + office.options.grace_s)  # somebody else was active
            if now_s < wait_until_s:
                group.settle_s, group.learning = wait_until_s, True
        if not any(one.alive for one in group.members.values()):
            group.threshold, group.schema = said.threshold, said.schema  # nobody is here who has others
        is_same_life, member = self._enter(group, talk, user, said, now_s)
        was_active = group.active == member.name
        office.talks[talk] = Talk("adapter", user, said.stream, said.adapter)
        office.keep()  # the next administration expects it
        office.tell(talk, Registered(token_life_s=office.options.token_life_s))
        self._admissions(group, member, said.tokens, now_s)
        if was_active and not is_same_life:
            # It died and came back before we knew: it is a backup from now on (STR-75), if there is anybody else.
            group.active, group.former = "", member.name
        claims = "active" if said.role == "active" and (is_same_life or not was_active) else "backup"
        member.role_told_s = now_s - 2.0
        self._roles.heard(group, member, claims, said.epoch, now_s)
        self._roles.ensure(group, now_s)
        if member.role_told_s < now_s and group.epoch:
            office.tell_role(group, member, now_s)
        return group

    def _fault(self, user: str, said: Register) -> tuple[str, str] | None:
        """Why it cannot be: a code and a sentence."""
        office, options = self._office, self._office.options
        if not office.allows(user, "publish", right_of(said.stream)):
            return "not-allowed", f"User {user or 'anonymous'} needs the right `publish {right_of(said.stream)}`."
        if said.epoch > EPOCH_MAX:
            return "bad-parameter", f"Epoch {said.epoch} was never given to anybody."
        if not 0.001 <= said.heartbeat_s <= 60:
            return "bad-parameter", f"A heartbeat interval is 0.001 to 60 s, and not {said.heartbeat_s:g}."
        group = office.groups.get(said.stream)
        if group is None:
            if len(office.groups) >= options.streams_max:
                return (
                    "too-many",
                    f"There are {options.streams_max} streams already; `fairlead streams forget` old ones.",
                )
            return None
        known = group.members.get(said.adapter)
        if known is None and len(group.members) >= options.adapters_max:
            return "too-many", f"{said.stream} has {options.adapters_max} adapters already; forget one that is gone."
        if (
            known is not None
            and known.alive
            and known.incarnation != said.incarnation
            and known.address != said.address
        ):
            return "name-taken", f"An adapter {said.adapter} at {known.address} is alive; give this one another name."
        if any(one.alive and one.name != said.adapter for one in group.members.values()):
            if said.threshold != group.threshold:
                text = f"The threshold of {said.stream} is {group.threshold} at the other adapters"
                return "bad-parameter", f"{text}, and not {said.threshold}."
            if said.schema != group.schema:
                return "bad-parameter", f"The schema of {said.stream} is another one at the other adapters."
        return None

    def _enter(self, group: Group, talk: int, user: str, said: Register, now_s: float) -> tuple[bool, Member]:
        """Into the list of members. Is it the same process that we knew?"""
        office = self._office
        member = group.members.get(said.adapter)
        if member is None:
            member = group.members[said.adapter] = Member(
                said.adapter, said.address, said.incarnation, said.preference, said.heartbeat_s, office.token()
            )
            is_same_life = False
        else:
            is_same_life = member.incarnation == said.incarnation or (
                said.role == "active" and said.epoch >= group.epoch > 0
            )
            if member.talk is not None and member.talk != talk:
                office.tell(member.talk, Closing(why="It has registered anew."), last=True)
        member.admitted = 0
        if not is_same_life:
            member.synchronised, member.last, member.positions, member.counters = False, 0, {}, {}
        member.address, member.incarnation = said.address, said.incarnation
        member.preference, member.heartbeat_s, member.sources = said.preference, said.heartbeat_s, said.sources
        member.talk, member.user, member.alive, member.heard_s = talk, user, True, now_s
        member.last = max(member.last, said.last)
        member.source_alive, member.source_lost_s = True, None
        return is_same_life, member

    def _admissions(self, group: Group, member: Member, tokens: tuple[str, ...], now_s: float) -> None:
        """Whom it lets in, and whom no more: a right may have been revoked while it was away (STR-82)."""
        office, life_s = self._office, self._office.options.token_life_s
        for one in group.passes:
            if one.expires_s > now_s:
                word = Admit(token=one.token, client=one.client, life_s=min(one.expires_s - now_s, life_s))
                office.tell(member.talk, word)
        links = {one.link_token for one in group.members.values()}
        for other in group.members.values():
            if other is not member:
                office.tell(member.talk, Admit(token=other.link_token, client=other.name, life_s=life_s, link=True))
        office.admit(group, member.link_token, member.name, life_s, link=True)
        known, is_strict = group.passes.by_token.keys() | links, now_s >= office.lenient_until_s
        for token in tokens:
            if token in group.passes.revoked or (is_strict and token not in known):
                office.tell(member.talk, Revoke(token=token, why="The right to this stream was revoked."))

    # --- Reports and ends -----------------------------------------------------------------------------------------
    def on_report(self, talk: Talk, said: Report, now_s: float) -> None:
        group = self._office.groups[talk.stream]
        member = group.members[talk.name]
        if not member.alive:
            self._office.say("info", f"stream {group.stream}: {member.name} reports again")
        changed = not member.alive or member.incarnation != said.incarnation
        if member.incarnation != said.incarnation or (said.sources is not None and said.sources != member.sources):
            self._office.keep_soon(now_s)
            changed = True
        member.alive, member.expected, member.heard_s, member.incarnation = True, False, now_s, said.incarnation
        member.last, member.positions, member.counters = said.last, said.positions, bounded(said.counters)
        # With the active one before is not with this one: it counts from the epoch we know, or a later one.
        member.synchronised = said.synchronised and said.epoch >= group.epoch
        member.source_alive = said.source_alive
        member.admitted = max(member.admitted, group.admitting.get(said.admitted, 0))
        if said.sources is not None:
            member.sources = said.sources
        member.source_lost_s = None if said.source_alive else member.source_lost_s or now_s
        if said.epoch <= EPOCH_MAX:
            self._roles.heard(group, member, said.role, said.epoch, now_s)
        if group.leader is None or group.settle_s is not None:
            self._roles.ensure(group, now_s)
        elif changed:
            self._office.tell_clients(group)
        self._pass_over_sourceless(group, now_s)

    def on_decided(self, talk: Talk, said: Decided) -> None:
        """A backup tells where it sends an administrative message, or that it cannot (STR-58, STR-65)."""
        group = self._office.groups[talk.stream]
        group.decisions.append(
            {
                "adapter": talk.name,
                "admin": said.admin,
                "n": said.n,
                "b": said.b,
                "t": said.t,
                "p": said.b - said.n + 1,
                "result": said.result,
                "number": said.number,
            }
        )
        if said.result == "refused":
            text = f"{talk.name} cannot send {said.admin} at N {said.n}: its B is {said.b}, T is {said.t}"
            self._office.say("warning", f"stream {group.stream}: {text}")

    def on_refusal(self, talk: Talk, said: Refusal) -> None:
        """An adapter cannot do what it was told."""
        group = self._office.groups[talk.stream]
        if group.switch is not None and talk.name == group.active:
            self._roles.give_up(group, group.switch.talk, said.why)
        else:
            self._office.say("warning", f"stream {group.stream}: {talk.name} says: {said.why}")

    def _pass_over_sourceless(self, group: Group, now_s: float) -> None:
        """The active one has lost its source for three intervals, and a synchronised backup has it (STR-30)."""
        leader = group.leader
        if leader is None or leader.source_lost_s is None or group.settle_s is not None:
            return
        if now_s - leader.source_lost_s < self._office.options.reports_missed * leader.heartbeat_s:
            return
        best = group.best(but=leader.name)
        if best is not None and best.source_alive and best.synchronised:
            self._roles.promote(group, best, f"{leader.name} has lost its source", now_s)

    def on_lost(self, talk: int, who: Talk, now_s: float) -> None:
        group = self._office.groups.get(who.stream)
        member = group.members.get(who.name) if group is not None else None
        if group is None or member is None or member.talk != talk:
            return
        member.talk, member.alive = None, False
        self._office.say("warning", f"stream {group.stream}: the conversation with {member.name} has ended")
        self._office.keep_soon(now_s)
        self._roles.ensure(group, now_s)

    def on_tick(self, group: Group, now_s: float) -> None:
        options = self._office.options
        if group.settle_s is not None or group.leader is None:
            self._roles.ensure(group, now_s)
        for member in group.members.values():
            patience_s = max(options.reports_missed * member.heartbeat_s, options.patience_min_s)
            if member.alive and now_s - member.heard_s > patience_s:
                member.alive = False
                self._office.say(
                    "warning",
                    f"stream {group.stream}: {member.name} has not reported for {now_s - member.heard_s:.2f} s",
                )
                self._roles.ensure(group, now_s)
        if group.switch is not None and now_s >= group.switch.until_s:
            text = f"The adapters did not switch to {group.switch.to} within {options.switch_s:g} s; try again."
            self._roles.give_up(group, group.switch.talk, text)

    def renew_links(self, group: Group) -> None:
        for member in group.members.values():
            self._office.admit(group, member.link_token, member.name, self._office.options.token_life_s, link=True)

    # --- Being told to go -----------------------------------------------------------------------------------------
    def dismiss(self, group: Group, member: Member, why: str, now_s: float) -> None:
        """It may not be an adapter any more."""
        talk, member.talk, member.alive = member.talk, None, False
        if talk is not None:
            self._office.tell(talk, Refusal(code="not-allowed", why=why), last=True)
        self._office.say("warning", f"stream {group.stream}: {member.name} is dismissed: {why}")
        self._roles.ensure(group, now_s)

    def forget(self, group: Group, member: Member) -> None:
        del group.members[member.name]
        if group.active == member.name:
            group.active = ""
        for other in group.present():
            self._office.tell(other.talk, Revoke(token=member.link_token, why=f"{member.name} was forgotten."))
