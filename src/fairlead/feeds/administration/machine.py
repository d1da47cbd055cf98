"""The whole administration: who said what in which conversation, and when; out comes what to do about it.

Each conversation begins with Register, Subscribe or Order and stays with that; a word out of place ends it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead.feeds.administration.adapters import AdapterDesk
from fairlead.feeds.administration.clients import ClientDesk
from fairlead.feeds.administration.facts import facts, summary
from fairlead.feeds.administration.group import Expiry, Group
from fairlead.feeds.administration.kept import Kept
from fairlead.feeds.administration.office import Allows, Effect, Office, Options, right_of
from fairlead.feeds.administration.orders import OrderDesk
from fairlead.feeds.administration.roles import Roles
from fairlead.feeds.words import ClientReport, Decided, Order, Refusal, Register, Renew, Report, Subscribe, Word

__all__ = ["Administration"]

SAVE_SOON_S = 2.0  # what is in no hurry is kept within this
SWEEP_S = 5.0


class Administration:
    """Without `kept` (`damaged`: there was a file, and it could not be read) it learns from adapters what was."""

    def __init__(
        self,
        allows: Allows,
        *,
        kept: Kept | None = None,
        damaged: bool = False,
        now_s: float,
        wall_s: float = 0.0,
        random: Callable[[int], bytes],
        options: Options | None = None,
    ) -> None:
        self._options = options = options or Options()
        self._office = Office(allows, random, options)
        self._roles = Roles(self._office)
        self._adapters = AdapterDesk(self._office, self._roles)
        self._clients = ClientDesk(self._office)
        self._orders = OrderDesk(self._office, self._roles, self._adapters, self._clients)
        self._wall_offset_s = wall_s - now_s
        self._ticked_s = now_s
        self._links_s = self._swept_s = now_s
        self._learning_until_s = now_s + options.grace_s if damaged else now_s
        self._patience_until_s = now_s + options.grace_s if kept is None else now_s
        self._early: dict[int, tuple[str, Subscribe]] = {}  # asked for a stream that may turn up
        if kept is None:
            self._office.lenient_until_s = now_s + options.token_life_s
            return
        self._office.lenient_until_s = now_s + min(kept.lenient_until_s - wall_s, options.token_life_s)
        expiry = Expiry(now_s, wall_s, options.token_life_s)
        for had in kept.groups:
            group = Group.restored(had, passes_max=options.passes_max, relations=options.relations, expiry=expiry)
            self._office.groups[had.stream] = group
            if any(one.expected for one in group.members.values()):
                group.settle_s = now_s + options.grace_s

    # --- Events ---------------------------------------------------------------------------------------------------
    def on_word(self, talk: int, user: str, word: Word, now_s: float) -> list[Effect]:
        """Something was said. `talk` is a number of the edge's that is never used again."""
        who = self._office.talks.get(talk)
        if who is None and talk not in self._early:
            self._begin(talk, user, word, now_s)
        elif isinstance(word, Report) and who is not None and who.kind == "adapter":
            self._adapters.on_report(who, word, now_s)
            self._after(who.stream, now_s)
        elif isinstance(word, Decided) and who is not None and who.kind == "adapter":
            self._adapters.on_decided(who, word)
        elif isinstance(word, Refusal) and who is not None and who.kind == "adapter":
            self._adapters.on_refusal(who, word)
        elif isinstance(word, Renew) and who is not None and who.kind == "client":
            self._clients.on_renew(talk, who, now_s)
        elif isinstance(word, ClientReport) and who is not None and who.kind == "client":
            self._clients.on_report(talk, who, word)
        elif isinstance(word, Order) and who is not None and who.kind == "operator":
            self._orders.on_order(talk, user, word, now_s)
        else:
            self._end(talk, now_s)
            self._office.refuse(talk, "bad-parameter", f"{type(word).__name__} is out of place here.")
        return self._take()

    def on_nonsense(self, talk: int, why: str, now_s: float) -> list[Effect]:
        """What was said is no word at all."""
        self._end(talk, now_s)
        self._office.refuse(talk, "bad-parameter", f"The stream administration does not understand this: {why}")
        return self._take()

    def on_lost(self, talk: int, now_s: float) -> list[Effect]:
        """The other side has ended the conversation, or is gone."""
        self._end(talk, now_s)
        return self._take()

    def on_cut(self, now_s: float) -> list[Effect]:
        """We ourselves were cut off, so that all conversations ended: adapters are given time to come back."""
        self._office.talks.clear()
        self._early.clear()
        for group in self._office.groups.values():
            for one in group.members.values():
                one.expected = one.expected or one.talk is not None
                one.talk, one.alive = None, False
            for each in group.passes:
                each.talks.clear()
            group.subscribers.clear()
            group.waiting.clear()
            group.newcomers.clear()
            group.admitting.clear()
            group.switch = None
            group.settle_s = now_s + self._options.grace_s
        self._office.say("warning", "cut off from the server: waiting for adapters and clients to come back")
        return self._take()

    def on_tick(self, now_s: float) -> list[Effect]:
        """Every `options.tick_s`. A tick that comes late says that we were asleep, and not that adapters were."""
        office, asleep_s = self._office, now_s - self._ticked_s - 3 * self._options.tick_s
        self._ticked_s = now_s
        if asleep_s > 0:
            for group in office.groups.values():
                for one in group.members.values():
                    one.heard_s = min(one.heard_s + asleep_s, now_s)
        renew_links = now_s - self._links_s > self._options.token_life_s / 3
        sweep = now_s - self._swept_s > SWEEP_S
        for group in list(office.groups.values()):
            self._adapters.on_tick(group, now_s)
            if renew_links:
                self._adapters.renew_links(group)
            if sweep and group.passes.expire(now_s):
                office.keep_soon(now_s)
            self._after(group.stream, now_s)
        self._links_s = now_s if renew_links else self._links_s
        self._swept_s = now_s if sweep else self._swept_s
        if self._early and now_s >= self._patience_until_s:
            self._serve_early(None, now_s)
        if office.unsaved_s is not None and now_s - office.unsaved_s >= SAVE_SOON_S:
            office.keep()
        return self._take()

    def on_rules(self, allows: Allows, now_s: float) -> list[Effect]:
        """Users or rights have changed: whoever has lost one loses what it has by it (STR-82)."""
        office = self._office
        office.allows = allows
        for group in office.groups.values():
            right = right_of(group.stream)
            why = f"The right `subscribe {right}` was withdrawn."
            self._clients.revoke(group, lambda one, right=right: not allows(one.user, "subscribe", right), why)  # type: ignore[misc]
            for member in list(group.present()):
                if not allows(member.user, "publish", right):
                    self._adapters.dismiss(group, member, f"The right `publish {right}` was withdrawn.", now_s)
        return self._take()

    # --- What it knows --------------------------------------------------------------------------------------------
    def kept(self, now_s: float) -> Kept:
        """To be made durable at each Keep."""
        lenient_until_s = self._office.lenient_until_s
        return Kept(
            groups=tuple(group.kept(self._wall_offset_s) for group in self._office.groups.values()),
            lenient_until_s=lenient_until_s + self._wall_offset_s if lenient_until_s > now_s else 0.0,
        )

    def facts(self, now_s: float) -> list[dict[str, object]]:
        return [facts(group, now_s) for _, group in sorted(self._office.groups.items())]

    def summary(self) -> dict[str, Any]:
        return summary(self._office.groups, self._office.refused)

    @property
    def talking(self) -> int:
        return len(self._office.talks) + len(self._early)

    # --- Inside ---------------------------------------------------------------------------------------------------
    def _begin(self, talk: int, user: str, word: Word, now_s: float) -> None:
        office = self._office
        if self.talking >= self._options.talks_max:
            office.refuse(talk, "server-full", "The stream administration has no room for another conversation.")
        elif isinstance(word, Register):
            group = self._adapters.on_register(talk, user, word, now_s, wait_until_s=self._learning_until_s)
            if group is not None:
                self._after(group.stream, now_s)
                self._serve_early(group.stream, now_s)
        elif isinstance(word, Subscribe):
            is_early = word.stream not in office.groups and now_s < self._patience_until_s
            if is_early and office.allows(user, "subscribe", right_of(word.stream)):
                self._early[talk] = user, word
            else:
                self._clients.on_subscribe(talk, user, word, now_s)
        elif isinstance(word, Order):
            self._orders.on_order(talk, user, word, now_s)
        else:
            office.refuse(talk, "bad-parameter", "A conversation begins with register, subscribe or order.")

    def _serve_early(self, stream: str | None, now_s: float) -> None:
        for talk, (user, said) in list(self._early.items()):
            if stream is None or said.stream == stream:
                del self._early[talk]
                self._clients.on_subscribe(talk, user, said, now_s)

    def _after(self, stream: str, now_s: float) -> None:
        """Clients that wait for adapters are served when these are ready, or will not be."""
        group = self._office.groups.get(stream)
        if group is not None and group.waiting:
            self._clients.serve_waiting(group, now_s)

    def _end(self, talk: int, now_s: float) -> None:
        self._early.pop(talk, None)
        who = self._office.talks.pop(talk, None)
        if who is None:
            return
        if who.kind == "adapter":
            self._adapters.on_lost(talk, who, now_s)
            self._after(who.stream, now_s)
        elif who.kind == "client":
            self._clients.on_lost(talk, who)

    def _take(self) -> list[Effect]:
        out, self._office.out = self._office.out, []
        return out
