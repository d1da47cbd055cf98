"""The desk for operators: look, switch, send, revoke, permit, forget. All need `admin` on the stream.

Whoever may subscribe to a stream may look at it too, and sees no other clients.
"""

from __future__ import annotations

from typing import Literal

from fairlead.feeds.administration.adapters import AdapterDesk
from fairlead.feeds.administration.clients import ClientDesk
from fairlead.feeds.administration.facts import every_one, without_clients
from fairlead.feeds.administration.group import Group, Member, Switch
from fairlead.feeds.administration.office import Office, Talk, right_of
from fairlead.feeds.administration.roles import Roles
from fairlead.feeds.words import Admin, Order, Refusal, SendAdmin, StreamFacts

__all__ = ["OrderDesk"]

ADMIN_BYTES_MAX = 262_144


class OrderDesk:
    def __init__(self, office: Office, roles: Roles, adapters: AdapterDesk, clients: ClientDesk) -> None:
        self._office, self._roles, self._adapters, self._clients = office, roles, adapters, clients

    def on_order(self, talk: int, user: str, said: Order, now_s: float) -> None:
        """A refused order does not end the conversation: the operator may give another one."""
        office = self._office
        office.talks[talk] = Talk("operator", user)
        groups = self._groups(talk, user, said)
        if groups is None:
            return
        match said.do:
            case "status":
                self._show(talk, user, groups, now_s)
            case "revoke" | "permit":
                self._revoke_or_permit(talk, groups, said, now_s)
            case _:
                self._to_one(talk, groups[0], said, now_s)

    def _show(self, talk: int, user: str, groups: list[Group], now_s: float) -> None:
        seen = [
            one if self._may(user, "admin", group) else without_clients(one)
            for group, one in zip(groups, every_one(groups, now_s), strict=True)
        ]
        self._office.tell(talk, StreamFacts(streams=tuple(seen)))

    def _may(self, user: str, action: Literal["admin", "subscribe"], group: Group) -> bool:
        return self._office.allows(user, action, right_of(group.stream))

    def _groups(self, talk: int, user: str, said: Order) -> list[Group] | None:
        """The streams it is about; None: it was refused."""
        office = self._office
        if not said.stream:
            if said.do in ("status", "revoke", "permit"):
                return [
                    group
                    for _, group in sorted(office.groups.items())
                    if self._may(user, "admin", group) or (said.do == "status" and self._may(user, "subscribe", group))
                ]
            self._no(talk, "bad-parameter", f"Which stream? `{said.do}` is for one.")
            return None
        may_look = said.do == "status" and office.allows(user, "subscribe", right_of(said.stream))
        if not may_look and not office.allows(user, "admin", right_of(said.stream)):
            text = f"User {user or 'anonymous'} needs the right `admin {right_of(said.stream)}`."
            self._no(talk, "not-allowed", text)
            return None
        group = office.groups.get(said.stream)
        if group is None:
            self._no(talk, "unknown-stream", f"No adapter has ever registered for a stream {said.stream}.")
            return None
        return [group]

    def _to_one(self, talk: int, group: Group, said: Order, now_s: float) -> None:
        match said.do:
            case "switch":
                self._switch(talk, group, said.adapter, now_s)
            case "send":
                self._send(talk, group, said.admin, now_s)
            case _:
                self._forget(talk, group, said.adapter, now_s)

    def _no(self, talk: int, code: str, why: str) -> None:
        self._office.refused += 1
        self._office.tell(talk, Refusal(code=code, why=why))

    # --- Planned switch (STR-78) ----------------------------------------------------------------------------------
    def _switch(self, talk: int, group: Group, wanted: str, now_s: float) -> None:
        """The active adapter is told; it is done when adapters report the new epoch."""
        leader = group.leader
        if leader is None or group.settle_s is not None:
            self._no(talk, "no-adapter", f"{group.stream} has no active adapter at the moment; try again.")
            return
        if group.switch is not None:
            self._no(talk, "busy", f"A switch to {group.switch.to} is under way.")
            return
        target = group.members.get(wanted) if wanted else group.best(but=leader.name)
        fault = self._unfit(group, leader, target, wanted)
        if fault is not None or target is None:
            self._no(talk, *(fault or ("no-adapter", "")))
            return
        group.highest += 1
        group.switch = Switch(target.name, group.highest, now_s + self._office.options.switch_s, talk)
        group.promised = group.highest, target.name
        self._office.keep()  # an epoch that was named once is never given to anybody else
        admin = Admin(id=f"switch-{self._office.token()}", kind="switch", to=target.name, epoch=group.highest)
        self._office.say("info", f"stream {group.stream}: switch to {target.name} is ordered, epoch {group.highest}")
        self._office.tell(leader.talk, SendAdmin(admin=admin))

    @staticmethod
    def _unfit(group: Group, leader: Member, target: Member | None, wanted: str) -> tuple[str, str] | None:
        if target is None:
            if wanted:
                return "bad-parameter", f"{group.stream} has no adapter {wanted}; it has: {', '.join(group.members)}."
            return "no-adapter", f"{group.stream} has no backup to switch to."
        if target is leader:
            return "bad-parameter", f"{target.name} is active already."
        if not target.alive:
            return "no-adapter", f"{target.name} is not running."
        if not target.synchronised:
            return "unavailable", f"{target.name} is not synchronised yet; `fairlead streams status` shows when it is."
        return None

    # --- Administrative messages ----------------------------------------------------------------------------------
    def _send(self, talk: int, group: Group, admin: Admin | None, now_s: float) -> None:
        leader = group.leader
        if admin is None or admin.kind == "switch":
            self._no(talk, "bad-parameter", "Say what to send; a planned switch is the order `switch`.")
        elif len(admin.body) > ADMIN_BYTES_MAX:
            self._no(talk, "bad-parameter", f"An administrative message has at most {ADMIN_BYTES_MAX:,} bytes.")
        elif leader is None:
            self._no(talk, "no-adapter", f"{group.stream} has no active adapter at the moment; try again.")
        else:
            self._office.tell(leader.talk, SendAdmin(admin=Admin(id=admin.id, kind=admin.kind, body=admin.body)))
            self._office.finished(talk, group, now_s)

    # --- Rights ---------------------------------------------------------------------------------------------------
    def _revoke_or_permit(self, talk: int, groups: list[Group], said: Order, now_s: float) -> None:
        if bool(said.client) == bool(said.user):
            self._no(talk, "bad-parameter", "Name one client, or one user.")
            return
        if max(len(said.client), len(said.user)) > 255:
            self._no(talk, "bad-parameter", "A name has at most 255 characters.")
            return
        for group in groups:
            barred, name = group.passes.barred_users, said.user
            if said.client:
                barred, name = group.passes.barred_clients, said.client
            if said.do == "permit":
                barred.discard(name)
            elif len(barred) >= self._office.options.passes_max:
                self._no(talk, "too-many", "So many are revoked already; take rights away in the users file.")
                return
            else:
                barred.add(name)
                self._clients.revoke(
                    group,
                    lambda one: said.client == one.client if said.client else said.user == one.user,
                    "An operator revoked the right to this stream.",
                )
        self._office.keep()
        self._office.tell(talk, StreamFacts(streams=every_one(groups, now_s)))

    # --- Forgetting -----------------------------------------------------------------------------------------------
    def _forget(self, talk: int, group: Group, name: str, now_s: float) -> None:
        """An adapter that will not come back; without a name, a stream that has no adapters any more."""
        office = self._office
        if not name:
            if any(one.talk is not None for one in group.members.values()):
                self._no(talk, "bad-parameter", f"{group.stream} still has adapters; stop them first.")
                return
            self._clients.revoke(group, lambda one: True, "The stream was forgotten.")
            del office.groups[group.stream]
            office.keep()
            office.tell(talk, StreamFacts())
            return
        member = group.members.get(name)
        if member is None:
            self._no(
                talk, "bad-parameter", f"{group.stream} has no adapter {name}; it has: {', '.join(group.members)}."
            )
        elif member.talk is not None:
            self._no(talk, "bad-parameter", f"{name} is still here; stop it first.")
        else:
            self._adapters.forget(group, member)
            office.keep()
            self._roles.ensure(group, now_s)
            office.finished(talk, group, now_s)
