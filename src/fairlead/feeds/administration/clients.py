"""The desk at which clients subscribe: both streams are brokered at once (STR-1, STR-2), and again when they change."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.feeds.administration.facts import bounded
from fairlead.feeds.administration.group import Group, Subscriber
from fairlead.feeds.administration.office import Office, Talk, right_of
from fairlead.feeds.administration.passes import Pass
from fairlead.feeds.words import Brokered, ClientReport, Notice, Revoke, Revoked, Subscribe

__all__ = ["ClientDesk"]

ANSWER_MIN_S, ANSWER_MAX_S = 0.1, 1.0  # how long adapters are waited for: one heartbeat interval, within these


class ClientDesk:
    def __init__(self, office: Office) -> None:
        self._office = office

    # --- Subscribing ----------------------------------------------------------------------------------------------
    def on_subscribe(self, talk: int, user: str, said: Subscribe, now_s: float) -> None:
        office = self._office
        if not office.allows(user, "subscribe", right_of(said.stream)):
            text = f"User {user or 'anonymous'} needs the right `subscribe {right_of(said.stream)}`."
            office.refuse(talk, "not-allowed", text)
            return
        group = office.groups.get(said.stream)
        if group is None:
            office.refuse(talk, "unknown-stream", f"No adapter has ever registered for a stream {said.stream}.")
            return
        if group.passes.is_barred(user, said.client):
            text = f"The right to {said.stream} was revoked; an operator can permit it again."
            office.refuse(talk, "not-allowed", text)
            return
        one = group.passes.find(user, said.client) or self._issue(group, user, said.client)
        if one is None:
            office.refuse(talk, "too-many", f"{said.stream} has as many clients as it may have.")
            return
        one.talks.add(talk)
        office.talks[talk] = Talk("client", user, said.stream, one.token)
        group.subscribers[talk] = group.waiting[talk] = Subscriber(one.token, said.client, user)
        group.newcomers.append(talk)
        self.serve_waiting(group, now_s)

    def _issue(self, group: Group, user: str, client: str) -> Pass | None:
        made = group.passes.issue(user, client, self._office.token(), 0.0)
        if made is not None:
            self._office.keep()
        return made

    def serve_waiting(self, group: Group, now_s: float) -> None:
        """First adapters are told; the client is when they all know it, or have had time enough.

        So its token is good wherever it dials, and the position it begins at is of this moment.
        """
        if group.settle_s is not None:
            return  # adapters may still come back
        living = group.living()
        if not living:
            for talk, one in list(group.waiting.items()):
                self._turn_away(group, talk, one)
            return
        newcomers, group.newcomers = group.newcomers, []
        for talk in newcomers:
            if talk in group.waiting:
                self._introduce(group, group.waiting[talk], now_s)
        known = min(member.admitted for member in living)
        ready = []
        for talk, one in group.waiting.items():
            if one.number > known and now_s < one.until_s:
                break  # who came later is not ready either
            ready.append((talk, one))
        for talk, one in ready:
            self._broker(group, talk, one)

    def _introduce(self, group: Group, one: Subscriber, now_s: float) -> None:
        group.subscriptions += 1
        one.number = group.admitting[one.token] = group.subscriptions
        one.until_s = now_s + min(max(group.heartbeat_s(), ANSWER_MIN_S), ANSWER_MAX_S)
        self._extend(group, one.token, now_s)

    def _turn_away(self, group: Group, talk: int, one: Subscriber) -> None:
        held = group.passes.by_token[one.token]
        self._leave(group, talk)
        if held.expires_s == 0.0 and not held.talks:
            group.passes.drop(held)
        text = f"No adapter of {group.stream} is running at the moment; try again."
        self._office.refuse(talk, "no-adapter", text)

    def _broker(self, group: Group, talk: int, one: Subscriber) -> None:
        one.is_told = True
        self._served(group, talk)
        self._office.tell(
            talk,
            Brokered(
                stream=group.stream,
                epoch=group.epoch,
                lines=group.lines(one.token),
                sources=group.sources(),
                positions=dict(group.positions()),
                threshold=group.threshold,
                heartbeat_s=group.heartbeat_s(),
                token_life_s=self._office.options.token_life_s,
                schema=group.schema,
            ),
        )

    @staticmethod
    def _served(group: Group, talk: int) -> None:
        one = group.waiting.pop(talk, None)
        if one is not None and group.admitting.get(one.token) == one.number:
            del group.admitting[one.token]

    def _extend(self, group: Group, token: str, now_s: float) -> None:
        one, life_s = group.passes.by_token[token], self._office.options.token_life_s
        one.expires_s = now_s + life_s
        self._office.keep_soon(now_s)
        self._office.admit(group, token, one.client, life_s)

    # --- Later ----------------------------------------------------------------------------------------------------
    def on_renew(self, talk: int, who: Talk, now_s: float) -> None:
        group = self._office.groups[who.stream]
        subscriber = group.subscribers[talk]
        if not subscriber.is_told:
            return  # it gets a Brokered soon
        self._extend(group, subscriber.token, now_s)
        notice = Notice(epoch=group.epoch, lines=group.lines(subscriber.token), sources=group.sources())
        self._office.tell(talk, notice)

    def on_report(self, talk: int, who: Talk, said: ClientReport) -> None:
        """A client that failed over by itself changes nothing for the others (STR-31)."""
        group = self._office.groups[who.stream]
        subscriber = group.subscribers[talk]
        if said.local and not subscriber.local:
            self._office.say("info", f"stream {group.stream}: {subscriber.client} failed over by itself to {said.line}")
        subscriber.line, subscriber.local, subscriber.counters = said.line[:255], said.local, bounded(said.counters)

    def on_lost(self, talk: int, who: Talk) -> None:
        group = self._office.groups.get(who.stream)
        if group is not None:
            self._leave(group, talk)

    def _leave(self, group: Group, talk: int) -> None:
        self._served(group, talk)
        subscriber = group.subscribers.pop(talk, None)
        if subscriber is not None and (one := group.passes.by_token.get(subscriber.token)) is not None:
            one.talks.discard(talk)

    # --- Revoking -------------------------------------------------------------------------------------------------
    def revoke(self, group: Group, concerns: Callable[[Pass], bool], why: str) -> int:
        """End both streams of these now; adapters that are away hear of it when they are back (STR-82)."""
        revoked = [one for one in group.passes if concerns(one)]
        for one in revoked:
            group.passes.revoke(one)
        if revoked:
            self._office.keep()
        for one in revoked:
            for member in group.present():
                self._office.tell(member.talk, Revoke(token=one.token, why=why))
            for talk in sorted(one.talks):
                self._served(group, talk)
                group.subscribers.pop(talk, None)
                self._office.tell(talk, Revoked(why=why), last=True)
            self._office.say(
                "info", f"stream {group.stream}: revoked for {one.client} of {one.user or 'anonymous'}: {why}"
            )
        return len(revoked)
