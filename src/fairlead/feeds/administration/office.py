"""What the desks of the administration share: groups, conversations, and what is to be done next, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fairlead.feeds.administration.facts import facts
from fairlead.feeds.administration.group import Group, Member
from fairlead.feeds.source_relations import Relations
from fairlead.feeds.words import Admit, Name, Notice, Refusal, StreamFacts, Word

__all__ = ["Effect", "Keep", "Office", "Options", "Say", "Talk", "Tell", "right_of"]

Allows = Callable[[str, Literal["subscribe", "publish", "admin"], str], bool]
"""May this user do that with `stream.NAME`?"""


class Tell(NamedTuple):
    """Say this in a conversation, and end it if it is the `last` word."""

    talk: int
    word: Word
    last: bool = False


class Keep(NamedTuple):
    """Make `Administration.kept()` durable before doing what follows."""


class Say(NamedTuple):
    """For the log."""

    level: Literal["debug", "info", "warning", "error"]
    text: str


Effect = Tell | Keep | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Defaults are those of section 6 of the specification, and bounds."""

    token_life_s: float = 3600.0
    grace_s: float = 3.0  # for adapters to come back to an administration that was started anew
    reports_missed: int = 3
    patience_min_s: float = 0.6  # with very short intervals: a busy machine is not a dead adapter
    switch_s: float = 5.0
    tick_s: float = 0.1
    streams_max: int = 10_000
    adapters_max: int = 16  # of one stream
    talks_max: int = 100_000
    passes_max: int = 100_000  # of one stream
    relations: Relations = field(default_factory=dict)


class Talk(NamedTuple):
    """What a conversation is, since its first word."""

    kind: Literal["adapter", "client", "operator"]
    user: str
    stream: str = ""
    name: str = ""


class Office:
    """`out` is taken by the edge after each event."""

    def __init__(self, allows: Allows, random: Callable[[int], bytes], options: Options) -> None:
        self.allows, self.random, self.options = allows, random, options
        self.groups: dict[str, Group] = {}
        self.talks: dict[int, Talk] = {}
        self.out: list[Effect] = []
        self.unsaved_s: float | None = None  # since when something waits to be kept that is in no hurry
        self.lenient_until_s = 0.0
        self.refused = 0

    # --- What is to be done ---------------------------------------------------------------------------------------
    def tell(self, talk: int | None, word: Word, *, last: bool = False) -> None:
        if talk is None:
            return
        self.out.append(Tell(talk, word, last))
        if last:
            self.talks.pop(talk, None)

    def keep(self) -> None:
        """What has changed must be durable before anything that is said from here on."""
        self.unsaved_s = None
        if Keep() not in self.out:
            self.out.append(Keep())

    def keep_soon(self, now_s: float) -> None:
        if self.unsaved_s is None:
            self.unsaved_s = now_s

    def say(self, level: Literal["debug", "info", "warning", "error"], text: str) -> None:
        self.out.append(Say(level, text))

    def refuse(self, talk: int, code: str, why: str) -> None:
        self.refused += 1
        self.tell(talk, Refusal(code=code, why=why[:4096]), last=True)

    def finished(self, talk: int, group: Group, now_s: float) -> None:
        """An order is carried out."""
        if talk in self.talks:
            self.tell(talk, StreamFacts(streams=(facts(group, now_s),)))

    def token(self) -> Name:
        return self.random(16).hex()

    # --- What a change in a group means for others ----------------------------------------------------------------
    def tell_roles(self, group: Group, now_s: float) -> None:
        for member in group.present():
            self.tell_role(group, member, now_s)

    def tell_role(self, group: Group, member: Member, now_s: float) -> None:
        member.role_told_s = now_s
        self.tell(member.talk, group.role_of(member))

    def tell_clients(self, group: Group) -> None:
        """A Notice to all, if anything they have to know has changed."""
        if group.settle_s is not None:
            return  # who is missing may be back in a moment: nobody is disturbed
        lines, sources = group.lines("-"), group.sources()
        seen = (group.epoch, lines, sources)
        if seen == group.told:
            return
        group.told = seen
        for talk, one in group.subscribers.items():
            if one.is_told:
                self.tell(talk, Notice(epoch=group.epoch, lines=group.lines(one.token), sources=sources))

    def admit(self, group: Group, token: str, client: str, life_s: float, *, link: bool = False) -> None:
        """At all adapters, so that none has to ask when it is needed (STR-81)."""
        for member in group.present():
            if not link or member.name != client:
                self.tell(member.talk, Admit(token=token, client=client, life_s=life_s, link=link))


def right_of(stream: str) -> str:
    """The name whose rights decide about a stream."""
    return f"stream.{stream}"
